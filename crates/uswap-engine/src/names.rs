//! What messages to the user call memory and its pages: shared memory has other names than that of one process.

use std::fmt;
use std::marker::PhantomData;

use uswap_core::PageNumber;

use crate::host::Host;

/// The memory that is swapped.
pub(crate) struct MemoryName<H>(PhantomData<H>);

impl<H> MemoryName<H> {
    pub fn new() -> MemoryName<H> {
        MemoryName(PhantomData)
    }
}

impl<H: Host> fmt::Display for MemoryName<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        H::name_memory(f)
    }
}

/// A page of it.
pub(crate) struct PageName<H> {
    page: PageNumber,
    host: PhantomData<H>,
}

impl<H> PageName<H> {
    pub fn new(page: PageNumber) -> PageName<H> {
        PageName { page, host: PhantomData }
    }
}

impl<H: Host> fmt::Display for PageName<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        H::name_page(f, self.page.address())
    }
}
