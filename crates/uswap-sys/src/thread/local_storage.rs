//! Thread-local storage of a raw thread: what libc and std expect below and at a thread's pointer.
//!
//! [`prepare`] takes a template once; [`Storage`] is laid out and filled in for each thread.

use std::arch::asm;
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use super::PAGE;
use crate::futex::{RawLock, SharedWord};
use crate::private_memory::{self, Purpose};

/// Room for thread-local storage below the control block, and more if the template needs more.
const TLS_ROOM: usize = 64 << 10;
/// Room for glibc's `struct pthread` (2.3 KiB in 2.36), of which a raw thread fills in the beginning.
const CONTROL_ROOM: usize = 2 * PAGE;

// Offsets in the control block: `tcbhead_t` is ABI (compilers emit them), `tid` has stood at this
// place in every glibc for x86_64 since 2.4.
const TCB_SELF: usize = 0x00;
const TCB_DTV: usize = 0x08;
const TCB_PTHREAD: usize = 0x10;
const TCB_MULTIPLE_THREADS: usize = 0x18;
const TCB_STACK_GUARD: usize = 0x28;
const TCB_POINTER_GUARD: usize = 0x30;
const TCB_TID: usize = 0x2d0;
/// Ours, past the end of `struct pthread`.
const TCB_ALIVE: usize = CONTROL_ROOM - 64;

/// An entry of glibc's dynamic thread vector. Entry -1 has the vector's length in `value`, entry 0 its
/// generation, entry n the address of module n's storage.
#[repr(C)]
#[derive(Clone, Copy)]
struct DtvEntry {
    value: usize,
    to_free: usize,
}
const DTV_UNALLOCATED: usize = usize::MAX;
/// Larger than any generation: glibc then never tries to bring the vector up to date, which would mean
/// malloc. Its comparison is "is the vector older than the module".
const DTV_GENERATION: usize = usize::MAX >> 1;

/// What new threads' storage is copied from. Written once by [`prepare`], then constant.
struct Template {
    /// 0: not made.
    ready: AtomicU32,
    lock: RawLock,
    /// `image_bytes` of initial thread-local storage, the last byte of which lies just below the
    /// thread pointer.
    image: AtomicPtr<u8>,
    image_bytes: AtomicUsize,
    /// For each module id up to `modules`: how far below the thread pointer its storage begins; 0 if
    /// it has no static storage.
    offsets: AtomicPtr<usize>,
    modules: AtomicUsize,
}

static TEMPLATE: Template = Template {
    ready: AtomicU32::new(0),
    lock: RawLock::new(),
    image: AtomicPtr::new(std::ptr::null_mut()),
    image_bytes: AtomicUsize::new(0),
    offsets: AtomicPtr::new(std::ptr::null_mut()),
    modules: AtomicUsize::new(0),
};

/// Takes the template of thread-local storage, if that has not been done.
///
/// Call it in the agent's constructor, in a libc thread: it asks the loader, whose lock another thread
/// may hold during a fork. [`spawn`] calls it otherwise.
pub fn prepare() -> io::Result<()> {
    if TEMPLATE.ready.load(Ordering::Acquire) != 0 {
        return Ok(());
    }
    TEMPLATE.lock.lock();
    let result = if TEMPLATE.ready.load(Ordering::Acquire) == 0 { take_template() } else { Ok(()) };
    TEMPLATE.lock.unlock();
    result
}

/// What one walk over the loaded modules finds out.
struct Survey {
    thread_pointer: usize,
    /// Bytes below the thread pointer that hold static storage.
    image_bytes: usize,
    last_module: usize,
    /// Our own module, if its storage is not static: (id, size, alignment).
    own_dynamic: Option<(usize, usize, usize)>,
    /// Where to write, in the second walk.
    image_end: *mut u8,
    offsets: *mut usize,
}

unsafe extern "C" {
    fn __ctype_b_loc() -> *mut usize;
    fn __ctype_tolower_loc() -> *mut usize;
    fn __ctype_toupper_loc() -> *mut usize;
}

fn take_template() -> io::Result<()> {
    let thread_pointer = thread_pointer();
    let mut survey = Survey {
        thread_pointer,
        image_bytes: 0,
        last_module: 0,
        own_dynamic: None,
        image_end: std::ptr::null_mut(),
        offsets: std::ptr::null_mut(),
    };
    // 1. How large is it all?
    // SAFETY: look_at_module is a callback of dl_iterate_phdr, and `survey` its argument, which
    // outlives the walk.
    unsafe { libc::dl_iterate_phdr(Some(look_at_module), (&raw mut survey).cast()) };
    if let Some((_, size, align)) = survey.own_dynamic {
        survey.image_bytes = (survey.image_bytes + size).next_multiple_of(align.max(64));
    }
    let image_bytes = survey.image_bytes.next_multiple_of(PAGE);

    // 2. Copy.
    let image = private_memory::map(image_bytes.max(PAGE), Purpose::Stack)?;
    let offsets = private_memory::map((survey.last_module + 1) * 8, Purpose::Stack)?;
    survey.image_end = image.as_ptr().wrapping_add(image_bytes);
    survey.offsets = offsets.as_ptr().cast();
    let own_offset = survey.image_bytes;
    // SAFETY: as above; both mappings are large enough for what the first walk counted. A module that
    // another thread loads in between is not static, or has a higher id, and is passed over.
    unsafe { libc::dl_iterate_phdr(Some(look_at_module), (&raw mut survey).cast()) };
    if let Some((id, ..)) = survey.own_dynamic {
        // SAFETY: `id` is at most last_module.
        unsafe { *survey.offsets.add(id) = own_offset };
    }

    // 3. What libc sets up in each thread by itself: the tables behind isalpha() and its kin. They are
    // found relative to the thread pointer, and are the same for all threads.
    for table in [__ctype_b_loc, __ctype_tolower_loc, __ctype_toupper_loc] {
        // SAFETY: these functions have no conditions; they give the address of this thread's pointer.
        let own = unsafe { table() };
        let below = thread_pointer.wrapping_sub(own.addr());
        if (8..=image_bytes).contains(&below) {
            // SAFETY: inside the image, aligned like the original; `own` is a live thread-local.
            unsafe { survey.image_end.sub(below).cast::<usize>().write(*own) };
        }
    }

    TEMPLATE.image.store(image.into_raw().0, Ordering::Relaxed);
    TEMPLATE.image_bytes.store(image_bytes, Ordering::Relaxed);
    TEMPLATE.offsets.store(offsets.into_raw().0.cast(), Ordering::Relaxed);
    TEMPLATE.modules.store(survey.last_module, Ordering::Relaxed);
    TEMPLATE.ready.store(1, Ordering::Release);
    Ok(())
}

/// Measures one module in the first walk, and copies its image in the second.
///
/// # Safety
/// Called by dl_iterate_phdr; `data` is a Survey whose pointers, if set, are good for its sizes.
unsafe extern "C" fn look_at_module(info: *mut libc::dl_phdr_info, info_size: usize, data: *mut c_void) -> c_int {
    // SAFETY: by this function's contract, and nobody else has the survey meanwhile.
    let (info, survey) = unsafe { (&*info, &mut *data.cast::<Survey>()) };
    let id = info.dlpi_tls_modid;
    if info_size < size_of::<libc::dl_phdr_info>() || id == 0 || info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader gives that many headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let Some(storage) = headers.iter().find(|h| h.p_type == libc::PT_TLS) else {
        return 0;
    };
    let size = storage.p_memsz as usize;
    let first_walk = survey.offsets.is_null();

    let below = survey.thread_pointer.wrapping_sub(info.dlpi_tls_data.addr());
    let is_static = !info.dlpi_tls_data.is_null()
        && below >= size
        && below <= 1 << 20
        // SAFETY: the vector belongs to this thread, and the loader has just looked up entry `id` in
        // it to give us dlpi_tls_data, so that entry exists. Storage that is not static has an
        // allocation to free.
        && unsafe { (*own_dtv().add(id)).to_free } == 0;
    let here = (look_at_module as *const ()).addr();
    let is_ours = headers.iter().any(|h| {
        let start = (info.dlpi_addr as usize).wrapping_add(h.p_vaddr as usize);
        h.p_type == libc::PT_LOAD && start <= here && here - start < h.p_memsz as usize
    });
    if !is_static && !is_ours {
        return 0;
    }
    if first_walk {
        survey.last_module = survey.last_module.max(id);
        if is_static {
            survey.image_bytes = survey.image_bytes.max(below);
        } else {
            survey.own_dynamic = Some((id, size, storage.p_align as usize));
        }
        return 0;
    }
    if id > survey.last_module || (is_static && below > survey.image_bytes) {
        return 0;
    }
    let below = if is_static { below } else { survey.image_bytes };
    let image = (info.dlpi_addr as usize).wrapping_add(storage.p_vaddr as usize);
    // SAFETY: `image` is the module's initial image, mapped as long as the module is loaded, which the
    // loader's lock assures here. The target has `below` >= size bytes up to the image's end. `offsets`
    // has last_module + 1 entries.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::with_exposed_provenance::<u8>(image),
            survey.image_end.sub(below),
            storage.p_filesz as usize,
        );
        *survey.offsets.add(id) = below;
    }
    0
}

fn thread_pointer() -> usize {
    let value;
    // SAFETY: fs:0 holds the thread pointer itself, by the ABI; reading it changes nothing.
    unsafe {
        asm!("mov {}, fs:[0]", out(reg) value, options(nostack, preserves_flags, readonly));
    }
    value
}

/// A word of the calling thread's control block.
fn control_word<const OFFSET: usize>() -> usize {
    let value;
    // SAFETY: the control block reaches at least as far as `tid`; reading it changes nothing.
    unsafe {
        asm!("mov {}, fs:[{}]", out(reg) value, const OFFSET,
            options(nostack, preserves_flags, readonly));
    }
    value
}

/// The calling thread's id, as its control block has it.
#[cfg(test)]
pub(super) fn thread_id() -> u32 {
    control_word::<TCB_TID>() as u32
}

fn own_dtv() -> *const DtvEntry {
    std::ptr::with_exposed_provenance(control_word::<TCB_DTV>())
}

/// Bytes of a thread's storage, from below: thread-local storage, the control block, the dynamic thread vector.
pub(super) struct Storage {
    image_bytes: usize,
    modules: usize,
    /// From the beginning to the control block, which is where the thread pointer leads.
    below: usize,
    /// All of it.
    pub bytes: usize,
}

/// What the kernel and others are told of a thread's storage.
pub(super) struct ControlBlock {
    pub thread_pointer: *mut u8,
    pub tid: *mut AtomicU32,
    pub alive: *mut SharedWord,
}

impl Storage {
    /// As the template has it, which has been taken.
    pub fn of_template() -> Storage {
        let image_bytes = TEMPLATE.image_bytes.load(Ordering::Relaxed);
        let modules = TEMPLATE.modules.load(Ordering::Relaxed);
        let below = image_bytes.max(TLS_ROOM).next_multiple_of(PAGE);
        // Two entries ahead of the first module's, and one to spare: the loader's comparison with the
        // length is by "less than".
        let vector = ((modules + 3) * size_of::<DtvEntry>()).next_multiple_of(PAGE);
        Storage { image_bytes, modules, below, bytes: below + CONTROL_ROOM + vector }
    }

    /// Fills storage, control block and vector in, for a thread that does not exist yet.
    ///
    /// # Safety
    /// `bytes` bytes of zeros from `base` on, which is page-aligned, are the thread's alone, and stay so as long as it lives.
    pub unsafe fn fill(&self, base: *mut u8) -> ControlBlock {
        let Storage { image_bytes, modules, below, .. } = *self;
        // SAFETY: all writes are inside the caller's memory, apart from each other as laid out in `of_template`, and aligned.
        // The template is complete: its sizes are known.
        unsafe {
            let tp = base.add(below);
            std::ptr::copy_nonoverlapping(TEMPLATE.image.load(Ordering::Relaxed), tp.sub(image_bytes), image_bytes);
            let dtv = tp.add(CONTROL_ROOM).cast::<DtvEntry>().add(1);
            dtv.sub(1).write(DtvEntry { value: modules + 1, to_free: 0 });
            dtv.write(DtvEntry { value: DTV_GENERATION, to_free: 0 });
            let offsets = TEMPLATE.offsets.load(Ordering::Relaxed);
            for id in 1..=modules + 1 {
                let below = if id <= modules { *offsets.add(id) } else { 0 };
                let value = match below {
                    0 => DTV_UNALLOCATED,
                    _ => tp.addr() - below,
                };
                dtv.add(id).write(DtvEntry { value, to_free: 0 });
            }
            let word = |offset: usize, value: usize| tp.add(offset).cast::<usize>().write(value);
            word(TCB_SELF, tp.expose_provenance());
            word(TCB_DTV, dtv.expose_provenance());
            word(TCB_PTHREAD, tp.addr());
            word(TCB_MULTIPLE_THREADS, 1);
            word(TCB_STACK_GUARD, control_word::<TCB_STACK_GUARD>());
            word(TCB_POINTER_GUARD, control_word::<TCB_POINTER_GUARD>());
            let alive = tp.add(TCB_ALIVE).cast::<SharedWord>();
            alive.write(SharedWord::new(1));
            ControlBlock { thread_pointer: tp, tid: tp.add(TCB_TID).cast(), alive }
        }
    }
}
