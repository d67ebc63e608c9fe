//! Lists of pages that a page may leave at any place: 8 bytes for each page that the list has at its longest.
//!
//! The pages of a list lie side by side in a ring, in the order in which they came, and each page has a word with its place
//! there. A page that leaves, or moves to the front, only changes its word: the entry that it leaves behind no longer agrees
//! with it, and is passed over. So a change waits for memory at that page alone, where linked pages would have it wait for
//! their neighbours, too; and what is at the back can be looked at ahead, because it is known where it lies.

use alloc::vec::Vec;

use super::PageIndex;

/// Words of a page for its places in lists. Each list needs one of its own: what a page has left behind in one list would
/// pass for its place in another.
pub(crate) type Places = [u32; 2];

/// The page is not in the list that uses this word.
pub(crate) const NOWHERE: u32 = 0;
/// What the word of a page that is not in the list may also be, for its owner's own use: no list has so many entries.
pub(crate) const ELSEWHERE: u32 = u32::MAX;

/// Entries of the smallest ring.
const ENTRIES_MIN: usize = 16;

/// One list, which keeps the place of each of its pages in word number `WORD`.
#[derive(Clone, Default, Debug)]
pub(crate) struct List<const WORD: usize> {
    ring: Vec<PageIndex>,
    /// Index of the oldest entry.
    oldest: usize,
    /// Entries, from there on; some are left behind.
    entries: usize,
    pages: usize,
}

impl<const WORD: usize> List<WORD> {
    /// Pages in it.
    pub fn len(&self) -> usize {
        self.pages
    }

    /// Bytes of its entries.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.ring)
    }

    /// `page` is not in this list.
    #[inline]
    pub fn push_front(&mut self, places: &mut [Places], page: PageIndex) {
        if self.entries == self.ring.len() {
            self.make_room(places);
        }
        let index = self.index(self.entries);
        self.ring[index] = page;
        places[page as usize][WORD] = index as u32 + 1;
        self.entries += 1;
        self.pages += 1;
    }

    /// `page` is in this list.
    #[inline]
    pub fn remove(&mut self, places: &mut [Places], page: PageIndex) {
        places[page as usize][WORD] = NOWHERE;
        self.pages -= 1;
    }

    /// `page` is in this list.
    #[inline]
    pub fn move_to_front(&mut self, places: &mut [Places], page: PageIndex) {
        if places[page as usize][WORD] as usize != self.index(self.entries - 1) + 1 {
            self.remove(places, page);
            self.push_front(places, page);
        }
    }

    /// The oldest page.
    #[inline]
    pub fn back(&mut self, places: &[Places]) -> Option<PageIndex> {
        while self.entries > 0 {
            let page = self.ring[self.oldest];
            if places[page as usize][WORD] as usize == self.oldest + 1 {
                return Some(page);
            }
            self.drop_oldest();
        }
        None
    }

    /// Takes out the oldest page.
    #[inline]
    pub fn pop_back(&mut self, places: &mut [Places]) -> Option<PageIndex> {
        let page = self.back(places)?;
        self.drop_oldest();
        self.remove(places, page);
        Some(page)
    }

    /// Whether `page`, which is in this list, is the oldest.
    #[inline]
    pub fn is_back(&mut self, places: &[Places], page: PageIndex) -> bool {
        self.back(places) == Some(page)
    }

    /// Looks at the places of the `count` oldest entries, see [`Replacement::look_ahead`](super::Replacement::look_ahead).
    pub fn glance_at_oldest(&self, places: &[Places], count: usize) {
        let (wrapped, straight) = self.ring.split_at(self.oldest);
        let oldest = straight.iter().chain(wrapped).take(count.min(self.entries));
        super::glance(places, oldest, |words| words[WORD]);
    }

    /// Index in the ring of the entry that came `behind` after the oldest.
    #[inline]
    fn index(&self, behind: usize) -> usize {
        let index = self.oldest + behind;
        if index < self.ring.len() { index } else { index - self.ring.len() }
    }

    #[inline]
    fn drop_oldest(&mut self) {
        self.oldest = self.index(1);
        self.entries -= 1;
    }

    /// Drops what is left behind. Where that is little, the ring becomes twice as long as its pages need.
    #[cold]
    fn make_room(&mut self, places: &mut [Places]) {
        if 2 * self.pages >= self.ring.len() {
            // What is put behind its end must follow what came last.
            let was_oldest = core::mem::take(&mut self.oldest);
            self.ring.rotate_left(was_oldest);
            self.keep_pages(places, was_oldest);
            let entries = (2 * self.pages).max(ENTRIES_MIN).max(self.ring.len());
            assert!(entries < ELSEWHERE as usize, "a list of {} pages is too long", self.pages);
            self.ring.reserve_exact(entries - self.ring.len());
            self.ring.resize(entries, 0);
        } else {
            self.keep_pages(places, 0);
        }
    }

    /// Moves the entries that count together, the oldest stays where it is. The ring was turned by `turned` entries since
    /// places were written.
    fn keep_pages(&mut self, places: &mut [Places], turned: usize) {
        let mut kept = 0;
        for behind in 0..self.entries {
            let index = self.index(behind);
            let page = self.ring[index];
            let place = &mut places[page as usize][WORD];
            if *place as usize == (index + turned) % self.ring.len() + 1 {
                let index = self.index(kept);
                self.ring[index] = page;
                *place = index as u32 + 1;
                kept += 1;
            }
        }
        self.entries = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;
    use alloc::vec;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize, PageIndex),
        Remove(usize, PageIndex),
        Lift(usize, PageIndex),
        Pop(usize),
        Mark(PageIndex),
    }

    const PAGES: PageIndex = 40;

    fn step() -> impl Strategy<Value = Step> {
        let any = || (0..2usize, 0..PAGES);
        prop_oneof![
            4 => any().prop_map(|(list, page)| Step::Push(list, page)),
            1 => any().prop_map(|(list, page)| Step::Remove(list, page)),
            6 => any().prop_map(|(list, page)| Step::Lift(list, page)),
            2 => (0..2usize).prop_map(Step::Pop),
            1 => (0..PAGES).prop_map(Step::Mark),
        ]
    }

    /// What a step asks of each list.
    macro_rules! each {
        ($which:expr, $lists:expr, $list:ident => $work:expr) => {
            match $which {
                0 => {
                    let $list = &mut $lists.0;
                    $work
                }
                _ => {
                    let $list = &mut $lists.1;
                    $work
                }
            }
        };
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        /// Two lists with the same pages, against plain queues.
        #[test]
        fn model_lists_behave_like_plain_queues(steps in prop::collection::vec(step(), 1..200)) {
            let mut places = vec![[NOWHERE; 2]; PAGES as usize];
            let mut lists = (List::<0>::default(), List::<1>::default());
            let mut plain = [VecDeque::new(), VecDeque::new()];
            for step in steps {
                match step {
                    Step::Push(which, page) if !plain[which].contains(&page) => {
                        each!(which, lists, list => list.push_front(&mut places, page));
                        plain[which].push_front(page);
                    }
                    Step::Remove(which, page) if plain[which].contains(&page) => {
                        each!(which, lists, list => list.remove(&mut places, page));
                        plain[which].retain(|&other| other != page);
                    }
                    Step::Lift(which, page) if plain[which].contains(&page) => {
                        each!(which, lists, list => list.move_to_front(&mut places, page));
                        plain[which].retain(|&other| other != page);
                        plain[which].push_front(page);
                    }
                    Step::Pop(which) => {
                        let popped = each!(which, lists, list => list.pop_back(&mut places));
                        prop_assert_eq!(popped, plain[which].pop_back());
                    }
                    Step::Mark(page) if !plain[1].contains(&page) => places[page as usize][1] = ELSEWHERE,
                    _ => {}
                }
                for which in 0..2 {
                    let (pages, back, entries) = each!(which, lists, list => {
                        list.glance_at_oldest(&places, plain[which].len() + 3);
                        (list.len(), list.back(&places), list.ring.len())
                    });
                    prop_assert_eq!((pages, back), (plain[which].len(), plain[which].back().copied()));
                    prop_assert!(entries <= (2 * PAGES as usize).max(ENTRIES_MIN));
                    let is_somewhere = |page: PageIndex| ![NOWHERE, ELSEWHERE].contains(&places[page as usize][which]);
                    prop_assert!((0..PAGES).all(|page| is_somewhere(page) == plain[which].contains(&page)));
                }
            }
        }
    }

    #[test]
    fn a_ring_takes_at_most_8_bytes_a_page_however_often_pages_move() {
        let mut places = vec![[NOWHERE; 2]; 10_000];
        let mut list = List::<1>::default();
        for page in 0..10_000 {
            list.push_front(&mut places, page);
            (0..page).step_by(1000).for_each(|lifted| list.move_to_front(&mut places, lifted));
            assert!(list.bytes() <= 8 * list.len().max(ENTRIES_MIN), "{} bytes for {page} pages", list.bytes());
        }
    }
}
