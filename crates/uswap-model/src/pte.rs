//! Entries of page tables.

use crate::frames::FrameNumber;
use crate::page_content::Content;

/// A page in memory, or in the kernel's own swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    /// What is in it. Of host memory this says nothing: the bytes are there.
    pub content: Content,
    /// It is the zero page.
    pub is_zero_page: bool,
    /// No other process has it (PageAnonExclusive).
    pub is_exclusive: bool,
    /// The kernel may drop it until it is written to (MADV_FREE).
    pub is_lazy: bool,
    /// The program has used it since it came in.
    pub is_accessed: bool,
    /// A device has it.
    pub is_pinned: bool,
    /// A write to it is told to the userfaultfd first (UFFDIO_WRITEPROTECT).
    pub is_protected: bool,
    /// Where it is; nowhere if it is the zero page, or has not been put into a page table yet.
    pub frame: Option<FrameNumber>,
}

impl Page {
    /// A page of this process alone.
    pub const fn new(content: Content) -> Page {
        Page {
            content,
            is_zero_page: false,
            is_exclusive: true,
            is_lazy: false,
            is_accessed: false,
            is_pinned: false,
            is_protected: false,
            frame: None,
        }
    }

    /// The zero page.
    pub const fn zero() -> Page {
        Page { is_zero_page: true, ..Page::new(Content::ZERO) }
    }
}

/// An entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pte {
    /// Nothing.
    Missing,
    /// In memory.
    Present(Page),
    /// The kernel has swapped it out by itself.
    Swapped(Page),
    /// An access gets SIGBUS.
    Poison,
}

impl Pte {
    /// Its page, wherever it is.
    pub fn page(self) -> Option<Page> {
        match self {
            Pte::Present(page) | Pte::Swapped(page) => Some(page),
            Pte::Missing | Pte::Poison => None,
        }
    }

    /// The same entry with its page changed.
    pub fn with(self, change: impl FnOnce(&mut Page)) -> Pte {
        match self {
            Pte::Present(mut page) => {
                change(&mut page);
                Pte::Present(page)
            }
            Pte::Swapped(mut page) => {
                change(&mut page);
                Pte::Swapped(page)
            }
            other => other,
        }
    }

    /// Whether it counts as resident.
    pub fn is_resident(self) -> bool {
        matches!(self, Pte::Present(page) if !page.is_zero_page)
    }
}
