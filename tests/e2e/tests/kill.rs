//! kill -9 of the program, of a forked child, of `uswap run`, at random moments.
//!
//! Afterwards: nothing hangs, nothing is left (process, zombie, file), and those that live on have not lost a byte.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use uswap_e2e::{
    Budget, Finished, Launch, Random, TempDir, bare_only, c_program, is_alive, kill_process, kills, member_of, name_of,
    seed,
};

const CHILDREN: &str = "2";
/// The program, its children, and one child of each.
const PROCESSES: usize = 5;
const SECONDS: f64 = 1.2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Program,
    Child,
    Supervisor,
}

/// Process ids after a word, one a line.
fn said(finished: &Finished, word: &str) -> BTreeSet<u32> {
    let text = finished.text();
    text.lines().filter_map(|line| line.strip_prefix(word)?.trim().parse().ok()).collect()
}

fn kill_at_random_moments(victim: Victim) {
    let test = TempDir::new("kill");
    let program = Launch::new(&test, c_program("survivors"))
        .args(["24", CHILDREN, &SECONDS.to_string()])
        .through_pipe()
        .time_limit(Duration::from_secs(60));
    let budget = Budget::mib(48);
    let seed = seed();
    eprintln!("{victim:?}: USWAP_E2E_SEED={seed}");
    let mut random = Random::new(seed ^ victim as u64);
    let rounds = kills().div_ceil(3);
    let (mut missed, mut swapped) = (0, 0);
    for round in 0..rounds {
        // From the first instruction to shortly before the end.
        let delay = Duration::from_micros(random.below((SECONDS * 1e6) as u64));
        let choice = random.word() as usize;
        let begun = Instant::now();
        let mut running = program.under(&budget);
        while begun.elapsed() < delay && running.is_running() {
            std::thread::sleep(Duration::from_micros(500));
        }
        let supervisor = running.id();
        let target = match victim {
            Victim::Supervisor => Some(supervisor),
            Victim::Program | Victim::Child => pick(victim, supervisor, &running.members(), choice),
        };
        let Some(target) = target.filter(|&pid| is_alive(pid)) else {
            missed += 1;
            continue; // it has not been started yet; the tree is killed, which is a test as well
        };
        kill_process(target);
        let finished = running.finish();
        let context = format!("{victim:?} {target} killed after {delay:?} (round {round}, seed {seed})\n{finished}");
        assert!(!finished.stderr.contains("BAD"), "{context}");
        judge(victim, target, &finished, &context);
        swapped += u32::from(finished.stats.as_ref().is_some_and(|stats| stats.pages_swapped_out() > 0));
    }
    eprintln!(
        "{victim:?}: {rounds} rounds, {missed} too early to find a victim, {swapped} with statistics of swapping"
    );
    assert!(missed * 2 < rounds, "{missed} of {rounds} kills found no victim");
    if !bare_only() && victim == Victim::Child {
        assert!(swapped * 2 > rounds, "only {swapped} of {rounds} runs swapped at all");
    }
}

/// The program itself, or one of its descendants.
fn pick(victim: Victim, supervisor: u32, members: &[u32], choice: usize) -> Option<u32> {
    let is_program = |pid: u32| match bare_only() {
        true => pid == supervisor,
        false => pid != supervisor && name_of(pid) == "survivors" && parent_is(pid, supervisor),
    };
    let program = members.iter().copied().find(|&pid| is_program(pid))?;
    if victim == Victim::Program {
        return Some(program);
    }
    let below: Vec<u32> = members.iter().copied().filter(|&pid| pid != program && member_of(program, pid)).collect();
    if below.is_empty() { None } else { Some(below[choice % below.len()]) }
}

fn parent_is(pid: u32, parent: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("PPid:").is_some_and(|ppid| ppid.trim() == parent.to_string()))
}

fn judge(victim: Victim, target: u32, finished: &Finished, context: &str) {
    let (started, done) = (said(finished, "start "), said(finished, "done "));
    let survivors: BTreeSet<u32> = started.iter().copied().filter(|&pid| pid != target).collect();
    match victim {
        Victim::Supervisor if !bare_only() => {
            assert_eq!(finished.code(), 128 + 9, "{context}");
        }
        Victim::Program | Victim::Supervisor => {
            // Its orphans live on, as they would without uswap.
            assert_eq!(finished.code(), 128 + 9, "{context}");
            assert!(survivors.is_subset(&done), "survivors that did not finish: {survivors:?} {done:?}\n{context}");
        }
        Victim::Child => {
            assert_eq!(finished.code(), 0, "{context}");
            assert!(survivors.is_subset(&done), "survivors that did not finish: {survivors:?} {done:?}\n{context}");
            assert!(started.len() >= PROCESSES - 2, "{context}");
        }
    }
}

#[test]
fn kill_of_the_program() {
    kill_at_random_moments(Victim::Program);
}

#[test]
fn kill_of_a_forked_child() {
    kill_at_random_moments(Victim::Child);
}

#[test]
fn kill_of_the_supervisor() {
    kill_at_random_moments(Victim::Supervisor);
}
