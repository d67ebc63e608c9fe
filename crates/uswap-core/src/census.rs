//! A census: what processes of forks have in RAM, known of all of them together, and exactly.
//!
//! What [`crate::in_common`] counts is never too little, but after a while may be too much by a third: what a parent has dropped
//! since a fork may be what its children still have, and passes for it. The kernel knows better: a process's proportional share of its
//! private pages (Pss_Anon) has each page by one part in as many as have it, so that the shares of all add up to what is there. But
//! processes look one after the other, and what one drops meanwhile weighs more with those who have looked already.
//!
//! So a census is announced, and each process looks once after that. It enters its share, and all that it may have copied or dropped
//! since before the census began ([`entry`]). From then on it counts that, and what it has come to have since ([`counted`]). When all
//! have entered, the sum is never below what is there, as long as none of them ends or forks.
//!
//! # Lemma
//! Take a page that several have when the census begins. Nobody comes to have it later, for nobody forks, so whoever looks and has it
//! enters at least the part that it had at the beginning. Who does not have it any more when it looks has copied or dropped it since it
//! made its [`Mark`], which was before the census began: it enters a whole page for that. So the entries for this page are one at least,
//! and nothing that is done later makes them less, but that the engine gives back a page that nobody else has. A page that is nobody's at
//! the beginning is one fault, or brought in by the engine, and has one owner: it is in that one's share, or counted since.

use crate::defects::{Sabotage, is_on};
use crate::in_common::Between;

/// What must stay as it is for a census to hold: the forks of a process, and the processes that have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kin {
    /// Forks of this process that have ever begun. Wraps.
    pub births: u32,
    /// Processes of the group that have ever ended. Wraps.
    pub ended: u32,
}

/// What was known of a process before a census began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// Changes that it had had, at the least ([`crate::in_common::Changes`]).
    pub changes: u64,
    /// At that moment.
    pub kin: Kin,
}

/// A process's part in censuses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Part {
    /// The last census that it has seen announced.
    seen: u64,
    /// Made before it last looked whether there is a new one.
    before: Option<Mark>,
    /// Where it has still to look.
    due: Option<Mark>,
}

impl Part {
    /// It has told what it has and made a `mark`, where it could, and after that has seen that census number `announced` was the last.
    pub fn told(&mut self, mark: Option<Mark>, announced: u64) {
        if announced != self.seen {
            (self.seen, self.due) = (announced, self.before);
        }
        self.before = mark;
    }

    /// The census for which it has still to look, and its mark.
    pub fn due(&self) -> Option<(u64, Mark)> {
        self.due.map(|mark| (self.seen, mark))
    }

    /// It has looked.
    pub fn entered(&mut self) {
        self.due = None;
    }
}

/// What a process enters whose share is `share` pages, when it has made `mark` before and had `resident` private pages, and so many changes,
/// when it looked. Two's complement: to be added to what it has ([`counted`]).
pub fn entry(share: u64, mark: &Mark, changes: Between, resident: u64) -> u64 {
    let since = if is_on(Sabotage::SinceMarkForgotten) { 0 } else { changes.most.saturating_sub(mark.changes) };
    (share + since).wrapping_sub(resident.wrapping_add_signed(changes.seen))
}

/// What it counts when it has `resident` private pages, and has had so many `changes` at the most.
pub fn counted(entry: u64, resident: u64, changes: u64) -> u64 {
    entry.wrapping_add(resident).wrapping_add(changes).cast_signed().max(0).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: Mark = Mark { changes: 7, kin: Kin { births: 1, ended: 2 } };

    #[test]
    fn a_mark_is_older_than_the_census_that_it_is_for() {
        let mut part = Part::default();
        assert_eq!(part.due(), None);
        part.told(Some(MARK), 0);
        assert_eq!(part.due(), None, "none is announced");
        let later = Mark { changes: 9, ..MARK };
        part.told(Some(later), 1);
        assert_eq!(part.due(), Some((1, MARK)), "the later mark may have been made after the announcement");
        part.entered();
        assert_eq!(part.due(), None);
        part.told(None, 2);
        assert_eq!(part.due(), Some((2, later)));
        part.told(Some(MARK), 3);
        assert_eq!(part.due(), None, "no mark was made before");
    }

    #[test]
    fn what_has_been_copied_or_dropped_since_the_mark_is_entered_with_the_share() {
        let entered = entry(100, &MARK, Between { least: 10, most: 12, seen: 10 }, 150);
        assert_eq!(counted(entered, 150, 10), 105);
        assert_eq!(counted(entered, 150, 13), 108, "copied since");
        assert_eq!(counted(entered, 170, 10), 125, "has come in since");
        assert_eq!(counted(entered, 20, 10), 0);
        // Ten pages came in while it looked.
        let entered = entry(100, &Mark { changes: 0, ..MARK }, Between { least: 0, most: 0, seen: -10 }, 110);
        assert_eq!(counted(entered, 110, 0), 110);
    }
}
