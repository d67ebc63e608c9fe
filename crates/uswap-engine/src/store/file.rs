//! A swap area in a file or on a block device: slot n is the 4096 bytes at n * 4096.
//!
//! Many transfers are in flight at a time, through the calling thread's ring; a call returns when the kernel has handed
//! back every buffer. A short count is continued from the last whole page, and what the kernel says to try again is
//! tried again, both with a bound; what the ring cannot carry goes by plain calls, which need neither memory nor a thread of the
//! kernel's; everything else is the outcome of its own transfer only.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use uswap_sys::ring::{Completion, QueueFull, Ring};

use super::{IoOutcome, PageIo, SLOT_BYTES, Store, StoreError};

/// Attempts without progress before a transfer fails; with the pauses below about a third of a second.
const RETRIES_MAX: u32 = 32;
/// From this attempt on there is a pause before each, starting at `PAUSE` and doubling up to `PAUSE << PAUSE_DOUBLINGS`.
const PAUSE_AFTER_RETRIES: u32 = 3;
const PAUSE: Duration = Duration::from_micros(100);
const PAUSE_DOUBLINGS: u32 = 7;
/// How often a ring that cannot take requests just now is asked again, once every `RING_PAUSE`: a tenth of a second before plain
/// calls take over, ten seconds where the kernel has some of the requests and answers none.
const RING_RETRIES: u32 = 100;
const RING_RETRIES_MAX: u32 = 10_000;
const RING_PAUSE: Duration = Duration::from_millis(1);
/// The most bytes of one request: less than what the kernel cuts off at (2 GiB less a page).
const REQUEST_BYTES_MAX: usize = 1 << 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// What transfers are handed to: the ring, or a script in a test.
trait Queue {
    /// The most requests that may be in flight.
    fn capacity(&self) -> usize;
    /// Queues one request.
    ///
    /// # Safety
    /// The memory is as [`PageIo::new`] wants it, and `fd` open, until the request's completion was popped.
    unsafe fn push(
        &mut self,
        direction: Direction,
        fd: BorrowedFd<'_>,
        offset: u64,
        memory: *mut u8,
        bytes: u32,
        user_data: u64,
    ) -> Result<(), QueueFull>;
    fn submit_and_wait(&mut self, completions: usize) -> io::Result<()>;
    fn pop(&mut self) -> Option<Completion>;
    /// As [`Ring::fall_back`].
    fn fall_back(&mut self) -> bool;
}

impl Queue for Ring {
    fn capacity(&self) -> usize {
        self.entries()
    }

    unsafe fn push(
        &mut self,
        direction: Direction,
        fd: BorrowedFd<'_>,
        offset: u64,
        memory: *mut u8,
        bytes: u32,
        user_data: u64,
    ) -> Result<(), QueueFull> {
        // SAFETY: passed on to the caller.
        unsafe {
            match direction {
                Direction::Read => self.push_read(fd, offset, memory, bytes, user_data),
                Direction::Write => self.push_write(fd, offset, memory, bytes, user_data),
            }
        }
    }

    fn submit_and_wait(&mut self, completions: usize) -> io::Result<()> {
        Ring::submit_and_wait(self, completions)
    }

    fn pop(&mut self) -> Option<Completion> {
        Ring::pop(self)
    }

    fn fall_back(&mut self) -> bool {
        Ring::fall_back(self)
    }
}

/// A file or block device that holds the pages of a swap area.
pub struct FileStore {
    fd: OwnedFd,
    slots: u64,
    punch_holes: bool,
}

impl FileStore {
    /// An area of `slots` slots in `fd`, which is open for reading and writing and at least that long. Discarded slots
    /// are punched out of the file if `punch_holes`.
    pub fn new(fd: OwnedFd, slots: u64, punch_holes: bool) -> FileStore {
        FileStore { fd, slots, punch_holes }
    }

    fn transfer(&self, queue: &mut impl Queue, direction: Direction, batch: &mut [PageIo]) {
        batch.iter().for_each(|io| self.check(io));
        let mut next = 0;
        let mut in_flight = 0;
        let mut pause = Duration::ZERO;
        loop {
            while in_flight < queue.capacity() && next < batch.len() {
                self.push(queue, direction, batch, next);
                next += 1;
                in_flight += 1;
            }
            if in_flight == 0 {
                return;
            }
            // Once for all that are tried again.
            std::thread::sleep(std::mem::take(&mut pause));
            if !submit_and_wait(queue, in_flight) {
                for index in 0..next {
                    if batch[index].outcome == IoOutcome::Pending {
                        self.push(queue, direction, batch, index);
                    }
                }
                continue;
            }
            while let Some(completion) = queue.pop() {
                in_flight -= 1;
                let index = completion.user_data as usize;
                let io = &mut batch[index];
                if completion.result == Err(libc::ECANCELED) {
                    // The kernel gets no thread for it (RLIMIT_NPROC, pids.max of a container).
                    self.transfer_at_once(direction, io);
                } else if let Some(before_next) = settle(io, completion.result) {
                    pause = pause.max(before_next);
                    self.push(queue, direction, batch, index);
                    in_flight += 1;
                }
            }
        }
    }

    /// A transfer by plain calls. A lone write goes so: io_uring hands a write for which the file system may have to find blocks
    /// to a thread of its own, and then two threads change places twice.
    fn transfer_at_once(&self, direction: Direction, io: &mut PageIo) {
        loop {
            let (offset, memory, bytes) = rest_of(io);
            // SAFETY: the memory belongs to the transfer until it is over, by the promise of `PageIo::new`, and no request of the
            // ring's has it any more.
            let rest = unsafe { std::slice::from_raw_parts_mut(memory, bytes) };
            let result = match direction {
                Direction::Read => rustix::io::pread(&self.fd, rest, offset),
                Direction::Write => rustix::io::pwrite(&self.fd, rest, offset),
            };
            let Some(before_next) = settle(io, result.map_err(|errno| errno.raw_os_error())) else { return };
            std::thread::sleep(before_next);
        }
    }

    /// Queues what is left of a transfer.
    fn push(&self, queue: &mut impl Queue, direction: Direction, batch: &mut [PageIo], index: usize) {
        let (offset, memory, bytes) = rest_of(&batch[index]);
        // SAFETY: the memory belongs to the transfer until `read` or `write` returns, by the promise of `PageIo::new`;
        // and `transfer`, which is the only way there, returns only when nothing is in flight.
        unsafe { queue.push(direction, self.fd.as_fd(), offset, memory, bytes as u32, index as u64) }
            .expect("no more is pushed than the ring has room for");
    }

    fn check(&self, io: &PageIo) {
        self.check_slots(io.slot, io.pages);
        assert_eq!(io.outcome, IoOutcome::Pending, "a transfer is handed in once");
    }

    fn check_slots(&self, slot: u64, pages: u32) {
        assert!(
            slot != 0 && slot < self.slots && u64::from(pages) <= self.slots - slot,
            "slots {slot}+{pages} are not in an area of {} slots behind its header",
            self.slots
        );
    }
}

/// What is left of a pending transfer, as one request: where in the file, where in memory, and how many bytes. A longer one
/// is continued like a short count.
fn rest_of(io: &PageIo) -> (u64, *mut u8, usize) {
    let offset = io.slot * SLOT_BYTES as u64 + io.done_bytes as u64;
    // SAFETY: `done_bytes` is less than the transfer's bytes while it is pending.
    let memory = unsafe { io.address.add(io.done_bytes) };
    (offset, memory, (io.bytes() - io.done_bytes).min(REQUEST_BYTES_MAX))
}

/// Hands over what is queued and waits for a completion. `false`: the ring takes nothing, has been given up, and all that is not
/// over must be pushed again. Does not come back as long as a ring that has some of it does not work: the kernel has our buffers,
/// and giving them to somebody else would corrupt memory.
fn submit_and_wait(queue: &mut impl Queue, in_flight: usize) -> bool {
    for tries in 1..=RING_RETRIES_MAX {
        let Err(error) = queue.submit_and_wait(1) else {
            return true;
        };
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            // Out of memory for requests; what is in flight gives some back.
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) if tries % RING_RETRIES != 0 => {
                std::thread::sleep(RING_PAUSE)
            }
            _ if queue.fall_back() => return false,
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) => {}
            _ => panic!("io_uring fails with {in_flight} transfers in flight: {error}"),
        }
    }
    panic!("io_uring takes no requests, with {in_flight} transfers in flight");
}

/// Takes in what the kernel said about an attempt. If something is left to transfer: how long to wait before that is tried.
fn settle(io: &mut PageIo, result: Result<usize, i32>) -> Option<Duration> {
    let mut pause = Duration::ZERO;
    io.outcome = match result {
        Ok(bytes) => {
            let bytes = io.bytes().min(io.done_bytes + bytes);
            // O_DIRECT wants whole blocks: a page that was cut in two is transferred again.
            let whole_pages_bytes = bytes / SLOT_BYTES * SLOT_BYTES;
            if whole_pages_bytes == io.bytes() {
                io.done_bytes = bytes;
                IoOutcome::Done
            } else if whole_pages_bytes > io.done_bytes {
                io.done_bytes = whole_pages_bytes;
                IoOutcome::Pending
            } else if bytes > io.done_bytes && try_again(io, &mut pause) {
                IoOutcome::Pending
            } else {
                // Nothing at all: the end of the file.
                IoOutcome::Failed(StoreError::Short)
            }
        }
        Err(libc::EINTR | libc::EAGAIN | libc::ENOMEM) if try_again(io, &mut pause) => IoOutcome::Pending,
        Err(libc::ENOSPC | libc::EDQUOT) => IoOutcome::Failed(StoreError::NoSpace),
        Err(error) => IoOutcome::Failed(StoreError::Io(error)),
    };
    (io.outcome == IoOutcome::Pending).then_some(pause)
}

/// Counts an attempt without progress; `pause`: before the next one. `false` when there were enough of them.
fn try_again(io: &mut PageIo, pause: &mut Duration) -> bool {
    io.retries += 1;
    if let Some(doublings) = io.retries.checked_sub(PAUSE_AFTER_RETRIES) {
        *pause = PAUSE * (1 << doublings.min(PAUSE_DOUBLINGS));
    }
    io.retries <= RETRIES_MAX
}

impl Store for FileStore {
    fn read(&self, ring: &mut Ring, batch: &mut [PageIo]) {
        self.transfer(ring, Direction::Read, batch);
    }

    fn write(&self, ring: &mut Ring, batch: &mut [PageIo]) {
        match batch {
            [io] => {
                self.check(io);
                self.transfer_at_once(Direction::Write, io);
            }
            _ => self.transfer(ring, Direction::Write, batch),
        }
    }

    fn discard(&self, slot: u64, pages: u32) {
        self.check_slots(slot, pages);
        if self.punch_holes {
            // Saves disk space, which nobody relies on: a file system that cannot do it is no error.
            let _ = fallocate(
                self.fd.as_fd(),
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                slot * SLOT_BYTES as u64,
                u64::from(pages) * SLOT_BYTES as u64,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::{Pages, memory_file, memory_store};
    use std::collections::VecDeque;
    use std::os::fd::{AsRawFd, RawFd};

    /// What the script lets the next request do.
    #[derive(Clone, Copy)]
    enum Act {
        /// All of it.
        Whole,
        /// At most this many bytes.
        AtMost(usize),
        /// Nothing, with this error.
        Fail(i32),
    }

    struct Request {
        direction: Direction,
        fd: RawFd,
        offset: u64,
        memory: *mut u8,
        bytes: usize,
        user_data: u64,
    }

    /// A ring that follows a script: acts in order, then `after`; completions come back newest first.
    struct Script {
        capacity: usize,
        acts: VecDeque<Act>,
        after: Act,
        ring_errors: VecDeque<i32>,
        falls_back: bool,
        queued: Vec<Request>,
        completed: Vec<Completion>,
        in_flight_most: usize,
        pushes: usize,
    }

    impl Script {
        fn new(acts: &[Act]) -> Script {
            Script {
                capacity: 4,
                acts: acts.iter().copied().collect(),
                after: Act::Whole,
                ring_errors: VecDeque::new(),
                falls_back: false,
                queued: Vec::new(),
                completed: Vec::new(),
                in_flight_most: 0,
                pushes: 0,
            }
        }
    }

    impl Queue for Script {
        fn capacity(&self) -> usize {
            self.capacity
        }
        unsafe fn push(
            &mut self,
            direction: Direction,
            fd: BorrowedFd<'_>,
            offset: u64,
            memory: *mut u8,
            bytes: u32,
            user_data: u64,
        ) -> Result<(), QueueFull> {
            if self.queued.len() + self.completed.len() == self.capacity {
                return Err(QueueFull);
            }
            self.pushes += 1;
            self.queued.push(Request {
                direction,
                fd: fd.as_raw_fd(),
                offset,
                memory,
                bytes: bytes as usize,
                user_data,
            });
            self.in_flight_most = self.in_flight_most.max(self.queued.len() + self.completed.len());
            Ok(())
        }
        fn submit_and_wait(&mut self, completions: usize) -> io::Result<()> {
            if let Some(error) = self.ring_errors.pop_front() {
                return Err(io::Error::from_raw_os_error(error));
            }
            for request in self.queued.drain(..) {
                let act = self.acts.pop_front().unwrap_or(self.after);
                let result = match act {
                    Act::Fail(error) => Err(error),
                    Act::Whole | Act::AtMost(_) => {
                        let most = if let Act::AtMost(bytes) = act { bytes } else { usize::MAX };
                        let bytes = request.bytes.min(most);
                        // SAFETY: `transfer` promised the memory until the completion is popped.
                        let done = unsafe {
                            match request.direction {
                                Direction::Read => {
                                    libc::pread(request.fd, request.memory.cast(), bytes, request.offset as i64)
                                }
                                Direction::Write => {
                                    libc::pwrite(request.fd, request.memory.cast(), bytes, request.offset as i64)
                                }
                            }
                        };
                        Ok(usize::try_from(done).unwrap())
                    }
                };
                self.completed.push(Completion { user_data: request.user_data, result });
            }
            assert!(self.completed.len() >= completions, "would wait for ever");
            Ok(())
        }
        fn pop(&mut self) -> Option<Completion> {
            self.completed.pop()
        }
        fn fall_back(&mut self) -> bool {
            let takes_nothing = self.falls_back && self.completed.is_empty();
            if takes_nothing {
                self.queued.clear();
                self.ring_errors.clear();
            }
            takes_nothing
        }
    }

    const MANY: usize = 40;

    /// Writes pages with a script, then reads them with another, and compares.
    fn write_and_read(write: &mut Script, read: &mut Script) {
        let store = memory_store(MANY as u64 * 3 + 1);
        let mut pages = Pages::each(MANY * 3, |i| i as u8 + 1);
        let mut batch: Vec<PageIo> = (0..MANY).map(|i| pages.io(1 + i as u64 * 3, i * 3, 3)).collect();
        store.transfer(write, Direction::Write, &mut batch);
        assert!(batch.iter().all(|io| io.outcome() == IoOutcome::Done));

        let mut back = Pages::filled(MANY * 3, 0);
        let mut batch: Vec<PageIo> = (0..MANY).map(|i| back.io(1 + i as u64 * 3, i * 3, 3)).collect();
        store.transfer(read, Direction::Read, &mut batch);
        assert!(batch.iter().all(|io| io.outcome() == IoOutcome::Done));
        for i in 0..MANY * 3 {
            assert!(back.is(i, i as u8 + 1), "page {i}");
        }
    }

    fn outcome_of(script: &mut Script, direction: Direction) -> IoOutcome {
        let store = memory_store(10);
        let mut pages = Pages::filled(3, 7);
        let mut batch = [pages.io(1, 0, 3)];
        store.transfer(script, direction, &mut batch);
        batch[0].outcome()
    }

    #[test]
    fn what_is_written_is_read() {
        let (mut write, mut read) = (Script::new(&[]), Script::new(&[]));
        write_and_read(&mut write, &mut read);
        assert_eq!((write.pushes, read.pushes), (MANY, MANY));
    }

    #[test]
    fn never_more_is_in_flight_than_the_ring_holds() {
        let mut write = Script::new(&[Act::AtMost(4096), Act::Fail(libc::EAGAIN)]);
        let mut read = Script::new(&[Act::AtMost(5000); 20]);
        read.capacity = 1;
        write_and_read(&mut write, &mut read);
        assert_eq!((write.in_flight_most, read.in_flight_most), (4, 1));
    }

    #[test]
    fn short_counts_are_continued() {
        let mut acts = Vec::new();
        for i in 0..MANY * 3 {
            // Whole pages, and pages cut in two.
            acts.push(Act::AtMost([4096, 8192, 6000, 4097][i % 4]));
        }
        let (mut write, mut read) = (Script::new(&acts), Script::new(&acts));
        write_and_read(&mut write, &mut read);
        assert!(write.pushes > MANY && read.pushes > MANY);
    }

    #[test]
    fn what_may_work_later_is_tried_again() {
        let acts = [libc::EINTR, libc::EAGAIN, libc::ENOMEM].map(Act::Fail);
        let mut write = Script::new(&acts);
        let mut read = Script::new(&acts);
        write.ring_errors.extend([libc::EINTR, libc::EAGAIN, libc::EBUSY]);
        write_and_read(&mut write, &mut read);
        assert_eq!((write.pushes, read.pushes), (MANY + 3, MANY + 3));
    }

    #[test]
    fn trying_again_has_an_end() {
        let mut script = Script::new(&[]);
        script.after = Act::Fail(libc::EAGAIN);
        assert_eq!(outcome_of(&mut script, Direction::Read), IoOutcome::Failed(StoreError::Io(libc::EAGAIN)));
        assert_eq!(script.pushes, RETRIES_MAX as usize + 1);
        // Counts that never complete a page are no progress.
        let mut script = Script::new(&[]);
        script.after = Act::AtMost(100);
        assert_eq!(outcome_of(&mut script, Direction::Write), IoOutcome::Failed(StoreError::Short));
    }

    #[test]
    fn each_error_has_its_own_outcome() {
        for (error, expected) in [
            (libc::EIO, StoreError::Io(libc::EIO)),
            (libc::ENODEV, StoreError::Io(libc::ENODEV)),
            (libc::ENOSPC, StoreError::NoSpace),
            (libc::EDQUOT, StoreError::NoSpace),
        ] {
            let outcome = outcome_of(&mut Script::new(&[Act::Fail(error)]), Direction::Write);
            assert_eq!(outcome, IoOutcome::Failed(expected));
        }
        // An error after a part was written fails the whole.
        let mut script = Script::new(&[Act::AtMost(4096), Act::Fail(libc::ENOSPC)]);
        assert_eq!(outcome_of(&mut script, Direction::Write), IoOutcome::Failed(StoreError::NoSpace));
    }

    #[test]
    fn one_failure_leaves_the_others_alone() {
        let store = memory_store(20);
        let mut pages = Pages::filled(9, 7);
        let mut batch: Vec<PageIo> = (0..9).map(|i| pages.io(1 + i as u64, i, 1)).collect();
        let mut script = Script::new(&[Act::Whole, Act::Whole, Act::Fail(libc::EIO)]);
        store.transfer(&mut script, Direction::Write, &mut batch);
        for (i, io) in batch.iter().enumerate() {
            let failed = io.outcome() == IoOutcome::Failed(StoreError::Io(libc::EIO));
            assert_eq!(failed, i == 2, "{i}");
        }
    }

    #[test]
    fn a_file_that_is_too_short_fails_the_read() {
        let store = FileStore::new(memory_file(4), 10, false);
        let mut pages = Pages::filled(4, 7);
        let mut batch = [pages.io(2, 0, 4)];
        store.transfer(&mut Script::new(&[]), Direction::Read, &mut batch);
        assert_eq!(batch[0].outcome(), IoOutcome::Failed(StoreError::Short));
    }

    #[test]
    #[should_panic(expected = "io_uring fails with 1 transfers in flight")]
    fn a_broken_ring_stops_us() {
        let mut script = Script::new(&[]);
        script.ring_errors.push_back(libc::EBADF);
        outcome_of(&mut script, Direction::Read);
    }

    /// As under `ulimit -u` and in a container at its limit of processes.
    #[test]
    fn what_the_kernel_has_no_thread_for_goes_by_plain_calls() {
        let cancelled =
            || Script { after: Act::Fail(libc::ECANCELED), ..Script::new(&[Act::Whole, Act::AtMost(6000)]) };
        write_and_read(&mut cancelled(), &mut cancelled());
    }

    #[test]
    fn a_ring_that_takes_nothing_any_more_is_given_up() {
        for error in [libc::EAGAIN, libc::EBUSY, libc::EPERM] {
            let given_up = || {
                let mut script = Script { falls_back: true, ..Script::new(&[Act::AtMost(4096)]) };
                script.ring_errors.extend([error; 2 * RING_RETRIES as usize]);
                script
            };
            write_and_read(&mut given_up(), &mut given_up());
        }
    }

    #[test]
    #[should_panic(expected = "behind its header")]
    fn the_header_is_never_written() {
        let mut pages = Pages::filled(1, 7);
        let mut batch = [pages.io(0, 0, 1)];
        memory_store(10).transfer(&mut Script::new(&[]), Direction::Write, &mut batch);
    }

    #[test]
    #[should_panic(expected = "not in an area of 10 slots")]
    fn nothing_is_written_past_the_end() {
        let mut pages = Pages::filled(3, 7);
        let mut batch = [pages.io(8, 0, 3)];
        memory_store(10).transfer(&mut Script::new(&[]), Direction::Write, &mut batch);
    }

    fn blocks_of(fd: &OwnedFd) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_blocks as u64
    }

    #[test]
    fn discarded_slots_leave_the_file() {
        for punch_holes in [true, false] {
            let store = FileStore::new(memory_file(64), 64, punch_holes);
            let mut pages = Pages::filled(32, 7);
            let mut batch = [pages.io(1, 0, 32)];
            store.transfer(&mut Script::new(&[]), Direction::Write, &mut batch);
            let before = blocks_of(&store.fd);
            store.discard(1, 16);
            // Where memory files have huge pages, more than was written is there.
            let given_back = if punch_holes { 16 * uswap_core::PAGE_SIZE as u64 / 512 } else { 0 };
            assert!(blocks_of(&store.fd) <= before - given_back && (punch_holes || blocks_of(&store.fd) == before));
        }
    }

    /// On a real file where there is one, through many batches.
    #[test]
    fn a_real_ring_carries_pages_both_ways() {
        match Ring::new(8) {
            Ok(ring) => carries_pages_both_ways(ring),
            Err(error) => eprintln!("skipped: no io_uring: {error}"),
        }
    }

    #[test]
    fn without_io_uring_pages_are_carried_both_ways() {
        carries_pages_both_ways(Ring::new_synchronous(8));
    }

    fn carries_pages_both_ways(mut ring: Ring) {
        let path =
            std::env::temp_dir().join(format!("uswap-file-store-{}-{}", std::process::id(), ring.is_synchronous()));
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(301 * SLOT_BYTES as u64).unwrap();
        let store = FileStore::new(file.into(), 301, true);
        for round in 0..5u8 {
            let mut pages = Pages::each(300, |i| (i as u8).wrapping_mul(3).wrapping_add(round));
            let mut batch: Vec<PageIo> = (0..100).map(|i| pages.io(1 + i as u64 * 3, i * 3, 3)).collect();
            store.write(&mut ring, &mut batch);
            assert!(batch.iter().all(|io| io.outcome() == IoOutcome::Done));

            let mut back = Pages::filled(300, 0);
            let mut batch: Vec<PageIo> = (0..300).map(|i| back.io(1 + i as u64, i, 1)).collect();
            store.read(&mut ring, &mut batch);
            assert!(batch.iter().all(|io| io.outcome() == IoOutcome::Done));
            for i in 0..300 {
                assert_eq!(back.page(i), pages.page(i));
            }
        }
        // A hole reads as zeros.
        store.discard(5, 2);
        let mut back = Pages::filled(2, 9);
        let mut batch = [back.io(5, 0, 2)];
        store.read(&mut ring, &mut batch);
        assert_eq!(batch[0].outcome(), IoOutcome::Done);
        assert!(back.is(0, 0) && back.is(1, 0));
    }
}
