//! The books of one simulated process: the engine's own core, and a log of all that it was told.
//!
//! A fork copies the books of the parent byte by byte. Here the copy is made by telling new books all that the old ones
//! were told, which also shows that they depend on nothing else.

use std::rc::Rc;

use uswap_core::{Core, CoreConfig, PageRange, Released};

use super::violation::{Checked, Checker, ensure};

type Verb = Rc<dyn Fn(&mut Core)>;

/// The books, and their log.
pub(super) struct Books {
    core: Core,
    config: CoreConfig,
    log: Vec<Verb>,
    /// No copy will be needed.
    keeps_no_log: bool,
    /// Grows with every verb.
    verbs: u64,
}

impl Books {
    pub fn new(config: CoreConfig, keeps_log: bool) -> Self {
        Self { core: Core::new(config.clone()), config, log: Vec::new(), keeps_no_log: !keeps_log, verbs: 0 }
    }

    /// For looking.
    pub fn look(&self) -> &Core {
        &self.core
    }

    /// How many verbs were called.
    pub fn verbs(&self) -> u64 {
        self.verbs
    }

    /// Calls a verb.
    pub fn tell<R>(&mut self, verb: impl Fn(&mut Core) -> R + 'static) -> R {
        self.verbs += 1;
        let answer = verb(&mut self.core);
        if !self.keeps_no_log {
            self.log.push(Rc::new(move |core| drop(verb(core))));
        }
        answer
    }

    pub fn take_released(&mut self) -> Vec<Released> {
        self.tell(|core| {
            let mut released = Vec::new();
            core.take_released(&mut released);
            released
        })
    }

    /// Other books that were told the same; all but the last `missing` verbs.
    pub fn copy(&self, missing: usize) -> Checked<Books> {
        let mut copy = Books::new(self.config.clone(), true);
        for verb in &self.log[..self.log.len().saturating_sub(missing)] {
            verb(&mut copy.core);
        }
        copy.log.clone_from(&self.log);
        let everything = PageRange { start: uswap_core::PageNumber(0), pages: 1 << 40 };
        let state = |books: &Books| {
            let core = books.look();
            let pages: Vec<_> = core.pages().known(everything).collect();
            let table = core.swap_table();
            let entries: Vec<_> = table.iter_in_use().map(|entry| (entry, table.location(entry))).collect();
            (pages, entries, core.swap_cache().free_frames(), core.pages().adopted_in(everything))
        };
        let (here, there) = (state(self), state(&copy));
        ensure(here == there, Checker::Deterministic, || format!("{here:?} became {there:?}"))?;
        Ok(copy)
    }
}
