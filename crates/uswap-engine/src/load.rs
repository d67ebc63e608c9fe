//! A plan of the books for pages that come in, as it is carried out.

#![allow(unsafe_code)]

use uswap_core::fault::MAX_WINDOW;
use uswap_core::{Landing, LoadPlan, PAGE_SIZE};
use uswap_sys::private_memory::PrivateMapping;
use uswap_system::System;

use crate::memory::Memory;

/// What is known of the content of a page of the window.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    Wanted,
    Ready,
    Lost,
}

/// A plan that is being carried out.
pub(crate) struct Load {
    pub plan: LoadPlan,
    pub contents: [Content; MAX_WINDOW],
    /// Where in the worker's buffer the pages without a frame are put.
    pub buffer: usize,
    /// The books do not know of it: see `beside.rs`.
    pub is_beside: bool,
}

impl Load {
    /// The next of those that a worker carries out together.
    pub fn after(others: &[Load], plan: LoadPlan) -> Load {
        let buffer = Load::buffer_pages(others);
        Load { plan, contents: [Content::Wanted; MAX_WINDOW], buffer, is_beside: false }
    }

    /// One that a worker carries out beside the books.
    pub fn beside(plan: LoadPlan) -> Load {
        Load { is_beside: true, ..Load::after(&[], plan) }
    }

    /// Whether the content of all its pages has been had.
    pub fn is_ready(&self) -> bool {
        self.contents[..self.plan.count].iter().all(|content| *content == Content::Ready)
    }

    /// Pages of the worker's buffer that these need.
    pub fn buffer_pages(loads: &[Load]) -> usize {
        loads.last().map_or(0, |last| last.buffer + last.plan.count)
    }

    /// Where the content of page `index` is put.
    pub fn landing<S: System>(&self, index: usize, memory: &Memory<S>, buffer: &Buffer) -> *mut u8 {
        match self.plan.pages()[index].landing {
            Landing::Frame(frame) => memory.frame_address(frame) as *mut u8,
            Landing::Buffer => buffer.page(self.buffer + index),
        }
    }

    /// The same, as the page it is.
    ///
    /// # Safety
    /// The load has not ended: a frame that the books gave to it is populated and this thread's alone. The caller is done with
    /// the page before it is asked for again, and `buffer` is that of the thread that carries this out.
    pub unsafe fn landing_page<'a, S: System>(
        &self,
        index: usize,
        memory: &Memory<S>,
        buffer: &Buffer,
    ) -> &'a mut [u8; PAGE_SIZE] {
        // SAFETY: either is one whole page, which stays mapped; the rest is the caller's promise.
        unsafe { &mut *(self.landing(index, memory, buffer) as *mut [u8; PAGE_SIZE]) }
    }

    pub fn wants(&self, index: usize) -> bool {
        self.contents[index] == Content::Wanted
    }
}

/// Whole pages of one thread, for what it reads and writes.
pub(crate) struct Buffer(pub PrivateMapping);

impl Buffer {
    /// How many there are.
    pub fn pages(&self) -> usize {
        self.0.len() / PAGE_SIZE
    }

    /// Page `index` of them.
    pub fn page(&self, index: usize) -> *mut u8 {
        assert!(index < self.pages());
        self.0.as_ptr().wrapping_add(index * PAGE_SIZE)
    }
}
