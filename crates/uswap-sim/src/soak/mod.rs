//! Soak: schedules of the engine's own core, one for each seed.
//!
//! A seed makes a world (how much of everything, what goes how often wrong), a program, and the order in which the threads
//! of the program and of the engine take their steps. After every step the checkers look at everything. In the end
//! everybody must come to rest, every page must read as what was written to it, and after all memory has been unmapped
//! nothing may be left.

mod check;
pub mod coverage;
mod engine;
mod group;
mod mm;
mod process;
mod process_books;
mod program;
pub mod progress;
mod remedies;
mod sabotage;
mod scenario;
mod violation;

use uswap_core::{PageNumber, PageRange};

pub use coverage::{Coverage, Happening};
pub use remedies::Remedies;
pub use sabotage::Sabotage;
pub use violation::{Checker, Violation};

use crate::chance::Chance;
use group::Group;
use mm::pages_of;
use process::{Process, World};
use program::{Access, Doing};
use scenario::Scenario;
use violation::{Checked, violated};

/// Processes alive at a time.
const PROCESSES_MAX: usize = 4;
/// Steps without any news after which a run counts as stuck.
const PATIENCE: u64 = 60_000;

/// What a seed came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// What happened.
    pub coverage: Coverage,
    /// Steps taken.
    pub steps: u64,
    /// What a checker found, at the last step.
    pub violation: Option<Violation>,
}

/// Runs the schedule of `seed`.
pub fn run_seed(seed: u64) -> Outcome {
    run(seed, None, Remedies::ALL)
}

/// Runs the schedule of `seed` with some remedies only.
pub fn run_with(seed: u64, remedies: Remedies) -> Outcome {
    run(seed, None, remedies)
}

/// Runs the schedule of `seed` with a bug put in, for the tests of the checkers.
pub fn run_sabotaged(seed: u64, sabotage: Sabotage) -> Outcome {
    run(seed, Some(sabotage), Remedies::ALL)
}

/// Where panics unwind, an assertion of the books is a violation like others; where they abort, the seed is in the
/// message of the caller's panic hook.
fn run(seed: u64, sabotage: Option<Sabotage>, remedies: Remedies) -> Outcome {
    let run = std::panic::AssertUnwindSafe(|| run_world(seed, sabotage, remedies));
    std::panic::catch_unwind(run).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let detail = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned();
        let violation = Some(Violation { checker: Checker::Assertion, detail });
        Outcome { coverage: Coverage::default(), steps: 0, violation }
    })
}

fn run_world(seed: u64, sabotage: Option<Sabotage>, remedies: Remedies) -> Outcome {
    let mut chance = Chance::new(seed);
    let scenario = Scenario::draw(&mut chance);
    let mut group = Group::new(&scenario.area_slots, scenario.faults);
    let mut processes = vec![Process::first(&scenario, &mut group)];
    let mut from = scenario.span / 8;
    while from < scenario.span {
        // Some mappings to begin with; between them holes, for what the program maps later.
        let pages = (1 + chance.below(scenario.span)).min(scenario.span - from);
        let range = PageRange { start: PageNumber(mm::BASE + from), pages };
        processes[0].mm.map(range, chance.happens(1, 20));
        from += pages + chance.below(8);
    }
    let mut schedule = Schedule { seed, steps: 0, born: 1 };
    let mut coverage = Coverage::default();
    let mut world = World {
        scenario: &scenario,
        group: &mut group,
        chance: &mut chance,
        coverage: &mut coverage,
        sabotage,
        remedies,
        ending: false,
    };
    // Who ends with a line takes its tree along: no wrong content comes of it.
    let violation = schedule.run(&mut processes, &mut world).err();
    let violation = violation.filter(|violation| violation.checker != Checker::EndsWithALine);
    Outcome { coverage, steps: schedule.steps, violation }
}

struct Schedule {
    seed: u64,
    steps: u64,
    born: usize,
}

impl Schedule {
    fn run(&mut self, processes: &mut Vec<Process>, world: &mut World) -> Checked {
        for _ in 0..world.scenario.steps {
            self.step(processes, world)?;
        }
        self.come_to_rest(processes, world)?;
        for process in processes.iter_mut() {
            read_everything(process, world, self)?;
        }
        // Children first: they need what their parents have.
        while let Some(mut process) = processes.pop() {
            unmap_everything(&mut process, world, self)?;
            end(&mut process, world)?;
            for parent in processes.iter_mut() {
                engine::settle_heirs(parent, world)?;
            }
        }
        Ok(())
    }

    fn step(&mut self, processes: &mut Vec<Process>, world: &mut World) -> Checked {
        self.steps += 1;
        let which = world.chance.index(processes.len());
        let is_youngest = which > 0 && which + 1 == processes.len();
        let process = &mut processes[which];
        if process.freezing && process.is_still() && process.gate == 0 {
            if self.born < 12 && world.chance.happens(3, 4) {
                let mut child = engine::fork::fork(process, self.born, world)?;
                self.born += 1;
                check::check(process, world.group)?;
                check::check(&child, world.group)?;
                if processes.len() < PROCESSES_MAX {
                    processes.push(child);
                } else {
                    unmap_everything(&mut child, world, self)?;
                    end(&mut child, world)?;
                }
            } else {
                // fork(2) has failed before anything was prepared.
                process.freezing = false;
                for thread in process.threads.iter_mut().filter(|thread| **thread == Doing::Forking) {
                    *thread = Doing::Ready;
                }
            }
            return Ok(());
        }
        if is_youngest && world.chance.happens(1, 2000) {
            let mut child = processes.pop().expect("there is one");
            return end(&mut child, world);
        }
        let verbs = process.books.verbs();
        step_process(process, world)?;
        sabotage::apply(process, world);
        // The program by itself changes nothing that the books answer for.
        if process.books.verbs() != verbs { check::check(process, world.group) } else { Ok(()) }
    }

    /// The program begins nothing new; everything that is under way comes to its end.
    fn come_to_rest(&mut self, processes: &mut Vec<Process>, world: &mut World) -> Checked {
        world.ending = true;
        let at_rest = |process: &Process| {
            let threads = process.threads.iter().all(|thread| matches!(thread, Doing::Ready));
            threads && process.actors.iter().all(engine::Actor::is_idle) && !process.mm.is_changing()
        };
        for _ in 0..PATIENCE {
            if processes.iter().all(at_rest) {
                return Ok(());
            }
            self.step(processes, world)?;
        }
        let stuck: Vec<String> = processes
            .iter()
            .filter(|process| !at_rest(process))
            .map(|process| format!("process {}: {:?}, gate {}", process.id, process.threads, process.gate))
            .collect();
        violated(Checker::NoLostWakeUp, format!("seed {}: {}", self.seed, stuck.join("; ")))
    }

    /// Lets `process` alone run until its threads have come to rest.
    fn run_alone(&mut self, process: &mut Process, world: &mut World) -> Checked {
        for _ in 0..PATIENCE {
            let at_rest = process.threads.iter().all(|thread| matches!(thread, Doing::Ready))
                && process.actors.iter().all(engine::Actor::is_idle);
            if at_rest {
                return Ok(());
            }
            self.steps += 1;
            let verbs = process.books.verbs();
            step_process(process, world)?;
            if process.books.verbs() != verbs {
                check::check(process, world.group)?;
            }
        }
        violated(Checker::NoLostWakeUp, format!("process {}: {:?}", process.id, process.threads))
    }
}

/// A step of one of the threads of `process`.
fn step_process(process: &mut Process, world: &mut World) -> Checked {
    let actors = process.actors.len();
    // The engine takes several steps for each of the program's.
    let thread = world.chance.index(process.threads.len() + actors * 3);
    if thread < process.threads.len() {
        if process.can_step(thread, world) {
            process.step_thread(thread, world)?;
        }
        return Ok(());
    }
    let index = (thread - process.threads.len()) % actors;
    let mut actor = std::mem::replace(&mut process.actors[index], engine::Actor::new(index));
    let outcome = actor.step(process, world);
    process.actors[index] = actor;
    outcome
}

/// A thread reads every page.
fn read_everything(process: &mut Process, world: &mut World, schedule: &mut Schedule) -> Checked {
    for page in pages_of(process.mm.all()) {
        if process.mm.at(page).mapping == 0 {
            continue;
        }
        process.access(0, Access { page, write: None }, world)?;
        if process.threads[0] != Doing::Ready {
            schedule.run_alone(process, world)?;
        }
    }
    Ok(())
}

fn unmap_everything(process: &mut Process, world: &mut World, schedule: &mut Schedule) -> Checked {
    schedule.run_alone(process, world)?;
    for page in pages_of(process.mm.all()) {
        let range = PageRange { start: page, pages: 1 };
        process.mm.unmap(range);
        if world.sabotage != Some(Sabotage::KeepAfterUnmap) {
            process.books.tell(move |core| core.unmapped(range));
        }
    }
    engine::release_places(process, world)?;
    engine::release_empty_clusters(process, world)?;
    check::check(process, world.group)?;
    check::check_nothing_left(process, world.group)
}

/// A process ends: what it held of its ancestors is theirs again.
fn end(process: &mut Process, world: &mut World) -> Checked {
    world.coverage.note(Happening::ProcessEnd);
    for &(ledger, _) in &process.ancestors {
        world.group.ledgers[ledger].holder_dies();
    }
    // Whoever inherited from it still reads its clusters: they go only with the last of them.
    if process.heirs.iter().all(|&ledger| !world.group.ledgers[ledger].is_alive()) {
        for area in &mut world.group.areas {
            for owner in area.owners.iter_mut().filter(|owner| **owner == Some(process.id)) {
                *owner = None;
            }
        }
    }
    Ok(())
}
