//! Wrappers of libc's functions that open files and change them, and the same calls by libc's `syscall`.
//!
//! Two things are to be known before the kernel does them. A file is opened for direct I/O, by which a device may write to the program's pages
//! themselves, or the kernel writes to them for another process (process_vm_writev). Private memory that is being written to so cannot be moved,
//! and stays. From shared memory a page can be taken all the same, and what is written later would be lost. So where a process does either,
//! no shared memory of its run is swapped from then on: it waits for a moment until that is so. And a file in memory is cut off, or the
//! like ([`named_changes`](crate::named_changes)).

#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use uswap_system::MapShared;

use crate::advice::is_of_the_engine;
use crate::kept_arguments::keeping_arguments;
use crate::named_changes::{is_allocated, is_cut, is_cut_by_path, is_emptied, is_sealed};
use crate::real::Wrapper;
use crate::shared_advice::is_reordered;
use crate::shared_memory::ask_monitor;
use crate::start::POST;

macro_rules! telling_of_calls {
    ($($name:ident $place:ident flags in $flags:literal if [$($test:literal)*] tells $told:ident, $number:literal [$($arguments:literal)*];)*) => {
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
                concat!("test ", $flags, ", 0x4200"),
                "jz 2f",
                keeping_arguments!("call {told}"),
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
                told = sym $told,
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

telling_of_calls! {
    open OPEN flags in "esi" if [] tells opens, 2 [];
    open64 OPEN64 flags in "esi" if [] tells opens, 2 [];
    openat OPENAT flags in "edx" if [] tells opens_at, 257 [];
    openat64 OPENAT64 flags in "edx" if [] tells opens_at, 257 [];
    __open_2 OPEN_2 flags in "esi" if [] tells opens, 2 ["xor edx, edx"];
    __open64_2 OPEN64_2 flags in "esi" if [] tells opens, 2 ["xor edx, edx"];
    __openat_2 OPENAT_2 flags in "edx" if [] tells opens_at, 257 ["xor ecx, ecx"];
    __openat64_2 OPENAT64_2 flags in "edx" if [] tells opens_at, 257 ["xor ecx, ecx"];
    // F_SETFL, F_ADD_SEALS.
    fcntl FCNTL flags in "eax" if ["xor eax, eax" "cmp esi, 4" "cmove eax, edx" "mov r10d, 0x4000" "cmp esi, 1033" "cmove eax, r10d"]
        tells controls, 72 [];
    fcntl64 FCNTL64 flags in "eax" if ["xor eax, eax" "cmp esi, 4" "cmove eax, edx" "mov r10d, 0x4000" "cmp esi, 1033" "cmove eax, r10d"]
        tells controls, 72 [];
    // However it is asked for: the kernel writes to pages of another process as a device does.
    process_vm_writev PROCESS_VM_WRITEV flags in "eax" if ["mov eax, 0x4000"] tells direct_io_begins, 311 [];
    remap_file_pages REMAP_FILE_PAGES flags in "eax" if ["mov eax, 0x4000"] tells is_reordered, 216 [];
    creat CREAT flags in "eax" if ["mov eax, 0x4000"] tells creates, 85 [];
    creat64 CREAT64 flags in "eax" if ["mov eax, 0x4000"] tells creates, 85 [];
    ftruncate FTRUNCATE flags in "eax" if ["mov eax, 0x4000"] tells is_cut, 77 [];
    ftruncate64 FTRUNCATE64 flags in "eax" if ["mov eax, 0x4000"] tells is_cut, 77 [];
    truncate TRUNCATE flags in "eax" if ["mov eax, 0x4000"] tells is_cut_by_path, 76 [];
    truncate64 TRUNCATE64 flags in "eax" if ["mov eax, 0x4000"] tells is_cut_by_path, 76 [];
    fallocate FALLOCATE flags in "eax" if ["mov eax, 0x4000"] tells is_allocated, 285 [];
    fallocate64 FALLOCATE64 flags in "eax" if ["mov eax, 0x4000"] tells is_allocated, 285 [];
    posix_fallocate POSIX_FALLOCATE flags in "eax" if ["mov eax, 0x4000"] tells is_allocated, 285 ["mov rcx, rdx" "mov rdx, rsi" "xor esi, esi"];
    posix_fallocate64 POSIX_FALLOCATE64 flags in "eax" if ["mov eax, 0x4000"] tells is_allocated, 285
        ["mov rcx, rdx" "mov rdx, rsi" "xor esi, esi"];
}

pub(crate) extern "C" fn opens(path: *const c_char, flags: c_int) {
    opens_at(libc::AT_FDCWD, path, flags);
}

extern "C" fn opens_at(directory: c_int, path: *const c_char, flags: c_int) {
    if flags & libc::O_DIRECT != 0 {
        direct_io_begins();
    }
    if flags & libc::O_TRUNC != 0 {
        is_emptied(directory, path);
    }
}

extern "C" fn creates(path: *const c_char) {
    is_emptied(libc::AT_FDCWD, path);
}

extern "C" fn controls(fd: c_int, command: c_int, argument: c_int) {
    match command {
        libc::F_SETFL if argument & libc::O_DIRECT != 0 => direct_io_begins(),
        libc::F_ADD_SEALS => is_sealed(fd),
        _ => {}
    }
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

/// Any of these, by libc's `syscall` with this number and its first arguments.
pub(crate) extern "C" fn asked_by_number(number: c_long, first: usize, second: usize, third: usize) {
    let fd = first as c_int;
    match number {
        libc::SYS_open => opens(first as *const c_char, second as c_int),
        libc::SYS_openat => opens_at(fd, second as *const c_char, third as c_int),
        libc::SYS_process_vm_writev => direct_io_begins(),
        libc::SYS_fcntl => controls(fd, second as c_int, third as c_int),
        // Its record begins with the flags.
        libc::SYS_openat2 if third != 0 && crate::kernel::can_be_read(third) => {
            let is_whole = third.is_multiple_of(4);
            // SAFETY: it can be read, as far as its page goes, and does not lie across two.
            let flags = if is_whole { unsafe { *(third as *const c_int) } } else { libc::O_DIRECT | libc::O_TRUNC };
            opens_at(fd, second as *const c_char, flags);
        }
        libc::SYS_remap_file_pages => is_reordered(first, second),
        libc::SYS_creat => creates(first as *const c_char),
        libc::SYS_ftruncate => is_cut(fd, second as i64),
        libc::SYS_truncate => is_cut_by_path(first as *const c_char, second as i64),
        libc::SYS_fallocate => is_allocated(fd),
        _ => {}
    }
}

const _: () = assert!(libc::O_DIRECT | libc::O_TRUNC == 0x4200 && libc::F_ADD_SEALS == 1033);
