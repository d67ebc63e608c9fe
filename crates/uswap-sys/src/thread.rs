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
use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{IntoRawFd, RawFd};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::PAGE_SIZE;
use crate::futex::{RawLock, SharedWord};
use crate::private_memory::{self, PrivateMapping, Purpose};

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

const PAGE: usize = PAGE_SIZE;
/// Room for thread-local storage below the control block, and more if the template needs more.
const TLS_ROOM: usize = 64 << 10;
/// Room for glibc's `struct pthread` (2.3 KiB in 2.36), of which a raw thread fills in the beginning.
const CONTROL_ROOM: usize = 2 * PAGE;

// Offsets in the control block: `tcbhead_t` is ABI (compilers emit them), `tid` has stood at this
// place in every glibc for x86_64 since 2.4.
const TCB_SELF: usize = 0x00;
const TCB_DTV: usize = 0x08;
const TCB_PTHREAD: usize = 0x10;
const TCB_MULTIPLE_THREADS: usize = 0x18;
const TCB_STACK_GUARD: usize = 0x28;
const TCB_POINTER_GUARD: usize = 0x30;
const TCB_TID: usize = 0x2d0;
/// Ours, past the end of `struct pthread`.
const TCB_ALIVE: usize = CONTROL_ROOM - 64;

/// An entry of glibc's dynamic thread vector. Entry -1 has the vector's length in `value`, entry 0 its
/// generation, entry n the address of module n's storage.
#[repr(C)]
#[derive(Clone, Copy)]
struct DtvEntry {
    value: usize,
    to_free: usize,
}
const DTV_UNALLOCATED: usize = usize::MAX;
/// Larger than any generation: glibc then never tries to bring the vector up to date, which would mean
/// malloc. Its comparison is "is the vector older than the module".
const DTV_GENERATION: usize = usize::MAX >> 1;

/// What new threads' storage is copied from. Written once by [`prepare`], then constant.
struct Template {
    /// 0: not made.
    ready: AtomicU32,
    lock: RawLock,
    /// `image_bytes` of initial thread-local storage, the last byte of which lies just below the
    /// thread pointer.
    image: AtomicPtr<u8>,
    image_bytes: AtomicUsize,
    /// For each module id up to `modules`: how far below the thread pointer its storage begins; 0 if
    /// it has no static storage.
    offsets: AtomicPtr<usize>,
    modules: AtomicUsize,
}

static TEMPLATE: Template = Template {
    ready: AtomicU32::new(0),
    lock: RawLock::new(),
    image: AtomicPtr::new(std::ptr::null_mut()),
    image_bytes: AtomicUsize::new(0),
    offsets: AtomicPtr::new(std::ptr::null_mut()),
    modules: AtomicUsize::new(0),
};

/// Takes the template of thread-local storage, if that has not been done.
///
/// Call it in the agent's constructor, in a libc thread: it asks the loader, whose lock another thread
/// may hold during a fork. [`spawn`] calls it otherwise.
pub fn prepare() -> io::Result<()> {
    if TEMPLATE.ready.load(Ordering::Acquire) != 0 {
        return Ok(());
    }
    TEMPLATE.lock.lock();
    let result = if TEMPLATE.ready.load(Ordering::Acquire) == 0 { take_template() } else { Ok(()) };
    TEMPLATE.lock.unlock();
    result
}

/// What one walk over the loaded modules finds out.
struct Survey {
    thread_pointer: usize,
    /// Bytes below the thread pointer that hold static storage.
    image_bytes: usize,
    last_module: usize,
    /// Our own module, if its storage is not static: (id, size, alignment).
    own_dynamic: Option<(usize, usize, usize)>,
    /// Where to write, in the second walk.
    image_end: *mut u8,
    offsets: *mut usize,
}

unsafe extern "C" {
    fn __ctype_b_loc() -> *mut usize;
    fn __ctype_tolower_loc() -> *mut usize;
    fn __ctype_toupper_loc() -> *mut usize;
}

fn take_template() -> io::Result<()> {
    let thread_pointer = thread_pointer();
    let mut survey = Survey {
        thread_pointer,
        image_bytes: 0,
        last_module: 0,
        own_dynamic: None,
        image_end: std::ptr::null_mut(),
        offsets: std::ptr::null_mut(),
    };
    // 1. How large is it all?
    // SAFETY: look_at_module is a callback of dl_iterate_phdr, and `survey` its argument, which
    // outlives the walk.
    unsafe { libc::dl_iterate_phdr(Some(look_at_module), (&raw mut survey).cast()) };
    if let Some((_, size, align)) = survey.own_dynamic {
        survey.image_bytes = (survey.image_bytes + size).next_multiple_of(align.max(64));
    }
    let image_bytes = survey.image_bytes.next_multiple_of(PAGE);

    // 2. Copy.
    let image = private_memory::map(image_bytes.max(PAGE), Purpose::Stack)?;
    let offsets = private_memory::map((survey.last_module + 1) * 8, Purpose::Stack)?;
    survey.image_end = image.as_ptr().wrapping_add(image_bytes);
    survey.offsets = offsets.as_ptr().cast();
    let own_offset = survey.image_bytes;
    // SAFETY: as above; both mappings are large enough for what the first walk counted. A module that
    // another thread loads in between is not static, or has a higher id, and is passed over.
    unsafe { libc::dl_iterate_phdr(Some(look_at_module), (&raw mut survey).cast()) };
    if let Some((id, ..)) = survey.own_dynamic {
        // SAFETY: `id` is at most last_module.
        unsafe { *survey.offsets.add(id) = own_offset };
    }

    // 3. What libc sets up in each thread by itself: the tables behind isalpha() and its kin. They are
    // found relative to the thread pointer, and are the same for all threads.
    for table in [__ctype_b_loc, __ctype_tolower_loc, __ctype_toupper_loc] {
        // SAFETY: these functions have no conditions; they give the address of this thread's pointer.
        let own = unsafe { table() };
        let below = thread_pointer.wrapping_sub(own.addr());
        if (8..=image_bytes).contains(&below) {
            // SAFETY: inside the image, aligned like the original; `own` is a live thread-local.
            unsafe { survey.image_end.sub(below).cast::<usize>().write(*own) };
        }
    }

    TEMPLATE.image.store(image.into_raw().0, Ordering::Relaxed);
    TEMPLATE.image_bytes.store(image_bytes, Ordering::Relaxed);
    TEMPLATE.offsets.store(offsets.into_raw().0.cast(), Ordering::Relaxed);
    TEMPLATE.modules.store(survey.last_module, Ordering::Relaxed);
    TEMPLATE.ready.store(1, Ordering::Release);
    Ok(())
}

/// Measures one module in the first walk, and copies its image in the second.
///
/// # Safety
/// Called by dl_iterate_phdr; `data` is a Survey whose pointers, if set, are good for its sizes.
unsafe extern "C" fn look_at_module(info: *mut libc::dl_phdr_info, info_size: usize, data: *mut c_void) -> c_int {
    // SAFETY: by this function's contract, and nobody else has the survey meanwhile.
    let (info, survey) = unsafe { (&*info, &mut *data.cast::<Survey>()) };
    let id = info.dlpi_tls_modid;
    if info_size < size_of::<libc::dl_phdr_info>() || id == 0 || info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader gives that many headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let Some(storage) = headers.iter().find(|h| h.p_type == libc::PT_TLS) else {
        return 0;
    };
    let size = storage.p_memsz as usize;
    let first_walk = survey.offsets.is_null();

    let below = survey.thread_pointer.wrapping_sub(info.dlpi_tls_data.addr());
    let is_static = !info.dlpi_tls_data.is_null()
        && below >= size
        && below <= 1 << 20
        // SAFETY: the vector belongs to this thread, and the loader has just looked up entry `id` in
        // it to give us dlpi_tls_data, so that entry exists. Storage that is not static has an
        // allocation to free.
        && unsafe { (*own_dtv().add(id)).to_free } == 0;
    let here = (look_at_module as *const ()).addr();
    let is_ours = headers.iter().any(|h| {
        let start = (info.dlpi_addr as usize).wrapping_add(h.p_vaddr as usize);
        h.p_type == libc::PT_LOAD && start <= here && here - start < h.p_memsz as usize
    });
    if !is_static && !is_ours {
        return 0;
    }
    if first_walk {
        survey.last_module = survey.last_module.max(id);
        if is_static {
            survey.image_bytes = survey.image_bytes.max(below);
        } else {
            survey.own_dynamic = Some((id, size, storage.p_align as usize));
        }
        return 0;
    }
    if id > survey.last_module || (is_static && below > survey.image_bytes) {
        return 0;
    }
    let below = if is_static { below } else { survey.image_bytes };
    let image = (info.dlpi_addr as usize).wrapping_add(storage.p_vaddr as usize);
    // SAFETY: `image` is the module's initial image, mapped as long as the module is loaded, which the
    // loader's lock assures here. The target has `below` >= size bytes up to the image's end. `offsets`
    // has last_module + 1 entries.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::with_exposed_provenance::<u8>(image),
            survey.image_end.sub(below),
            storage.p_filesz as usize,
        );
        *survey.offsets.add(id) = below;
    }
    0
}

fn thread_pointer() -> usize {
    let value;
    // SAFETY: fs:0 holds the thread pointer itself, by the ABI; reading it changes nothing.
    unsafe {
        asm!("mov {}, fs:[0]", out(reg) value, options(nostack, preserves_flags, readonly));
    }
    value
}

/// A word of the calling thread's control block.
fn control_word<const OFFSET: usize>() -> usize {
    let value;
    // SAFETY: the control block reaches at least as far as `tid`; reading it changes nothing.
    unsafe {
        asm!("mov {}, fs:[{}]", out(reg) value, const OFFSET,
            options(nostack, preserves_flags, readonly));
    }
    value
}

fn own_dtv() -> *const DtvEntry {
    std::ptr::with_exposed_provenance(control_word::<TCB_DTV>())
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
    let image_bytes = TEMPLATE.image_bytes.load(Ordering::Relaxed);
    let modules = TEMPLATE.modules.load(Ordering::Relaxed);

    // 1. Lay it out, from below: guard page, stack, thread-local storage, control block, vector.
    let stack = stack_bytes.max(4 * PAGE).next_multiple_of(PAGE);
    let storage = image_bytes.max(TLS_ROOM).next_multiple_of(PAGE);
    // Two entries ahead of the first module's, and one to spare: the loader's comparison with the
    // length is by "less than".
    let vector = ((modules + 3) * size_of::<DtvEntry>()).next_multiple_of(PAGE);
    let stack_end = PAGE + stack;
    let control = stack_end + storage;
    let mut memory = private_memory::map(control + CONTROL_ROOM + vector, Purpose::Stack)?;
    memory.guard_first_page()?;
    let base = memory.as_ptr();

    // SAFETY: all writes are inside `memory`, apart from each other as laid out above, aligned, and
    // before the thread exists. The template is complete: prepare() has returned.
    let (start, thread_pointer, tid, alive) = unsafe {
        // 2. Fill in storage, control block and vector.
        let tp = base.add(control);
        std::ptr::copy_nonoverlapping(TEMPLATE.image.load(Ordering::Relaxed), tp.sub(image_bytes), image_bytes);
        let dtv = base.add(control + CONTROL_ROOM).cast::<DtvEntry>().add(1);
        dtv.sub(1).write(DtvEntry { value: modules + 1, to_free: 0 });
        dtv.write(DtvEntry { value: DTV_GENERATION, to_free: 0 });
        let offsets = TEMPLATE.offsets.load(Ordering::Relaxed);
        for id in 1..=modules + 1 {
            let below = if id <= modules { *offsets.add(id) } else { 0 };
            let value = match below {
                0 => DTV_UNALLOCATED,
                _ => tp.addr() - below,
            };
            dtv.add(id).write(DtvEntry { value, to_free: 0 });
        }
        let word = |offset: usize, value: usize| tp.add(offset).cast::<usize>().write(value);
        word(TCB_SELF, tp.expose_provenance());
        word(TCB_DTV, dtv.expose_provenance());
        word(TCB_PTHREAD, tp.addr());
        word(TCB_MULTIPLE_THREADS, 1);
        word(TCB_STACK_GUARD, control_word::<TCB_STACK_GUARD>());
        word(TCB_POINTER_GUARD, control_word::<TCB_POINTER_GUARD>());
        let alive = tp.add(TCB_ALIVE).cast::<SharedWord>();
        alive.write(SharedWord::new(1));

        // 3. And what it starts with.
        let start = base.add(stack_end - size_of::<Start>().next_multiple_of(16)).cast::<Start>();
        let mut short_name = [0; 16];
        for (to, &from) in short_name[..15].iter_mut().zip(name.to_bytes()) {
            *to = from;
        }
        start.write(Start { main, arg, name: short_name });
        (start, tp, tp.add(TCB_TID).cast::<AtomicU32>(), alive)
    };

    // 4. Clone, with signals blocked, so that none is ever delivered to the new thread.
    let mut flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_SETTLS
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    if files == FileTable::Share {
        flags |= libc::CLONE_FILES;
    }
    count_one();
    let old_mask = set_signal_mask(AGENT_SIGNAL_MASK);
    // SAFETY: stack and storage are fresh, the thread's alone, and stay mapped while it runs (dropping
    // a RawThread does not unmap, join does once it is gone). `start` is complete.
    let result = unsafe { clone_thread(flags as usize, start, tid, alive, thread_pointer) };
    set_signal_mask(old_mask);
    if result < 0 {
        count_one_less();
        return Err(io::Error::from_raw_os_error(-result as i32));
    }
    Ok(RawThread { memory: ManuallyDrop::new(memory), alive, tid })
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
/// that nobody uses; `tp` is a control block as libc expects it.
unsafe fn clone_thread(
    flags: usize,
    start: *mut Start,
    tid: *mut AtomicU32,
    alive: *mut SharedWord,
    tp: *mut u8,
) -> isize {
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
            in("r8") tp,
            in("r9") start,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

unsafe extern "C" fn start_thread(start: *const Start) -> ! {
    // SAFETY: spawn wrote it, for this thread, and nobody changes it.
    let start = unsafe { &*start };
    if let Ok(name) = CStr::from_bytes_until_nul(&start.name) {
        let _ = rustix::thread::set_name(name);
    }
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

/// All signals but the two that glibc sends to its threads; signal n is bit n - 1.
const AGENT_SIGNAL_MASK: u64 = !(1 << (32 - 1) | 1 << (33 - 1));

/// Sets the calling thread's mask, and gives the old one. libc's own function would hide 32 and 33.
fn set_signal_mask(mask: u64) -> u64 {
    change_signal_mask(libc::SIG_SETMASK, mask).unwrap_or(0)
}

fn change_signal_mask(how: c_int, mask: u64) -> Option<u64> {
    let mut old = 0u64;
    // SAFETY: rt_sigprocmask reads one mask of eight bytes and writes another.
    let result = unsafe {
        syscall4(
            libc::SYS_rt_sigprocmask,
            how as usize,
            (&raw const mask).addr(),
            (&raw mut old).addr(),
            size_of::<u64>(),
        )
    };
    result.is_ok().then_some(old)
}

/// What a thread holds back while it forks: all but what its own instructions raise, which would end it, what collectors of
/// garbage stop threads with and wait for (SIGPWR, SIGXCPU, and SIGRTMIN as the kernel and as libc count), and libc's own.
const HELD_BACK: u64 = {
    let let_through = [
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGSEGV,
        libc::SIGSYS,
        libc::SIGPWR,
        libc::SIGXCPU,
        32,
        33,
        34,
        35,
    ];
    let (mut mask, mut index) = (u64::MAX, 0);
    while index < let_through.len() {
        mask &= !(1 << (let_through[index] - 1));
        index += 1;
    }
    mask
};

/// Holds signals back in the calling thread, and gives the mask as it was; `None` if that may not be done. No handler of the
/// program's may run in a child whose memory is not served yet, nor in a thread that has a fork half done.
pub fn hold_signals_back() -> Option<u64> {
    change_signal_mask(libc::SIG_BLOCK, HELD_BACK)
}

/// Ends [`hold_signals_back`].
pub fn let_signals_come(mask: Option<u64>) {
    if let Some(mask) = mask {
        let _ = change_signal_mask(libc::SIG_SETMASK, mask);
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

fn close_range(first: u32, last: u32, flags: u32) -> Result<(), Errno> {
    // SAFETY: whose descriptors these are is the business of unshare_files_and_close's caller.
    unsafe { syscall4(libc::SYS_close_range, first as usize, last as usize, flags as usize, 0) }?;
    Ok(())
}

/// Descriptors that can be kept by [`unshare_files_and_close`].
pub const KEEP_MAX: usize = 64;

/// Gives the calling thread a file table of its own, with nothing in it but `keep`.
///
/// Other threads' tables are not touched. Descriptors 0, 1 and 2, if not kept, become /dev/null: an
/// agent descriptor with such a number would get whatever somebody prints. For raw threads, which
/// own no descriptors yet; whoever does own one in this thread must keep it.
pub fn unshare_files_and_close(keep: &[RawFd]) -> io::Result<()> {
    let mut sorted = [0u32; KEEP_MAX];
    let Some(sorted) = sorted.get_mut(..keep.len()) else {
        return Err(Errno::INVAL.into());
    };
    for (to, &from) in sorted.iter_mut().zip(keep) {
        *to = u32::try_from(from).map_err(|_| Errno::BADF)?;
    }
    sorted.sort_unstable();

    // The uppermost stretch first, because the kernel does not even copy what is closed while the table
    // is unshared. Closing in a copied table leaves the program's record locks alone: they belong to
    // its table.
    let mut end = u32::MAX;
    let mut flags = libc::CLOSE_RANGE_UNSHARE;
    for &kept in sorted.iter().rev() {
        if kept < end {
            close_range(kept + 1, end, flags)?;
            flags = 0;
        }
        if kept == 0 {
            return Ok(fill_standard_descriptors()?);
        }
        end = end.min(kept - 1);
    }
    close_range(0, end, flags)?;
    Ok(fill_standard_descriptors()?)
}

fn fill_standard_descriptors() -> Result<(), Errno> {
    loop {
        let fd = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).or_else(|_| {
            // No /dev here; an eventfd refuses whatever text is written to it.
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
        })?;
        if std::os::fd::AsRawFd::as_raw_fd(&fd) > 2 {
            return Ok(());
        }
        let _ = fd.into_raw_fd();
    }
}

/// Lets the calling thread run before threads of the program, where that is permitted: they wait for it anyway, or outrun
/// it.
pub fn prefer() {
    let thread = rustix::thread::gettid();
    let _ = rustix::process::setpriority_process(Some(thread), -10);
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
