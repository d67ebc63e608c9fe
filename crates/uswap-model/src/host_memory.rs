//! The engine's own memory, as far as pages are moved there: real bytes at real addresses, and beside them what the kernel has in
//! its page table.

#![allow(unsafe_code)]

use std::ops::Range;

use uswap_system::PAGE_SIZE;

use crate::mm::Counts;
use crate::page_content::Content;
use crate::pte::Pte;
use crate::userfaultfd_ctx::{Mode, UserfaultId};
use crate::vma::{Attributes, Vma};

/// A range that the engine has registered: frames, or trash.
pub struct HostRange {
    start: usize,
    ptes: Vec<Pte>,
    exec: Vec<bool>,
    locked: bool,
    userfault: UserfaultId,
    mode: Mode,
    counts: Counts,
    /// Pages from here on have never been anything but missing.
    used: usize,
    /// How many pages may be executed; mostly none.
    executable: usize,
}

impl HostRange {
    pub(crate) fn new(pages: Range<usize>, userfault: UserfaultId, mode: Mode) -> HostRange {
        let len = pages.len();
        HostRange {
            start: pages.start,
            ptes: vec![Pte::Missing; len],
            exec: vec![false; len],
            locked: false,
            userfault,
            mode,
            counts: Counts::default(),
            used: 0,
            executable: 0,
        }
    }

    /// Its pages.
    pub fn pages(&self) -> Range<usize> {
        self.start..self.start + self.ptes.len()
    }

    /// The entries that have ever been anything but missing, and maybe more.
    pub(crate) fn used(&self) -> &[Pte] {
        &self.ptes[..self.used]
    }

    /// The entry of a page of it.
    pub fn pte(&self, page: usize) -> Pte {
        self.ptes[page - self.start]
    }

    pub(crate) fn set(&mut self, page: usize, pte: Pte) {
        let entry = &mut self.ptes[page - self.start];
        self.counts.change(*entry, pte);
        *entry = pte;
        self.used = self.used.max(page - self.start + 1);
    }

    /// How many entries are what.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The machine gets the memory back: its process is gone.
    pub(crate) fn give_back(&self) {
        let start = std::ptr::without_provenance_mut((self.start) * PAGE_SIZE);
        // SAFETY: the pages are the engine's own, mapped as long as it lives, which is for ever; no thread of its process will run
        // again, so nobody has a reference to their content.
        let _ = unsafe { rustix::mm::madvise(start, self.used * PAGE_SIZE, rustix::mm::Advice::LinuxDontNeed) };
    }

    /// Pages may be executed, or no more: they are a mapping of their own then.
    pub(crate) fn let_execute(&mut self, pages: Range<usize>, exec: bool) {
        let marked = &mut self.exec[pages.start - self.start..pages.end - self.start];
        let before = marked.iter().filter(|exec| **exec).count();
        self.executable = self.executable - before + if exec { marked.len() } else { 0 };
        marked.fill(exec);
    }

    pub(crate) fn lock(&mut self, locked: bool) {
        self.locked = locked;
    }

    /// The mapping that has `page`.
    pub fn vma_at(&self, page: usize) -> Vma {
        let attributes =
            Attributes { locked: self.locked, userfault: Some((self.userfault, self.mode)), ..Attributes::PLAIN };
        if self.executable == 0 {
            return Vma { start: self.start, end: self.pages().end, attributes };
        }
        let (index, exec) = (page - self.start, self.exec[page - self.start]);
        let before = self.exec[..index].iter().rev().take_while(|&&other| other == exec).count();
        let after = self.exec[index..].iter().take_while(|&&other| other == exec).count();
        Vma { start: page - before, end: page + after, attributes: Attributes { exec, ..attributes } }
    }
}

/// Writes a page of the engine's.
pub(crate) fn write(page: usize, content: Content) {
    let target = (page * PAGE_SIZE) as *mut [u8; PAGE_SIZE];
    // SAFETY: the engine has registered the page, so it is mapped, readable and writable, and stays so as long as its process
    // lives; all threads of the model run on this thread of the machine, and whoever moves a page there has no reference to it.
    unsafe { target.write(content.bytes()) };
}

/// Bytes that no program has written, where a page has left: who reads them by mistake is found out.
pub(crate) fn spoil(page: usize) {
    let target = (page * PAGE_SIZE) as *mut [u64; 2];
    // SAFETY: as in `write`.
    unsafe { target.write([0xdead_beef_dead_beef; 2]) };
}

/// Zeros, as in a page that the kernel has just given.
pub(crate) fn clear(page: usize) {
    write(page, Content::ZERO);
}

/// What is in a page of the engine's, registered or not.
pub(crate) fn read(address: usize) -> Content {
    // SAFETY: the engine names a page of its own memory that it may read, as it must for the kernel to read it; nobody writes it
    // meanwhile, for all threads of the model run on this thread of the machine.
    let bytes = unsafe { *(address as *const [u8; PAGE_SIZE]) };
    Content::of_bytes(&bytes)
}
