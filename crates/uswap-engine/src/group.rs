//! The group: what all processes under one `uswap run` share, in one memory file.
//!
//! It holds the budget, one slot per process with its usage and counters, and the owner of every cluster of
//! every swap area. The supervisor creates it, hands out process slots and takes them back; a process writes
//! only its own slot, and takes and gives back clusters.
//!
//! Fault model: any process may be killed at any instruction, the supervisor alone decides what that means.
//! So there are no locks here: every word is atomic, every change is one compare-and-swap, and whatever a
//! dead process left behind is found by its slot index.
//!
//! - `memory_file`: where what is in it; `config`: what stays the same;
//! - `process_slots`: the processes, their lives; `lineage`: which of them may read what others swapped out;
//! - `usage`: what they have of the budget; `in_common`: what several have of a fork counts once; `census`: the same, known of all together;
//! - `counters`, `fault_latency`: what they count;
//! - `clusters`: the owners of each area's clusters; `control`: what may be changed while they run.

#![allow(unsafe_code, reason = "typed views of memory that several processes map")]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use uswap_system::atomic::AtomicU64;

use config::RawConfig;
use memory_file::{Header, Layout, MAGIC, VERSION};

pub use crate::store::faulty::FaultPlan;
pub use census::ByCensus;
pub use config::{AreaConfig, Compressor, GroupConfig, SwappedShared};
pub use control::SwapoffProgress;
pub use counters::{Counter, Tally};
pub use fault_latency::{Histogram, LatencyKind};
pub use in_common::{Family, InCommon};
pub use lineage::{Heirs, Holder};
pub use process_slots::{ProcessSlot, READING_AHEAD, SHARED_REFUSED, SlotState, Wants};

mod census;
mod clusters;
mod config;
mod control;
mod counters;
mod fault_latency;
mod in_common;
mod lineage;
mod memory_file;
mod process_slots;
mod turns;
mod usage;

/// Processes that can be in one group at the same time. Few where each step is looked at.
pub const PROCESSES_MAX: usize = if cfg!(all(test, uswap_words)) { 64 } else { 1024 };
/// Swap areas that a group can have.
pub const AREAS_MAX: usize = 8;
/// Slots in a cluster: 512 slots of 4 KiB are 2 MiB.
pub const CLUSTER_SLOTS: u64 = 512;
/// Bytes in a page, and in a slot.
pub const PAGE_BYTES: u64 = 4096;

const WORDS: usize = PROCESSES_MAX / 64;

/// The group, mapped.
///
/// # Invariants
/// `base` maps `layout.bytes` bytes of a memory file that is sealed against shrinking, readable and writable,
/// until drop. The header was written before the file was shared and is not changed after, but for its atomics.
pub struct Group {
    base: NonNull<u8>,
    layout: Layout,
    config: GroupConfig,
}

// SAFETY: all that is reached through `base` after creation is atomic.
unsafe impl Send for Group {}
// SAFETY: as above.
unsafe impl Sync for Group {}

impl Group {
    /// Makes a new group and the memory file that others map it from.
    pub fn create(config: &GroupConfig) -> io::Result<(Group, OwnedFd)> {
        let fd = rustix::fs::memfd_create(c"uswap-group", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let layout = Layout::of(config);
        rustix::fs::ftruncate(&fd, layout.bytes as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let bytes = layout.bytes;
        let group = Group { base: map(&fd, bytes)?, layout, config: config.clone() };
        let header = group.base.cast::<Header>().as_ptr();
        // SAFETY: the mapping is page-aligned and larger than a header, and nobody else has it yet.
        unsafe {
            (&raw mut (*header).magic).write(MAGIC);
            (&raw mut (*header).version).write(VERSION);
            (&raw mut (*header).header_bytes).write(size_of::<Header>() as u32);
            (&raw mut (*header).file_bytes).write(bytes as u64);
            (&raw mut (*header).config).write(RawConfig::encode(config));
            (&raw mut (*header).budget.limit_bytes).write(AtomicU64::new(config.memory_limit_bytes));
        }
        Ok((group, fd))
    }

    /// Maps a group that another process made.
    pub fn open(fd: impl AsFd) -> io::Result<Group> {
        let refuse = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        let file_bytes = rustix::fs::fstat(&fd)?.st_size as u64;
        if file_bytes < size_of::<Header>() as u64 {
            return Err(refuse("not a uswap group"));
        }
        if !rustix::fs::fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(refuse("a uswap group that could be truncated"));
        }
        let bytes = file_bytes as usize;
        let base = map(&fd, bytes)?;
        // From here on `Group::drop` unmaps.
        let layout = Layout { slots: 0, clusters: [0; AREAS_MAX], bytes };
        let mut group = Group { base, layout, config: GroupConfig::default() };
        let header = group.header();
        if header.magic != MAGIC {
            return Err(refuse("not a uswap group"));
        }
        if header.version != VERSION || header.header_bytes as usize != size_of::<Header>() {
            return Err(refuse("the group of another version of uswap"));
        }
        let config =
            header.config.decode().ok_or_else(|| refuse("a uswap group with an unknown compressor or policy"))?;
        let layout = Layout::of(&config);
        if header.file_bytes != file_bytes || layout.bytes != bytes {
            return Err(refuse("a uswap group of the wrong size"));
        }
        group.config = config;
        group.layout = layout;
        Ok(group)
    }

    fn header(&self) -> &Header {
        // SAFETY: by the type's invariant; the plain fields are no longer written.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    /// What stays the same.
    pub fn config(&self) -> &GroupConfig {
        &self.config
    }

    /// What the processes that are gone have counted.
    pub fn totals(&self) -> &Tally {
        &self.header().totals
    }

    /// A counter over all processes, gone and living.
    pub fn count(&self, counter: Counter) -> u64 {
        self.totals().get(counter) + self.taken().map(|(_, slot)| slot.tally.get(counter)).sum::<u64>()
    }

    /// One kind of fault over all processes, gone and living.
    pub fn latency(&self, kind: LatencyKind) -> Histogram {
        let all = Histogram::new();
        all.add(self.totals().latency(kind));
        self.taken().for_each(|(_, slot)| all.add(slot.tally.latency(kind)));
        all
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: by the type's invariant this is our mapping, and every reference into it borrows from `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.layout.bytes) };
    }
}

fn map(fd: impl AsFd, bytes: usize) -> io::Result<NonNull<u8>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    Ok(uswap_sys::placement::map(bytes, protection, MapFlags::SHARED, Some(fd.as_fd()))?.cast())
}

#[cfg(test)]
mod tests;

#[cfg(all(test, uswap_words))]
mod words;
