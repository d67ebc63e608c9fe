//! Reads and writes, many in flight: io_uring, or plain system calls where a container forbids it.
//!
//! A buffer belongs to the kernel from the push to its completion. No more requests are ever in flight
//! than the ring has entries, so that the completion queue cannot overflow. A short count is given as
//! the kernel gave it: going on from there is the store's business.
//!
//! After a fork the child must forget an inherited ring, not drop it: the ring, and in a process with an
//! agent the descriptor's very number, belong to somebody else there.

#![allow(unsafe_code)]

mod uring;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::io::Errno;
use rustix::io_uring::{
    IoringOp, addr_or_splice_off_in_union, io_uring_ptr, io_uring_sqe, io_uring_user_data, len_union,
    off_or_addr2_union,
};
use uring::Uring;

/// No entry is free: wait for completions first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the request was pushed with.
    pub user_data: u64,
    /// Bytes read or written, perhaps fewer than asked for, or the errno.
    pub result: Result<usize, i32>,
}

/// A queue of reads and writes. One thread uses it at a time.
///
/// # Invariants
/// `in_flight` counts requests pushed and not popped, and is never above `entries`.
pub struct Ring {
    queue: Queue,
    entries: usize,
    in_flight: usize,
}

enum Queue {
    Uring(Uring),
    Synchronous { pushed: VecDeque<Request>, done: VecDeque<Completion> },
}

struct Request {
    write: bool,
    fd: RawFd,
    offset: u64,
    ptr: *mut u8,
    len: u32,
    user_data: u64,
}

impl Request {
    fn for_the_kernel(&self) -> io_uring_sqe {
        io_uring_sqe {
            opcode: if self.write { IoringOp::Write } else { IoringOp::Read },
            fd: self.fd,
            off_or_addr2: off_or_addr2_union { off: self.offset },
            addr_or_splice_off_in: addr_or_splice_off_in_union { addr: io_uring_ptr::new(self.ptr.cast()) },
            len: len_union { len: self.len },
            user_data: io_uring_user_data::from_u64(self.user_data),
            ..io_uring_sqe::default()
        }
    }
}

// SAFETY: the pointers are to buffers that the pusher has handed over, and are used by whichever thread
// has the ring.
unsafe impl Send for Ring {}

impl Ring {
    /// An io_uring with room for `entries` requests, 64 at most.
    ///
    /// # Errors
    /// `PermissionDenied` where a filter or sysctl forbids it, `InvalidInput` before Linux 6.5.
    pub fn new(entries: u32) -> io::Result<Ring> {
        let uring = Uring::new(entries)?;
        Ok(Ring { entries: uring.entries().min(entries as usize), queue: Queue::Uring(uring), in_flight: 0 })
    }

    /// A queue that carries requests out one after the other, in [`Ring::submit_and_wait`].
    pub fn new_synchronous(entries: u32) -> Ring {
        let entries = entries as usize;
        Ring {
            queue: Queue::Synchronous {
                pushed: VecDeque::with_capacity(entries),
                done: VecDeque::with_capacity(entries),
            },
            entries,
            in_flight: 0,
        }
    }

    /// An io_uring if there is one to be had.
    pub fn new_or_synchronous(entries: u32) -> Ring {
        Ring::new(entries).unwrap_or_else(|_| Ring::new_synchronous(entries))
    }

    /// Whether requests are carried out one after the other.
    pub fn is_synchronous(&self) -> bool {
        matches!(self.queue, Queue::Synchronous { .. })
    }

    /// How many requests it has room for.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Requests pushed and not popped.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Queues a read of `len` bytes at `offset` into `ptr`.
    ///
    /// # Safety
    /// `ptr` is good for `len` bytes of writing, which nobody else touches, and `fd` stays open, until
    /// the completion is popped.
    pub unsafe fn push_read(
        &mut self,
        fd: BorrowedFd<'_>,
        offset: u64,
        ptr: *mut u8,
        len: u32,
        user_data: u64,
    ) -> Result<(), QueueFull> {
        let request = Request { write: false, fd: fd.as_raw_fd(), offset, ptr, len, user_data };
        // SAFETY: the caller's promise.
        unsafe { self.push(request) }
    }

    /// Queues a write of `len` bytes from `ptr` to `offset`.
    ///
    /// # Safety
    /// `ptr` is good for `len` bytes of reading, which nobody changes, and `fd` stays open, until the
    /// completion is popped.
    pub unsafe fn push_write(
        &mut self,
        fd: BorrowedFd<'_>,
        offset: u64,
        ptr: *const u8,
        len: u32,
        user_data: u64,
    ) -> Result<(), QueueFull> {
        let request = Request { write: true, fd: fd.as_raw_fd(), offset, ptr: ptr.cast_mut(), len, user_data };
        // SAFETY: the caller's promise.
        unsafe { self.push(request) }
    }

    /// # Safety
    /// The request's buffer is the kernel's, and its descriptor open, until the completion is popped.
    unsafe fn push(&mut self, request: Request) -> Result<(), QueueFull> {
        if self.in_flight == self.entries {
            return Err(QueueFull);
        }
        match &mut self.queue {
            Queue::Uring(uring) => {
                // SAFETY: the caller's promise.
                if !unsafe { uring.push(request.for_the_kernel()) } {
                    return Err(QueueFull);
                }
            }
            Queue::Synchronous { pushed, .. } => pushed.push_back(request),
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Hands everything pushed to the kernel, and waits until at least `want` completions can be
    /// popped, or as many as there are requests in flight.
    ///
    /// Even when it fails, what was pushed may be under way: `EAGAIN` and `EBUSY` mean that the kernel is short of memory for
    /// requests at the moment, and are to be tried again.
    pub fn submit_and_wait(&mut self, want: usize) -> io::Result<()> {
        let want = want.min(self.in_flight);
        match &mut self.queue {
            Queue::Uring(uring) => loop {
                match uring.enter(want) {
                    Ok(()) | Err(Errno::INTR) => {}
                    // What has come back meanwhile is as good.
                    Err(_) if want > 0 && uring.completed() >= want => return Ok(()),
                    Err(errno) => return Err(errno.into()),
                }
                if uring.pushed() == 0 && uring.completed() >= want {
                    return Ok(());
                }
            },
            Queue::Synchronous { pushed, done } => {
                while let Some(request) = pushed.pop_front() {
                    done.push_back(Completion {
                        user_data: request.user_data,
                        // SAFETY: by push's contract the buffer is ours until the completion.
                        result: unsafe { carry_out(&request) }.map_err(|e| e.raw_os_error()),
                    });
                }
                Ok(())
            }
        }
    }

    /// Takes back all requests that were pushed, if the kernel has none of them, and carries out by plain calls whatever is
    /// pushed from here on. `false`: it has some, or has answered some, and nothing was changed.
    pub fn fall_back(&mut self) -> bool {
        let Queue::Uring(uring) = &mut self.queue else { return false };
        if uring.pushed() != self.in_flight {
            return false;
        }
        // What was never handed over ends with the ring.
        self.in_flight = 0;
        *self = Ring::new_synchronous(self.entries as u32);
        true
    }

    /// The next completion, in no order.
    pub fn pop(&mut self) -> Option<Completion> {
        let completion = match &mut self.queue {
            Queue::Uring(uring) => {
                let (user_data, result) = uring.pop()?;
                Completion { user_data, result: usize::try_from(result).map_err(|_| -result) }
            }
            Queue::Synchronous { done, .. } => done.pop_front()?,
        };
        self.in_flight -= 1;
        Some(completion)
    }
}

impl Drop for Ring {
    /// Waits for what is in flight, so that no buffer is written after its owner thinks it free.
    fn drop(&mut self) {
        while self.in_flight > 0 {
            if self.submit_and_wait(1).is_err() {
                pause();
            }
            while self.pop().is_some() {}
        }
    }
}

fn pause() {
    let millisecond = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let _ = rustix::thread::nanosleep(&millisecond);
}

/// # Safety
/// The request's buffer is good for its length, its descriptor open, and both nobody else's.
unsafe fn carry_out(request: &Request) -> Result<usize, Errno> {
    let len = request.len as usize;
    // SAFETY: the caller's promise; a buffer to read into is initialised memory of the pusher's.
    unsafe {
        let fd = BorrowedFd::borrow_raw(request.fd);
        loop {
            let result = if request.write {
                let bytes = std::slice::from_raw_parts(request.ptr, len);
                rustix::io::pwrite(fd, bytes, request.offset)
            } else {
                let bytes = std::slice::from_raw_parts_mut(request.ptr, len);
                rustix::io::pread(fd, bytes, request.offset)
            };
            if result != Err(Errno::INTR) {
                return result;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedBuffer, PAGE_SIZE};
    use std::os::fd::{AsFd, OwnedFd};

    /// A ring whose requests the kernel has never seen is given up, and the same requests go by plain calls; one of which it has
    /// seen some is not.
    #[test]
    fn requests_that_the_kernel_has_not_got_are_taken_back() {
        let Ok(mut ring) = Ring::new(4) else { return eprintln!("skipped: no io_uring") };
        let file = file();
        let buffer = AlignedBuffer::new(PAGE_SIZE).unwrap();
        // SAFETY: the buffer and the file outlive the ring.
        let push = |ring: &mut Ring| unsafe { ring.push_write(file.as_fd(), 0, buffer.as_ptr(), PAGE_SIZE as u32, 7) };
        push(&mut ring).unwrap();
        ring.submit_and_wait(1).unwrap();
        assert!(!ring.fall_back(), "it has an answer");
        assert_eq!(ring.pop().unwrap().result, Ok(PAGE_SIZE));
        push(&mut ring).unwrap();
        push(&mut ring).unwrap();
        assert!(ring.fall_back());
        assert!(ring.is_synchronous());
        assert_eq!(ring.in_flight(), 0);
        push(&mut ring).unwrap();
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.pop().unwrap().result, Ok(PAGE_SIZE));
        assert!(!ring.fall_back());
    }

    fn file() -> OwnedFd {
        rustix::fs::memfd_create("ring test", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
    }

    fn rings(entries: u32) -> Vec<Ring> {
        let mut all = vec![Ring::new_synchronous(entries)];
        match Ring::new(entries) {
            Ok(ring) => all.push(ring),
            Err(error) => println!("io_uring is skipped: {error}"),
        }
        all
    }

    /// Where the kernel places mappings may be a hole that the program is about to fill.
    #[test]
    fn the_kernel_maps_no_ring() {
        let Ok(ring) = Ring::new(100) else { return eprintln!("skipped: no io_uring") };
        assert_eq!(ring.entries(), 64);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("io_uring"), "{maps}");
    }

    #[test]
    fn what_is_written_is_read_back() {
        for mut ring in rings(8) {
            let file = file();
            let mut out = AlignedBuffer::new(8 * PAGE_SIZE).unwrap();
            for (i, byte) in out.iter_mut().enumerate() {
                *byte = (i / PAGE_SIZE + 1) as u8;
            }
            let mut back = AlignedBuffer::new(8 * PAGE_SIZE).unwrap();
            for write in [true, false] {
                for page in 0..8usize {
                    let at = page * PAGE_SIZE;
                    let (offset, len, tag) = (at as u64, PAGE_SIZE as u32, page as u64);
                    // SAFETY: both buffers outlive the loop below, which pops every completion, and
                    // are not touched before.
                    unsafe {
                        if write {
                            let from = out.as_mut_ptr().add(at);
                            ring.push_write(file.as_fd(), offset, from, len, tag).unwrap();
                        } else {
                            let into = back.as_mut_ptr().add(at);
                            ring.push_read(file.as_fd(), offset, into, len, tag).unwrap();
                        }
                    }
                }
                let mut seen = 0u32;
                while ring.in_flight() > 0 {
                    ring.submit_and_wait(1).unwrap();
                    while let Some(completion) = ring.pop() {
                        assert_eq!(completion.result, Ok(PAGE_SIZE));
                        seen |= 1 << completion.user_data;
                    }
                }
                assert_eq!(seen, 0xff);
            }
            assert!(out[..] == back[..]);
        }
    }

    #[test]
    fn a_full_ring_refuses_and_errors_are_errnos() {
        for mut ring in rings(2) {
            let file = file();
            let mut buffer = AlignedBuffer::new(PAGE_SIZE).unwrap();
            let ptr = buffer.as_mut_ptr();
            // SAFETY: the buffer outlives the ring's requests, all of which are waited for; all three
            // read nothing, from an empty file or a directory.
            unsafe {
                ring.push_read(file.as_fd(), 0, ptr, 100, 1).unwrap();
                let directory = std::fs::File::open("/").unwrap();
                ring.push_read(directory.as_fd(), 0, ptr, 100, 2).unwrap();
                assert_eq!(ring.push_read(file.as_fd(), 0, ptr, 100, 3), Err(QueueFull));
                ring.submit_and_wait(99).unwrap();
            }
            let mut all = [ring.pop().unwrap(), ring.pop().unwrap()];
            all.sort_by_key(|c| c.user_data);
            assert_eq!(all[0].result, Ok(0), "the end of the file is no error");
            assert_eq!(all[1].result, Err(libc::EISDIR));
            assert!(ring.pop().is_none() && ring.in_flight() == 0);
        }
    }

    #[test]
    fn dropping_a_ring_waits_for_its_requests() {
        for mut ring in rings(4) {
            let mut buffer = AlignedBuffer::new(PAGE_SIZE).unwrap();
            let file = file();
            // SAFETY: the ring is dropped, and so its requests done, before the buffer.
            unsafe {
                ring.push_write(file.as_fd(), 0, buffer.as_mut_ptr(), 4096, 1).unwrap();
            }
            drop(ring);
            assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 4096);
        }
    }
}
