//! Readahead: how many pages a fault brings along, and which.
//!
//! Streams are found by their faults alone: forwards, backwards, or with any stride up to `STRIDE_MAX`. Two neighbouring
//! faults make a stream, or three at equal distances; a fault right where a known stream goes on doubles its window; any
//! other fault stands alone and brings one page. Several streams live side by side; the one that was idle longest makes
//! room. A window is mapped whole, so it must be likely to be used.

use crate::units::PageNumber;

/// Streams, and faults that may become one, followed at a time.
const STREAMS: usize = 16;
/// Pages between two faults of one stream. Further apart, faults of different streams are too easily taken for one.
const STRIDE_MAX: u64 = 64;

#[derive(Clone, Copy, Default)]
struct Stream {
    /// Where the next fault is expected; of a fault that stands alone: where it was.
    page: u64,
    /// From page to page; 0 for a fault that stands alone.
    step: i64,
    window: u32,
    /// Pages that the last window brought along.
    along: u32,
    /// 0: not in use.
    last_used: u64,
}

/// Pages to bring in: the faulting one, and from there on every `step`th, `pages` in all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Distance from one page to the next; never 0.
    pub step: i64,
    /// How many pages, the faulting one among them.
    pub pages: u32,
    /// Pages that the stream's window before brought along: the program is known to have passed them.
    pub hits: u32,
}

impl Window {
    /// The page `index` steps after the faulting one; `None` beyond either end of what can be addressed.
    pub fn page(&self, faulting: PageNumber, index: u32) -> Option<PageNumber> {
        faulting.0.checked_add_signed(self.step * i64::from(index)).map(PageNumber)
    }

    /// How many pages follow the faulting one side by side.
    pub fn after(&self) -> u32 {
        if self.step == 1 { self.pages - 1 } else { 0 }
    }
}

/// The streams.
pub struct Readahead {
    streams: [Stream; STREAMS],
    clock: u64,
    max: u32,
}

impl Readahead {
    /// Windows are at most `max` pages; 1 turns readahead off.
    pub fn new(max: u32) -> Self {
        Self { streams: [Stream::default(); STREAMS], clock: 0, max: max.max(1) }
    }

    /// Window for a fault at `page`.
    pub fn window(&mut self, page: PageNumber) -> Window {
        self.clock += 1;
        let page = page.0;
        let (stream, hits) = match self.known(page).or_else(|| self.recognise(page)) {
            Some(at) => {
                let stream = &mut self.streams[at];
                stream.window = (stream.window * 2).min(self.max);
                let hits = core::mem::take(&mut stream.along);
                (stream, hits)
            }
            None => {
                let oldest = self.streams.iter_mut().min_by_key(|stream| stream.last_used).expect("there are streams");
                *oldest = Stream { page, step: 0, window: 1, along: 0, last_used: 0 };
                (oldest, 0)
            }
        };
        stream.last_used = self.clock;
        let window = Window { step: if stream.step == 0 { 1 } else { stream.step }, pages: stream.window, hits };
        self.brought(PageNumber(page), window, window.pages);
        window
    }

    /// Only the first `pages` pages of the window given last, for `page`, could be brought in: the stream is expected
    /// there, not where the full window would have ended.
    pub fn brought(&mut self, page: PageNumber, window: Window, pages: u32) {
        let clock = self.clock;
        let Some(stream) = self.streams.iter_mut().find(|stream| stream.last_used == clock && stream.step != 0) else {
            return;
        };
        stream.page = page.0.saturating_add_signed(window.step * i64::from(pages));
        stream.along = pages.saturating_sub(1);
    }

    /// The stream that goes on at `page`.
    fn known(&self, page: u64) -> Option<usize> {
        self.streams.iter().position(|stream| stream.last_used != 0 && stream.step != 0 && stream.page == page)
    }

    /// The stream that `page` makes with faults that stood alone until now.
    fn recognise(&mut self, page: u64) -> Option<usize> {
        let alone = |at: u64| move |stream: &Stream| stream.last_used != 0 && stream.step == 0 && stream.page == at;
        let (at, step) = (0..STREAMS).find_map(|at| {
            let before = self.streams[at];
            let step = page.wrapping_sub(before.page) as i64;
            if before.last_used == 0 || before.step != 0 || step == 0 || step.unsigned_abs() > STRIDE_MAX {
                return None;
            }
            let third = || before.page.checked_add_signed(-step).is_some_and(|at| self.streams.iter().any(alone(at)));
            (step.unsigned_abs() == 1 || third()).then_some((at, step))
        })?;
        // What went before belongs to the stream now.
        if let Some(first) = self.streams[at].page.checked_add_signed(-step)
            && let Some(first) = self.streams.iter_mut().find(|stream| alone(first)(stream))
        {
            *first = Stream::default();
        }
        self.streams[at].step = step;
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The step and the pages of the window for a fault at `page`.
    fn window(readahead: &mut Readahead, page: u64) -> (i64, u32) {
        let window = readahead.window(PageNumber(page));
        (window.step, window.pages)
    }

    /// The windows of faults that go on where each window ends.
    fn windows_of_a_stream(step: i64, faults: usize) -> alloc::vec::Vec<u32> {
        let mut readahead = Readahead::new(16);
        let mut page = 10_000u64;
        let mut sizes = alloc::vec::Vec::new();
        for _ in 0..faults {
            let (got, pages) = window(&mut readahead, page);
            assert!(got == step || pages == 1);
            sizes.push(pages);
            page = page.checked_add_signed(step * i64::from(pages)).unwrap();
        }
        sizes
    }

    #[test]
    fn a_random_fault_brings_one_page() {
        let mut readahead = Readahead::new(16);
        for page in [5, 900, 17, 33, 1000, 2] {
            assert_eq!(window(&mut readahead, page).1, 1);
        }
    }

    #[test]
    fn a_stream_doubles_up_to_the_most_forwards_and_backwards() {
        assert_eq!(windows_of_a_stream(1, 7), [1, 2, 4, 8, 16, 16, 16]);
        assert_eq!(windows_of_a_stream(-1, 6), [1, 2, 4, 8, 16, 16]);
    }

    #[test]
    fn a_stride_takes_one_fault_more_to_be_found() {
        assert_eq!(windows_of_a_stream(7, 7), [1, 1, 2, 4, 8, 16, 16]);
        assert_eq!(windows_of_a_stream(-64, 5), [1, 1, 2, 4, 8]);
        assert_eq!(windows_of_a_stream(65, 5), [1, 1, 1, 1, 1]);
    }

    #[test]
    fn a_window_names_its_pages() {
        let window = Window { step: -3, pages: 4, hits: 0 };
        assert_eq!(window.page(PageNumber(9), 3), Some(PageNumber(0)));
        assert_eq!(window.page(PageNumber(8), 3), None);
        assert_eq!((window.after(), Window { step: 1, pages: 4, hits: 0 }.after()), (0, 3));
    }

    #[test]
    fn pages_brought_along_are_hits_once_the_stream_goes_on() {
        let mut readahead = Readahead::new(16);
        let hits = [10, 11, 13, 17].map(|page| readahead.window(PageNumber(page)).hits);
        assert_eq!(hits, [0, 0, 1, 3]);
    }

    #[test]
    fn interleaved_streams_do_not_disturb_each_other() {
        let mut readahead = Readahead::new(16);
        let mut at = [(1000u64, 1), (5000, 1), (9000, 7)];
        for _ in 0..7 {
            for (page, step) in &mut at {
                *page += window(&mut readahead, *page).1 as u64 * *step as u64;
            }
        }
        for (page, step) in at {
            assert_eq!(window(&mut readahead, page), (step, 16));
        }
    }

    #[test]
    fn a_window_that_was_cut_goes_on_where_it_was_cut() {
        let mut readahead = Readahead::new(16);
        let _ = readahead.window(PageNumber(10));
        let got = readahead.window(PageNumber(11));
        assert_eq!(got.pages, 2);
        readahead.brought(PageNumber(11), got, 1);
        assert_eq!(readahead.window(PageNumber(12)), Window { step: 1, pages: 4, hits: 0 });
    }
}
