//! The engine of one process: its parts, which its threads share.
//!
//! Each part has its own locks and says what holds of it: [`Memory`], [`Books`], [`Content`], [`Pressure`], [`Forking`], [`Staff`].
//! None knows another. What is done with several of them is written above, in a file for each thing that is done.
//!
//! The order of their locks is that of [`Level`](crate::lock_order::Level).

#![allow(unsafe_code)]

use std::fmt;
use std::io;

pub(crate) use uswap_core::tuning::ROUND_PAGES as BATCH;
use uswap_core::{BLOCK_PAGES, Core, CoreConfig, PAGE_SIZE, tuning};
use uswap_sys::report::Reason;
use uswap_system::Supervisor;
use uswap_system::System;
use uswap_system::faults::Faults;

use crate::areas::Areas;
use crate::books::Books;
use crate::content::{Ancestor, Content};
use crate::forking::Forking;
use crate::group::Counter;
use crate::host::Host;
use crate::lock_order::LockGuard;
use crate::member::Member;
use crate::memory::{self, Mapped, Memory};
use crate::phase::{Entry, Phase};
use crate::post::Post;
use crate::pressure::Pressure;
use crate::staff::Staff;
use crate::zpool::Zpool;

/// Why a process cannot swap.
#[derive(Debug)]
pub enum StartError<E> {
    /// No userfaultfd.
    Uffd(E),
    /// Something else.
    Io(io::Error),
}

/// The engine.
pub struct Engine<H: Host> {
    /// This process in its group.
    pub member: Member<H>,
    pub(crate) memory: Memory<H>,
    pub(crate) books: Books<H>,
    pub(crate) content: Content<H>,
    pub(crate) pressure: Pressure<H>,
    pub(crate) forking: Forking<H>,
    pub(crate) staff: Staff<H>,
}

/// Bytes of addresses that the process may still use (RLIMIT_AS), of which the engine takes a quarter at most: a program that
/// runs under the limit alone should run here, too.
struct AddressSpace(Option<u64>);

impl AddressSpace {
    /// Blocks of frames: an eighth.
    fn at_most(&self, blocks: u32) -> u32 {
        memory::frame_blocks_within(blocks, self.0.map_or(u64::MAX, |left| left / 8))
    }

    /// Bytes for the pool: an eighth.
    fn pool_bytes(&self, wanted: usize) -> usize {
        self.0.map_or(wanted, |left| wanted.min((left / 8) as usize))
    }
}

impl<E> From<io::Error> for StartError<E> {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Why a process of this system cannot swap.
pub type StartErrorOf<H> = StartError<<<H as System>::Faults as Faults>::Unavailable>;

/// A start that failed: who wanted to start gets himself back.
pub(crate) type NotStarted<H> = (Box<Member<H>>, StartErrorOf<H>);

impl<E: fmt::Display> fmt::Display for StartError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Uffd(error) => error.fmt(f),
            StartError::Io(error) => Reason(error).fmt(f),
        }
    }
}

/// Content with which an engine starts: none, or what a fork left to the child.
pub(crate) struct Inheritance {
    pub core: Core,
    pub ancestors: Vec<Ancestor>,
}

impl<H: Host> Engine<H> {
    /// Starts the engine of `member`, who gets himself back if that fails.
    pub(crate) fn start(
        mut member: Member<H>,
        post: &'static Post<H>,
        inheritance: Option<Inheritance>,
    ) -> Result<Self, NotStarted<H>> {
        // What of it is in the child, and where, is to be told before anything is brought in: see `Monitor::take_over`.
        let phase = if inheritance.is_some() { Phase::freezing() } else { Phase::running() };
        match Self::parts(&mut member, inheritance) {
            Ok((memory, books, content, pressure)) => Ok(Engine {
                memory,
                books,
                content,
                pressure,
                forking: Forking::new(phase, post),
                staff: Staff::new(),
                member,
            }),
            Err(error) => Err((Box::new(member), error)),
        }
    }

    /// What may fail of a start.
    fn parts(member: &mut Member<H>, inheritance: Option<Inheritance>) -> Result<Parts<H>, StartErrorOf<H>> {
        let config = member.group.config();
        let limit_bytes = config.memory_limit_bytes;
        let left = AddressSpace(H::addresses_left());
        let uffd = H::Faults::for_program(member.supervisor.device()).map_err(StartError::Uffd)?;
        let trash_uffd = H::Faults::for_moves(member.supervisor.device()).map_err(StartError::Uffd)?;
        let blocks = left.at_most(memory::frame_blocks(limit_bytes / PAGE_SIZE as u64));
        let mapped = Mapped::with(uffd, trash_uffd, blocks, &member.supervisor)?;
        let pool = Zpool::new(left.pool_bytes((limit_bytes as usize).saturating_mul(4)))?;
        let area_slots: Vec<u64> = config.areas.iter().filter(|area| area.present).map(|area| area.slots).collect();
        let (core, ancestors) = match inheritance {
            None => {
                let config = CoreConfig {
                    frame_blocks: mapped.blocks,
                    area_slots,
                    window_max: BLOCK_PAGES as u32,
                    ahead_max: tuning::ahead_pages(config.memory_limit_bytes / PAGE_SIZE as u64),
                    policies: config.policies,
                };
                (Core::new(config), Vec::new())
            }
            Some(Inheritance { mut core, ancestors }) => {
                core.become_child(mapped.blocks);
                (core, ancestors)
            }
        };
        let pressure = Pressure::new()?;
        let content = Content::new(Areas::open(member)?, pool, ancestors);
        Ok((mapped.register()?, Books::new(core), content, pressure))
    }

    /// From here on the process has this engine.
    pub(crate) fn becomes_that_of_process(&'static self) {
        H::notices().set_engine(std::ptr::from_ref(self).cast_mut().cast());
    }

    /// The engine of the calling thread's process, if there is one. In a forked child it is the parent's until the child has its
    /// own.
    pub fn of_process() -> Option<&'static Self> {
        let engine = H::notices().engine_at().cast::<Self>();
        // SAFETY: null, or what `becomes_that_of_process` was given, which lives as long as the process; it is there before the pointer is. That
        // of a parent is taken apart in the child by `Inherited::take`, and nobody keeps a reference to it beyond that.
        unsafe { engine.as_ref() }
    }

    /// A thread of the engine has begun, and has all that it works with.
    pub(crate) fn thread_begins(&self) {
        self.staff.begins();
    }

    /// Waits out a fork that is being prepared, then tells how the books may be used.
    pub(crate) fn enter(&self) -> Entry<'_, H> {
        self.forking.phase.enter()
    }

    /// Whether a fork is under way. Stays as it is while the gate is held.
    pub(crate) fn is_frozen(&self) -> bool {
        self.forking.phase.is_frozen()
    }

    /// Opens the books.
    pub(crate) fn core(&self) -> LockGuard<'_, Core, H> {
        self.books.core()
    }

    pub(crate) fn count(&self, counter: Counter, by: u64) {
        self.member.slot().tally.add(counter, by);
    }

    /// Stops the program: something happened that must not be possible, and a wrong page is worse than a crash.
    pub(crate) fn fatal(&self, args: std::fmt::Arguments<'_>) -> ! {
        H::end(args)
    }

    /// Whether memory for the books is short: then nothing is begun that would make them grow. What is adopted stays so, and
    /// what is in memory stays there, beyond the budget if need be; faults are served from what is set aside.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        if H::reserve_is_whole() {
            return false;
        }
        if self.books.say_out_of_memory() {
            self.member.alarm(format_args!(
                "uswap: process {} gets no more memory for uswap's own books (ulimit -v, ulimit -d, vm.max_map_count): \
                 it may go beyond its budget",
                H::process_id()
            ));
        }
        true
    }
}

type Parts<H> = (Memory<H>, Books<H>, Content<H>, Pressure<H>);
