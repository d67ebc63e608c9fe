//! Pages that the kernel goes on reading after a system call has returned: vmsplice(2) and sends with MSG_ZEROCOPY.
//!
//! A pipe or a socket then refers to the page itself, whatever becomes of the mapping. A move does not see such a reference
//! (it refuses pages that are pinned, and these are not), so the page may lie in a frame while somebody else is still to
//! read it. It stays as it is for as long as nothing is written to that frame: a program that does either gets no content
//! into frames that have been in use. They are given back, and the page lives on until the last reader is done.

use uswap_sys::linux::Linux;

use crate::host::Host;

/// The program is about to give pages of its memory to a pipe or a socket.
pub fn note() {
    Linux::notices().uses.page_references.note();
}
