//! Pages by small numbers, in the order in which they are first touched.

use std::hash::BuildHasher;
use std::hint::black_box;

use hashbrown::HashTable;
use rustc_hash::{FxBuildHasher, FxHashMap};
use uswap_core::PageNumber;

use crate::trace::Access;

/// The numbers given so far.
#[derive(Default)]
pub struct PageNames {
    /// Pages of process 0, if they are few and small: an array is quicker than a map.
    near: Vec<u32>,
    /// All others, in the order in which they came.
    far: Vec<Far>,
    /// Indexes of `far`, by page.
    far_indexes: HashTable<u32>,
    next: u32,
}

/// A page that is not near, 16 bytes.
#[derive(Clone, Copy)]
struct Far {
    page: u64,
    process: u32,
    number: u32,
}

/// Page numbers below this lie in the array: 16 million pages, 64 MiB.
const NEAR: u64 = 1 << 24;
const NONE: u32 = u32::MAX;

fn hash(process: u32, page: u64) -> u64 {
    FxBuildHasher.hash_one((process, page))
}

impl PageNames {
    /// The number of the page of `access`.
    ///
    /// # Panics
    /// When there are more than 2^32 - 1 distinct pages.
    #[inline]
    pub fn number(&mut self, access: Access) -> u32 {
        let Access { process, page, .. } = access;
        // The array may not be much larger than what is in it.
        if process != 0 || page >= NEAR || page > 4 * u64::from(self.next) + 1024 {
            return self.far_number(process, page);
        }
        if self.near.len() <= page as usize {
            self.near.resize(page as usize + 1, NONE);
        }
        if self.near[page as usize] == NONE {
            // It may have been far when it was touched first.
            self.near[page as usize] = match self.find_far(process, page) {
                Some(number) => number,
                None => self.take_next(),
            };
        }
        self.near[page as usize]
    }

    fn find_far(&self, process: u32, page: u64) -> Option<u32> {
        let is_it = |&index: &u32| {
            let far = &self.far[index as usize];
            (far.process, far.page) == (process, page)
        };
        self.far_indexes.find(hash(process, page), is_it).map(|&index| self.far[index as usize].number)
    }

    fn far_number(&mut self, process: u32, page: u64) -> u32 {
        if let Some(number) = self.find_far(process, page) {
            return number;
        }
        let number = self.take_next();
        let index = self.far.len() as u32;
        self.far.push(Far { page, process, number });
        let Self { far, far_indexes, .. } = self;
        let hash_of = |&index: &u32| hash(far[index as usize].process, far[index as usize].page);
        far_indexes.insert_unique(hash(process, page), index, hash_of);
        number
    }

    fn take_next(&mut self) -> u32 {
        self.next = self.next.checked_add(1).expect("fewer than 2^32 distinct pages");
        self.next - 1
    }

    /// `accesses` are numbered next: looks at their pages together, see
    /// [`Replacement::look_ahead`](uswap_policy::Replacement::look_ahead).
    pub fn look_ahead(&self, accesses: &[Access]) {
        let numbers = accesses.iter().filter_map(|access| self.near.get(usize::try_from(access.page).ok()?));
        black_box(numbers.fold(0, |seen, &number| seen | number));
    }

    /// Distinct pages.
    pub fn len(&self) -> u32 {
        self.next
    }

    /// Whether no page was touched.
    pub fn is_empty(&self) -> bool {
        self.next == 0
    }

    /// Bytes of what is kept.
    pub fn bytes(&self) -> usize {
        self.near.len() * size_of::<u32>() + self.far.len() * size_of::<Far>() + self.far_indexes.allocation_size()
    }
}

/// A whole trace by numbers, and how many distinct pages there are.
pub fn numbered(accesses: impl Iterator<Item = Access>) -> (Vec<u32>, u32) {
    let mut names = PageNames::default();
    let trace = accesses.map(|access| names.number(access)).collect();
    (trace, names.len())
}

/// Bits of an address that lie in one piece: 1 GiB.
const PIECE_BITS: u32 = 18;

/// A whole trace by numbers, and for each number where its page lies. Processes get addresses of their own.
pub fn placed(accesses: impl Iterator<Item = Access>) -> (Vec<u32>, Vec<PageNumber>) {
    let (mut names, mut places) = (PageNames::default(), Vec::new());
    let mut pieces: FxHashMap<(u32, u64), u64> = FxHashMap::default();
    let number = |access: Access| {
        let number = names.number(access);
        if number as usize == places.len() {
            let next = pieces.len() as u64;
            let piece = *pieces.entry((access.process, access.page >> PIECE_BITS)).or_insert(next);
            places.push(PageNumber(piece << PIECE_BITS | access.page & ((1 << PIECE_BITS) - 1)));
        }
        number
    };
    let trace = accesses.map(number).collect();
    (trace, places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::Chance;
    use std::collections::BTreeMap;

    #[test]
    fn every_page_keeps_the_number_of_its_first_touch() {
        let (mut names, mut plain, mut chance) = (PageNames::default(), BTreeMap::new(), Chance::new(4));
        for _ in 0..50_000 {
            let span = [100, 5000, 1 << 30][chance.index(3)];
            let page = chance.below(span);
            let access = Access { process: chance.below(2) as u32, page, write: false };
            let next = plain.len() as u32;
            let expected = *plain.entry((access.process, page)).or_insert(next);
            assert_eq!(names.number(access), expected);
        }
        assert_eq!(names.len() as usize, plain.len());
    }

    #[test]
    fn neighbours_stay_neighbours_and_processes_apart() {
        let access = |(process, page)| Access { process, page, write: false };
        let (trace, places) = placed([(0, 7), (1, 7), (0, 8), (0, 1 << 30), (0, 7)].map(access).into_iter());
        assert_eq!(trace, [0, 1, 2, 3, 0]);
        assert_eq!(places[2].0, places[0].0 + 1);
        assert_eq!(places.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    }
}
