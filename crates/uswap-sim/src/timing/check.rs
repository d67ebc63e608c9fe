//! What must hold while processes share memory and an area, and who looks.

use uswap_linux::swap_entry::SwapEntry;
use uswap_linux::swapped_memory::Pte;
use uswap_linux::try_to_unuse::SwapoffBooks;

use super::Run;
use crate::page_content::Content;
pub(super) use crate::violation::violated;
use crate::violation::{self, Rule, ensure};

/// A window may go beyond a limit until the next fault, and no more than that.
const WINDOW_MAX: u64 = 512;

/// The checkers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checker {
    /// Areas, counts and page tables agree, a slot has one page, and none is freed while it is written.
    OneOwner,
    /// The content of every page that is out can be had, or something was done to it that its owner will be told.
    Recoverable,
    /// A page reads as what was written last.
    RightContent,
    /// A page is lost only when a fault was injected into it.
    LostForAReason,
    /// Windows, reads and hits of readahead follow its rules.
    Readahead,
    /// The compressed pool agrees with itself, and none of its slots is zero, too.
    Pool,
    /// A cgroup is within its limit, and pages in memory are those that are counted.
    Limits,
    /// Nothing is left of a process that has ended.
    NothingLeft,
}

impl Rule for Checker {
    fn name(self) -> &'static str {
        match self {
            Self::OneOwner => "no slot has two owners",
            Self::Recoverable => "every page is recoverable",
            Self::RightContent => "a page reads as what was written last",
            Self::LostForAReason => "a page is lost only for a reason",
            Self::Readahead => "readahead follows its rules",
            Self::Pool => "the compressed pool agrees with itself",
            Self::Limits => "cgroups are charged for what they have, and keep their limits",
            Self::NothingLeft => "nothing is left of what has ended",
        }
    }
}

/// One of these does not hold.
pub type Violation = violation::Violation<Checker>;

/// What checked steps return.
pub(super) type Checked<T = ()> = Result<T, Violation>;

impl Run<'_> {
    /// Looks at everything.
    pub(super) fn check(&self) -> Checked {
        self.memory.check().or_else(|violation| violated(Checker::OneOwner, violation.to_string()))?;
        for entry in self.disk.slots_in_flight() {
            let detail = || format!("{entry:?} is written to, and is free for others");
            ensure(self.memory.is_cached(entry), Checker::OneOwner, detail)?;
        }
        let zswap = self.pool.zswap();
        zswap.check(|entry| self.pool.is_zero(entry)).or_else(|it| violated(Checker::Pool, it.to_string()))?;
        ensure(self.pool.stale().is_none(), Checker::Pool, || {
            format!("{:?} was refused, and has a compressed page", self.pool.stale())
        })?;
        self.check_pages()?;
        let limit = self.setup.limits.max;
        (0..self.cgroups.len()).try_for_each(|cgroup| check_limit(self.usage(cgroup), limit))
    }

    fn check_pages(&self) -> Checked {
        let mut present = vec![0; self.cgroups.len()];
        for id in 0..self.processes.len() as u64 * self.pages_each {
            let (id, process) = (id as u32, self.process_of(id as u32));
            let cgroup = self.processes[process].cgroup;
            if self.processes[process].has_ended {
                continue;
            }
            match self.memory.pte(self.place(id)) {
                Pte::Swapped(entry) => self.check_out(id, entry)?,
                Pte::Present => present[cgroup] += 1,
                Pte::None | Pte::Poisoned => {}
            }
        }
        for (cgroup, &present) in self.cgroups.iter().zip(&present) {
            let counted = cgroup.policy.resident();
            ensure(counted == present, Checker::Limits, || format!("{present} pages are mapped, {counted} counted"))?;
        }
        Ok(())
    }

    /// A page that is out: where its content is, it is what the program wrote, or something was done to it.
    fn check_out(&self, id: u32, entry: SwapEntry) -> Checked {
        let owner = self.slots.get(&entry).map(|slot| slot.id);
        ensure(owner == Some(id), Checker::OneOwner, || format!("{entry:?} of page {id} belongs to {owner:?}"))?;
        let found = self.content_of(id, entry);
        let is_right = found == Some(self.pages.wrote(id)) || found.is_some_and(Content::is_garbage);
        let detail = || format!("page {id} is {:?}, and {entry:?} has {found:?}", self.pages.wrote(id));
        ensure(is_right, Checker::Recoverable, detail)
    }

    /// What a touch of a page that is out would find, if nothing goes wrong.
    fn content_of(&self, id: u32, entry: SwapEntry) -> Option<Content> {
        let cgroup = &self.cgroups[self.processes[self.process_of(id)].cgroup];
        let in_memory = self.disk.in_flight(entry).or_else(|| cgroup.ahead(entry).map(|ahead| ahead.content));
        let before_device = || self.pool.is_zero(entry).then_some(Content::ZERO).or_else(|| self.pool.content(entry));
        in_memory.or_else(before_device).or_else(|| self.disk.at(entry))
    }

    /// After all processes have ended.
    pub(super) fn check_end(&self) -> Checked {
        let (slots, compressed) = (SwapoffBooks::in_use(&self.memory, 0), self.pool.zswap().stored_pages());
        let usage: u64 = (0..self.cgroups.len()).map(|cgroup| self.usage(cgroup)).sum();
        let detail = || format!("{slots} slots, {compressed} compressed pages, {usage} pages of memory");
        ensure((slots, compressed, usage) == (0, 0, 0), Checker::NothingLeft, detail)
    }
}

/// What came along, and what could not be written, may exceed the limit until the next fault.
fn check_limit(usage: u64, max: u64) -> Checked {
    ensure(usage <= max.saturating_add(WINDOW_MAX), Checker::Limits, || format!("{usage} of {max} pages are in use"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_can_be_violated() {
        assert_eq!(check_limit(1500, 1000), Ok(()));
        assert_eq!(check_limit(u64::MAX, u64::MAX), Ok(()));
        assert!(check_limit(1600, 1000).is_err());
    }
}
