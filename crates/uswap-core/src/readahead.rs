//! Readahead: how many pages a fault brings along, and which.
//!
//! Streams are found by their faults alone: forwards, backwards, or with any stride up to `STRIDE_MAX`. Two neighbouring
//! faults make a stream, or three at equal distances; a fault right where a known stream goes on doubles its window, and so
//! does one behind a short hole of pages that were never used; any other fault stands alone and brings one page. Several
//! streams live side by side; the one that was idle longest makes room. A window is mapped whole, so it must be likely to be
//! used. What comes after the largest windows is read ahead ([`crate::ahead`]).

use crate::ahead::{Ahead, HOLE_MAX, Stretch};
use crate::units::{PageNumber, PageRange};

/// Streams, and faults that may become one, followed at a time.
const STREAMS: usize = 16;
/// Places that only faults that stand alone give up to each other: a stream that is read ahead shows itself seldom, and
/// must not be forgotten for a few faults elsewhere.
const ALONE_MIN: usize = STREAMS / 2;
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
    ahead: Ahead,
}

/// How a fault belongs to a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hit {
    /// It is where the stream goes on.
    Next,
    /// It has come to the marker of what was read ahead.
    Marker,
    /// It is so many steps after the next page that is asked for, and not yet read, ahead of it.
    Overtaken(u32),
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
        faulting.stepped(self.step, index)
    }

    /// How many pages follow the faulting one side by side.
    pub fn after(&self) -> u32 {
        if self.step == 1 { self.pages - 1 } else { 0 }
    }
}

/// The streams.
#[derive(Clone)]
pub struct Readahead {
    streams: [Stream; STREAMS],
    clock: u64,
    max: u32,
    /// Pages of the largest chunk that is read ahead; 0 turns that off.
    ahead_max: u32,
    /// How the last fault belonged to its stream.
    hit: Hit,
    /// A stream may have something to read ahead.
    wants_ahead: bool,
}

impl Readahead {
    /// Windows are at most `max` pages; 1 turns readahead off. A stream is read ahead by at most twice `ahead_max` pages.
    pub fn new(max: u32, ahead_max: u32) -> Self {
        let streams = [Stream::default(); STREAMS];
        Self { streams, clock: 0, max: max.max(1), ahead_max, hit: Hit::Next, wants_ahead: false }
    }

    /// Window for a fault at `page`. To be followed by [`brought`](Self::brought).
    pub fn window(&mut self, page: PageNumber) -> Window {
        self.window_over_holes(page, |_| false)
    }

    /// The same, where `is_hole` tells whether none of these pages was ever used: a stream goes on over them.
    pub fn window_over_holes(&mut self, page: PageNumber, is_hole: impl Fn(PageRange) -> bool) -> Window {
        self.clock += 1;
        let (clock, page) = (self.clock, page.0);
        let known = self.known(page).or_else(|| self.known_over_hole(page, is_hole));
        self.hit = known.map_or(Hit::Next, |(_, hit)| hit);
        let at = match known.map(|(at, _)| at).or_else(|| self.recognise(page)) {
            Some(at) => at,
            None => {
                let at = self.place_for_one_more();
                self.streams[at] = Stream { page, ..Stream::default() };
                at
            }
        };
        let stream = &mut self.streams[at];
        stream.last_used = clock;
        stream.window = (stream.window * 2).clamp(1, self.max);
        let mut hits = core::mem::take(&mut stream.along);
        let step = if stream.step == 0 { 1 } else { stream.step };
        if self.hit == Hit::Marker {
            let asked_for = stream.ahead.passed_marker(self.ahead_max);
            stream.page = stream.page.saturating_add_signed(step * i64::from(asked_for));
            hits += stream.ahead.take_hits();
            self.wants_ahead |= asked_for > 0;
            return Window { step, pages: 1, hits };
        }
        Window { step, pages: stream.window, hits }
    }

    /// Room for a fault that stands alone.
    fn place_for_one_more(&self) -> usize {
        let only_alone = self.streams.iter().filter(|stream| stream.step == 0).count() >= ALONE_MIN;
        let places = self.streams.iter().enumerate().filter(|(_, stream)| stream.step == 0 || !only_alone);
        places.min_by_key(|(_, stream)| stream.last_used).map(|(at, _)| at).expect("there are streams")
    }

    /// Of the window given last, for `page`, the first `pages` pages are brought in: the stream is expected after them.
    pub fn brought(&mut self, page: PageNumber, window: Window, pages: u32) {
        let hit = self.hit;
        let Some(stream) = self.latest_mut() else { return };
        let after = page.0.saturating_add_signed(window.step * i64::from(pages));
        match hit {
            Hit::Next => {
                stream.page = after;
                stream.along = pages.saturating_sub(1);
            }
            Hit::Marker => {}
            Hit::Overtaken(steps) => {
                if !stream.ahead.overtaken(window.step, steps + pages) {
                    stream.page = after;
                }
            }
        }
    }

    /// Where the stream that the last fault belongs to goes on, if that is far enough along to be read ahead, and nothing
    /// of it is yet.
    pub fn goes_on_at(&self) -> Option<PageNumber> {
        let stream = self.streams.iter().find(|stream| stream.last_used == self.clock && stream.step != 0)?;
        let ready = self.ahead_max > 0 && self.hit == Hit::Next && stream.window == self.max;
        ready.then_some(PageNumber(stream.page))
    }

    /// That stream is to be read ahead.
    pub fn go_ahead(&mut self) {
        let ahead_max = self.ahead_max;
        let Some(stream) = self.latest_mut() else { return };
        let asked_for = stream.ahead.begin(stream.page, ahead_max);
        stream.page = stream.page.saturating_add_signed(stream.step * i64::from(asked_for));
        self.wants_ahead = true;
    }

    /// A stream may have something to read ahead.
    pub fn wants_ahead(&self) -> bool {
        self.wants_ahead
    }

    /// What to read ahead next, for the stream that faulted last.
    pub(crate) fn stretch(&mut self) -> Option<(usize, Stretch)> {
        let streams = self.streams.iter().enumerate().filter(|(_, stream)| stream.last_used != 0 && stream.step != 0);
        let found = streams
            .filter_map(|(at, stream)| Some((stream.last_used, at, stream.ahead.stretch(stream.step)?)))
            .max_by_key(|&(last_used, ..)| last_used);
        self.wants_ahead = found.is_some();
        found.map(|(_, at, stretch)| (at, stretch))
    }

    /// The first `pages` pages of a stretch are being read.
    pub(crate) fn reading_ahead(&mut self, at: usize, stretch: &Stretch, pages: u32) {
        self.streams[at].ahead.reading(stretch, pages);
    }

    /// The next `pages` of a stretch have no content to be read.
    pub(crate) fn skip_ahead(&mut self, at: usize, pages: u32) {
        let stream = &mut self.streams[at];
        stream.ahead.advance(stream.step, pages);
    }

    /// No page for a while has content to be read: the stream is not read further ahead.
    pub(crate) fn end_ahead(&mut self, at: usize) {
        let stream = &mut self.streams[at];
        stream.page = stream.ahead.end();
    }

    fn latest_mut(&mut self) -> Option<&mut Stream> {
        let clock = self.clock;
        self.streams.iter_mut().find(|stream| stream.last_used == clock && stream.step != 0)
    }

    /// The stream that goes on at `page`, and how.
    fn known(&self, page: u64) -> Option<(usize, Hit)> {
        let streams = self.streams.iter().enumerate();
        streams.filter(|(_, stream)| stream.last_used != 0 && stream.step != 0).find_map(|(at, stream)| {
            let hit = if stream.page == page {
                Hit::Next
            } else if stream.ahead.is_marker(page) {
                Hit::Marker
            } else {
                Hit::Overtaken(stream.ahead.steps_to(page, stream.step)?)
            };
            Some((at, hit))
        })
    }

    /// The stream of neighbours that was expected before `page`, with nothing but a hole between.
    fn known_over_hole(&self, page: u64, is_hole: impl Fn(PageRange) -> bool) -> Option<(usize, Hit)> {
        let streams = self.streams.iter().enumerate().filter(|(_, stream)| stream.step.unsigned_abs() == 1);
        let goes_on = |stream: &Stream| {
            let distance = page.wrapping_sub(stream.page) as i64 * stream.step;
            let first = if stream.step > 0 { stream.page } else { page + 1 };
            (1..=i64::from(HOLE_MAX)).contains(&distance)
                && stream.ahead.asks_for_nothing()
                && is_hole(PageRange { start: PageNumber(first), pages: distance as u64 })
        };
        streams
            .filter(|(_, stream)| stream.last_used != 0)
            .find(|(_, stream)| goes_on(stream))
            .map(|(at, _)| (at, Hit::Next))
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
        let window = whole_window(readahead, page);
        (window.step, window.pages)
    }

    fn whole_window(readahead: &mut Readahead, page: u64) -> Window {
        let window = readahead.window(PageNumber(page));
        readahead.brought(PageNumber(page), window, window.pages);
        window
    }

    /// The windows of faults that go on where each window ends.
    fn windows_of_a_stream(step: i64, faults: usize) -> alloc::vec::Vec<u32> {
        let mut readahead = Readahead::new(16, 0);
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
        let mut readahead = Readahead::new(16, 0);
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
        let mut readahead = Readahead::new(16, 0);
        let hits = [10, 11, 13, 17].map(|page| whole_window(&mut readahead, page).hits);
        assert_eq!(hits, [0, 0, 1, 3]);
    }

    #[test]
    fn interleaved_streams_do_not_disturb_each_other() {
        let mut readahead = Readahead::new(16, 0);
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
        let mut readahead = Readahead::new(16, 0);
        let _ = whole_window(&mut readahead, 10);
        let got = readahead.window(PageNumber(11));
        assert_eq!(got.pages, 2);
        readahead.brought(PageNumber(11), got, 1);
        assert_eq!(readahead.window(PageNumber(12)), Window { step: 1, pages: 4, hits: 0 });
    }
}
