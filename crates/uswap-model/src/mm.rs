//! The memory of a process: mappings and page table of the program, and what the kernel has of the engine's own memory that it
//! was told of.
//!
//! The program's addresses are small and simulated. The engine's are real ones of this process of the machine.

use std::ops::Range;

use uswap_system::PAGE_SIZE;

use crate::frames::Frames;
use crate::host_memory::HostRange;
use crate::pte::Pte;
use crate::vma::{Attributes, Vma, Vmas};

/// Pages from here on are real memory.
pub(crate) const HOST_FROM: usize = 1 << 20;

/// Whether a page is real memory.
pub(crate) fn is_host(page: usize) -> bool {
    page >= HOST_FROM
}

/// The pages of a range of bytes; nothing if it is not whole pages.
pub(crate) fn pages_of(start: usize, len: usize) -> Option<Range<usize>> {
    let is_whole = start.is_multiple_of(PAGE_SIZE) && len.is_multiple_of(PAGE_SIZE) && len > 0;
    is_whole.then(|| start / PAGE_SIZE..(start + len) / PAGE_SIZE)
}

/// The memory of a process.
pub struct Mm {
    base: usize,
    ptes: Vec<Pte>,
    /// The program's mappings.
    pub vmas: Vmas,
    /// What the engine has registered.
    pub hosts: Vec<HostRange>,
    /// Calls that hold the lock of the mappings for reading, across steps.
    pub readers: u32,
    /// prctl(PR_SET_THP_DISABLE).
    pub no_huge_pages: bool,
    last_anon: u32,
    /// Page faults that were ever answered.
    pub faults: u64,
    /// What its pages are in.
    pub frames: Frames,
    /// Entries that were ever set.
    sets: u64,
    /// Pages that have come in without a fault: the kernel has filled holes with them.
    pub filled_unasked: u64,
    /// Of the program's pages.
    counts: Counts,
}

impl Mm {
    pub(crate) fn new(base: usize, span: usize, frames: Frames) -> Mm {
        Mm {
            base,
            ptes: vec![Pte::Missing; span],
            vmas: Vmas::default(),
            hosts: Vec::new(),
            readers: 0,
            no_huge_pages: false,
            last_anon: 0,
            faults: 0,
            frames,
            sets: 0,
            filled_unasked: 0,
            counts: Counts::default(),
        }
    }

    /// The pages that a program can have.
    pub fn span(&self) -> Range<usize> {
        self.base..self.base + self.ptes.len()
    }

    pub(crate) fn clear(&mut self) {
        let span = self.span();
        self.hosts.iter().for_each(HostRange::give_back);
        let ptes = self.ptes.iter().chain(self.hosts.iter().flat_map(HostRange::used));
        ptes.for_each(|&pte| self.frames.change(pte, Pte::Missing));
        *self = Mm::new(span.start, span.len(), self.frames.clone());
    }

    /// The host memory that has `page`.
    pub fn host(&self, page: usize) -> Option<&HostRange> {
        self.hosts.iter().find(|host| host.pages().contains(&page))
    }

    /// The entry of a page.
    pub fn pte(&self, page: usize) -> Pte {
        if is_host(page) {
            return self.host(page).map_or(Pte::Missing, |host| host.pte(page));
        }
        page.checked_sub(self.base).and_then(|index| self.ptes.get(index)).copied().unwrap_or(Pte::Missing)
    }

    /// Sets the entry of a page that is mapped.
    pub fn set(&mut self, page: usize, pte: Pte) {
        let pte = self.frames.placed(pte);
        self.frames.change(self.pte(page), pte);
        self.sets += 1;
        if is_host(page) {
            let host = self.hosts.iter_mut().find(|host| host.pages().contains(&page));
            return host.expect("host memory that is set is known").set(page, pte);
        }
        let entry = &mut self.ptes[page - self.base];
        self.counts.change(*entry, pte);
        *entry = pte;
    }

    /// A page of this process's own comes into being at a page.
    pub fn allocate(&mut self, page: usize, pte: Pte) {
        if !is_host(page) {
            self.last_anon += 1;
            self.vmas.touched(page, self.last_anon);
        }
        self.set(page, pte);
    }

    /// The mapping of a page.
    pub fn vma_at(&self, page: usize) -> Option<Vma> {
        if is_host(page) {
            return self.host(page).map(|host| host.vma_at(page));
        }
        self.vmas.at(page).copied()
    }

    /// The program's pages of a range have no content any more, and the range is not mapped. Returns what was.
    pub(crate) fn unmap(&mut self, range: Range<usize>) -> Vec<Vma> {
        let gone = self.vmas.remove(range);
        for page in gone.iter().flat_map(|vma| vma.start..vma.end) {
            self.set(page, Pte::Missing);
        }
        gone
    }

    pub(crate) fn map(&mut self, range: Range<usize>, attributes: Attributes) {
        self.vmas.insert(range, attributes);
    }

    /// Resident pages that count.
    pub fn resident(&self) -> u64 {
        (self.counts.resident + self.hosts.iter().map(|host| host.counts().resident).sum::<usize>()) as u64
    }

    /// Those of them that only this process has, and of others one part in as many as have it. Rounded up.
    pub fn share(&self) -> u64 {
        /// Divided by all numbers up to 8.
        const WHOLE: u64 = 840;
        let ptes = self.ptes.iter().chain(self.hosts.iter().flat_map(HostRange::used));
        ptes.map(|pte| self.frames.owners(*pte))
            .filter(|&owners| owners > 0)
            .map(|owners| WHOLE.div_ceil(owners))
            .sum::<u64>()
            .div_ceil(WHOLE)
    }

    /// Grows with each change of an entry, and with each fault.
    pub fn changes(&self) -> u64 {
        self.sets + self.faults
    }

    /// Pages that the kernel has swapped out by itself.
    pub fn swapped(&self) -> u64 {
        (self.counts.swapped + self.hosts.iter().map(|host| host.counts().swapped).sum::<usize>()) as u64
    }
}

/// How many entries of a table are what.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Resident pages that count.
    pub resident: usize,
    /// What the kernel has swapped out.
    pub swapped: usize,
}

impl Counts {
    /// An entry has become another.
    pub(crate) fn change(&mut self, old: Pte, new: Pte) {
        let is_swapped = |pte| usize::from(matches!(pte, Pte::Swapped(_)));
        self.resident = self.resident + usize::from(new.is_resident()) - usize::from(old.is_resident());
        self.swapped = self.swapped + is_swapped(new) - is_swapped(old);
    }
}
