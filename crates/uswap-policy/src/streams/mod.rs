//! Readahead by streams that sees each use of a page, for the simulator; the engine's own, which sees faults, is `core/readahead.rs`.
//!
//! Each region finds its streams by itself: forward, backward, with gaps of any even size up to 2 MiB, several interleaved. A
//! stream begins with two misses side by side, or three or four evenly spaced ones, so random misses read nothing along. It reads ahead
//! of the program without waiting for a miss: when half of what lies ahead is used up, the window grows and is filled again, up
//! to a fourth of what the program has passed, and up to 2 MiB. What is brought carries the *tag* of its stream, and whoever keeps the pages tells what became of each: a
//! touch, or dropped unused. So every stream knows how often it is right. One that is not shrinks, and ends; and a region
//! whose streams were mostly wrong asks for more misses before it believes the next. Pages that are dropped before the program
//! comes to them say something else: the window is too large for memory, and is halved.

mod detect;
mod stream;

pub use stream::Accuracy;

use alloc::vec::Vec;

use detect::{DOUBT_MAX, Found, Misses};
use stream::{Steps, Stream};
use uswap_core::units::{LEAF_PAGES, PageNumber, PageRange};

/// Pages of the largest window: 2 MiB.
pub const WINDOW_MAX: u32 = LEAF_PAGES as u32;
/// Streams that a region follows at a time.
const STREAMS: usize = 16;
/// Hits that a stream needs before it makes a region trustworthy again.
const TRUSTED_HITS: u64 = 8;

/// The stream that brought a page. Pages that nobody asked for are kept with it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tag {
    stream: u8,
    generation: u32,
}

/// Pages to read ahead. Those that are in memory, or have no content on swap, are to be left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ahead {
    /// What each of them is to be kept with.
    pub tag: Tag,
    first: u64,
    stride: i64,
    count: u32,
}

impl Ahead {
    /// The pages, in the order in which they will be wanted. All lie in the region.
    pub fn pages(&self) -> impl Iterator<Item = PageNumber> + use<> {
        let Self { first, stride, count, .. } = *self;
        (0..i64::from(count)).map(move |step| PageNumber(first.wrapping_add_signed(stride * step)))
    }

    /// How many pages.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Pages from one to the next: 1 for neighbours, negative backwards.
    pub fn stride(&self) -> i64 {
        self.stride
    }
}

/// How one stream does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamState {
    /// Pages from one to the next.
    pub stride: i64,
    /// Pages that may lie ahead of the program.
    pub window: u32,
    /// What became of its pages.
    pub accuracy: Accuracy,
}

/// The streams of one region.
#[derive(Clone, Debug)]
pub struct RegionStreams {
    region: PageRange,
    max: u32,
    streams: Vec<Stream>,
    misses: Misses,
    /// Misses that a stream must show beyond the usual ones.
    doubt: u32,
    clock: u64,
    generation: u32,
    total: Accuracy,
}

impl RegionStreams {
    /// A region without faults yet. Windows are at most `max` pages, and at most [`WINDOW_MAX`]; 0 turns readahead off.
    pub fn new(region: PageRange, max: u32) -> Self {
        Self {
            region,
            max: max.min(WINDOW_MAX),
            streams: Vec::new(),
            misses: Misses::new(),
            doubt: 0,
            clock: 0,
            generation: 0,
            total: Accuracy::default(),
        }
    }

    /// The region grew or shrank at its end.
    pub fn resize(&mut self, pages: u64) {
        self.region.pages = pages;
    }

    /// What became of all pages that were brought.
    pub fn accuracy(&self) -> Accuracy {
        self.total
    }

    /// The streams of this moment.
    pub fn streams(&self) -> impl Iterator<Item = StreamState> + '_ {
        self.streams.iter().map(|stream| StreamState {
            stride: stream.stride(),
            window: stream.window(),
            accuracy: stream.total,
        })
    }

    /// A thread touched `page`, which is not in memory. What to read along with it.
    pub fn missed(&mut self, page: PageNumber) -> Option<Ahead> {
        debug_assert!(self.region.contains(page));
        if self.max == 0 {
            return None;
        }
        self.clock += 1;
        if let Some(index) = self.streams.iter().position(|stream| stream.expects(page)) {
            let ahead = self.follow_miss(index, page);
            if self.streams[index].window() > 0 {
                return ahead;
            }
            self.end(index);
        }
        let found = self.misses.steps_to(page, self.doubt);
        self.misses.note(page);
        let index = self.begin(page, found?);
        self.follow_miss(index, page)
    }

    /// A thread touched `page`, which was brought by the stream of `tag` and not touched yet. What to read next.
    pub fn found(&mut self, page: PageNumber, tag: Tag) -> Option<Ahead> {
        self.total.hits += 1;
        self.clock += 1;
        let index = self.alive(tag)?;
        let (max, region) = (self.max, self.room(index, page));
        self.follow(index, |stream| stream.found(page, max, region))
    }

    /// `page`, which was brought by the stream of `tag`, left memory untouched.
    pub fn dropped(&mut self, page: PageNumber, tag: Tag) {
        self.total.wasted += 1;
        let Some(index) = self.alive(tag) else { return };
        if !self.streams[index].dropped(page) {
            self.end(index);
        }
    }

    fn alive(&self, tag: Tag) -> Option<usize> {
        let index = usize::from(tag.stream);
        self.streams.get(index).is_some_and(|stream| stream.generation == tag.generation).then_some(index)
    }

    fn follow_miss(&mut self, index: usize, page: PageNumber) -> Option<Ahead> {
        let region = self.room(index, page);
        self.follow(index, |stream| stream.missed(page, region))
    }

    /// Where a stream that is at `page` may read ahead.
    fn room(&self, index: usize, page: PageNumber) -> PageRange {
        let stride = self.streams[index].stride();
        let others = self.streams.iter().enumerate().filter(|&(other, _)| other != index);
        others.fold(self.region, |room, (_, other)| other.spares(page, stride, room))
    }

    fn follow(&mut self, index: usize, ask: impl FnOnce(&mut Stream) -> Option<Steps>) -> Option<Ahead> {
        let stream = &mut self.streams[index];
        stream.last_used = self.clock;
        let Steps { first, stride, pages } = ask(stream)?;
        let tag = Tag { stream: index as u8, generation: stream.generation };
        Some(Ahead { tag, first, stride, count: pages })
    }

    /// Takes a stream in; the one that was idle longest makes room.
    fn begin(&mut self, page: PageNumber, found: Found) -> usize {
        self.generation += 1;
        let stream = Stream::new(page, found, self.max, self.generation);
        if self.streams.len() < STREAMS {
            self.streams.push(stream);
            return self.streams.len() - 1;
        }
        let ages = self.streams.iter().enumerate();
        let (oldest, _) = ages.min_by_key(|(_, stream)| stream.last_used).expect("there are streams");
        if self.streams[oldest].window() > 0 {
            self.judge(oldest);
        }
        self.streams[oldest] = stream;
        oldest
    }

    /// A stream is none: its place is empty until another begins.
    fn end(&mut self, index: usize) {
        self.judge(index);
        self.generation += 1;
        let stream = &mut self.streams[index];
        // It expects no page, its tag names nobody, and it is the next to make room.
        stream.generation = self.generation;
        stream.last_used = 0;
    }

    fn judge(&mut self, index: usize) {
        let Accuracy { hits, wasted } = self.streams[index].total;
        if wasted > hits {
            self.doubt = (self.doubt + 1).min(DOUBT_MAX);
        } else if hits >= TRUSTED_HITS {
            self.doubt = self.doubt.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: PageRange = PageRange { start: PageNumber(0), pages: 1 << 20 };

    fn region() -> RegionStreams {
        RegionStreams::new(REGION, WINDOW_MAX)
    }

    fn missed(streams: &mut RegionStreams, pages: impl IntoIterator<Item = u64>) -> Option<Ahead> {
        pages.into_iter().fold(None, |_, page| streams.missed(PageNumber(page)))
    }

    fn pages(ahead: Option<Ahead>) -> Vec<u64> {
        ahead.into_iter().flat_map(|ahead| ahead.pages().map(|page| page.0)).collect()
    }

    #[test]
    fn two_neighbours_three_short_steps_or_four_long_ones_begin_a_stream() {
        assert_eq!(pages(missed(&mut region(), [10])), []);
        assert_eq!(pages(missed(&mut region(), [10, 11])), [12, 13]);
        assert_eq!(pages(missed(&mut region(), [11, 10])), [9, 8]);
        assert_eq!(pages(missed(&mut region(), [100, 107, 114])), [121, 128]);
        assert_eq!(pages(missed(&mut region(), [576, 512, 448, 384])), [320, 256]);
    }

    #[test]
    fn each_of_several_interleaved_streams_is_followed() {
        let mut streams = region();
        let _ = missed(&mut streams, [1000, 9000, 20_000, 1001, 8999, 20_002, 1002, 8998]);
        assert_eq!(pages(missed(&mut streams, [20_004])), [20_006, 20_008]);
        let strides: Vec<i64> = streams.streams().map(|stream| stream.stride).collect();
        assert_eq!(strides, [1, -1, 2]);
    }

    #[test]
    fn a_stream_reads_on_before_it_is_missed() {
        let mut streams = region();
        let first = missed(&mut streams, [10, 11]).unwrap();
        let more = streams.found(PageNumber(12), first.tag);
        assert_eq!(pages(more), [14]);
        assert_eq!(pages(streams.found(PageNumber(13), first.tag)), [15]);
        assert_eq!(pages(streams.found(PageNumber(12), first.tag)), [], "enough lies ahead of it");
    }

    #[test]
    fn accuracy_is_kept_for_each_stream_and_for_the_region() {
        let mut streams = region();
        let forward = missed(&mut streams, [10, 11]).unwrap();
        let stride = missed(&mut streams, [5000, 5005, 5010]).unwrap();
        let _ = streams.found(PageNumber(12), forward.tag);
        streams.dropped(PageNumber(5015), stride.tag);
        let each: Vec<Accuracy> = streams.streams().map(|stream| stream.accuracy).collect();
        assert_eq!(each, [Accuracy { hits: 1, wasted: 0 }, Accuracy { hits: 0, wasted: 1 }]);
        assert_eq!(streams.accuracy(), Accuracy { hits: 1, wasted: 1 });
    }

    #[test]
    fn a_stream_that_is_wrong_ends_and_the_next_must_show_more() {
        let mut streams = region();
        let ahead = missed(&mut streams, [10, 11]).unwrap();
        [12, 13].into_iter().for_each(|page| streams.dropped(PageNumber(page), ahead.tag));
        assert_eq!(streams.found(PageNumber(12), ahead.tag), None, "it has ended");
        assert_eq!(pages(missed(&mut streams, [1000, 1001])), []);
        assert_eq!(pages(missed(&mut streams, [1002])), [1003, 1004]);
    }

    #[test]
    fn streams_that_are_right_take_the_doubt_away() {
        let mut streams = region();
        let wrong = missed(&mut streams, [10, 11]).unwrap();
        [12, 13].into_iter().for_each(|page| streams.dropped(PageNumber(page), wrong.tag));
        // The place of a stream is judged when another takes it.
        for stream in 1..=STREAMS as u64 + 1 {
            let first = stream * 10_000;
            let ahead = missed(&mut streams, first..first + 3).unwrap();
            (first + 3..first + 20).for_each(|page| drop(pages(streams.found(PageNumber(page), ahead.tag))));
        }
        assert_eq!(pages(missed(&mut streams, [900_000, 900_001])), [900_002, 900_003]);
    }

    #[test]
    fn a_window_stays_in_its_region_and_may_be_turned_off() {
        let mut small = RegionStreams::new(PageRange { start: PageNumber(100), pages: 13 }, WINDOW_MAX);
        let forward = missed(&mut small, [110, 111]).unwrap();
        assert_eq!(pages(Some(forward)), [112]);
        assert_eq!(pages(missed(&mut small, [102, 101])), [100]);
        small.resize(14);
        assert_eq!(pages(small.found(PageNumber(112), forward.tag)), [113]);
        assert_eq!(pages(missed(&mut RegionStreams::new(REGION, 0), 0..100)), []);
        assert_eq!(pages(missed(&mut RegionStreams::new(REGION, 1), [5, 6])), [7]);
    }

    #[test]
    fn the_stream_that_was_idle_longest_makes_room() {
        let mut streams = region();
        let ends: Vec<Ahead> = (0..STREAMS as u64 + 1)
            .map(|stream| missed(&mut streams, [stream * 10_000, stream * 10_000 + 1]).unwrap())
            .collect();
        assert_eq!(streams.streams().count(), STREAMS);
        assert_eq!(streams.found(PageNumber(2), ends[0].tag), None);
        assert_eq!(pages(streams.found(PageNumber(10_002), ends[1].tag)), [10_004]);
    }
}
