//! The agent's own heap: dlmalloc over [`private_memory`], behind a one-word lock.
//!
//! It works before any constructor has run, in threads that libc does not know, and in fork handlers.
//! Blocks of a megabyte and more are mappings of their own. When the kernel gives no more, blocks come from the [`reserve`];
//! when that is used up, the process is ended, and the user is told why: std's own words would reach nobody. Who can do
//! without asks inside of [`may_fail`].
//!
//! While the lock is held only its own static, private memory and the caller's stack are touched. That last one is the rule's other half: **a program thread, whose stack may be swapped out, must not
//! allocate**, or it may fault while it holds the lock that the fault's handler waits for. Agent threads
//! (private stacks) and the agent's constructor (nothing is swapped yet) may.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::{Cell, UnsafeCell};
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use dlmalloc::{Allocator, Dlmalloc};

use crate::PAGE_SIZE;
use crate::futex::RawLock;
use crate::private_memory::{self, PrivateMapping, Purpose};
use crate::{placement, report, reserve};

/// Bytes asked of the kernel at once: few mappings, little waste.
const GRANULARITY: usize = 1 << 20;

/// The agent's heap, for `#[global_allocator]`. There is one per process, whatever the number of values.
#[derive(Clone, Copy, Debug, Default)]
pub struct AgentHeap;

/// # Invariants
/// `heap` and `demand` are touched by the holder of `lock` only.
struct Shared {
    lock: RawLock,
    heap: UnsafeCell<Dlmalloc<PrivatePages>>,
    /// Bytes of the block that is being looked for.
    demand: Cell<usize>,
    /// Where the blocks of this heap begin, if another was given up: see [`begin_anew_after_fork`]. Else 0.
    first_own: AtomicUsize,
}

// SAFETY: `heap` and `demand` are reached through `with` only, which holds the lock.
unsafe impl Sync for Shared {}

thread_local! {
    /// This thread can do without what it asks for.
    static MAY_FAIL: Cell<bool> = const { Cell::new(false) };
}

/// What `f` asks for may be refused: it must look (`try_reserve`). For agent threads.
pub fn may_fail<T>(f: impl FnOnce() -> T) -> T {
    let before = MAY_FAIL.replace(true);
    let result = f();
    MAY_FAIL.set(before);
    result
}

/// There is no block of `size` bytes, and no reserve either.
fn refuse(size: usize) -> *mut u8 {
    if MAY_FAIL.get() {
        return std::ptr::null_mut();
    }
    report::end(format_args!(
        "uswap gets no memory for its own books ({size} bytes), and without them pages would be lost; \
         ulimit -v, ulimit -d and vm.max_map_count bound it"
    ))
}

/// As if there were neither memory nor a reserve, for tests.
pub(crate) fn run_out_of_memory() {
    refuse(1);
}

static SHARED: Shared = Shared {
    lock: RawLock::new(),
    heap: UnsafeCell::new(const { new_heap() }),
    demand: Cell::new(0),
    first_own: AtomicUsize::new(0),
};

const fn new_heap() -> Dlmalloc<PrivatePages> {
    let mut heap = Dlmalloc::new_with_allocator(PrivatePages);
    assert!(heap.set_granularity(GRANULARITY));
    heap
}

/// `demand`: the bytes that `f` asks for.
fn with<T>(demand: usize, f: impl FnOnce(&mut Dlmalloc<PrivatePages>) -> T) -> T {
    SHARED.lock.lock();
    SHARED.demand.set(demand);
    // SAFETY: the lock is held, so this is the only reference; dlmalloc does not call back into us,
    // and PrivatePages does not allocate. A panic in it aborts for want of an allocator-safe unwind,
    // so the lock is never left behind by one.
    let result = f(unsafe { &mut *SHARED.heap.get() });
    SHARED.lock.unlock();
    result
}

/// In a forked child, by its only thread, before it asks for a block.
///
/// A thread of the agent that had the heap's lock while fork(2) copied the process does not exist here, and what it was at may be
/// half done. Then what there is of the heap stays as it is for ever, read and never freed, and a new one begins. A lock that
/// is free was released by who had left all in order: a write to a page that has been copied waits until fork(2) is over.
pub fn begin_anew_after_fork() {
    if SHARED.lock.try_lock() {
        SHARED.lock.unlock();
        return;
    }
    SHARED.first_own.store(placement::never_given(), Relaxed);
    // SAFETY: there is no other thread, and this one has no reference to the heap. The old value has nothing to drop.
    unsafe { SHARED.heap.get().write(new_heap()) };
    SHARED.lock.unlock();
}

/// Whether a block is, or may be, of a heap that was given up.
fn is_given_up(block: *mut u8) -> bool {
    match SHARED.first_own.load(Relaxed) {
        0 => false,
        first => !placement::is_given_from(first, block.addr()),
    }
}

/// Whether a block is a mapping of its own, which goes back to the kernel as soon as it is freed.
fn is_large(size: usize, align: usize) -> bool {
    size >= GRANULARITY && align <= PAGE_SIZE
}

// SAFETY: dlmalloc gives out blocks that are of the layout's size and alignment, apart from each other,
// and valid until freed; the lock serialises it. So is a private mapping. Which of the two a block is
// follows from its layout alone.
unsafe impl GlobalAlloc for AgentHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on to the caller.
        let block = unsafe { find(layout, false) };
        if block.is_null() { refuse(layout.size()) } else { block }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let block = unsafe { find(layout, true) };
        if block.is_null() { refuse(layout.size()) } else { block }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        if is_large(layout.size(), layout.align()) {
            PrivatePages.free(ptr, layout.size().next_multiple_of(PAGE_SIZE));
            return;
        }
        if is_given_up(ptr) {
            return;
        }
        // SAFETY: `ptr` came from alloc with this layout, by dealloc's contract.
        with(0, |heap| unsafe { heap.free(ptr, layout.size(), layout.align()) })
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        if !is_large(size, align) && !is_large(new_size, align) && !is_given_up(ptr) {
            // SAFETY: `ptr` came from alloc with this layout, and the new size is not zero, by
            // realloc's contract.
            let block = with(new_size + align, |heap| unsafe { heap.realloc(ptr, size, align, new_size) });
            return if block.is_null() { refuse(new_size) } else { block };
        }
        // SAFETY: the new layout is valid and not empty, by realloc's contract; old and new block are
        // apart, and as large as what is copied; the old one came from alloc with this layout.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(new_size, align));
            if !new.is_null() {
                std::ptr::copy_nonoverlapping(ptr, new, size.min(new_size));
                self.dealloc(ptr, layout);
            }
            new
        }
    }
}

/// A block, or null.
///
/// # Safety
/// The layout's size is not zero.
unsafe fn find(layout: Layout, zeroed: bool) -> *mut u8 {
    let (size, align) = (layout.size(), layout.align());
    if is_large(size, align) {
        return private_memory::map(size, Purpose::Heap).map_or(std::ptr::null_mut(), |block| block.into_raw().0);
    }
    with(size + align, |heap| {
        // SAFETY: the caller's promise.
        unsafe { if zeroed { heap.calloc(size, align) } else { heap.malloc(size, align) } }
    })
}

/// Where dlmalloc gets its pages.
struct PrivatePages;

// SAFETY: every region given out is a private mapping of its own, which stays until it is freed; the
// parts that are freed are unmapped, and those that are not stay usable.
unsafe impl Allocator for PrivatePages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        if let Ok(mapping) = private_memory::map_fresh(size, Purpose::Heap) {
            let (base, len) = mapping.into_raw();
            return (base, len, 0);
        }
        // What is set aside lies anywhere: it could not be told from that of a heap that was given up.
        if SHARED.first_own.load(Relaxed) != 0 {
            return (std::ptr::null_mut(), 0, 0);
        }
        // No more than the block needs, dlmalloc's own records, which take some hundred bytes, included.
        let len = (SHARED.demand.get() + PAGE_SIZE).next_multiple_of(reserve::CHUNK);
        match reserve::take(len) {
            Some(base) => (base, len, 0),
            None => (std::ptr::null_mut(), 0, 0),
        }
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        std::ptr::null_mut()
    }

    fn free_part(&self, ptr: *mut u8, old_size: usize, new_size: usize) -> bool {
        self.free(ptr.wrapping_add(new_size), old_size - new_size)
    }

    fn free(&self, ptr: *mut u8, size: usize) -> bool {
        let whole_pages = ptr.addr().is_multiple_of(PAGE_SIZE) && size.is_multiple_of(PAGE_SIZE) && size != 0;
        match NonNull::new(ptr) {
            Some(_) if reserve::has(ptr.addr()) => {
                // SAFETY: as below.
                unsafe { reserve::give_back(ptr, size) }
            }
            Some(base) if whole_pages => {
                // SAFETY: dlmalloc owns these pages, which came from `alloc` above (perhaps from
                // several neighbouring calls), and has no block in them any more.
                drop(unsafe { PrivateMapping::from_raw(base, size, Purpose::Heap) });
                true
            }
            _ => false,
        }
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE_SIZE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The unit tests of this crate all run on AgentHeap (see lib.rs).

    #[test]
    fn everything_allocated_is_private() {
        for size in [1, 100, 5000, 3 << 20] {
            let block = vec![1u8; size];
            let start = block.as_ptr().addr();
            assert_eq!(private_memory::next_gap(start, start + size), None);
        }
    }

    #[test]
    fn threads_may_allocate_at_once() {
        std::thread::scope(|scope| {
            for seed in 0..4usize {
                scope.spawn(move || {
                    let mut blocks: Vec<Vec<u8>> = Vec::new();
                    let mut chance = seed + 1;
                    for _ in 0..20_000 {
                        chance = chance.wrapping_mul(6364136223846793005).wrapping_add(1);
                        let size = 1 + (chance >> 33) % 3000;
                        if blocks.len() > 100 {
                            let block = blocks.swap_remove(chance % 100);
                            assert!(block.iter().all(|&b| b == block.len() as u8));
                        }
                        blocks.push(vec![size as u8; size]);
                    }
                });
            }
        });
    }

    #[test]
    fn large_blocks_are_aligned_and_zeroed() {
        for align in [64, 4096, 1 << 16] {
            let layout = Layout::from_size_align(10_000, align).unwrap();
            // SAFETY: the size is not zero; the block is read within it, and freed with its layout.
            unsafe {
                let block = AgentHeap.alloc_zeroed(layout);
                assert!(block.addr().is_multiple_of(align));
                assert!((0..10_000).all(|i| *block.add(i) == 0));
                AgentHeap.dealloc(block, layout);
            }
        }
    }

    #[test]
    fn memory_goes_back_to_the_kernel() {
        let mut block = vec![1u8; 4 << 20];
        block.resize(64 << 20, 2);
        assert!(block[(4 << 20) - 1] == 1 && block[4 << 20] == 2);
        let (start, end) = (block.as_ptr().addr(), block.as_ptr().addr() + block.len());
        drop(block);
        assert!(private_memory::next_gap(start, end).is_some(), "64 MiB freed and all of it kept");
    }

    /// As where another thread was in the heap while fork(2) copied the process.
    #[test]
    fn a_child_goes_on_with_a_heap_of_its_own() {
        let mut old = vec![7u8; 100];
        let small = Box::new(1u64);
        SHARED.lock.lock();
        // SAFETY: the child calls nothing but this crate and _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            begin_anew_after_fork();
            old.resize(300_000, 8);
            drop(small);
            let blocks: Vec<Box<u64>> = (0..1000).map(Box::new).collect();
            let is_right =
                old[..100].iter().all(|&byte| byte == 7) && blocks.iter().zip(0..).all(|(block, n)| **block == n);
            drop(blocks);
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        SHARED.lock.unlock();
        let mut status = 0;
        // SAFETY: the kernel writes the status.
        assert_eq!((unsafe { libc::waitpid(child, &mut status, 0) }, status), (child, 0));
    }
}
