//! The start of an engine: when memory becomes scarce, or in the child of a process that had one.

use std::io;

use uswap_core::tuning::{self, ROUND_PAGES as BATCH};

use super::{Monitor, Stage};
use crate::engine::{Engine, Inheritance, NotStarted, StartErrorOf};
use crate::fork_advice;
use crate::member::Member;
use crate::staffed::{Staffed, Threads};
use crate::worker::Worker;

impl<H: Staffed> Monitor<H> {
    /// Whether there is an engine; starts it.
    pub fn ready(&mut self) -> bool {
        self.engine().is_some() || self.start_engine()
    }

    pub(super) fn start_engine(&mut self) -> bool {
        if self.looks.not_started.is_some_and(|(since, pause)| H::since(since) < pause) {
            return false;
        }
        let Stage::Watching(member) = std::mem::replace(&mut self.stage, Stage::Changing) else {
            unreachable!("only a watching monitor starts an engine");
        };
        // Kept for the message, should the engine not start.
        match self.swap_with(member, None) {
            Ok(_) => {
                H::give_back_stack();
                true
            }
            Err((member, error)) => {
                // It may be for want of something that others have for a moment.
                let pause = self.looks.not_started.map_or(tuning::TRY_AGAIN_AFTER, |(_, pause)| 2 * pause);
                if self.looks.not_started.is_none() {
                    member.alarm(format_args!("uswap: process {} cannot swap: {}", H::process_id(), error));
                }
                self.looks.not_started = Some((H::now(), pause.min(tuning::TRY_AGAIN_WITHIN)));
                self.stage = Stage::Watching(*member);
                false
            }
        }
    }

    /// In a forked child: an engine that goes on with what the parent left.
    pub(crate) fn start_child_engine(
        &mut self,
        inheritance: Inheritance,
    ) -> Result<&'static Engine<H>, StartErrorOf<H>> {
        let Stage::Watching(member) = std::mem::replace(&mut self.stage, Stage::Changing) else {
            unreachable!("a child's monitor starts its engine first of all");
        };
        self.swap_with(member, Some(inheritance)).map_err(|(_, error)| error)
    }

    /// Goes on with an engine, and starts its handlers. What this thread needs for it is made only now: most programs
    /// never come near their budget.
    pub(super) fn swap_with(
        &mut self,
        member: Member<H>,
        inheritance: Option<Inheritance>,
    ) -> Result<&'static Engine<H>, NotStarted<H>> {
        let (worker, first) = match Self::prepare_to_swap(&member) {
            Ok(prepared) => prepared,
            Err(error) => return Err((Box::new(member), error.into())),
        };
        let engine: &'static Engine<H> = Box::leak(Box::new(Engine::start(member, self.post, inheritance)?));
        engine.becomes_that_of_process();
        fork_advice::engine_begins();
        self.stage = Stage::Swapping { engine, worker };
        let usage = self.usage();
        self.set_meter(&usage, &usage.watermarks());
        self.threads = first.begin(engine);
        self.worker().reclaiming.writes = !engine.staff.writer.is_present();
        Ok(engine)
    }

    /// What swapping cannot begin without: memory set aside, and one thread that serves faults.
    pub(super) fn prepare_to_swap(member: &Member<H>) -> io::Result<(Box<Worker>, H::Threads)> {
        if !H::refill_reserve() {
            return Err(rustix::io::Errno::NOMEM.into());
        }
        H::keep_addresses();
        let compressor = member.group.config().compressor;
        let mut worker = Box::new(Worker::new::<H>(compressor, BATCH, BATCH)?);
        worker.reclaiming.collects_busy = true;
        Ok((worker, H::Threads::prepare(compressor)?))
    }
}
