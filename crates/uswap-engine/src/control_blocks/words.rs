//! A page that a thread has told of stays, whoever else tells of pages that belong in the same places.

use std::sync::Arc;

use uswap_system::words::{Defect, finds, holds, thread};

use super::{ControlBlocks, PLACES};

/// Pages with one and the same first place: Fibonacci hashing is by multiplication, which has an inverse.
fn alike() -> [usize; 3] {
    let first_place = |page: usize| (page.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) % PLACES;
    let mut pages = (1..).filter(|&page| first_place(page) == first_place(1));
    [(); 3].map(|()| pages.next().expect("there is always another"))
}

fn threads_tell_of_pages() {
    let blocks = Arc::new(ControlBlocks::new());
    let all = alike().map(|page| {
        let blocks = blocks.clone();
        thread::spawn(move || {
            blocks.insert(page);
            assert!(blocks.contains(page), "a page that has been told of may go");
        })
    });
    all.into_iter().for_each(|thread| thread.join().expect("it ends"));
    assert!(alike().iter().all(|&page| blocks.contains(page)), "a page that has been told of may go");
}

#[test]
fn every_page_that_was_told_of_stays() {
    holds(threads_tell_of_pages);
}

#[test]
fn two_pages_in_one_place_are_found() {
    finds(Defect::Torn, threads_tell_of_pages);
}
