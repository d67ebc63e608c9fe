//! swapoff: brings in all that this process has on an area that leaves, while the program runs.
//!
//! The threads that read ahead do it, when no stream wants them: long reads in the order of the slots, and each page goes
//! to where it belongs. What the budget has no room for leaves again by reclaim, to the pool or to other areas. While the
//! budget is used up nothing is brought in: whoever asked for the area to leave is told, and may change his mind. A page
//! that cannot be read stays where it is.

use std::sync::atomic::Ordering::{Relaxed, Release};

use uswap_core::defects::{Sabotage, is_on};
use uswap_core::fault::MAX_WINDOW;
use uswap_core::{Emptying, Survey};

use crate::content::Swapoff;
use crate::engine::Engine;
use crate::host::Host;
use crate::load::Load;
use crate::worker::Worker;

/// What an attempt came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Emptied {
    /// There may be more to do at once.
    Some,
    /// There is more to do, but not now.
    Later,
    /// No area leaves that this process has anything on.
    All,
}

impl<H: Host> Engine<H> {
    /// Nothing is left on areas that leave.
    fn has_carried_out(&self, announced: u32) {
        let slot = self.member.slot();
        self.content.areas.release_empty_clusters(self.books.lock(), &self.member);
        self.content.areas.publish(&self.core(), &self.member);
        slot.wants.waits_for_memory.store(0, Relaxed);
        slot.called.carried_out.store(announced, Release);
    }

    /// Brings some of what is on leaving areas in.
    pub(crate) fn empty_areas(&self, loads: &mut Vec<Load>, worker: &mut Worker) -> Emptied {
        let slot = self.member.slot();
        if is_on(Sabotage::AnnouncementLost) {
            return Emptied::All;
        }
        let announced = self.member.group.announcements();
        self.hear(announced);
        let mut swapoff = self.content.swapoff.lock();
        if swapoff.announced != announced {
            *swapoff = Swapoff::of(announced);
        }
        let Some(area) = self.content.areas.leaving().map(|area| area.id).find(|&id| !swapoff.is_emptied(id)) else {
            if slot.called.carried_out.load(Relaxed) != announced {
                swapoff.survey = None;
                self.has_carried_out(announced);
            }
            return Emptied::All;
        };
        let waits = self.pressure.is_over_limit();
        slot.wants.waits_for_memory.store(u32::from(waits), Relaxed);
        if waits {
            self.forking.post.ring();
            return Emptied::Later;
        }
        if swapoff.survey.as_ref().is_none_or(|survey| survey.area() != area) {
            if !self.follow_ancestors(announced) {
                return Emptied::Later;
            }
            let used = self.core().slots(area).used();
            let how = self.member.group.config().policies.swapoff;
            swapoff.survey = Some(Survey::new(area, used).after_search(how));
        }
        let survey = swapoff.survey.as_mut().expect("made above");
        let mut outcome = Emptied::Some;
        {
            let _gate = self.memory.gate.pass();
            while loads.len() < worker.buffer.pages() / MAX_WINDOW {
                let emptying = self.core().empty_area(survey);
                match emptying {
                    Emptying::Load(plan) => loads.push(Load::after(loads, plan)),
                    // Let others at the books meanwhile.
                    Emptying::Ask => break,
                    Emptying::Later => {
                        outcome = Emptied::Later;
                        break;
                    }
                    Emptying::Empty => {
                        swapoff.has_emptied(area);
                        break;
                    }
                }
            }
        }
        drop(swapoff);
        if !loads.is_empty() {
            self.bring_in(loads, worker);
            self.keep_room(worker);
            outcome = Emptied::Some;
        }
        outcome
    }
}
