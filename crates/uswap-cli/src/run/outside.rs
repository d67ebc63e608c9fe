//! The tree seen from outside: whether the budget holds, and if not, how far it was passed, for how long, and why.
//!
//! Members count their own memory, every millisecond when it matters. What they cannot tell is seen here: processes that have
//! no agent (static, setuid, another loader) or whose agent is not at work yet, bursts between two looks of a member (the
//! kernel keeps a high watermark), and what a forked tree has in common, which each of its processes counts; whether all of it are
//! members, without which no [census](super::census) is asked for. Looking closely costs time, so it is done near the budget
//! only, and takes a small part of one CPU at most.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use uswap_engine::group::{Counter, Group, PAGE_BYTES, ProcessSlot};

use super::census::Censuses;
use super::descendants::{self, Looks};
use crate::size;

/// How often the tree is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Looking for unknown processes takes at most one part in so many of the time.
const SCAN_COST: u32 = 50;
/// The same for measuring what processes have in common.
const SHARE_COST: u32 = 12;
/// It is given up where there is so much to look at.
const SHARE_LONGEST: Duration = Duration::from_millis(100);
/// Processes stand still whose sizes change by no more than one part in so many of the budget.
const STANDS_STILL: u64 = 64;
/// Members that are looked at from outside in one look: the largest.
const MEMBERS_MAX: usize = 16;
/// Smaller processes without an agent are not worth a word.
const NAMED_MIN: u64 = 1 << 20;
/// A process that has no agent by then runs unmanaged.
const JOINS_WITHIN: Duration = Duration::from_millis(250);
/// Unmanaged processes that are kept for the statistics: those that had most.
const KEPT_MAX: usize = 16;

/// A squeeze that does not grow any more is told after this time.
const SQUEEZE_LASTS: Duration = Duration::from_secs(1);

/// A process of the tree that is no member.
#[derive(Clone, Debug)]
pub struct Outsider {
    /// Its name.
    pub name: String,
    /// The most memory that it had, in bytes.
    pub peak_bytes: u64,
    first_seen: Instant,
    bytes: u64,
    /// Measuring its share takes time: not before.
    next_share: Instant,
    /// It may have private pages of a member's: it was forked, and has not executed.
    is_copy: bool,
}

impl Outsider {
    fn new(now: Instant) -> Outsider {
        Outsider { name: String::new(), peak_bytes: 0, first_seen: now, bytes: 0, next_share: now, is_copy: true }
    }

    /// Returns the bytes that it has and nobody else counts.
    fn measure(&mut self, pid: u32) -> u64 {
        let Some(looks) = descendants::look(pid) else {
            (self.bytes, self.is_copy) = (0, false);
            return 0;
        };
        let is_before_exec = descendants::is_before_exec(pid);
        self.is_copy = is_before_exec != Some(false) && !looks.shares_memory_of_its_parent();
        if is_before_exec != Some(true) {
            self.bytes = looks.counted;
        } else if self.first_seen.elapsed() < JOINS_WITHIN || !self.is_copy {
            // What a forked process has is its parent's at first, and after vfork that of its parent for good.
            self.bytes = 0;
        } else if Instant::now() >= self.next_share {
            let begun = Instant::now();
            self.bytes = descendants::share(pid);
            self.next_share = begun + LOOK_EVERY.max(begun.elapsed() * SHARE_COST);
        }
        self.peak_bytes = self.peak_bytes.max(self.bytes);
        self.name = looks.name;
        self.bytes
    }
}

/// Why the budget was passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A process without an agent, and what it had.
    Unmanaged { pid: u32, name: String, bytes: u64 },
    /// Memory that uswap leaves alone filled most of the budget.
    Fixed { bytes: u64, shared: u64 },
    /// No area takes any more.
    SwapIsFull,
    /// More processes than the budget has room for.
    Forks { processes: usize },
    /// None of these: it was filled before it could be adopted and swapped.
    TooFast,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reason::Unmanaged { pid, name, bytes } => {
                write!(f, "process {pid} ({name}) runs unmanaged and had {}", size::measured(*bytes))
            }
            Reason::Fixed { bytes, shared } => {
                let (bytes, shared) = (size::measured(*bytes), size::measured(*shared));
                write!(f, "{bytes} cannot be swapped, {shared} of it shared memory")
            }
            Reason::SwapIsFull => f.write_str("swap space is full"),
            Reason::Forks { processes } => write!(f, "{processes} forked processes have no room to get on"),
            Reason::TooFast => f.write_str("memory was filled faster than it could be adopted and swapped"),
        }
    }
}

/// How the budget was passed.
#[derive(Clone, Debug, Default)]
pub struct Overrun {
    /// The most that was seen above it.
    pub most_bytes: u64,
    /// For how long it was seen passed.
    pub lasted: Duration,
    /// Why, when most was seen.
    pub reason: Option<Reason>,
}

/// When unknown processes were looked for.
struct Scan {
    /// Something that changes when a process is made, as it was then.
    last_process: Option<String>,
    /// Not before.
    next: Instant,
}

/// See the file's head.
pub struct Outside {
    outsiders: BTreeMap<u32, Outsider>,
    /// Those that are gone, and had most.
    gone: Vec<(u32, Outsider)>,
    overrun: Overrun,
    before: BTreeMap<u32, Looks>,
    scan: Scan,
    looked: Option<Instant>,
    next_share: Instant,
    /// `None` where /proc does not tell who has which children.
    censuses: Option<Censuses>,
    squeeze: Option<Squeeze>,
    said_squeezed: bool,
}

impl Outside {
    /// Nothing has been seen.
    pub fn new() -> Outside {
        let now = Instant::now();
        Outside {
            outsiders: BTreeMap::new(),
            gone: Vec::new(),
            overrun: Overrun::default(),
            before: BTreeMap::new(),
            scan: Scan { last_process: None, next: now },
            looked: None,
            next_share: now,
            censuses: descendants::children_are_told().then(Censuses::new),
            squeeze: None,
            said_squeezed: false,
        }
    }

    /// Looks at the tree, if that was not done a moment ago. `members` are processes of the group; `is_other` tells which
    /// children of ours are not of the tree.
    pub fn look(&mut self, group: &Group, members: impl Iterator<Item = u32>, is_other: impl Fn(u32) -> bool) {
        let now = Instant::now();
        let since = self.looked.map_or(LOOK_EVERY, |looked| now.duration_since(looked));
        if since < LOOK_EVERY {
            return;
        }
        self.looked = Some(now);
        let births = group.births();
        let has_seen_all = self.scan(group, &members.collect::<Vec<_>>(), is_other, now);
        let unmanaged = self.measure_outsiders();
        let counted = group.usage_pages() * PAGE_BYTES + unmanaged;
        let limit = group.limit_bytes();
        // The part of a copy that is no member nobody would enter.
        if self.outsiders.values().any(|outsider| outsider.is_copy) {
            group.end_censuses();
        } else if let Some(censuses) = self.censuses.as_mut().filter(|_| has_seen_all) {
            censuses.look(group, counted, births);
        }
        if counted < limit / 2 {
            return group.note_resident_bytes(counted);
        }
        let burst = self.burst(group);
        let at_least = group.resident_pages_at_least() * PAGE_BYTES + unmanaged + burst;
        if counted + burst <= limit {
            return group.note_resident_bytes(counted + burst);
        }
        // What is counted is never too little, and shares that are asked for one after the other may add up to more.
        let resident = at_least.max(self.share(group).unwrap_or(0)).min(counted + burst);
        group.note_resident_bytes(resident);
        if resident > limit {
            self.overrun.lasted += since.min(5 * LOOK_EVERY);
            let grows = resident - limit > self.overrun.most_bytes;
            self.overrun.most_bytes = self.overrun.most_bytes.max(resident - limit);
            // What cannot be swapped may be known only after a while.
            if grows || matches!(self.overrun.reason, Some(Reason::TooFast)) {
                self.overrun.reason = Some(self.reason(group, resident - limit));
            }
        }
    }

    /// What was seen, over all.
    pub fn overrun(&self, group: &Group) -> Overrun {
        let mut overrun = self.overrun.clone();
        overrun.most_bytes = overrun.most_bytes.max(group.most_over_bytes());
        if overrun.most_bytes > 0 && overrun.reason.is_none() {
            // Members have seen it, between two looks.
            overrun.reason = Some(Reason::TooFast);
        }
        overrun
    }

    /// Processes of the tree that ran unmanaged, those that had most first.
    pub fn unmanaged(&self) -> Vec<(u32, Outsider)> {
        let mut all = self.gone.clone();
        let stays = |outsider: &Outsider| outsider.first_seen.elapsed() >= JOINS_WITHIN;
        all.extend(self.outsiders.iter().filter(|(_, outsider)| stays(outsider)).map(|(pid, o)| (*pid, o.clone())));
        all.retain(|(_, outsider)| outsider.peak_bytes >= NAMED_MIN);
        all.sort_by_key(|(_, outsider)| std::cmp::Reverse(outsider.peak_bytes));
        all.truncate(KEPT_MAX);
        all
    }

    /// Looks for processes of the tree that are no members, if some may have come. Whether all are known.
    fn scan(&mut self, group: &Group, members: &[u32], is_other: impl Fn(u32) -> bool, now: Instant) -> bool {
        self.outsiders.retain(|pid, _| !members.contains(pid));
        // It has joined after all: it was faster than its agent.
        if matches!(&self.overrun.reason, Some(Reason::Unmanaged { pid, .. }) if members.contains(pid)) {
            self.overrun.reason = Some(Reason::TooFast);
        }
        if now < self.scan.next {
            return false;
        }
        let last = descendants::last_process();
        if last.is_some() && last == self.scan.last_process && self.outsiders.is_empty() {
            return true;
        }
        self.scan.last_process = last;
        let mut found: Vec<u32> = Vec::new();
        // What runs below another `uswap run` is counted by that one.
        let nested = group.processes().filter(|(_, slot)| slot.resident.nested_pages.load(Relaxed) > 0);
        let nested: Vec<u32> = nested.map(|(_, slot)| slot.life.pid.load(Relaxed)).collect();
        let mut todo: Vec<u32> = members.iter().copied().filter(|pid| !nested.contains(pid)).collect();
        todo.push(std::process::id());
        while let Some(pid) = todo.pop() {
            for child in descendants::children(pid) {
                if !members.contains(&child) && !is_other(child) && !found.contains(&child) {
                    found.push(child);
                    todo.push(child);
                }
            }
        }
        self.note_gone(|pid| found.contains(&pid));
        for pid in found {
            self.outsiders.entry(pid).or_insert_with(|| Outsider::new(now));
        }
        self.scan.next = now + LOOK_EVERY.max(now.elapsed() * SCAN_COST);
        true
    }

    /// Keeps what is known of those that are not there any more.
    fn note_gone(&mut self, is_there: impl Fn(u32) -> bool) {
        let left: Vec<u32> = self.outsiders.keys().copied().filter(|pid| !is_there(*pid)).collect();
        for pid in left {
            let outsider = self.outsiders.remove(&pid).expect("just listed");
            if outsider.peak_bytes >= NAMED_MIN && outsider.first_seen.elapsed() >= JOINS_WITHIN {
                self.gone.push((pid, outsider));
                self.gone.sort_by_key(|(_, outsider)| std::cmp::Reverse(outsider.peak_bytes));
                self.gone.truncate(KEPT_MAX);
            }
        }
    }

    /// What processes without an agent have.
    fn measure_outsiders(&mut self) -> u64 {
        self.outsiders.iter_mut().map(|(pid, outsider)| outsider.measure(*pid)).sum()
    }

    /// How much more than it counts the largest burst of a member was, since the last look: by the kernel's high watermark.
    fn burst(&mut self, group: &Group) -> u64 {
        // What a fork left in common is counted better from inside: one that copies some while others let go of some has no burst.
        let family = group.family();
        let alone = group.processes().filter(|&(index, slot)| !family.has(group, index, slot));
        let mut largest: Vec<(u64, u32)> =
            alone.map(|(_, slot)| (slot.resident_pages(), slot.life.pid.load(Relaxed))).collect();
        largest.sort_unstable_by_key(|(pages, _)| std::cmp::Reverse(*pages));
        largest.truncate(MEMBERS_MAX);
        let mut burst = 0;
        let mut seen = BTreeMap::new();
        for (_, pid) in largest {
            let Some(looks) = descendants::look(pid) else { continue };
            if let Some(before) = self.before.get(&pid)
                && looks.most > before.most
            {
                // The pages of files came one by one, or they were there before.
                let most = looks.most.saturating_sub(looks.file.max(before.file));
                burst = burst.max(most.saturating_sub(looks.counted));
            }
            seen.insert(pid, looks);
        }
        self.before = seen;
        burst
    }

    /// What the tree has when what its processes have in common counts once; `None` if that is not to be measured now.
    fn share(&mut self, group: &Group) -> Option<u64> {
        let now = Instant::now();
        let has_in_common =
            |slot: &ProcessSlot| slot.parent().is_some() || slot.shared.resident_pages.load(Relaxed) > 0;
        if now < self.next_share || !group.processes().any(|(_, slot)| has_in_common(slot)) {
            return None;
        }
        let members: Vec<u32> = group.processes().map(|(_, slot)| slot.life.pid.load(Relaxed)).collect();
        let sizes = || members.iter().map(|&pid| descendants::look(pid).map_or(0, |looks| looks.counted)).collect();
        let before: Vec<u64> = sizes();
        // Those who join the tree meanwhile wait.
        let in_time = members.iter().map_while(|&pid| (now.elapsed() < SHARE_LONGEST).then(|| descendants::share(pid)));
        let shares: Vec<u64> = in_time.collect();
        let after: Vec<u64> = sizes();
        self.next_share = now + LOOK_EVERY.max(now.elapsed() * SHARE_COST);
        // What one lets go of while another takes it is in both, for they are asked one after the other.
        let moved = before.iter().zip(&after).map(|(before, after)| before.abs_diff(*after)).sum::<u64>();
        if moved > group.limit_bytes() / STANDS_STILL || shares.len() < members.len() {
            return None;
        }
        Some(shares.iter().sum::<u64>() + self.outsiders.values().map(|outsider| outsider.bytes).sum::<u64>())
    }

    fn reason(&self, group: &Group, over: u64) -> Reason {
        if let Some((pid, outsider)) = self.outsiders.iter().max_by_key(|(_, outsider)| outsider.bytes)
            && outsider.bytes >= over / 2
            && outsider.bytes >= NAMED_MIN
        {
            return Reason::Unmanaged { pid: *pid, name: outsider.name.clone(), bytes: outsider.bytes };
        }
        let (fixed, shared) = group.fixed_pages();
        if fixed * PAGE_BYTES >= group.limit_bytes() / 2 {
            return Reason::Fixed { bytes: fixed * PAGE_BYTES, shared: shared * PAGE_BYTES };
        }
        if group.count(Counter::NoSpace) > 0 {
            return Reason::SwapIsFull;
        }
        let forked = group.processes().filter(|(_, slot)| slot.parent().is_some()).count();
        if forked > 1 {
            return Reason::Forks { processes: forked };
        }
        Reason::TooFast
    }

    /// A line for the user, once, when what cannot be swapped leaves less than the programs work in. `last`: the tree has
    /// ended.
    pub fn squeezed(&mut self, group: &Group, last: bool) -> Option<String> {
        if self.said_squeezed {
            return None;
        }
        let kept = group.processes().map(|(_, slot)| slot.wants.floor_pages.load(Relaxed)).sum::<u64>() * PAGE_BYTES;
        let (fixed, shared) = group.fixed_pages();
        let now = Squeeze { fixed: fixed * PAGE_BYTES, shared: shared * PAGE_BYTES, kept, since: Instant::now() };
        let limit = group.limit_bytes();
        // Less is no reason of its own: what a forked tree has in common counts once here.
        if kept > 0 && now.fixed >= limit / 2 {
            match &mut self.squeeze {
                Some(before) if now.fixed <= before.fixed / 16 * 17 => before.kept = before.kept.max(now.kept),
                // While it grows, its numbers are not those to tell.
                before => *before = Some(now),
            }
        }
        let squeeze = self.squeeze.as_ref().filter(|squeeze| last || squeeze.since.elapsed() >= SQUEEZE_LASTS)?;
        self.said_squeezed = true;
        Some(squeeze.line(limit))
    }
}

/// Memory that cannot be swapped leaves too little.
#[derive(Debug)]
struct Squeeze {
    fixed: u64,
    shared: u64,
    kept: u64,
    since: Instant,
}

impl Squeeze {
    fn line(&self, limit: u64) -> String {
        let Squeeze { fixed, shared, kept, .. } = *self;
        let left = match limit.saturating_sub(fixed) {
            0 => "nothing".to_owned(),
            left => size::measured(left),
        };
        format!(
            "{} cannot be swapped ({} shared memory, {} other), which leaves {left} of the budget of {}; processes keep {} \
             that they work in all the same: -m {}M would hold both",
            size::measured(fixed),
            size::measured(shared),
            size::measured(fixed.saturating_sub(shared)),
            size::chosen(limit),
            size::measured(kept),
            (fixed + kept).max(limit).div_ceil(1 << 20) + 16,
        )
    }
}

#[cfg(test)]
mod tests {
    use uswap_engine::group::{GroupConfig, Holder};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn group() -> Group {
        Group::create(&GroupConfig { memory_limit_bytes: 64 * MIB, ..GroupConfig::default() }).unwrap().0
    }

    /// A member with so many MiB, and this process's id.
    fn member(group: &Group, mib: u64) -> u32 {
        let index = group.allot(std::process::id()).unwrap();
        group.process(index).resident.anon_pages.store(mib << 8, Relaxed);
        index
    }

    #[test]
    fn a_budget_that_holds_is_not_spoken_of() {
        let group = group();
        member(&group, 60);
        let mut outside = Outside::new();
        outside.look(&group, [std::process::id()].into_iter(), |_| false);
        let overrun = outside.overrun(&group);
        assert_eq!((overrun.most_bytes, overrun.lasted, overrun.reason), (0, Duration::ZERO, None));
        assert!((60 * MIB..64 * MIB).contains(&group.peak_resident_bytes()));
    }

    #[test]
    fn a_budget_that_is_passed_is_measured_and_explained() {
        let group = group();
        member(&group, 80);
        let mut outside = Outside::new();
        outside.look(&group, [std::process::id()].into_iter(), |_| false);
        let overrun = outside.overrun(&group);
        // Other tests may have children, too.
        assert!((16 * MIB..20 * MIB).contains(&overrun.most_bytes) && overrun.lasted == LOOK_EVERY, "{overrun:?}");
        assert_eq!(overrun.reason, Some(Reason::TooFast));
        group.process(0).shared.pages.store(60 << 8, Relaxed);
        assert_eq!(outside.reason(&group, 1), Reason::Fixed { bytes: 60 * MIB, shared: 60 * MIB });
    }

    #[test]
    fn what_members_see_between_two_looks_counts() {
        let group = group();
        group.note_resident_bytes(81 * MIB);
        let overrun = Outside::new().overrun(&group);
        assert_eq!((overrun.most_bytes, overrun.reason), (17 * MIB, Some(Reason::TooFast)));
    }

    #[test]
    fn what_a_forked_child_has_of_its_parent_is_no_overrun() {
        let group = group();
        let parent = member(&group, 40);
        let child = member(&group, 40);
        let generation = group.process(parent).life.generation.load(Relaxed);
        group.process(child).is_child_of(Holder { index: parent, generation });
        let mut outside = Outside::new();
        // This process has less than either.
        outside.look(&group, [std::process::id()].into_iter(), |_| false);
        assert_eq!(outside.overrun(&group).most_bytes, 0);
    }

    #[test]
    fn a_process_without_agent_is_seen_and_named() {
        let group = group();
        let mut sleeper = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let mut outside = Outside::new();
        let begun = Instant::now();
        while outside.outsiders.get(&sleeper.id()).is_none_or(|outsider| outsider.name != "sleep") {
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", outside.outsiders);
            outside.look(&group, [].into_iter(), |_| false);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(outside.outsiders[&sleeper.id()].bytes > 0);
        outside.outsiders.get_mut(&sleeper.id()).unwrap().bytes = 70 * MIB;
        let reason = Reason::Unmanaged { pid: sleeper.id(), name: "sleep".to_owned(), bytes: 70 * MIB };
        assert_eq!(outside.reason(&group, 6 * MIB), reason);
        // It joins after all.
        outside.overrun.reason = Some(reason);
        outside.looked = None;
        outside.look(&group, [sleeper.id()].into_iter(), |_| false);
        assert!(!outside.outsiders.contains_key(&sleeper.id()));
        assert_eq!(outside.overrun.reason, Some(Reason::TooFast));
        let _ = sleeper.kill();
        let _ = sleeper.wait();
    }

    #[test]
    fn the_line_of_a_squeeze_has_the_numbers() {
        let squeeze = Squeeze { fixed: 412 * MIB, shared: 400 * MIB, kept: 20 * MIB, since: Instant::now() };
        assert_eq!(
            squeeze.line(222 * MIB),
            "412.0 MiB cannot be swapped (400.0 MiB shared memory, 12.0 MiB other), which leaves nothing of the budget of \
             222 MiB; processes keep 20.0 MiB that they work in all the same: -m 448M would hold both"
        );
    }

    #[test]
    fn a_squeeze_is_told_once_and_when_it_grows_no_more() {
        let group = group();
        let slot = group.process(member(&group, 10));
        let mut outside = Outside::new();
        let floor = |pages| slot.wants.floor_pages.store(pages, Relaxed);
        floor(512);
        assert_eq!(outside.squeezed(&group, true), None, "the floor has other reasons");
        slot.shared.pages.store(40 << 8, Relaxed);
        assert_eq!(outside.squeezed(&group, false), None);
        slot.shared.pages.store(60 << 8, Relaxed);
        outside.squeeze.as_mut().unwrap().since -= SQUEEZE_LASTS;
        assert_eq!(outside.squeezed(&group, false), None, "it has grown");
        outside.squeeze.as_mut().unwrap().since -= SQUEEZE_LASTS;
        floor(0);
        let said = outside.squeezed(&group, false).unwrap();
        assert!(said.starts_with("60.0 MiB cannot be swapped") && said.contains("keep 2.0 MiB"), "{said}");
        assert_eq!(outside.squeezed(&group, true), None);
    }

    #[test]
    fn a_squeeze_that_does_not_last_is_told_at_the_end() {
        let group = group();
        let slot = group.process(member(&group, 10));
        slot.shared.pages.store(40 << 8, Relaxed);
        slot.wants.floor_pages.store(512, Relaxed);
        let mut outside = Outside::new();
        assert_eq!(outside.squeezed(&group, false), None);
        assert!(outside.squeezed(&group, true).is_some());
    }
}
