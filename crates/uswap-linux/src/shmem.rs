//! Files in memory (shmem, tmpfs): which of their pages are in swap, and how swapoff finds the file of a slot.
//!
//! A page of a file is in the page cache or in swap, never in both: the file's tree holds, by page index, the page or the
//! entry of its slot, and a page that comes back frees its slot at once. A file is on the swap list while any of its pages is
//! in swap. The slot's byte in the swap map says only "shmem"; which file it is has to be searched for, and how that was
//! done is a history of its own ([`OwnerSearch`], [`ShmemFiles::next_batch`]).
//!
//! The searches here find the file by an index that the kernel does not have, and count what the kernel's search would have
//! looked at ([`SearchSteps`]): a search of 128,000 slots visits eight thousand million entries, which a simulation need not
//! do one by one to tell how many they are.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::fmt;

use super::swap_entry::SwapEntry;

/// Entries that one call of a gang lookup copies out of the tree.
pub const GANG_ENTRIES: u64 = 16;
/// Entries of one batch of swapoff since 5.1.
pub const BATCH_ENTRIES: usize = 15;
/// Entries of one batch later on (not confirmed in which release).
pub const BATCH_ENTRIES_LATER: usize = 31;

/// A file, by the order in which they were made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u32);

/// A page of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilePage {
    /// In the page cache.
    Present,
    /// In swap.
    Swapped(SwapEntry),
    /// It could not be read back: whoever wants it gets EIO.
    Poisoned,
}

/// How the file of one slot is searched for when swapoff goes by slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnerSearch {
    /// Up to 3.0: each file on the swap list has vectors of swap entries of its own, which are scanned in index order.
    SwapVectors,
    /// 3.1-rc: batches of [`GANG_ENTRIES`] are copied out of the generic tree and compared.
    GangLookup,
    /// Tried for 3.1 and not taken: the same, but entries in swap carry a tag, and only those are copied.
    TaggedLookup,
    /// 3.1 to 5.0 (`locate_item`): entries are compared where they are, and the next search begins at the file of the last hit.
    LocateItem,
    /// Ours: the slot names its swap entry, the swap entry stays the page's name when it moves. Nothing is searched.
    Indirection,
}

/// What searches looked at.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SearchSteps {
    /// Files.
    pub files: u64,
    /// Calls that walk down a tree from its root.
    pub lookups: u64,
    /// Entries copied out of a tree before they are looked at.
    pub copied: u64,
    /// Entries compared.
    pub visited: u64,
    /// Walks that began again where the last batch ended.
    pub restarts: u64,
}

impl core::ops::AddAssign for SearchSteps {
    fn add_assign(&mut self, more: Self) {
        self.files += more.files;
        self.lookups += more.lookups;
        self.copied += more.copied;
        self.visited += more.visited;
        self.restarts += more.restarts;
    }
}

#[derive(Clone, Default)]
struct File {
    /// By page index; holes are not in it.
    pages: Vec<(u64, FilePage)>,
    swapped: u64,
}

impl File {
    fn find(&self, index: u64) -> Result<usize, usize> {
        self.pages.binary_search_by_key(&index, |&(index, _)| index)
    }
}

/// Slots of a file that are to be brought in, from one walk of its tree.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Batch {
    /// Page index and slot, ascending.
    pub found: Vec<(u64, SwapEntry)>,
    /// What the walk looked at.
    pub steps: SearchSteps,
}

/// Books of a file that do not agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShmemViolation {
    /// The file's count of swapped pages.
    Swapped {
        /// Which file.
        file: FileId,
        /// Its count.
        counted: u64,
        /// Entries in its tree.
        in_tree: u64,
    },
    /// A file with pages in swap is not on the swap list, is on it twice, or one without is.
    SwapList(FileId),
    /// Two pages name one slot, or the index names another page.
    Owner(SwapEntry),
}

impl fmt::Display for ShmemViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Swapped { file, counted, in_tree } => {
                write!(f, "file {} counts {counted} pages in swap, its tree {in_tree}", file.0)
            }
            Self::SwapList(file) => write!(f, "file {} is on the swap list as it should not be, or is not", file.0),
            Self::Owner(entry) => write!(f, "slot {} of area {} has not one owner", entry.slot, entry.area),
        }
    }
}

/// All files in memory.
#[derive(Clone, Default)]
pub struct ShmemFiles {
    files: Vec<File>,
    /// Files with pages in swap, in the order in which searches try them.
    swap_list: VecDeque<FileId>,
    owners: BTreeMap<SwapEntry, (FileId, u64)>,
}

impl ShmemFiles {
    /// Makes an empty file.
    pub fn add_file(&mut self) -> FileId {
        self.files.push(File::default());
        FileId(self.files.len() as u32 - 1)
    }

    /// A page of the file was touched that did not exist.
    ///
    /// # Panics
    /// When it did.
    pub fn add_page(&mut self, file: FileId, index: u64) {
        let file = &mut self.files[file.0 as usize];
        let place = file.find(index).expect_err("the page exists already");
        file.pages.insert(place, (index, FilePage::Present));
    }

    /// What the tree holds for a page; none for a hole.
    pub fn page(&self, file: FileId, index: u64) -> Option<FilePage> {
        let file = &self.files[file.0 as usize];
        file.find(index).ok().map(|place| file.pages[place].1)
    }

    /// Pages of the file in swap (the inode's `swapped`).
    pub fn swapped(&self, file: FileId) -> u64 {
        self.files[file.0 as usize].swapped
    }

    /// Files with pages in swap, in the order in which searches try them.
    pub fn swap_list(&self) -> impl Iterator<Item = FileId> {
        self.swap_list.iter().copied()
    }

    /// A page leaves the page cache: its slot takes its place in the tree.
    ///
    /// # Panics
    /// When the page is not in the page cache, or the slot belongs to another page.
    pub fn swap_out(&mut self, file: FileId, index: u64, entry: SwapEntry) {
        let owner = self.owners.insert(entry, (file, index));
        assert!(owner.is_none(), "slot {} of area {} has an owner already", entry.slot, entry.area);
        self.replace(file, index, FilePage::Swapped(entry), |page| page == FilePage::Present);
        let swapped = &mut self.files[file.0 as usize].swapped;
        *swapped += 1;
        if *swapped == 1 {
            self.swap_list.push_back(file);
        }
    }

    /// A page is back in the page cache; the slot that it leaves, which is to be freed at once.
    ///
    /// # Panics
    /// When the page is not in swap.
    pub fn swap_in(&mut self, file: FileId, index: u64) -> SwapEntry {
        self.leave_swap(file, index, FilePage::Present)
    }

    /// A page could not be read: from now on whoever wants it gets EIO. Its slot is to be freed.
    ///
    /// # Panics
    /// When the page is not in swap.
    pub fn poison(&mut self, file: FileId, index: u64) -> SwapEntry {
        self.leave_swap(file, index, FilePage::Poisoned)
    }

    /// Cuts the file off at a page; the slots that are to be freed.
    pub fn truncate(&mut self, id: FileId, pages: u64) -> Vec<SwapEntry> {
        let file = &mut self.files[id.0 as usize];
        let keep = file.pages.partition_point(|&(index, _)| index < pages);
        let cut: Vec<_> = file.pages.drain(keep..).collect();
        let slots = cut.into_iter().filter_map(|(_, page)| match page {
            FilePage::Swapped(entry) => Some(entry),
            FilePage::Present | FilePage::Poisoned => None,
        });
        let slots: Vec<_> = slots.collect();
        for entry in &slots {
            self.owners.remove(entry);
        }
        self.count_gone(id, slots.len() as u64);
        slots
    }

    /// Whose page a slot holds.
    pub fn owner(&self, entry: SwapEntry) -> Option<(FileId, u64)> {
        self.owners.get(&entry).copied()
    }

    /// Searches the file of a slot as one era did, and counts what that looks at.
    pub fn find_owner(&mut self, entry: SwapEntry, search: OwnerSearch) -> (Option<(FileId, u64)>, SearchSteps) {
        let owner = self.owner(entry);
        let mut steps = SearchSteps::default();
        if search == OwnerSearch::Indirection {
            steps.lookups = 1;
            return (owner, steps);
        }
        for &file in &self.swap_list {
            let hit = owner.filter(|(owner, _)| *owner == file).map(|(_, index)| index);
            steps += self.steps_in(file, hit, search);
            if hit.is_some() {
                break;
            }
        }
        if let (OwnerSearch::LocateItem, Some((file, _))) = (search, owner) {
            let at = self.swap_list.iter().position(|&listed| listed == file).expect("an owner is on the list");
            self.swap_list.rotate_left(at);
        }
        (owner, steps)
    }

    /// What a search in one file looks at, up to the page at `hit` or to the end.
    fn steps_in(&self, id: FileId, hit: Option<u64>, search: OwnerSearch) -> SearchSteps {
        let file = &self.files[id.0 as usize];
        let last = file.pages.last().map_or(0, |&(index, _)| index + 1);
        // In a tree the entries up to the hit; in a vector the indices up to it, holes included.
        let in_tree = match hit {
            Some(index) => file.find(index).expect("an owner is in its tree") as u64 + 1,
            None => file.pages.len() as u64,
        };
        let one = SearchSteps { files: 1, ..SearchSteps::default() };
        let gangs = |entries: u64, of: u64| {
            let lookups = entries.div_ceil(GANG_ENTRIES);
            SearchSteps { lookups, copied: (lookups * GANG_ENTRIES).min(of), visited: entries, ..one }
        };
        match search {
            OwnerSearch::SwapVectors => SearchSteps { visited: hit.map_or(last, |index| index + 1), ..one },
            OwnerSearch::GangLookup => gangs(in_tree, file.pages.len() as u64),
            OwnerSearch::TaggedLookup => {
                let walked = &file.pages[..in_tree as usize];
                let tagged = walked.iter().filter(|(_, page)| matches!(page, FilePage::Swapped(_))).count();
                gangs(tagged as u64, file.swapped)
            }
            OwnerSearch::LocateItem => SearchSteps { lookups: 1, visited: in_tree, ..one },
            OwnerSearch::Indirection => SearchSteps::default(),
        }
    }

    /// The next slots of one area in a file, in index order: how swapoff goes through a file since 5.1. It begins at the
    /// last index of the batch before, not after it: that page is back by then, and is walked over.
    pub fn next_batch(&self, id: FileId, area: u8, last_index: Option<u64>, most: usize) -> Batch {
        let file = &self.files[id.0 as usize];
        let from = last_index.unwrap_or(0);
        let mut batch = Batch::default();
        batch.steps.lookups = 1;
        batch.steps.restarts = u64::from(last_index.is_some());
        let start = file.pages.partition_point(|&(index, _)| index < from);
        for &(index, page) in &file.pages[start..] {
            if batch.found.len() == most {
                break;
            }
            let FilePage::Swapped(entry) = page else {
                // The page that the walk begins again at belongs to the restart.
                batch.steps.visited += u64::from(last_index != Some(index));
                continue;
            };
            batch.steps.visited += 1;
            if entry.area == area {
                batch.found.push((index, entry));
            }
        }
        batch
    }

    /// Checks the counts, the swap list and the owners of all slots.
    ///
    /// # Errors
    /// The first difference.
    pub fn check(&self) -> Result<(), ShmemViolation> {
        let mut in_trees = 0;
        for (number, file) in self.files.iter().enumerate() {
            let id = FileId(number as u32);
            let mut in_tree = 0;
            for &(index, page) in &file.pages {
                if let FilePage::Swapped(entry) = page {
                    in_tree += 1;
                    if self.owner(entry) != Some((id, index)) {
                        return Err(ShmemViolation::Owner(entry));
                    }
                }
            }
            if in_tree != file.swapped {
                return Err(ShmemViolation::Swapped { file: id, counted: file.swapped, in_tree });
            }
            let listed = self.swap_list.iter().filter(|&&listed| listed == id).count();
            if listed != usize::from(in_tree > 0) {
                return Err(ShmemViolation::SwapList(id));
            }
            in_trees += in_tree;
        }
        if in_trees != self.owners.len() as u64 {
            let stray = self.owners.iter().find(|&(entry, &(file, index))| {
                self.files.get(file.0 as usize).is_none() || self.page(file, index) != Some(FilePage::Swapped(*entry))
            });
            return Err(ShmemViolation::Owner(*stray.expect("one owner too many").0));
        }
        Ok(())
    }

    fn leave_swap(&mut self, file: FileId, index: u64, becomes: FilePage) -> SwapEntry {
        let before = self.replace(file, index, becomes, |page| matches!(page, FilePage::Swapped(_)));
        let FilePage::Swapped(entry) = before else { unreachable!("only a swapped page is replaced") };
        self.owners.remove(&entry);
        self.count_gone(file, 1);
        entry
    }

    fn count_gone(&mut self, id: FileId, pages: u64) {
        let swapped = &mut self.files[id.0 as usize].swapped;
        *swapped -= pages;
        if pages > 0 && *swapped == 0 {
            self.swap_list.retain(|&listed| listed != id);
        }
    }

    fn replace(&mut self, id: FileId, index: u64, becomes: FilePage, fits: impl Fn(FilePage) -> bool) -> FilePage {
        let file = &mut self.files[id.0 as usize];
        let place = file.find(index).unwrap_or_else(|_| panic!("page {index} of file {} is a hole", id.0));
        let page = &mut file.pages[place].1;
        assert!(fits(*page), "page {index} of file {} is {page:?} and cannot become {becomes:?}", id.0);
        core::mem::replace(page, becomes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot(slot: u64) -> SwapEntry {
        SwapEntry { area: 0, slot }
    }

    /// One file whose pages 0..n are in slots 1..=n of area 0.
    fn swapped_file(pages: u64) -> (ShmemFiles, FileId) {
        let mut files = ShmemFiles::default();
        let file = files.add_file();
        for index in 0..pages {
            files.add_page(file, index);
            files.swap_out(file, index, slot(index + 1));
        }
        (files, file)
    }

    /// Brings all pages in by slot; everything that was looked at.
    fn by_slot(files: &mut ShmemFiles, pages: u64, search: OwnerSearch) -> SearchSteps {
        let mut steps = SearchSteps::default();
        for number in 1..=pages {
            let (owner, more) = files.find_owner(slot(number), search);
            let (file, index) = owner.unwrap();
            assert_eq!(files.swap_in(file, index), slot(number));
            steps += more;
        }
        steps
    }

    /// Brings all pages of a file in by batches.
    fn by_batches(files: &mut ShmemFiles, file: FileId, most: usize) -> SearchSteps {
        let mut steps = SearchSteps::default();
        let mut last = None;
        loop {
            let batch = files.next_batch(file, 0, last, most);
            steps += batch.steps;
            let Some(&(index, _)) = batch.found.last() else { return steps };
            for &(index, entry) in &batch.found {
                assert_eq!(files.swap_in(file, index), entry);
            }
            last = Some(index);
        }
    }

    #[test]
    fn t7a_locate_item_compares_half_of_the_square_and_batches_visit_each_entry_once() {
        let n = 1000;
        let (mut files, _) = swapped_file(n);
        let steps = by_slot(&mut files, n, OwnerSearch::LocateItem);
        assert_eq!((steps.visited, steps.lookups), (n * (n + 1) / 2, n));
        let (mut files, file) = swapped_file(n);
        let steps = by_batches(&mut files, file, BATCH_ENTRIES);
        assert_eq!((steps.visited, steps.restarts), (n, n.div_ceil(BATCH_ENTRIES as u64)));
        assert_eq!(files.swapped(file), 0);
        assert_eq!(files.check(), Ok(()));
    }

    #[test]
    fn gang_lookup_copies_what_it_looks_at_first() {
        let n = 1000;
        let (mut files, _) = swapped_file(n);
        let steps = by_slot(&mut files, n, OwnerSearch::GangLookup);
        assert_eq!(steps.visited, n * (n + 1) / 2);
        let lookups: u64 = (1..=n).map(|visited| visited.div_ceil(GANG_ENTRIES)).sum();
        assert_eq!(steps.lookups, lookups);
        assert!(steps.copied >= steps.visited && steps.copied < steps.visited + n * GANG_ENTRIES);
    }

    #[test]
    fn a_tag_saves_what_is_back_already_and_nothing_when_the_file_left_from_its_end() {
        let n = 1000;
        let (mut files, _) = swapped_file(n);
        assert_eq!(by_slot(&mut files, n, OwnerSearch::TaggedLookup).visited, n);

        let mut backward = ShmemFiles::default();
        let file = backward.add_file();
        for index in 0..n {
            backward.add_page(file, index);
            backward.swap_out(file, index, slot(n - index));
        }
        let mut plain = backward.clone();
        let tagged = by_slot(&mut backward, n, OwnerSearch::TaggedLookup);
        assert_eq!(tagged.visited, by_slot(&mut plain, n, OwnerSearch::GangLookup).visited);
    }

    #[test]
    fn swap_vectors_are_scanned_over_holes_too() {
        let mut files = ShmemFiles::default();
        let file = files.add_file();
        for index in [10, 50, 90] {
            files.add_page(file, index);
        }
        files.swap_out(file, 50, slot(7));
        let visited = |files: &mut ShmemFiles, search| files.find_owner(slot(7), search).1.visited;
        assert_eq!(visited(&mut files, OwnerSearch::SwapVectors), 51);
        assert_eq!(visited(&mut files, OwnerSearch::LocateItem), 2);
        let (nobody, steps) = files.find_owner(slot(8), OwnerSearch::SwapVectors);
        assert_eq!((nobody, steps.visited), (None, 91));
    }

    #[test]
    fn our_indirection_searches_nothing() {
        let n = 1000;
        let (mut files, _) = swapped_file(n);
        let steps = by_slot(&mut files, n, OwnerSearch::Indirection);
        assert_eq!(steps, SearchSteps { lookups: n, ..SearchSteps::default() });
    }

    #[test]
    fn locate_item_begins_at_the_file_of_the_last_hit() {
        let mut files = ShmemFiles::default();
        let [first, second] = [files.add_file(), files.add_file()];
        for (file, slots) in [(first, 0..10), (second, 10..20)] {
            for number in slots {
                files.add_page(file, number);
                files.swap_out(file, number, slot(number + 1));
            }
        }
        let visited = |files: &mut ShmemFiles, number, search| files.find_owner(slot(number), search).1.visited;
        assert_eq!(visited(&mut files, 12, OwnerSearch::SwapVectors), 10 + 12);
        assert_eq!(visited(&mut files, 12, OwnerSearch::LocateItem), 10 + 2);
        assert_eq!(visited(&mut files, 12, OwnerSearch::LocateItem), 2);
        assert!(files.swap_list().eq([second, first]));
    }

    #[test]
    fn t7b_an_entry_of_another_area_is_skipped_and_not_swapped_in() {
        let (mut files, file) = swapped_file(4);
        files.swap_in(file, 2);
        let elsewhere = SwapEntry { area: 1, slot: 3 };
        files.swap_out(file, 2, elsewhere);
        let batch = files.next_batch(file, 0, None, BATCH_ENTRIES);
        assert_eq!(batch.found, [(0, slot(1)), (1, slot(2)), (3, slot(4))]);
        assert_eq!(batch.steps.visited, 4);
        by_batches(&mut files, file, BATCH_ENTRIES);
        assert_eq!(files.page(file, 2), Some(FilePage::Swapped(elsewhere)));
        assert_eq!((files.swapped(file), files.check()), (1, Ok(())));
    }

    #[test]
    fn a_page_that_cannot_be_read_is_poisoned_for_ever() {
        let (mut files, file) = swapped_file(1);
        assert_eq!(files.poison(file, 0), slot(1));
        assert_eq!((files.page(file, 0), files.swapped(file)), (Some(FilePage::Poisoned), 0));
        assert_eq!(files.check(), Ok(()));
    }

    #[test]
    fn a_file_that_is_cut_off_gives_its_slots_back() {
        let (mut files, file) = swapped_file(5);
        files.swap_in(file, 3);
        assert_eq!(files.truncate(file, 2), [slot(3), slot(5)]);
        assert_eq!((files.swapped(file), files.page(file, 4)), (2, None));
        assert_eq!(files.truncate(file, 0).len(), 2);
        assert_eq!((files.swap_list().count(), files.check()), (0, Ok(())));
    }

    #[test]
    #[should_panic(expected = "slot 1 of area 0 has an owner already")]
    fn two_pages_never_share_a_slot() {
        let (mut files, file) = swapped_file(1);
        files.add_page(file, 1);
        files.swap_out(file, 1, slot(1));
    }

    #[test]
    fn the_checker_finds_books_that_differ() {
        let (files, file) = swapped_file(3);
        assert_eq!(files.check(), Ok(()));

        let mut counted = files.clone();
        counted.files[0].swapped = 2;
        assert_eq!(counted.check(), Err(ShmemViolation::Swapped { file, counted: 2, in_tree: 3 }));

        let mut unlisted = files.clone();
        unlisted.swap_list.clear();
        assert_eq!(unlisted.check(), Err(ShmemViolation::SwapList(file)));

        // A page that is in the page cache and in swap: its slot has an owner that the tree does not know.
        let mut both = files.clone();
        both.files[0].pages[1].1 = FilePage::Present;
        both.files[0].swapped = 2;
        assert_eq!(both.check(), Err(ShmemViolation::Owner(slot(2))));

        let mut shared = files;
        shared.files[0].pages[1].1 = FilePage::Swapped(slot(1));
        assert_eq!(shared.check(), Err(ShmemViolation::Owner(slot(1))));
    }

    /// The kernel's searches, done one entry at a time.
    fn searched(files: &ShmemFiles, entry: SwapEntry, search: OwnerSearch) -> SearchSteps {
        let mut steps = SearchSteps::default();
        for id in files.swap_list() {
            steps.files += 1;
            let pages = &files.files[id.0 as usize].pages;
            let mut found = false;
            match search {
                OwnerSearch::SwapVectors => {
                    for index in 0..pages.last().map_or(0, |&(index, _)| index + 1) {
                        steps.visited += 1;
                        found = files.page(id, index) == Some(FilePage::Swapped(entry));
                        if found {
                            break;
                        }
                    }
                }
                OwnerSearch::LocateItem => {
                    steps.lookups += 1;
                    for &(_, page) in pages {
                        steps.visited += 1;
                        found = page == FilePage::Swapped(entry);
                        if found {
                            break;
                        }
                    }
                }
                OwnerSearch::GangLookup | OwnerSearch::TaggedLookup => {
                    let tagged =
                        |page: &FilePage| search == OwnerSearch::GangLookup || matches!(page, FilePage::Swapped(_));
                    let pages: Vec<_> = pages.iter().filter(|(_, page)| tagged(page)).copied().collect();
                    for gang in pages.chunks(GANG_ENTRIES as usize) {
                        steps.lookups += 1;
                        steps.copied += gang.len() as u64;
                        let at = gang.iter().position(|&(_, page)| page == FilePage::Swapped(entry));
                        steps.visited += at.map_or(gang.len(), |at| at + 1) as u64;
                        found = at.is_some();
                        if found {
                            break;
                        }
                    }
                }
                OwnerSearch::Indirection => unreachable!("it searches nothing"),
            }
            if found {
                break;
            }
        }
        steps
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn model_what_is_counted_is_what_a_walk_looks_at(
            pages in prop::collection::vec((0u32..3, 0u64..60, any::<bool>()), 1..60),
            wanted in 1u64..60,
            back in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        ) {
            let mut files = ShmemFiles::default();
            for _ in 0..3 {
                files.add_file();
            }
            let mut next_slot = 1;
            let mut swapped = Vec::new();
            for (file, index, swap) in pages {
                let file = FileId(file);
                if files.page(file, index).is_none() {
                    files.add_page(file, index);
                    if swap {
                        files.swap_out(file, index, slot(next_slot));
                        swapped.push((file, index));
                        next_slot += 1;
                    }
                }
            }
            for index in back {
                if !swapped.is_empty() {
                    let (file, index) = swapped.swap_remove(index.index(swapped.len()));
                    files.swap_in(file, index);
                }
            }
            prop_assert_eq!(files.check(), Ok(()));
            for search in [
                OwnerSearch::SwapVectors,
                OwnerSearch::GangLookup,
                OwnerSearch::TaggedLookup,
                OwnerSearch::LocateItem,
            ] {
                let expected = searched(&files, slot(wanted), search);
                let (owner, steps) = files.find_owner(slot(wanted), search);
                prop_assert_eq!(owner, files.owner(slot(wanted)));
                prop_assert_eq!(steps, expected, "{:?}", search);
            }
            for file in files.swap_list().collect::<Vec<_>>() {
                let expected = files.swapped(file);
                let before = files.swapped(file);
                by_batches(&mut files, file, 4);
                prop_assert_eq!(before - files.swapped(file), expected);
            }
            prop_assert_eq!(files.check(), Ok(()));
        }
    }
}
