//! The first page of a swap area, as mkswap(8) writes it.

use std::fmt;

/// Bytes of the header: one page.
pub const HEADER_BYTES: usize = 4096;

/// Entries that fit between the bad page list and the magic: (4086 - 1536) / 4.
const BAD_PAGES_MAX: u32 = 637;
const MAGIC: &[u8; 10] = b"SWAPSPACE2";
const MAGIC_AT: usize = HEADER_BYTES - MAGIC.len();
const VERSION_AT: usize = 1024;
const LAST_PAGE_AT: usize = 1028;
const BAD_COUNT_AT: usize = 1032;
const UUID_AT: usize = 1036;
const LABEL_AT: usize = 1052;
const BAD_PAGES_AT: usize = 1536;
/// The volume label of files that we made.
const OUR_LABEL: &[u8; 16] = b"uswap\0\0\0\0\0\0\0\0\0\0\0";

/// What a swap area's header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Pages of the area, the header's included.
    pub pages: u64,
    /// Pages that must not be used.
    pub bad_pages: Vec<u32>,
    /// We made the file.
    pub ours: bool,
}

/// Why a header is not to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHeader {
    /// `SWAP-SPACE`, of Linux before 2.2.
    TooOld,
    /// Neither version 1 nor its byte-swapped form.
    Version(u32),
    /// No pages but the header.
    Empty,
    /// More than fit, or one that the area does not have.
    BadPages,
}

impl fmt::Display for BadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadHeader::TooOld => f.write_str("swap format of version 0"),
            BadHeader::Version(version) => write!(f, "unknown swap format version {version}"),
            BadHeader::Empty => f.write_str("swap header says that the area is empty"),
            BadHeader::BadPages => f.write_str("swap header has an impossible list of bad pages"),
        }
    }
}

/// Reads a first page. None when no mkswap has been there.
pub fn parse(page: &[u8; HEADER_BYTES]) -> Result<Option<Header>, BadHeader> {
    match &page[MAGIC_AT..] {
        magic if magic == MAGIC => {}
        b"SWAP-SPACE" => return Err(BadHeader::TooOld),
        _ => return Ok(None),
    }
    let raw = |at: usize| u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]]);
    // Whoever made it may have had the other byte order.
    let swapped = match raw(VERSION_AT) {
        1 => false,
        0x0100_0000 => true,
        version => return Err(BadHeader::Version(version)),
    };
    let word = |at: usize| {
        if swapped { raw(at).swap_bytes() } else { raw(at) }
    };
    let last_page = word(LAST_PAGE_AT);
    if last_page == 0 {
        return Err(BadHeader::Empty);
    }
    let bad_count = word(BAD_COUNT_AT);
    if bad_count > BAD_PAGES_MAX {
        return Err(BadHeader::BadPages);
    }
    let bad_pages: Vec<u32> = (0..bad_count as usize).map(|n| word(BAD_PAGES_AT + 4 * n)).collect();
    if bad_pages.iter().any(|page| *page == 0 || *page > last_page) {
        return Err(BadHeader::BadPages);
    }
    let ours = &page[LABEL_AT..LABEL_AT + 16] == OUR_LABEL;
    Ok(Some(Header { pages: u64::from(last_page) + 1, bad_pages, ours }))
}

/// The header of a file that we make.
pub fn format(pages: u64, uuid: [u8; 16]) -> [u8; HEADER_BYTES] {
    let last_page = u32::try_from(pages - 1).unwrap_or(u32::MAX);
    let mut page = [0; HEADER_BYTES];
    page[VERSION_AT..][..4].copy_from_slice(&1u32.to_le_bytes());
    page[LAST_PAGE_AT..][..4].copy_from_slice(&last_page.to_le_bytes());
    page[UUID_AT..][..16].copy_from_slice(&uuid);
    page[LABEL_AT..][..16].copy_from_slice(OUR_LABEL);
    page[MAGIC_AT..].copy_from_slice(MAGIC);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What mkswap 2.38.1 writes into a file of 1 MiB, label `test`.
    fn by_mkswap() -> [u8; HEADER_BYTES] {
        let mut page = [0; HEADER_BYTES];
        page[1024..1036].copy_from_slice(&[1, 0, 0, 0, 0xff, 0, 0, 0, 0, 0, 0, 0]);
        page[1052..1056].copy_from_slice(b"test");
        page[4086..].copy_from_slice(b"SWAPSPACE2");
        page
    }

    #[test]
    fn a_file_formatted_by_mkswap_is_understood() {
        let header = parse(&by_mkswap()).unwrap().unwrap();
        assert_eq!(header, Header { pages: 256, bad_pages: vec![], ours: false });
    }

    #[test]
    fn the_other_byte_order_is_understood() {
        let mut page = by_mkswap();
        page[1024..1036].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0xff, 0, 0, 0, 1]);
        page[1536..1540].copy_from_slice(&[0, 0, 0, 7]);
        assert_eq!(parse(&page).unwrap().unwrap(), Header { pages: 256, bad_pages: vec![7], ours: false });
    }

    #[test]
    fn impossible_headers_are_refused() {
        let change = |at: usize, bytes: &[u8]| {
            let mut page = by_mkswap();
            page[at..at + bytes.len()].copy_from_slice(bytes);
            parse(&page)
        };
        assert_eq!(change(4086, b"SWAP-SPACE"), Err(BadHeader::TooOld));
        assert_eq!(change(1024, &[2]), Err(BadHeader::Version(2)));
        assert_eq!(change(1028, &[0]), Err(BadHeader::Empty));
        assert_eq!(change(1032, &[1]), Err(BadHeader::BadPages), "page 0 is never bad");
        assert_eq!(change(1032, &[0xff, 0xff]), Err(BadHeader::BadPages));
        assert_eq!(change(4086, b"x"), Ok(None));
    }

    #[test]
    fn what_we_write_we_understand() {
        let header = parse(&format(1000, [7; 16])).unwrap().unwrap();
        assert_eq!(header, Header { pages: 1000, bad_pages: vec![], ours: true });
    }
}
