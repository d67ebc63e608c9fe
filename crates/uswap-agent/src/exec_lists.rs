//! The wrappers of exec that take the arguments one by one: they make an array of them, in the registers' order and where
//! the others are already, and go on as those that are given one.

#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int};

use crate::exec::{self, Variables, execv, execve, execvp};
use crate::real::Wrapper;

/// See [`deep_binding`](crate::deep_binding).
pub(crate) fn wrappers() -> [Wrapper; 3] {
    let next =
        |name: &CStr| exec::wrappers().into_iter().find(|wrapper| wrapper.name == name).and_then(|found| found.next);
    [(c"execl", c"execv"), (c"execlp", c"execvp"), (c"execle", c"execve")]
        .map(|(name, array)| Wrapper { name, next: next(array) })
}

/// The first argument stays, the five that follow it are put below the others, on the stack, and the second becomes the
/// address of the whole.
macro_rules! gather_and_call {
    ($function:path) => {
        naked_asm!(
            "pop rax", "push r9", "push r8", "push rcx", "push rdx", "push rsi", "mov rsi, rsp", "push rax",
            "call {function}", "pop rcx", "add rsp, 40", "push rcx", "ret",
            function = sym $function
        )
    };
}

/// As libc's.
///
/// # Safety
/// As for execl(3): strings follow, and a null pointer.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn execl(path: *const c_char, first: *const c_char) -> c_int {
    gather_and_call!(execv)
}

/// As libc's.
///
/// # Safety
/// As for execlp(3): strings follow, and a null pointer.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn execlp(file: *const c_char, first: *const c_char) -> c_int {
    gather_and_call!(execvp)
}

/// As libc's.
///
/// # Safety
/// As for execle(3): strings follow, a null pointer, and an environment.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn execle(path: *const c_char, first: *const c_char) -> c_int {
    gather_and_call!(with_environment_behind)
}

unsafe extern "C" fn with_environment_behind(path: *const c_char, arguments: Variables) -> c_int {
    let mut end = arguments;
    // SAFETY: the caller's promise: a null pointer ends the arguments, and the environment stands behind it.
    unsafe {
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, arguments, end.add(1).cast::<Variables>().read())
    }
}
