//! The functions of libc that agent threads call without having been written to, bound to libc's own: those that compilers
//! insert, and those behind Rust's clocks, sleep, files and thread-local variables.
//!
//! A program, or a library that it loads, may put its own `memset` or `clock_gettime` before libc's. Those of sanitizers look
//! into tables of theirs first, and the tables may be swapped out: a handler that called such a function would wait for
//! itself. So what this library calls is defined in it, hidden from everybody else, and goes on to libc's function; until the
//! constructor has asked for that one, a few plain instructions do.
//!
//! Where libc's is a cancellation point it is the kernel that is called: what runs inside of exec or posix_spawn, which are none, must not end
//! the thread because somebody has called pthread_cancel.

#![allow(unsafe_code)]

use std::arch::global_asm;
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::raw_calls::as_libc_answers;

/// libc's `syscall`: see [`raw_calls`](crate::raw_calls).
pub(crate) static SYSCALL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
/// libc's `mmap`: see [`shared_memory`](crate::shared_memory).
pub(crate) static MMAP: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

macro_rules! bound_to_libc {
    ($($name:ident $place:ident [$($plain:literal)*])*) => {
        $(static $place: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

        global_asm!(
            concat!(".globl ", stringify!($name)),
            concat!(".hidden ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @function"),
            concat!(stringify!($name), ":"),
            "mov rax, qword ptr [rip + {place}]",
            "test rax, rax",
            "jz 2f",
            "jmp rax",
            "2:",
            $($plain,)*
            concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
            place = sym $place,
        );)*

        /// Finds libc's functions. Where that fails, the plain instructions go on: slower, but right.
        pub(crate) fn prepare() {
            // SAFETY: the library is loaded, and stays; its name is all that is read.
            let library = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
            if !library.is_null() {
                find(library, "syscall\0", &SYSCALL);
                find(library, "mmap\0", &MMAP);
                $(find(library, concat!(stringify!($name), "\0"), &$place);)*
            }
        }
    };
}

macro_rules! bound_to_the_kernel {
    ($($name:ident [$($plain:literal)*])*) => {
        $(global_asm!(
            concat!(".globl ", stringify!($name)),
            concat!(".hidden ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @function"),
            concat!(stringify!($name), ":"),
            $($plain,)*
            "mov rdi, rax",
            "jmp {answers}",
            concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
            answers = sym as_libc_answers,
        );)*
    };
}

/// glibc's version: 2 and what follows.
pub(crate) fn libc_version() -> (u32, u32) {
    // SAFETY: a string that stays.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    let mut numbers = version.to_str().unwrap_or_default().split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn find(library: *mut c_void, name: &str, place: &AtomicPtr<c_void>) {
    let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else { return };
    // SAFETY: dlsym only reads the name; the handle is dlopen's.
    place.store(unsafe { libc::dlsym(library, name.as_ptr()) }, Relaxed);
}

bound_to_libc! {
    // This library is loaded at the start, so its storage is static: the dynamic thread vector names it from the first
    // moment of each thread. An entry of the vector has two words; the argument is a module and an offset.
    __tls_get_addr TLS_GET_ADDR [
        "mov rax, qword ptr fs:[8]"
        "mov rdx, qword ptr [rdi]"
        "shl rdx, 4"
        "mov rax, qword ptr [rax + rdx]"
        "add rax, qword ptr [rdi + 8]"
        "ret"
    ]
    memcpy MEMCPY ["mov rax, rdi" "mov rcx, rdx" "rep movsb" "ret"]
    memmove MEMMOVE [
        "mov rax, rdi"
        "mov rcx, rdx"
        "mov r8, rdi"
        "sub r8, rsi"
        "cmp r8, rdx"
        "jb 3f"
        "rep movsb"
        "ret"
        "3:"
        "lea rdi, [rdi + rdx - 1]"
        "lea rsi, [rsi + rdx - 1]"
        "std"
        "rep movsb"
        "cld"
        "ret"
    ]
    memset MEMSET ["mov r8, rdi" "mov eax, esi" "mov rcx, rdx" "rep stosb" "mov rax, r8" "ret"]
    memcmp MEMCMP [
        "xor eax, eax"
        "3:"
        "test rdx, rdx"
        "jz 4f"
        "movzx eax, byte ptr [rdi]"
        "movzx ecx, byte ptr [rsi]"
        "inc rdi"
        "inc rsi"
        "dec rdx"
        "sub eax, ecx"
        "jz 3b"
        "4:"
        "ret"
    ]
    bcmp BCMP ["jmp memcmp"]
    strlen STRLEN ["xor eax, eax" "3:" "cmp byte ptr [rdi + rax], 0" "je 4f" "inc rax" "jmp 3b" "4:" "ret"]
    clock_gettime CLOCK_GETTIME ["mov eax, 228" "syscall" "ret"]
    munmap MUNMAP ["mov eax, 11" "syscall" "ret"]
}

bound_to_the_kernel! {
    read ["mov eax, 0" "syscall"]
    write ["mov eax, 1" "syscall"]
    close ["mov eax, 3" "syscall"]
}

// It answers with the error itself.
global_asm!(
    ".globl clock_nanosleep",
    ".hidden clock_nanosleep",
    ".type clock_nanosleep, @function",
    "clock_nanosleep:",
    "mov r10, rcx",
    "mov eax, 230",
    "syscall",
    "neg eax",
    "ret",
    ".size clock_nanosleep, . - clock_nanosleep",
);
