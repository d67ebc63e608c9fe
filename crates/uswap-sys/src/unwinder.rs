//! The unwinder, linked in.
//!
//! The standard library asks for libgcc_s, which would be one more library to map and relocate at the start of every
//! program of a group, and of the command. The same functions are in libgcc_eh, an archive; once one of them is used here,
//! all come from there, and the linker, which takes libraries only as needed, leaves libgcc_s out.

#![allow(unsafe_code)]

#[link(name = "gcc_eh")]
unsafe extern "C" {
    fn _Unwind_Backtrace();
}

#[used]
static KEPT: unsafe extern "C" fn() = _Unwind_Backtrace;
