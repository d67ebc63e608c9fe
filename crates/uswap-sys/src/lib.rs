//! What uswap asks of Linux, and nothing else: no policy lives here.
//!
//! Each file wraps one kernel interface and turns its signed answers into enums, so that nobody above
//! can misread them. Much of this crate runs inside a foreign process, in threads that libc does not
//! know: nothing marked *fault path* allocates, takes a libc lock, writes `errno` of a program thread
//! or panics. System calls go through `rustix`'s raw back end for that reason.
//!
//! Where to look:
//!
//! - [`uffd`]: userfaultfd, on which all else stands;
//! - [`private_memory`]: what belongs to the agent and must never be swapped;
//! - [`placement`]: where that lies, so that no program maps over it; [`reserve`]: what is set aside for when there is no more;
//! - [`heap`], [`thread`], [`futex`]: a heap, threads and waiting that owe nothing to libc; [`last_thread`]: when only those
//!   threads are left;
//! - [`pagemap`], [`maps`], [`rss`], [`rusage`]: what a process has in memory, and what it has cost; [`process_status`]: whether it
//!   is killed, or traced;
//! - [`shared_file`], [`shared_mapping`]: memory that several processes have, and whose pages can be taken away;
//! - [`swapped_moves`]: whether this kernel moves rightly what it has swapped out by itself;
//! - [`linux`]: all of it as the engine asks for it ([`uswap_system`]); [`call`]: what handlers hear beside messages; [`select`]: how,
//!   where there may be fewer descriptors than they listen to;
//! - `mapped_words`: memory of a program under test;
//! - [`ring`], [`report`]: I/O; `file_lease`: whether somebody else has a file open; [`test_hook`]: failures on purpose;
//! - [`elf`], [`valgrind`]: what kind of program a file is, and what this process runs on; [`symbols`]: where the loader finds functions.

#![deny(unsafe_code)]

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("uswap-sys knows Linux on x86_64 only");

#[cfg(feature = "launch")]
pub mod anchor;
pub mod call;
pub mod elf;
#[cfg(feature = "launch")]
pub mod file_lease;
pub mod futex;
pub mod heap;
pub mod huge_pages;
#[cfg(feature = "launch")]
pub mod interrupt;
pub mod last_thread;
#[cfg(feature = "launch")]
pub mod launch;
pub mod linux;
#[cfg(feature = "launch")]
pub mod mapped_words;
pub mod maps;
pub mod named_memory;
pub mod pagemap;
pub mod placement;
pub mod private_memory;
pub mod proc;
pub mod process_status;
pub mod report;
pub mod reserve;
mod residency;
pub mod ring;
pub mod rss;
pub mod rusage;
pub mod select;
pub mod shared_file;
pub mod shared_forks;
pub mod shared_mapping;
pub mod swapped_moves;
pub mod symbols;
pub mod test_hook;
pub mod thread;
pub mod uffd;
mod unwinder;
pub mod valgrind;

pub use private_memory::AlignedBuffer;
/// Bytes of a page: what the program sees fault.
pub use uswap_system::PAGE_SIZE;

/// The crate's own tests run on the agent's heap, raw threads included.
#[cfg(test)]
#[global_allocator]
static HEAP: heap::AgentHeap = heap::AgentHeap;
