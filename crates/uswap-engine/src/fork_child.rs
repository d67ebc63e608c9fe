//! A forked child, which goes on with what its parent's engine left.

use std::io;

use uswap_sys::report::Reason;

use crate::content::Ancestor;
use crate::engine::{Engine, Inheritance};
use crate::fork_copy::Inherited;
use crate::host::Host;
use crate::monitor::Monitor;
use crate::staffed::Staffed;

impl<H: Staffed> Monitor<H> {
    /// In a forked child: goes on with what the parent's engine left. Elsewhere there is nothing to go on with.
    pub fn inherit(&mut self, take: impl FnOnce() -> Option<Inherited<H>>) {
        if H::notices().has_engine() {
            // What this process has counts from here on, and no more as what its parent was promised.
            self.usage();
        }
        if let Some(inherited) = take() {
            self.take_over(inherited);
        }
        self.share_in_child();
        self.post.fork.allow_huge_pages();
        self.post.fork.child_is_ready();
    }

    fn take_over(&mut self, inherited: Inherited<H>) {
        let Inherited { owner, core, ledger, pool, mut ancestors, journal } = inherited;
        let holder = self.member().holder();
        ledger.register(holder);
        for ancestor in &ancestors {
            ancestor.ledger.register(holder);
        }
        self.member().slot().inherits();
        ancestors.push(Ancestor::new(owner, ledger, pool));
        let engine = match self.start_child_engine(Inheritance { core, ancestors }) {
            Ok(engine) => engine,
            Err(error) => H::end(format_args!("its memory is partly swapped out, and it cannot swap: {error}")),
        };
        self.take_over_changes(engine, &journal);
        drop(journal);
        if let Err(error) = engine.wipe().and_then(|()| self.adopter.take_over(engine)) {
            engine.fatal(format_args!("uswap: a forked child cannot look at its memory: {}", Reason(&error)));
        }
        // It was copied without the mark that keeps it from forks round libc.
        self.post.fork.lift(true);
        self.keep_from_forks(engine);
        // Readers ahead have waited until here: a page on its way would pass for one that is not swapped out.
        engine.forking.phase.goes_on();
        // Before the program goes on: where there is no room for copies, they wait for it.
        self.usage();
        engine.take_and_release(self.worker());
    }
}

impl<H: Host> Engine<H> {
    /// In a forked child: memory that the program wanted to be wiped is empty, whatever it was in the parent.
    fn wipe(&self) -> io::Result<()> {
        if H::notices().fork_advice.wipes() {
            for mapping in crate::smaps::mappings::<H>()?.iter().filter(|mapping| mapping.wiped) {
                self.core().removed(mapping.range);
            }
        }
        Ok(())
    }
}
