//! A queue of pages, 4 bytes each, for policies that take pages out at its old end only.
//!
//! Pages lie side by side in the order in which they came: what leaves next, or goes round once more, is read in that order,
//! where a linked list would wait for memory at every page. A page that is forgotten stays where it is until its turn comes;
//! should it be queued again meanwhile, the older entry is the one that does not count.

use alloc::collections::{BTreeMap, VecDeque};

use super::PageIndex;

/// The queue, newest page in front.
#[derive(Clone, Default, Debug)]
pub(crate) struct Queue {
    entries: VecDeque<PageIndex>,
    /// Entries that do not count, by page.
    gone: BTreeMap<PageIndex, u32>,
    gone_entries: usize,
}

impl Queue {
    /// Pages in it.
    pub fn len(&self) -> usize {
        self.entries.len() - self.gone_entries
    }

    /// `page` is not in it.
    #[inline]
    pub fn push_front(&mut self, page: PageIndex) {
        self.entries.push_front(page);
    }

    /// The oldest page.
    #[inline]
    pub fn pop_back(&mut self) -> Option<PageIndex> {
        loop {
            let page = self.entries.pop_back()?;
            if self.gone_entries == 0 || !self.drop_gone(page) {
                return Some(page);
            }
        }
    }

    /// The `count` oldest entries, or all, oldest first, to look at what is kept of their pages ahead.
    #[inline]
    pub fn oldest(&self, count: usize) -> impl Iterator<Item = &PageIndex> {
        self.entries.iter().rev().take(count)
    }

    /// `page`, which is in it, is so no more.
    pub fn forget(&mut self, page: PageIndex) {
        *self.gone.entry(page).or_default() += 1;
        self.gone_entries += 1;
        // They may take as much room as the others, not more.
        if self.gone_entries > self.entries.len() / 2 {
            let Self { entries, gone, .. } = self;
            let mut kept = VecDeque::with_capacity(entries.len() - self.gone_entries);
            while let Some(page) = entries.pop_back() {
                match gone.get_mut(&page) {
                    Some(count) if *count > 0 => *count -= 1,
                    _ => kept.push_front(page),
                }
            }
            *self = Self { entries: kept, ..Self::default() };
        }
    }

    /// Bytes of its entries.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<PageIndex>() + self.gone.len() * size_of::<(PageIndex, u32)>()
    }

    /// Whether the oldest entry of `page`, which was just taken out, does not count.
    #[cold]
    fn drop_gone(&mut self, page: PageIndex) -> bool {
        let Some(count) = self.gone.get_mut(&page) else { return false };
        *count -= 1;
        if *count == 0 {
            self.gone.remove(&page);
        }
        self.gone_entries -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Push(PageIndex),
        Pop,
        Rotate,
        Forget(PageIndex),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0u32..12).prop_map(Step::Push),
            2 => Just(Step::Pop),
            1 => Just(Step::Rotate),
            2 => (0u32..12).prop_map(Step::Forget),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn model_it_behaves_like_a_plain_queue(steps in prop::collection::vec(step(), 1..80)) {
            let (mut queue, mut plain) = (Queue::default(), VecDeque::new());
            for step in steps {
                match step {
                    Step::Push(page) if !plain.contains(&page) => {
                        queue.push_front(page);
                        plain.push_front(page);
                    }
                    Step::Forget(page) if plain.contains(&page) => {
                        queue.forget(page);
                        plain.retain(|&other| other != page);
                        prop_assert!(queue.entries.len() <= 2 * plain.len());
                    }
                    Step::Rotate => {
                        let oldest = queue.pop_back();
                        prop_assert_eq!(oldest, plain.pop_back());
                        if let Some(page) = oldest {
                            queue.push_front(page);
                            plain.push_front(page);
                        }
                    }
                    Step::Pop => prop_assert_eq!(queue.pop_back(), plain.pop_back()),
                    Step::Push(_) | Step::Forget(_) => {}
                }
                prop_assert_eq!(queue.len(), plain.len());
            }
        }
    }
}
