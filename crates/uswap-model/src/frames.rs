//! Frames of RAM: which pages of two processes are one. A fork shares them, copy-on-write takes them apart.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::pte::{Page, Pte};

/// The number of a frame that nothing names is given again after so many others: a page that is on its way from one entry to another
/// is named by neither for a moment.
const RESTS: usize = 1 << 16;

/// Which frame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameNumber(u32);

/// Entries that name a frame.
#[derive(Clone, Copy, Default)]
struct Names {
    present: u32,
    swapped: u32,
}

#[derive(Default)]
struct Table {
    names: Vec<Names>,
    free: VecDeque<FrameNumber>,
    taken: u64,
}

/// All frames of a world; page tables have it in common.
#[derive(Clone, Default)]
pub struct Frames(Rc<RefCell<Table>>);

impl Frames {
    /// `pte`, whose page is in a frame of its own if it names none.
    pub(crate) fn placed(&self, pte: Pte) -> Pte {
        pte.with(|page| match (page.is_zero_page, page.frame) {
            (true, _) => page.frame = None,
            (false, None) => page.frame = Some(self.fresh()),
            (false, Some(_)) => {}
        })
    }

    fn fresh(&self) -> FrameNumber {
        let mut table = self.0.borrow_mut();
        while table.free.len() > RESTS {
            let frame = table.free.pop_front().expect("there are some");
            let names = table.names[frame.0 as usize];
            if names.present + names.swapped == 0 {
                return frame;
            }
        }
        table.names.push(Names::default());
        FrameNumber(u32::try_from(table.names.len() - 1).expect("no world has so many pages"))
    }

    /// An entry of a page table has become another.
    pub(crate) fn change(&self, old: Pte, new: Pte) {
        let mut table = self.0.borrow_mut();
        // The new one first: a frame that both name is never free.
        for (pte, is_new) in [(new, true), (old, false)] {
            let Some(frame) = pte.page().and_then(|page| page.frame) else { continue };
            let names = &mut table.names[frame.0 as usize];
            let before = names.present;
            let count = if matches!(pte, Pte::Present(_)) { &mut names.present } else { &mut names.swapped };
            *count = if is_new { *count + 1 } else { *count - 1 };
            let Names { present, swapped } = *names;
            table.taken = table.taken + u64::from(present > 0) - u64::from(before > 0);
            if present + swapped == 0 {
                table.free.push_back(frame);
            }
        }
    }

    /// Frames that are mapped.
    pub fn taken(&self) -> u64 {
        self.0.borrow().taken
    }

    /// Whether another entry maps the page as well (bit 56 of pagemap is not set).
    pub fn is_mapped_elsewhere(&self, page: &Page) -> bool {
        page.frame.is_some_and(|frame| self.0.borrow().names[frame.0 as usize].present > 1)
    }

    /// How many entries map the page of this one; 0 where it maps none that counts.
    pub fn owners(&self, pte: Pte) -> u64 {
        match pte {
            Pte::Present(Page { frame: Some(frame), .. }) => self.0.borrow().names[frame.0 as usize].present.into(),
            _ => 0,
        }
    }

    /// Whether another entry has the page as well, there or swapped out: who writes gets a copy.
    pub fn is_had_elsewhere(&self, page: &Page) -> bool {
        page.frame.is_some_and(|frame| {
            let Names { present, swapped } = self.0.borrow().names[frame.0 as usize];
            present + swapped > 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_content::Content;

    #[test]
    fn a_frame_is_taken_as_long_as_an_entry_maps_it() {
        let frames = Frames::default();
        let one = frames.placed(Pte::Present(Page::new(Content(1))));
        frames.change(Pte::Missing, one);
        frames.change(Pte::Missing, one);
        let page = one.page().unwrap();
        assert!(frames.taken() == 1 && frames.is_mapped_elsewhere(&page));
        frames.change(one, Pte::Swapped(page));
        assert!(frames.taken() == 1 && !frames.is_mapped_elsewhere(&page) && frames.is_had_elsewhere(&page));
        frames.change(one, Pte::Missing);
        assert!(frames.taken() == 0 && !frames.is_had_elsewhere(&page));
        let zeros = frames.placed(Pte::Present(Page::zero()));
        assert_eq!(zeros.page().unwrap().frame, None);
    }

    #[test]
    fn a_number_rests_before_it_is_given_again() {
        let frames = Frames::default();
        let mut numbers = Vec::new();
        for _ in 0..2 * RESTS + 10 {
            let pte = frames.placed(Pte::Present(Page::new(Content(1))));
            frames.change(Pte::Missing, pte);
            frames.change(pte, Pte::Missing);
            numbers.push(pte.page().unwrap().frame.unwrap());
        }
        assert_eq!(numbers.iter().max(), Some(&FrameNumber(RESTS as u32)));
    }
}
