//! Wrappers of pthread_create and thrd_create: the engine is told where the kernel writes when the new thread ends.
//!
//! The new thread tells it by itself, before it begins what it was made for: who makes it may find it ended, and the place of its
//! identity freed, as soon as libc's function returns.
//!
//! One that is made by a handler for forks gets the signals that its maker holds back while it forks.

#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

use uswap_engine::host::notices;
use uswap_sys::thread;

use crate::fork_turns::{self, NO_MASK};
use crate::real::{Real, Wrapper};

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type CreateOfC11 = unsafe extern "C" fn(*mut libc::pthread_t, Start, *mut c_void) -> c_int;
type Create = unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;

/// Looked up in the constructor: the loader's lock may be held by a thread that runs the constructor of a library and waits
/// there for a thread that makes another one.
static REAL: Real = Real::new(c"pthread_create");
/// C11's, which calls the former inside of libc (glibc 2.28).
static REAL_OF_C11: Real = Real::new(c"thrd_create");
/// thrd_error of <threads.h>.
const THRD_ERROR: c_int = 2;

/// What a thread that has been made, but has not run yet, is to begin with.
struct Beginning {
    /// The function; 0: the place is free, 1: it is being filled.
    start: AtomicUsize,
    argument: AtomicPtr<c_void>,
    /// See [`fork_turns::mask_before`].
    mask: AtomicU64,
}

/// Threads that may be made at a time and not have run.
const BEGINNINGS: usize = 1024;
static BEGINNING: [Beginning; BEGINNINGS] = [const { Beginning::none() }; BEGINNINGS];

impl Beginning {
    const fn none() -> Beginning {
        Beginning { start: AtomicUsize::new(0), argument: AtomicPtr::new(null_mut()), mask: AtomicU64::new(NO_MASK) }
    }

    fn of(start: Start, argument: *mut c_void) -> Option<&'static Beginning> {
        let place = BEGINNING.iter().find(|place| place.start.compare_exchange(0, 1, AcqRel, Relaxed).is_ok())?;
        place.argument.store(argument, Relaxed);
        place.mask.store(fork_turns::mask_before(), Relaxed);
        place.start.store(start as usize, Release);
        Some(place)
    }

    fn free(&self) {
        self.start.store(0, Release);
    }
}

/// A function and its argument, as two registers.
#[repr(C)]
struct Call {
    start: usize,
    argument: *mut c_void,
}

/// In the new thread.
extern "C" fn begins(place: &'static Beginning) -> Call {
    let call = Call { start: place.start.load(Acquire), argument: place.argument.load(Relaxed) };
    let mask = place.mask.load(Relaxed);
    place.free();
    if mask != NO_MASK {
        thread::begin_with_signals(mask);
    }
    // SAFETY: pthread_self only looks at its own thread.
    notices().control_blocks.keep(unsafe { libc::pthread_self() } as usize);
    call
}

/// What a new thread runs first. It leaves no frame behind: exceptions, cancellation and debuggers see what they would see.
#[unsafe(naked)]
extern "C" fn first(place: *mut c_void) -> *mut c_void {
    naked_asm!(
        "sub rsp, 8",
        "call {begins}",
        "add rsp, 8",
        "mov rdi, rdx",
        "jmp rax",
        begins = sym begins,
    )
}

/// For the constructor: looks libc's function up, and keeps the control block of this first thread, which another may join.
pub(crate) fn prepare() {
    let _ = (REAL.get(), REAL_OF_C11.get());
    // SAFETY: pthread_self only looks at its own thread.
    notices().control_blocks.keep(unsafe { libc::pthread_self() } as usize);
}

/// See [`deep_binding`](crate::deep_binding).
pub(crate) fn wrappers() -> [Wrapper; 2] {
    [REAL.wrapper(), REAL_OF_C11.wrapper()]
}

/// Whether this process's program has never made a thread by libc. libc's own, which it makes for timers and the like, are not seen.
pub(crate) fn were_never_made() -> bool {
    !notices().uses.threads.is_noted()
}

/// As libc's.
///
/// # Safety
/// As for pthread_create(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the symbol is libc's function of this signature, which every glibc has.
    let real = unsafe { std::mem::transmute::<*mut c_void, Create>(REAL.get()) };
    // SAFETY: the caller's promise.
    made_by(start, argument, |start, argument| unsafe { real(thread, attributes, start, argument) })
}

/// As libc's. What the thread begins with returns a number, in the register that an address comes in.
///
/// # Safety
/// As for thrd_create(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thrd_create(thread: *mut libc::pthread_t, start: Start, argument: *mut c_void) -> c_int {
    let real = REAL_OF_C11.get();
    if real.is_null() {
        return THRD_ERROR;
    }
    // SAFETY: the symbol is libc's function of this signature.
    let real = unsafe { std::mem::transmute::<*mut c_void, CreateOfC11>(real) };
    // SAFETY: the caller's promise.
    made_by(start, argument, |start, argument| unsafe { real(thread, start, argument) })
}

/// Has libc's function `real` make a thread; what that answers, 0 for success.
fn made_by(start: Start, argument: *mut c_void, real: impl FnOnce(Start, *mut c_void) -> c_int) -> c_int {
    notices().uses.threads.note();
    match Beginning::of(start, argument) {
        Some(place) => {
            // `first` goes on with what was asked for.
            let result = real(first, std::ptr::from_ref(place).cast_mut().cast());
            if result != 0 {
                place.free();
            }
            result
        }
        // Where so many wait for a CPU, the page of this one is in use.
        None => real(start, argument),
    }
}
