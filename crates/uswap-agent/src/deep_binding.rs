//! Wrappers of dlopen and dlmopen: a library that is opened with RTLD_DEEPBIND finds libc's functions before those of this library, and
//! so does who looks them up in libc itself.
//!
//! Then this library's functions take the places of libc's in libc's own table, before the first is opened so: what its constructors call,
//! and what it needs and opens in turn, is bound right from the start. A library with functions of its own keeps them, for it finds
//! those first.
//!
//! The loader searches for the sake of who calls: these wrappers leave no frame behind, and libc's function sees its caller.

#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use uswap_sys::symbols::Symbols;

use crate::libc_functions::MMAP;
use crate::real::{Real, Wrapper};
use crate::{
    advice, attach, exec, exec_lists, file_calls, file_streams, forks, locks, own_userfaultfds, page_references,
    process_advice, raw_forks, remap, shared_memory, shell, thread_count, threads,
};

static OPEN: Real = Real::new(c"dlopen");
static OPEN_IN: Real = Real::new(c"dlmopen");

/// Those of libc and of this library.
static TABLES: OnceLock<[Symbols; 2]> = OnceLock::new();

/// For the constructor, when the wrappers know where they go on. Not when it is needed: a forked child would wait for ever for a
/// thread that is not there and was just looking for the tables.
pub(crate) fn prepare() {
    let _ = (OPEN.get(), OPEN_IN.get());
    let libcs = MMAP.load(Relaxed) as usize;
    // Not what the name of a wrapper leads to: that may be another library's, in front of this one.
    let own = prepare as *const () as usize;
    // SAFETY: neither library is ever unloaded.
    if let (Some(libc), Some(agent)) = unsafe { (Symbols::of_library_at(libcs), Symbols::of_library_at(own)) } {
        let _ = TABLES.set([libc, agent]);
    }
}

/// As libc's.
///
/// # Safety
/// As for dlopen(3).
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
    naked_asm!(
        "push rdi", "push rsi", "sub rsp, 8", "call {before}", "add rsp, 8", "pop rsi", "pop rdi", "jmp rax",
        before = sym before_dlopen
    )
}

/// As libc's.
///
/// # Safety
/// As for dlmopen(3).
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlmopen(namespace: c_long, file: *const c_char, mode: c_int) -> *mut c_void {
    naked_asm!(
        "push rdi", "push rsi", "push rdx", "mov rdi, rsi", "mov esi, edx", "call {before}", "pop rdx", "pop rsi", "pop rdi",
        "jmp rax",
        before = sym before_dlmopen
    )
}

/// Returns libc's function.
///
/// # Safety
/// As for dlopen(3).
unsafe extern "C" fn before_dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { before(file, mode) };
    OPEN.get()
}

/// As above.
///
/// # Safety
/// As for dlopen(3).
unsafe extern "C" fn before_dlmopen(file: *const c_char, mode: c_int) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { before(file, mode) };
    OPEN_IN.get()
}

/// # Safety
/// `file` is null or a string.
unsafe fn before(file: *const c_char, mode: c_int) {
    let is_deep = mode & libc::RTLD_DEEPBIND != 0;
    // SAFETY: the caller's promise.
    if is_deep || (!file.is_null() && is_libc(unsafe { CStr::from_ptr(file) })) {
        take_places();
    }
}

/// Whether functions of libc are going to be looked up in libc: Python's ctypes and Java's JNA do so.
fn is_libc(file: &CStr) -> bool {
    file.to_bytes().rsplit(|&byte| byte == b'/').next().is_some_and(|name| name.starts_with(b"libc.so"))
}

/// Of libc's functions, in libc's table. No lock is taken, and nothing allocated.
fn take_places() {
    if let Some([libc, agent]) = TABLES.get() {
        libc.replace(wrappers().filter_map(|wrapper| {
            // Where another library comes between, its function is to have the first word, and would find this one again.
            let goes_on_to_libc = wrapper.next.is_none_or(|next| libc.contains(next as usize));
            goes_on_to_libc.then(|| Some((wrapper.name, agent.find(wrapper.name)?))).flatten()
        }));
    }
}

/// All wrappers of functions that a library may call.
fn wrappers() -> impl Iterator<Item = Wrapper> + Clone {
    let of_memory = advice::wrappers()
        .into_iter()
        .chain(process_advice::wrappers())
        .chain(shared_memory::wrappers())
        .chain(remap::wrappers())
        .chain(attach::wrappers())
        .chain(locks::wrappers());
    let of_descriptors = file_calls::wrappers()
        .into_iter()
        .chain(file_streams::wrappers())
        .chain(own_userfaultfds::wrappers())
        .chain(page_references::wrappers());
    let of_processes = forks::wrappers()
        .into_iter()
        .chain(raw_forks::wrappers())
        .chain(threads::wrappers())
        .chain(thread_count::wrappers())
        .chain(exec::wrappers())
        .chain(exec_lists::wrappers())
        .chain(shell::wrappers())
        .chain([OPEN.wrapper(), OPEN_IN.wrapper()]);
    of_memory.chain(of_descriptors).chain(of_processes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libc_is_known_by_its_name() {
        for file in [c"libc.so.6", c"/lib/x86_64-linux-gnu/libc.so.6", c"libc.so"] {
            assert!(is_libc(file), "{file:?}");
        }
        for file in [c"", c"libcrypto.so.3", c"/libc.so.6/", c"./libc.so.d/plugin.so", c"mylibc.so.6"] {
            assert!(!is_libc(file), "{file:?}");
        }
    }
}
