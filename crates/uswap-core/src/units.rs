//! Units: pages, runs of pages, and the sizes that everything else is counted in.

/// Bytes of a page.
pub const PAGE_SIZE: usize = 4096;
/// Pages of a page table leaf: 2 MiB, as one page-table page of x86-64 maps.
pub const LEAF_PAGES: usize = 512;
/// Pages of a block, the unit of eviction: 16 pages cost little more than one where another CPU must drop its TLB.
pub const BLOCK_PAGES: usize = 16;

/// A page of the managed process: its address divided by [`PAGE_SIZE`].
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageNumber(pub u64);

impl PageNumber {
    /// The page that holds `address`.
    pub fn containing(address: usize) -> Self {
        Self((address / PAGE_SIZE) as u64)
    }

    /// The range of this page alone.
    pub const fn alone(self) -> PageRange {
        PageRange { start: self, pages: 1 }
    }

    /// Address of the first byte of the page.
    pub fn address(self) -> usize {
        self.0 as usize * PAGE_SIZE
    }

    /// The page `pages` further on.
    pub fn plus(self, pages: u64) -> Self {
        Self(self.0 + pages)
    }

    /// The page `steps` steps of `step` pages further on, or back; `None` beyond either end of what can be addressed.
    pub fn stepped(self, step: i64, steps: u32) -> Option<Self> {
        self.0.checked_add_signed(step * i64::from(steps)).map(Self)
    }

    /// First page of the block that holds this page.
    pub fn block_start(self) -> Self {
        Self(self.0 & !(BLOCK_PAGES as u64 - 1))
    }

    /// Position of the page in its block.
    pub fn index_in_block(self) -> usize {
        self.0 as usize % BLOCK_PAGES
    }
}

/// Consecutive pages.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Hash)]
pub struct PageRange {
    /// First page.
    pub start: PageNumber,
    /// How many pages.
    pub pages: u64,
}

impl PageRange {
    /// All pages that there can be.
    pub const ALL: Self = Self { start: PageNumber(0), pages: u64::MAX };

    /// The pages of the bytes `start..end`; both are multiples of [`PAGE_SIZE`].
    pub fn of_bytes(start: usize, end: usize) -> Self {
        debug_assert!(start.is_multiple_of(PAGE_SIZE) && end.is_multiple_of(PAGE_SIZE) && start <= end);
        Self { start: PageNumber::containing(start), pages: ((end - start) / PAGE_SIZE) as u64 }
    }

    /// The page after the last one.
    pub fn end(self) -> PageNumber {
        self.start.plus(self.pages)
    }

    /// What is in both.
    pub fn intersection(self, other: Self) -> Self {
        let (start, end) = (self.start.max(other.start), self.end().min(other.end()));
        Self { start, pages: end.0.saturating_sub(start.0) }
    }

    /// Whether a page is in both.
    pub fn overlaps(self, other: Self) -> bool {
        self.intersection(other).pages > 0
    }

    /// The parts that are not in `other`, in order.
    pub fn outside(self, other: Self) -> impl Iterator<Item = Self> {
        let parts = [(self.start, self.end().min(other.start)), (self.start.max(other.end()), self.end())];
        parts.into_iter().filter(|(start, end)| start < end).map(|(start, end)| Self { start, pages: end.0 - start.0 })
    }

    /// Both halves.
    pub fn halves(self) -> [Self; 2] {
        let first = Self { pages: self.pages / 2, ..self };
        [first, Self { start: first.end(), pages: self.pages - first.pages }]
    }

    /// As many pages, from `start` on.
    pub fn moved_to(self, start: PageNumber) -> Self {
        Self { start, ..self }
    }

    /// Whether `page` is one of these.
    pub fn contains(self, page: PageNumber) -> bool {
        page >= self.start && page < self.end()
    }
}
