//! Shared memory as Linux has it: objects are page caches, and each process has its own page table of what it has mapped of them, with
//! the write protection of userfaultfd. On it runs the code of `uswap-shmem`, in a process that is the shared-memory server.
//!
//! A page that one process has is found by the others in the cache, without a message; what is punched out of the cache is gone from all
//! page tables. Protection of a page that is not mapped is a marker in its place, which a mapping of the page takes over, and punching
//! may leave behind. A fork copies entries and markers of what is registered, to memory that is registered with a userfaultfd of the
//! child's. Between what a thread sees of a page and when it is queued as one who waits, others may go on; only its own entry is then
//! looked at again.
//!
//! - [`page_cache`]: objects; [`shared_mm`]: mappings and page tables; [`shared_uffd`]: what is asked of them by userfaultfd;
//! - [`shared_touch`]: an access; [`shared_calls`]: mmap, munmap, mremap and fork;
//! - [`shared_host`]: the server's process.

pub mod page_cache;
pub mod shared_calls;
pub mod shared_host;
pub mod shared_mm;
pub mod shared_touch;
pub mod shared_uffd;

use std::collections::BTreeMap;

use page_cache::PageCache;
use shared_mm::SharedMm;

use crate::process::ProcessId;
use crate::scheduler::ThreadId;
use crate::userfaultfd_ctx::UserfaultId;

/// The kernel's side.
#[derive(Default)]
pub struct Shmem {
    /// All objects that there ever were.
    pub caches: Vec<PageCache>,
    /// What each process has mapped of them.
    pub mms: BTreeMap<ProcessId, SharedMm>,
    /// Children whose userfaultfd is read with an event.
    pub births: Vec<Birth>,
    /// Children that nobody sees yet: the fork has not returned.
    pub unborn: Vec<ProcessId>,
    /// Windows have been given up to this page.
    pub windows_end: usize,
}

/// A child that is being forked.
#[derive(Clone, Copy, Debug)]
pub struct Birth {
    /// Whose event tells of it.
    pub userfault: UserfaultId,
    /// Who forks.
    pub thread: ThreadId,
    /// The child's.
    pub child: UserfaultId,
}
