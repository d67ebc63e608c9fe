//! Robust mutexes that somebody holds, found by their content.
//!
//! When a thread ends, Linux goes through the list of the robust mutexes that it holds, and tells whoever waits that their owner has died. For a
//! thread that is ending it takes no userfault: at the first page that is swapped out it gives up, and the others wait for ever. So a page
//! stays in memory for as long as a mutex in it is held. Who takes one writes to its page, which is in memory from then on.

use std::ops::RangeInclusive;

use uswap_system::PAGE_SIZE;

/// Bytes of a pthread_mutex_t of glibc's, as it is on x86-64 since 2.4: lock, count, owner, users, kind, spins (4 bytes each), and two
/// pointers, by which it is on its owner's list.
const MUTEX_BYTES: usize = 40;
/// Threads' ids in the lock, below the bits for waiters and for an owner that has died (`FUTEX_TID_MASK`).
const TID_MASK: u32 = 0x3fff_ffff;
/// What the owner is called from when its predecessor has died until the mutex is said to be consistent.
const INCONSISTENT: u32 = i32::MAX as u32;
/// `PTHREAD_MUTEX_ROBUST_NORMAL_NP`.
const ROBUST: u32 = 0x10;
/// The other bits that a kind may have: of four kinds, with priority inheritance, of several processes.
const KINDS: u32 = 0x03 | 0x20 | 0x80;
/// Where a pointer into a program's memory may lead.
const ADDRESSES: RangeInclusive<u64> = PAGE_SIZE as u64..=1 << 47;

/// The first page of `pages` in which somebody holds a robust mutex, by its place there.
pub fn first_page_with_one(pages: &[u8]) -> Option<usize> {
    pages.chunks(PAGE_SIZE).position(has_one).map(|index| index * PAGE_SIZE)
}

fn has_one(page: &[u8]) -> bool {
    // What is found in nearly no page is asked for first.
    let kind_at = |start: usize| u32_at(page, start + 16);
    let starts = (0..=page.len().saturating_sub(MUTEX_BYTES)).step_by(8);
    starts.into_iter().any(|start| kind_at(start) & !KINDS == ROBUST && is_held(&page[start..start + MUTEX_BYTES]))
}

fn is_held(mutex: &[u8]) -> bool {
    let [lock, owner, users, spins] = [0, 8, 12, 20].map(|place| u32_at(mutex, place));
    let pointers = [24, 32].map(|place| u64::from(u32_at(mutex, place)) | u64::from(u32_at(mutex, place + 4)) << 32);
    let tid = lock & TID_MASK;
    tid != 0
        && (owner == tid || owner == INCONSISTENT)
        && users == 1
        && spins == 0
        && pointers.iter().all(|pointer| ADDRESSES.contains(pointer))
}

fn u32_at(bytes: &[u8], place: usize) -> u32 {
    bytes[place..place + 4].try_into().map_or(0, u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TID: u32 = 4711;

    /// A page with a mutex at `at`, of this kind, as glibc leaves it when a thread has taken it.
    fn page_with(at: usize, kind: u32, lock: u32, owner: u32) -> Vec<u8> {
        let mut page = vec![0; PAGE_SIZE];
        let node = 0x7f12_3456_7000_u64;
        for (place, word) in [(0, lock), (8, owner), (12, 1), (16, kind)] {
            page[at + place..at + place + 4].copy_from_slice(&word.to_le_bytes());
        }
        for place in [24, 32] {
            page[at + place..at + place + 8].copy_from_slice(&node.to_le_bytes());
        }
        page
    }

    #[test]
    fn one_that_is_held_is_found_wherever_it_is() {
        for at in [0, 64, 1000, PAGE_SIZE - MUTEX_BYTES] {
            // Normal, recursive, with priority inheritance, of one process.
            for kind in [0x90, 0x91, 0xb0, 0x10] {
                assert!(has_one(&page_with(at, kind, TID, TID)));
                assert!(has_one(&page_with(at, kind, TID | 1 << 31, TID)), "others wait");
                assert!(has_one(&page_with(at, kind, TID, INCONSISTENT)), "its last owner has died");
                assert!(!has_one(&page_with(at, kind, 0, 0)), "nobody holds it");
            }
            // Not robust.
            for kind in [0x80, 0xa0, 0] {
                assert!(!has_one(&page_with(at, kind, TID, TID)));
            }
        }
    }

    #[test]
    fn the_first_page_with_one_is_told() {
        let (free, held) = (vec![0; PAGE_SIZE], page_with(8, 0x90, TID, TID));
        assert_eq!(first_page_with_one(&[&free[..], &free, &held, &held].concat()), Some(2 * PAGE_SIZE));
        assert_eq!(first_page_with_one(&[&free[..], &free].concat()), None);
    }

    #[test]
    fn numbers_are_not_taken_for_mutexes() {
        let words = |word: &dyn Fn(u64) -> u64| -> Vec<u8> {
            (0..PAGE_SIZE as u64 / 8).flat_map(|index| word(index).to_le_bytes()).collect()
        };
        assert!(!has_one(&words(&|index| index)));
        assert!(!has_one(&words(&|_| 0x90)));
        assert!(!has_one(&words(&|_| 0x90_0000_0090)));
        assert!(!has_one(&words(&|index| 0x7f00_0000_0000 + index * 0x90)));
    }
}
