//! Forks whose children never arrived.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use uswap_engine::group::{ProcessSlot, SlotState};

use super::super::descendants::is_before_exec;
use super::super::processes::{descends_from_us, parents_of_all_processes};
use super::Supervisor;

/// How often they are looked for.
const EVERY: Duration = Duration::from_secs(5);

/// Forks of a process whose children have not said hello.
#[derive(Clone, Copy)]
struct LateForks {
    in_flight: u32,
    /// Those that had ever begun.
    begun: u32,
}

impl LateForks {
    fn of(slot: &ProcessSlot) -> LateForks {
        // In this order: none is in flight that is not among those that began.
        let in_flight = slot.forks_in_flight();
        LateForks { in_flight, begun: slot.forks_begun() }
    }
}

/// Those that may be lost.
pub(super) struct LostForks {
    next_look: Instant,
    /// Forks in flight as they were at the last look, by slot.
    late: HashMap<u32, LateForks>,
}

impl LostForks {
    pub fn new() -> LostForks {
        LostForks { next_look: Instant::now() + EVERY, late: HashMap::new() }
    }

    /// The slot `index` is another process's from now on.
    pub fn begins_anew(&mut self, index: u32) {
        self.late.remove(&index);
    }

    /// Whether it is time for the next look; then it is the next one's.
    fn is_due(&mut self) -> bool {
        let is_due = Instant::now() >= self.next_look;
        if is_due {
            self.next_look = Instant::now() + EVERY;
        }
        is_due
    }
}

impl Supervisor {
    /// A child that was killed between fork and hello will never say it. What its parent counts of forks in flight that had
    /// begun when it was last looked is compared with the children that could be meant. The children of a dead
    /// parent are ours, because we are a subreaper; but not those of the process that stays behind for daemons,
    /// which refuses a child that was so slow.
    pub(super) fn forget_lost_forks(&mut self) {
        if !self.tree.lost_forks.is_due() {
            return;
        }
        let group = &self.shared.group;
        let late: HashMap<u32, LateForks> = group
            .taken()
            .map(|(index, slot)| (index, LateForks::of(slot)))
            .filter(|(_, forks)| forks.in_flight > 0)
            .collect();
        let before = std::mem::replace(&mut self.tree.lost_forks.late, late);
        let suspects: Vec<(u32, LateForks, u32)> = before
            .into_iter()
            .filter_map(|(index, before)| {
                let forks = *self.tree.lost_forks.late.get(&index)?;
                let young = forks.begun.wrapping_sub(before.begun);
                (young < forks.in_flight).then_some((index, forks, young))
            })
            .collect();
        if suspects.is_empty() {
            return;
        }
        let parents: HashMap<u32, u32> = parents_of_all_processes().into_iter().collect();
        if !parents.contains_key(&std::process::id()) {
            // It cannot be told who lives.
            return;
        }
        let unknown = |pid: u32| {
            !self.is_anchor(pid) && !self.tree.members.iter().any(|member| member.pid == pid && member.index.is_some())
        };
        // Who has executed a program needs nothing of its parent's any more, and is none of ours (a static program).
        let is_late = |pid: u32| descends_from_us(pid, &parents) && unknown(pid) && is_before_exec(pid) != Some(false);
        let may_be_late: Vec<u32> = parents.iter().filter(|&(&pid, _)| is_late(pid)).map(|(_, &of)| of).collect();
        for (index, forks, young) in suspects {
            let slot = group.process(index);
            let parent = slot.life.pid.load(Relaxed);
            // The children of one that has ended are ours, or those of a subreaper of the tree.
            let has_ended = slot.state() == SlotState::Dead || !parents.contains_key(&parent);
            let possible = may_be_late.iter().filter(|&&of| has_ended || of == parent).count();
            // Those that have begun since may have no child yet.
            slot.forks_in_flight_are(forks.in_flight, young.saturating_add(possible as u32));
        }
        self.sweep();
    }
}
