//! Pages by small numbers, in the order in which they are first touched.

use std::hint::black_box;

use rustc_hash::FxHashMap;

use crate::trace::Access;

/// The numbers given so far.
#[derive(Default)]
pub struct PageNames {
    /// Pages of process 0, if they are few and small: an array is quicker than a map.
    near: Vec<u32>,
    far: FxHashMap<(u32, u64), u32>,
    next: u32,
}

/// Page numbers below this lie in the array: 16 million pages, 64 MiB.
const NEAR: u64 = 1 << 24;
const NONE: u32 = u32::MAX;

impl PageNames {
    /// The number of the page of `access`.
    ///
    /// # Panics
    /// When there are more than 2^32 - 1 distinct pages.
    #[inline]
    pub fn number(&mut self, access: Access) -> u32 {
        // The array may not be much larger than what is in it.
        let near = access.process == 0 && access.page < NEAR && access.page <= 4 * u64::from(self.next) + 1024;
        let place = if near {
            if self.near.len() <= access.page as usize {
                self.near.resize(access.page as usize + 1, NONE);
            }
            &mut self.near[access.page as usize]
        } else {
            self.far.entry((access.process, access.page)).or_insert(NONE)
        };
        if *place != NONE {
            return *place;
        }
        // It may have been far when it was touched first.
        let number = match self.far.get(&(access.process, access.page)) {
            Some(&number) if near => number,
            _ => {
                self.next = self.next.checked_add(1).expect("fewer than 2^32 distinct pages");
                self.next - 1
            }
        };
        match near {
            true => self.near[access.page as usize] = number,
            false => *self.far.get_mut(&(access.process, access.page)).expect("put in above") = number,
        }
        number
    }

    /// `accesses` are numbered next: looks at their pages together, see
    /// [`Replacement::look_ahead`](uswap_core::replacement::Replacement::look_ahead).
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
        self.near.len() * size_of::<u32>() + self.far.len() * (size_of::<((u32, u64), u32)>() + 1)
    }
}

/// A whole trace by numbers, and how many distinct pages there are.
pub fn numbered(accesses: impl Iterator<Item = Access>) -> (Vec<u32>, u32) {
    let mut names = PageNames::default();
    let trace = accesses.map(|access| names.number(access)).collect();
    (trace, names.len())
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
}
