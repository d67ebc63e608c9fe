//! The supervisor, as the engine of a process knows it.

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use uswap_system::Supervisor;

use crate::world;

/// The connection of one process. It hands areas out, each once.
#[derive(Default)]
pub struct ModelSupervisor {
    areas: Vec<Option<OwnedFd>>,
}

impl ModelSupervisor {
    /// One that has these areas to give.
    pub fn with_areas(areas: impl IntoIterator<Item = OwnedFd>) -> ModelSupervisor {
        ModelSupervisor { areas: areas.into_iter().map(Some).collect() }
    }
}

impl Supervisor for ModelSupervisor {
    fn keep(&self, _descriptor: BorrowedFd<'_>) -> io::Result<()> {
        if self.is_gone() { Err(io::Error::from(io::ErrorKind::BrokenPipe)) } else { Ok(()) }
    }

    fn is_gone(&self) -> bool {
        world::current().supervisor_is_gone.get()
    }

    fn say(&self, line: fmt::Arguments<'_>) {
        world::current().say(line);
    }

    fn device(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn take_area(&mut self, index: usize) -> Option<OwnedFd> {
        self.areas.get_mut(index)?.take()
    }
}
