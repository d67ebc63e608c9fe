//! Where the slots of a swap file lie on its device.
//!
//! The blocks of the file are looked up once, at swapon. Only runs of blocks that make up a whole page, aligned on the
//! device, hold a slot; stray blocks between them are skipped, so a file may have fewer slots than pages. Neighbouring
//! pages become one extent. A block device is one extent. Source: Linux 6.18.

use alloc::vec::Vec;

use super::errno::Errno;

/// Slots that lie side by side on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The first of them.
    pub slot: u64,
    /// How many.
    pub slots: u64,
    /// Where the first lies, in pages of the device.
    pub device_page: u64,
}

/// A block of the file is not there (`swapfile has holes`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hole {
    /// Which one, counted from the file's start.
    pub block: u64,
}

impl Hole {
    /// What swapon(2) answers.
    pub fn errno(self) -> Errno {
        Errno::EINVAL
    }
}

/// The extents of one area, by slot.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SwapExtents {
    extents: Vec<Extent>,
}

impl SwapExtents {
    /// A block device.
    pub fn whole_device(slots: u64) -> Self {
        Self { extents: alloc::vec![Extent { slot: 0, slots, device_page: 0 }] }
    }

    /// A file: where each of its blocks lies on the device, in blocks; `blocks_per_page` of them make up a page.
    ///
    /// # Errors
    /// The first block that is not there.
    pub fn of_file(blocks: &[Option<u64>], blocks_per_page: usize, slots_max: u64) -> Result<Self, Hole> {
        let mut extents = Self::default();
        let mut probe = 0;
        while probe + blocks_per_page <= blocks.len() && extents.slots() < slots_max {
            let at = |index: usize| blocks[index].ok_or(Hole { block: index as u64 });
            let first = at(probe)?;
            let mut whole = first.is_multiple_of(blocks_per_page as u64);
            for index in 1..blocks_per_page {
                whole = whole && at(probe + index)? == first + index as u64;
            }
            if whole {
                extents.push(first / blocks_per_page as u64);
                probe += blocks_per_page;
            } else {
                probe += 1;
            }
        }
        Ok(extents)
    }

    /// Slots that have a place, that of the header included.
    pub fn slots(&self) -> u64 {
        self.extents.last().map_or(0, |extent| extent.slot + extent.slots)
    }

    /// By slot.
    pub fn as_slice(&self) -> &[Extent] {
        &self.extents
    }

    /// Where a slot lies, in pages of the device.
    pub fn device_page(&self, slot: u64) -> Option<u64> {
        let extent = self.extents[..self.extents.partition_point(|extent| extent.slot <= slot)].last()?;
        (slot - extent.slot < extent.slots).then(|| extent.device_page + slot - extent.slot)
    }

    fn push(&mut self, device_page: u64) {
        let slot = self.slots();
        match self.extents.last_mut() {
            Some(last) if last.device_page + last.slots == device_page => last.slots += 1,
            _ => self.extents.push(Extent { slot, slots: 1, device_page }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(slot: u64, slots: u64, device_page: u64) -> Extent {
        Extent { slot, slots, device_page }
    }

    #[test]
    fn neighbouring_pages_are_one_extent() {
        let blocks: Vec<_> = (40..52).chain(80..84).map(Some).collect();
        let extents = SwapExtents::of_file(&blocks, 4, 100).unwrap();
        assert_eq!(extents.as_slice(), [extent(0, 3, 10), extent(3, 1, 20)]);
        assert_eq!(
            (extents.device_page(2), extents.device_page(3), extents.device_page(4)),
            (Some(12), Some(20), None)
        );
    }

    #[test]
    fn stray_blocks_are_skipped_and_the_area_shrinks() {
        // Two blocks that fill up no aligned page, then two pages of which the second is not contiguous.
        let blocks: Vec<_> = [42, 43, 48, 49, 50, 51, 60, 61, 63, 62].into_iter().map(Some).collect();
        let extents = SwapExtents::of_file(&blocks, 4, 100).unwrap();
        assert_eq!(extents.as_slice(), [extent(0, 1, 12)]);
        assert_eq!(extents.slots(), 1);
    }

    #[test]
    fn a_hole_is_refused() {
        let mut blocks: Vec<_> = (0..16).map(Some).collect();
        blocks[9] = None;
        assert_eq!(SwapExtents::of_file(&blocks, 4, 100), Err(Hole { block: 9 }));
        assert_eq!(Hole { block: 9 }.errno(), Errno::EINVAL);
        assert_eq!(
            SwapExtents::of_file(&blocks, 4, 2).unwrap().slots(),
            2,
            "what the area does not use is not looked at"
        );
    }

    #[test]
    fn a_block_device_is_one_extent() {
        let extents = SwapExtents::whole_device(1000);
        assert_eq!((extents.slots(), extents.device_page(999)), (1000, Some(999)));
    }
}
