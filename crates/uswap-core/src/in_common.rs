//! What a forked child has in common with its parent is in RAM once, though both have it resident: the parent counts it.
//!
//! Copy-on-write takes pages apart without any change in what a process has resident, and only the kernel knows of each page who has
//! it, which is slow to ask. But a copy takes a fault, and what a process drops it has no longer. So a child leaves out what it was born
//! with, less all that it may have copied or dropped since ([`Changes`], [`LeftOut`]), and its parent counts more by what it may have
//! copied or dropped itself since the birth ([`borne`]). The sum is never below what is there, but for [`JITTER`]. A process that takes memory and gives
//! it back without a pause seems to change all that it has, so a child asks the kernel when that matters ([`LeftOut::look`]).
//!
//! # Lemma
//! A page that a child was born with is resident in its parent at that moment, and counted there. As long as the child has it, and has
//! it in common, the child has neither copied nor dropped it, so it is left out. If the parent drops or copies the page, that is one
//! change of the parent's since, and one page that is left out: what the parent bears covers it. Where several children leave a page
//! out, it is one page all the same. A child that copies or drops counts what it has then, and where it has dropped, more. With the
//! parent ends what it counts, so that from then on its children leave out nothing.

use crate::defects::{Sabotage, is_on};

/// What a process has at a moment, in pages. What happens while it is read makes changes of it that are too many if it is read in this
/// order, and too few in the opposite one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Pages that the engine ever gave back to the kernel: nobody else had those. For too many changes counted when they are gone, for too
    /// few before.
    pub taken: u64,
    /// Private pages that it has resident.
    pub resident: u64,
    /// Pages that the engine ever brought into it. For too many changes counted before they are there, for too few when they are.
    pub brought: u64,
    /// Faults that it ever had. A copy takes one.
    pub faults: u64,
}

/// What may have changed between two moments falls by more than this only where a fault filled many pages at once.
const JITTER: i64 = 256;

/// Changes of a process that cannot be told how many it had: all that there may be.
pub const UNKNOWN: u64 = u64::MAX / 2;

/// How many pages a process may have copied or dropped, ever.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    then: Seen,
    /// What was none, because one fault filled many pages.
    beside: i64,
    most: u64,
}

/// How many changes there were: no fewer, and no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Between {
    /// What is counted from: as if there had been so few.
    pub least: u64,
    /// What is counted: as if there were so many. Never becomes fewer.
    pub most: u64,
    /// The least as it was seen: below none where pages came in during the look.
    pub seen: i64,
}

impl Changes {
    /// Of a process that is seen for the first time, and has `resident` pages. What it has had of faults before passes for changes.
    pub fn of(resident: u64) -> Changes {
        Changes { then: Seen { resident, ..Seen::default() }, ..Changes::default() }
    }

    /// It has something between what was `seen` so that changes are too few, and so that they are too many.
    pub fn see(&mut self, few: Seen, many: Seen) -> Between {
        // A huge page is one fault.
        self.beside = self.beside.max(self.most.cast_signed() - JITTER - self.since(many));
        let none_or_more = |changes: i64| changes.max(0).cast_unsigned();
        self.most = self.most.max(none_or_more(self.since(many) + self.beside));
        let seen = self.since(few) + self.beside;
        Between { least: none_or_more(seen).min(self.most), most: self.most, seen: seen.min(self.most.cast_signed()) }
    }

    fn since(&self, now: Seen) -> i64 {
        let since = |now: u64, then: u64| now.wrapping_sub(then).cast_signed();
        let Seen { faults, brought, resident, taken } = self.then;
        since(now.faults, faults) + since(now.brought, brought)
            - since(now.resident, resident)
            - since(now.taken, taken)
    }
}

/// Pages that a child leaves out, as long as its very parent lives.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeftOut {
    pages: u64,
    /// The changes that it had had at the least when it was so many.
    at: u64,
}

impl LeftOut {
    /// Of a child that was born with `inherited` pages at least, and has `resident` when it is seen for the first time. What it has more
    /// it may have had of its parent, too, or it has taken a fault each.
    pub fn born(inherited: u64, resident: u64) -> LeftOut {
        let pages = inherited.min(resident);
        LeftOut { pages, at: resident - pages }
    }

    /// It has seen that it has `in_common` pages with others; it had had so many `changes` at the least before it looked. To be believed only of a
    /// process that never forked: what it has in common with a child of its own is not left to its parent.
    pub fn look(in_common: u64, changes: u64) -> LeftOut {
        LeftOut { pages: in_common, at: changes }
    }

    /// When this became known.
    pub fn known(&self) -> u64 {
        self.pages
    }

    /// When it has had so many changes.
    pub fn pages(&self, changes: u64) -> u64 {
        self.pages.saturating_sub(changes.saturating_sub(self.at))
    }

    /// How many pages it may leave out too few: it has not looked for so many changes.
    pub fn doubt(&self, changes: u64) -> u64 {
        self.pages - self.pages(changes)
    }
}

/// A child, as its parent sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Child {
    /// Pages that it leaves out.
    pub left_out: u64,
    /// The parent's changes when it was born, at the least.
    pub born_at: u64,
}

/// Pages that a process counts for its living children beside those that it has, when it has had so many `changes`.
pub fn borne(changes: u64, children: impl IntoIterator<Item = Child>) -> u64 {
    if is_on(Sabotage::ParentDoesNotBear) {
        return 0;
    }
    let (mut oldest, mut sum) = (changes, 0);
    for child in children {
        oldest = oldest.min(child.born_at);
        sum += child.left_out.min(changes.saturating_sub(child.born_at));
    }
    sum.min(changes - oldest)
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;

    use super::*;
    use crate::census::{self, Kin, Mark, Part};

    /// Divided by all numbers of owners.
    const WHOLE: u64 = 60;

    /// A process of a family, with the pages that it has at each place.
    #[derive(Default)]
    struct Process {
        places: BTreeMap<u32, u32>,
        seen: Seen,
        /// Of one that has told something.
        changes: Option<Changes>,
        left_out: LeftOut,
        /// What it had when it began to look.
        looking: Option<Seen>,
        /// Changes, at the least, and pages that it has last told.
        told: (u64, u64),
        parent: Option<usize>,
        /// The same of the parent, at the birth.
        parent_told: (u64, u64),
        has_forked: bool,
        births: u32,
        part: Part,
        /// In which census, what stayed the same, and what.
        entries: [(u64, Kin, u64); 2],
    }

    impl Process {
        fn begin_to_look(&mut self) {
            self.looking = Some(self.seen);
        }

        /// Returns its changes, at the least and at the most.
        fn tell(&mut self) -> Between {
            // What has happened since it began to look is seen in part.
            let few = self.looking.take().unwrap_or(self.seen);
            let many = Seen { taken: few.taken, resident: few.resident, ..self.seen };
            if self.changes.is_none() {
                self.left_out = LeftOut::born(self.parent_told.1, few.resident);
            }
            let changes = self.changes.get_or_insert(Changes::of(few.resident)).see(few, many);
            self.told = (changes.least, few.resident);
            changes
        }

        fn left_out(&mut self) -> u64 {
            let changes = self.tell();
            self.left_out.pages(changes.most)
        }
    }

    /// What is in RAM, and what is counted.
    struct Family {
        living: BTreeMap<usize, Process>,
        next_process: usize,
        next_page: u32,
        random: u64,
        census: u64,
        ended: u32,
    }

    impl Family {
        fn new(seed: u64) -> Family {
            let living = BTreeMap::from([(0, Process::default())]);
            let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            Family { living, next_process: 1, next_page: 0, random, census: 0, ended: 0 }
        }

        fn random(&mut self, below: u64) -> u64 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.random % below
        }

        fn owners(&self, page: u32) -> usize {
            self.living.values().flat_map(|process| process.places.values()).filter(|&&other| other == page).count()
        }

        /// All tell what they have.
        fn counted(&mut self) -> u64 {
            self.living.values_mut().for_each(|process| process.looking = None);
            let living: Vec<usize> = self.living.keys().copied().collect();
            let mut all = 0;
            for index in living {
                let mine = |process: &&mut Process| process.parent == Some(index);
                let children = self.living.values_mut().filter(mine);
                let as_child = |child: &mut Process| Child { left_out: child.left_out(), born_at: child.parent_told.0 };
                let children: Vec<Child> = children.map(as_child).collect();
                let orphan = self.living[&index].parent.is_none_or(|parent| !self.living.contains_key(&parent));
                let process = self.living.get_mut(&index).unwrap();
                let left_out = if orphan { 0 } else { process.left_out() };
                let changes = process.tell();
                all += process.seen.resident - left_out.min(process.seen.resident) + borne(changes.most, children);
            }
            all
        }

        fn there(&self) -> u64 {
            let mut pages: Vec<u32> = self.living.values().flat_map(|p| p.places.values().copied()).collect();
            pages.sort_unstable();
            pages.dedup();
            pages.len() as u64
        }

        /// What the parent told may be long ago.
        fn fork(&mut self, index: usize) {
            let parent = self.living.get_mut(&index).unwrap();
            let child = Process {
                places: parent.places.clone(),
                seen: Seen { resident: parent.seen.resident, ..Seen::default() },
                parent: parent.changes.as_ref().map(|_| index),
                parent_told: parent.told,
                ..Process::default()
            };
            parent.has_forked = true;
            parent.births += 1;
            self.living.insert(self.next_process, child);
            self.next_process += 1;
        }

        /// A write: a new page, or a copy, or nothing new.
        fn write(&mut self, index: usize, place: u32) {
            if self.living[&index].places.get(&place).is_some_and(|&page| self.owners(page) == 1) {
                return;
            }
            let process = self.living.get_mut(&index).unwrap();
            process.places.insert(place, self.next_page);
            self.next_page += 1;
            process.seen.faults += 1;
            process.seen.resident = process.places.len() as u64;
        }

        fn drop_page(&mut self, index: usize, place: u32, by_engine: bool) {
            let Some(&page) = self.living[&index].places.get(&place) else { return };
            if by_engine && self.owners(page) > 1 {
                return;
            }
            let process = self.living.get_mut(&index).unwrap();
            process.places.remove(&place);
            process.seen.resident -= 1;
            process.seen.taken += u64::from(by_engine);
        }

        fn bring(&mut self, index: usize, place: u32) {
            let process = self.living.get_mut(&index).unwrap();
            if process.places.contains_key(&place) {
                return;
            }
            process.places.insert(place, self.next_page);
            self.next_page += 1;
            process.seen.brought += 1;
            process.seen.resident += 1;
        }

        fn look(&mut self, index: usize) {
            let process = &self.living[&index];
            if process.has_forked || process.changes.is_none() {
                return;
            }
            let pages = self.living[&index].places.values();
            let in_common = pages.filter(|&&page| self.owners(page) > 1).count() as u64;
            let process = self.living.get_mut(&index).unwrap();
            process.left_out = LeftOut::look(in_common, process.tell().least);
        }

        /// Looks if it is its turn, and makes its mark.
        fn take_part(&mut self, index: usize) {
            let share: u64 = self.living[&index].places.values().map(|&page| WHOLE / self.owners(page) as u64).sum();
            let (census, ended) = (self.census, self.ended);
            let process = self.living.get_mut(&index).unwrap();
            process.looking = None;
            if let Some((number, mark)) = process.part.due() {
                let entry = census::entry(share.div_ceil(WHOLE), &mark, process.tell(), process.seen.resident);
                process.entries[number as usize % 2] = (number, mark.kin, entry);
                process.part.entered();
            }
            let changes = process.tell().least;
            process.part.told(Some(Mark { changes, kin: Kin { births: process.births, ended } }), census);
        }

        /// What is counted by the last census that holds.
        fn by_census(&mut self) -> Option<u64> {
            let last = self.census;
            let counted = |process: &mut Process, number: u64, ended: u32| {
                let (entered, kin, entry) = process.entries[number as usize % 2];
                let holds = entered == number && kin == Kin { births: process.births, ended };
                holds.then(|| census::counted(entry, process.seen.resident, process.tell().most))
            };
            let ended = self.ended;
            let mut sum = |number| self.living.values_mut().map(|process| counted(process, number, ended)).sum();
            [last, last.saturating_sub(1)].into_iter().filter(|&number| number > 0).find_map(&mut sum)
        }

        fn step(&mut self, is_quiet: bool) {
            let living: Vec<usize> = self.living.keys().copied().collect();
            let index = living[self.random(living.len() as u64) as usize];
            let place = self.random(24) as u32;
            match self.random(40).max(if is_quiet { 2 } else { 0 }) {
                0 if living.len() < 5 => self.fork(index),
                1 if living.len() > 1 => {
                    self.living.remove(&index);
                    self.ended += 1;
                }
                2..=3 => self.look(index),
                4 => drop(self.living.get_mut(&index).unwrap().tell()),
                5 => self.living.get_mut(&index).unwrap().begin_to_look(),
                6..=11 => self.drop_page(index, place, false),
                12..=15 => self.drop_page(index, place, true),
                16..=19 => self.bring(index, place),
                _ => self.write(index, place),
            }
        }
    }

    #[test]
    fn never_less_is_counted_than_there_is() {
        for seed in 1..=2000u64 {
            let mut family = Family::new(seed);
            for step in 0..200 {
                family.step(false);
                if family.random(4) > 0 {
                    continue;
                }
                let (counted, there) = (family.counted(), family.there());
                assert!(counted >= there, "seed {seed} step {step}: {counted} counted of {there}");
            }
        }
    }

    /// Of families in which somebody forks or ends now and then only.
    #[test]
    fn no_census_counts_less_than_there_is() {
        let (mut held, mut knew_better) = (0, 0);
        for seed in 1..=2000u64 {
            let mut family = Family::new(seed);
            for step in 0..400 {
                let is_quiet = step > 60 && family.random(100) > 0;
                family.step(is_quiet);
                let living: Vec<usize> = family.living.keys().copied().collect();
                let index = living[family.random(living.len() as u64) as usize];
                match family.random(8) {
                    0 => family.census += 1,
                    1..=5 => family.take_part(index),
                    _ => {}
                }
                let Some(by_census) = family.by_census() else { continue };
                let (counted, there) = (family.counted(), family.there());
                assert!(by_census >= there, "seed {seed} step {step}: {by_census} counted of {there}");
                held += 1;
                knew_better += u32::from(by_census < counted);
            }
        }
        assert!(held > 100_000 && knew_better > 10_000, "held in {held} steps, knew better in {knew_better}");
    }

    fn see(changes: &mut Changes, faults: u64, resident: u64) -> u64 {
        let seen = Seen { faults, resident, ..Seen::default() };
        changes.see(seen, seen).most
    }

    #[test]
    fn what_children_read_counts_once() {
        let mut child = Changes::of(100_000);
        let changes = see(&mut child, 700, 100_500);
        assert_eq!(changes, 200, "500 pages are new");
        let children = [Child { left_out: 100_000 - changes, born_at: 7000 }; 4];
        assert_eq!(borne(7050, children), 50, "in its parent, that may be what it has had to copy");
    }

    #[test]
    fn who_takes_and_gives_back_looks() {
        let mut child = Changes::of(1000);
        let changes = see(&mut child, 5000, 1000);
        assert_eq!((LeftOut::born(1000, 1000).pages(changes), LeftOut::born(1000, 1000).doubt(changes)), (0, 1000));
        let left_out = LeftOut::look(990, changes);
        assert_eq!((left_out.pages(changes), left_out.doubt(changes)), (990, 0));
        assert_eq!((left_out.pages(changes + 100), left_out.doubt(changes + 100)), (890, 100));
    }

    #[test]
    fn a_huge_page_hides_no_copies() {
        let mut changes = Changes::of(1000);
        see(&mut changes, 100, 1000);
        assert_eq!(see(&mut changes, 101, 1512), 100);
        assert!(see(&mut changes, 601, 1512) >= 100 + 500 - JITTER.cast_unsigned());
    }
}
