//! The first page of a swap area, as mkswap(8) writes it: which of them we take, and the one that we make.

use uswap_linux::swap_header::{self, Backing, BadHeader, ByteOrder, SwapHeader};

pub use uswap_linux::swap_header::HEADER_BYTES;

/// The volume label of files that we made.
const OUR_LABEL: &[u8; 16] = b"uswap\0\0\0\0\0\0\0\0\0\0\0";

/// What a swap area's header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Pages of the area, the header's included.
    pub pages: u64,
    /// Pages that must not be used, ascending.
    pub bad_pages: Vec<u32>,
    /// We made the file.
    pub ours: bool,
}

/// Reads a first page. None when no mkswap has been there.
pub fn parse(page: &[u8; HEADER_BYTES]) -> Result<Option<Header>, BadHeader> {
    // How long the file is, is looked at later; ours may have bad pages, which the kernel refuses.
    let any = Backing { pages: u64::MAX, regular_file: false, slots_max: u64::MAX };
    let layout = match swap_header::check(page, any) {
        Err(BadHeader::NoMagic) => return Ok(None),
        other => other?,
    };
    let ours = &SwapHeader::parse(page)?.label == OUR_LABEL;
    let bad_pages = layout.bad.iter().map(|&page| u32::try_from(page).expect("bad pages are 32 bits wide")).collect();
    Ok(Some(Header { pages: layout.slots, bad_pages, ours }))
}

/// The header of a file that we make.
pub fn format(pages: u64, uuid: [u8; 16]) -> [u8; HEADER_BYTES] {
    let last_page = u32::try_from(pages - 1).unwrap_or(u32::MAX);
    let header =
        SwapHeader { byte_order: ByteOrder::Little, last_page, bad_pages: Vec::new(), uuid, label: *OUR_LABEL };
    let mut page = [0; HEADER_BYTES];
    header.write(&mut page);
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
        assert_eq!(change(1032, &[1]), Err(BadHeader::BadPageOutside(0)), "page 0 is never bad");
        assert_eq!(change(1032, &[0xff, 0xff]), Err(BadHeader::TooManyBadPages(0xffff)));
        assert_eq!(change(4086, b"x"), Ok(None));
    }

    #[test]
    fn what_we_write_we_understand() {
        let header = parse(&format(1000, [7; 16])).unwrap().unwrap();
        assert_eq!(header, Header { pages: 1000, bad_pages: vec![], ours: true });
    }
}
