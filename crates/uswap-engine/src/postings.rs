//! Postings: what threads of the program tell the monitor about their memory, oldest first, without ever waiting for it.
//!
//! A thread that posts may hold any lock of the program's, also one that the monitor's next step waits for in the end: a
//! forking thread's. So nothing here waits, takes a lock, or is refused because the monitor is busy. Postings lie in
//! segments; who finds the last one full maps another. A segment that has been read is unmapped when no thread is inside
//! [`Postings::post`] any more, because one of them may still look at it.

#![allow(unsafe_code)]

use std::ptr::{NonNull, null_mut};

use uswap_core::PageRange;
use uswap_sys::private_memory::{self, PrivateMapping, Purpose};
use uswap_system::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering::*};

/// Places of a segment: it takes 20 KiB. Few where each step is looked at, so that segments come and go.
const PLACES: usize = if cfg!(all(test, uswap_words)) { 2 } else { 512 };

/// One posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Posting {
    pub kind: u8,
    pub start: usize,
    pub len: usize,
    pub to: usize,
    /// What puts postings of several threads in order.
    pub number: u64,
}

impl Posting {
    /// The memory that it is about.
    pub fn range(&self) -> PageRange {
        PageRange::of_bytes(self.start, self.start.saturating_add(self.len))
    }
}

struct Place {
    kind: AtomicU8,
    /// Whether the rest is written.
    is_written: AtomicU8,
    start: AtomicUsize,
    len: AtomicUsize,
    to: AtomicUsize,
    number: AtomicU64,
}

impl Place {
    const fn new() -> Place {
        Place {
            kind: AtomicU8::new(0),
            is_written: AtomicU8::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            to: AtomicUsize::new(0),
            number: AtomicU64::new(0),
        }
    }
}

/// A fresh mapping is a segment with nothing in it: all zeros.
struct Segment {
    places: [Place; PLACES],
    /// Places that have been given away; more than there are when threads found it full.
    given: AtomicUsize,
    next: AtomicPtr<Segment>,
    /// It would be unmapped, had it no test.
    #[cfg(all(test, uswap_words))]
    is_gone: std::sync::atomic::AtomicBool,
}

impl Segment {
    const fn new() -> Segment {
        Segment {
            places: [const { Place::new() }; PLACES],
            given: AtomicUsize::new(0),
            next: AtomicPtr::new(null_mut()),
            #[cfg(all(test, uswap_words))]
            is_gone: std::sync::atomic::AtomicBool::new(false),
        }
    }
}

/// Postings from any thread to one reader.
pub(crate) struct Postings {
    /// The first segment, which is always there.
    home: Segment,
    /// Where to post; null is the first. Never behind a segment that has been unmapped.
    last: AtomicPtr<Segment>,
    /// Threads inside `post`.
    inside: AtomicUsize,
    /// The reader's: the segment that it reads, null for the first, and how many of its postings it has taken.
    reading: AtomicPtr<Segment>,
    taken: AtomicUsize,
    /// The oldest segment that has been read and is still mapped.
    read: AtomicPtr<Segment>,
}

impl Postings {
    pub const fn new() -> Postings {
        Postings {
            home: Segment::new(),
            last: AtomicPtr::new(null_mut()),
            inside: AtomicUsize::new(0),
            reading: AtomicPtr::new(null_mut()),
            taken: AtomicUsize::new(0),
            read: AtomicPtr::new(null_mut()),
        }
    }

    fn at(&self, segment: *mut Segment) -> &Segment {
        // SAFETY: null, or a mapping made by `extend`. The reader unmaps what it has read itself, and only while no thread
        // is inside `post`; who comes in later begins at `last`, which lies behind it.
        let segment = unsafe { segment.as_ref() }.unwrap_or(&self.home);
        #[cfg(all(test, uswap_words))]
        assert!(!segment.is_gone.load(SeqCst), "a segment that has been unmapped");
        segment
    }

    /// Any thread. `false` when there is no memory for it.
    #[must_use]
    pub fn post(&self, posting: &Posting) -> bool {
        // In one order with the reader's look: it sees this thread, or this thread sees where the reader is.
        self.inside.fetch_add(1, SeqCst);
        let posted = self.post_inside(posting);
        self.inside.fetch_sub(1, SeqCst);
        posted
    }

    fn post_inside(&self, posting: &Posting) -> bool {
        let mut segment = self.last.load(SeqCst);
        loop {
            let here = self.at(segment);
            let number = here.given.fetch_add(1, AcqRel);
            if let Some(place) = here.places.get(number) {
                place.kind.store(posting.kind, Relaxed);
                place.start.store(posting.start, Relaxed);
                place.len.store(posting.len, Relaxed);
                place.to.store(posting.to, Relaxed);
                place.number.store(posting.number, Relaxed);
                place.is_written.store(1, Release);
                return true;
            }
            let Some(next) = extend(here) else { return false };
            // Another thread may have gone further already.
            let _ = self.last.compare_exchange(segment, next.as_ptr(), SeqCst, SeqCst);
            segment = next.as_ptr();
        }
    }

    /// The oldest, if it is written already. One thread only.
    pub fn take(&self) -> Option<Posting> {
        let segment = self.reading.load(Relaxed);
        let mut here = self.at(segment);
        let mut number = self.taken.load(Relaxed);
        if number == PLACES {
            let next = NonNull::new(here.next.load(Acquire))?.as_ptr();
            let _ = self.last.compare_exchange(segment, next, SeqCst, SeqCst);
            if self.read.load(Relaxed).is_null() {
                self.read.store(segment, Relaxed);
            }
            self.reading.store(next, Relaxed);
            self.free_read();
            (here, number) = (self.at(next), 0);
            self.taken.store(0, Relaxed);
        }
        let place = &here.places[number];
        if place.is_written.load(Acquire) == 0 {
            return None;
        }
        self.taken.store(number + 1, Relaxed);
        Some(Posting {
            kind: place.kind.load(Relaxed),
            start: place.start.load(Relaxed),
            len: place.len.load(Relaxed),
            to: place.to.load(Relaxed),
            number: place.number.load(Relaxed),
        })
    }

    /// The reader: whether nothing is there, or just being written.
    pub fn is_empty(&self) -> bool {
        let here = self.at(self.reading.load(Relaxed));
        let taken = self.taken.load(Relaxed);
        match taken == PLACES {
            true => here.next.load(Acquire).is_null(),
            false => here.given.load(Acquire) == taken,
        }
    }

    /// The reader: unmaps what it has read, if no thread can be looking at it.
    fn free_read(&self) {
        if self.inside.load(SeqCst) != 0 {
            return;
        }
        let reading = self.reading.load(Relaxed);
        let mut segment = self.read.load(Relaxed);
        while !segment.is_null() && segment != reading {
            let next = self.at(segment).next.load(Acquire);
            unmap(segment);
            segment = next;
        }
        self.read.store(null_mut(), Relaxed);
    }

    /// The only thread of a forked child: drops everything, also what a thread has not finished writing, for it does not
    /// live here.
    pub fn clear(&self) {
        let oldest = self.read.load(Relaxed);
        let mut segment = if oldest.is_null() { self.reading.load(Relaxed) } else { oldest };
        if segment.is_null() {
            segment = self.home.next.load(Acquire);
        }
        while !segment.is_null() {
            let next = self.at(segment).next.load(Acquire);
            unmap(segment);
            segment = next;
        }
        self.home.places.iter().for_each(|place| place.is_written.store(0, Relaxed));
        self.home.given.store(0, Relaxed);
        self.home.next.store(null_mut(), Relaxed);
        for pointer in [&self.last, &self.reading, &self.read] {
            pointer.store(null_mut(), Relaxed);
        }
        self.taken.store(0, Relaxed);
        self.inside.store(0, SeqCst);
    }
}

/// The segment after `full`; made, if there is none yet.
fn extend(full: &Segment) -> Option<NonNull<Segment>> {
    if let Some(next) = NonNull::new(full.next.load(Acquire)) {
        return Some(next);
    }
    let (base, _) = private_memory::map(size_of::<Segment>(), Purpose::Tables).ok()?.into_raw();
    let made = base.cast::<Segment>();
    match full.next.compare_exchange(null_mut(), made, AcqRel, Acquire) {
        Ok(_) => NonNull::new(made),
        Err(others) => {
            unmap(made);
            NonNull::new(others)
        }
    }
}

fn unmap(segment: *mut Segment) {
    let Some(segment) = NonNull::new(segment) else { return };
    #[cfg(all(test, uswap_words))]
    return words::is_gone(segment);
    #[cfg(not(all(test, uswap_words)))]
    unmap_for_good(segment);
}

fn unmap_for_good(segment: NonNull<Segment>) {
    let len = size_of::<Segment>().next_multiple_of(uswap_core::PAGE_SIZE);
    // SAFETY: `extend` made the mapping of this length, and the caller knows that nobody looks at it any more.
    drop(unsafe { PrivateMapping::from_raw(segment.cast(), len, Purpose::Tables) });
}

#[cfg(all(test, uswap_words))]
mod words;

#[cfg(test)]
mod tests {
    use super::*;

    fn posting(start: usize) -> Posting {
        Posting { kind: 1, start, len: 2, to: 3, number: 4 }
    }

    #[test]
    fn nobody_waits_for_a_reader_that_sleeps() {
        let postings = Postings::new();
        for round in 0..3 {
            // Several times what one segment has room for.
            for start in 0..4000 {
                assert!(postings.post(&posting(start + round)));
            }
            for start in 0..4000 {
                assert_eq!(postings.take(), Some(posting(start + round)));
            }
            assert!(postings.take().is_none());
        }
    }

    #[test]
    fn a_posting_that_is_not_written_yet_is_waited_for() {
        let postings = Postings::new();
        postings.home.given.store(1, Relaxed);
        assert!(postings.post(&posting(7)));
        assert!(postings.take().is_none());
    }

    #[test]
    fn a_child_begins_with_none_and_leaks_nothing() {
        let postings = Postings::new();
        for taken in [0, 700, 1500] {
            for start in 0..3000 {
                assert!(postings.post(&posting(start)));
            }
            (0..taken).for_each(|_| assert!(postings.take().is_some()));
            // A thread that does not live in the child.
            postings.inside.fetch_add(1, SeqCst);
            postings.clear();
            assert!(postings.take().is_none());
            assert!(postings.post(&posting(5)));
            assert_eq!(postings.take(), Some(posting(5)));
            postings.clear();
        }
        assert!(postings.home.next.load(Acquire).is_null());
    }

    #[test]
    fn threads_post_while_one_reads_and_each_keeps_its_order() {
        const EACH: usize = 20_000;
        let postings = Postings::new();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let postings = &postings;
                scope.spawn(move || {
                    for number in 0..EACH {
                        assert!(postings.post(&Posting { kind: thread, start: number, len: 0, to: 0, number: 0 }));
                    }
                });
            }
            let mut next = [0; 4];
            while next != [EACH; 4] {
                let Some(posting) = postings.take() else {
                    std::thread::yield_now();
                    continue;
                };
                assert_eq!(posting.start, next[usize::from(posting.kind)]);
                next[usize::from(posting.kind)] += 1;
            }
        });
        postings.free_read();
        assert!(postings.read.load(Relaxed).is_null());
    }
}
