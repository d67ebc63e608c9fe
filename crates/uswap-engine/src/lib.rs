//! uswap-engine does: it carries the decisions of uswap-core out on real memory, through uswap-sys.
//!
//! The engine lives inside the process whose memory it manages, on threads of its own. Where to look:
//!
//! - [`host`], [`staffed`]: what it runs on: Linux, or a model of it; [`notices`]: what the program's threads note for it;
//! - [`engine`]: the engine of a process, made of its parts: `memory`, `books`, `content`, `pressure`, `forking` (with `phase`:
//!   whether its books may change), `staff`; `lock_order`: which lock may be
//!   taken while another is held; [`worker`]: what each thread has for itself;
//! - [`handler`]: faults, as userfaultfd delivers them; `events`: what the program does to its memory; [`giving_way`]: how it
//!   waits for faults;
//! - [`swapin`], [`swapout`]: the two ways of a page;
//! - [`adopt`]: which of the program's memory is managed; [`lazy_free`]: what it gave up before; [`whole_mappings`]: no
//!   mapping is adopted in part; [`guard_regions`], [`page_references`], [`left_mapped`], [`discards`] and [`control_blocks`]: what is done with its memory that needs care;
//! - [`monitor`]: the reclaim thread, which keeps the process inside its budget; `scale`: what the process has of it;
//!   `adoption_pace`: how often its mappings are looked at; [`post`]: what the program's threads tell it; `writer`, which waits
//!   for disks in its stead; [`engine_threads`]: how all threads start;
//! - [`fork`] (with `fork_room`, `beside` and `fork_child`), [`fork_post`], [`fork_copy`], [`ledger`]: what a child needs, and what its parent must keep for it; [`fork_advice`]: what the program
//!   keeps from its children, as its threads tell it (`postings`);
//! - [`areas`], [`store`], [`page_io`], [`zpool`], [`compress`]: where content goes; [`compaction`]: how the pool stays dense;
//! - [`shared_mapping`]: what the program gets in place of anonymous shared memory, which the shared-memory server swaps;
//! - [`group`], [`protocol`]: what the processes of a tree share.

#![deny(unsafe_code)]

pub mod adopt;
mod adoption_pace;
pub mod ahead;
pub mod areas;
pub mod assist;
mod beside;
mod books;
mod census;
mod common_pages;
pub mod compaction;
pub mod compress;
mod content;
pub mod control_blocks;
pub mod discards;
pub mod engine;
pub mod engine_threads;
mod events;
pub mod fork;
pub mod fork_advice;
mod fork_changes;
mod fork_child;
pub mod fork_copy;
mod fork_journal;
mod fork_patience;
pub mod fork_post;
mod fork_room;
mod forking;
pub mod giving_way;
pub mod group;
mod grown;
pub mod guard_regions;
pub mod handler;
mod heirs;
pub mod host;
pub mod in_common;
pub mod last_told;
pub mod lazy_free;
pub mod ledger;
pub mod left_mapped;
mod left_pools;
mod load;
mod lock_order;
pub mod member;
mod memory;
pub mod monitor;
mod names;
pub mod notices;
mod onlookers;
mod own_files;
mod page_io;
pub mod page_references;
mod pause;
mod pending_fault;
mod phase;
pub mod post;
mod postings;
mod presence;
mod pressure;
pub mod protocol;
mod publish;
mod scale;
pub mod shared_mapping;
mod smaps;
mod staff;
pub mod staffed;
pub mod store;
pub mod swapin;
mod swapoff;
pub mod swapout;
mod swapped_shared;
mod trash;
mod userfault;
pub mod whole_mappings;
#[cfg(all(test, uswap_words))]
mod words;
pub mod worker;
mod write_protection;
mod writer;
pub mod zpool;
