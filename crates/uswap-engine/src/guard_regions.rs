//! MADV_GUARD_INSTALL (Linux 6.13): pages of a mapping that must not be touched.
//!
//! The kernel keeps a guard as a mark in the page table. UFFDIO_COPY overwrites that mark as it does any other, so once a
//! program has guards, only the very page that a thread asks for is filled with zeros, never what lies after it: a thread
//! that touches a guard gets its SIGSEGV from the kernel, and never asks. The wrapper of madvise notes the use, and has the
//! content of guarded pages dropped.

use uswap_sys::linux::Linux;

use crate::host::Host;

/// The program is about to install guards.
pub fn note() {
    Linux::notices().uses.guard_regions.note();
}
