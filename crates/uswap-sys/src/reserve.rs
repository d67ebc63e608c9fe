//! Memory set aside for when the kernel gives no more (`ulimit -v`, `ulimit -d`, vm.max_map_count).
//!
//! Where pages are swapped out, a thread of the agent that gets no memory can neither go on nor give up: the books must
//! be kept, or a page is lost. So the heap, stacks and buffers fall back on this. A first piece is part of the library and
//! always there; [`refill`] maps more, ahead of need, and says whether there is enough. While there is not, the engine
//! begins nothing that makes the books grow (see `Engine::is_out_of_memory`), and what is left serves faults.
//!
//! A piece is cut into 64 chunks at most, one bit each: taking and giving back are one compare-and-swap, so there is no lock
//! that a fork or a thread that is stopped could leave behind. Memory that is not used yet costs addresses only.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU64, AtomicUsize};

use rustix::mm::Advice;

use crate::private_memory::{self, Purpose};
use crate::{PAGE_SIZE, placement};

/// What is given out together.
pub const CHUNK: usize = 128 << 10;
/// Chunks of the first piece: 512 KiB, several times what a process takes until it swaps.
const FIRST_CHUNKS: usize = 4;
/// Chunks of any other piece: 8 MiB.
const PIECE_CHUNKS: usize = 64;
/// Of so much it is said that there is enough. Faults take some hundred bytes each, and seldom.
const ENOUGH_CHUNKS: u32 = 48;
/// Pieces at most.
const PIECES: usize = 32;

/// A page in front of and behind the chunks, so that no block of the heap reaches from a piece into its neighbour.
#[repr(C, align(4096))]
struct First(UnsafeCell<[u8; PAGE_SIZE + FIRST_CHUNKS * CHUNK + PAGE_SIZE]>);

// SAFETY: its bytes belong to whoever was given them.
unsafe impl Sync for First {}

static FIRST: First = First(UnsafeCell::new([0; PAGE_SIZE + FIRST_CHUNKS * CHUNK + PAGE_SIZE]));

struct Piece {
    /// Address of its first chunk; 0 while there is none.
    start: AtomicUsize,
    /// Chunks that can be had.
    free: AtomicU64,
}

static TABLE: [Piece; PIECES] = [const { Piece { start: AtomicUsize::new(0), free: AtomicU64::new(0) } }; PIECES];

/// Makes the first piece available. Before anything else is asked for; a second call changes nothing.
pub fn prepare() {
    let start = FIRST.0.get().addr() + PAGE_SIZE;
    if TABLE[0].start.compare_exchange(0, start, AcqRel, Relaxed).is_ok() {
        FIRST.0.get().expose_provenance();
        TABLE[0].free.store((1 << FIRST_CHUNKS) - 1, std::sync::atomic::Ordering::Release);
    }
}

fn pieces() -> impl Iterator<Item = (&'static Piece, usize)> {
    TABLE.iter().map(|piece| (piece, piece.start.load(Acquire))).filter(|&(_, start)| start != 0)
}

/// The lowest of `count` bits side by side that are set in `free`.
fn run_of(free: u64, count: usize) -> Option<u32> {
    let mut starts = free;
    for shift in 1..count {
        starts &= free >> shift;
    }
    (starts != 0).then(|| starts.trailing_zeros())
}

fn mask(at: u32, count: usize) -> u64 {
    (u64::MAX >> (64 - count)) << at
}

/// Takes `len` bytes of zeros, rounded up to chunks; `None` when there are not as many in one piece. Needs neither heap nor
/// lock.
pub(crate) fn take(len: usize) -> Option<*mut u8> {
    let count = len.div_ceil(CHUNK).max(1);
    if count > PIECE_CHUNKS {
        return None;
    }
    for (piece, start) in pieces() {
        let mut free = piece.free.load(Acquire);
        while let Some(at) = run_of(free, count) {
            match piece.free.compare_exchange(free, free & !mask(at, count), AcqRel, Acquire) {
                Ok(_) => return Some(std::ptr::with_exposed_provenance_mut(start + at as usize * CHUNK)),
                Err(now) => free = now,
            }
        }
    }
    None
}

/// Whether an address lies in what is set aside.
pub(crate) fn has(address: usize) -> bool {
    pieces().any(|(piece, start)| (start..start + chunks_of(piece) * CHUNK).contains(&address))
}

fn chunks_of(piece: &Piece) -> usize {
    if std::ptr::eq(piece, &TABLE[0]) { FIRST_CHUNKS } else { PIECE_CHUNKS }
}

/// Gives back what [`take`] gave, or whole chunks of it; `false`, and nothing done, if it is something else.
///
/// # Safety
/// The memory is the caller's alone, and is used no more.
pub(crate) unsafe fn give_back(base: *mut u8, len: usize) -> bool {
    let (address, count) = (base.addr(), len.div_ceil(CHUNK));
    let Some((piece, start)) =
        pieces().find(|&(piece, start)| (start..start + chunks_of(piece) * CHUNK).contains(&address))
    else {
        return false;
    };
    let offset = address - start;
    if !offset.is_multiple_of(CHUNK) || offset / CHUNK + count > chunks_of(piece) {
        return false;
    }
    // The next who takes it expects zeros.
    // SAFETY: the caller's promise; the range lies inside of the piece.
    unsafe {
        if rustix::mm::madvise(base.cast(), count * CHUNK, Advice::LinuxDontNeed).is_err() {
            std::ptr::write_bytes(base, 0, count * CHUNK);
        }
    }
    piece.free.fetch_or(mask((offset / CHUNK) as u32, count), AcqRel);
    true
}

/// Whether there is as much as there should be.
pub fn is_enough() -> bool {
    let free: u32 = pieces().map(|(piece, _)| piece.free.load(Relaxed).count_ones()).sum();
    free >= ENOUGH_CHUNKS
}

/// Maps more if there is not enough. Whether there is enough then. One thread at a time.
pub fn refill() -> bool {
    if is_enough() {
        return true;
    }
    let Some(piece) = TABLE.iter().skip(1).find(|piece| piece.start.load(Acquire) == 0) else { return false };
    // With a page in front and behind, as above.
    let Ok(mapping) = private_memory::map_fresh(PIECE_CHUNKS * CHUNK + 2 * PAGE_SIZE, Purpose::Heap) else {
        return false;
    };
    let (base, _) = mapping.into_raw();
    base.expose_provenance();
    piece.free.store(u64::MAX, Relaxed);
    piece.start.store(base.addr() + PAGE_SIZE, std::sync::atomic::Ordering::Release);
    is_enough()
}

/// The kernel has refused a mapping: whether the caller may try again, because addresses that were kept for this moment have
/// been given up. Once; [`keep_addresses`] sets more aside.
pub(crate) fn give_up_addresses() -> bool {
    let start = BALLAST.swap(0, AcqRel);
    if start == 0 {
        return false;
    }
    // SAFETY: `keep_addresses` mapped it, inaccessible, and nobody else knows of it.
    unsafe { rustix::mm::munmap(std::ptr::with_exposed_provenance_mut(start), BALLAST_BYTES) }.is_ok()
}

/// Addresses, and a mapping, for what cannot come from the reserve: memory shared with a child.
static BALLAST: AtomicUsize = AtomicUsize::new(0);
const BALLAST_BYTES: usize = 4 << 20;

/// Keeps addresses for mappings that must not fail, such as those of a fork. One thread at a time; failing is no harm yet.
pub fn keep_addresses() {
    use rustix::mm::{MapFlags, ProtFlags};
    if BALLAST.load(Acquire) != 0 {
        return;
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    if let Ok(base) = placement::map_once(BALLAST_BYTES, ProtFlags::empty(), flags, None) {
        BALLAST.store(base.as_ptr().expose_provenance(), std::sync::atomic::Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_bits_is_found() {
        assert_eq!(run_of(0b1011_0111, 3), Some(0));
        assert_eq!(run_of(0b1011_0110, 2), Some(1));
        assert_eq!(run_of(0b1010_0110, 3), None);
        assert_eq!(run_of(u64::MAX, 64), Some(0));
        assert_eq!(run_of(u64::MAX - 1, 64), None);
        assert_eq!((mask(3, 2), mask(0, 64)), (0b11000, u64::MAX));
    }

    #[test]
    fn what_is_taken_is_zero_and_can_be_given_back() {
        prepare();
        assert!(refill() && is_enough());
        // Larger than the first piece, so that no other test has a part of it.
        let len = FIRST_CHUNKS * CHUNK + 1;
        for _ in 0..200 {
            let base = take(len).expect("it was refilled");
            assert!(has(base.addr()) && private_memory::overlaps(base.addr(), base.addr() + len));
            // SAFETY: taken above, for this test alone, and given back once.
            unsafe {
                assert!((0..len).step_by(511).all(|at| base.add(at).read() == 0));
                base.write_bytes(7, len);
                assert!(!give_back(base.add(PAGE_SIZE), CHUNK), "not the start of a chunk");
                assert!(give_back(base, len));
            }
        }
        assert!(take(PIECE_CHUNKS * CHUNK + 1).is_none());
        let mut elsewhere = 0u8;
        // SAFETY: it is not ours, so nothing is done.
        assert!(!unsafe { give_back(&raw mut elsewhere, 1) });
    }
}
