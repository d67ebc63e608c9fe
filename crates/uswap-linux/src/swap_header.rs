//! The first page of a swap area: as mkswap(8) writes it, and as swapon(2) checks it.
//!
//! The page is kept byte for byte. Bytes 0 to 1023 belong to boot loaders and disk labels and are never looked at. All
//! integers are in the byte order of the machine that made the header; the version, which is 1, tells which that was. The
//! magic is the last ten bytes of the page.
//!
//! Source: Linux 6.18, the checks of swapon; mkswap of util-linux 2.38.1.

use alloc::vec::Vec;
use core::fmt;

use super::errno::Errno;

/// Bytes of the header: one page.
pub const HEADER_BYTES: usize = 4096;
/// Bad pages that fit between the list's start and the magic.
pub const BAD_PAGES_MAX: u32 = ((MAGIC_AT - BAD_PAGES_AT) / 4) as u32;
/// Fewer usable pages than this are not worth an area, says mkswap.
pub const USABLE_PAGES_MIN: u64 = 10;
/// Pages of the largest area that mkswap makes.
pub const PAGES_MAX: u64 = 1 << 32;

const MAGIC: &[u8; 10] = b"SWAPSPACE2";
/// Version 0, at most 128 MiB: not taken any more.
const MAGIC_OF_VERSION_0: &[u8; 10] = b"SWAP-SPACE";
const MAGIC_AT: usize = HEADER_BYTES - MAGIC.len();
const VERSION_AT: usize = 1024;
const LAST_PAGE_AT: usize = 1028;
const BAD_COUNT_AT: usize = 1032;
const UUID_AT: usize = 1036;
const LABEL_AT: usize = 1052;
const PADDING_AT: usize = 1068;
const BAD_PAGES_AT: usize = 1536;
/// The label's last byte is always zero.
const LABEL_BYTES_MAX: usize = 15;

/// Byte order of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ByteOrder {
    /// x86-64, arm64.
    Little,
    /// s390x.
    Big,
}

/// What a header says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwapHeader {
    /// Of the machine that made it.
    pub byte_order: ByteOrder,
    /// Pages of the area, the header's included, minus 1.
    pub last_page: u32,
    /// Pages that must not be used, in the order in which they stand in the header.
    pub bad_pages: Vec<u32>,
    /// Names the area.
    pub uuid: [u8; 16],
    /// Volume label; unused bytes are zero.
    pub label: [u8; 16],
}

/// Why mkswap makes no area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CannotMake {
    /// Not even [`USABLE_PAGES_MIN`] pages.
    TooSmall {
        /// Pages that could hold something.
        usable_pages: u64,
    },
    /// More than [`BAD_PAGES_MAX`].
    TooManyBadPages(usize),
    /// The header, or a page that the area does not have.
    BadPageOutside(u32),
}

impl fmt::Display for CannotMake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSmall { usable_pages } => {
                write!(f, "a swap area of {usable_pages} usable pages is too small: give it {USABLE_PAGES_MIN} or more")
            }
            Self::TooManyBadPages(count) => {
                write!(f, "{count} bad pages do not fit a swap header: it takes {BAD_PAGES_MAX}")
            }
            Self::BadPageOutside(page) => write!(f, "bad page {page} is not a page after the header of the area"),
        }
    }
}

/// Why a first page is no header to go by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadHeader {
    /// Not even one page could be read.
    Truncated {
        /// What there was.
        bytes: usize,
    },
    /// `SWAP-SPACE`, of Linux before 2.2.
    TooOld,
    /// No magic where it belongs.
    NoMagic,
    /// Neither version 1 nor its byte-swapped form.
    Version(u32),
    /// No page but the header.
    Empty,
    /// The header tells of more pages than there are.
    ShorterThanItSays {
        /// Pages of the header.
        pages: u64,
        /// Pages that there are.
        backing_pages: u64,
    },
    /// Only block devices may have bad pages.
    BadPagesInFile,
    /// More bad pages than a header has room for.
    TooManyBadPages(u32),
    /// The header itself, or a page after the last.
    BadPageOutside(u32),
}

impl BadHeader {
    /// What swapon(2) answers. What lies past the end of a file reads as zeros, so that a truncated header is no different.
    pub fn errno(&self) -> Errno {
        Errno::EINVAL
    }
}

impl fmt::Display for BadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { bytes } => {
                write!(f, "it has {bytes} bytes, fewer than the {HEADER_BYTES} of a swap header: run mkswap on it")
            }
            Self::TooOld => f.write_str("it has the swap format of version 0: run mkswap on it"),
            Self::NoMagic => f.write_str("it has no swap header: run mkswap on it"),
            Self::Version(version) => {
                write!(f, "it has swap format version {version}, which is unknown: run mkswap on it")
            }
            Self::Empty => f.write_str("its swap header says that the area is empty: run mkswap on it"),
            Self::ShorterThanItSays { pages, backing_pages } => {
                write!(f, "it has {backing_pages} pages, fewer than the {pages} of its swap header: run mkswap on it")
            }
            Self::BadPagesInFile => f.write_str("its swap header lists bad pages, which only a block device may have"),
            Self::TooManyBadPages(count) => {
                write!(f, "its swap header counts {count} bad pages, more than the {BAD_PAGES_MAX} that fit")
            }
            Self::BadPageOutside(page) => {
                write!(f, "its swap header lists bad page {page}, which is none of its pages")
            }
        }
    }
}

/// What an area lies on, as far as its header must fit it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backing {
    /// Pages that there are.
    pub pages: u64,
    /// A regular file, not a block device.
    pub regular_file: bool,
    /// Slots of the largest area that a page table can name ([`super::swap_entry::PteFormat::slots_max`]).
    pub slots_max: u64,
}

/// An area whose header has been believed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AreaLayout {
    /// Slots, that of the header included.
    pub slots: u64,
    /// Bad slots among them, ascending, each once.
    pub bad: Vec<u64>,
    /// The architecture could not name all pages; those after `slots` stay unused.
    pub truncated: bool,
}

impl SwapHeader {
    /// What mkswap makes of `pages` pages. A label is cut at 15 bytes; pages after [`PAGES_MAX`] stay unused.
    ///
    /// # Errors
    /// When mkswap refuses too.
    pub fn make(pages: u64, bad_pages: &[u32], uuid: [u8; 16], label: &str) -> Result<Self, CannotMake> {
        let pages = pages.min(PAGES_MAX);
        let usable_pages = pages.saturating_sub(1 + bad_pages.len() as u64);
        if usable_pages < USABLE_PAGES_MIN {
            return Err(CannotMake::TooSmall { usable_pages });
        }
        if bad_pages.len() > BAD_PAGES_MAX as usize {
            return Err(CannotMake::TooManyBadPages(bad_pages.len()));
        }
        let last_page = u32::try_from(pages - 1).expect("an area has at most 2^32 pages");
        if let Some(&outside) = bad_pages.iter().find(|&&page| page == 0 || page > last_page) {
            return Err(CannotMake::BadPageOutside(outside));
        }
        let mut kept = [0; 16];
        let len = label.len().min(LABEL_BYTES_MAX);
        kept[..len].copy_from_slice(&label.as_bytes()[..len]);
        Ok(Self { byte_order: ByteOrder::Little, last_page, bad_pages: bad_pages.to_vec(), uuid, label: kept })
    }

    /// Kibibytes that mkswap says the area has.
    pub fn usable_kib(&self) -> u64 {
        (u64::from(self.last_page) - self.bad_pages.len() as u64) * 4
    }

    /// Writes the header into the first page of an area. The first 1024 bytes are left as they are: whoever wants them
    /// zeroed hands in a page of zeros.
    ///
    /// # Panics
    /// When there are more bad pages than fit.
    pub fn write(&self, page: &mut [u8; HEADER_BYTES]) {
        assert!(self.bad_pages.len() <= BAD_PAGES_MAX as usize, "{} bad pages do not fit", self.bad_pages.len());
        let word = |value: u32| match self.byte_order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        };
        page[VERSION_AT..LAST_PAGE_AT].copy_from_slice(&word(1));
        page[LAST_PAGE_AT..BAD_COUNT_AT].copy_from_slice(&word(self.last_page));
        page[BAD_COUNT_AT..UUID_AT].copy_from_slice(&word(self.bad_pages.len() as u32));
        page[UUID_AT..LABEL_AT].copy_from_slice(&self.uuid);
        page[LABEL_AT..PADDING_AT].copy_from_slice(&self.label);
        page[PADDING_AT..MAGIC_AT].fill(0);
        for (place, &bad) in page[BAD_PAGES_AT..MAGIC_AT].chunks_exact_mut(4).zip(&self.bad_pages) {
            place.copy_from_slice(&word(bad));
        }
        page[MAGIC_AT..].copy_from_slice(MAGIC);
    }

    /// Reads a first page, of either byte order, and checks what can be checked without knowing what the area lies on.
    ///
    /// # Errors
    /// When it is no header of version 1, or its list of bad pages is longer than what fits.
    pub fn parse(page: &[u8]) -> Result<Self, BadHeader> {
        let raw = RawHeader::read(page)?;
        raw.check_last_page()?;
        raw.check_bad_count()?;
        Ok(raw.decode())
    }
}

/// A page with the magic of a header and a known version.
struct RawHeader<'a> {
    page: &'a [u8; HEADER_BYTES],
    byte_order: ByteOrder,
}

impl<'a> RawHeader<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, BadHeader> {
        let page: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(BadHeader::Truncated { bytes: bytes.len() })?;
        match &page[MAGIC_AT..] {
            magic if magic == MAGIC => {}
            magic if magic == MAGIC_OF_VERSION_0 => return Err(BadHeader::TooOld),
            _ => return Err(BadHeader::NoMagic),
        }
        let little = Self { page, byte_order: ByteOrder::Little };
        match little.word(VERSION_AT) {
            1 => Ok(little),
            0x0100_0000 => Ok(Self { page, byte_order: ByteOrder::Big }),
            version => Err(BadHeader::Version(version)),
        }
    }

    fn word(&self, at: usize) -> u32 {
        let bytes = [self.page[at], self.page[at + 1], self.page[at + 2], self.page[at + 3]];
        match self.byte_order {
            ByteOrder::Little => u32::from_le_bytes(bytes),
            ByteOrder::Big => u32::from_be_bytes(bytes),
        }
    }

    fn last_page(&self) -> u32 {
        self.word(LAST_PAGE_AT)
    }

    fn bad_count(&self) -> u32 {
        self.word(BAD_COUNT_AT)
    }

    fn check_last_page(&self) -> Result<(), BadHeader> {
        if self.last_page() == 0 { Err(BadHeader::Empty) } else { Ok(()) }
    }

    fn check_bad_count(&self) -> Result<(), BadHeader> {
        if self.bad_count() > BAD_PAGES_MAX { Err(BadHeader::TooManyBadPages(self.bad_count())) } else { Ok(()) }
    }

    /// The bad pages' count must have been checked.
    fn decode(&self) -> SwapHeader {
        let bad_pages = (0..self.bad_count() as usize).map(|index| self.word(BAD_PAGES_AT + 4 * index)).collect();
        let sixteen = |at: usize| core::array::from_fn(|index| self.page[at + index]);
        SwapHeader {
            byte_order: self.byte_order,
            last_page: self.last_page(),
            bad_pages,
            uuid: sixteen(UUID_AT),
            label: sixteen(LABEL_AT),
        }
    }
}

/// Checks a first page against what the area lies on, in the order of swapon(2), and lays the area out.
///
/// # Errors
/// The first check that fails.
pub fn check(page: &[u8], backing: Backing) -> Result<AreaLayout, BadHeader> {
    let raw = RawHeader::read(page)?;
    raw.check_last_page()?;
    let pages = u64::from(raw.last_page()) + 1;
    if pages > backing.pages {
        return Err(BadHeader::ShorterThanItSays { pages, backing_pages: backing.pages });
    }
    if backing.regular_file && raw.bad_count() > 0 {
        return Err(BadHeader::BadPagesInFile);
    }
    raw.check_bad_count()?;
    let header = raw.decode();
    let outside = |&&page: &&u32| page == 0 || page > header.last_page;
    if let Some(&page) = header.bad_pages.iter().find(outside) {
        return Err(BadHeader::BadPageOutside(page));
    }
    let slots = pages.min(backing.slots_max);
    let mut bad: Vec<u64> = header.bad_pages.iter().map(|&page| u64::from(page)).filter(|&page| page < slots).collect();
    bad.sort_unstable();
    bad.dedup();
    Ok(AreaLayout { slots, bad, truncated: slots < pages })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UUID: [u8; 16] =
        [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];

    fn bytes_of(header: &SwapHeader) -> [u8; HEADER_BYTES] {
        let mut page = [0; HEADER_BYTES];
        header.write(&mut page);
        page
    }

    fn device(pages: u64) -> Backing {
        Backing { pages, regular_file: false, slots_max: 1 << 50 }
    }

    fn file(pages: u64) -> Backing {
        Backing { regular_file: true, ..device(pages) }
    }

    #[test]
    fn t1_2a_the_header_of_one_mebibyte_is_what_mkswap_writes() {
        let header = SwapHeader::make(256, &[], UUID, "test").unwrap();
        let page = bytes_of(&header);
        assert_eq!(page[1024..1036], [1, 0, 0, 0, 0xff, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(page[1036..1052], UUID);
        assert_eq!(&page[1052..1068], b"test\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(&page[4086..], b"SWAPSPACE2");
        assert_eq!(header.usable_kib(), 1020);
        let elsewhere = (0..1024).chain(1068..4086);
        assert!(elsewhere.into_iter().all(|at| page[at] == 0), "everything else is zero");
    }

    #[test]
    fn bad_pages_stand_at_1536_and_637_of_them_fit() {
        assert_eq!(BAD_PAGES_MAX, 637);
        let bad: Vec<u32> = (1..=637).collect();
        let page = bytes_of(&SwapHeader::make(100_000, &bad, UUID, "").unwrap());
        assert_eq!(page[1032..1036], 637u32.to_le_bytes());
        assert_eq!(page[1536..1540], 1u32.to_le_bytes());
        assert_eq!(page[1536 + 636 * 4..][..4], 637u32.to_le_bytes());
        assert_eq!(check(&page, device(100_000)).unwrap().bad, (1..=637).collect::<Vec<u64>>());
        let one_more: Vec<u32> = (1..=638).collect();
        assert_eq!(SwapHeader::make(100_000, &one_more, UUID, ""), Err(CannotMake::TooManyBadPages(638)));
    }

    #[test]
    fn mkswap_refuses_nine_usable_pages_and_caps_at_2_to_the_32() {
        assert_eq!(SwapHeader::make(10, &[], UUID, ""), Err(CannotMake::TooSmall { usable_pages: 9 }));
        assert!(SwapHeader::make(11, &[], UUID, "").is_ok());
        assert_eq!(SwapHeader::make(11, &[3], UUID, ""), Err(CannotMake::TooSmall { usable_pages: 9 }));
        assert_eq!(SwapHeader::make(0, &[], UUID, ""), Err(CannotMake::TooSmall { usable_pages: 0 }));
        assert_eq!(SwapHeader::make(1 << 40, &[], UUID, "").unwrap().last_page, u32::MAX);
        assert_eq!(SwapHeader::make(100, &[100], UUID, ""), Err(CannotMake::BadPageOutside(100)));
    }

    #[test]
    fn a_long_label_is_cut_and_keeps_its_end() {
        let header = SwapHeader::make(256, &[], UUID, "0123456789abcdefgh").unwrap();
        assert_eq!(&header.label, b"0123456789abcde\0");
    }

    #[test]
    fn the_boot_bits_are_left_alone() {
        let mut page = [0xaa; HEADER_BYTES];
        let header = SwapHeader::make(256, &[], UUID, "x").unwrap();
        header.write(&mut page);
        assert!(page[..1024].iter().all(|&byte| byte == 0xaa));
        assert_eq!(page[1024..], bytes_of(&header)[1024..]);
    }

    #[test]
    fn the_other_byte_order_is_understood_and_written() {
        let header = SwapHeader {
            byte_order: ByteOrder::Big,
            bad_pages: alloc::vec![7, 0x0102_0304],
            ..SwapHeader::make(1 << 30, &[], UUID, "big").unwrap()
        };
        let page = bytes_of(&header);
        assert_eq!(page[1024..1036], [0, 0, 0, 1, 0x3f, 0xff, 0xff, 0xff, 0, 0, 0, 2]);
        assert_eq!(page[1536..1544], [0, 0, 0, 7, 1, 2, 3, 4]);
        assert_eq!(SwapHeader::parse(&page), Ok(header));
        assert_eq!(check(&page, device(1 << 30)).unwrap().bad, [7, 0x0102_0304]);
    }

    /// A good header of 256 pages with bad page 9, and bytes changed at some places.
    fn changed(changes: &[(usize, &[u8])]) -> [u8; HEADER_BYTES] {
        let mut page = bytes_of(&SwapHeader::make(256, &[9], UUID, "").unwrap());
        for (at, bytes) in changes {
            page[*at..][..bytes.len()].copy_from_slice(bytes);
        }
        page
    }

    #[test]
    fn impossible_headers_are_refused_one_by_one() {
        let refused = |changes: &[(usize, &[u8])]| check(&changed(changes), device(256)).unwrap_err();
        assert_eq!(refused(&[(4086, b"SWAP-SPACE")]), BadHeader::TooOld);
        assert_eq!(refused(&[(4095, b"3")]), BadHeader::NoMagic);
        assert_eq!(refused(&[(1024, &[2])]), BadHeader::Version(2));
        assert_eq!(refused(&[(1028, &[0; 4])]), BadHeader::Empty);
        assert_eq!(refused(&[(1029, &[1])]), BadHeader::ShorterThanItSays { pages: 512, backing_pages: 256 });
        assert_eq!(refused(&[(1032, &[0x7e, 2])]), BadHeader::TooManyBadPages(638));
        assert_eq!(refused(&[(1536, &[0])]), BadHeader::BadPageOutside(0));
        assert_eq!(refused(&[(1537, &[1])]), BadHeader::BadPageOutside(256 + 9));
        assert_eq!(check(&changed(&[]), file(256)), Err(BadHeader::BadPagesInFile));
        assert_eq!(check(&changed(&[])[..4095], device(256)), Err(BadHeader::Truncated { bytes: 4095 }));
        assert!(check(&changed(&[]), device(256)).is_ok());
    }

    /// Each header here has the faults of all those after it as well.
    #[test]
    fn the_first_fault_in_the_kernels_order_is_the_one_that_is_told() {
        let mut changes: Vec<(usize, &[u8])> = alloc::vec![
            (4086, b"x".as_slice()),
            (1024, &[9]),
            (1028, &[0; 4]),
            (1028, &[0, 1, 0, 0]),
            (1032, &[0, 0, 0, 1]),
            (1536, &[0]),
        ];
        let mut told = Vec::new();
        while !changes.is_empty() {
            // An empty area cannot be too large as well: of the two changes of `last_page` the first one counts.
            let mut once: Vec<(usize, &[u8])> = changes.clone();
            once.reverse();
            told.push(check(&changed(&once), file(256)).unwrap_err());
            changes.remove(0);
        }
        let bad_pages = 0x0100_0001;
        assert_eq!(
            told,
            [
                BadHeader::NoMagic,
                BadHeader::Version(9),
                BadHeader::Empty,
                BadHeader::ShorterThanItSays { pages: 257, backing_pages: 256 },
                BadHeader::BadPagesInFile,
                BadHeader::BadPagesInFile,
            ]
        );
        let count_and_page: [(usize, &[u8]); 2] = [(1032, &[1, 0, 0, 1]), (1536, &[0])];
        assert_eq!(check(&changed(&count_and_page), device(256)), Err(BadHeader::TooManyBadPages(bad_pages)));
        assert!(told.iter().all(|bad| bad.errno() == Errno::EINVAL));
    }

    #[test]
    fn what_the_architecture_cannot_name_stays_unused() {
        let page = bytes_of(&SwapHeader::make(1000, &[5, 700, 5], UUID, "").unwrap());
        let layout = check(&page, Backing { slots_max: 512, ..device(1000) }).unwrap();
        assert_eq!(layout, AreaLayout { slots: 512, bad: alloc::vec![5], truncated: true });
    }

    #[test]
    fn every_refusal_is_one_line() {
        let refusals = [
            BadHeader::Truncated { bytes: 3 },
            BadHeader::TooOld,
            BadHeader::NoMagic,
            BadHeader::Version(7),
            BadHeader::Empty,
            BadHeader::ShorterThanItSays { pages: 2, backing_pages: 1 },
            BadHeader::BadPagesInFile,
            BadHeader::TooManyBadPages(1000),
            BadHeader::BadPageOutside(0),
        ];
        let lines: alloc::collections::BTreeSet<_> = refusals.iter().map(alloc::string::ToString::to_string).collect();
        assert_eq!(lines.len(), refusals.len(), "each says something of its own");
        assert!(lines.iter().all(|line| !line.contains('\n') && line.starts_with("it")), "{lines:?}");
    }

    fn any_header() -> impl Strategy<Value = SwapHeader> {
        let orders = prop_oneof![Just(ByteOrder::Little), Just(ByteOrder::Big)];
        let label = "[ -~]{0,20}";
        (orders, 700u32.., prop::collection::vec(1u32..700, 0..64), any::<[u8; 16]>(), label).prop_map(
            |(byte_order, last_page, bad_pages, uuid, label)| SwapHeader {
                byte_order,
                ..SwapHeader::make(u64::from(last_page) + 1, &bad_pages, uuid, &label).unwrap()
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn model_what_is_written_is_read(header in any_header()) {
            let page = bytes_of(&header);
            prop_assert_eq!(SwapHeader::parse(&page), Ok(header.clone()));
            let layout = check(&page, device(u64::from(header.last_page) + 1)).unwrap();
            let bad: alloc::collections::BTreeSet<u64> = header.bad_pages.iter().map(|&bad| bad.into()).collect();
            prop_assert_eq!(layout.bad, bad.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(layout.slots, u64::from(header.last_page) + 1);
        }

        /// A damaged header is refused or describes an area that exists; it never panics.
        #[test]
        fn model_damage_never_leads_outside_of_the_area(
            header in any_header(),
            damage in prop::collection::vec((1024usize..4096, any::<u8>()), 1..4),
            pages in 1u64..2000,
        ) {
            let mut page = bytes_of(&SwapHeader { last_page: header.last_page % 1000 + 700, ..header });
            for (at, byte) in damage {
                page[at] = byte;
            }
            if let Ok(layout) = check(&page, device(pages)) {
                prop_assert!(layout.slots <= pages);
                prop_assert!(layout.bad.iter().all(|&bad| bad > 0 && bad < layout.slots));
            }
        }
    }
}
