//! All small schedules of calls and reports, and what [`EventOrder`] makes of each.
//!
//! Threads call mremap (to a free place, over another, leaving the old place mapped), munmap, mmap over a place, mmap and
//! growth into a free one, madvise, and fork, or are refused an unmapping that is reported all the same; each call changes memory at once, and is reported later, report by report, in
//! any order with those of other threads. Whenever nothing is counted as changing, the production [`EventOrder`] says what
//! all reports come to, and the books are compared with what is where. It is right, or it ends with a line; anything else
//! is a [`Finding`].
//!
//! Every schedule up to a size is taken. Left out is what another one stands for: threads that are alike are interchangeable,
//! and what follows a settlement is a schedule that begins there, with other content. Programs
//! have no race of their own (docs/event-order.md): no thread acts on memory that an unfinished call of another is about.

mod world;

use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;
use uswap_core::event_order::{EventOrder, Rule};

use crate::chance::Chance;
pub use world::{Kind, Step};
use world::{Verdict, World};

/// How large schedules are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// Places that memory can be at.
    pub places: usize,
    /// Pages of a place. Calls take a whole place, or, if there are two, one page of it.
    pub pages: u64,
    /// Threads.
    pub threads: usize,
    /// Calls of a thread.
    pub calls_each: u8,
    /// Calls of all threads.
    pub calls: u8,
    /// Whether a mremap may leave its old place mapped.
    pub leaves_mapped: bool,
    /// Whether the kernel may refuse an unmapping after it was reported, where nothing can grow into what it was to take.
    pub refuses: bool,
}

/// A decision that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What was where at first.
    pub begin: Vec<Kind>,
    /// What happened.
    pub steps: Vec<Step>,
    /// What is wrong then.
    pub what: String,
}

/// What all schedules came to.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Report {
    /// States that differ.
    pub states: u64,
    /// Of those, the ones in which nothing was counted as changing, and reports were put in order.
    pub decisions: u64,
    /// Of those, the ones that end with a line.
    pub endings: u64,
    /// The first decision that was wrong.
    pub finding: Option<Finding>,
    /// The search stopped at its limit of states.
    pub is_cut: bool,
}

/// Takes all schedules of `size`, up to `limit` states; with a rule dropped, stops where that is found.
pub fn run(size: Size, dropped: Option<Rule>, limit: u64) -> Report {
    let mut search = Search { dropped, limit, seen: HashSet::default(), steps: Vec::new(), report: Report::default() };
    for begin in begins(size.places) {
        search.explore(&World::new(size, &begin, order(dropped)), &begin);
    }
    search.report
}

/// Takes `count` random schedules of `size`, of which no end is left out.
pub fn sample(size: Size, seed: u64, count: u64) -> Report {
    let mut chance = Chance::new(seed);
    let mut report = Report::default();
    for _ in 0..count {
        let begin: Vec<Kind> = (0..size.places).map(|_| Kind::ALL[chance.index(Kind::ALL.len())]).collect();
        let mut world = World::new(size, &begin, order(None));
        let mut steps = Vec::new();
        loop {
            judge(&world, &begin, &steps, None, &mut report);
            let next = world.steps();
            if next.is_empty() || report.finding.is_some() {
                break;
            }
            let step = next[chance.index(next.len())];
            world.take(step);
            steps.push(step);
            report.states += 1;
        }
        if report.finding.is_some() {
            break;
        }
    }
    report
}

fn order(dropped: Option<Rule>) -> EventOrder {
    dropped.map_or_else(EventOrder::default, EventOrder::without)
}

/// All that may be at the places at first.
fn begins(places: usize) -> Vec<Vec<Kind>> {
    let mut begins = vec![Vec::new()];
    for _ in 0..places {
        let longer =
            |begin: Vec<Kind>| Kind::ALL.map(|kind| begin.iter().copied().chain([kind]).collect::<Vec<Kind>>());
        begins = begins.into_iter().flat_map(longer).collect();
    }
    begins
}

struct Search {
    dropped: Option<Rule>,
    limit: u64,
    seen: HashSet<u128, FxBuildHasher>,
    steps: Vec<Step>,
    report: Report,
}

impl Search {
    fn explore(&mut self, world: &World, begin: &[Kind]) {
        if self.report.finding.is_some() || self.report.is_cut || !self.seen.insert(world.fingerprint()) {
            return;
        }
        self.report.states += 1;
        self.report.is_cut = self.report.states >= self.limit;
        judge(world, begin, &self.steps, self.dropped.map(|_| order(None)), &mut self.report);
        for step in world.steps() {
            let mut next = world.clone();
            next.take(step);
            self.steps.push(step);
            self.explore(&next, begin);
            self.steps.pop();
        }
    }
}

/// With `sound`, an order with all rules, ends that it does not come to are wrong, too.
fn judge(world: &World, begin: &[Kind], steps: &[Step], sound: Option<EventOrder>, report: &mut Report) {
    let what = match world.judge() {
        Verdict::NothingToDecide => return,
        Verdict::Right => None,
        Verdict::Ends => {
            report.endings += 1;
            let is_needless = sound.is_some_and(|sound| world.with_order(sound).judge() == Verdict::Right);
            is_needless.then(|| "it ends with a line, and need not".to_owned())
        }
        Verdict::Wrong(what) => Some(what),
    };
    report.decisions += 1;
    if let Some(what) = what
        && report.finding.is_none()
    {
        report.finding = Some(Finding { begin: begin.to_vec(), steps: steps.to_vec(), what });
    }
}
