//! What the model says of Linux, compared with Linux: the same random programs of mmap, munmap, mremap, madvise, fork and touches
//! run on both.
//!
//! A program of one thread has the same messages, the same answers and the same content on both. What a program of two threads
//! does on Linux is among what the model's schedules do.
//!
//! It says why when it is skipped: the descriptor may be forbidden here.

mod on_linux;
mod on_model;
mod programs;

use std::collections::HashSet;

use programs::{Program, Seen};
use uswap_model::Chance;

const SINGLE: u64 = 1200;
const PAIRS: u64 = 120;
/// Schedules of the model in which what Linux did must be found.
const SCHEDULES: u64 = 30_000;

#[test]
fn a_program_of_one_thread_sees_the_same_on_both() {
    let Some(linux) = on_linux::Linux::open() else { return };
    for seed in 0..SINGLE {
        // The model knows what is mapped where while it runs, so it draws the program.
        let (program, on_model) = on_model::draw_and_run(seed);
        let on_linux = linux.run(&program);
        assert_eq!(on_linux, on_model, "Linux and the model, seed {seed}: {program:?}");
    }
}

#[test]
fn what_two_threads_see_on_linux_the_model_allows() {
    let Some(linux) = on_linux::Linux::open() else { return };
    let mut most = 0;
    for seed in 0..PAIRS {
        let program = Program::of_two_threads(&mut Chance::new(seed));
        let mut found: HashSet<Seen> = HashSet::new();
        let mut next_schedule = 0;
        for _ in 0..5 {
            let seen = linux.run(&program).without_faults();
            while !found.contains(&seen) && next_schedule < SCHEDULES {
                found.insert(on_model::run(&program, next_schedule).without_faults());
                next_schedule += 1;
            }
            most = most.max(next_schedule);
            assert!(found.contains(&seen), "seed {seed}: {program:?}: Linux did what no schedule does: {seen:?}");
        }
    }
    println!("at most {most} schedules of the model were needed");
}
