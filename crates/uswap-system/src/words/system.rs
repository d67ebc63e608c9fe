//! A system with nothing but threads, words to wait on, and time.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::{Condvar, Mutex};

use super::{Defect, Timeouts, preempt, rules};
use crate::atomic::AtomicU32;
use crate::faults::{Call, Faults, Heard, Holes, Message, Progress, Wake};
use crate::looks::{Footprint, Mappings, PopulatedRange, Residency, Rss, Vma};
use crate::{Advice, Scope, Supervisor, System, Waited};

/// Threads of shuttle's.
#[derive(Debug)]
pub struct Shuttle;

/// One that waits on the word at an address.
struct Waiter {
    word: usize,
    woken: Arc<(Mutex<bool>, Condvar)>,
}

thread_local! {
    static WAITERS: RefCell<Vec<Waiter>> = const { RefCell::new(Vec::new()) };
    static ENDED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
    static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// A schedule begins.
pub(super) fn begin() {
    WAITERS.take();
    ENDED.take();
}

/// The thread with this id has ended, as [`System::thread_has_ended`] sees it.
pub fn thread_ends(thread: u32) {
    ENDED.with_borrow_mut(|ended| ended.push(thread));
}

fn pass_time(time: Duration) {
    NOW.set(Some(Shuttle::now() + time));
}

/// Takes a waiter off the list; whether it still was there.
fn leave(woken: &Arc<(Mutex<bool>, Condvar)>) -> bool {
    WAITERS.with_borrow_mut(|waiters| {
        let place = waiters.iter().position(|waiter| Arc::ptr_eq(&waiter.woken, woken));
        place.map(|place| waiters.swap_remove(place)).is_some()
    })
}

impl System for Shuttle {
    type Faults = NoSystem;
    type Residency = NoSystem;
    type Mappings = NoSystem;
    type Footprint = NoSystem;
    type Supervisor = NoSystem;

    const HAS_IO_URING: bool = false;

    fn now() -> Instant {
        let now = NOW.get().unwrap_or_else(Instant::now);
        NOW.set(Some(now));
        now
    }

    fn cpu_time() -> Duration {
        Duration::ZERO
    }

    fn sleep(duration: Duration) {
        pass_time(duration);
        // Who sleeps makes way for everybody else.
        shuttle::thread::yield_now();
    }

    fn acquire<G>(mut attempt: impl FnMut() -> Option<G>, sleep: impl FnOnce() -> G) -> G {
        attempt().unwrap_or_else(sleep)
    }

    fn wait(word: &AtomicU32, _: Scope, expected: u32, timeout: Option<Duration>) -> Waited {
        preempt();
        // From here to the list in one step, as the kernel has it.
        if std::sync::atomic::AtomicU32::load(word, std::sync::atomic::Ordering::SeqCst) != expected {
            return Waited::Changed;
        }
        let woken = Arc::new((Mutex::new(false), Condvar::new()));
        let address = std::ptr::from_ref(word).addr();
        WAITERS.with_borrow_mut(|waiters| waiters.push(Waiter { word: address, woken: woken.clone() }));
        let ends_in_time = rules().timeouts == Timeouts::Any && timeout.is_some() && thread_rng().gen_bool(0.5);
        // A signal, one time in eight.
        if ends_in_time || thread_rng().gen_bool(0.125) {
            shuttle::thread::yield_now();
            let was_waiting = leave(&woken);
            if let (true, true, Some(timeout)) = (was_waiting, ends_in_time, timeout) {
                pass_time(timeout);
                return Waited::TimedOut;
            }
            return Waited::Woken;
        }
        let mut is_woken = woken.0.lock().expect("nobody panics with it");
        while !*is_woken {
            is_woken = woken.1.wait(is_woken).expect("nobody panics with it");
        }
        Waited::Woken
    }

    fn wake(word: &AtomicU32, _: Scope, count: u32) {
        preempt();
        if rules().defect == Some(Defect::NoWake) {
            return;
        }
        let address = std::ptr::from_ref(word).addr();
        for _ in 0..count {
            let next = WAITERS.with_borrow_mut(|waiters| {
                let on_it: Vec<usize> = (0..waiters.len()).filter(|&place| waiters[place].word == address).collect();
                let chosen = (!on_it.is_empty()).then(|| on_it[thread_rng().gen_range(0..on_it.len())])?;
                Some(waiters.swap_remove(chosen).woken)
            });
            let Some(woken) = next else { return };
            *woken.0.lock().expect("nobody panics with it") = true;
            woken.1.notify_one();
        }
    }

    fn advise(_: usize, _: usize, _: Advice) -> io::Result<()> {
        nothing()
    }

    fn let_execute(_: usize, _: usize, _: bool) -> bool {
        nothing()
    }

    fn unlock_all() {}

    fn make_exclusive(_: usize) {
        nothing()
    }

    fn reserve_is_whole() -> bool {
        true
    }

    fn refill_reserve() -> bool {
        true
    }

    fn keep_addresses() {}

    fn may_fail(grow: impl FnOnce() -> bool) -> bool {
        grow()
    }

    fn addresses_left() -> Option<u64> {
        None
    }

    fn process_id() -> u32 {
        1
    }

    fn parent_process_id() -> u32 {
        1
    }

    fn forbid_huge_pages() -> Option<u32> {
        None
    }

    fn allow_huge_pages(_: u32) {}

    fn thread_has_ended(thread: u32) -> bool {
        preempt();
        ENDED.with_borrow(|ended| ended.contains(&thread))
    }

    fn is_thread_of_engine(_: u32) -> bool {
        true
    }

    fn program_has_one_thread() -> bool {
        false
    }

    fn end_with_the_program(_: &[u32]) {}

    fn parent_is(_: u32) -> bool {
        true
    }

    fn end(why: fmt::Arguments<'_>) -> ! {
        panic!("the process ends: {why}")
    }

    fn kill_self() -> ! {
        panic!("the process ends")
    }
}

/// What a test of words alone must not ask for.
fn nothing() -> ! {
    panic!("there is nothing but threads and words")
}

/// Memory, looks at it, a supervisor: there is none of them.
#[derive(Debug)]
pub enum NoSystem {}

impl Call for NoSystem {
    fn new() -> io::Result<Self> {
        nothing()
    }

    fn make(&self) {
        match *self {}
    }

    fn end(&self) {
        match *self {}
    }
}

impl Faults for NoSystem {
    type Unavailable = io::Error;
    type Call = NoSystem;
    type Supervisor = NoSystem;

    fn for_program(_: Option<BorrowedFd<'_>>) -> Result<Self, io::Error> {
        nothing()
    }

    fn for_moves(_: Option<BorrowedFd<'_>>) -> Result<Self, io::Error> {
        nothing()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match *self {}
    }

    fn register(&self, _: usize, _: usize) -> io::Result<()> {
        match *self {}
    }

    fn register_as_target(&self, _: usize, _: usize) -> io::Result<()> {
        match *self {}
    }

    fn unregister(&self, _: usize, _: usize) -> io::Result<()> {
        match *self {}
    }

    fn move_pages(&self, _: usize, _: usize, _: usize, _: Holes, _: Wake) -> Progress {
        match *self {}
    }

    fn copy(&self, _: usize, _: *const u8, _: usize, _: Wake) -> Progress {
        match *self {}
    }

    fn zeropage(&self, _: usize, _: usize, _: Wake) -> Progress {
        match *self {}
    }

    fn poison(&self, _: usize, _: usize) -> Progress {
        match *self {}
    }

    fn protect(&self, _: usize, _: usize, _: bool) -> Progress {
        match *self {}
    }

    fn wake(&self, _: usize, _: usize) -> io::Result<()> {
        match *self {}
    }

    fn is_changing(&self) -> bool {
        match *self {}
    }

    fn is_registered(&self, _: usize, _: usize) -> Option<bool> {
        match *self {}
    }

    fn sees_registered(&self, _: usize, _: usize) -> bool {
        match *self {}
    }

    fn read(&self, _: &mut [Message]) -> io::Result<usize> {
        match *self {}
    }

    fn wait(&self, _: &NoSystem, _: &NoSystem, _: Option<Duration>) -> io::Result<Heard> {
        match *self {}
    }
}

impl Residency for NoSystem {
    fn open() -> io::Result<Self> {
        nothing()
    }

    fn is_exact(&self) -> bool {
        match *self {}
    }

    fn populated(&self, _: usize, _: usize, _: &mut [PopulatedRange]) -> io::Result<(usize, usize)> {
        match *self {}
    }

    fn has_populated(&self, _: usize, _: usize) -> io::Result<bool> {
        match *self {}
    }

    fn shows_absence(&self) -> bool {
        match *self {}
    }

    fn in_common(&self, _: usize, _: usize) -> io::Result<u64> {
        match *self {}
    }

    fn keep_lazily_freed(&self, _: usize, _: u16) -> io::Result<u16> {
        match *self {}
    }
}

impl Mappings for NoSystem {
    fn open() -> io::Result<Self> {
        nothing()
    }

    fn at(&mut self, _: usize) -> Option<Vma<'_>> {
        match *self {}
    }

    fn at_or_after(&mut self, _: usize) -> Option<Vma<'_>> {
        match *self {}
    }

    fn read_maps(_: &mut Vec<u8>) -> io::Result<()> {
        nothing()
    }

    fn read_smaps(_: &mut Vec<u8>) -> io::Result<()> {
        nothing()
    }
}

impl Footprint for NoSystem {
    fn open() -> io::Result<Self> {
        nothing()
    }

    fn main_has_ended(&self) -> bool {
        match *self {}
    }

    fn read(&mut self) -> io::Result<(u64, u64)> {
        match *self {}
    }

    fn faults() -> io::Result<u64> {
        nothing()
    }

    fn processor_time() -> io::Result<Duration> {
        nothing()
    }

    fn by_kind() -> io::Result<Rss> {
        nothing()
    }

    fn share_of_shmem() -> io::Result<u64> {
        nothing()
    }

    fn share_of_private() -> io::Result<u64> {
        nothing()
    }
}

impl Supervisor for NoSystem {
    fn keep(&self, _: BorrowedFd<'_>) -> io::Result<()> {
        match *self {}
    }

    fn is_gone(&self) -> bool {
        match *self {}
    }

    fn say(&self, _: fmt::Arguments<'_>) {
        match *self {}
    }

    fn device(&self) -> Option<BorrowedFd<'_>> {
        match *self {}
    }

    fn take_area(&mut self, _: usize) -> Option<OwnedFd> {
        match *self {}
    }
}
