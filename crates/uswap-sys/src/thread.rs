//! Threads that libc does not know: the agent's.
//!
//! A raw thread is made by clone(2) from any thread, also by a program's thread inside a fork handler:
//! nothing is allocated, no libc lock is taken, `errno` is not touched. Its stack, its thread-local
//! storage and its control block are private memory. All signals are blocked in it, except the two that
//! glibc keeps for itself (32 and 33).
//!
//! libc and std find in it what they expect of a thread: `errno` and the locale, std's panic counter,
//! a thread id, the stack canary. For that, [`prepare`] takes once a template of the static
//! thread-local storage (the initial image of every module that has some) and of the dynamic thread
//! vector; every thread gets a copy. What a raw thread must not do all the same:
//!
//! - touch a `thread_local!` with a destructor (nobody runs it; it would be registered with malloc);
//! - use libc's malloc, stdio or dlopen: libc may believe that the process has one thread only, and
//!   leave its locks out;
//! - call pthread functions about itself, or `sched_getcpu` (no rseq area is registered).
//!
//! Descriptors do not survive a fork. The child of a fork by a program's thread has a copy of the
//! program's file table, not of an agent thread's: what an agent's `OwnedFd` in inherited memory names
//! there is nothing, or a file of the program's. The child forgets them (`mem::forget`), never drops
//! them.
//!
//! `setuid` and the like change the credentials of libc's threads, not of these.

#![allow(unsafe_code)]

use std::arch::asm;
use std::cell::Cell;
use std::ffi::CStr;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::io::Errno;

use crate::PAGE_SIZE;
use crate::futex::SharedWord;
use crate::private_memory::{self, PrivateMapping, Purpose};

use local_storage::{ControlBlock, Storage};
use signals::{AGENT_SIGNAL_MASK, set_signal_mask};

pub use file_table::{KEEP_MAX, unshare_files_and_close};
pub use local_storage::prepare;
pub use signals::{begin_with_signals, hold_signals_back, let_signals_come};
pub use tracer::look_for_tracer;

mod file_table;
mod local_storage;
mod signals;
mod tracer;

const PAGE: usize = PAGE_SIZE;

/// Whether a new thread shares its creator's descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileTable {
    /// One table for both.
    Share,
    /// A table of its own, at first a copy.
    Copy,
}

/// A thread made by [`spawn`]. Dropping this leaves the thread running and its memory mapped.
#[derive(Debug)]
pub struct RawThread {
    memory: ManuallyDrop<PrivateMapping>,
    /// In `memory`: 0 once the thread is gone, which the kernel sees to.
    alive: *const SharedWord,
    /// In `memory`: the thread's id, which the kernel writes before the thread runs.
    tid: *const AtomicU32,
}

// SAFETY: both pointers lead into `memory`, which this value owns, to atomics.
unsafe impl Send for RawThread {}
// SAFETY: as above.
unsafe impl Sync for RawThread {}

impl RawThread {
    /// Its thread id.
    pub fn tid(&self) -> u32 {
        // SAFETY: by the field's description.
        unsafe { (*self.tid).load(Ordering::Relaxed) }
    }

    /// Whether it is still running.
    pub fn is_running(&self) -> bool {
        // SAFETY: by the field's description.
        unsafe { (*self.alive).load() != 0 }
    }

    /// Waits until it is gone, and unmaps its memory.
    pub fn join(mut self) {
        loop {
            // SAFETY: by the field's description.
            let word = unsafe { &*self.alive };
            let value = word.load();
            if value == 0 {
                break;
            }
            word.wait(value, None);
        }
        // SAFETY: the kernel has cleared the word as its last access on the thread's behalf; the
        // thread never returns to this memory. `self` is not used again.
        unsafe { ManuallyDrop::drop(&mut self.memory) }
    }
}

/// Whether a thread that nobody joins still runs: a seccomp filter may end one that meant to go on.
pub struct ThreadLife(AtomicPtr<SharedWord>);

impl ThreadLife {
    /// Of no thread yet.
    pub const fn new() -> ThreadLife {
        ThreadLife(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// From here on that of `thread`, whose memory stays mapped.
    pub fn follow(&self, thread: RawThread) {
        self.0.store(thread.alive.cast_mut(), Ordering::Release);
    }

    /// Whether there was such a thread, and it is gone.
    pub fn has_ended(&self) -> bool {
        // SAFETY: null, or the word of a RawThread that was dropped, which leaves its memory mapped for ever.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }.is_some_and(|alive| alive.load() == 0)
    }
}

impl Default for ThreadLife {
    fn default() -> Self {
        Self::new()
    }
}

/// Threads of this kind in the process `COUNTED_IN`, the child of a fork has none of its parent's.
static RUNNING: AtomicU32 = AtomicU32::new(0);
static COUNTED_IN: AtomicU32 = AtomicU32::new(0);

/// How many threads of this kind the process has.
pub fn running() -> u32 {
    if COUNTED_IN.load(Ordering::Relaxed) == std::process::id() { RUNNING.load(Ordering::Relaxed) } else { 0 }
}

/// One more, about to be made.
fn count_one() {
    let me = std::process::id();
    if COUNTED_IN.load(Ordering::Relaxed) != me {
        // The first of a process is made while nobody makes another.
        RUNNING.store(0, Ordering::Relaxed);
        COUNTED_IN.store(me, Ordering::Relaxed);
    }
    RUNNING.fetch_add(1, Ordering::Relaxed);
}

fn count_one_less() {
    RUNNING.fetch_sub(1, Ordering::Relaxed);
}

/// What a new thread starts with, at the top of its stack.
#[repr(C)]
struct Start {
    main: extern "C" fn(*mut u8),
    arg: *mut u8,
    name: [u8; 16],
    /// Where the stack ends, below.
    bottom: usize,
}

impl Start {
    fn new(name: &CStr, main: extern "C" fn(*mut u8), arg: *mut u8, bottom: usize) -> Start {
        let mut short_name = [0; 16];
        for (to, &from) in short_name[..15].iter_mut().zip(name.to_bytes()) {
            *to = from;
        }
        Start { main, arg, name: short_name, bottom }
    }
}

/// Starts a thread that runs `main(arg)` and then ends.
///
/// `name` is cut to 15 bytes. The new thread keeps its creator's CPU set. Needs no heap; safe to call
/// from a program's thread in a fork handler, if [`prepare`] was called before. Panics in `main` abort.
pub fn spawn(
    name: &CStr,
    stack_bytes: usize,
    files: FileTable,
    main: extern "C" fn(*mut u8),
    arg: *mut u8,
) -> io::Result<RawThread> {
    prepare()?;
    if crate::test_hook::refuses_thread() {
        return Err(Errno::AGAIN.into());
    }

    // 1. Lay it out, from below: guard page, stack, storage.
    let stack_end = PAGE + stack_bytes.max(4 * PAGE).next_multiple_of(PAGE);
    let storage = Storage::of_template();
    let mut memory = private_memory::map(stack_end + storage.bytes, Purpose::Stack)?;
    memory.guard_first_page()?;
    let base = memory.as_ptr();

    // SAFETY: all writes are inside `memory`, which is fresh, and before the thread exists: `start` at the stack's end, which is
    // page-aligned, and the storage behind it.
    let (start, control) = unsafe {
        // 2. What it starts with, and its storage.
        let start = base.add(stack_end - size_of::<Start>().next_multiple_of(16)).cast::<Start>();
        start.write(Start::new(name, main, arg, base.addr() + PAGE));
        (start, storage.fill(base.add(stack_end)))
    };

    // 3. Clone, with signals blocked, so that none is ever delivered to the new thread.
    count_one();
    let old_mask = set_signal_mask(AGENT_SIGNAL_MASK);
    // SAFETY: stack and storage are fresh, the thread's alone, and stay mapped while it runs (dropping
    // a RawThread does not unmap, join does once it is gone). `start` is complete.
    let result = unsafe { clone_thread(clone_flags(files), start, &control) };
    set_signal_mask(old_mask);
    if result < 0 {
        count_one_less();
        return Err(io::Error::from_raw_os_error(-result as i32));
    }
    Ok(RawThread { memory: ManuallyDrop::new(memory), alive: control.alive, tid: control.tid })
}

fn clone_flags(files: FileTable) -> usize {
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_SETTLS
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    let files = if files == FileTable::Share { libc::CLONE_FILES } else { 0 };
    let tracer = if tracer::hide_from_tracer() { libc::CLONE_UNTRACED } else { 0 };
    (flags | files | tracer) as usize
}

/// Under a real-time policy a thread of ours does not run at all while one of the program's does, which would wait for it for ever,
/// or outrun it. So the one with this id, which the calling one has made, gets the next higher priority, where that is permitted; its own call of
/// [`prefer`] would come too late. Not after a fork: a filter that the program has put on itself may end who makes such calls.
pub fn precede_this_thread(thread: u32) {
    // SAFETY: asks for the policy of the calling thread.
    let policy = unsafe { syscall4(libc::SYS_sched_getscheduler, 0, 0, 0, 0) };
    let Ok(policy) = policy else { return };
    if ![libc::SCHED_FIFO, libc::SCHED_RR].contains(&(policy as i32 & !libc::SCHED_RESET_ON_FORK)) {
        return;
    }
    let mut priority: i32 = 0;
    // SAFETY: the only field of a sched_param is its priority.
    let known = unsafe { syscall4(libc::SYS_sched_getparam, 0, (&raw mut priority).addr(), 0, 0) };
    let higher = priority.saturating_add(1).min(99);
    if known.is_err() {
        return;
    }
    // The same is better than an ordinary policy, which it has where SCHED_RESET_ON_FORK is set.
    for priority in [higher, priority] {
        // SAFETY: as above; the thread is ours.
        let set =
            unsafe { syscall4(libc::SYS_sched_setscheduler, thread as usize, policy, (&raw const priority).addr(), 0) };
        if set.is_ok() {
            return;
        }
    }
}

/// clone(2) for a thread that begins in [`start_thread`], on the stack that ends at `start`.
///
/// # Safety
/// `start` is 16-byte aligned, complete, and everything below it down to the guard page is a stack
/// that nobody uses; `control` is a control block as libc expects it.
unsafe fn clone_thread(flags: usize, start: *mut Start, control: &ControlBlock) -> isize {
    let ControlBlock { thread_pointer, tid, alive } = *control;
    let result: isize;
    // SAFETY: in the parent this is a system call that changes rax, rcx and r11 only. The child has the
    // same registers but its own stack; it never leaves this block, but jumps to start_thread, which
    // does not return, as if called from address 0: that is where backtraces end.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r9",
            "push 0",
            "jmp {start_thread}",
            "2:",
            start_thread = sym start_thread,
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") flags,
            in("rsi") start,
            in("rdx") tid,
            in("r10") alive,
            in("r8") thread_pointer,
            in("r9") start,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// What whoever started the program has allowed its timers to be late (PR_SET_TIMERSLACK, systemd's TimerSlackNSec) is not for the
/// calling thread: it looks at memory every millisecond.
pub fn be_punctual() {
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

unsafe extern "C" fn start_thread(start: *const Start) -> ! {
    // SAFETY: spawn wrote it, for this thread, and nobody changes it.
    let start = unsafe { &*start };
    if let Ok(name) = CStr::from_bytes_until_nul(&start.name) {
        let _ = rustix::thread::set_name(name);
    }
    be_punctual();
    STACK_BOTTOM.set(start.bottom);
    (start.main)(start.arg);
    exit_thread()
}

/// Ends the calling raw thread, and it alone. Nothing is cleaned up.
pub fn exit_thread() -> ! {
    count_one_less();
    // SAFETY: exit does not return, and the kernel reads nothing of ours.
    unsafe {
        asm!("syscall", "ud2", in("rax") libc::SYS_exit, in("rdi") 0, options(noreturn));
    }
}

/// A system call that leaves errno alone.
///
/// # Safety
/// That of the system call.
unsafe fn syscall4(number: i64, a: usize, b: usize, c: usize, d: usize) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the caller's promise; the kernel changes rax, rcx and r11, and memory as the call says.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    if result < 0 { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(result as usize) }
}

/// Lets the calling thread run before threads of the program, where that is permitted: they wait for it anyway, or outrun
/// it.
pub fn prefer() {
    let thread = rustix::thread::gettid();
    let _ = rustix::process::setpriority_process(Some(thread), -10);
}

thread_local! {
    /// Where the stack of this thread ends, below; 0 where that is not known: it is no thread of ours.
    static STACK_BOTTOM: Cell<usize> = const { Cell::new(0) };
}

/// Gives back what the calling thread has used of its stack before, and does not use now: some 100 KiB where much was made on it. Does
/// nothing in a thread of libc's.
pub fn give_back_stack() {
    let here = 0_u8;
    let bottom = STACK_BOTTOM.get();
    // Two pages for what this function calls.
    let end = ((&raw const here).addr() & !(PAGE - 1)) - 2 * PAGE;
    if bottom != 0 && bottom < end {
        // SAFETY: all of it is below what this thread has on its stack, with room for the call, and nobody else refers to it.
        let _ = unsafe {
            let from = std::ptr::with_exposed_provenance_mut(bottom);
            rustix::mm::madvise(from, end - bottom, rustix::mm::Advice::LinuxDontNeed)
        };
    }
}

/// Lets the calling thread run on one CPU only.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(Errno::INVAL.into());
    }
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &cpus)?)
}

/// The CPUs that the calling thread may run on.
pub fn allowed_cpus() -> io::Result<impl Iterator<Item = usize>> {
    let cpus = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(move |&cpu| cpus.is_set(cpu)))
}

#[cfg(test)]
mod tests;
