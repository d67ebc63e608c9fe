//! Wrappers of vmsplice, setsockopt and what sends: the program gives pages of its memory to a pipe or a socket, or is about to.
//! The engine is told before it happens.
//!
//! A send with MSG_ZEROCOPY counts by itself: its socket may have the option from a process that did not run under uswap's
//! eyes, or from before an exec.

#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::{c_int, c_uint, c_void};

use uswap_engine::page_references;

use crate::kept_arguments::keeping_arguments;
use crate::real::{Real, Wrapper};

static VMSPLICE: Real = Real::new(c"vmsplice");
static SETSOCKOPT: Real = Real::new(c"setsockopt");

/// As libc's.
///
/// # Safety
/// As for vmsplice(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmsplice(fd: c_int, pieces: *const libc::iovec, count: usize, flags: c_uint) -> isize {
    type Vmsplice = unsafe extern "C" fn(c_int, *const libc::iovec, usize, c_uint) -> isize;
    page_references::note();
    // SAFETY: the symbol is libc's function of this signature, which every glibc has.
    let real = unsafe { std::mem::transmute::<*mut c_void, Vmsplice>(VMSPLICE.get()) };
    // SAFETY: the caller's promise.
    unsafe { real(fd, pieces, count, flags) }
}

/// As libc's.
///
/// # Safety
/// As for setsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    // For sends that go round libc: without SO_ZEROCOPY, those with MSG_ZEROCOPY are plain ones. And TLS by the kernel, which sends
    // from the pages themselves.
    if matches!((level, name), (libc::SOL_SOCKET, libc::SO_ZEROCOPY) | (libc::IPPROTO_TCP, libc::TCP_ULP)) {
        page_references::note();
    }
    type Setsockopt = unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, libc::socklen_t) -> c_int;
    // SAFETY: null, or the next function of this name and signature: a library's, or libc's.
    match unsafe { std::mem::transmute::<*mut c_void, Option<Setsockopt>>(SETSOCKOPT.known()) } {
        // SAFETY: the caller's promise.
        Some(real) => unsafe { real(fd, level, name, value, len) },
        // Before the agent has started.
        // SAFETY: the caller's promise; libc's function is this system call, and sets errno as it does.
        None => unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, name, value, len) as c_int },
    }
}

/// Defines wrappers that look at one register, the flags of the send, and go on to libc's function with all that they were given.
/// They leave no frame behind: these functions are points of cancellation.
macro_rules! sends {
    ($($(#[doc = $doc:literal])+ $name:ident = $real:literal, $place:ident, flags in $flags:literal)*) => {
        $(static $place: Real = Real::new($real);

        $(#[doc = $doc])+
        ///
        /// # Safety
        /// As for the function of libc.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() -> isize {
            naked_asm!(
                concat!("test ", $flags, ", 0x4000000"), // MSG_ZEROCOPY
                "jnz 3f",
                "mov rax, qword ptr [rip + {real} + {address}]",
                "test rax, rax",
                "jz 3f",
                "jmp rax",
                "3:",
                keeping_arguments!("lea rdi, [rip + {real}]", concat!("mov esi, ", $flags), "call {begins}"),
                "jmp rax",
                real = sym $place,
                address = const Real::ADDRESS,
                begins = sym send_begins,
            )
        })*

        /// Looks libc's functions up: handlers of signals send, too.
        pub(crate) fn prepare() {
            let _ = (VMSPLICE.get(), SETSOCKOPT.get());
            $(let _ = $place.get();)*
        }

        /// See [`deep_binding`](crate::deep_binding).
        pub(crate) fn wrappers() -> impl IntoIterator<Item = Wrapper, IntoIter: Clone> {
            [VMSPLICE.wrapper(), SETSOCKOPT.wrapper(), $($place.wrapper()),*]
        }
    };
}

sends! {
    /// As libc's.
    send = c"send", SEND, flags in "ecx"
    /// As libc's.
    sendto = c"sendto", SENDTO, flags in "ecx"
    /// As libc's.
    sendmsg = c"sendmsg", SENDMSG, flags in "edx"
    /// As libc's.
    sendmmsg = c"sendmmsg", SENDMMSG, flags in "ecx"
}

/// Gives libc's function.
extern "C" fn send_begins(real: &'static Real, flags: c_int) -> *mut c_void {
    if flags & libc::MSG_ZEROCOPY != 0 {
        page_references::note();
    }
    real.get()
}
