//! Who is still in the race, and why the others are not.

use std::collections::HashMap;

use crate::kernel::Unavailable;
use crate::report::{Backend, Skipped};
use crate::rig::{Rig, kernel_swap};

/// A back end that fails in so many runs in a row is left out from there on.
const FAILURES_IN_A_ROW: u32 = 3;

/// The rig, and the back ends that take turns in it.
pub struct Race {
    /// Runs one program.
    pub rig: Rig,
    /// Still in the race.
    pub backends: Vec<Backend>,
    /// Left out.
    pub skipped: Vec<Skipped>,
    /// How often the kernel killed a program for lack of memory.
    pub oom_kills: Vec<(Backend, u32)>,
    /// Generation of the memory cgroup, if the kernel takes part.
    pub cgroup_version: Option<u32>,
    failures_in_a_row: HashMap<Backend, u32>,
}

impl Race {
    /// Gets ready for the kernel's back ends, or leaves all of them out.
    pub fn new(rig: Rig, backends: Vec<Backend>) -> Race {
        let mut race = Race {
            rig,
            backends,
            skipped: Vec::new(),
            oom_kills: Vec::new(),
            cgroup_version: None,
            failures_in_a_row: HashMap::new(),
        };
        let of_the_kernel: Vec<Backend> =
            race.backends.iter().copied().filter(|&backend| kernel_swap(backend).is_some()).collect();
        if !of_the_kernel.is_empty() {
            match race.rig.open_kernel_side() {
                Ok(version) => race.cgroup_version = Some(version),
                Err(reason) => {
                    for backend in of_the_kernel {
                        race.leave_out(backend, reason.to_string());
                    }
                }
            }
        }
        race
    }

    /// From here on.
    pub fn leave_out(&mut self, backend: Backend, reason: String) {
        eprintln!("uswap: bench: {} left out: {reason}", backend.name());
        self.backends.retain(|&kept| kept != backend);
        self.skipped.push(Skipped { backend, reason });
    }

    /// A run was repeated.
    pub fn count_oom_kill(&mut self, backend: Backend) {
        match self.oom_kills.iter_mut().find(|(counted, _)| *counted == backend) {
            Some((_, count)) => *count += 1,
            None => self.oom_kills.push((backend, 1)),
        }
    }

    /// A run has a result.
    pub fn succeeded(&mut self, backend: Backend) {
        self.failures_in_a_row.remove(&backend);
    }

    /// A run has no result.
    pub fn failed(&mut self, backend: Backend) {
        let in_a_row = self.failures_in_a_row.entry(backend).or_insert(0);
        *in_a_row += 1;
        if *in_a_row == FAILURES_IN_A_ROW {
            self.leave_out(backend, format!("{FAILURES_IN_A_ROW} runs in a row failed"));
        }
    }

    /// Why there is nothing to show, if nobody had a single result.
    pub fn nobody_left(&self) -> Unavailable {
        let reasons: Vec<String> =
            self.skipped.iter().map(|skipped| format!("{}: {}", skipped.backend.name(), skipped.reason)).collect();
        Unavailable(format!("no back end can be measured here ({})", reasons.join("; ")))
    }
}
