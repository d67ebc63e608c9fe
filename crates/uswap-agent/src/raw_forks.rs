//! Forks that go round libc's `fork`, as far as they come by libc's `syscall` and `clone`.
//!
//! Nobody follows such a fork, and adopted memory carries MADV_DONTFORK so that its child does not have it at all. But while
//! another thread forks by libc that mark is off: a child made in that moment would read zeros where pages are swapped out. So
//! these forks and those of libc exclude each other. System calls in a program's own machine code are not seen.

#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::{c_int, c_long, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use uswap_engine::host::notices;

use crate::fork_turns;
use crate::forks::{self, RawFork};
use crate::kept_arguments::keeping_arguments;
use crate::kernel;
use crate::libc_functions::SYSCALL;
use crate::own_userfaultfds;
use crate::raw_calls::{self, as_libc_answers, hand_on};
use crate::real::{Real, Wrapper};

type Begin = extern "C" fn(*mut c_void) -> c_int;
type Clone = unsafe extern "C" fn(
    Option<Begin>,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;

static CLONE: Real = Real::new(c"clone");
static FORK: Real = Real::new(c"_Fork");

/// Looks up libc's functions.
pub(crate) fn prepare() {
    let _ = CLONE.get();
    let _ = FORK.get();
}

/// See [`deep_binding`](crate::deep_binding).
pub(crate) fn wrappers() -> [Wrapper; 3] {
    [CLONE.wrapper(), FORK.wrapper(), Wrapper::named("syscall\0", &SYSCALL)]
}

/// As libc's. A call that is not looked at goes on to libc's function as it came; until that has been found, and for forks,
/// it is made here.
///
/// It is visible to programs and yet protected: what the agent itself calls is this one, whatever a program calls so.
///
/// # Safety
/// As for syscall(2).
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall(number: c_long) -> c_long {
    naked_asm!(
        ".protected syscall",
        "cmp rdi, 56", // clone
        "je {fork}",
        "cmp rdi, 57", // fork
        "je {fork}",
        "cmp rdi, 435", // clone3
        "je {fork}",
        "cmp rdi, 28", // madvise
        "je {advise}",
        "cmp rdi, 9", // mmap
        "je {map}",
        "cmp rdi, 25", // mremap
        "je {remap}",
        "cmp rdi, 30", // shmat
        "je {attach}",
        "cmp rdi, 440", // process_madvise
        "je {advise_process}",
        "cmp rdi, 323", // userfaultfd
        "je {userfaultfd}",
        "cmp rdi, 2", // open
        "je {open}",
        "cmp rdi, 257", // openat
        "je {open}",
        "cmp rdi, 437", // openat2
        "je {open}",
        "cmp rdi, 72", // fcntl
        "je {open}",
        "cmp rdi, 311", // process_vm_writev
        "je {open}",
        "cmp rdi, 76", // truncate
        "je {open}",
        "cmp rdi, 77", // ftruncate
        "je {open}",
        "cmp rdi, 85", // creat
        "je {open}",
        "cmp rdi, 216", // remap_file_pages
        "je {open}",
        "cmp rdi, 285", // fallocate
        "je {open}",
        "jmp {hand_on}",
        fork = sym make_child,
        advise = sym raw_calls::advise,
        map = sym raw_calls::map,
        remap = sym raw_calls::remap,
        attach = sym raw_calls::attach,
        advise_process = sym raw_calls::advise_process,
        userfaultfd = sym own_userfaultfds::made,
        open = sym raw_calls::open,
        hand_on = sym hand_on,
    )
}

/// What may be a fork: all that it is given is kept, and nothing of the caller's is touched, for the child may go on elsewhere.
#[unsafe(naked)]
unsafe extern "C" fn make_child() -> c_long {
    naked_asm!(
        // The mask, below the stack's end when all is as it was.
        keeping_arguments!("call {begins}", "mov qword ptr [rsp], rdx"),
        "cmp al, {goes_on}",
        "je {hand_on}",
        "cmp al, {refused}",
        "je {fails}",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, qword ptr [rsp + 8]",
        "syscall",
        "test rax, rax",
        "jz {in_child}",
        "mov rdi, rax",
        "mov rsi, qword ptr [rsp - 56]",
        "jmp {is_over}",
        begins = sym raw_fork_begins,
        in_child = sym raw_child,
        is_over = sym raw_fork_is_over,
        hand_on = sym hand_on,
        fails = sym raw_fork_fails,
        goes_on = const forks::RAW_GOES_ON,
        refused = const forks::RAW_REFUSED,
    )
}

/// By this system call, whose first argument is `first`. What shares the memory of its maker is no fork, nor is what the kernel
/// cannot read.
extern "C" fn raw_fork_begins(number: c_long, first: usize) -> RawFork {
    let flags = match number {
        libc::SYS_clone => first as u64,
        // SAFETY: it can be read, and the flags come first.
        libc::SYS_clone3 if kernel::can_be_read(first) => unsafe { (first as *const u64).read_unaligned() },
        libc::SYS_clone3 => libc::CLONE_VM as u64,
        _ => 0,
    };
    if shares_memory(flags) {
        return RawFork { answer: forks::RAW_GOES_ON, mask: fork_turns::NO_MASK };
    }
    forks::raw_fork_begins(flags & libc::CLONE_VFORK as u64 != 0)
}

/// Whether what is made with these flags has its maker's memory, which is noted where that one does not wait for it.
fn shares_memory(flags: u64) -> bool {
    let shares = flags & libc::CLONE_VM as u64 != 0;
    if shares && flags & libc::CLONE_VFORK as u64 == 0 {
        notices().uses.threads.note();
    }
    shares
}

/// In the parent: `answer` is the kernel's.
extern "C" fn raw_fork_is_over(answer: c_long, mask: u64) -> c_long {
    fork_turns::let_go_raw(mask);
    as_libc_answers(answer)
}

/// In the child, as [`fork_turns::begin_in_raw_child`]: no stack is touched but to go back, and nothing that a function keeps.
#[unsafe(naked)]
unsafe extern "C" fn raw_child() -> c_long {
    naked_asm!(
        "mov rax, qword ptr [rip + {mark}]",
        "test rax, rax",
        "jz 2f",
        "mov ecx, dword ptr [rip + {turn} + 4]",
        "mov dword ptr [rax], ecx",
        "2:",
        "cmp qword ptr [rip + {mask}], {none}",
        "je 3f",
        "mov eax, 14", // rt_sigprocmask
        "mov edi, 2",  // SIG_SETMASK
        "lea rsi, [rip + {mask}]",
        "xor edx, edx",
        "mov r10d, 8",
        "syscall",
        "3:",
        "xor eax, eax",
        "ret",
        mark = sym fork_turns::MARK,
        turn = sym fork_turns::TURN,
        mask = sym fork_turns::MASK,
        none = const fork_turns::NO_MASK as i64,
    )
}

/// As fork(2) says: try again.
extern "C" fn raw_fork_fails() -> c_long {
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = libc::EAGAIN };
    -1
}

/// Runs `fork`, which is told whether the child [begins by itself](fork_turns::begin_in_raw_child), while libc does not fork.
fn beside_no_other(sleeps: bool, fork: impl FnOnce(bool) -> c_int) -> c_int {
    let raw = forks::raw_fork_begins(sleeps);
    match raw.answer {
        forks::RAW_REFUSED => raw_fork_fails() as c_int,
        forks::RAW_EXCLUDES => {
            let child = fork(true);
            // SAFETY: errno is this thread's own, here and below.
            let errno = unsafe { *libc::__errno_location() };
            match child {
                0 => fork_turns::begin_in_raw_child(),
                _ => fork_turns::let_go_raw(raw.mask),
            }
            // SAFETY: as above.
            unsafe { *libc::__errno_location() = errno };
            child
        }
        _ => fork(false),
    }
}

/// As libc's, which runs no handlers.
///
/// # Safety
/// As for _Fork(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> c_int {
    // SAFETY: the symbol is libc's function of this signature, or null.
    let Some(real) =
        (unsafe { std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn() -> c_int>>(FORK.get()) })
    else {
        // SAFETY: errno is this thread's own.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
        return -1;
    };
    // SAFETY: the caller's promise.
    beside_no_other(false, |_| unsafe { real() })
}

/// As libc's, whose last three arguments are there only if the flags say so: a caller that leaves them out leaves registers and
/// stack as they were.
///
/// # Safety
/// As for clone(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    begin: Option<Begin>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: *mut c_void,
    tls: *mut c_void,
    child_tid: *mut c_void,
) -> c_int {
    // SAFETY: the symbol is libc's function of this signature, which every libc has.
    let real = unsafe { std::mem::transmute::<*mut c_void, Clone>(CLONE.get()) };
    let fork = |excludes: bool| {
        let (begin, argument) = match begin {
            Some(begin) if excludes => {
                BEGIN.store(begin as *mut c_void, Relaxed);
                ARGUMENT.store(argument, Relaxed);
                (Some(begins_in_child as Begin), null_mut())
            }
            _ => (begin, argument),
        };
        // SAFETY: the caller's promise.
        unsafe { real(begin, stack, flags, argument, parent_tid, tls, child_tid) }
    };
    if shares_memory(flags as u64) { fork(false) } else { beside_no_other(flags & libc::CLONE_VFORK != 0, fork) }
}

/// What the child that is being made begins with, and its argument.
static BEGIN: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
/// See `BEGIN`.
static ARGUMENT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

extern "C" fn begins_in_child(_: *mut c_void) -> c_int {
    fork_turns::begin_in_raw_child();
    // SAFETY: written by who made this child, before it was made and while nobody else made one.
    let begin = unsafe { std::mem::transmute::<*mut c_void, Begin>(BEGIN.load(Relaxed)) };
    begin(ARGUMENT.load(Relaxed))
}
