//! Who waits for the shared-memory server, and what that is doing.
//!
//! It answers on userfaultfds of other processes. That of a forked child comes by the fork and names nobody: there each process counts that
//! has a thread which waits for a page.

use std::fmt::{self, Write as _};
use std::os::fd::BorrowedFd;

use uswap_engine::group::{ProcessSlot, READING_AHEAD};
use uswap_sys::PAGE_SIZE;
use uswap_sys::maps::{self, MapsOf};

use super::{Thread, describe_counts, describe_thread, somebody_waits, someone_waits_for_page, threads_of};

/// The shared-memory server of a tree.
pub struct SharedServer<'a> {
    /// Its process id.
    pub pid: u32,
    /// What it counts.
    pub slot: &'a ProcessSlot,
    /// What it answers on, and the process that has sent it, if one has.
    pub uffds: Vec<(BorrowedFd<'a>, Option<u32>)>,
}

/// The server, while somebody waits for it.
pub(super) struct Asked<'a> {
    pub slot: &'a ProcessSlot,
    pub threads: Vec<Thread>,
    pid: u32,
    /// Whose threads wait, as far as that is known.
    by: Vec<Option<u32>>,
}

impl<'a> Asked<'a> {
    /// Nothing, if nobody waits for it.
    pub fn look(server: &SharedServer<'a>) -> Option<Asked<'a>> {
        let waiting = server.uffds.iter().filter(|(uffd, _)| somebody_waits(*uffd));
        let by: Vec<Option<u32>> = waiting.map(|(_, process)| *process).collect();
        let asked = |by| Asked { slot: server.slot, threads: threads_of(server.pid), pid: server.pid, by };
        (!by.is_empty()).then(|| asked(by))
    }

    #[cfg(test)]
    pub fn of(slot: &'a ProcessSlot, threads: Vec<Thread>) -> Asked<'a> {
        Asked { slot, threads, pid: 2, by: vec![Some(1)] }
    }

    /// Whether a process may wait for it.
    pub fn may_be_by(&self, process: u32) -> bool {
        self.by.contains(&Some(process)) || (self.by.contains(&None) && someone_waits_for_page(process))
    }

    /// What it is doing.
    pub fn describe(&self, text: &mut String, detail: bool) {
        let _ = writeln!(text, "uswap:   process {} brings in shared memory:", self.pid);
        let named = self.threads.iter().filter(|thread| detail || thread.is_of_the_engine());
        named.for_each(|thread| describe_thread(text, thread));
        let mut mapped = Vec::new();
        if maps::read_maps(MapsOf::Pid(self.pid), &mut mapped).is_err() {
            mapped.clear();
        }
        for (handler, address) in self.slot.being_served() {
            let page = Page { address: address as usize, mapped: &mapped };
            let _ = match handler {
                READING_AHEAD => writeln!(text, "uswap:   reading ahead is at {page}"),
                _ => writeln!(text, "uswap:   handler {handler} is at {page}"),
            };
        }
        if detail {
            describe_counts(text, self.slot);
        }
    }
}

/// A page of shared memory by its place in the server, which has this mapped. It gets the name that the server itself gives it.
struct Page<'a> {
    address: usize,
    mapped: &'a [u8],
}

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match maps::vmas(self.mapped).find(|vma| (vma.start..vma.end).contains(&self.address)) {
            Some(vma) => {
                let page = (vma.offset as usize + (self.address - vma.start)) / PAGE_SIZE;
                write!(f, "page {page} of shared memory {}", vma.inode)
            }
            None => write!(f, "page {:#x} of shared memory", self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_named_by_its_object() {
        let mapped =
            b"7f0000000000-7f0000010000 r--s 00003000 00:01 17                    /memfd:uswap-shared (deleted)\n";
        let name = |address| Page { address, mapped }.to_string();
        assert_eq!(name(0x7f00_0000_2000), "page 5 of shared memory 17");
        assert_eq!(name(0x7f00_0001_0000), "page 0x7f0000010000 of shared memory");
    }
}
