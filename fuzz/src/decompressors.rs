//! Objects of the pool and of swap areas: a disk may give anything back for them.
//!
//! Input: one byte that says how, then the object; or, to compress, what a page is filled with.

use std::cell::RefCell;

use uswap_engine::compress::{COMPRESSED_BYTES_MAX, PageCompressor};
use uswap_engine::group::Compressor;
use xxhash_rust::xxh3::xxh3_128;

use crate::guarded::{Guarded, PAGE_BYTES};
use crate::{Canary, Seed, Target};

/// This target.
pub const TARGET: Target =
    Target { name: "decompressors", run, seeds, words: &[b"\x28\xb5\x2f\xfd", b"\xff\xff\xff\xff", b"\x1f\x01\x00"] };

/// Bits of the first byte.
const ZSTD: u8 = 1;
const NONE: u8 = 2;
/// The rest is content to be compressed first.
const CONTENT: u8 = 4;

/// The longest object that is tried: a page and more.
const OBJECT_BYTES_MAX: usize = 5 * PAGE_BYTES / 4;

/// What one thread compresses with.
struct Bench {
    compressors: [PageCompressor; 3],
    object: Guarded,
    page: Guarded,
}

thread_local! {
    static BENCH: RefCell<Bench> = RefCell::new(Bench {
        compressors: [Compressor::Lz4, Compressor::Zstd, Compressor::None].map(PageCompressor::new),
        object: Guarded::new(OBJECT_BYTES_MAX.div_ceil(PAGE_BYTES)),
        page: Guarded::new(1),
    });
}

/// Decompresses it.
pub fn run(bytes: &[u8], canary: Canary) {
    let Some((&how, rest)) = bytes.split_first() else { return };
    let which = usize::from(how & (ZSTD | NONE)).min(2);
    BENCH.with_borrow_mut(|bench| {
        if how & CONTENT != 0 {
            bench.comes_back(which, rest);
        } else {
            bench.is_a_page_or_corrupt(which, &rest[..rest.len().min(OBJECT_BYTES_MAX)], canary);
        }
        // Whatever it was given, it works afterwards.
        bench.comes_back(which, b"what does not fit is compressed");
    });
}

impl Bench {
    /// Content that is not compressed too badly is there again.
    fn comes_back(&mut self, which: usize, content: &[u8]) {
        let page: [u8; PAGE_BYTES] =
            std::array::from_fn(|index| content.get(index % content.len().max(1)).copied().unwrap_or_default());
        let mut out = [0; PAGE_BYTES];
        let Some(bytes) = self.compressors[which].compress(&page, &mut out) else { return };
        assert!((1..=COMPRESSED_BYTES_MAX).contains(&bytes));
        let object = self.object.at_end(&out[..bytes]);
        assert_eq!(self.compressors[which].decompress(object, self.page.page()), Ok(()));
        assert_eq!(xxh3_128(self.page.page()), xxh3_128(&page));
    }

    /// Any bytes are a page, and then all of the page comes from them and from nothing else; or they are corrupt.
    fn is_a_page_or_corrupt(&mut self, which: usize, object: &[u8], canary: Canary) {
        let hashes = [(0x00, false), (0xff, true), (0x5a, false)].map(|(filling, at_end)| {
            let page = self.page.page();
            page.fill(filling);
            let place = if at_end { self.object.at_end(object) } else { self.object.at_start(object) };
            let ended = self.compressors[which].decompress(place, page);
            if canary.is_planted() && !page[PAGE_BYTES - 1].is_ascii() {
                // As if the last byte were left as it was when it is no text.
                page[PAGE_BYTES - 1] = filling;
            }
            ended.ok().map(|()| xxh3_128(page))
        });
        assert!(
            hashes.iter().all(|hash| *hash == hashes[0]),
            "what comes of an object is not told by its bytes: {hashes:?}"
        );
        match object.len() {
            PAGE_BYTES => assert_eq!(hashes[0], Some(xxh3_128(object)), "a page that was stored as it is"),
            1..=COMPRESSED_BYTES_MAX => assert!(which < 2 || hashes[0].is_none(), "nobody compressed it"),
            _ => assert_eq!(hashes[0], None, "an object of {} bytes", object.len()),
        }
    }
}

fn seeds() -> Vec<Seed> {
    let text = |index: usize| b"zero, one, two, three; "[index % 23];
    let contents: [fn(usize) -> u8; 3] =
        [|_| 0, |index| (index / 512) as u8, |index| b"zero, one, two, three; "[index % 23]];
    let mut out = [0; PAGE_BYTES];
    let mut object = |how: u8, content: fn(usize) -> u8| {
        let kind = if how == ZSTD { Compressor::Zstd } else { Compressor::Lz4 };
        let page = std::array::from_fn(content);
        let bytes = PageCompressor::new(kind).compress(&page, &mut out).expect("it is compressible");
        [&[how], &out[..bytes]].concat()
    };
    vec![
        ("lz4_zeros", object(0, contents[0])),
        ("lz4_steps", object(0, contents[1])),
        ("lz4_text", object(0, contents[2])),
        ("zstd_zeros", object(ZSTD, contents[0])),
        ("zstd_steps", object(ZSTD, contents[1])),
        ("zstd_text", object(ZSTD, contents[2])),
        ("content", [&[CONTENT | ZSTD][..], &std::array::from_fn::<u8, 100, _>(text)].concat()),
        ("content_for_lz4", [&[CONTENT][..], b"some"].concat()),
        ("none", vec![NONE, 1, 2, 3]),
    ]
}
