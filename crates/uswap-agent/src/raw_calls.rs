//! What libc's `syscall` is called for, but for [forks](crate::raw_forks): it goes on to libc's function as it came, or to the wrapper
//! of the function for that call.
//!
//! mremap and discards that come this way give way to faults, as those by libc's functions do.

#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::{c_int, c_long};

use uswap_engine::host::notices;

use crate::advice::{is_of_the_engine, madvise};
use crate::attach::shmat;
use crate::kept_arguments::keeping_arguments;
use crate::libc_functions::SYSCALL;
use crate::process_advice::process_madvise;
use crate::shared_memory::mmap;

/// Hands a call on as it came: to libc's function, or to the kernel until that has been found.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn hand_on() -> c_long {
    naked_asm!(
        "mov rax, qword ptr [rip + {libcs}]",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, qword ptr [rsp + 8]",
        "syscall",
        "mov rdi, rax",
        "cmp rax, -4095",
        "jae {answers}",
        "ret",
        libcs = sym SYSCALL,
        answers = sym as_libc_answers,
    )
}

/// What syscall(2) comes to where the kernel says `answer`.
pub(crate) extern "C" fn as_libc_answers(answer: c_long) -> c_long {
    if !(-4095..0).contains(&answer) {
        return answer;
    }
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = -answer as c_int };
    -1
}

/// madvise, if the advice is one that the wrapper looks at: 4, 8, 9, 10, 11, 18, 24, 102.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn advise() -> c_long {
    naked_asm!(
        "cmp ecx, 4",
        "je 2f",
        "cmp ecx, 8",
        "je 2f",
        "cmp ecx, 9",
        "je 2f",
        "cmp ecx, 10",
        "je 2f",
        "cmp ecx, 11",
        "je 2f",
        "cmp ecx, 14",
        "je 2f",
        "cmp ecx, 25",
        "je 2f",
        "cmp ecx, 18",
        "je 2f",
        "cmp ecx, 24",
        "je 2f",
        "cmp ecx, 102",
        "jne {hand_on}",
        "2:",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov edx, ecx",
        "sub rsp, 8",
        "call {madvise}",
        "add rsp, 8",
        "movsxd rax, eax",
        "ret",
        hand_on = sym hand_on,
        madvise = sym madvise,
    )
}

/// process_madvise.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn advise_process() -> c_long {
    naked_asm!(
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov ecx, r8d",
        "mov r8d, r9d",
        "jmp {process_madvise}",
        process_madvise = sym process_madvise,
    )
}

/// A call of which another function is told first, with the number and the arguments as they came, and which then goes on as it came.
macro_rules! telling {
    ($(#[$doc:meta])* $name:ident tells $told:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name() -> c_long {
            naked_asm!(
                keeping_arguments!("call {told}"),
                "jmp {hand_on}",
                told = sym $told,
                hand_on = sym hand_on,
            )
        }
    };
}

telling! {
    /// open, openat, openat2 and fcntl, which may begin direct I/O, process_vm_writev, which is like it, and what changes files in memory or maps them anew.
    open tells crate::file_calls::asked_by_number
}

telling! {
    /// mremap.
    remap tells gives_way
}

/// shmat, if it takes the place of other memory (SHM_REMAP).
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn attach() -> c_long {
    naked_asm!(
        "test ecx, 0x4000",
        "jz {hand_on}",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov edx, ecx",
        "jmp {shmat}",
        hand_on = sym hand_on,
        shmat = sym shmat,
    )
}

/// mmap, if it is not of private and anonymous memory.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn map() -> c_long {
    naked_asm!(
        "mov eax, r8d",
        "and eax, 0x21",
        "cmp eax, 0x20",
        "je {hand_on}",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov ecx, r8d",
        "mov r8d, r9d",
        "mov r9, qword ptr [rsp + 8]",
        "jmp {mmap}",
        hand_on = sym hand_on,
        mmap = sym mmap,
    )
}

/// Before an mremap.
extern "C" fn gives_way() {
    if notices().giving_way.is_asked_for() && !is_of_the_engine() {
        notices().giving_way.give_way();
    }
}
