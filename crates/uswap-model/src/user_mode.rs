//! What threads of a simulated program do: accesses and system calls, all of the thread that runs.
//!
//! A right program has no thread that unmaps, moves or discards memory that an unfinished call of another thread is about; each
//! call says what it is about, and [`is_claimed`] tells.

use std::ops::Range;

use crate::mremap::{Place, Refused};
use crate::page_content::Content;
use crate::process::{Claim, ProcessId};
use crate::touch::{Access, Signal};
use crate::violation::Checker;
use crate::vma::Attributes;
use crate::world::{World, current};

/// Reads a page; the oracle compares.
///
/// # Errors
/// The signal that the access gets.
pub fn read(page: usize) -> Result<Content, Signal> {
    current().touch(page, Access::Read)
}

/// Writes a page, whole, and returns what was there.
///
/// # Errors
/// The signal that the access gets.
pub fn write(page: usize, content: Content) -> Result<Content, Signal> {
    current().touch(page, Access::Write(content))
}

/// Whether an unfinished call is about memory of `range`.
pub fn is_claimed(range: &Range<usize>) -> bool {
    let world = current();
    world.kernel().process(world.this_process()).is_claimed(range)
}

/// What a thread has claimed before the call that it is about.
pub struct Claimed(());

impl Claimed {
    /// `ranges` are what the running thread's next call is about until it returns, and `leaving` until that has left. `None`: another
    /// thread's call is about some of it.
    pub fn claim(ranges: &[Range<usize>], leaving: &Range<usize>) -> Option<Claimed> {
        let world = current();
        let (process, thread) = (world.this_process(), world.this_thread());
        let mut kernel = world.kernel_mut();
        let process = kernel.process_mut(process);
        if ranges.iter().chain([leaving]).any(|range| process.is_claimed(range)) {
            return None;
        }
        let claim =
            |range: &Range<usize>, until_changed| Claim { thread, range: range.clone(), until_changed, is_ahead: true };
        let claims = ranges.iter().map(|range| claim(range, false)).chain([claim(leaving, true)]);
        process.claims.extend(claims);
        Some(Claimed(()))
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let world = current();
        let thread = world.this_thread();
        world.kernel_mut().process_mut(world.this_process()).claims.retain(|claim| claim.thread != thread);
    }
}

/// A call that is about `ranges` until it returns, and about `leaving` until that has left.
fn about<T>(world: &World, ranges: &[Range<usize>], leaving: &Range<usize>, call: impl FnOnce() -> T) -> T {
    let (process, thread) = (world.this_process(), world.this_thread());
    let claim =
        |range: &Range<usize>, until_changed| Claim { thread, range: range.clone(), until_changed, is_ahead: false };
    let claims = ranges.iter().map(|range| claim(range, false)).chain([claim(leaving, true)]);
    world.kernel_mut().process_mut(process).claims.extend(claims);
    let result = call();
    world.kernel_mut().process_mut(process).claims.retain(|claim| claim.thread != thread || claim.is_ahead);
    result
}

/// No memory.
const NOTHING: Range<usize> = 0..0;

/// mmap(MAP_FIXED).
pub fn mmap(range: Range<usize>) {
    mmap_as(range, Attributes::PLAIN);
}

/// mmap(MAP_FIXED) of memory that may be executed, for one.
pub fn mmap_as(range: Range<usize>, attributes: Attributes) {
    let world = current();
    about(&world, std::slice::from_ref(&range), &NOTHING, || world.map(range.clone(), attributes));
}

/// munmap.
pub fn munmap(range: Range<usize>) {
    let world = current();
    about(&world, &[], &range, || world.unmap(range.clone()));
}

/// mremap; where the memory is afterwards.
///
/// # Errors
/// As of the call.
pub fn mremap(old: Range<usize>, new_pages: usize, place: Place, stays: bool) -> Result<usize, Refused> {
    let world = current();
    let mut ranges = Vec::new();
    match place {
        Place::Fixed(to) | Place::Anywhere(to) => ranges.push(to..to + new_pages),
        Place::Here => {}
    }
    if stays {
        ranges.push(old.clone());
    }
    about(&world, &ranges, &old, || world.remap(old.clone(), new_pages, place, stays))
}

/// madvise(MADV_DONTNEED), or MADV_FREE with `lazily`. Whether all of the range was mapped.
pub fn discard(range: Range<usize>, lazily: bool) -> bool {
    let world = current();
    about(&world, std::slice::from_ref(&range), &NOTHING, || world.discard(range.clone(), lazily).is_ok())
}

/// madvise(MADV_DONTFORK), or MADV_DOFORK.
pub fn keep_from_forks(range: Range<usize>, kept: bool) {
    let _ = current().keep_from_forks(range, kept);
}

/// mprotect.
pub fn mprotect(range: Range<usize>, read: bool, write: bool, exec: bool) {
    current().protect(range, read, write, exec);
}

/// mlock.
///
/// # Errors
/// The signal that touching the memory gets.
pub fn mlock(range: Range<usize>) -> Result<(), Signal> {
    current().lock_memory(range)
}

/// munlock.
pub fn munlock(range: Range<usize>) {
    current().unlock_memory(range);
}

/// Pins a page for a device, or lets go of it.
pub fn pin(page: usize, is_pinned: bool) {
    let world = current();
    world.point();
    let mut kernel = world.kernel_mut();
    let mm = &mut kernel.process_mut(world.this_process()).mm;
    let pte = mm.pte(page).with(|found| found.is_pinned = is_pinned && found.is_exclusive && !found.is_zero_page);
    if pte.page().is_some() {
        mm.set(page, pte);
    }
}

/// What the kernel does when a thread ends (CLONE_CHILD_CLEARTID): a write for which it takes no message, so that it fails where the
/// page is the engine's to bring.
pub fn clear_tid(page: usize) {
    let world = current();
    world.point();
    let kernel = world.kernel();
    let process = kernel.process(world.this_process());
    let is_mapped = process.mm.vmas.at(page).is_some();
    let is_there = process.mm.pte(page).page().is_some();
    drop(kernel);
    if is_mapped && !is_there {
        world.violate(Checker::ControlBlockStays, format!("page {page:#x} is not there when its thread ends"));
    }
}

/// fork: the child, which has no thread yet.
pub fn fork() -> ProcessId {
    current().fork()
}

/// exit_group.
pub fn exit() -> ! {
    let world = current();
    world.kill(world.this_process());
    world.stop_for_ever()
}
