//! uswap-core decides: the swap subsystem of Linux as a pure state machine.
//!
//! It keeps the books (page table, swap table, swap cache, slots, reclaim lists, pool rules) of one process and
//! answers what to do next. It makes no system call, starts no thread, reads no clock, draws no random number and
//! never sees the content of a page: content is named by handles, and a content hash is handed in as a number.
//! The engine carries its answers out on real memory; the simulator does so on virtual memory.
//!
//! The verbs return plans directly instead of queueing actions: several engine threads ask at the same time, and
//! each must get the answer to its own question.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod ahead;
pub mod budget;
pub mod entry;
pub mod event_order;
pub mod fault;
pub mod floor;
pub mod fork_cut;
pub mod fork_window;
pub mod page_table;
pub mod policies;
pub mod pool_share;
pub mod ranges;
pub mod readahead;
mod recent_discards;
pub mod reclaim;
pub mod slots;
pub mod swap_cache;
pub mod swap_table;
pub mod swapoff;
pub mod swapout;
pub mod tuning;
pub mod units;
pub mod workingset;
pub mod zswap;

mod by_address;
mod cluster;
mod compaction;
mod core;
mod events;
mod lineage;

pub use crate::compaction::{CompactionJob, CompactionSearch};
pub use crate::core::{Core, CoreConfig, Released};
pub use crate::entry::{AreaId, EntryId, Epoch, Location};
pub use crate::fault::{FaultPlan, FrameLeft, Landing, LoadPage, LoadPlan};
pub use crate::page_table::{OpId, PageState};
pub use crate::policies::{Policies, ReadaheadPolicy, ReclaimPolicy};
pub use crate::ranges::RangeSet;
pub use crate::reclaim::Isolation;
pub use crate::swap_cache::{FrameBlock, FrameId, Onlooked};
pub use crate::swapoff::{Emptying, Survey};
pub use crate::swapout::{StoreJob, StoreResult, Stored};
pub use crate::units::{BLOCK_PAGES, LEAF_PAGES, PAGE_SIZE, PageNumber, PageRange};
pub use crate::zswap::WritebackJob;
