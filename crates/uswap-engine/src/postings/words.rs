//! No posting is lost, none comes twice, those of one thread keep their order, and nobody looks at a segment that is gone.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;

use uswap_system::words::{Defect, finds, holds, preempt, thread};

use uswap_system::atomic::Ordering::*;

use super::{Posting, Postings, Segment, unmap_for_good};

const EACH: usize = 3;

thread_local! {
    /// Segments that nobody may look at any more.
    static GONE: RefCell<Vec<NonNull<Segment>>> = const { RefCell::new(Vec::new()) };
}

/// In place of unmapping it: who looks at it from here on is found.
pub(super) fn is_gone(segment: NonNull<Segment>) {
    // SAFETY: it is mapped until `end`.
    unsafe { segment.as_ref() }.is_gone.store(true, SeqCst);
    GONE.with_borrow_mut(|gone| gone.push(segment));
}

/// A schedule is over.
fn end() {
    GONE.take().into_iter().for_each(unmap_for_good);
}

/// Threads post, more than a segment has room for, while one reads with `take`.
fn posted_and_read(threads: u8, take: fn(&Postings) -> Option<Posting>) {
    let postings = Arc::new(Postings::new());
    let all: Vec<_> = (0..threads)
        .map(|kind| {
            let postings = postings.clone();
            thread::spawn(move || {
                for start in 0..EACH {
                    assert!(postings.post(&Posting {
                        kind,
                        start,
                        len: start + 1,
                        to: start + 2,
                        number: start as u64 + 3
                    }));
                }
            })
        })
        .collect();
    let mut next = vec![0; usize::from(threads)];
    let mut read = |posting: Posting| {
        let number = &mut next[usize::from(posting.kind)];
        let Posting { start, len, to, number: order, .. } = posting;
        assert_eq!(
            (start, len, to, order),
            (*number, *number + 1, *number + 2, *number as u64 + 3),
            "a posting that is lost, double or half written"
        );
        *number += 1;
    };
    // While they post, and what is left then.
    for _ in 0..6 * EACH {
        take(&postings).map(&mut read);
    }
    all.into_iter().for_each(|thread| thread.join().expect("it ends"));
    while let Some(posting) = take(&postings) {
        read(posting);
    }
    assert_eq!(next, vec![EACH; usize::from(threads)], "a posting is lost");
    postings.clear();
    assert!(postings.take().is_none());
    end();
}

#[test]
fn postings_of_many_threads_are_read_once_and_in_order() {
    holds(|| posted_and_read(2, Postings::take));
    holds(|| posted_and_read(3, Postings::take));
}

#[test]
fn torn_counts_are_found() {
    finds(Defect::Torn, || posted_and_read(2, Postings::take));
}

/// As [`Postings::take`], but that it does not look whether all has been written.
#[test]
fn a_reader_that_takes_what_is_half_written_is_found() {
    finds(Defect::Own, || {
        posted_and_read(2, |postings| {
            let here = postings.at(postings.reading.load(Relaxed));
            let given = here.given.load(Acquire);
            let place = here.places.get(postings.taken.load(Relaxed)).filter(|_| postings.taken.load(Relaxed) < given);
            if let Some(place) = place {
                place.is_written.store(1, Relaxed);
            }
            postings.take()
        });
    });
}

/// As [`Postings::take`], but that it unmaps what it has read while somebody is inside.
#[test]
fn a_reader_that_unmaps_what_others_look_at_is_found() {
    finds(Defect::Own, || {
        posted_and_read(3, |postings| {
            let inside = postings.inside.swap(0, SeqCst);
            let taken = postings.take();
            postings.inside.fetch_add(inside, SeqCst);
            taken
        });
    });
}

/// Who posts in the child of a fork finds nothing of what others had begun.
#[test]
fn a_child_begins_with_nothing() {
    holds(|| {
        let postings = Arc::new(Postings::new());
        let posting = |start| Posting { kind: 0, start, len: 0, to: 0, number: 0 };
        let of_another = postings.clone();
        let another = thread::spawn(move || (0..2 * EACH).for_each(|start| assert!(of_another.post(&posting(start)))));
        preempt();
        another.join().expect("it ends");
        let _ = postings.take();
        postings.clear();
        assert!(postings.post(&posting(77)));
        assert_eq!(postings.take().map(|posting| posting.start), Some(77));
        assert!(postings.take().is_none());
        end();
    });
}
