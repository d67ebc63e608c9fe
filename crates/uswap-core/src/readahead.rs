//! Readahead: how many neighbours a fault brings along.
//!
//! Streams are found by their faults alone: a fault right where a known stream goes on doubles the window of that stream,
//! any other fault starts a stream with a window of one page. Several streams live side by side; the one that was idle
//! longest makes room. A window is mapped whole, so it must be likely to be used: a random fault brings one page.

use crate::units::PageNumber;

/// Streams followed at a time.
const STREAMS: usize = 16;

#[derive(Clone, Copy, Default)]
struct Stream {
    /// Page at which a forward stream goes on.
    next: u64,
    /// Page at which a backward stream goes on.
    previous: u64,
    window: u32,
    last_used: u64,
}

/// Pages to bring in: `before` the faulting one, itself, and `after` it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Pages before the faulting page.
    pub before: u32,
    /// Pages after the faulting page.
    pub after: u32,
    /// Pages that an earlier window brought along and the program is known to have passed.
    pub hits: u32,
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
        let clock = self.clock;
        let max = self.max;
        let known = self
            .streams
            .iter_mut()
            .find(|stream| stream.last_used != 0 && (stream.next == page.0 || stream.previous == page.0));
        if let Some(stream) = known {
            let forward = stream.next == page.0;
            let hits = stream.window - 1;
            stream.window = (stream.window * 2).min(max);
            stream.last_used = clock;
            let more = stream.window - 1;
            let window = if forward {
                stream.next = page.0 + u64::from(stream.window);
                stream.previous = u64::MAX;
                Window { before: 0, after: more, hits }
            } else {
                stream.previous = page.0.saturating_sub(u64::from(stream.window));
                stream.next = u64::MAX;
                Window { before: more.min(page.0 as u32), after: 0, hits }
            };
            return window;
        }
        let oldest = self.streams.iter_mut().min_by_key(|stream| stream.last_used).expect("there are streams");
        *oldest = Stream { next: page.0 + 1, previous: page.0.wrapping_sub(1), window: 1, last_used: clock };
        Window { before: 0, after: 0, hits: 0 }
    }

    /// The window given for `page` could only be used up to `end` (forward) or from `start` (backward): the stream is
    /// expected there, not where the full window would have ended.
    pub fn clipped(&mut self, page: PageNumber, window: Window, start: PageNumber, end: PageNumber) {
        let clock = self.clock;
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.last_used == clock) {
            if window.before > 0 {
                stream.previous = start.0.wrapping_sub(1);
            } else if window.after > 0 || stream.next == page.0 + 1 {
                stream.next = end.0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(readahead: &mut Readahead, page: u64) -> (u32, u32) {
        let window = readahead.window(PageNumber(page));
        (window.before, window.after)
    }

    #[test]
    fn a_random_fault_brings_one_page() {
        let mut readahead = Readahead::new(16);
        for page in [5, 900, 17, 33, 1000, 2] {
            assert_eq!(window(&mut readahead, page), (0, 0));
        }
    }

    #[test]
    fn a_forward_stream_doubles_up_to_the_most() {
        let mut readahead = Readahead::new(16);
        let mut page = 100;
        let mut sizes = alloc::vec::Vec::new();
        for _ in 0..7 {
            let (before, after) = window(&mut readahead, page);
            assert_eq!(before, 0);
            sizes.push(after + 1);
            page += u64::from(after) + 1;
        }
        assert_eq!(sizes, [1, 2, 4, 8, 16, 16, 16]);
    }

    #[test]
    fn a_backward_stream_is_found_too() {
        let mut readahead = Readahead::new(8);
        assert_eq!(window(&mut readahead, 100), (0, 0));
        assert_eq!(window(&mut readahead, 99), (1, 0));
        assert_eq!(window(&mut readahead, 97), (3, 0));
        assert_eq!(window(&mut readahead, 93), (7, 0));
    }

    #[test]
    fn interleaved_streams_do_not_disturb_each_other() {
        let mut readahead = Readahead::new(16);
        let mut at = [1000u64, 5000, 9000];
        for _ in 0..6 {
            for page in &mut at {
                let (_, after) = window(&mut readahead, *page);
                *page += u64::from(after) + 1;
            }
        }
        for page in at {
            assert_eq!(window(&mut readahead, page), (0, 15));
        }
    }

    #[test]
    fn a_clipped_window_goes_on_where_it_was_cut() {
        let mut readahead = Readahead::new(16);
        readahead.window(PageNumber(10));
        let got = readahead.window(PageNumber(11));
        assert_eq!(got.after, 1);
        readahead.clipped(PageNumber(11), got, PageNumber(11), PageNumber(12));
        assert_eq!(window(&mut readahead, 12), (0, 3));
    }
}
