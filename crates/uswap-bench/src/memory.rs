//! Memory of the program under test: pages with known content, and single accesses that check it.
//!
//! The first word of a page says how often the page was written to; the others never change. Where it is shared, each of several
//! processes works in a part of its own.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use uswap_sys::mapped_words::{Kept, MappedWords};

use crate::order::{Chance, Order, mix};
use crate::workload::{SAMPLE_EVERY, Samples, Workload};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// 64-bit words of a page.
const PAGE_WORDS: usize = PAGE_BYTES / 8;
/// Words of one record; a page is an array of 64 of them.
const RECORD_WORDS: usize = 8;

/// A word that is not what was stored there.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrongData {
    page: u64,
    word: usize,
    expected: u64,
    found: u64,
}

impl fmt::Display for WrongData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WrongData { page, word, expected, found } = self;
        write!(f, "word {word} of page {page} is {found:#018x}, not {expected:#018x}")
    }
}

/// See the file's head.
pub struct Memory {
    words: MappedWords,
    /// How often each page was written to since the fill.
    generations: MappedWords,
}

impl Memory {
    /// Address space for `pages` pages; none of it is touched.
    pub fn reserve(pages: u64, kept: Kept) -> Memory {
        let page_count = usize::try_from(pages).expect("64-bit machine");
        let map = |words| MappedWords::new(words, kept).expect("address space for the program under test");
        Memory { words: map(page_count * PAGE_WORDS), generations: map(page_count) }
    }

    /// Stores the first content of every page of `pages`, in address order.
    pub fn fill(&self, pages: Range<u64>, mut samples: Option<&mut Samples>) {
        let mut chance = Chance::new(pages.start);
        let (all, _) = self.words.as_chunks::<PAGE_WORDS>();
        for page in pages {
            let content = page_content(page);
            let store = || all[page as usize].iter().zip(content).for_each(|(word, new)| word.store(new, Relaxed));
            match &mut samples {
                Some(samples) if chance.one_in(SAMPLE_EVERY) => {
                    let start = Instant::now();
                    store();
                    samples.add(start);
                }
                _ => store(),
            }
        }
    }

    /// Cuts the memory into parts of `part_pages` pages.
    pub fn parts(&self, part_pages: u64) -> Vec<Part<'_>> {
        let part_len = usize::try_from(part_pages).expect("64-bit machine");
        let (pages, _) = self.words.as_chunks::<PAGE_WORDS>();
        pages
            .chunks(part_len)
            .zip(self.generations.chunks(part_len))
            .enumerate()
            .map(|(index, (pages, generations))| Part { first_page: index as u64 * part_pages, pages, generations })
            .collect()
    }

    /// Compares every word of every page with what must be there.
    pub fn check_all(&self) -> Result<(), WrongData> {
        let (pages, _) = self.words.as_chunks::<PAGE_WORDS>();
        for (page, (content, generation)) in (0..).zip(pages.iter().zip(&*self.generations)) {
            let mut expected = page_content(page);
            expected[0] = tag(page, generation.load(Relaxed));
            for (word, (found, expected)) in content.iter().zip(expected).enumerate() {
                check(page, word, found.load(Relaxed), expected)?;
            }
        }
        Ok(())
    }
}

/// The pages that one thread, or process, works on.
pub struct Part<'a> {
    first_page: u64,
    pages: &'a [[AtomicU64; PAGE_WORDS]],
    generations: &'a [AtomicU64],
}

impl Part<'_> {
    /// Makes `accesses` accesses in the order of `workload`.
    pub fn run(
        &self,
        workload: Workload,
        accesses: u64,
        chance: &mut Chance,
        mut samples: Option<&mut Samples>,
    ) -> Result<(), WrongData> {
        let page_count = self.pages.len() as u64;
        let mut order = Order::new(workload, page_count);
        for step in 0..accesses {
            let (page, write) = order.next(step, chance);
            let sampled = chance.one_in(SAMPLE_EVERY);
            match &mut samples {
                Some(samples) if sampled => {
                    let start = Instant::now();
                    self.access(page, write, chance)?;
                    samples.add(start);
                }
                _ => self.access(page, write, chance)?,
            }
        }
        Ok(())
    }

    /// One access. A write stores before it looks at anything, so that it is a write fault at once.
    fn access(&self, index: u64, write: bool, chance: &mut Chance) -> Result<(), WrongData> {
        let page = self.first_page + index;
        let index = index as usize;
        let (content, generation) = (&self.pages[index], &self.generations[index]);
        if write {
            let next = generation.load(Relaxed) + 1;
            generation.store(next, Relaxed);
            content[0].store(tag(page, next), Relaxed);
        } else {
            check(page, 0, content[0].load(Relaxed), tag(page, generation.load(Relaxed)))?;
        }
        let word = 1 + chance.below(PAGE_WORDS as u64 - 1) as usize;
        check(page, word, content[word].load(Relaxed), page_word(page, word))
    }
}

fn check(page: u64, word: usize, found: u64, expected: u64) -> Result<(), WrongData> {
    if found == expected { Ok(()) } else { Err(WrongData { page, word, expected, found }) }
}

/// Word 0 of `page` after it was written to `generation` times.
fn tag(page: u64, generation: u64) -> u64 {
    mix(page.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ generation)
}

/// Word `word` of `page` as the fill stores it.
///
/// A page is an array of records: three random words, a pointer-like word of which the low 16 bits are
/// random, and four fields that are the same in all records of the page and differ between pages. LZ4
/// finds 26 literals and one match of 38 bytes in each record: 31 bytes of 64, a ratio of two to one. No
/// page compresses to nothing and none is like another.
fn page_word(page: u64, word: usize) -> u64 {
    let field = word % RECORD_WORDS;
    let random = tag(page, 0).wrapping_add((word as u64).wrapping_mul(0xd6e8_feb8_6659_fd93));
    match field {
        0 if word == 0 => tag(page, 0),
        0..=2 => mix(random),
        3 => (page_constant(page, field) & !0xffff) | (mix(random) & 0xffff),
        _ => page_constant(page, field),
    }
}

/// What `field` is in all records of `page`.
fn page_constant(page: u64, field: usize) -> u64 {
    mix(page ^ ((field as u64) << 56))
}

/// All words of `page` as the fill stores them.
fn page_content(page: u64) -> [u64; PAGE_WORDS] {
    std::array::from_fn(|word| page_word(page, word))
}

#[cfg(test)]
mod tests {
    use uswap_engine::compress::PageCompressor;
    use uswap_engine::group::Compressor;

    use super::*;

    #[test]
    fn a_page_compresses_two_to_one() {
        let mut compressor = PageCompressor::new(Compressor::Lz4);
        let mut lengths = 0;
        for page in 0..1000 {
            let words = page_content(page * 131);
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let bytes: [u8; PAGE_BYTES] = bytes.try_into().unwrap();
            let mut out = [0; PAGE_BYTES];
            let length = compressor.compress(&bytes, &mut out).expect("compressible");
            // No page by itself is far from the others: a pool gains nothing by luck.
            assert!((1900..2200).contains(&length), "page {page}: {length}");
            lengths += length;
        }
        let ratio = 1000.0 * PAGE_BYTES as f64 / lengths as f64;
        assert!((1.95..2.05).contains(&ratio), "{ratio}");
    }

    #[test]
    fn pages_share_no_word() {
        let mut words: Vec<u64> = (0..64)
            .flat_map(|page| {
                let mut words = page_content(page).to_vec();
                words.sort_unstable();
                words.dedup();
                words
            })
            .collect();
        let all = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), all);
    }

    #[test]
    fn every_write_gives_a_page_a_new_tag() {
        let mut tags: Vec<u64> =
            (0..64).flat_map(|page| (0..64).map(move |generation| tag(page, generation))).collect();
        tags.sort_unstable();
        tags.dedup();
        assert_eq!(tags.len(), 64 * 64);
    }

    #[test]
    fn memory_begins_at_a_page_boundary() {
        let memory = Memory::reserve(16, Kept::Private);
        memory.fill(0..16, None);
        let parts = memory.parts(8);
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[0].pages.as_ptr().addr() % PAGE_BYTES, 0);
        assert_eq!(parts[0].pages.len(), 8);
        assert_eq!(parts[1].first_page, 8);
    }

    #[test]
    fn a_flipped_bit_is_found() {
        let memory = Memory::reserve(16, Kept::Private);
        memory.fill(0..16, None);
        memory.check_all().unwrap();
        memory.words[5 * PAGE_WORDS + 123].fetch_xor(1 << 40, Relaxed);
        let wrong = memory.check_all().unwrap_err();
        assert_eq!((wrong.page, wrong.word), (5, 123));
    }

    #[test]
    fn a_lost_write_is_found_by_the_next_read() {
        let memory = Memory::reserve(16, Kept::Private);
        memory.fill(0..16, None);
        let mut chance = Chance::new(1);
        let parts = memory.parts(16);
        parts[0].access(3, true, &mut chance).unwrap();
        parts[0].pages[3][0].store(tag(3, 0), Relaxed);
        let wrong = parts[0].access(3, false, &mut chance).unwrap_err();
        assert_eq!((wrong.page, wrong.word), (3, 0));
    }
}
