//! Wrappers of libc's functions that open files, but are no system calls: streams, and what posix_spawn is to open for its child.
//!
//! What is to be known of such a file is what [`file_calls`](crate::file_calls) tells. They leave no frame behind: a thread may be cancelled
//! in libc's function.

#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::{c_char, c_int, c_void};

use libc::FILE;

use crate::file_calls::opens;
use crate::kept_arguments::keeping_arguments;
use crate::named_changes::{is_allocated, is_emptied};
use crate::real::{Real, Wrapper};

macro_rules! telling_of_streams {
    ($($name:ident $real:ident $symbol:literal tells $told:ident;)*) => {
        $(static $real: Real = Real::new($symbol);

        /// As libc's.
        ///
        /// # Safety
        /// As for libc's.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            extern "C" fn find() -> *mut c_void {
                $real.get()
            }
            naked_asm!(
                keeping_arguments!("call {told}", "call {find}"),
                "jmp rax",
                told = sym $told,
                find = sym find,
            )
        })*

        /// Looks up libc's functions.
        pub(crate) fn prepare() {
            $($real.get();)*
        }

        /// See [`deep_binding`](crate::deep_binding).
        pub(crate) fn wrappers() -> impl IntoIterator<Item = Wrapper, IntoIter: Clone> {
            [$($real.wrapper()),*]
        }
    };
}

telling_of_streams! {
    fopen FOPEN c"fopen" tells stream_opens;
    fopen64 FOPEN64 c"fopen64" tells stream_opens;
    freopen FREOPEN c"freopen" tells stream_reopens;
    freopen64 FREOPEN64 c"freopen64" tells stream_reopens;
    posix_spawn_file_actions_addopen ADD_OPEN c"posix_spawn_file_actions_addopen" tells child_opens;
}

extern "C" fn stream_opens(path: *const c_char, mode: *const c_char) {
    if empties(mode) {
        is_emptied(libc::AT_FDCWD, path);
    }
}

extern "C" fn stream_reopens(path: *const c_char, mode: *const c_char, stream: *mut FILE) {
    if !path.is_null() {
        stream_opens(path, mode);
    } else if empties(mode) && !stream.is_null() {
        // The file that it is of is opened anew.
        // SAFETY: a stream, as of who calls freopen.
        is_allocated(unsafe { libc::fileno(stream) });
    }
}

/// Told of when it is asked for: nothing of ours runs in the child before it is done.
extern "C" fn child_opens(_actions: *mut c_void, _fd: c_int, path: *const c_char, flags: c_int) {
    opens(path, flags);
}

/// Whether what is opened in that mode of fopen(3) is made empty.
fn empties(mode: *const c_char) -> bool {
    // SAFETY: a string, as of who calls libc's function: it has a first byte.
    !mode.is_null() && unsafe { *mode } == b'w' as c_char
}
