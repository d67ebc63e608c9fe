//! Idle processes: who does nothing keeps no fair share of the budget from those that work.
//!
//! The kernel has one LRU for all processes of a cgroup, so the pages of one that sleeps go out as the others take faults. Here each
//! process reclaims its own memory, and a fair share ([`crate::budget`]) keeps it from being driven out by others. A parent that waits for
//! its child, or a worker without a request, would keep memory so that it does not use. So the share of a process that is idle is
//! halved again and again, and it gives way as those give way that have more than their share: only while room is short. As
//! soon as it does something, its share is whole.
//!
//! Where many siblings have most in common, or what cannot be swapped fills half of the budget, to give way makes little room: nobody counts
//! as idle there.
//!
//! Idle is who brings nearly nothing in and uses nearly no processor: without accessed bits nothing else tells.

/// What a process has done, ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Evidence {
    /// Pages that came back.
    pub came_back: u64,
    /// Pages that were moved out.
    pub moved_out: u64,
    /// Processor time of all threads, uswap's own included, in microseconds. `None`: nobody knows, and it is never idle.
    pub processor_us: Option<u64>,
}

/// How long evidence is gathered before it is judged.
const INTERVAL_MS: u64 = 100;
/// So many pages that come back in an interval are work; a thread that wakes now and then to look at the time needs fewer.
const WORKS_PAGES: u64 = 16;
/// Who uses less of a processor than one part in so many does no work: uswap's own monitor uses less, too.
const WORKS_PART: u64 = 8;
/// What uswap itself uses for a page that it moves out, at most, in microseconds: compression, hashes, waiting for other processors.
const PAGE_OUT_US: u64 = 40;
/// Who has not worked for so long is idle.
const IDLE_AFTER_MS: u64 = 500;
/// And its share is halved each time that it has been idle for so long.
const HALVED_EVERY_MS: u64 = 250;
/// Of nothing there is no half.
const HALVINGS_MAX: u32 = 32;

/// See the file's head.
#[derive(Debug, Default)]
pub struct Idle {
    /// When evidence was last judged, and what there was.
    judged: Option<(u64, Evidence)>,
    /// When it last worked.
    worked_ms: u64,
}

impl Idle {
    /// Whether the evidence is to be judged again, or something has come back. To know the processor time costs a system call.
    pub fn is_due(&self, came_back: u64, now_ms: u64) -> bool {
        self.judged.is_none_or(|(judged_ms, then)| {
            now_ms.saturating_sub(judged_ms) >= INTERVAL_MS || came_back.saturating_sub(then.came_back) >= WORKS_PAGES
        })
    }

    /// Judges anew. `now_ms` may begin anywhere.
    pub fn update(&mut self, evidence: &Evidence, now_ms: u64) {
        let works =
            self.judged.is_none_or(|(judged_ms, then)| then.shows_work(evidence, now_ms.saturating_sub(judged_ms)));
        if works {
            self.worked_ms = now_ms;
        }
        self.judged = Some((now_ms, *evidence));
    }

    /// How often the share of the process has been halved; 0: it works.
    pub fn halvings(&self, now_ms: u64) -> u32 {
        let idle_ms = now_ms.saturating_sub(self.worked_ms);
        match idle_ms.checked_sub(IDLE_AFTER_MS) {
            Some(beyond) if self.judged.is_some() => (1 + beyond / HALVED_EVERY_MS).min(HALVINGS_MAX.into()) as u32,
            _ => 0,
        }
    }
}

impl Evidence {
    /// Whether the process has worked between this and `later`, `ms` afterwards.
    pub(crate) fn shows_work(&self, later: &Evidence, ms: u64) -> bool {
        let (Some(before_us), Some(after_us)) = (self.processor_us, later.processor_us) else { return true };
        let uswaps_us = later.moved_out.saturating_sub(self.moved_out) * PAGE_OUT_US;
        let programs_us = after_us.saturating_sub(before_us).saturating_sub(uswaps_us);
        later.came_back.saturating_sub(self.came_back) >= WORKS_PAGES || programs_us > ms * 1000 / WORKS_PART
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each 100 ms for `ms`, something more has been done each time.
    fn go_on(idle: &mut Idle, from_ms: u64, ms: u64, each: Evidence) {
        let (_, mut evidence) = idle.judged.unwrap_or_default();
        let add = |to: &mut Option<u64>, each: Option<u64>| *to = each.map(|each| to.unwrap_or(0) + each);
        for step in 1..=ms / INTERVAL_MS {
            evidence.came_back += each.came_back;
            evidence.moved_out += each.moved_out;
            add(&mut evidence.processor_us, each.processor_us);
            idle.update(&evidence, from_ms + step * INTERVAL_MS);
        }
    }

    fn nothing() -> Evidence {
        Evidence { processor_us: Some(2_000), came_back: 3, moved_out: 0 }
    }

    #[test]
    fn who_does_nothing_is_idle_after_a_while_and_its_share_shrinks() {
        let mut idle = Idle::default();
        go_on(&mut idle, 1000, 500, nothing());
        assert_eq!(idle.halvings(1500), 0);
        go_on(&mut idle, 1500, 500, nothing());
        assert_eq!(idle.halvings(2000), 2, "since 1100 for 900 ms");
        go_on(&mut idle, 2000, 20_000, nothing());
        assert_eq!(idle.halvings(22_000), HALVINGS_MAX);
    }

    #[test]
    fn who_works_is_not() {
        for each in [
            Evidence { processor_us: Some(15_000), ..nothing() },
            Evidence { came_back: 16, ..nothing() },
            Evidence { processor_us: None, ..nothing() },
        ] {
            let mut idle = Idle::default();
            go_on(&mut idle, 0, 5000, each);
            assert_eq!(idle.halvings(5000), 0, "{each:?}");
        }
    }

    #[test]
    fn giving_way_is_no_work() {
        let mut idle = Idle::default();
        go_on(&mut idle, 0, 2000, Evidence { processor_us: Some(60_000), moved_out: 1500, came_back: 0 });
        assert!(idle.halvings(2000) > 0);
    }

    #[test]
    fn who_wakes_has_its_share_at_once() {
        let mut idle = Idle::default();
        go_on(&mut idle, 0, 5000, nothing());
        let (_, evidence) = idle.judged.expect("judged");
        let woken = Evidence { came_back: evidence.came_back + 16, ..evidence };
        assert!(!idle.is_due(evidence.came_back + 15, 5020) && idle.is_due(woken.came_back, 5020));
        idle.update(&woken, 5020);
        assert_eq!(idle.halvings(5020), 0);
    }
}
