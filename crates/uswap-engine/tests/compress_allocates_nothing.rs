//! Compressing and decompressing a page never calls malloc: neither libc's, nor Rust's heap on top of it.
//!
//! On the page-fault path the thread that holds malloc's lock may be the one that waits for the page. This test has a
//! program of its own, because it replaces malloc for the whole program.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use uswap_engine::compress::PageCompressor;
use uswap_engine::group::Compressor;

static CALLS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The test harness has threads of its own: only the one that sets this is watched.
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    if WATCHED.get() {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

// glibc's own names for its heap.
unsafe extern "C" {
    fn __libc_malloc(bytes: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, bytes: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, bytes: usize) -> *mut c_void;
    fn __libc_free(old: *mut c_void);
}

/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(bytes: usize) -> *mut c_void {
    count();
    // SAFETY: passed on.
    unsafe { __libc_malloc(bytes) }
}

/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(number: usize, bytes: usize) -> *mut c_void {
    count();
    // SAFETY: passed on.
    unsafe { __libc_calloc(number, bytes) }
}

/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(old: *mut c_void, bytes: usize) -> *mut c_void {
    count();
    // SAFETY: passed on.
    unsafe { __libc_realloc(old, bytes) }
}

/// # Safety
/// As the C function.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(old: *mut c_void) {
    count();
    // SAFETY: passed on.
    unsafe { __libc_free(old) }
}

fn calls_during(work: impl FnOnce()) -> usize {
    let before = CALLS.load(Ordering::Relaxed);
    WATCHED.set(true);
    work();
    WATCHED.set(false);
    CALLS.load(Ordering::Relaxed) - before
}

#[test]
fn compressing_allocates_nothing() {
    let mut pages: Vec<[u8; 4096]> = vec![[0; 4096]];
    pages.push(std::array::from_fn(|i| (i / 16) as u8));
    pages.push(std::array::from_fn(|i| b"pages of a program "[i % 19]));
    let mut state = 1u32;
    pages.push(std::array::from_fn(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    }));
    // The functions above are the ones that this thread calls.
    assert!(calls_during(|| drop(std::hint::black_box(Box::new(7)))) > 0);

    for kind in [Compressor::None, Compressor::Lz4, Compressor::Zstd] {
        let mut compressor = PageCompressor::new(kind);
        let mut out = Box::new([0; 4096]);
        let mut back = Box::new([0; 4096]);
        let mut compressed_pages = 0;
        let calls = calls_during(|| {
            for page in pages.iter().cycle().take(200) {
                let Some(bytes) = compressor.compress(page, &mut out) else {
                    continue;
                };
                compressed_pages += 1;
                compressor.decompress(&out[..bytes], &mut back).unwrap();
                assert!(*back == *page);
                // An error allocates no more than a success.
                let _ = compressor.decompress(&out[1..bytes], &mut back);
            }
        });
        assert_eq!(calls, 0, "{kind:?}");
        assert_eq!(compressed_pages, if kind == Compressor::None { 0 } else { 150 });
    }
}
