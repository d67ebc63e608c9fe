//! Reading ahead: what a stream will want next is brought in before it is asked for.
//!
//! A stream whose windows have grown to the largest size gets its next pages in *chunks*, which go to the program at once:
//! while it works in one chunk, the next is on its way, and it meets no fault. So that it is seen to come along, one page
//! of each chunk, the first, is its *marker* (the kernel's readahead flag): it rests in the swap cache, and the fault that
//! finds it there asks for the next chunk, twice as large, up to a limit. A stream that ends has at most two chunks too
//! many, which is about what it has used before.

use crate::core::Core;
use crate::fault::{LoadPlan, MAX_WINDOW};
use crate::page_table::PageState;
use crate::units::PageNumber;

/// Pages of the first chunk of a stream.
const FIRST_CHUNK: u32 = 32;

/// How far ahead of its program one stream is.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Ahead {
    /// Pages of the chunk asked for last; 0: none yet.
    chunk: u32,
    /// The page to read next, and how many pages from there on are asked for.
    next: u64,
    left: u32,
    /// How many steps from `next` on the next marker is to be.
    marker_in: Option<u32>,
    /// The last marker, while the program has not come to it.
    marker: Option<u64>,
    /// Pages read since that marker, and between it and the one before.
    read: (u32, u32),
}

/// Pages to read ahead, all of one stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    /// The first of them.
    pub page: u64,
    /// From one to the next.
    pub step: i64,
    /// How many.
    pub pages: u32,
    /// The first is to be a marker.
    pub marker: bool,
}

impl Ahead {
    /// The first chunk begins at `page`. Returns its pages.
    pub fn begin(&mut self, page: u64, max: u32) -> u32 {
        let chunk = FIRST_CHUNK.min(max);
        *self = Self { chunk, next: page, left: chunk, marker_in: Some(0), ..Self::default() };
        chunk
    }

    pub fn is_marker(&self, page: u64) -> bool {
        self.marker == Some(page)
    }

    /// The program has come to the marker. Returns the pages of the chunk that is asked for now; none while an earlier one
    /// has not been begun.
    pub fn passed_marker(&mut self, max: u32) -> u32 {
        self.marker = None;
        if self.marker_in.is_some() {
            return 0;
        }
        self.chunk = (self.chunk * 2).min(max);
        self.marker_in = Some(self.left);
        self.left += self.chunk;
        self.chunk
    }

    /// Pages that the program has gone through since the last call, or will in a moment.
    pub fn take_hits(&mut self) -> u32 {
        let (read, before) = self.read;
        self.read = (0, read);
        before
    }

    /// How many steps from the next page to read `page` is, if it is asked for.
    pub fn steps_to(&self, page: u64, step: i64) -> Option<u32> {
        let distance = page.wrapping_sub(self.next) as i64;
        let steps = (distance % step == 0).then_some(distance / step)?;
        u32::try_from(steps).ok().filter(|&steps| steps < self.left)
    }

    /// What to read next.
    pub fn stretch(&self, step: i64) -> Option<Stretch> {
        let most = self.left.min(MAX_WINDOW as u32);
        let (marker, pages) = match self.marker_in {
            Some(0) => (true, most),
            Some(steps) => (false, most.min(steps)),
            None => (false, most),
        };
        (pages > 0).then_some(Stretch { page: self.next, step, pages, marker })
    }

    /// The first `pages` of a stretch are being read; its first page is the marker, if it was to be.
    pub fn reading(&mut self, stretch: &Stretch, pages: u32) {
        if stretch.marker {
            self.marker = Some(stretch.page);
            self.marker_in = None;
        }
        self.read.0 += pages;
        self.advance(stretch.step, pages);
    }

    /// The program has fetched the next `pages` by itself, which were asked for. The page after them is a marker, if one
    /// of them was to be. Whether there is a page after them.
    pub fn overtaken(&mut self, step: i64, pages: u32) -> bool {
        let due = self.marker_in.is_some_and(|steps| steps < pages);
        self.advance(step, pages.min(self.left));
        if due {
            self.marker_in = (self.left > 0).then_some(0);
        }
        self.left > 0
    }

    fn advance(&mut self, step: i64, pages: u32) {
        self.next = self.next.wrapping_add_signed(step * i64::from(pages));
        self.left -= pages;
        self.marker_in = self.marker_in.map(|steps| steps.saturating_sub(pages));
    }

    /// Nothing more is asked for. Returns where that ends.
    pub fn end(&mut self) -> u64 {
        self.left = 0;
        self.marker_in = None;
        self.next
    }
}

impl Core {
    /// Whether [`plan_ahead`](Self::plan_ahead) may have something.
    pub fn wants_ahead(&self) -> bool {
        self.readahead.wants_ahead()
    }

    /// Pages to read that no thread waits for; each ends in one of the `load_…` verbs. All but a marker go to the program.
    pub fn plan_ahead(&mut self) -> Option<LoadPlan> {
        loop {
            let (stream, stretch) = self.readahead.stretch()?;
            let page = |index: u32| PageNumber(stretch.page).stepped(stretch.step, index);
            let mut pages = 0;
            while pages < stretch.pages && page(pages).is_some_and(|page| self.is_swapped(page)) {
                pages += 1;
            }
            if pages == 0 {
                self.readahead.end_ahead(stream);
                continue;
            }
            self.readahead.reading_ahead(stream, &stretch, pages);
            let mut block = None;
            if stretch.marker && matches!(self.pages.get(PageNumber(stretch.page)), Some(PageState::Swapped { .. })) {
                block = self.cache.take_block(1);
            }
            // A marker that cannot rest in the swap cache stays where it is.
            let skipped = u32::from(stretch.marker && block.is_none());
            if pages == skipped {
                continue;
            }
            let first = page(skipped).expect("looked at above");
            let last = page(pages - 1).expect("looked at above");
            return Some(self.load_ahead(first, last, stretch.step, block));
        }
    }
}
