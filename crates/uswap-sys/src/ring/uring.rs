//! An io_uring in memory of the engine's own.
//!
//! The kernel's interface is rustix's. The usual libraries let the kernel map the rings, which places them where it likes, and that may
//! be a hole that the program is about to fill ([`crate::placement`]); at an address of the caller's it refuses to.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::io::Errno;
use rustix::io_uring::{
    IoringEnterFlags, IoringSetupFlags, io_uring_cqe, io_uring_enter, io_uring_params, io_uring_ptr, io_uring_setup,
    io_uring_sqe,
};
use rustix::mm::Advice;

use crate::PAGE_SIZE;
use crate::private_memory::{self, PrivateMapping, Purpose};

/// The most requests of a ring: their page is full then. What is longer than a page must be contiguous for older kernels.
pub(super) const MAX_ENTRIES: u32 = (PAGE_SIZE / size_of::<io_uring_sqe>()) as u32;

/// A submission queue and a completion queue. One thread uses them at a time.
///
/// # Invariants
/// `memory` is a page of rings, in which all offsets below lie, and a page of requests. Place `i` of the submission ring's
/// array names request `i`.
pub(super) struct Uring {
    /// Closed first, though the kernel keeps the pages as long as it needs them.
    fd: OwnedFd,
    memory: PrivateMapping,
    submissions: Positions,
    completions: Positions,
    /// Where the completions are in the page of rings, in bytes.
    completed: u32,
}

/// Where a queue's head and tail are in the page of rings, in bytes, and the mask that makes a place of a position.
#[derive(Clone, Copy)]
struct Positions {
    head: u32,
    tail: u32,
    mask: u32,
}

impl Uring {
    /// One with room for at least `entries` requests, or for [`MAX_ENTRIES`].
    ///
    /// # Errors
    /// `PermissionDenied` where a filter or sysctl forbids it, `InvalidInput` before Linux 6.5.
    pub(super) fn new(entries: u32) -> io::Result<Uring> {
        // Not of the reserve, which children need.
        let memory = private_memory::map_fresh(2 * PAGE_SIZE, Purpose::Buffers)?;
        let rings = memory.as_ptr();
        // SAFETY: the mapping is this ring's alone. A child has no use for what is in it.
        unsafe { rustix::mm::madvise(rings.cast(), memory.len(), Advice::LinuxWipeOnFork)? };
        let mut params = io_uring_params::default();
        params.flags = IoringSetupFlags::NO_MMAP;
        params.cq_off.user_addr = io_uring_ptr::new(rings.cast());
        params.sq_off.user_addr = io_uring_ptr::new(rings.wrapping_add(PAGE_SIZE).cast());
        // SAFETY: both pages are mapped, and nobody else's as long as the ring lives.
        let fd = unsafe { io_uring_setup(entries.min(MAX_ENTRIES), &mut params)? };
        let (sq, cq) = (&params.sq_off, &params.cq_off);
        let ring = Uring {
            fd,
            memory,
            submissions: Positions { head: sq.head, tail: sq.tail, mask: params.sq_entries - 1 },
            completions: Positions { head: cq.head, tail: cq.tail, mask: params.cq_entries - 1 },
            completed: cq.cqes,
        };
        for index in 0..params.sq_entries {
            ring.word(sq.array + index * size_of::<u32>() as u32).store(index, Relaxed);
        }
        Ok(ring)
    }

    /// How many requests it has room for.
    pub(super) fn entries(&self) -> usize {
        self.submissions.mask as usize + 1
    }

    /// Adds a request, of which the kernel knows nothing yet. False when there is no room.
    ///
    /// # Safety
    /// What the request names stays as it is until its completion was popped.
    pub(super) unsafe fn push(&mut self, request: io_uring_sqe) -> bool {
        if self.pushed() == self.entries() {
            return false;
        }
        let Positions { tail, mask, .. } = self.submissions;
        let position = self.word(tail).load(Relaxed);
        let requests = self.at(PAGE_SIZE as u32).cast::<io_uring_sqe>();
        // SAFETY: the page has `mask + 1` requests, and the kernel is done with this one, for its head is past it.
        unsafe { requests.add((position & mask) as usize).write(request) };
        self.word(tail).store(position.wrapping_add(1), Release);
        true
    }

    /// Requests that the kernel has not taken yet.
    pub(super) fn pushed(&self) -> usize {
        let head = self.word(self.submissions.head).load(Acquire);
        self.word(self.submissions.tail).load(Relaxed).wrapping_sub(head) as usize
    }

    /// Completions that can be popped.
    pub(super) fn completed(&self) -> usize {
        let tail = self.word(self.completions.tail).load(Acquire);
        tail.wrapping_sub(self.word(self.completions.head).load(Relaxed)) as usize
    }

    /// Hands what was pushed to the kernel, and waits for `want` completions. Either may be done in part.
    pub(super) fn enter(&mut self, want: usize) -> Result<(), Errno> {
        let flags = if want > 0 { IoringEnterFlags::GETEVENTS } else { IoringEnterFlags::empty() };
        // SAFETY: what the requests name is as `push` was promised.
        unsafe { io_uring_enter(self.fd.as_fd(), self.pushed() as u32, want as u32, flags)? };
        Ok(())
    }

    /// The next completion: the request's `user_data`, and a count or the negative errno.
    pub(super) fn pop(&mut self) -> Option<(u64, i32)> {
        if self.completed() == 0 {
            return None;
        }
        let Positions { head, mask, .. } = self.completions;
        let position = self.word(head).load(Relaxed);
        let entry = self.at(self.completed).cast::<io_uring_cqe>();
        // SAFETY: the page has `mask + 1` completions, and the kernel has written this one, for its tail is past it.
        let entry = unsafe { entry.add((position & mask) as usize).as_ref() };
        let completion = (entry.user_data.u64_(), entry.res);
        self.word(head).store(position.wrapping_add(1), Release);
        Some(completion)
    }

    /// A word of the rings, which the kernel uses at the same time.
    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the kernel's offset of a word in the page of rings, which is mapped as long as `self` lives.
        unsafe { self.at(offset).cast::<AtomicU32>().as_ref() }
    }

    fn at(&self, offset: u32) -> NonNull<u8> {
        debug_assert!((offset as usize) < self.memory.len());
        // SAFETY: by the invariant in the mapping, and no mapping lies at 0.
        unsafe { NonNull::new_unchecked(self.memory.as_ptr().add(offset as usize)) }
    }
}
