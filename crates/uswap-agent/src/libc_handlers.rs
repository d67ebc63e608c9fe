//! Where libc has the list of handlers for forks.
//!
//! It goes through the list in a forked child to find ours, by which the child gets its memory served. The first 48 handlers lie in
//! libc's own data, which is never swapped out; with more, the list moves to libc's heap, and what is swapped out there would read
//! as zeros: no handler would be called, and the child would go on without its memory. So the list is touched before a fork.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::*};

use uswap_sys::PAGE_SIZE;

use crate::libc_functions::libc_version;

/// Handlers that libc has room for in its own data (`fork_handler_list`, a dynarray).
const IN_PLACE: usize = 48;
/// Bytes of a handler: three functions and whose they are; since glibc 2.36 with a number.
const BYTES: usize = 4 * size_of::<usize>();
const BYTES_NUMBERED: usize = BYTES + size_of::<u64>();

type Handler = unsafe extern "C" fn();

/// The head of a dynarray of libc's, before the room for its first elements.
#[repr(C)]
struct Head {
    used: usize,
    allocated: usize,
    array: usize,
}

/// Address of the list's head, or 0.
static HEAD: AtomicUsize = AtomicUsize::new(0);
/// How many handlers have been registered.
static REGISTERED: AtomicUsize = AtomicUsize::new(0);

/// One more has been registered; `first` are the functions of the first.
pub(crate) fn count(first: [Handler; 3]) {
    // While it still is where it can be known by.
    if REGISTERED.fetch_add(1, AcqRel) + 1 == IN_PLACE / 2 {
        HEAD.store(find(first).unwrap_or(0), Release);
    }
}

/// Brings the list in, if it is in libc's heap.
pub(crate) fn touch() {
    let head = HEAD.load(Acquire) as *const Head;
    if head.is_null() {
        return;
    }
    // SAFETY: libc's data, found by `find`. Since glibc 2.36 a thread may register more handlers meanwhile, which moves the list within
    // the heap: what it leaves can be read still, for no list is so long that it would be a mapping of its own.
    let Head { used, array, .. } = unsafe { head.read_volatile() };
    if array == head as usize + size_of::<Head>() {
        return;
    }
    let bytes = if is_numbered() { BYTES_NUMBERED } else { BYTES };
    for page in (array / PAGE_SIZE..=(array + (used * bytes).max(1) - 1) / PAGE_SIZE).map(|page| page * PAGE_SIZE) {
        // SAFETY: the list is `used` handlers long.
        let _ = unsafe { (page.max(array) as *const u8).read_volatile() };
    }
}

fn is_numbered() -> bool {
    libc_version() >= (2, 36)
}

/// Looks for the list by its first handler in the data of libc.
fn find(first: [Handler; 3]) -> Option<usize> {
    let mut search = Search { first: first.map(|handler| handler as usize), found: None };
    // SAFETY: the function is called with the pointer, and only meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

struct Search {
    first: [usize; 3],
    found: Option<usize>,
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: as `find` gives it, and the loader's own description.
    let (search, info) = unsafe { (&mut *search.cast::<Search>(), &*info) };
    // Any function of libc's serves.
    let within_libc = libc::gnu_get_libc_version as *const () as usize;
    // SAFETY: the loader's own description.
    let segments = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let loaded = || segments.iter().filter(|segment| segment.p_type == libc::PT_LOAD);
    let range = |segment: &libc::Elf64_Phdr| {
        let start = (info.dlpi_addr + segment.p_vaddr) as usize;
        start..start + segment.p_memsz as usize
    };
    if !loaded().any(|segment| range(segment).contains(&within_libc)) {
        return 0;
    }
    for segment in loaded().filter(|segment| segment.p_flags & libc::PF_W != 0) {
        let range = range(segment);
        let words =
            range.start.next_multiple_of(size_of::<usize>())..range.end.saturating_sub(size_of::<Head>() + BYTES);
        for at in words.step_by(size_of::<usize>()) {
            let in_place = at + size_of::<Head>();
            // SAFETY: words of a writable segment that is loaded. The part that is protected after relocation can be read still.
            let (head, handler) =
                unsafe { ((at as *const Head).read_volatile(), (in_place as *const [usize; 3]).read_volatile()) };
            if handler == search.first && head.array == in_place && (1..=head.allocated).contains(&head.used) {
                search.found = Some(at);
                return 1;
            }
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forks::{__register_atfork, HANDLERS};

    unsafe extern "C" fn nothing() {}

    #[test]
    fn the_list_is_known_when_it_has_moved() {
        for _ in 0..IN_PLACE + IN_PLACE / 2 {
            // SAFETY: a function that does nothing, and is never unloaded.
            let error = unsafe { __register_atfork(Some(nothing), Some(nothing), Some(nothing), std::ptr::null_mut()) };
            assert_eq!(error, 0);
        }
        let head = HEAD.load(Acquire);
        assert_ne!(head, 0);
        // SAFETY: libc's list, to which nobody adds now.
        let Head { used, allocated, array } = unsafe { (head as *const Head).read_volatile() };
        assert!(used > IN_PLACE && used <= allocated && array != head + size_of::<Head>(), "{used} of {allocated}");
        let bytes = if is_numbered() { BYTES_NUMBERED } else { BYTES };
        for (at, functions) in [(0, HANDLERS), (used - 1, [nothing as Handler; 3])] {
            // SAFETY: as above.
            let handler = unsafe { ((array + at * bytes) as *const [Handler; 3]).read_volatile() };
            assert!(handler == functions, "handler {at}");
        }
        touch();
    }
}
