//! The swap subsystem of Linux as it is: its rules, constants and eras, one mechanism per file.
//!
//! The engine does not run on these; it runs on the modules beside this one. These are what the engine is compared with:
//! the simulator drives them on virtual devices and in virtual time, and every published figure is reproduced from them.
//! Nothing in here takes time or does I/O: what an operation costs is told as counts (entries visited, locks taken, slots
//! read), and whoever drives it puts a price on them.
//!
//! The rules are those of Linux 6.18 unless a type says which era it follows.

pub mod anon_page;
pub mod errno;
pub mod lru;
pub mod memory_high;
pub mod numa;
pub mod readahead;
pub mod scan_balance;
pub mod swap_entry;
pub mod swap_header;
pub mod swap_in;
pub mod watermarks;
pub mod workingset;
pub mod write_reuse;
pub mod writeout;
