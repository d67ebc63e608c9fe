//! Serving a fault, as `handler.rs` and `swapin.rs` of the engine do.

use uswap_core::fault::{MOVE_PAGES_MIN, Vanished};
use uswap_core::{FaultPlan, FrameId, FrameLeft, Landing, LoadPage, LoadPlan, Location, OpId, PageNumber, PageRange};

use super::super::coverage::Happening;
use super::super::mm::{Progress, Stop};
use super::super::process::{Process, World};
use super::super::sabotage::Sabotage;
use super::super::violation::{Checked, Checker, ensure, violated};
use super::{PendingFault, Step, may_lose, release_places};
use crate::page_content::Content;

/// Reads of a page before it is given up.
const ATTEMPTS: u32 = 4;

/// What is known of the content of a page of a window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Wanted { attempts: u32 },
    Ready(Content),
    Lost,
}

enum Phase {
    Begin,
    Zero { range: PageRange, op: OpId },
    ZeroDone { range: PageRange, op: OpId, installed: u64, later: bool },
    Restore { first: PageNumber, frame: FrameId, pages: u32 },
    RestoreDone { first: PageNumber, frame: FrameId, pages: u32, moved: u32, left: FrameLeft, later: bool },
    Read,
    Install { index: usize },
    Installed { index: usize, progress: Progress, left: FrameLeft },
    KeepCached,
}

/// One fault being served.
pub(super) struct Serve {
    fault: PendingFault,
    /// A thread has sent it; otherwise a page is to come back because a thread waits for it.
    is_message: bool,
    phase: Phase,
    plan: Option<LoadPlan>,
    found: Vec<Found>,
    /// Comes out in the end: an event stood in the way.
    later: bool,
}

impl Serve {
    pub fn message(fault: PendingFault) -> Serve {
        Serve { fault, is_message: true, phase: Phase::Begin, plan: None, found: Vec::new(), later: false }
    }

    pub fn wanted(page: PageNumber) -> Serve {
        let fault = PendingFault { page, write: false, nothing_unread: false };
        Serve { is_message: false, ..Serve::message(fault) }
    }

    /// What a stream will want next; nobody waits for it.
    pub fn ahead(process: &mut Process, world: &mut World) -> Option<Serve> {
        let plan = process.books.tell(|core| core.plan_ahead())?;
        world.coverage.note(Happening::ReadAhead);
        let mut serve = Serve::wanted(plan.pages[0].page);
        serve.begin_load(plan, process);
        Some(serve)
    }

    /// What is on an area that leaves; nobody waits for it.
    pub fn swapoff(process: &mut Process, world: &mut World) -> Option<Serve> {
        let plan = super::swapoff::plan(process, world)?;
        let mut serve = Serve::wanted(plan.pages[0].page);
        serve.begin_load(plan, process);
        Some(serve)
    }

    pub fn answers_a_message(&self) -> bool {
        self.is_message
    }

    fn over(&self, later: bool) -> Step {
        if later { Step::AfterEvents(self.fault) } else { Step::Over }
    }

    pub fn step(&mut self, process: &mut Process, world: &mut World) -> Checked<Step> {
        match std::mem::replace(&mut self.phase, Phase::Begin) {
            Phase::Begin => self.begin(process, world),
            Phase::Zero { range, op } => {
                let (installed, later) = self.install_zeros(range, process, world);
                self.phase = Phase::ZeroDone { range, op, installed, later };
                Ok(Step::Again)
            }
            Phase::ZeroDone { range, op, installed, later } => {
                process.books.tell(move |core| core.zeros_installed(range, op, installed));
                process.loads_in_flight -= 1;
                process.gate -= 1;
                Ok(self.over(later))
            }
            Phase::Restore { first, frame, pages } => {
                self.move_in(first, frame, pages, process, world)?;
                Ok(Step::Again)
            }
            Phase::RestoreDone { first, frame, pages, moved, left, later } => {
                process.books.tell(move |core| core.restored(first, frame, pages, moved, left));
                world.coverage.add(Happening::Restore, u64::from(moved));
                process.gate -= 1;
                Ok(self.over(later))
            }
            Phase::Read => self.read(process, world),
            Phase::Install { index } => self.install(index, process, world),
            Phase::Installed { index, progress, left } => self.installed(index, progress, left, process, world),
            Phase::KeepCached => self.keep_cached(process, world),
        }
    }

    fn begin(&mut self, process: &mut Process, world: &mut World) -> Checked<Step> {
        let PendingFault { page, write, nothing_unread } = self.fault;
        let alone = PageRange { start: page, pages: 1 };
        match process.books.tell(move |core| core.fault(page, write)) {
            FaultPlan::NotAdopted if !nothing_unread || process.mm.is_changing() => {
                return Ok(Step::AfterEvents(self.fault));
            }
            FaultPlan::NotAdopted => {
                let (installed, later) = self.install_zeros(alone, process, world);
                if installed > 0 {
                    process.books.tell(move |core| {
                        core.adopt(alone);
                        core.found_present(alone)
                    });
                }
                return Ok(if later { Step::AfterEvents(self.fault) } else { Step::Over });
            }
            FaultPlan::Zero { range, op } => {
                world.coverage.note(Happening::ZeroFault);
                process.gate += 1;
                process.loads_in_flight += 1;
                self.phase = Phase::Zero { range, op };
            }
            FaultPlan::Restore { first, frame, pages } => {
                process.gate += 1;
                self.phase = Phase::Restore { first, frame, pages };
            }
            FaultPlan::Load(plan) => self.begin_load(plan, process),
            FaultPlan::Wait => {
                world.coverage.note(Happening::Waited);
                return Ok(Step::Over);
            }
            FaultPlan::Present => {
                if process.books.look().is_resident(page) && !process.mm.is_present(page) {
                    if world.remedies.events_before_judgement && process.mm.is_changing() {
                        return Ok(Step::AfterEvents(self.fault));
                    }
                    let vanished = process.books.tell(move |core| core.vanished(page));
                    release_places(process, world)?;
                    if vanished == Vanished::Discarded {
                        return Ok(Step::Again);
                    }
                    return violated(Checker::LostForAReason, format!("{page:?} vanished"));
                }
                process.wake(alone, world);
                return Ok(Step::Over);
            }
            FaultPlan::Poisoned => {
                process.mm.poison(page);
                process.wake(alone, world);
                return Ok(Step::Over);
            }
        }
        Ok(Step::Again)
    }

    fn begin_load(&mut self, plan: LoadPlan, process: &mut Process) {
        process.loads_in_flight += plan.count as u32;
        self.found = vec![Found::Wanted { attempts: 0 }; plan.count];
        self.plan = Some(plan);
        self.phase = Phase::Read;
    }

    fn install_zeros(&mut self, range: PageRange, process: &mut Process, world: &mut World) -> (u64, bool) {
        let mut done = 0;
        let mut later = false;
        while done < range.pages {
            let zeros = vec![Content::ZERO; (range.pages - done) as usize];
            let progress = process.mm.copy(range.start.plus(done), &zeros, world.chance);
            done += progress.pages as u64;
            match progress.stop {
                None => {}
                Some(Stop::AlreadyThere) => done += 1,
                Some(Stop::TryLater) => {
                    world.coverage.note(Happening::TryLater);
                    later = done == 0;
                    let woken = if world.remedies.zero_windows_wake { range.pages } else { done };
                    process.wake(PageRange { start: range.start, pages: woken }, world);
                    return (done, later);
                }
                Some(Stop::NoMemory) if done == 0 => {
                    if world.remedies.zero_windows_wake {
                        process.wake(range, world);
                    }
                    return (done, true);
                }
                Some(_) => break,
            }
        }
        process.wake(range, world);
        (done, later)
    }

    fn move_in(
        &mut self,
        first: PageNumber,
        frame: FrameId,
        pages: u32,
        process: &mut Process,
        world: &mut World,
    ) -> Checked {
        let (mut done, mut later, mut left) = (0, false, FrameLeft::Empty);
        while done < pages && left == FrameLeft::Empty {
            let (page, from) = (first.plus(u64::from(done)), FrameId(frame.0 + done));
            let (progress, how) = move_or_copy(page, from, (pages - done) as usize, done == 0, process, world)?;
            left = how;
            done += progress.pages as u32;
            match progress.stop {
                None => {}
                Some(Stop::TryLater) => {
                    world.coverage.note(Happening::TryLater);
                    later = done == 0;
                    break;
                }
                Some(Stop::NoMemory) => {
                    later = true;
                    break;
                }
                Some(Stop::Missing) => break,
                Some(Stop::Busy | Stop::Invalid) if done > 0 => break,
                Some(stop) => {
                    return violated(
                        Checker::Recoverable,
                        format!("{page:?} cannot come back from {from:?}: {stop:?}"),
                    );
                }
            }
        }
        process.wake(PageRange { start: first, pages: u64::from(pages) }, world);
        self.phase = Phase::RestoreDone { first, frame, pages, moved: done, left, later };
        Ok(())
    }

    fn plan(&self) -> LoadPlan {
        self.plan.expect("a load has a plan")
    }

    /// Reads one page of the plan, no lock held.
    fn read(&mut self, process: &mut Process, world: &mut World) -> Checked<Step> {
        let plan = self.plan();
        let wanted: Vec<usize> =
            (0..plan.count).filter(|&index| matches!(self.found[index], Found::Wanted { .. })).collect();
        if wanted.is_empty() {
            self.phase = Phase::Install { index: plan.mapped().start };
            process.gate += 1;
            return Ok(Step::Again);
        }
        let index = wanted[world.chance.index(wanted.len())];
        self.found[index] = self.read_page(&plan.pages[index], index, process, world)?;
        if let (Found::Ready(content), Landing::Frame(frame)) = (self.found[index], plan.pages[index].landing) {
            let target = &mut process.mm.frames[frame.0 as usize];
            ensure(target.is_some(), Checker::Frames, || format!("{frame:?} has no memory to load into"))?;
            *target = Some(content);
        }
        self.phase = Phase::Read;
        Ok(Step::Again)
    }

    fn read_page(&self, load: &LoadPage, index: usize, process: &Process, world: &mut World) -> Checked<Found> {
        if load.entry.is_none() {
            return Ok(Found::Ready(Content::ZERO));
        }
        let epoch = load.epoch.0 as usize;
        if epoch < process.ancestors.len() {
            world.coverage.note(Happening::LoadForeign);
        }
        match load.location {
            Location::Pool { handle, .. } => {
                world.coverage.note(Happening::LoadFromPool);
                let pool = process.ancestors.get(epoch).map_or(process.pool, |&(_, pool)| pool);
                match world.group.pools[pool].get(handle) {
                    Some(content) if content.hash() == load.hash => Ok(Found::Ready(content)),
                    other => violated(Checker::Recoverable, format!("{load:?} finds {other:?} in its pool")),
                }
            }
            Location::Slot { area, slot } => {
                world.coverage.note(Happening::LoadFromArea);
                let found = world.group.read(area.0 as usize, slot, world.coverage, world.chance);
                match found {
                    Some(content) if content.hash() == load.hash => Ok(Found::Ready(content)),
                    Some(content) if !content.is_garbage() => {
                        violated(Checker::Recoverable, format!("{load:?} finds {content:?} in its slot"))
                    }
                    _ => {
                        let Found::Wanted { attempts } = self.found[index] else { return Ok(Found::Lost) };
                        let attempts = attempts + 1;
                        Ok(if attempts < ATTEMPTS { Found::Wanted { attempts } } else { Found::Lost })
                    }
                }
            }
        }
    }

    /// Moves in what is ready from `index` on, with the gate held.
    fn install(&mut self, index: usize, process: &mut Process, world: &mut World) -> Checked<Step> {
        let plan = self.plan();
        if index >= plan.mapped().end {
            self.phase = Phase::KeepCached;
            return Ok(Step::Again);
        }
        let load = plan.pages[index];
        let next = Phase::Install { index: index + 1 };
        if !process.books.look().still_loading(load.page, plan.op) {
            self.cancel(&load, plan.op, process, world);
            process.wake(PageRange { start: load.page, pages: 1 }, world);
            self.phase = next;
            return Ok(Step::Again);
        }
        let lost = !matches!(self.found[index], Found::Ready(_))
            || (world.sabotage == Some(Sabotage::LoseForNothing) && load.entry.is_some());
        if lost && plan.faulting.is_none() {
            self.cancel(&load, plan.op, process, world);
            process.wake(PageRange { start: load.page, pages: 1 }, world);
            self.phase = next;
            return Ok(Step::Again);
        }
        if lost {
            self.lose(&load, plan.op, process, world)?;
            self.phase = next;
            return Ok(Step::Again);
        }
        let run = self.run_length(index, process);
        let (progress, left) = match load.landing {
            Landing::Frame(frame) => move_or_copy(load.page, frame, run, true, process, world)?,
            Landing::Buffer => {
                let contents: Vec<Content> = self.found[index..index + run]
                    .iter()
                    .map(|found| match found {
                        Found::Ready(content) => *content,
                        Found::Wanted { .. } | Found::Lost => unreachable!("a run is ready"),
                    })
                    .collect();
                let progress = process.mm.copy(load.page, &contents, world.chance);
                let done = PageRange { start: load.page, pages: progress.pages as u64 };
                process.wake(done, world);
                (progress, FrameLeft::Populated)
            }
        };
        self.phase = Phase::Installed { index, progress, left };
        Ok(Step::Again)
    }

    /// The books learn what the kernel did.
    fn installed(
        &mut self,
        index: usize,
        progress: Progress,
        left: FrameLeft,
        process: &mut Process,
        world: &mut World,
    ) -> Checked<Step> {
        let plan = self.plan();
        let mut index = index;
        for load in plan.pages[index..index + progress.pages].iter().copied() {
            let wanted = plan.faulting == Some(index);
            let area = match load.location {
                Location::Slot { area, .. } => Some(&world.group.areas[area.0 as usize]),
                Location::Pool { .. } => None,
            };
            let frees = area.is_none_or(|area| area.leaving.is_some() || area.clusters_taken() * 512 * 2 > area.slots);
            let may_keep = area.is_some_and(|area| area.leaving.is_none());
            let keep_clean = !frees || world.chance.happens(1, 2) && may_keep;
            let op = plan.op;
            let entry = if world.sabotage == Some(Sabotage::ForgetEntry) { None } else { load.entry };
            let load = LoadPage { entry, ..load };
            process.books.tell(move |core| core.load_done(&load, op, left, keep_clean, wanted));
            process.loads_in_flight -= 1;
            if world.sabotage == Some(Sabotage::MiscountLoad) {
                process.loads_in_flight += 1;
            }
            index += 1;
        }
        match progress.stop {
            None => {}
            Some(Stop::Busy | Stop::Invalid) if progress.pages > 0 => {}
            Some(Stop::AlreadyThere) => {
                let (load, op) = (plan.pages[index], plan.op);
                process.books.tell(move |core| core.load_superseded(&load, op));
                process.loads_in_flight -= 1;
                process.wake(PageRange { start: load.page, pages: 1 }, world);
                index += 1;
            }
            Some(stop) => {
                let mapped = plan.mapped();
                for load in &plan.pages[index..mapped.end] {
                    self.cancel(load, plan.op, process, world);
                }
                if matches!(stop, Stop::TryLater | Stop::NoMemory) {
                    world.coverage.note(Happening::TryLater);
                    self.later |= plan.faulting.is_some_and(|faulting| index <= faulting);
                } else if stop != Stop::Missing {
                    return violated(Checker::Recoverable, format!("{:?} cannot come in: {stop:?}", plan.pages[index]));
                }
                let rest = plan.span_from(index);
                process.wake(rest, world);
                index = mapped.end;
            }
        }
        self.phase = Phase::Install { index };
        Ok(Step::Again)
    }

    /// Pages that are not to be mapped rest in the swap cache; the load is over.
    fn keep_cached(&mut self, process: &mut Process, world: &mut World) -> Checked<Step> {
        let plan = self.plan();
        let mapped = plan.mapped();
        if mapped.len() < plan.count {
            for index in (0..plan.count).filter(|index| !mapped.contains(index)) {
                let (load, op) = (plan.pages[index], plan.op);
                if matches!(self.found[index], Found::Ready(_)) {
                    world.coverage.note(Happening::CameAlong);
                    process.books.tell(move |core| core.load_cached(&load, op));
                    process.loads_in_flight -= 1;
                } else {
                    self.cancel(&load, op, process, world);
                }
            }
            process.wake(PageRange { start: plan.pages[0].page, pages: plan.count as u64 }, world);
        }
        release_places(process, world)?;
        process.gate -= 1;
        Ok(self.over(self.later))
    }

    fn cancel(&self, load: &LoadPage, op: OpId, process: &mut Process, world: &mut World) {
        world.coverage.note(Happening::LoadCancelled);
        let load = *load;
        process.books.tell(move |core| core.load_cancelled(&load, op));
        process.loads_in_flight -= 1;
    }

    fn lose(&self, load: &LoadPage, op: OpId, process: &mut Process, world: &mut World) -> Checked {
        let load = *load;
        let waited_for = process.books.tell(move |core| core.load_lost(&load, op));
        process.loads_in_flight -= 1;
        if waited_for {
            ensure(may_lose(load.hash, world), Checker::LostForAReason, || format!("{load:?} was given up"))?;
            world.coverage.note(Happening::Lost);
            if world.sabotage != Some(Sabotage::LoseForNothing) {
                process.truth.lose(load.page, load.hash);
            }
            process.mm.poison(load.page);
        }
        process.wake(PageRange { start: load.page, pages: 1 }, world);
        Ok(())
    }

    fn run_length(&self, index: usize, process: &Process) -> usize {
        let plan = self.plan();
        let mut run = 1;
        while index + run < plan.mapped().end {
            let (first, next) = (&plan.pages[index], &plan.pages[index + run]);
            let beside = match (first.landing, next.landing) {
                (Landing::Frame(first), Landing::Frame(next)) => next == FrameId(first.0 + run as u32),
                (Landing::Buffer, Landing::Buffer) => true,
                _ => false,
            };
            let beside = beside && next.page == first.page.plus(run as u64);
            let ready = matches!(self.found[index + run], Found::Ready(_));
            if !beside || !ready || !process.books.look().still_loading(next.page, plan.op) {
                break;
            }
            run += 1;
        }
        run
    }
}

/// Moves frames into the program if they are many, or copies them; where the kernel refuses to move, the first page is
/// copied if `may_copy`.
fn move_or_copy(
    page: PageNumber,
    frame: FrameId,
    pages: usize,
    may_copy: bool,
    process: &mut Process,
    world: &mut World,
) -> Checked<(Progress, FrameLeft)> {
    if pages >= MOVE_PAGES_MIN || !may_copy {
        let progress = process.mm.move_in(page, frame, pages, world.chance);
        if !may_copy || progress.pages > 0 || !matches!(progress.stop, Some(Stop::Busy | Stop::Invalid)) {
            process.wake(PageRange { start: page, pages: progress.pages as u64 }, world);
            return Ok((progress, FrameLeft::Empty));
        }
    }
    let copies = if pages >= MOVE_PAGES_MIN { 1 } else { pages };
    let mut contents = Vec::new();
    for index in 0..copies {
        let Some(content) = process.mm.frames[frame.0 as usize + index] else {
            return violated(Checker::Frames, format!("{frame:?} + {index} is copied from and has no memory"));
        };
        contents.push(content);
    }
    let progress = process.mm.copy(page, &contents, world.chance);
    process.wake(PageRange { start: page, pages: progress.pages as u64 }, world);
    Ok((progress, if progress.pages > 0 { FrameLeft::Populated } else { FrameLeft::Empty }))
}
