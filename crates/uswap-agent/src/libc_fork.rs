//! What libc touches in a forked child before any handler of ours can run there.
//!
//! The child gets its userfaultfd from our handler; until then a page that is swapped out would read as zeros there. So
//! what libc goes through by then is brought in before the fork, after reclaim has come to rest: the locks of the open
//! streams, and the control blocks of all threads, ended ones included, with their thread-specific data.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::sync::OnceLock;

use uswap_sys::PAGE_SIZE;

/// Threads beyond which a list is taken for broken.
const THREADS_MAX: usize = 1 << 17;
/// Blocks of thread-specific data of one thread.
const SPECIFIC_BLOCKS: usize = 32;
/// Bytes of one such block: 32 pairs of words.
const SPECIFIC_BYTES: usize = 512;

unsafe extern "C" {
    static _IO_list_all: *const c_void;
    fn _IO_list_lock();
    fn _IO_list_unlock();
}

/// libc resets the lock of every open stream in the child of a program with threads.
pub(crate) fn touch_streams() {
    /// Offsets in `struct _IO_FILE`, which is ABI: the next stream, and the stream's lock. At its start there are flags, which
    /// may lie on another page.
    const CHAIN: usize = 104;
    const LOCK: usize = 136;
    // SAFETY: libc takes the same lock around its own walks, and a fork takes it after this handler has run.
    unsafe { _IO_list_lock() };
    // SAFETY: the list is ours to read while its lock is held; links and locks lie at these offsets.
    unsafe {
        let mut stream = (&raw const _IO_list_all).read_volatile().cast::<u8>();
        while !stream.is_null() {
            let _ = stream.read_volatile();
            let lock = stream.add(LOCK).cast::<*const u8>().read_volatile();
            if !lock.is_null() {
                let _ = lock.read_volatile();
            }
            stream = stream.add(CHAIN).cast::<*const u8>().read_volatile();
        }
        _IO_list_unlock();
    }
}

/// Where libc has its threads, as it tells debuggers (libthread_db).
struct Layout {
    /// Addresses of the heads of the lists: threads in use, with stacks of their own, ended ones.
    heads: [usize; 3],
    /// Of the links in a control block.
    links: usize,
    /// Bytes of a control block.
    size: usize,
    /// Of the array of thread-specific data in a control block.
    specific: usize,
    /// Address of libc's note whether there is only one thread (glibc 2.32).
    single: Option<usize>,
}

impl Layout {
    fn find() -> Option<Layout> {
        let rtld = symbol(c"_rtld_global")?;
        let used = rtld + field(c"_thread_db_rtld_global__dl_stack_used")?;
        let user = rtld + field(c"_thread_db_rtld_global__dl_stack_user")?;
        Some(Layout {
            // No name tells the list of ended threads, whose stacks wait for the next; it has always come last.
            heads: [used, user, used.max(user) + 2 * size_of::<usize>()],
            links: field(c"_thread_db_pthread_list")?,
            // SAFETY: the symbol is a 32-bit number.
            size: unsafe { *(symbol(c"_thread_db_sizeof_pthread")? as *const u32) } as usize,
            specific: field(c"_thread_db_pthread_specific")?,
            single: symbol(c"__libc_single_threaded"),
        })
    }

    /// Whether nobody changes the lists meanwhile: a thread that has been joined by now, or detached, may be at it still, so there
    /// must never have been one. Then what is in the lists is there, and no system call is needed that a seccomp filter may not
    /// allow.
    fn is_still(&self) -> bool {
        // SAFETY: libc's variable, a char.
        let is_single = self.single.is_some_and(|single| unsafe { (single as *const u8).read_volatile() } != 0);
        is_single && crate::threads::were_never_made()
    }

    /// Reads a value that may not be there.
    fn read<T: Default + Copy>(&self, address: usize) -> Option<T> {
        match self.is_still() {
            // SAFETY: only the lists' own pointers are followed, and they are right.
            true => Some(unsafe { (address as *const T).read_volatile() }),
            false => read_if_mapped(address),
        }
    }
}

fn symbol(name: &CStr) -> Option<usize> {
    // SAFETY: dlsym only reads the name.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address as usize)
}

/// Offset of a field that libc describes to debuggers: bits of an element, number of elements, offset in bytes.
fn field(name: &CStr) -> Option<usize> {
    // SAFETY: the symbol is an array of three 32-bit numbers.
    Some(unsafe { *(symbol(name)? as *const [u32; 3]) }[2] as usize)
}

static LAYOUT: OnceLock<Option<Layout>> = OnceLock::new();

/// Looks up where libc has its threads, while nothing is swapped out.
pub(crate) fn prepare() {
    let _ = LAYOUT.set(Layout::find());
}

/// libc goes through all threads in the child, and through those that have ended.
pub(crate) fn touch_threads() {
    let Some(Some(layout)) = LAYOUT.get() else { return };
    // SAFETY: errno is this thread's own, here and below.
    let errno = unsafe { *libc::__errno_location() };
    for head in layout.heads {
        touch_list(layout, head);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Other threads may change the list meanwhile, so nothing is taken for granted: memory that is gone ends the walk.
fn touch_list(layout: &Layout, head: usize) {
    let Some([first, last]) = layout.read::<[usize; 2]>(head) else { return };
    let linked_back = |at: usize| layout.read::<[usize; 2]>(at).is_some_and(|[_, previous]| previous == head);
    if first == 0 || last == 0 || !linked_back(first) {
        return;
    }
    let mut at = first;
    for _ in 0..THREADS_MAX {
        if at == head {
            return;
        }
        let block = at - layout.links;
        for page in (block / PAGE_SIZE..=(block + layout.size) / PAGE_SIZE).map(|page| page * PAGE_SIZE) {
            let _ = layout.read::<u8>(page.max(block));
        }
        // The first block of thread-specific data lies in the control block.
        for pointer in 1..SPECIFIC_BLOCKS {
            match layout.read::<usize>(block + layout.specific + pointer * size_of::<usize>()) {
                Some(data) if data != 0 => {
                    let _ = layout.read::<u8>(data);
                    let _ = layout.read::<u8>(data + SPECIFIC_BYTES - 1);
                }
                _ => {}
            }
        }
        match layout.read::<[usize; 2]>(at) {
            Some([next, _]) if next != 0 => at = next,
            _ => return,
        }
    }
}

/// Reads a value that may not be there.
fn read_if_mapped<T: Default + Copy>(address: usize) -> Option<T> {
    let mut value = T::default();
    let local = libc::iovec { iov_base: (&raw mut value).cast(), iov_len: size_of::<T>() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: size_of::<T>() };
    // SAFETY: the kernel writes no more than the value's bytes into it, and answers with an error where nothing is mapped.
    let count = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    if count == size_of::<T>() as isize {
        return Some(value);
    }
    // SAFETY: errno is this thread's own.
    let forbidden = matches!(unsafe { *libc::__errno_location() }, libc::EPERM | libc::ENOSYS);
    let page = address / PAGE_SIZE * PAGE_SIZE;
    let end = (address + size_of::<T>()).next_multiple_of(PAGE_SIZE);
    // A container may forbid this call to a process even for its own memory: then the page is asked for first.
    // SAFETY: the advice changes no content.
    if !forbidden || unsafe { libc::madvise(page as *mut c_void, end - page, libc::MADV_POPULATE_READ) } != 0 {
        return None;
    }
    // SAFETY: mapped and readable a moment ago. What is read is the list of a libc that only frees a control block long
    // after it has left the list.
    Some(unsafe { (address as *const T).read_volatile() })
}
