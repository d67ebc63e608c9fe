//! What a thread of the engine has for itself. All memory is taken when it is made.

use std::collections::VecDeque;
use std::io;

use uswap_core::tuning::ROUND_PAGES as BATCH;
use uswap_core::zswap::PoolGate;
use uswap_core::{PAGE_SIZE, PageNumber, Released, StoreJob, StoreResult};
use uswap_sys::private_memory::{self, Purpose};
use uswap_sys::ring::Ring;
use uswap_system::Advice;
use uswap_system::System;

use crate::compress::{Corrupt, PageCompressor};
use crate::group::Compressor;
use crate::load::{Buffer, Load};
use crate::page_io::{PageBatch, SlotPage};
use crate::pending_fault::PendingFault;
use crate::store::Store;

/// Room for released places that a worker keeps.
pub(crate) const RELEASED_KEPT: usize = 4096;
/// Room for faults that have been read: more are rare, and then it grows.
const PENDING_KEPT: usize = 4096;

/// What a thread of the engine has for itself.
pub struct Worker {
    pub(crate) io: Transfers,
    pub(crate) compression: Compression,
    pub(crate) buffer: Buffer,
    pub(crate) released: Vec<Released>,
    pub(crate) serving: Serving,
    pub(crate) reclaiming: Reclaiming,
}

/// For transfers from and to areas.
pub(crate) struct Transfers {
    ring: Ring,
    batch: PageBatch,
    /// Those of the next batch: taken out while they are filled and looked at.
    pub pages: Vec<SlotPage>,
}

/// For objects of the pool.
pub(crate) struct Compression {
    compressor: PageCompressor,
    compressed: Box<[u8; PAGE_SIZE]>,
}

/// For faults, of a handler.
pub(crate) struct Serving {
    /// Which handler this is.
    pub number: usize,
    /// Faults that have been read and not yet served.
    pub pending: VecDeque<PendingFault>,
    /// Those whose content is to be read from areas together, and what is to be read for each.
    pub reading: Vec<PendingFault>,
    /// See `reading`.
    pub loads: Vec<Load>,
}

/// For rounds of reclaim.
pub(crate) struct Reclaiming {
    pub stores: Vec<PendingStore>,
    /// Pages that were asked for while they were stored.
    pub wanted: Vec<PageNumber>,
    /// Pages that could not be moved, for the monitor to see to.
    pub busy: Vec<PageNumber>,
    /// Whether `busy` is filled.
    pub collects_busy: bool,
    /// Whether this thread writes to areas. Otherwise it leaves that to the writer.
    pub writes: bool,
    /// Rounds for which it leaves all stores to the writer, because most pages found no place in memory.
    pub leaves_stores: u32,
    /// Whether the pool had to shrink when this thread looked.
    pub pool_gate: PoolGate,
}

/// A page on its way to a place.
pub(crate) struct PendingStore {
    pub job: StoreJob,
    pub result: Option<StoreResult>,
    pub hash: u128,
}

impl Worker {
    /// With a buffer of so many pages, of which mostly no more than `io_pages` are read or written together.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new<S: System>(compressor: Compressor, io_pages: usize, buffer_pages: usize) -> io::Result<Worker> {
        let entries = 2 * io_pages as u32;
        Ok(Worker {
            io: Transfers {
                ring: if S::HAS_IO_URING { Ring::new_or_synchronous(entries) } else { Ring::new_synchronous(entries) },
                batch: PageBatch::with_capacity(io_pages),
                pages: Vec::with_capacity(buffer_pages),
            },
            compression: Compression {
                compressor: PageCompressor::new(compressor),
                compressed: Box::new([0; PAGE_SIZE]),
            },
            buffer: Buffer(private_memory::map(buffer_pages * PAGE_SIZE, Purpose::Buffers)?),
            released: Vec::with_capacity(RELEASED_KEPT),
            serving: Serving {
                number: 0,
                pending: VecDeque::with_capacity(PENDING_KEPT),
                reading: Vec::with_capacity(io_pages),
                loads: Vec::with_capacity(io_pages),
            },
            reclaiming: Reclaiming {
                stores: Vec::with_capacity(BATCH),
                wanted: Vec::with_capacity(BATCH),
                busy: Vec::new(),
                collects_busy: false,
                writes: true,
                leaves_stores: 0,
                pool_gate: PoolGate::default(),
            },
        })
    }

    /// Gives the memory of all but the first pages of the buffer back.
    pub(crate) fn trim_buffer<S: System>(&self, kept_pages: usize) {
        let (kept, mapped) = (kept_pages * PAGE_SIZE, &self.buffer.0);
        if kept < mapped.len() {
            let _ = S::advise(mapped.start() + kept, mapped.len() - kept, Advice::DontNeed);
        }
    }

    /// Page `index` of the worker's buffer.
    pub(crate) fn buffer_page(&self, index: usize) -> *mut u8 {
        self.buffer.page(index)
    }
}

impl Transfers {
    /// Reads each page. Sorts `pages` by slot; afterwards each has its outcome.
    pub fn read<S: System>(&mut self, store: &dyn Store, pages: &mut [SlotPage]) {
        self.batch.read::<S>(store, &mut self.ring, pages);
    }

    /// Writes each page. Sorts `pages` by slot; afterwards each has its outcome.
    pub fn write<S: System>(&mut self, store: &dyn Store, pages: &mut [SlotPage]) {
        self.batch.write::<S>(store, &mut self.ring, pages);
    }
}

impl Compression {
    /// The object that `page` becomes, if that is worth it. It is there until the next one is made.
    pub fn compress(&mut self, page: &[u8; PAGE_SIZE]) -> Option<&[u8]> {
        let len = self.compressor.compress(page, &mut self.compressed)?;
        Some(&self.compressed[..len])
    }

    /// The page of which `object` was made.
    pub fn decompress(&mut self, object: &[u8], page: &mut [u8; PAGE_SIZE]) -> Result<(), Corrupt> {
        self.compressor.decompress(object, page)
    }
}
