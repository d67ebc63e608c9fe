//! Compresses and decompresses single pages, with memory that is taken once.
//!
//! A [`PageCompressor`] belongs to one thread. All memory it works with is allocated by [`PageCompressor::new`] from
//! the Rust heap; compressing and decompressing allocates nothing, neither there nor in libc's heap. That is why the
//! contexts are the C libraries' "static" ones, made in memory that we hand in.
//!
//! What is stored of a page is told from its length alone: 1 to [`COMPRESSED_BYTES_MAX`] bytes are compressed, 4096 are
//! the page itself. Anything that does not decompress to exactly one page is [`Corrupt`]: whether the bytes of the page
//! are the right ones is for the content hash to say.
//!
//! An agent that need not know Zstandard is built without it (feature `zstd`): it would be a third of what is copied to
//! memory at each start of a program.
#![allow(unsafe_code)]

#[cfg(feature = "zstd")]
mod zstd;

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;

use crate::group::Compressor;

const PAGE_BYTES: usize = 4096;

/// The most bytes that a compressed page may have. With more, 4096 - 3840 = 256 bytes (four units of the pool) saved
/// do not pay for the time to decompress, and the classes of the pool above it hold one page each anyway.
pub const COMPRESSED_BYTES_MAX: usize = 3840;

/// Measured on pages of real programs: LZ4's default, ratio 2.08; 4 saves a tenth of the time and loses a twentieth of
/// the ratio.
const LZ4_ACCELERATION: c_int = 1;

/// The bytes are not what the compressor wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("compressed page is corrupt")]
pub struct Corrupt;

// lz4-sys links the whole of lz4.c but declares only a part of it. Signatures from lz4.h 1.10.
unsafe extern "C" {
    /// Bytes of a compression state.
    fn LZ4_sizeofState() -> c_int;
    /// As LZ4_compress_fast, with a state of the caller's, aligned to 8 bytes. Initialises the state itself. 0 when the
    /// result has more than `dst_capacity` bytes.
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_bytes: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
}

/// Memory for a C library, aligned to 8 bytes, at one address until drop. Held by pointer, not as a `Box`, because the
/// library keeps pointers into it.
struct Workspace {
    words: NonNull<[u64]>,
}

impl Workspace {
    fn new(bytes: usize) -> Workspace {
        let words = vec![0u64; bytes.div_ceil(8)].into_boxed_slice();
        Workspace { words: NonNull::from(Box::leak(words)) }
    }

    fn as_ptr(&self) -> *mut c_void {
        self.words.as_ptr().cast()
    }

    fn bytes(&self) -> usize {
        self.words.len() * 8
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // SAFETY: the pointer comes from `Box::leak` in `new`, and nobody else frees it.
        drop(unsafe { Box::from_raw(self.words.as_ptr()) });
    }
}

enum Codec {
    None,
    Lz4 {
        state: Workspace,
    },
    #[cfg(feature = "zstd")]
    Zstd(zstd::Zstd),
}

/// Compresses and decompresses pages for one thread.
pub struct PageCompressor {
    codec: Codec,
}

// SAFETY: contexts and workspaces are plain memory without ties to a thread; each is owned by one compressor, and every
// use of them takes `&mut`.
unsafe impl Send for PageCompressor {}

impl PageCompressor {
    /// Allocates everything that this compressor will need: 16 KiB for LZ4, less than 200 KiB for Zstandard.
    pub fn new(compressor: Compressor) -> PageCompressor {
        let codec = match compressor {
            Compressor::None => Codec::None,
            Compressor::Lz4 => {
                // SAFETY: a function without arguments or effects.
                let bytes = unsafe { LZ4_sizeofState() };
                let bytes = usize::try_from(bytes).expect("a size is positive");
                Codec::Lz4 { state: Workspace::new(bytes) }
            }
            #[cfg(feature = "zstd")]
            Compressor::Zstd => Codec::Zstd(zstd::Zstd::new()),
            #[cfg(not(feature = "zstd"))]
            Compressor::Zstd => unreachable!("a group with Zstandard is given the agent that knows it"),
        };
        PageCompressor { codec }
    }

    /// Compresses `page` into the start of `out` and says how many bytes it became. `None` when that would be more than
    /// [`COMPRESSED_BYTES_MAX`], and always without a compressor; `out` then holds nothing of use.
    pub fn compress(&mut self, page: &[u8; PAGE_BYTES], out: &mut [u8; PAGE_BYTES]) -> Option<usize> {
        // A compressor that runs out of room stops early: an incompressible page costs less than a whole one.
        let out = &mut out[..COMPRESSED_BYTES_MAX];
        match &mut self.codec {
            Codec::None => None,
            Codec::Lz4 { state } => {
                // SAFETY: the state has the size that the library asked for and is ours alone by `&mut`; both buffers
                // are as large as said.
                let bytes = unsafe {
                    LZ4_compress_fast_extState(
                        state.as_ptr(),
                        page.as_ptr().cast(),
                        out.as_mut_ptr().cast(),
                        PAGE_BYTES as c_int,
                        out.len() as c_int,
                        LZ4_ACCELERATION,
                    )
                };
                usize::try_from(bytes).ok().filter(|&bytes| bytes > 0)
            }
            #[cfg(feature = "zstd")]
            Codec::Zstd(zstd) => zstd.compress(page, out),
        }
    }

    /// Makes a page of what was stored of it: of what `compress` wrote, or of the 4096 bytes of the page itself. After
    /// an error `out` holds nothing of use.
    pub fn decompress(&mut self, bytes: &[u8], out: &mut [u8; PAGE_BYTES]) -> Result<(), Corrupt> {
        if let Ok(page) = <&[u8; PAGE_BYTES]>::try_from(bytes) {
            *out = *page;
            return Ok(());
        }
        if bytes.is_empty() || bytes.len() > COMPRESSED_BYTES_MAX {
            return Err(Corrupt);
        }
        match &mut self.codec {
            Codec::None => Err(Corrupt),
            Codec::Lz4 { .. } => {
                // SAFETY: both buffers are as large as said; the function stays inside of them whatever the bytes are.
                let page_bytes = unsafe {
                    lz4_sys::LZ4_decompress_safe(
                        bytes.as_ptr().cast(),
                        out.as_mut_ptr().cast(),
                        bytes.len() as c_int,
                        PAGE_BYTES as c_int,
                    )
                };
                // An error is negative.
                if page_bytes == PAGE_BYTES as c_int { Ok(()) } else { Err(Corrupt) }
            }
            #[cfg(feature = "zstd")]
            Codec::Zstd(zstd) => zstd.decompress(bytes, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Page = [u8; PAGE_BYTES];

    const BOTH: [Compressor; 2] = [Compressor::Lz4, Compressor::Zstd];

    /// xorshift64*: chance from a seed.
    struct Chance(u64);
    impl Chance {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
        }
        fn below(&mut self, bound: usize) -> usize {
            (self.next() >> 33) as usize % bound
        }
    }

    fn random_page(chance: &mut Chance) -> Page {
        std::array::from_fn(|_| chance.next() as u8)
    }

    fn text_page() -> Page {
        let words = b"what does not fit is compressed in memory and what does not fit there goes to a file; ";
        std::array::from_fn(|i| words[(i + i / 977) % words.len()])
    }

    /// Pointers into one heap, as in the pages of an interpreter.
    fn pointer_page(chance: &mut Chance) -> Page {
        let mut page = [0; PAGE_BYTES];
        for word in page.as_chunks_mut::<8>().0 {
            *word = (0x7F3A_1240_0000 + (chance.below(1 << 18) as u64 * 16)).to_le_bytes();
        }
        page
    }

    /// Zeros with some random bytes.
    fn sparse_page(chance: &mut Chance, bytes: usize) -> Page {
        let mut page = [0; PAGE_BYTES];
        for _ in 0..bytes {
            page[chance.below(PAGE_BYTES)] = chance.next() as u8;
        }
        page
    }

    fn compressible_pages() -> Vec<Page> {
        let mut chance = Chance(7);
        vec![
            [0; PAGE_BYTES],
            [0xA5; PAGE_BYTES],
            text_page(),
            pointer_page(&mut chance),
            sparse_page(&mut chance, 10),
            sparse_page(&mut chance, 300),
        ]
    }

    #[test]
    fn pages_come_back_as_they_were() {
        for kind in BOTH {
            let mut compressor = PageCompressor::new(kind);
            let mut out = [0; PAGE_BYTES];
            for page in compressible_pages() {
                let bytes = compressor.compress(&page, &mut out).unwrap();
                assert!((1..=COMPRESSED_BYTES_MAX).contains(&bytes));
                let mut back = [0xEE; PAGE_BYTES];
                assert_eq!(compressor.decompress(&out[..bytes], &mut back), Ok(()));
                assert_eq!(back, page);
            }
        }
    }

    #[test]
    fn pages_of_any_density_come_back_or_are_incompressible() {
        for kind in BOTH {
            let mut chance = Chance(11);
            let mut compressor = PageCompressor::new(kind);
            let (mut some, mut none) = (0, 0);
            for round in 0..3000 {
                let page = sparse_page(&mut chance, round * 4);
                let mut out = [0; PAGE_BYTES];
                match compressor.compress(&page, &mut out) {
                    None => none += 1,
                    Some(bytes) => {
                        some += 1;
                        assert!(bytes <= COMPRESSED_BYTES_MAX);
                        let mut back = [0xEE; PAGE_BYTES];
                        assert_eq!(compressor.decompress(&out[..bytes], &mut back), Ok(()));
                        assert_eq!(back, page);
                    }
                }
            }
            assert!(some > 500 && none > 100, "{kind:?} {some} {none}");
        }
    }

    #[test]
    fn random_bytes_are_incompressible() {
        for kind in BOTH {
            let mut chance = Chance(3);
            let mut compressor = PageCompressor::new(kind);
            for _ in 0..100 {
                let page = random_page(&mut chance);
                let mut out = [0x77; PAGE_BYTES];
                assert_eq!(compressor.compress(&page, &mut out), None);
                assert_eq!(out[COMPRESSED_BYTES_MAX..], [0x77; 256], "written past the cap");
            }
        }
    }

    #[test]
    fn without_a_compressor_pages_are_stored_as_they_are() {
        let mut compressor = PageCompressor::new(Compressor::None);
        let page = text_page();
        let mut out = [0; PAGE_BYTES];
        assert_eq!(compressor.compress(&[0; PAGE_BYTES], &mut out), None);
        assert_eq!(compressor.decompress(&page, &mut out), Ok(()));
        assert_eq!(out, page);
        assert_eq!(compressor.decompress(&page[..100], &mut out), Err(Corrupt));
    }

    #[test]
    fn a_stored_page_of_4096_bytes_is_the_page_itself() {
        for kind in BOTH {
            let page = random_page(&mut Chance(5));
            let mut out = [0; PAGE_BYTES];
            assert_eq!(PageCompressor::new(kind).decompress(&page, &mut out), Ok(()));
            assert_eq!(out, page);
        }
    }

    #[test]
    fn impossible_lengths_are_corrupt() {
        for kind in BOTH {
            let mut out = [0; PAGE_BYTES];
            let bytes = [0u8; 5000];
            for len in [0, COMPRESSED_BYTES_MAX + 1, 4095, 4097, 5000] {
                assert_eq!(PageCompressor::new(kind).decompress(&bytes[..len], &mut out), Err(Corrupt));
            }
        }
    }

    /// Mutated input decompresses to some page or is `Corrupt`. Nothing around the output is touched, and the
    /// compressor works afterwards as before.
    #[test]
    fn corrupted_input_stays_inside_of_its_buffers() {
        #[repr(C)]
        struct Guarded {
            before: [u8; 512],
            page: Page,
            after: [u8; 512],
        }
        for kind in BOTH {
            let mut chance = Chance(13);
            let mut compressor = PageCompressor::new(kind);
            let pages = compressible_pages();
            let mut guarded = Box::new(Guarded { before: [0xC3; 512], page: [0; PAGE_BYTES], after: [0xC3; 512] });
            let mut corrupt = 0;
            for round in 0..20_000 {
                let page = &pages[round % pages.len()];
                let mut out = [0; PAGE_BYTES];
                let bytes = compressor.compress(page, &mut out).unwrap();
                // A buffer of the exact length, so that a sanitizer sees a read past its end.
                let mut input = out[..bytes].to_vec();
                match chance.below(5) {
                    0 => input.truncate(chance.below(bytes)),
                    1 => input.extend((0..1 + chance.below(64)).map(|_| chance.0 as u8)),
                    2 => input = (0..1 + chance.below(3840)).map(|_| chance.next() as u8).collect(),
                    _ => {
                        for _ in 0..1 + chance.below(6) {
                            input[chance.below(bytes)] ^= 1 << chance.below(8);
                        }
                    }
                }
                if compressor.decompress(&input, &mut guarded.page) == Err(Corrupt) {
                    corrupt += 1;
                }
                assert_eq!((guarded.before, guarded.after), ([0xC3; 512], [0xC3; 512]));
                if round % 64 == 0 {
                    assert_eq!(compressor.decompress(&out[..bytes], &mut guarded.page), Ok(()));
                    assert_eq!(guarded.page, *page);
                }
            }
            assert!(corrupt > 10_000, "{kind:?}: {corrupt} of 20000");
        }
    }

    #[test]
    fn two_compressors_read_each_other() {
        for kind in BOTH {
            let mut out = [0; PAGE_BYTES];
            let bytes = PageCompressor::new(kind).compress(&text_page(), &mut out).unwrap();
            let mut back = [0; PAGE_BYTES];
            PageCompressor::new(kind).decompress(&out[..bytes], &mut back).unwrap();
            assert_eq!(back, text_page());
        }
    }

    /// Agent threads have small stacks.
    #[test]
    fn half_of_an_agent_threads_stack_is_enough() {
        for kind in BOTH {
            let mut compressor = PageCompressor::new(kind);
            std::thread::Builder::new()
                .stack_size(32 << 10)
                .spawn(move || {
                    let mut pages = Box::new([text_page(), [0; PAGE_BYTES], [0; PAGE_BYTES]]);
                    let [page, out, back] = &mut *pages;
                    let bytes = compressor.compress(page, out).unwrap();
                    compressor.decompress(&out[..bytes], back).unwrap();
                    assert_eq!(page, back);
                })
                .unwrap()
                .join()
                .unwrap();
        }
    }
}
