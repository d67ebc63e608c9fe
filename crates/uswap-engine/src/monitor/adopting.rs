//! When the monitor adopts, and looks at what was adopted.

use std::io;

use uswap_core::{PageRange, tuning};
use uswap_sys::report::Reason;

use super::Monitor;
use crate::adopt::Look;
use crate::engine::Engine;
use crate::staffed::Staffed;

impl<H: Staffed> Monitor<H> {
    /// Adopts memory, if that was not done a moment ago: looking at a large program takes time. `urgent`: the program fills
    /// memory that is not adopted yet, and waits for room only once it is.
    pub(super) fn adopt(&mut self, look: Look, urgent: bool) {
        let Some(engine) = self.engine().filter(|engine| !engine.is_out_of_memory()) else { return };
        let unmanaged = engine.unmanaged_pages(&engine.core());
        // What is adopted and not looked up hides what comes.
        let is_likely = !self.adopter.has_looked_everywhere() || engine.memory.has_grown();
        if look == Look::New && !self.adopter.pace.is_due(H::now(), urgent, is_likely, unmanaged) {
            return;
        }
        engine.memory.note_grown(false);
        let start = H::now();
        let found = self.adopter.adopt_more(engine, look, urgent);
        let found = found.unwrap_or_else(|error| self.cannot_look(engine, &error));
        let ended = H::now();
        if look == Look::All {
            self.looks.all_took = ended - start;
        }
        let since = self.adopter.pace.looked(start, ended, found > 0, unmanaged);
        self.share.growth.found(found, since);
    }

    /// For a thread whose mremap was refused.
    pub(super) fn make_mappings_whole(&mut self) {
        let requests = &H::notices().whole_mappings;
        let Some(asked) = requests.asked() else { return };
        if let Some(engine) = self.engine()
            && let Err(error) = self.adopter.adopt_more(engine, Look::Beside, false)
        {
            self.cannot_look(engine, &error);
        }
        if let Some(engine) = self.engine() {
            // What it has made larger between the program's MADV_DOFORK and the look at that is not kept from forks, and a mapping by itself.
            let _ = engine.keep_adopted_from_forks(PageRange::ALL, &self.adopter.kept, 0);
        }
        requests.done(asked);
    }

    /// Looks at up to `steps` pieces of memory that was adopted: nothing of it can leave before. Returns the pages found.
    pub(super) fn look_up(&mut self, steps: u32) -> u64 {
        let Some(engine) = self.engine().filter(|engine| !engine.is_out_of_memory()) else { return 0 };
        let (begun, mut found) = (H::now(), 0);
        for _ in 0..steps {
            if H::since(begun) > tuning::LOOK_UP_TAKES {
                break;
            }
            match self.adopter.look_up(engine) {
                Ok(Some(pages)) => found += pages,
                Ok(None) => break,
                Err(error) => found += self.cannot_look(engine, &error),
            }
        }
        found
    }

    /// Says so once, and that nothing was found.
    pub(super) fn cannot_look(&mut self, engine: &Engine<H>, error: &io::Error) -> u64 {
        if !std::mem::replace(&mut self.said_cannot_look, true) {
            engine.member.say(format_args!("uswap: cannot look at the program's memory: {}", Reason(error)));
        }
        0
    }
}
