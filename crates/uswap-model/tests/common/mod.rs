//! A world with one process and one thread that serves its faults in the simplest way.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::cell::RefCell;
use std::rc::Rc;

use uswap_model::process::ProcessId;
use uswap_model::scheduler::Kind;
use uswap_model::{Chance, End, Model, Outcome, World, WorldConfig};
use uswap_system::faults::{Call, Faults, Message, Wake};
use uswap_system::{PAGE_SIZE, System};

pub type ModelFaults = <Model as System>::Faults;
pub type Log = Rc<RefCell<Vec<Message>>>;

/// A plain world of this seed.
pub fn world(seed: u64) -> Rc<World> {
    World::with(WorldConfig::plain(), Chance::new(seed))
}

/// Runs `body` as the only thread of a process, and says what came of it.
pub fn run_alone(seed: u64, body: impl FnOnce() + 'static) -> Outcome {
    let world = world(seed);
    let process = world.new_process();
    world.spawn(process, "program", Kind::Program, body);
    world.run()
}

/// As [`run_alone`], and nothing may go wrong.
pub fn rests(seed: u64, body: impl FnOnce() + 'static) {
    assert_eq!(run_alone(seed, body).end, End::Rest, "seed {seed}");
}

/// Reads messages until the world ends: faults get zeros, events are noted.
pub fn serve(faults: &ModelFaults, log: &Log) -> ! {
    let call = <ModelFaults as Faults>::Call::new().expect("there is one");
    let supervisor = uswap_model::supervisor::ModelSupervisor::default();
    let mut pending: Vec<Message> = Vec::new();
    loop {
        let patience = (!pending.is_empty()).then_some(std::time::Duration::from_micros(50));
        faults.wait(&call, &supervisor, patience).expect("it is a userfaultfd");
        let mut messages = [Message::Other(0); 4];
        let count = faults.read(&mut messages).expect("it is a userfaultfd");
        for message in &messages[..count] {
            match message {
                Message::Fault { .. } => pending.push(*message),
                event => log.borrow_mut().push(*event),
            }
        }
        pending.retain(|message| {
            let Message::Fault { addr, .. } = *message else { return false };
            let later = faults.zeropage(addr, PAGE_SIZE, Wake::Wake).stop == Some(uswap_system::faults::Stop::TryLater);
            if !later {
                let _ = faults.wake(addr, PAGE_SIZE);
            }
            later
        });
    }
}

/// Starts a thread that serves, in a process that has called this; returns its userfaultfd.
pub fn start_serving(world: &World, process: ProcessId, log: &Log) -> Rc<ModelFaults> {
    let faults = Rc::new(ModelFaults::for_program(None).expect("there is one"));
    let (served, log) = (faults.clone(), log.clone());
    world.spawn(process, "handler", Kind::Engine, move || serve(&served, &log));
    faults
}
