//! The monitor: one thread of each process that watches its memory, and reclaims when the budget becomes scarce.
//!
//! It is the kernel's kswapd. Far below the budget it sleeps; the nearer the limit, the shorter, so that a program that
//! fills memory at full speed is met in time. It also follows forks, because it knows when the books are still.

use std::io;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use uswap_core::budget::{Claim, Usage, Watermarks};
use uswap_core::floor::{Evidence, Floor};
use uswap_core::pool_share::PoolShare;
use uswap_core::sabotage::{Sabotage, is_on};
use uswap_core::{Core, PAGE_SIZE, PageRange, tuning};
use uswap_sys::linux::Linux;
use uswap_sys::report::Reason;
use uswap_sys::thread;
use uswap_system::faults::Call;
use uswap_system::{Advice, Supervisor};

use crate::adopt::{Adopter, Look};
use crate::adoption_pace::AdoptionPace;
use crate::compaction::Compaction;
use crate::engine::{BATCH, Engine, Inheritance, NotStarted, StartErrorOf};
use crate::fork_advice;
use crate::fork_copy::Inherited;
use crate::fork_patience::ForkPatience;
use crate::group::Counter;
use crate::host::{Host, Threads};
use crate::ledger::heirs_hold;
use crate::member::{Member, Rendezvous};
use crate::post::Post;
use crate::protocol::{Client, Kind};
use crate::scale::{Growth, Scale, Spurt};
use crate::staff::Progress;
use crate::worker::{RELEASED_KEPT, Worker};

/// How long the supervisor may take to answer a process that joins, before that is said.
const WELCOME_PATIENCE: Duration = Duration::from_secs(2);

/// Whether this process has an engine, or its parent had one when it forked.
pub fn has_engine() -> bool {
    Linux::notices().has_engine()
}

/// The member that the monitor looks after, with or without an engine.
enum Stage<H: Host> {
    Watching(Member<H>),
    Swapping {
        engine: &'static Engine<H>,
        worker: Box<Worker>,
    },
    /// Between the two.
    Changing,
}

/// What the monitor of one process works with.
pub struct Monitor<H: Host> {
    pub(crate) post: &'static Post<H>,
    stage: Stage<H>,
    scale: Scale<H>,
    pub(crate) adopter: Adopter<H>,
    supervisor_looked: Instant,
    published: Instant,
    discards_aged: Instant,
    adoption_pace: AdoptionPace,
    looked_at_all: Instant,
    /// Nothing more could be reclaimed the last time.
    pub(crate) fruitless: bool,
    claim: Claim,
    floor: Floor,
    growth: Growth,
    started: Instant,
    pool_share: PoolShare,
    compaction: Compaction,
    /// When a child was last promised memory.
    promised: Option<Instant>,
    pub(crate) fork_patience: ForkPatience,
    /// The engine's other threads.
    pub(crate) threads: Vec<u32>,
    said_cannot_swap: bool,
    said_cannot_look: bool,
}

impl<H: Host> Monitor<H> {
    /// Of a process that is `member`, and has no engine yet.
    ///
    /// # Errors
    /// The process's size cannot be looked at.
    pub fn new(post: &'static Post<H>, member: Member<H>) -> io::Result<Self> {
        post.index.store(member.index, Release);
        post.generation.store(member.generation, Release);
        member.slot().running();
        let now = H::now();
        Ok(Monitor {
            post,
            stage: Stage::Watching(member),
            scale: Scale::new()?,
            adopter: Adopter::new(),
            supervisor_looked: now,
            published: now,
            discards_aged: now,
            adoption_pace: AdoptionPace::new(now),
            looked_at_all: now,
            fruitless: false,
            claim: Claim::default(),
            floor: Floor::default(),
            growth: Growth::default(),
            started: now,
            pool_share: PoolShare::new(),
            compaction: Compaction::new(now),
            promised: None,
            fork_patience: ForkPatience::new(),
            threads: Vec::new(),
            said_cannot_swap: false,
            said_cannot_look: false,
        })
    }

    pub(crate) fn member(&self) -> &Member<H> {
        match &self.stage {
            Stage::Watching(member) => member,
            Stage::Swapping { engine, .. } => &engine.member,
            Stage::Changing => unreachable!("a stage changes inside one function"),
        }
    }

    pub(crate) fn engine(&self) -> Option<&'static Engine<H>> {
        match self.stage {
            Stage::Swapping { engine, .. } => Some(engine),
            _ => None,
        }
    }

    /// What this thread has for its work on the engine, which there is.
    pub(crate) fn worker(&mut self) -> &mut Worker {
        match &mut self.stage {
            Stage::Swapping { worker, .. } => worker,
            _ => unreachable!("who has no engine has nothing to work on"),
        }
    }

    /// The life of the monitor.
    pub fn run(mut self) -> ! {
        loop {
            self.turn();
        }
    }

    /// Follows a fork, or looks after the process's memory and sleeps until it is time to look again.
    pub fn turn(&mut self) {
        let posted = self.post.wake.load();
        if self.post.fork.is_requested() {
            return self.follow_fork();
        }
        let (sleep, trivial) = self.tick();
        self.post.fork.monitor_sleeps(trivial);
        let _ = self.post.wake.wait(posted, Some(sleep));
        self.post.fork.monitor_wakes(&self.threads);
    }

    /// This process's use of the group's memory.
    pub(crate) fn usage(&mut self) -> Usage {
        let group = self.member().group;
        let slot = self.member().slot();
        let mine_index = self.member().index;
        let processes = group.processes().count() as u64;
        let mine = self.scale.weigh(group, slot, self.engine(), processes);
        self.end_promise();
        let (mut total, mut processes, mut claims, mut fixed) = (0, 0, 0, 0);
        for (index, other) in group.processes() {
            if index != mine_index {
                claims += other.claimed_pages.load(Relaxed);
            }
            fixed += other.fixed_pages();
            for pages in [other.usage_pages(), other.promised_pages.load(Relaxed)] {
                total += pages;
                processes += u64::from(pages > 0);
            }
        }
        // Seen here at every moment that counts; the supervisor looks only now and then.
        group.note_resident_bytes(group.resident_pages_at_least() * PAGE_SIZE as u64);
        let limit = group.limit_pages();
        let now_ms = H::since(self.started).as_millis() as u64;
        let unseen = self.growth.unseen();
        let mut usage = Usage {
            limit,
            total,
            mine,
            processes,
            claims,
            held_at: None,
            unseen,
            least: 0,
            gap_min: group.config().gap_min_pages.into(),
        };
        usage.least = self.least(&usage, fixed, now_ms);
        let claimed = self.claim.update(&usage, now_ms);
        usage.held_at = self.claim.held_at(&usage, now_ms);
        self.member().slot().claimed_pages.store(claimed, Relaxed);
        usage
    }

    /// What this process keeps in any case, because `fixed` pages of all processes cannot be swapped; 0 if nothing.
    fn least(&mut self, usage: &Usage, fixed: u64, now_ms: u64) -> u64 {
        let Some(engine) = self.engine() else { return 0 };
        let slot = self.member().slot();
        let own = slot.fixed_pages();
        let came_back = slot.tally.get(Counter::Pswpin) + slot.tally.get(Counter::SwapCacheHit);
        let evidence = Evidence {
            limit: usage.limit,
            processes: usage.processes,
            fixed_of_all: fixed,
            swappable: usage.mine.saturating_sub(own),
            came_back,
        };
        self.floor.update(&evidence, now_ms);
        let kept = self.floor.pages();
        slot.floor_pages.store(kept, Relaxed);
        if kept == 0 { 0 } else { own + engine.content.pool_pages() + kept }
    }

    /// A child that is about to be forked will have `pages`. Ends by itself, for the child counts what it has.
    pub(crate) fn promise(&mut self, pages: u64) {
        self.promised = (pages > 0).then(H::now);
        self.member().slot().promised_pages.store(pages, Relaxed);
    }

    fn end_promise(&mut self) {
        let Some(since) = self.promised else { return };
        let is_kept = H::since(since) > tuning::PROMISE_KEPT && self.member().slot().forks_in_flight() == 0;
        if is_kept || H::since(since) > tuning::PROMISE_ENDS {
            self.promise(0);
        }
    }

    /// Finds out whether the pool pays.
    fn judge_pool(&mut self) {
        let Some(engine) = self.engine() else { return };
        if !engine.content.areas.any_open() {
            self.pool_share = PoolShare::new();
            return;
        }
        let pool_bytes = engine.content.pool_bytes();
        let refaults = engine.core().take_refaults(PoolShare::ENOUGH, (pool_bytes / PAGE_SIZE) as u64);
        if let Some(refaults) = refaults {
            self.pool_share.update(refaults, engine.pressure.fault_cost());
        }
    }

    /// Looks, reclaims if needed, and says how long to sleep, and whether forks may go on meanwhile.
    fn tick(&mut self) -> (Duration, bool) {
        self.make_mappings_whole();
        let usage = self.usage();
        let marks = usage.watermarks();
        self.set_meter(&usage, &marks);
        // Before the limit is near, so that a program that fills memory at full speed meets handlers there.
        if usage.mine > marks.limit / 8 * 5 && self.ready() {
            self.adopt(Look::New, usage.mine > marks.limit);
        }
        // Also when handlers keep the program below its high watermark by themselves: what was filled before is older.
        self.look_up(tuning::LOOK_UP_STEPS);
        self.judge_pool();
        if usage.mine > marks.start() && !is_on(Sabotage::BudgetNotKept) {
            self.reclaim(marks);
        }
        self.look_after_the_rest();
        let usage = self.usage();
        let marks = usage.watermarks();
        self.set_meter(&usage, &marks);
        let mut headroom = marks.high.saturating_sub(usage.mine);
        if usage.processes > 1 {
            // The others may be faster.
            headroom = headroom.min((usage.limit - usage.limit / 64).saturating_sub(usage.total).max(usage.limit / 32));
        }
        let fruitless = std::mem::take(&mut self.fruitless);
        if let Some(engine) = self.engine() {
            engine.pressure.monitor_rests(fruitless);
        }
        let sleep = tuning::monitor_sleep(headroom, usage.processes, fruitless);
        (self.compaction.due(H::now()).map_or(sleep, |due| sleep.min(due)), self.forks_are_trivial(&usage))
    }

    fn set_meter(&self, usage: &Usage, marks: &Watermarks) {
        let Some(engine) = self.engine() else { return };
        engine.pressure.set(usage, marks);
        let kept = &engine.pressure.kept;
        let percent = u64::from(engine.member.group.config().zpool_percent);
        let share = self.pool_share.share();
        // Of what the process may use when no fork is near: a pool that shrinks costs writes, and a child does not count it.
        let pool = usage.entitled() * PAGE_SIZE as u64 / 100 * percent * share / PoolShare::WHOLE;
        kept.pool_limit.store(pool, Relaxed);
        let reserve = if H::notices().page_references.is_noted() { 0 } else { tuning::free_frames(marks.limit) };
        kept.reserve.store(reserve, Relaxed);
        kept.inactive.store(tuning::swap_cache_pages(marks.limit, engine.memory.frame_count()), Relaxed);
    }

    /// Whether there is an engine; starts it.
    pub(crate) fn ready(&mut self) -> bool {
        self.engine().is_some() || self.start_engine()
    }

    /// Adopts memory, if that was not done a moment ago: looking at a large program takes time. `urgent`: the program fills
    /// memory that is not adopted yet, and waits for room only once it is.
    fn adopt(&mut self, look: Look, urgent: bool) {
        let Some(engine) = self.engine().filter(|engine| !engine.is_out_of_memory()) else { return };
        let unmanaged = engine.unmanaged_pages(&engine.core());
        // What is adopted and not looked up hides what comes.
        let is_likely = !self.adopter.has_looked_everywhere() || engine.memory.has_grown();
        if look == Look::New && !self.adoption_pace.is_due(H::now(), urgent, is_likely, unmanaged) {
            return;
        }
        engine.memory.note_grown(false);
        let start = H::now();
        let found = self.adopter.adopt_more(engine, look, urgent);
        let found = found.unwrap_or_else(|error| self.cannot_look(engine, &error));
        let since = self.adoption_pace.looked(start, H::now(), found > 0, unmanaged);
        self.growth.found(found, since);
    }

    /// For a thread whose mremap was refused.
    fn make_mappings_whole(&mut self) {
        let requests = &H::notices().whole_mappings;
        let Some(asked) = requests.asked() else { return };
        if let Some(engine) = self.engine()
            && let Err(error) = self.adopter.adopt_more(engine, Look::Beside, false)
        {
            self.cannot_look(engine, &error);
        }
        requests.done(asked);
    }

    /// Looks at up to `steps` pieces of memory that was adopted: nothing of it can leave before. Returns the pages found.
    fn look_up(&mut self, steps: u32) -> u64 {
        let Some(engine) = self.engine().filter(|engine| !engine.is_out_of_memory()) else { return 0 };
        let mut found = 0;
        for _ in 0..steps {
            match self.adopter.look_up(engine) {
                Ok(Some(pages)) => found += pages,
                Ok(None) => break,
                Err(error) => found += self.cannot_look(engine, &error),
            }
        }
        found
    }

    /// Says so once, and that nothing was found.
    fn cannot_look(&mut self, engine: &Engine<H>, error: &io::Error) -> u64 {
        if !std::mem::replace(&mut self.said_cannot_look, true) {
            engine.member.say(format_args!("uswap: cannot look at the program's memory: {}", Reason(error)));
        }
        0
    }

    /// Reclaims down to the low watermark, or until nothing more can be had. Others may give up memory meanwhile, or turn out to
    /// share it: then there is more room than at the start, and what the program works in comes back as fast as it leaves.
    pub(crate) fn reclaim(&mut self, mut marks: Watermarks) {
        if !self.ready() {
            return;
        }
        let engine = self.engine().expect("started above");
        let fork = &self.post.fork;
        engine.pressure.monitor_reclaims();
        let mut set = H::now();
        self.reclaim_while(engine, |usage| {
            // Not at each round: several that see the same room would all stop for it.
            if H::since(set) > tuning::GOAL_STAYS {
                (marks, set) = (usage.watermarks(), H::now());
            }
            // A program whose threads bring pages back as fast as they leave would keep the fork waiting for ever.
            (usage.mine > marks.low.max(usage.least) && !fork.is_requested()).then(|| usage.watermarks())
        });
    }

    /// Reclaims for as long as `goal` has watermarks for the handlers, and something is left to reclaim.
    pub(crate) fn reclaim_while(&mut self, engine: &Engine<H>, mut goal: impl FnMut(&Usage) -> Option<Watermarks>) {
        let (mut fruitless, mut only_broken) = (0, 0);
        let mut shared = false;
        let mut spurt = Spurt::default();
        let mut written = 0;
        let _ = engine.staff.writer.progress(&mut written);
        self.fruitless = false;
        loop {
            let begun = H::now();
            let usage = self.usage();
            let Some(marks) = goal(&usage) else {
                return self.set_meter(&usage, &usage.watermarks());
            };
            let posted = self.post.wake.load();
            self.make_mappings_whole();
            self.judge_pool();
            self.set_meter(&usage, &marks);
            self.look_after_the_rest();
            // Looking at everything takes long and keeps handlers waiting.
            let all = fruitless > 1 && H::since(self.looked_at_all) > tuning::LOOK_AT_ALL_EVERY;
            if all {
                self.looked_at_all = H::now();
            }
            let urgent = usage.mine > marks.limit;
            let grows = spurt.is_on(usage.mine, begun) && urgent && engine.staff.writer.is_getting_on();
            // Only the monitor ends the sharing of a fork; others would look at the same pages in vain.
            if urgent && !shared {
                engine.pressure.call.make();
            }
            self.adopt(if all { Look::All } else { Look::New }, urgent);
            // Little at a time, so that reclaim goes on meanwhile.
            if self.look_up(1) > 0 {
                fruitless = 0;
            }
            let round = engine.reclaim_round(self.worker(), urgent);
            shared = round.busy > 0;
            let broken = self.break_sharing(engine);
            if round.achieved_something() {
                (fruitless, only_broken) = (0, 0);
                engine.pressure.is_fruitful();
                continue;
            }
            match engine.staff.writer.progress(&mut written) {
                Progress::Made => {
                    (fruitless, only_broken) = (0, 0);
                    engine.pressure.is_fruitful();
                    self.await_writer(posted, grows.then(|| H::since(begun)));
                    continue;
                }
                Progress::Awaited if broken == 0 && !engine.pressure.is_hopeless() => {
                    engine.pressure.is_fruitful();
                    self.await_writer(posted, grows.then(|| H::since(begun)));
                    continue;
                }
                Progress::Awaited | Progress::None => {}
            }
            // What is shared no more can be moved in the next round, unless something else holds it.
            only_broken += 1;
            if broken > 0 && only_broken < tuning::ONLY_BROKEN_MAX {
                continue;
            }
            fruitless += 1;
            if fruitless > 3 || engine.pressure.is_hopeless() {
                self.fruitless = true;
                return;
            }
        }
    }

    /// `posted`: what was posted before the round that found nothing to do here. `took`: how long that took, if the program
    /// grows past the limit meanwhile.
    fn await_writer(&self, posted: u32, took: Option<Duration>) {
        let _ = self.post.wake.wait(posted, Some(tuning::rest_for_writer(took)));
    }

    /// Pages that are shared after a fork cannot be moved. A write access that changes nothing makes each this process's
    /// own.
    /// Returns how many.
    fn break_sharing(&mut self, engine: &Engine<H>) -> u64 {
        let mut broken = 0;
        while let Some(page) = self.worker().reclaiming.busy.pop() {
            let mut range = PageRange { start: page, pages: 1 };
            while self.worker().reclaiming.busy.last().is_some_and(|&next| next.0 + 1 == range.start.0) {
                range.start = self.worker().reclaiming.busy.pop().expect("looked at above");
                range.pages += 1;
            }
            engine.core().reclaim_soon(range);
            // The kernel answers with an error where the memory is gone or read-only. No lock is held here that a handler
            // needs: the pages may be missing by now.
            let _ = H::advise(range.start.address(), range.pages as usize * PAGE_SIZE, Advice::PopulateWrite);
            broken += range.pages;
        }
        broken
    }

    fn start_engine(&mut self) -> bool {
        if self.said_cannot_swap {
            return false;
        }
        let Stage::Watching(member) = std::mem::replace(&mut self.stage, Stage::Changing) else {
            unreachable!("only a watching monitor starts an engine");
        };
        // Kept for the message, should the engine not start.
        match self.swap_with(member, None) {
            Ok(_) => true,
            Err((member, error)) => {
                self.said_cannot_swap = true;
                member.alarm(format_args!("uswap: process {} cannot swap: {}", H::process_id(), error));
                self.stage = Stage::Watching(*member);
                false
            }
        }
    }

    /// In a forked child: an engine that goes on with what the parent left.
    pub(crate) fn start_child_engine(
        &mut self,
        inheritance: Inheritance,
    ) -> Result<&'static Engine<H>, StartErrorOf<H>> {
        let Stage::Watching(member) = std::mem::replace(&mut self.stage, Stage::Changing) else {
            unreachable!("a child's monitor starts its engine first of all");
        };
        self.swap_with(member, Some(inheritance)).map_err(|(_, error)| error)
    }

    /// Goes on with an engine, and starts its handlers. What this thread needs for it is made only now: most programs
    /// never come near their budget.
    fn swap_with(
        &mut self,
        member: Member<H>,
        inheritance: Option<Inheritance>,
    ) -> Result<&'static Engine<H>, NotStarted<H>> {
        let (worker, first) = match Self::prepare_to_swap(&member) {
            Ok(prepared) => prepared,
            Err(error) => return Err((Box::new(member), error.into())),
        };
        let engine: &'static Engine<H> = Box::leak(Box::new(Engine::start(member, self.post, inheritance)?));
        H::notices().engine.store(std::ptr::from_ref(engine).cast_mut(), Release);
        fork_advice::engine_begins();
        self.stage = Stage::Swapping { engine, worker };
        let usage = self.usage();
        self.set_meter(&usage, &usage.watermarks());
        self.threads = first.begin(engine);
        self.worker().reclaiming.writes = !engine.staff.writer.is_present();
        Ok(engine)
    }

    /// What swapping cannot begin without: memory set aside, and one thread that serves faults.
    fn prepare_to_swap(member: &Member<H>) -> io::Result<(Box<Worker>, H::Threads)> {
        if !H::refill_reserve() {
            return Err(rustix::io::Errno::NOMEM.into());
        }
        H::keep_addresses();
        let compressor = member.group.config().compressor;
        let mut worker = Box::new(Worker::new::<H>(compressor, BATCH, BATCH)?);
        worker.reclaiming.collects_busy = true;
        Ok((worker, H::Threads::prepare(compressor)?))
    }

    fn look_after_the_rest(&mut self) {
        if H::since(self.supervisor_looked) > Duration::from_millis(50) {
            self.supervisor_looked = H::now();
            if self.member().supervisor.is_gone() {
                H::kill_self();
            }
            if self.scale.main_has_ended() {
                H::end_with_the_program(&self.threads);
            }
        }
        let Some(engine) = self.engine() else {
            // Who has swapped nothing has nothing to do.
            let member = self.member();
            member.slot().carried_out.store(member.group.announcements(), Release);
            return;
        };
        let _ = H::refill_reserve();
        engine.compact(&mut self.compaction);
        // Not only when it is needed, for what is posted takes memory.
        self.adopter.kept.catch_up(&H::notices().fork_advice);
        self.adopter.kept.keep_lifted(engine);
        self.keep_from_forks(engine);
        if H::since(self.published) < Duration::from_millis(20) {
            return;
        }
        let patience = if H::notices().lazy_free.is_noted() { tuning::LAZY_DISCARD_ENDS } else { tuning::DISCARD_ENDS };
        if H::since(self.discards_aged) > patience {
            self.discards_aged = H::now();
            engine.core().discards_grow_old();
        }
        self.published = H::now();
        H::keep_addresses();
        let _running = engine.forking.phase.pass();
        engine.settle_heirs(self.worker());
        if !engine.staff.ahead.is_present() {
            let _ = engine.empty_areas(&mut Vec::new(), self.worker());
        }
        engine.publish();
        if engine.staff.writer.is_present() && engine.content.areas.have_spare_clusters(&engine.core()) {
            engine.staff.writer.call();
        }
        let spare = engine.pressure.kept.reserve.load(Relaxed);
        engine.trash_free_frames(spare);
        for ancestor in &engine.content.ancestors {
            // The parent's pool counts against this process as far as it has looked at it.
            let _ = ancestor.pool.drop_resident();
        }
    }
}

impl<H: Host> Engine<H> {
    /// Tells the group what this process has.
    pub fn publish(&self) {
        let slot = self.member.slot();
        let core = self.core();
        slot.managed_pages.store(core.pages().known_pages(), Relaxed);
        slot.swapped_pages.store(core.swapped_pages(), Relaxed);
        let cached = u64::from(core.swap_cache().populated_frames());
        slot.pool_original_bytes.store(core.pool_objects() * PAGE_SIZE as u64, Relaxed);
        slot.unmanaged_pages.store(self.unmanaged_pages(&core), Relaxed);
        self.content.areas.publish(&core, &self.member);
        drop(core);
        slot.overhead_pages.store(cached, Relaxed);
        let pool = self.content.pool.lock();
        slot.pool_bytes.store(pool.pool_bytes() as u64, Relaxed);
        slot.pool_stored_bytes.store(pool.stored_bytes() as u64, Relaxed);
    }

    /// Resident anonymous pages that the books do not know, as of the last look at the size of the process. Of what the
    /// kernel has swapped out nobody says which it is: the pages of the books come first.
    fn unmanaged_pages(&self, core: &Core) -> u64 {
        // A page in the swap cache is one that the books know: its frame must not count again.
        let resident = core.pages().known_pages().saturating_sub(core.swapped_pages());
        let free = u64::from(core.swap_cache().free_frames());
        let slot = self.member.slot();
        let anon = slot.anon_pages.load(Relaxed);
        (anon + slot.kernel_swapped_pages.load(Relaxed)).saturating_sub(resident + free).min(anon)
    }

    /// Frees what was kept for children that need it no more.
    pub(crate) fn settle_heirs(&self, worker: &mut Worker) {
        let mut heirs = self.content.heirs.lock();
        if heirs.is_empty() {
            return;
        }
        let known = self.member.group.heirs_of(self.member.index);
        let mut index = 0;
        while index < heirs.len() {
            if heirs[index].is_alive(known, |holder| self.member.group.has(holder)) {
                index += 1;
            } else {
                heirs.swap_remove(index).discard();
            }
        }
        let mut core = self.core();
        if heirs.is_empty() {
            core.no_heirs();
        }
        core.bury_unheld(|entry| heirs_hold(&heirs, entry));
        core.take_released(&mut worker.released);
        drop(core);
        drop(heirs);
        self.content.release(&mut worker.released);
        // A child that ends may let go of very many.
        worker.released.shrink_to(RELEASED_KEPT);
    }
}

/// The supervisor may be stopped. A program goes on meanwhile, and its forks need nothing; but for the child of one that
/// swaps, which has pages that nobody can bring in before.
fn wait_for_welcome(post: &Post<Linux>, client: &Client, has_pages_out: bool) {
    if !has_pages_out {
        post.fork.monitor_sleeps(true);
    }
    if !client.is_answered(Some(WELCOME_PATIENCE)) {
        uswap_sys::report::stderr_line(format_args!(
            "uswap: process {} {} its supervisor, which does not answer; is it stopped?",
            std::process::id(),
            if has_pages_out { "waits for" } else { "runs unmanaged without" },
        ));
        client.is_answered(None);
    }
    if !has_pages_out {
        post.fork.monitor_wakes(&[]);
    }
}

/// Joins the group and runs the monitor on the calling thread, which is the agent's first.
pub fn main(post: &'static Post<Linux>, rendezvous: &Rendezvous, kind: Kind) {
    if matches!(kind, Kind::Exec) {
        post.linger();
    }
    post.fork.monitor_wakes(&[]);
    uswap_sys::report::set_ended_word(None);
    // The program's standard error, until there is a way through the supervisor: nothing is said to nobody.
    let stderr = uswap_sys::report::is_for_messages().then_some(2);
    if let Err(error) = thread::unshare_files_and_close(stderr.as_slice()) {
        // A filter of seccomp's that the program has put on itself, for one. What is written to descriptor 2 goes to the program's.
        if stderr.is_some() {
            crate::fork::cannot_join(&format!("it gets no descriptors of its own: {}", Reason(&error)));
        } else if has_engine() {
            uswap_sys::report::kill_self();
        }
        return leave(post);
    }
    let has_pages_out = has_engine();
    let joined = Member::<Linux>::join(rendezvous, kind, |client| wait_for_welcome(post, client, has_pages_out));
    let monitor = match joined {
        Ok(member) => Monitor::new(post, member).map_err(|error| Reason(&error).to_string()),
        // The tree ends with its supervisor, also a process that was just about to join.
        Err(error) if error.means_no_supervisor(rendezvous) => uswap_sys::report::kill_self(),
        Err(error) => Err(error.to_string()),
    };
    match monitor {
        Ok(mut monitor) => {
            monitor.inherit(Inherited::take);
            thread::prefer();
            monitor.run()
        }
        Err(error) => {
            // In a child with swapped pages this ends the process: they would read as zeros.
            crate::fork::cannot_join(&error);
            leave(post);
        }
    }
}

/// The process runs without a monitor from here on.
fn leave(post: &Post<Linux>) {
    post.inert.store(true, Release);
    post.fork.give_up();
}
