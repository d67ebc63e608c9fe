//! The monitor: one thread of each process that watches its memory, and reclaims when the budget becomes scarce.
//!
//! It is the kernel's kswapd. Far below the budget it sleeps; the nearer the limit, the shorter, so that a program that
//! fills memory at full speed is met in time. It also follows forks, because it knows when the books are still.

mod adopting;
mod births;
mod join;
mod precedence;
mod reclaiming;
mod resting;
mod share;
mod shared_memory;
mod start;

use std::io;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use uswap_core::budget::{Usage, Watermarks};
use uswap_core::defects::{Sabotage, is_on};
use uswap_core::pool_share::PoolShare;
use uswap_core::tuning;
use uswap_system::Supervisor;

use crate::adopt::{Adopter, Look};
use crate::compaction::Compaction;
use crate::engine::Engine;
use crate::fork_patience::ForkPatience;
use crate::host::Host;
use crate::left_pools::LeftPools;
use crate::member::Member;
use crate::post::Post;
use crate::staffed::Staffed;
use crate::worker::Worker;
pub use join::main;
use reclaiming::AsideLooks;
use resting::Rest;
use share::Share;

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
    share: Share<H>,
    pub(crate) adopter: Adopter<H>,
    pub(crate) looks: Looks,
    /// Nothing more could be reclaimed the last time.
    pub(crate) fruitless: bool,
    pool: PoolCare,
    pub(crate) fork_patience: ForkPatience,
    /// The engine's other threads.
    pub(crate) threads: Vec<u32>,
    /// The user has been told that memory cannot be looked at.
    said_cannot_look: bool,
}

/// When something was last done that is not done each time.
pub(crate) struct Looks {
    supervisor: Instant,
    threads: Instant,
    published: Instant,
    discards_aged: Instant,
    /// At all adopted memory, and how long that took.
    all: Instant,
    all_took: Duration,
    aside: AsideLooks,
    /// The kernel refused to keep some of it from forks.
    pub refused: Option<Instant>,
    /// The engine could not start then, and is not tried again for so long.
    not_started: Option<(Instant, Duration)>,
    /// At everything.
    rest: Rest,
}

/// What the pool needs from the monitor.
struct PoolCare {
    share: PoolShare,
    compaction: Compaction,
    /// Those of ancestors.
    left: LeftPools,
}

impl<H: Staffed> Monitor<H> {
    /// Of a process that is `member`, and has no engine yet.
    ///
    /// # Errors
    /// The process's size cannot be looked at.
    pub fn new(post: &'static Post<H>, member: Member<H>) -> io::Result<Self> {
        post.index.store(member.index, Release);
        let _ = post.group.set(member.group);
        post.generation.store(member.generation, Release);
        member.slot().running();
        let now = H::now();
        let share = Share::new(&post.last_told, &member)?;
        Ok(Monitor {
            post,
            stage: Stage::Watching(member),
            share,
            adopter: Adopter::new(),
            looks: Looks {
                supervisor: now,
                threads: now,
                published: now,
                discards_aged: now,
                all: now,
                all_took: Duration::ZERO,
                aside: AsideLooks::new(now),
                refused: None,
                not_started: None,
                rest: Rest::default(),
            },
            fruitless: false,
            pool: PoolCare { share: PoolShare::new(), compaction: Compaction::new(now), left: LeftPools::default() },
            fork_patience: ForkPatience::new(),
            threads: Vec::new(),
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
        let (sleep, trivial) = self.looks.rest.goes_on::<H>(posted).unwrap_or_else(|| self.tick(posted));
        self.post.fork.monitor_sleeps(trivial);
        let _ = self.post.wake.wait(posted, Some(sleep));
        self.post.fork.monitor_wakes(&self.threads);
    }

    /// Finds out whether the pool pays.
    fn judge_pool(&mut self) {
        let Some(engine) = self.engine() else { return };
        if !engine.content.areas.any_open() {
            self.pool.share = PoolShare::new();
            return;
        }
        let pages = engine.content.pool_pages();
        let refaults = engine.core().take_refaults(PoolShare::enough(pages), pages);
        if let Some(refaults) = refaults {
            self.pool.share.update(refaults, engine.pressure.fault_cost());
        }
    }

    /// Looks, reclaims if needed, and says how long to sleep, and whether forks may go on meanwhile. `posted`: what had been before.
    fn tick(&mut self, posted: u32) -> (Duration, bool) {
        let look = self.looks.rest.ends::<H>(posted);
        self.make_mappings_whole();
        self.share_memory();
        let usage = self.usage();
        let marks = usage.watermarks();
        let begun = H::now();
        self.set_meter(&usage, &marks);
        // Before the limit is near, so that a program that fills memory at full speed meets handlers there.
        if usage.mine > marks.limit.min(usage.limit) / 8 * 5 && self.ready() {
            // With a floor nothing is reclaimed that could show that some of what passes for fixed is not: what the program
            // filled again after MADV_FREE, for one.
            let look = if usage.least > 0 { self.look_at_all_in_time() } else { Look::New };
            self.adopt(look, usage.mine > marks.limit);
        }
        // Also when handlers keep the program below its high watermark by themselves: what was filled before is older.
        self.look_up(tuning::LOOK_UP_STEPS);
        self.judge_pool();
        // Where hundreds of threads map and fill memory, each call of the two waits for them, and the program fills a budget meanwhile.
        let usage = if H::since(begun) > tuning::USAGE_IS_OLD { self.usage() } else { usage };
        let marks = usage.watermarks();
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
        let sleep = self.pool.compaction.due(H::now()).map_or(sleep, |due| sleep.min(due));
        let sleep = (sleep, self.forks_are_trivial(&usage));
        self.looks.rest.begins(look, &usage, sleep);
        sleep
    }

    fn set_meter(&self, usage: &Usage, marks: &Watermarks) {
        let Some(engine) = self.engine() else { return };
        engine.pressure.set(usage, marks);
        let kept = &engine.pressure.kept;
        let percent = u64::from(engine.member.group.config().zpool_percent);
        // Of what the process may use when no fork is near: a pool that shrinks costs writes, and a child does not count it.
        kept.pool_limit.store(self.pool.share.limit_bytes(usage.entitled(), percent), Relaxed);
        let reserve = if H::notices().uses.page_references.is_noted() { 0 } else { tuning::free_frames(marks.limit) };
        kept.reserve.store(reserve, Relaxed);
        kept.inactive.store(tuning::swap_cache_pages(marks.limit, engine.memory.frame_count()), Relaxed);
    }

    /// Now and then: ends the process with its supervisor, and with its program.
    pub(crate) fn end_with_others(&mut self) {
        if H::since(self.looks.supervisor) > tuning::LOOK_AT_OTHERS_EVERY {
            self.looks.supervisor = H::now();
            if self.member().supervisor.is_gone() {
                H::kill_self();
            }
            if self.share.main_has_ended() {
                H::end_with_the_program(&self.threads);
            }
        }
        if H::since(self.looks.threads) > tuning::LOOK_AT_THREADS_EVERY {
            self.looks.threads = H::now();
            if self.threads.iter().any(|&thread| H::thread_has_ended(thread)) {
                H::end(format_args!("a thread of uswap's in it has been ended, as by a seccomp filter"));
            }
        }
    }

    /// What has been discarded is done with when all calls have ended that may be about it, or none of them can be under way any more.
    fn let_discards_grow_old(&mut self, engine: &Engine<H>) {
        let notices = H::notices();
        let patience = if notices.uses.lazy_free.is_noted() { tuning::LAZY_DISCARD_ENDS } else { tuning::DISCARD_ENDS };
        let age = H::since(self.looks.discards_aged);
        if age <= patience {
            return;
        }
        if age > tuning::DISCARD_TAKES_MAX {
            notices.discards.give_up();
        }
        // With the books: what is noted in them has seen the turn as it was then.
        let mut core = engine.core();
        if is_on(Sabotage::DiscardsEndByTime) || notices.discards.turn_ends() {
            self.looks.discards_aged = H::now();
            core.discards_grow_old();
        }
    }

    fn look_after_the_rest(&mut self) {
        self.end_with_others();
        let Some(engine) = self.engine() else {
            // Who has swapped nothing has nothing to do.
            let member = self.member();
            member.slot().called.carried_out.store(member.group.announcements(), Release);
            return;
        };
        let _ = H::refill_reserve();
        engine.compact(&mut self.pool.compaction);
        // Not only when it is needed, for what is posted takes memory.
        let all_is_kept = engine.keep_lifted_from_forks(&mut self.adopter.kept);
        if self.adopter.kept.take_is_anywhere() {
            self.post.fork.lift(true);
        }
        self.post.fork.lift_some(!all_is_kept);
        self.keep_from_forks(engine);
        if H::since(self.looks.published) < tuning::PUBLISH_EVERY {
            return;
        }
        self.let_discards_grow_old(engine);
        self.looks.published = H::now();
        engine.core().asked_grow_old();
        H::keep_addresses();
        let _running = engine.forking.phase.pass();
        engine.settle_heirs(self.worker());
        engine.give_back_left_pools(&mut self.pool.left);
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
