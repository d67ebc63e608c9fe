//! The userfaultfd of a process, as the engine sees it.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use uswap_system::Supervisor;
use uswap_system::faults::{Call, Faults, Heard, Holes, Message, Progress, Wake};

use crate::mm::pages_of;
use crate::supervisor::ModelSupervisor;
use crate::userfaultfd_ctx::{Mode, Userfault, UserfaultId};
use crate::waits::{Key, Woke};
use crate::world::{World, current};

/// A userfaultfd.
#[derive(Debug)]
pub struct ModelFaults {
    id: UserfaultId,
}

/// A call that handlers hear.
#[derive(Debug, Default)]
pub struct ModelCall {
    is_made: AtomicBool,
}

impl ModelCall {
    pub(crate) fn is_made(&self) -> bool {
        self.is_made.load(SeqCst)
    }
}

impl Call for ModelCall {
    fn new() -> io::Result<Self> {
        Ok(Self::default())
    }

    fn make(&self) {
        let world = current();
        world.point();
        self.is_made.store(true, SeqCst);
        world.wake_all_pollers();
    }

    fn end(&self) {
        self.is_made.store(false, SeqCst);
        current().point();
    }
}

impl ModelFaults {
    fn open(world: &World) -> ModelFaults {
        let process = world.this_process();
        let mut kernel = world.kernel_mut();
        kernel.userfaults.push(Userfault::new(process));
        ModelFaults { id: UserfaultId(kernel.userfaults.len() - 1) }
    }

    /// Which one it is.
    pub fn id(&self) -> UserfaultId {
        self.id
    }
}

impl Faults for ModelFaults {
    type Unavailable = io::Error;
    type Call = ModelCall;
    type Supervisor = ModelSupervisor;

    fn for_program(_device: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let world = current();
        let faults = ModelFaults::open(&world);
        let process = world.this_process();
        world.kernel_mut().process_mut(process).userfault = Some(faults.id);
        Ok(faults)
    }

    fn for_moves(_device: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        Ok(ModelFaults::open(&current()))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn register(&self, start: usize, len: usize) -> io::Result<()> {
        current().register(self.id, start, len, Mode::Missing)
    }

    fn register_as_target(&self, start: usize, len: usize) -> io::Result<()> {
        current().register(self.id, start, len, Mode::Target)
    }

    fn unregister(&self, start: usize, len: usize) -> io::Result<()> {
        current().unregister(self.id, start, len)
    }

    fn move_pages(&self, target: usize, source: usize, len: usize, holes: Holes, wake: Wake) -> Progress {
        current().move_pages(self.id, target, source, len, holes, wake)
    }

    fn copy(&self, target: usize, source: *const u8, len: usize, wake: Wake) -> Progress {
        current().copy(self.id, target, source.addr(), len, wake)
    }

    fn zeropage(&self, start: usize, len: usize, wake: Wake) -> Progress {
        current().zeropage(self.id, start, len, wake)
    }

    fn poison(&self, start: usize, len: usize) -> Progress {
        current().poison(self.id, start, len)
    }

    fn protect(&self, start: usize, len: usize, protect: bool) -> Progress {
        current().write_protect(self.id, start, len, protect)
    }

    fn wake(&self, start: usize, len: usize) -> io::Result<()> {
        let world = current();
        world.point();
        if let Some(pages) = pages_of(start, len) {
            world.wake_range(self.id, &pages);
        }
        Ok(())
    }

    fn is_changing(&self) -> bool {
        let world = current();
        world.point();
        world.kernel_mut().userfaults[self.id.0].is_changing()
    }

    fn is_registered(&self, start: usize, len: usize) -> Option<bool> {
        current().is_registered(self.id, pages_of(start, len))
    }

    fn sees_registered(&self, start: usize, len: usize) -> bool {
        self.is_registered(start, len) == Some(true)
    }

    fn read(&self, messages: &mut [Message]) -> io::Result<usize> {
        Ok(current().read_messages(self.id, messages))
    }

    fn wait(&self, call: &ModelCall, supervisor: &ModelSupervisor, patience: Option<Duration>) -> io::Result<Heard> {
        let world = current();
        world.point();
        let until = patience.map(|patience| world.clock.deadline(patience));
        loop {
            let messages = world.kernel().userfaults[self.id.0].has_messages();
            let heard = Heard { messages, call: call.is_made.load(SeqCst), no_supervisor: supervisor.is_gone() };
            if heard != Heard::default() {
                return Ok(heard);
            }
            if world.block(Key::Poll(self.id), until) == Woke::TimedOut {
                return Ok(Heard::default());
            }
        }
    }
}
