//! The swap subsystem of Linux as it is: its rules, constants and eras, one mechanism per file.
//!
//! uswap-linux remembers; the engine does not run on it, but on uswap-core. This is what the engine is compared with:
//! the simulator drives them on virtual devices and in virtual time, and every published figure is reproduced from them.
//! Nothing in here takes time or does I/O: what an operation costs is told as counts (entries visited, locks taken, slots
//! read), and whoever drives it puts a price on them.
//!
//! The rules are those of Linux 6.18 unless a type says which era it follows.
//!
//! Where to begin: [`swap_areas::SwapAreas`] hands out slots, [`swapped_memory::SwappedMemory`] is a machine on top of it, and
//! [`try_to_unuse::Swapoff`] empties an area of it one operation at a time:
//!
//! ```
//! # use uswap_linux::{swapin_readahead::Readahead, swap_info::AreaTraits, swap_areas::*};
//! # use uswap_linux::{swap_extents::SwapExtents, swap_header::*, do_swap_page::SwapInPath, try_to_unuse::*, swapon::*};
//! # use uswap_linux::swapped_memory::SwappedMemory;
//! # use uswap_core::{PageNumber, PageRange};
//! // An area of 1024 slots on a device.
//! let mut first_page = [0; HEADER_BYTES];
//! SwapHeader::make(1024, &[], [0; 16], "example").unwrap().write(&mut first_page);
//! let mut areas = SwapAreas::new(SwapAreasConfig::new(1));
//! let device = AreaTraits { solid_state: true, block_device: true, ..AreaTraits::default() };
//! let target = SwapTarget::new(7, device, &first_page, 1024);
//! areas.swapon(&SwaponRequest { flags: 0, privileged: true, target: Ok(target) }, &mut ()).unwrap();
//!
//! // A process with 100 pages, all in swap.
//! let mut memory = SwappedMemory::new(areas);
//! memory.add_space();
//! let mapping = memory.add_mapping(PageRange { start: PageNumber(512), pages: 100 });
//! for page in 512..612 {
//!     memory.swap_out(Place { mapping, page: PageNumber(page) }, 0, &mut ()).unwrap();
//! }
//!
//! // swapoff as Linux 5.8 does it: price what comes.
//! let era = SwapoffEra::V5_8;
//! let area = memory.areas_mut().swapoff_begin(Ok(7), true, u64::MAX).unwrap();
//! let mut path = SwapInPath::new(era.preset(), Readahead::new(3, false));
//! let mut swapoff = Swapoff::new(era, area);
//! let mut windows = 0;
//! while let Some(op) = swapoff.next_op(&mut memory, &mut path) {
//!     windows += u64::from(matches!(op, Op::Window { .. }));
//! }
//! assert_eq!((swapoff.result(), windows), (Some(Ok(())), 13));
//! memory.areas_mut().swapoff_finish(area);
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod anon_page;
pub mod do_swap_page;
pub mod errno;
pub mod memory_high;
pub mod memory_max;
pub mod numa;
pub mod priority;
pub mod shmem;
pub mod slot_alloc;
pub mod swap_areas;
pub mod swap_cluster;
pub mod swap_entry;
pub mod swap_extents;
pub mod swap_header;
pub mod swap_info;
pub mod swap_map;
pub mod swapin_readahead;
pub mod swapoff_area;
pub mod swapon;
pub mod swapped_memory;
pub mod try_to_unuse;
pub mod write_reuse;
pub mod writeout;
pub mod zsmalloc;
pub mod zswap_store;
