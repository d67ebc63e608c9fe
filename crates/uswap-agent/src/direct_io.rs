//! Wrappers of open, fcntl and process_vm_writev, and those of libc's `syscall`: a file is opened for direct I/O, by which a device may
//! write to the program's pages themselves, or the kernel does so for another process.
//!
//! Private memory that is being written to so cannot be moved, and stays. From shared memory a page can be taken all the same, and what
//! is written later would be lost. So where a process does either, no shared memory of its run is swapped from then on: it
//! waits for a moment until that is so.

#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::{CStr, c_int, c_long, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use uswap_system::MapShared;

use crate::advice::is_of_the_engine;
use crate::real::Wrapper;
use crate::shared_memory::ask_monitor;
use crate::start::POST;

macro_rules! noting_direct_io {
    ($($name:ident $place:ident flags in $flags:literal if [$($test:literal)*], $number:literal [$($arguments:literal)*];)*) => {
        $(static $place: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

        /// As libc's.
        ///
        /// # Safety
        /// As for libc's.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                $($test,)*
                concat!("test ", $flags, ", 0x4000"),
                "jz 2f",
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "call {begins}",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "2:",
                "mov rax, qword ptr [rip + {place}]",
                "test rax, rax",
                "jz 3f",
                "jmp rax",
                // Before the agent has started.
                "3:",
                $($arguments,)*
                concat!("mov eax, ", $number),
                "mov r10, rcx",
                "syscall",
                "mov rdi, rax",
                "jmp {answers}",
                begins = sym direct_io_begins,
                place = sym $place,
                answers = sym crate::raw_calls::as_libc_answers,
            )
        })*

        /// Looks up libc's functions.
        pub(crate) fn prepare() {
            $(find(concat!(stringify!($name), "\0"), &$place);)*
        }

        /// See [`deep_binding`](crate::deep_binding).
        pub(crate) fn wrappers() -> impl IntoIterator<Item = Wrapper, IntoIter: Clone> {
            [$(Wrapper::named(concat!(stringify!($name), "\0"), &$place)),*]
        }
    };
}

fn find(name: &str, place: &AtomicPtr<c_void>) {
    let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else { return };
    // SAFETY: dlsym only reads the name.
    place.store(unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }, Relaxed);
}

noting_direct_io! {
    open OPEN flags in "esi" if [], 2 [];
    open64 OPEN64 flags in "esi" if [], 2 [];
    openat OPENAT flags in "edx" if [], 257 [];
    openat64 OPENAT64 flags in "edx" if [], 257 [];
    __open_2 OPEN_2 flags in "esi" if [], 2 ["xor edx, edx"];
    __open64_2 OPEN64_2 flags in "esi" if [], 2 ["xor edx, edx"];
    __openat_2 OPENAT_2 flags in "edx" if [], 257 ["xor ecx, ecx"];
    __openat64_2 OPENAT64_2 flags in "edx" if [], 257 ["xor ecx, ecx"];
    // F_SETFL.
    fcntl FCNTL flags in "eax" if ["xor eax, eax" "cmp esi, 4" "cmove eax, edx"], 72 [];
    fcntl64 FCNTL64 flags in "eax" if ["xor eax, eax" "cmp esi, 4" "cmove eax, edx"], 72 [];
    // However it is asked for: the kernel writes to pages of another process as a device does.
    process_vm_writev PROCESS_VM_WRITEV flags in "eax" if ["mov eax, 0x4000"], 311 [];
}

/// The thread that asks is about to do direct I/O.
extern "C" fn direct_io_begins() {
    if !crate::forks::is_member() || POST.shared_mappings.direct_io.is_noted() || is_of_the_engine() {
        return;
    }
    if ask_monitor(MapShared::DIRECT_IO) == Some(0) {
        POST.shared_mappings.direct_io.note();
    }
}

/// The same, by libc's `syscall` with this number and its first arguments.
pub(crate) extern "C" fn asked_by_number(number: c_long, _first: usize, second: usize, third: usize) {
    let flags = match number {
        libc::SYS_open => second,
        libc::SYS_openat => third,
        libc::SYS_process_vm_writev => libc::O_DIRECT as usize,
        libc::SYS_fcntl if second as c_int == libc::F_SETFL => third,
        // Its record begins with the flags.
        libc::SYS_openat2 if third != 0 && crate::kernel::can_be_read(third) => {
            // SAFETY: it can be read, as far as its page goes, and does not lie across two.
            if third.is_multiple_of(4) { unsafe { *(third as *const u32) as usize } } else { libc::O_DIRECT as usize }
        }
        _ => 0,
    };
    if flags & libc::O_DIRECT as usize != 0 {
        direct_io_begins();
    }
}

const _: c_int = libc::O_DIRECT - 0x4000;
