//! uswap-core decides: the swap subsystem of Linux as a pure state machine.
//!
//! It keeps the books (page table, swap table, swap cache, slots, reclaim lists, pool rules) of one process and
//! answers what to do next. It makes no system call, starts no thread, reads no clock, draws no random number and
//! never sees the content of a page: content is named by handles, and a content hash is handed in as a number.
//! The engine carries its answers out on real memory; the simulator does so on virtual memory.
//!
//! The verbs return plans directly instead of queueing actions: several engine threads ask at the same time, and
//! each must get the answer to its own question.
//!
//! [`Core`] is all of it; its verbs are grouped by file: what a touch means ([`fault`]), what leaves ([`reclaim`]) and where to
//! ([`swapout`], [`zswap`]), what the program did to its memory (`events.rs`), and how an area empties ([`swapoff`]). A page out
//! and in again, with whoever asks in the place of the engine:
//!
//! ```
//! use uswap_core::reclaim::IsolationOutcome;
//! use uswap_core::{Core, CoreConfig, FaultPlan, FrameLeft, PageNumber, PageRange, PageState, StoreResult, Stored};
//!
//! let mut core = Core::new(CoreConfig { frame_blocks: 4, window_max: 1, ..CoreConfig::default() });
//! let page = PageNumber(16);
//! core.adopt(PageRange { start: PageNumber(0), pages: 64 });
//! // A look at the page tables finds one page in memory, and memory is short: out of the program's reach with it, ...
//! core.found_present(PageRange { start: page, pages: 1 });
//! let isolation = core.isolate().unwrap();
//! let moved = IsolationOutcome { moved: isolation.mask, ..IsolationOutcome::default() };
//! core.isolated(isolation, moved);
//! // ... and into the pool, where 1000 bytes of it are object 7.
//! let job = core.next_store().unwrap();
//! let result = StoreResult::Pool { handle: 7, len: 1000, hash: 0xfeed };
//! assert_eq!(core.stored(job, result), Stored::Done);
//! assert!(!core.is_resident(page));
//!
//! // The program reads it: from the pool, and back it is.
//! let FaultPlan::Load(plan) = core.fault(page, false) else { panic!("it is in the pool") };
//! core.load_done(&plan.pages()[0], plan.op, FrameLeft::Populated, false, true);
//! assert!(core.is_resident(page));
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod ahead;
pub mod budget;
pub mod census;
pub mod defects;
pub mod entry;
mod entry_set;
pub mod event_order;
pub mod fault;
pub mod floor;
pub mod fork_cut;
pub mod fork_window;
pub mod idle;
pub mod in_common;
pub mod newborn;
mod owner_search;
pub mod page_table;
pub mod policies;
pub mod pool_share;
pub mod ranges;
pub mod readahead;
mod recent_discards;
pub mod reclaim;
pub mod scan_reach;
pub mod slots;
pub mod swap_cache;
pub mod swap_table;
pub mod swapoff;
pub mod swapout;
pub mod tuning;
pub mod turns;
pub mod units;
pub mod workingset;
pub mod works_in;
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
pub use crate::entry_set::EntrySet;
pub use crate::fault::{FaultPlan, FrameLeft, Landing, LoadPage, LoadPlan};
pub use crate::page_table::{OpId, PageState};
pub use crate::policies::{OwnerSearch, Policies, ReadaheadPolicy, ReclaimPolicy};
pub use crate::ranges::RangeSet;
pub use crate::reclaim::Isolation;
pub use crate::swap_cache::{FrameBlock, FrameId, Onlooked};
pub use crate::swapoff::{Emptying, Survey};
pub use crate::swapout::{StoreJob, StoreResult, Stored};
pub use crate::units::{BLOCK_PAGES, LEAF_PAGES, PAGE_SIZE, PageNumber, PageRange};
pub use crate::zswap::WritebackJob;
