//! The first page of a swap area: files and devices that the user names may hold anything.
//!
//! Input: what the area lies on (17 bytes), the magic (10 bytes), then the page from byte 1024 on; what is missing is zero.

use uswap_linux::swap_header::{
    AreaLayout, BAD_PAGES_MAX, Backing, BadHeader, ByteOrder, HEADER_BYTES, SwapHeader, check,
};

use crate::{Canary, Seed, Target, mkswap};

/// This target.
pub const TARGET: Target =
    Target { name: "swap_header", run, seeds, words: &[b"SWAPSPACE2", b"SWAP-SPACE", b"uswap\0"] };

const BEFORE_PAGE: usize = 27;
const BOOT_BYTES: usize = 1024;
const MAGIC_AT: usize = HEADER_BYTES - 10;
/// Version, last page and number of bad pages; then the list of those.
const WORDS: [std::ops::Range<usize>; 2] = [1024..1036, 1536..1536 + BAD_PAGES_MAX as usize * 4];

/// Bits of the first byte.
const REGULAR_FILE: u8 = 1;
const SHORT: u8 = 2;

struct Input {
    backing: Backing,
    page: [u8; HEADER_BYTES],
    /// So much of it could be read.
    length: usize,
}

impl Input {
    fn of(bytes: &[u8]) -> Option<Input> {
        let (before, rest) = bytes.split_at_checked(BEFORE_PAGE)?;
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| before[at + index]));
        let (pages, slots_max) = (number(1), number(9).max(1));
        let mut page = [0; HEADER_BYTES];
        let there = rest.len().min(MAGIC_AT - BOOT_BYTES);
        page[BOOT_BYTES..BOOT_BYTES + there].copy_from_slice(&rest[..there]);
        page[MAGIC_AT..].copy_from_slice(&before[17..]);
        let backing = Backing { pages, regular_file: before[0] & REGULAR_FILE != 0, slots_max };
        let length = if before[0] & SHORT != 0 { pages as usize % HEADER_BYTES } else { HEADER_BYTES };
        Some(Input { backing, page, length })
    }
}

/// Reads it, as `--swap` and the simulator do.
pub fn run(bytes: &[u8], canary: Canary) {
    let Some(Input { backing, page, length }) = Input::of(bytes) else { return };
    let (parsed, mut checked) = (SwapHeader::parse(&page[..length]), check(&page[..length], backing));
    if let (Canary::Planted, Ok(header), Ok(layout)) = (canary, &parsed, &mut checked) {
        // As if the bad pages were left as they stand there.
        layout.bad = header.bad_pages.iter().map(|&page| u64::from(page)).filter(|page| *page < layout.slots).collect();
    }
    for text in [parsed.as_ref().err(), checked.as_ref().err()].into_iter().flatten().map(BadHeader::to_string) {
        assert!(!text.is_empty() && !text.contains('\n'), "{text:?} is no line");
    }
    match (&parsed, &checked) {
        (Ok(header), _) => is_written_as_it_was(header, &page),
        (Err(_), Ok(_)) => panic!("{parsed:?} has passed the checks: {checked:?}"),
        (Err(_), Err(_)) => {}
    }
    if let (Ok(header), Ok(layout)) = (&parsed, &checked) {
        fits(header, layout, backing);
    }
    if length == HEADER_BYTES {
        is_read_on_other_machines(&page, backing, &parsed, checked.is_ok());
        is_taken_by_the_command(&page);
    }
}

/// What is read is written, and read again.
fn is_written_as_it_was(header: &SwapHeader, page: &[u8; HEADER_BYTES]) {
    assert!(header.last_page > 0 && header.bad_pages.len() <= BAD_PAGES_MAX as usize);
    let mut written = *page;
    header.write(&mut written);
    assert_eq!(written[..BOOT_BYTES], page[..BOOT_BYTES], "what belongs to boot loaders");
    assert_eq!(written[1024..1068], page[1024..1068]);
    assert_eq!(SwapHeader::parse(&written).as_ref(), Ok(header));
}

/// The layout is of this header, and lies on this backing.
fn fits(header: &SwapHeader, layout: &AreaLayout, backing: Backing) {
    let pages = u64::from(header.last_page) + 1;
    assert!(pages <= backing.pages);
    assert_eq!((layout.slots, layout.truncated), (pages.min(backing.slots_max), pages > backing.slots_max));
    assert!(layout.bad.is_sorted_by(|a, b| a < b), "{:?} is not ascending", layout.bad);
    assert!(!backing.regular_file || header.bad_pages.is_empty());
    for &page in &header.bad_pages {
        assert!(page > 0 && page <= header.last_page);
        assert_eq!(layout.bad.contains(&u64::from(page)), u64::from(page) < layout.slots, "page {page}");
    }
    assert!(layout.bad.iter().all(|&bad| header.bad_pages.iter().any(|&page| u64::from(page) == bad)));
}

/// Made by a machine of the other byte order, it says the same.
fn is_read_on_other_machines(
    page: &[u8; HEADER_BYTES],
    backing: Backing,
    parsed: &Result<SwapHeader, BadHeader>,
    fits: bool,
) {
    let mut other = *page;
    for word in WORDS.into_iter().flat_map(|range| range.step_by(4)) {
        other[word..word + 4].reverse();
    }
    let expected = match parsed.clone() {
        Ok(header) => Ok(SwapHeader {
            byte_order: match header.byte_order {
                ByteOrder::Little => ByteOrder::Big,
                ByteOrder::Big => ByteOrder::Little,
            },
            ..header
        }),
        Err(BadHeader::Version(version)) => Err(BadHeader::Version(version.swap_bytes())),
        Err(other) => Err(other),
    };
    assert_eq!(SwapHeader::parse(&other), expected);
    assert_eq!(check(&other, backing).is_ok(), fits);
}

/// The command takes what swapon(2) would, of a backing that is large enough.
fn is_taken_by_the_command(page: &[u8; HEADER_BYTES]) {
    let any = Backing { pages: u64::MAX, regular_file: false, slots_max: u64::MAX };
    match (mkswap::parse(page), check(page, any)) {
        (Ok(Some(header)), Ok(layout)) => {
            assert_eq!(header.pages, layout.slots);
            assert!(header.bad_pages.iter().map(|&page| u64::from(page)).eq(layout.bad));
        }
        (Ok(None), Err(BadHeader::NoMagic)) => {}
        (Err(one), Err(other)) => assert_eq!(one, other),
        (one, other) => panic!("{one:?} and {other:?}"),
    }
}

fn seeds() -> Vec<Seed> {
    let ours = |page: &[u8; HEADER_BYTES]| SwapHeader::parse(page).expect("what the command makes is read");
    let input = |flags: u8, backing_pages: u64, header: &SwapHeader| {
        let mut page = [0; HEADER_BYTES];
        header.write(&mut page);
        let mut bytes = vec![flags];
        bytes.extend(backing_pages.to_le_bytes());
        bytes.extend((1u64 << 50).to_le_bytes());
        bytes.extend(&page[MAGIC_AT..]);
        let used = if header.bad_pages.is_empty() { 1068 } else { 1536 + 4 * header.bad_pages.len() };
        bytes.extend(&page[BOOT_BYTES..used]);
        bytes
    };
    let make = |bad: &[u32]| SwapHeader::make(1000, bad, *b"0123456789abcdef", "seed").expect("such an area is made");
    let big = SwapHeader { byte_order: ByteOrder::Big, ..make(&[7, 9, 800]) };
    let mut old = input(0, 1000, &make(&[]));
    old[17..27].copy_from_slice(b"SWAP-SPACE");
    vec![
        ("file", input(REGULAR_FILE, 1000, &make(&[]))),
        ("device_with_bad_pages", input(0, 1000, &make(&[3, 5, 999]))),
        ("file_with_bad_pages", input(REGULAR_FILE, 1000, &make(&[3]))),
        ("other_byte_order", input(0, 5000, &big)),
        ("too_short", input(REGULAR_FILE, 999, &make(&[]))),
        ("of_version_0", old),
        ("made_by_the_command", input(REGULAR_FILE, 1000, &ours(&mkswap::format(1000, [7; 16])))),
    ]
}
