//! Where a page goes when it is written out, and where it is read from (`swap_writeout` and `swap_read_folio`, Linux 6.12 on).
//!
//! Zeros are a bit for each slot and no I/O; then the compressed pool is asked; what it does not take goes to the device. A
//! folio is all zeros or none: one page of it that is not makes the others travel too.

use alloc::vec::Vec;
use core::ops::Range;

/// One bit for each slot of an area: its page is all zeros (`zeromap`).
#[derive(Clone, Default, Debug)]
pub struct ZeroMap {
    words: Vec<u64>,
}

impl ZeroMap {
    /// For an area of `slots` slots.
    pub fn new(slots: u64) -> Self {
        Self { words: alloc::vec![0; slots.div_ceil(u64::from(u64::BITS)) as usize] }
    }

    fn place(slot: u64) -> (usize, u64) {
        ((slot / u64::from(u64::BITS)) as usize, 1 << (slot % u64::from(u64::BITS)))
    }

    /// Whether the page of `slot` is all zeros.
    pub fn is_zero(&self, slot: u64) -> bool {
        let (word, bit) = Self::place(slot);
        self.words[word] & bit != 0
    }

    /// Notes what the pages of `slots` are. Freeing a slot clears its bit.
    pub fn set(&mut self, slots: Range<u64>, zero: bool) {
        for slot in slots {
            let (word, bit) = Self::place(slot);
            self.words[word] = if zero { self.words[word] | bit } else { self.words[word] & !bit };
        }
    }
}

/// A folio on its way out: its slots, and which of its pages are all zeros.
#[derive(Clone, Copy, Debug)]
pub struct Folio<'a> {
    /// Its first slot; it has as many as pages.
    pub slot: u64,
    /// For each page whether it is all zeros.
    pub zero: &'a [bool],
    /// Somebody still names one of the slots.
    pub wanted: bool,
    /// Its cgroup lets what the pool refuses go to the device (`memory.zswap.writeback`).
    pub may_reach_device: bool,
}

impl Folio<'_> {
    fn slots(&self) -> Range<u64> {
        self.slot..self.slot + self.zero.len() as u64
    }
}

/// What became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writeout {
    /// Nobody wants it: its slots are free, and nothing was written.
    Dropped,
    /// All zeros: bits were set.
    Zeros,
    /// The pool has it.
    Pool,
    /// The pool refused it and it may not reach the device: it stays in memory, dirty and active.
    Kept,
    /// It is to be written to the device.
    Device,
}

/// Where a folio is read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadFrom {
    /// Nowhere: it is filled with zeros.
    Zeros,
    /// The pool.
    Pool,
    /// The device.
    Device,
    /// Some of its pages are zeros and others are not: the access gets SIGBUS.
    Mixed,
}

/// Pages by where they went and came from (vmstat).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PageIo {
    /// Zeros on their way out.
    pub swpout_zero: u64,
    /// To the pool.
    pub zswpout: u64,
    /// To the device.
    pub pswpout: u64,
    /// Zeros on their way in.
    pub swpin_zero: u64,
    /// From the pool.
    pub zswpin: u64,
    /// From the device.
    pub pswpin: u64,
}

impl PageIo {
    /// Sends `folio` out. `store` offers its slots to the pool, which has dropped what it had for them when it refuses.
    pub fn write(&mut self, folio: &Folio, zeros: &mut ZeroMap, store: impl FnOnce(Range<u64>) -> bool) -> Writeout {
        let pages = folio.zero.len() as u64;
        if !folio.wanted {
            return Writeout::Dropped;
        }
        let all_zeros = folio.zero.iter().all(|&zero| zero);
        zeros.set(folio.slots(), all_zeros);
        if all_zeros {
            self.swpout_zero += pages;
            return Writeout::Zeros;
        }
        if store(folio.slots()) {
            self.zswpout += pages;
            return Writeout::Pool;
        }
        if !folio.may_reach_device {
            return Writeout::Kept;
        }
        self.pswpout += pages;
        Writeout::Device
    }

    /// Finds what `slots` hold. `in_pool` tells whether the pool has the first of them.
    pub fn read(&mut self, slots: Range<u64>, zeros: &ZeroMap, in_pool: impl FnOnce(u64) -> bool) -> ReadFrom {
        let pages = slots.end - slots.start;
        let zero_pages = slots.clone().filter(|&slot| zeros.is_zero(slot)).count() as u64;
        match zero_pages {
            0 if in_pool(slots.start) => {
                self.zswpin += pages;
                ReadFrom::Pool
            }
            0 => {
                self.pswpin += pages;
                ReadFrom::Device
            }
            zero_pages if zero_pages == pages => {
                self.swpin_zero += pages;
                ReadFrom::Zeros
            }
            _ => ReadFrom::Mixed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folio(slot: u64, zero: &[bool]) -> Folio<'_> {
        Folio { slot, zero, wanted: true, may_reach_device: true }
    }

    #[test]
    fn t5b_zero_pages_need_no_device() {
        const PAGES: u64 = 524_288;
        let (mut io, mut zeros) = (PageIo::default(), ZeroMap::new(PAGES + 1));
        for slot in 1..=PAGES {
            let out =
                io.write(&folio(slot, &[true]), &mut zeros, |_| unreachable!("zeros are not offered to the pool"));
            assert_eq!(out, Writeout::Zeros);
        }
        for slot in 1..=PAGES {
            assert_eq!(io.read(slot..slot + 1, &zeros, |_| false), ReadFrom::Zeros);
        }
        assert_eq!(io, PageIo { swpout_zero: PAGES, swpin_zero: PAGES, ..PageIo::default() });
    }

    #[test]
    fn t5c_one_byte_makes_a_whole_folio_travel() {
        let (mut io, mut zeros) = (PageIo::default(), ZeroMap::new(64));
        let mut pages = [true; 16];
        pages[15] = false;
        assert_eq!(io.write(&folio(16, &pages), &mut zeros, |slots| slots == (16..32)), Writeout::Pool);
        assert_eq!(io.write(&folio(32, &pages), &mut zeros, |_| false), Writeout::Device);
        assert_eq!(io, PageIo { zswpout: 16, pswpout: 16, ..PageIo::default() });
        assert!((16..48).all(|slot| !zeros.is_zero(slot)));
    }

    #[test]
    fn a_slot_that_held_zeros_forgets_them_when_it_is_written_again() {
        let (mut io, mut zeros) = (PageIo::default(), ZeroMap::new(8));
        let _ = io.write(&folio(3, &[true]), &mut zeros, |_| false);
        assert_eq!(io.write(&folio(3, &[false]), &mut zeros, |_| true), Writeout::Pool);
        assert_eq!(io.read(3..4, &zeros, |slot| slot == 3), ReadFrom::Pool);
        assert_eq!(io.read(3..4, &zeros, |_| false), ReadFrom::Device);
    }

    #[test]
    fn what_nobody_wants_or_nobody_takes_is_not_written() {
        let (mut io, mut zeros) = (PageIo::default(), ZeroMap::new(8));
        let gone = Folio { wanted: false, ..folio(1, &[false]) };
        assert_eq!(io.write(&gone, &mut zeros, |_| true), Writeout::Dropped);
        let kept = Folio { may_reach_device: false, ..folio(1, &[false]) };
        assert_eq!(io.write(&kept, &mut zeros, |_| false), Writeout::Kept);
        assert_eq!(io, PageIo::default());
    }

    #[test]
    fn a_large_read_of_zeros_and_others_is_refused() {
        let (mut io, mut zeros) = (PageIo::default(), ZeroMap::new(8));
        zeros.set(2..4, true);
        assert_eq!(io.read(2..4, &zeros, |_| false), ReadFrom::Zeros);
        assert_eq!(io.read(2..6, &zeros, |_| true), ReadFrom::Mixed);
    }
}
