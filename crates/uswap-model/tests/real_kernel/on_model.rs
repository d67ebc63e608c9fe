//! Programs on the model.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use uswap_model::faults::{ModelCall, ModelFaults};
use uswap_model::mremap::Place;
use uswap_model::process::ProcessId;
use uswap_model::pte::Pte;
use uswap_model::scheduler::Kind;
use uswap_model::supervisor::ModelSupervisor;
use uswap_model::switching::Switching;
use uswap_model::user_mode;
use uswap_model::world::current;
use uswap_model::{Chance, Content, End, PAGE_SIZE, World, WorldConfig};
use uswap_system::faults::{Call, Faults, Message, Stop, Wake};

use crate::programs::{Answer, Op, Program, SPAN, Seen, Told};

const BASE: usize = 448;

fn config(switching: Switching) -> WorldConfig {
    WorldConfig { base: BASE, span: SPAN, switching, lazy_drops: 0, steps_max: 200_000, ..WorldConfig::plain() }
}

/// What threads of the model write down.
#[derive(Default)]
struct Notes {
    told: RefCell<Vec<Told>>,
    answers: RefCell<Vec<Vec<Answer>>>,
    pages: RefCell<Vec<Option<u64>>>,
}

impl Notes {
    fn seen(&self) -> Seen {
        Seen { told: self.told.take(), answers: self.answers.take(), pages: self.pages.take() }
    }
}

/// Draws a program of one thread and runs it.
pub fn draw_and_run(seed: u64) -> (Program, Seen) {
    let notes = Rc::new(Notes::default());
    let ops = Rc::new(RefCell::new(Vec::new()));
    let (written, drawn) = (notes.clone(), ops.clone());
    run_main(config(Switching::Random { parts: 64 }), seed, move |faults| {
        start_reader(faults, &written);
        let mut chance = Chance::new(seed ^ 0x5eed);
        let mut answers = Vec::new();
        for serial in 1..=12 {
            let op = draw(&mut chance, serial);
            drawn.borrow_mut().push(op.clone());
            answers.push(carry_out(&op, faults));
        }
        written.answers.borrow_mut().push(answers);
        *written.pages.borrow_mut() = pages_of(current().this_process());
    });
    (Program { prologue: Vec::new(), threads: vec![ops.take()] }, notes.seen())
}

/// Runs a program by the schedule of a seed.
pub fn run(program: &Program, seed: u64) -> Seen {
    let notes = Rc::new(Notes::default());
    let (written, program) = (notes.clone(), program.clone());
    // Threads of Linux start one long after the other, or lose the processor for as long as all that others do.
    let switching = match seed % 8 {
        0 => Switching::Random { parts: 256 },
        1 => Switching::Random { parts: 32 },
        other => Switching::Priorities { one_in: 1 << other },
    };
    run_main(config(switching), seed, move |faults| {
        program.prologue.iter().for_each(|op| drop(carry_out(op, faults)));
        start_reader(faults, &written);
        written.answers.borrow_mut().resize(program.threads.len(), Vec::new());
        let (world, process) = (current(), current().this_process());
        let mut threads = Vec::new();
        for (index, ops) in program.threads.into_iter().enumerate() {
            let written = written.clone();
            threads.push(world.spawn(process, "program", Kind::Program, move || {
                let answers: Vec<Answer> = ops.iter().map(|op| carry_out(op, faults)).collect();
                written.answers.borrow_mut()[index] = answers;
            }));
        }
        threads.into_iter().for_each(|thread| world.join(thread));
        *written.pages.borrow_mut() = pages_of(process);
    });
    notes.seen()
}

fn run_main(config: WorldConfig, seed: u64, main: impl FnOnce(&'static ModelFaults) + 'static) {
    let world = World::with(config, Chance::new(seed));
    let process = world.new_process();
    world.spawn(process, "main", Kind::Program, || {
        let faults = ModelFaults::for_program(None).expect("there is one");
        main(Box::leak(Box::new(faults)));
    });
    assert_eq!(world.run().end, End::Rest, "seed {seed}");
}

/// One message at a time, as the reader on Linux.
fn start_reader(faults: &'static ModelFaults, notes: &Rc<Notes>) {
    let (world, notes) = (current(), notes.clone());
    world.spawn(world.this_process(), "reader", Kind::Engine, move || {
        let (call, supervisor) = (ModelCall::new().expect("there is one"), ModelSupervisor::default());
        let mut pending: Vec<usize> = Vec::new();
        loop {
            let patience = (!pending.is_empty()).then_some(Duration::from_micros(20));
            faults.wait(&call, &supervisor, patience).expect("it is a userfaultfd");
            let mut message = [Message::Other(0)];
            if faults.read(&mut message).expect("it is a userfaultfd") == 1 {
                notes.told.borrow_mut().push(told(&message[0]));
                if let Message::Fault { addr, .. } = message[0] {
                    pending.push(addr);
                }
            }
            pending.retain(|&addr| {
                let is_later = faults.zeropage(addr, PAGE_SIZE, Wake::Wake).stop == Some(Stop::TryLater);
                let _ = is_later || faults.wake(addr, PAGE_SIZE).is_ok();
                is_later
            });
        }
    });
}

fn told(message: &Message) -> Told {
    let page = |address: usize| address / PAGE_SIZE - BASE;
    match *message {
        Message::Fault { addr, write, .. } => Told::Fault { page: page(addr), write },
        Message::Remap { from, to, len } => Told::Remap { from: page(from), to: page(to), pages: len / PAGE_SIZE },
        Message::Remove { start, end } => Told::Remove(page(start)..page(end)),
        Message::Unmap { start, end } => Told::Unmap(page(start)..page(end)),
        Message::Other(_) => unreachable!("there is no other"),
    }
}

fn pages_of(process: ProcessId) -> Vec<Option<u64>> {
    let world = current();
    let kernel = world.kernel();
    let mm = &kernel.process(process).mm;
    let value = |pte: Pte| pte.page().map_or(0, |page| page.content.0);
    (BASE..BASE + SPAN).map(|page| mm.vmas.at(page).map(|_| value(mm.pte(page)))).collect()
}

fn carry_out(op: &Op, faults: &'static ModelFaults) -> Answer {
    let at = |range: &std::ops::Range<usize>| BASE + range.start..BASE + range.end;
    let answer = |is_done| if is_done { Answer::Done } else { Answer::Refused };
    match op {
        Op::Map(range) => user_mode::mmap(at(range)),
        Op::Unmap(range) => user_mode::munmap(at(range)),
        Op::Remap { old, new_pages, to, stays } => {
            let place = to.map_or(Place::Here, |to| Place::Fixed(BASE + to));
            return answer(user_mode::mremap(at(old), *new_pages, place, *stays).is_ok());
        }
        Op::Discard { range, lazily } => return answer(user_mode::discard(at(range), *lazily)),
        Op::Register(range) => {
            return answer(faults.register((BASE + range.start) * PAGE_SIZE, range.len() * PAGE_SIZE).is_ok());
        }
        Op::Read(page) => {
            return user_mode::read(BASE + page).map_or(Answer::Refused, |content| Answer::Value(content.0));
        }
        Op::Write(page, value) => return answer(user_mode::write(BASE + page, Content(*value)).is_ok()),
        Op::Fork => {
            let child = user_mode::fork();
            let pages = pages_of(child);
            current().kill(child);
            return Answer::Child(pages);
        }
    }
    Answer::Done
}

/// What comes next, so that most of it makes sense where things are.
fn draw(chance: &mut Chance, serial: u64) -> Op {
    let world = current();
    let kernel = world.kernel();
    let vmas: Vec<_> = kernel.process(world.this_process()).mm.vmas.iter().copied().collect();
    let any = |chance: &mut Chance| {
        let start = chance.index(SPAN - 1);
        start..start + 1 + chance.index((SPAN - start).min(6))
    };
    if vmas.is_empty() || chance.happens(1, 8) {
        return Op::Map(any(chance));
    }
    let vma = vmas[chance.index(vmas.len())];
    let start = vma.start - BASE + chance.index(vma.end - vma.start);
    let part = start..start + 1 + chance.index(vma.end - BASE - start);
    match chance.below(16) {
        0..3 => Op::Register(part),
        3 => Op::Unmap(any(chance)),
        4 => Op::Unmap(part),
        5..8 => {
            let new_pages = if chance.happens(1, 3) { 1 + chance.index(6) } else { part.len() };
            let to = chance.index(SPAN - new_pages.min(SPAN - 1));
            let stays = new_pages == part.len() && chance.happens(1, 4);
            let overlaps = to < part.end && part.start < to + new_pages;
            match overlaps || to + new_pages > SPAN {
                true if start + new_pages > SPAN => Op::Read(start),
                true => Op::Remap { old: part, new_pages, to: None, stays: false },
                false => Op::Remap { old: part, new_pages, to: Some(to), stays },
            }
        }
        8 => Op::Discard { range: any(chance), lazily: chance.happens(1, 4) },
        9 => Op::Discard { range: part, lazily: chance.happens(1, 4) },
        10 => Op::Fork,
        11 | 12 => Op::Read(start),
        _ => Op::Write(start, serial),
    }
}
