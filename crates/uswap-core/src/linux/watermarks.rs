//! Watermarks of a zone: when reclaim begins and ends (Linux 6.18, `mm/page_alloc.c`).

/// Least and most of `min_free_kbytes` when the kernel chooses it.
const MIN_FREE_KB: core::ops::RangeInclusive<u64> = 128..=262_144;
/// `vm.watermark_scale_factor` unless set: in ten-thousandths of a zone.
pub const SCALE_FACTOR_DEFAULT: u64 = 10;
const SCALE_UNIT: u64 = 10_000;
/// KiB of a page.
const PAGE_KB: u64 = 4;

/// `vm.min_free_kbytes` for a machine with `lowmem_kb` KiB of memory that the kernel can use directly.
pub fn min_free_kb(lowmem_kb: u64) -> u64 {
    (16 * lowmem_kb).isqrt().clamp(*MIN_FREE_KB.start(), *MIN_FREE_KB.end())
}

/// Free pages at which something happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermarks {
    /// Below it whoever allocates reclaims.
    pub min: u64,
    /// Below it kswapd wakes.
    pub low: u64,
    /// Here kswapd sleeps again.
    pub high: u64,
    /// Here pages are no longer moved up to a faster node.
    pub promo: u64,
}

impl Watermarks {
    /// Of a zone with `managed` of the machine's `lowmem` pages.
    pub fn new(managed: u64, lowmem: u64, min_free_kb: u64, scale_factor: u64) -> Self {
        let min_pages = min_free_kb / PAGE_KB;
        let min = (u128::from(min_pages) * u128::from(managed) / u128::from(lowmem.max(1))) as u64;
        let gap = (min / 4).max((u128::from(managed) * u128::from(scale_factor) / u128::from(SCALE_UNIT)) as u64);
        Self { min, low: min + gap, high: min + 2 * gap, promo: min + 3 * gap }
    }

    /// Of the only zone of a machine with `pages` of memory and nothing set by hand.
    pub fn of_machine(pages: u64) -> Self {
        Self::new(pages, pages, min_free_kb(pages * PAGE_KB), SCALE_FACTOR_DEFAULT)
    }
}

/// What kswapd and allocations do in a zone.
#[derive(Clone, Copy, Debug)]
pub struct Kswapd {
    marks: Watermarks,
    awake: bool,
}

/// Who reclaims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reclaimer {
    /// Nobody.
    None,
    /// kswapd, beside the programs.
    Kswapd,
    /// kswapd, and whoever allocates before it gets its page.
    Direct,
}

impl Kswapd {
    /// Asleep.
    pub fn new(marks: Watermarks) -> Self {
        Self { marks, awake: false }
    }

    /// There are `free` pages.
    pub fn reclaimer(&mut self, free: u64) -> Reclaimer {
        if free < self.marks.low {
            self.awake = true;
        } else if free >= self.marks.high {
            self.awake = false;
        }
        match self.awake {
            _ if free < self.marks.min => Reclaimer::Direct,
            true => Reclaimer::Kswapd,
            false => Reclaimer::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t5e_watermarks_of_one_zone() {
        let gigabytes = |count: u64| count << 18;
        assert_eq!(min_free_kb(gigabytes(16) * 4), 16384);
        let marks = Watermarks::of_machine(gigabytes(16));
        assert_eq!((marks.min, marks.low, marks.high), (4096, 8290, 12484));
        let marks = Watermarks::of_machine(gigabytes(64));
        assert_eq!((marks.min, marks.low, marks.high), (8192, 24969, 41746));
        assert_eq!(marks.promo, 41746 + 16777);
    }

    #[test]
    fn the_reserve_is_neither_tiny_nor_huge() {
        assert_eq!(min_free_kb(0), 128);
        assert_eq!(min_free_kb(1 << 40), 262_144);
    }

    #[test]
    fn a_zone_has_its_share() {
        let marks = Watermarks::new(1000, 4000, 1600, SCALE_FACTOR_DEFAULT);
        assert_eq!((marks.min, marks.low), (100, 125), "a quarter of the least is more than a thousandth");
    }

    #[test]
    fn kswapd_runs_from_low_to_high() {
        let mut kswapd = Kswapd::new(Watermarks { min: 10, low: 20, high: 30, promo: 40 });
        let seen: alloc::vec::Vec<_> = [25, 20, 19, 25, 9, 29, 30, 25].map(|free| kswapd.reclaimer(free)).into();
        use Reclaimer as By;
        let expected = [By::None, By::None, By::Kswapd, By::Kswapd, By::Direct, By::Kswapd, By::None, By::None];
        assert_eq!(seen, expected);
    }
}
