//! swapon(2): the checks, in the order of the kernel, and its flags. Source: Linux 6.18.

use core::fmt;

use super::errno::Errno;
use super::priority::FLAG_PREFER;
use super::slot_alloc::AllocHost;
use super::swap_areas::{Listed, SwapAreas};
use super::swap_extents::{Hole, SwapExtents};
use super::swap_header::{self, Backing, BadHeader};
use super::swap_info::{AreaTraits, DiscardPolicy, SwapArea};

/// swapon(2)'s flag: discard, both at once and by cluster unless one of the two is asked for.
pub const FLAG_DISCARD: u32 = 0x10000;
/// Discard the whole area at swapon only.
pub const FLAG_DISCARD_ONCE: u32 = 0x20000;
/// Discard clusters that become empty only.
pub const FLAG_DISCARD_PAGES: u32 = 0x40000;
const FLAGS_KNOWN: u32 = FLAG_PREFER | 0x7fff | FLAG_DISCARD | FLAG_DISCARD_ONCE | FLAG_DISCARD_PAGES;

/// What is asked of swapon(2).
#[derive(Clone, Debug)]
pub struct SwaponRequest<'a> {
    /// Its flags.
    pub flags: u32,
    /// The caller has CAP_SYS_ADMIN.
    pub privileged: bool,
    /// What opening the path led to.
    pub target: Result<SwapTarget<'a>, Errno>,
}

/// What a path turned out to be.
#[derive(Clone, Debug)]
pub struct SwapTarget<'a> {
    /// Names the file or device: the same one cannot be two areas.
    pub id: u64,
    /// A zoned block device.
    pub zoned: bool,
    /// The file has been unlinked, or cannot be mounted from.
    pub unlinked: bool,
    /// Order of the file system's smallest folio.
    pub min_folio_order: u8,
    /// The file system can read a page into the page cache (tmpfs cannot).
    pub has_read_folio: bool,
    /// The first page, or what there is of it.
    pub first_page: &'a [u8],
    /// Length in pages.
    pub pages: u64,
    /// Of a file: where it lies. Not asked of a block device.
    pub extents: Result<&'a SwapExtents, Hole>,
    /// What it lies on; `block_device` tells a device from a file.
    pub device: AreaTraits,
    /// The device takes discards.
    pub discards: bool,
    /// NUMA node of the device.
    pub node: Option<usize>,
    /// There is memory for the area's map.
    pub map_fits: bool,
}

impl<'a> SwapTarget<'a> {
    /// A file or device without anything that swapon(2) objects to; for a file, `extents` is to be set.
    pub fn new(id: u64, device: AreaTraits, first_page: &'a [u8], pages: u64) -> Self {
        Self {
            id,
            zoned: false,
            unlinked: false,
            min_folio_order: 0,
            has_read_folio: true,
            first_page,
            pages,
            extents: Err(Hole { block: 0 }),
            device,
            discards: false,
            node: None,
            map_fits: true,
        }
    }
}

/// Why swapon(2) refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CannotSwapon {
    /// Flags that it does not know.
    UnknownFlags(u32),
    /// The caller may not.
    NotPermitted,
    /// There are as many areas as there can be.
    TooManyAreas,
    /// The path cannot be opened.
    CannotOpen(Errno),
    /// A zoned block device.
    Zoned,
    /// The file has no name any more.
    Unlinked,
    /// It is an area already.
    InUse,
    /// The file system's folios are too large.
    LargeFolios,
    /// The file system cannot read pages.
    NoReadFolio,
    /// The header says no.
    BadHeader(BadHeader),
    /// The file has holes.
    Hole(Hole),
    /// No slot is left that could hold a page.
    NoUsableSlot,
    /// No memory for the map.
    NoMemory,
}

impl CannotSwapon {
    /// What swapon(2) answers.
    pub fn errno(&self) -> Errno {
        match self {
            Self::NotPermitted | Self::TooManyAreas => Errno::EPERM,
            Self::CannotOpen(errno) => *errno,
            Self::Unlinked => Errno::ENOENT,
            Self::InUse => Errno::EBUSY,
            Self::BadHeader(bad) => bad.errno(),
            Self::NoMemory => Errno::ENOMEM,
            Self::UnknownFlags(_)
            | Self::Zoned
            | Self::LargeFolios
            | Self::NoReadFolio
            | Self::Hole(_)
            | Self::NoUsableSlot => Errno::EINVAL,
        }
    }
}

impl fmt::Display for CannotSwapon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownFlags(flags) => write!(f, "swapon flags {flags:#x} are unknown"),
            Self::NotPermitted => f.write_str("swapon needs CAP_SYS_ADMIN: run it as root"),
            Self::TooManyAreas => f.write_str("there are as many swap areas as there can be: swapoff one first"),
            Self::CannotOpen(errno) => write!(f, "it cannot be opened: {errno}"),
            Self::Zoned => f.write_str("a zoned block device cannot be a swap area"),
            Self::Unlinked => f.write_str("the file has been deleted"),
            Self::InUse => f.write_str("it is a swap area already"),
            Self::LargeFolios => f.write_str("its file system has no single pages, which swap needs"),
            Self::NoReadFolio => f.write_str("its file system cannot hold a swap file"),
            Self::BadHeader(bad) => bad.fmt(f),
            Self::Hole(hole) => write!(f, "the swap file has a hole at block {}: write it in full", hole.block),
            Self::NoUsableSlot => f.write_str("it has no page that could be swapped to"),
            Self::NoMemory => f.write_str("no memory for the map of its slots"),
        }
    }
}

impl SwapAreas {
    /// Puts an area into service; its number (the swap type). Checks in the order of the kernel.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn swapon<H: AllocHost>(&mut self, request: &SwaponRequest<'_>, host: &mut H) -> Result<u8, CannotSwapon> {
        use CannotSwapon as No;
        let unknown = request.flags & !FLAGS_KNOWN;
        // 1. The call.
        if unknown != 0 {
            return Err(No::UnknownFlags(unknown));
        }
        if !request.privileged {
            return Err(No::NotPermitted);
        }
        let number = self.areas.iter().position(Option::is_none).ok_or(No::TooManyAreas)?;
        // 2. The file.
        let target = request.target.as_ref().map_err(|&errno| No::CannotOpen(errno))?;
        let checks = [
            (target.zoned, No::Zoned),
            (target.unlinked, No::Unlinked),
            (self.find(target.id).is_some(), No::InUse),
            (target.min_folio_order > 0, No::LargeFolios),
            (!target.has_read_folio, No::NoReadFolio),
        ];
        if let Some((_, no)) = checks.into_iter().find(|(fails, _)| *fails) {
            return Err(no);
        }
        // 3. The header, and what of it there is room for.
        let regular_file = !target.device.block_device;
        let backing = Backing { pages: target.pages, regular_file, slots_max: self.pte.slots_max() };
        let mut layout = swap_header::check(target.first_page, backing).map_err(No::BadHeader)?;
        if regular_file {
            layout.slots = layout.slots.min(target.extents.map_err(No::Hole)?.slots());
        }
        layout.bad.retain(|&bad| bad < layout.slots);
        if layout.slots <= 1 + layout.bad.len() as u64 {
            return Err(No::NoUsableSlot);
        }
        if !target.map_fits {
            return Err(No::NoMemory);
        }
        // 4. Nothing can fail from here on.
        let mut area = SwapArea::new(&layout, target.device, discard_policy(request.flags, target.discards));
        area.node = target.node;
        area.priority = self.order.priority_of(request.flags);
        let number = number as u8;
        if area.discard.once {
            host.discard(number, 1..area.slots());
        }
        self.areas[number as usize] = Some(Listed { id: target.id, area });
        self.put_into_service(number);
        Ok(number)
    }
}

fn discard_policy(flags: u32, device_discards: bool) -> DiscardPolicy {
    if flags & FLAG_DISCARD == 0 || !device_discards {
        return DiscardPolicy::default();
    }
    let (once, pages) = (flags & FLAG_DISCARD_ONCE != 0, flags & FLAG_DISCARD_PAGES != 0);
    if once == pages { DiscardPolicy { once: true, pages: true } } else { DiscardPolicy { once, pages } }
}
