//! Belady's optimum: the fewest misses that any policy can have, for one that knows the future.

use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;

use super::{PageIndex, checked_capacity, cover};

/// No further use.
const NEVER: u64 = u64::MAX;

/// Misses of the optimum on `trace` with a memory of `capacity` pages: it lets go of the page that is not needed for longest.
///
/// Takes 8 bytes for each access of the trace: it is a bound to compare with, not a policy to run.
///
/// # Panics
/// When `capacity` is 0.
pub fn belady_misses(trace: &[PageIndex], capacity: usize) -> u64 {
    let capacity = checked_capacity(capacity);
    let next_uses = next_uses(trace);
    // When each resident page is used next, 0 for a page that is not resident.
    let mut due: Vec<u64> = Vec::new();
    // Resident pages by that time. A page that was used meanwhile has an older record too, which no longer agrees with `due`.
    let mut furthest: BinaryHeap<(u64, PageIndex)> = BinaryHeap::new();
    let (mut resident, mut misses) = (0, 0);
    for (&page, &next) in trace.iter().zip(&next_uses) {
        cover(&mut due, page);
        if due[page as usize] == 0 {
            misses += 1;
            if resident == capacity {
                while let Some((time, victim)) = furthest.pop() {
                    if due[victim as usize] == time {
                        due[victim as usize] = 0;
                        break;
                    }
                }
            } else {
                resident += 1;
            }
        }
        due[page as usize] = next;
        furthest.push((next, page));
        if furthest.len() > 2 * resident + 64 {
            furthest.retain(|&(time, page)| due[page as usize] == time);
        }
    }
    misses
}

/// For each access, the 1-based time of the next access to its page.
fn next_uses(trace: &[PageIndex]) -> Vec<u64> {
    let mut seen: Vec<u64> = Vec::new();
    let mut next = vec![NEVER; trace.len()];
    for (index, &page) in trace.iter().enumerate().rev() {
        cover(&mut seen, page);
        let later = core::mem::replace(&mut seen[page as usize], index as u64 + 1);
        if later != 0 {
            next[index] = later;
        }
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_textbook_example() {
        let trace = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1];
        assert_eq!(belady_misses(&trace, 3), 9);
    }

    #[test]
    fn a_loop_misses_what_does_not_fit() {
        // 10 pages round and round in a memory of 8: one more than 8 at first, then 2 or 3 a round.
        let trace: Vec<PageIndex> = (0..1000).map(|index| index % 10).collect();
        let misses = belady_misses(&trace, 8);
        assert_eq!(belady_misses(&trace, 10), 10);
        assert_eq!(misses, 10 + (1000 - 10) * 2 / 9);
    }
}
