//! Events: what the program itself does to adopted memory.
//!
//! The engine hands an event in before any fault that was read after it, while no page is being moved, and in the order
//! that `event_order` tells.

use crate::core::Core;
use crate::defects::{Sabotage, is_on};
use crate::event_order::Event;
use crate::page_table::PageState;
use crate::reclaim::order::Came;
use crate::swap_cache::FrameUse;
use crate::units::{PageNumber, PageRange};

impl Core {
    /// Takes `range` in: from here on its faults are answered by the books.
    pub fn adopt(&mut self, range: PageRange) {
        self.pages.adopt(range);
    }

    /// Applies what the program did.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Removed(range) => self.removed(range),
            Event::Unmapped(range) => self.unmapped(range),
            Event::Remapped { from, to, .. } => self.remapped(from.start, to, from.pages),
            Event::Uncopied(range) => self.uncopied(range),
        }
    }

    /// Stored copies of resident pages may be of other content: they count no more.
    fn uncopied(&mut self, range: PageRange) {
        for number in range.start.0..range.end().0 {
            let page = PageNumber(number);
            if let Some(PageState::Resident { clean: Some(entry) }) = self.pages.get(page) {
                self.pages.set(page, PageState::Resident { clean: None });
                self.drop_clean(Some(entry));
            }
        }
    }

    /// madvise(MADV_DONTNEED, MADV_FREE): the content is given up, the memory stays.
    pub fn removed(&mut self, range: PageRange) {
        self.pages.note_discarded(range);
        self.discards.note(range);
        if !is_on(Sabotage::DiscardIgnored) {
            self.discard_all(range);
            self.pages.prune_all(range);
            self.sweep();
        }
    }

    /// What is queued may be of memory that has gone.
    fn sweep(&mut self) {
        let known = self.pages.known_pages();
        self.eviction.order.sweep(&mut self.pages, known);
    }

    /// To be called now and then: the kernel has dropped by now what was discarded before this was last called.
    pub fn discards_grow_old(&mut self) {
        self.discards.grow_old();
    }

    /// Of `range`, pages may disappear at any time, and then are zeros: madvise(MADV_FREE) before the memory was adopted.
    /// What is there still has its content.
    pub fn given_up_lazily(&mut self, range: PageRange) {
        if range.pages > 0 {
            self.pages.note_discarded(range);
        }
    }

    fn discard_all(&mut self, mut range: PageRange) {
        while let Some((page, state)) = self.pages.take_known(&mut range) {
            self.discard(page, state);
        }
    }

    /// munmap and the like: content and memory are given up.
    pub fn unmapped(&mut self, range: PageRange) {
        self.discards.forget(range);
        self.manages_no_more(range);
    }

    /// `range` is managed no more, and nothing of it is swapped out. It may be mapped still, and the kernel may be about to drop pages of
    /// it: what was discarded of late is remembered.
    pub fn manages_no_more(&mut self, range: PageRange) {
        self.discard_all(range);
        self.pages.forget(range);
        self.sweep();
    }

    /// Nothing is mapped at `range` any more, as far as the kernel's maps tell. They may run ahead of the events: what has
    /// content stays until an event tells where it went.
    pub fn let_go_untouched(&mut self, range: PageRange) {
        let mut at = range.start;
        while at < range.end() {
            let rest = PageRange { start: at, pages: range.end().0 - at.0 };
            let known = self.pages.known(rest).next().map_or(range.end(), |(page, _)| page);
            self.pages.forget(PageRange { start: at, pages: known.0 - at.0 });
            at = known.plus(1);
        }
    }

    /// How often memory was moved.
    pub fn moves(&self) -> u64 {
        self.counts.moves
    }

    /// mremap: what was at `from` is at `to`. The old range is given up only when its unmapping is reported.
    pub fn remapped(&mut self, from: PageNumber, to: PageNumber, pages: u64) {
        let (mut source, target) = (PageRange { start: from, pages }, PageRange { start: to, pages });
        self.counts.moves += 1;
        if is_on(Sabotage::RemapHalf) {
            source.pages = pages.div_ceil(2);
        }
        self.unmapped(target);
        self.pages.adopt(target);
        if self.pages.was_any_discarded(source) {
            self.pages.note_discarded(target);
        }
        while let Some((page, state)) = self.pages.take_known(&mut source) {
            let new = PageNumber(page.0 - from.0 + to.0);
            let state = match state {
                PageState::InFrame { frame } => {
                    if !is_on(Sabotage::FrameOwnerStale) {
                        self.cache.frame_mut(frame).owner = Some(new);
                    }
                    state
                }
                // The swap-in will find that nobody waits at the old address, and end.
                PageState::ReadingIn { entry, .. } => {
                    self.counts.swapped_pages += 1;
                    entry.map_or(PageState::SwappedZero, |entry| PageState::Swapped { entry })
                }
                other => other,
            };
            self.pages.set(new, state);
            if matches!(state, PageState::Resident { .. }) {
                self.note_resident(new, Came::Unasked);
            }
        }
    }

    /// What `page` had, by its `state` before it became `Untouched`, is given up.
    fn discard(&mut self, page: PageNumber, state: PageState) {
        match state {
            PageState::Resident { clean } => self.drop_clean(clean),
            PageState::Swapped { entry } => {
                self.counts.swapped_pages -= 1;
                self.let_go(entry);
            }
            PageState::SwappedZero => self.counts.swapped_pages -= 1,
            // Pinned by the swap-in: it goes when that ends.
            PageState::ReadingIn { entry: Some(entry), .. } => self.let_go(entry),
            PageState::ReadingIn { entry: None, .. } | PageState::Poisoned | PageState::Untouched => {}
            PageState::InFrame { frame } => {
                let record = *self.cache.frame(frame);
                self.drop_clean(record.clean);
                let record = self.cache.frame_mut(frame);
                record.clean = None;
                record.owner = None;
                match record.state {
                    FrameUse::Cached => self.cache.release(frame),
                    // Whoever stores it finds no owner and releases it.
                    FrameUse::Writing => {}
                    other => panic!("{page:?} was discarded while its frame was {other:?}"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::CoreConfig;

    #[test]
    fn what_has_content_is_not_let_go_before_its_event() {
        let range = |start, pages| PageRange { start: PageNumber(start), pages };
        let mut core = Core::new(CoreConfig {
            frame_blocks: 4,
            area_slots: alloc::vec::Vec::new(),
            window_max: 16,
            ahead_max: 0,
            ..CoreConfig::default()
        });
        core.adopt(range(160, 32));
        core.found_present(range(170, 2));
        core.let_go_untouched(range(160, 30));
        let left: alloc::vec::Vec<PageRange> = core.pages().adopted_ranges().collect();
        assert_eq!(left, [range(170, 2), range(190, 2)]);
        assert!(core.is_resident(PageNumber(171)));
        // The event comes late, and finds everything.
        core.remapped(PageNumber(160), PageNumber(320), 16);
        core.unmapped(range(160, 16));
        assert!(core.is_resident(PageNumber(330)) && core.is_resident(PageNumber(331)));
    }
}
