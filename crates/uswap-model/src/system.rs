//! [`Model`]: Linux, as the engine asks for it.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use uswap_system::atomic::AtomicU32;
use uswap_system::{Advice, PAGE_SIZE, Scope, System, Waited};

use crate::coverage::Happening;
use crate::faults::ModelFaults;
use crate::host_memory;
use crate::looks::{ModelFootprint, ModelMappings, ModelResidency};
use crate::mm::{is_host, pages_of};
use crate::process::ProcessId;
use crate::pte::Pte;
use crate::supervisor::ModelSupervisor;
use crate::world::{End, current};

/// The model: its state is the [`World`](crate::World) that runs on this thread of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Model;

impl System for Model {
    type Faults = ModelFaults;
    type Residency = ModelResidency;
    type Mappings = ModelMappings;
    type Footprint = ModelFootprint;
    type Supervisor = ModelSupervisor;

    const HAS_IO_URING: bool = false;
    const CHECKS_LOCKS: bool = true;

    fn now() -> Instant {
        current().clock.now()
    }

    fn held_locks<R>(look: impl FnOnce(&Cell<u32>) -> R) -> R {
        let world = current();
        let thread = world.this_thread();
        look(&world.scheduler.threads()[thread.0].held_locks)
    }

    fn cpu_time() -> Duration {
        let world = current();
        let thread = world.this_thread();
        Duration::from_nanos(world.scheduler.threads()[thread.0].cpu_ns)
    }

    fn sleep(duration: Duration) {
        current().sleep(duration);
    }

    fn acquire<G>(attempt: impl FnMut() -> Option<G>, _sleep: impl FnOnce() -> G) -> G {
        current().acquire(attempt)
    }

    fn wait(word: &AtomicU32, _scope: Scope, expected: u32, timeout: Option<Duration>) -> Waited {
        current().futex_wait(word, expected, timeout)
    }

    fn wake(word: &AtomicU32, _scope: Scope, count: u32) {
        current().futex_wake(word, count);
    }

    fn call<R>(call: impl FnOnce() -> R) -> R {
        let world = current();
        world.point();
        let result = call();
        if world.happens(1, 4) {
            // A disk takes its time.
            let us = 1 + world.below(300);
            world.sleep(Duration::from_micros(us));
        }
        result
    }

    fn advise(start: usize, len: usize, advice: Advice) -> io::Result<()> {
        let world = current();
        let pages = pages_of(start, len).ok_or(io::ErrorKind::InvalidInput)?;
        if is_host(pages.start) {
            advise_host(pages, advice);
            return Ok(());
        }
        if advice != Advice::DontNeed && world.refuses(Happening::AdviceRefused) {
            // As where there would be too many mappings.
            return Err(Errno::AGAIN.into());
        }
        let advised = match advice {
            Advice::DontNeed => world.drop_for_the_engine(pages),
            Advice::DontFork => world.keep_from_forks(pages, true),
            Advice::DoFork => world.keep_from_forks(pages, false),
            Advice::NoHugepage => Ok(()),
            Advice::PopulateWrite => world.populate_write(pages),
        };
        advised.map_err(|_| Errno::NOMEM.into())
    }

    fn let_execute(start: usize, len: usize, may_execute: bool) -> bool {
        let world = current();
        world.lock_mappings();
        let Some(pages) = pages_of(start, len) else { return false };
        let mut kernel = world.kernel_mut();
        let hosts = &mut kernel.process_mut(world.this_process()).mm.hosts;
        let host = hosts.iter_mut().find(|host| host.pages().contains(&pages.start));
        host.map(|host| host.let_execute(pages, may_execute)).is_some()
    }

    fn others_may_go_on() {
        let world = current();
        world.point();
        world.stand_still(world.config.late_reads);
    }

    fn unlock_all() {
        let world = current();
        world.lock_mappings();
        for host in &mut world.kernel_mut().process_mut(world.this_process()).mm.hosts {
            host.lock(false);
        }
    }

    fn make_exclusive(page: usize) {
        let world = current();
        world.point();
        let mut kernel = world.kernel_mut();
        let mm = &mut kernel.process_mut(world.this_process()).mm;
        let page = page / PAGE_SIZE;
        let frames = mm.frames.clone();
        let pte = mm.pte(page).with(|found| {
            found.frame = found.frame.filter(|_| !frames.is_had_elsewhere(found));
            (found.is_exclusive, found.is_lazy, found.is_zero_page) = (true, false, false);
        });
        if let Some(found) = pte.page() {
            // It is written to: what is not its own takes a fault.
            mm.faults += u64::from(mm.pte(page) != Pte::Present(found));
            mm.set(page, Pte::Present(found));
        }
    }

    fn reserve_is_whole() -> bool {
        !current().refuses(Happening::ReserveRefused)
    }

    fn refill_reserve() -> bool {
        !current().refuses(Happening::ReserveRefused)
    }

    fn keep_addresses() {}

    fn may_fail(grow: impl FnOnce() -> bool) -> bool {
        !current().refuses(Happening::ReserveRefused) && grow()
    }

    fn addresses_left() -> Option<u64> {
        None
    }

    fn process_id() -> u32 {
        current().this_process().pid()
    }

    fn parent_process_id() -> u32 {
        let world = current();
        let kernel = world.kernel();
        let parent = kernel.process(world.this_process()).parent;
        parent.filter(|&parent| kernel.process(parent).is_alive).map_or(0, ProcessId::pid)
    }

    fn forbid_huge_pages() -> Option<u32> {
        let world = current();
        world.point();
        let mut kernel = world.kernel_mut();
        let forbidden = &mut kernel.process_mut(world.this_process()).mm.no_huge_pages;
        (!std::mem::replace(forbidden, true)).then_some(0)
    }

    fn allow_huge_pages(_: u32) {
        let world = current();
        world.point();
        world.kernel_mut().process_mut(world.this_process()).mm.no_huge_pages = false;
    }

    fn thread_has_ended(thread: u32) -> bool {
        current().has_ended(thread)
    }

    fn is_thread_of_engine(thread: u32) -> bool {
        current().is_of_engine(thread)
    }

    fn program_has_one_thread() -> bool {
        let world = current();
        world.has_had_one_thread(world.this_process())
    }

    /// The world ends a process with the last thread of its program.
    fn end_with_the_program(_threads: &[u32]) {}

    fn parent_is(process: u32) -> bool {
        let world = current();
        let kernel = world.kernel();
        let parent = kernel.process(world.this_process()).parent;
        parent.is_some_and(|ProcessId(index)| {
            kernel.processes[index].id.pid() == process && kernel.processes[index].is_alive
        })
    }

    fn end(why: fmt::Arguments<'_>) -> ! {
        let world = current();
        world.end(End::Ended { process: world.this_process(), why: why.to_string() });
        world.stop_for_ever()
    }

    fn kill_self() -> ! {
        let world = current();
        let process = world.this_process();
        match world.supervisor_is_gone.get() {
            true => world.kill(process),
            false => world.end(End::Killed(process)),
        }
        world.stop_for_ever()
    }
}

/// Of the engine's own memory only what was registered is known; buffers keep their bytes, which nobody reads again.
fn advise_host(pages: std::ops::Range<usize>, advice: Advice) {
    let world = current();
    world.point();
    if advice != Advice::DontNeed {
        return;
    }
    let mut kernel = world.kernel_mut();
    let mm = &mut kernel.process_mut(world.this_process()).mm;
    for page in pages {
        if mm.host(page).is_some() {
            if mm.pte(page) != Pte::Missing {
                host_memory::clear(page);
            }
            mm.set(page, Pte::Missing);
        }
    }
}
