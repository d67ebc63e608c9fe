//! [`Model`] as what an engine runs on: its threads are threads of the model.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use uswap_engine::ahead;
use uswap_engine::engine::Engine;
use uswap_engine::group::Compressor;
use uswap_engine::host::Host;
use uswap_engine::notices::Notices;
use uswap_engine::staffed::{Staffed, Threads};
use uswap_engine::worker::Worker;
use uswap_system::sync::Word;

use crate::coverage::Happening;
use crate::hooks::environment;
use crate::scheduler::{Kind, ThreadId};
use crate::system::Model;
use crate::tree::Crew;
use crate::world::current;

/// I/O that one thread has in flight at most, and its buffer, in pages.
const BATCH: usize = 32;

const WAITING: u32 = 0;
const GO: u32 = 1;
const END: u32 = 2;

/// What the first handler waits for.
struct Start<H: Host> {
    state: Word<Model>,
    engine: Cell<Option<&'static Engine<H>>>,
    begun: Cell<usize>,
}

/// The engine's threads beside the monitor.
pub struct ModelThreads<H: Host> {
    start: Rc<Start<H>>,
    first: ThreadId,
    has_begun: bool,
}

/// An engine in a process of the model.
pub trait OnModel: Host {
    /// Its threads, in the calling thread's process.
    fn crew() -> Crew;
}

impl OnModel for Model {
    fn crew() -> Crew {
        environment().tree.crew
    }
}

impl Staffed for Model {
    type Threads = ModelThreads<Model>;
}

impl Host for Model {
    fn notices() -> &'static Notices<Model> {
        &environment().notices
    }
}

/// A thread of the engine's in the process of the running one.
fn spawn(name: &'static str, body: impl FnOnce() + 'static) -> ThreadId {
    let world = current();
    world.spawn(world.this_process(), name, Kind::Engine, body)
}

impl<H: OnModel> Threads<H> for ModelThreads<H> {
    fn prepare(compressor: Compressor) -> io::Result<Self> {
        if current().refuses(Happening::ThreadRefused) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let start = Rc::new(Start { state: Word::new(WAITING), engine: Cell::new(None), begun: Cell::new(0) });
        let mut worker = Worker::new::<H>(compressor, BATCH, BATCH)?;
        let seen = start.clone();
        let first = spawn("handler", move || {
            if seen.state.wait_while(WAITING) == GO {
                let engine = seen.engine.get().expect("it is there before the state says so");
                engine.handler_begins(0, &mut worker);
                seen.has_begun();
                loop {
                    engine.handler_turn(&mut worker);
                }
            }
        });
        Ok(ModelThreads { start, first, has_begun: false })
    }

    fn begin(mut self, engine: &'static Engine<H>) -> Vec<u32> {
        self.has_begun = true;
        self.start.engine.set(Some(engine));
        self.start.state.store_and_wake(GO);
        let mut threads = vec![self.first];
        let compressor = engine.member.group.config().compressor;
        let crew = H::crew();
        let worker = || match current().refuses(Happening::ThreadRefused) {
            true => Err(io::Error::from(io::ErrorKind::WouldBlock)),
            false => Worker::new::<H>(compressor, BATCH, BATCH),
        };
        for number in 1..crew.handlers {
            let (Ok(mut worker), seen) = (worker(), self.start.clone()) else { break };
            threads.push(spawn("handler", move || {
                engine.handler_begins(number, &mut worker);
                seen.has_begun();
                loop {
                    engine.handler_turn(&mut worker);
                }
            }));
        }
        for _ in 0..crew.readers {
            let (Ok(mut worker), seen) = (ahead::worker::<H>(compressor), self.start.clone()) else { break };
            threads.push(spawn("reads ahead", move || {
                let mut reader = engine.reader_begins();
                seen.has_begun();
                loop {
                    engine.reader_turn(&mut reader, &mut worker);
                }
            }));
        }
        if crew.has_writer
            && let Ok(mut worker) = worker()
        {
            let seen = self.start.clone();
            threads.push(spawn("writer", move || {
                engine.writer_begins();
                seen.has_begun();
                loop {
                    engine.writer_turn(&mut worker);
                }
            }));
        }
        while self.start.begun.get() < threads.len() {
            current().sleep(std::time::Duration::from_micros(20));
        }
        threads.into_iter().map(ThreadId::tid).collect()
    }
}

impl<H: Host> Start<H> {
    fn has_begun(&self) {
        self.begun.set(self.begun.get() + 1);
    }
}

impl<H: Host> Drop for ModelThreads<H> {
    fn drop(&mut self) {
        if !self.has_begun {
            self.start.state.store_and_wake(END);
        }
    }
}
