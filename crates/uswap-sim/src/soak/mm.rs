//! The kernel's side of one simulated process: mappings, page table entries, frames, userfaultfd and its messages.
//!
//! It answers as Linux does: nothing is installed while an event is under way (`TryLater`), faults are read before events,
//! a thread that is woken takes its unread message with it, a page shared after a fork is busy, some mappings cannot be
//! moved to or from at all.

use std::collections::VecDeque;

use uswap_core::event_order::{Event, Mappings};
use uswap_core::{FrameId, PageNumber, PageRange};

use crate::chance::Chance;
use crate::page_content::Content;

/// The first page of the simulated address space. It lies below a leaf of the page table, so that most spaces cross into
/// the next one.
pub(super) const BASE: u64 = 448;

/// A page table entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pte {
    Missing,
    Present {
        content: Content,
        /// Another process has the same page.
        shared: bool,
        /// The kernel may drop it until it is written to.
        lazy_free: bool,
    },
    /// An access gets SIGBUS.
    Poison,
}

impl Pte {
    pub const fn present(content: Content) -> Pte {
        Pte::Present { content, shared: false, lazy_free: false }
    }
}

/// One page of address space.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Which mapping it belongs to; 0: none.
    pub mapping: u32,
    pub registered: bool,
    /// Cannot be moved to or from: another protection than the frames', or locked.
    pub stubborn: bool,
    pub pte: Pte,
}

const NOWHERE: Place = Place { mapping: 0, registered: false, stubborn: false, pte: Pte::Missing };

/// What userfaultfd tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message {
    Fault { thread: usize, page: PageNumber, write: bool },
    Event { thread: usize, event: Event },
}

/// Why an operation stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// An event is under way.
    TryLater,
    /// No memory.
    NoMemory,
    /// The target is populated.
    AlreadyThere,
    /// The target is not mapped, or the source has nothing.
    Missing,
    /// The source is shared.
    Busy,
    /// The mappings do not fit.
    Invalid,
}

/// How far an operation got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Progress {
    pub pages: usize,
    pub stop: Option<Stop>,
}

/// The kernel's side.
pub(super) struct Mm {
    places: Vec<Place>,
    pub frames: Vec<Option<Content>>,
    pub faults: VecDeque<Message>,
    pub events: VecDeque<Message>,
    /// Events whose task has not run to their end.
    pub changing: u32,
    /// The engine holds an event back, and fills nothing meanwhile.
    pub held: bool,
    last_mapping: u32,
    /// Parts of 1000.
    no_memory: u64,
}

impl Mm {
    pub fn new(span: u64, frames: usize, no_memory: u64) -> Self {
        Self {
            places: vec![NOWHERE; span as usize],
            frames: vec![None; frames],
            faults: VecDeque::new(),
            events: VecDeque::new(),
            changing: 0,
            held: false,
            last_mapping: 0,
            no_memory,
        }
    }

    /// The child of a fork: the same pages, shared from here on; no userfaultfd, no frames.
    pub fn fork(&mut self, frames: usize) -> Mm {
        for place in &mut self.places {
            if let Pte::Present { shared, .. } = &mut place.pte {
                *shared = true;
            }
        }
        let places = self.places.iter().map(|place| Place { registered: false, ..*place }).collect();
        Mm {
            places,
            frames: vec![None; frames],
            faults: VecDeque::new(),
            events: VecDeque::new(),
            changing: 0,
            held: false,
            last_mapping: self.last_mapping,
            no_memory: self.no_memory,
        }
    }

    pub fn all(&self) -> PageRange {
        PageRange { start: PageNumber(BASE), pages: self.places.len() as u64 }
    }

    pub fn at(&self, page: PageNumber) -> &Place {
        &self.places[(page.0 - BASE) as usize]
    }

    pub fn at_mut(&mut self, page: PageNumber) -> &mut Place {
        &mut self.places[(page.0 - BASE) as usize]
    }

    fn inside(&self, page: PageNumber) -> bool {
        self.all().contains(page)
    }

    pub fn is_present(&self, page: PageNumber) -> bool {
        self.inside(page) && matches!(self.at(page).pte, Pte::Present { .. })
    }

    /// Whether all of `range` is free address space.
    pub fn is_free(&self, range: PageRange) -> bool {
        range.end() <= self.all().end() && pages_of(range).all(|page| self.at(page).mapping == 0)
    }

    /// The pages around `page` that belong to its mapping.
    pub fn mapping_around(&self, page: PageNumber) -> PageRange {
        // What is registered and what is not the kernel keeps apart, also where a mapping has grown up to its own other part.
        let Place { mapping, registered, .. } = *self.at(page);
        let is_same = |other: &Place| other.mapping == mapping && other.registered == registered;
        let same = |page: PageNumber| self.inside(page) && is_same(self.at(page));
        let mut start = page;
        while start.0 > BASE && same(PageNumber(start.0 - 1)) {
            start = PageNumber(start.0 - 1);
        }
        let mut end = page.plus(1);
        while same(end) {
            end = end.plus(1);
        }
        PageRange { start, pages: end.0 - start.0 }
    }

    pub fn map(&mut self, range: PageRange, stubborn: bool) {
        self.last_mapping += 1;
        for page in pages_of(range) {
            *self.at_mut(page) = Place { mapping: self.last_mapping, stubborn, ..NOWHERE };
        }
    }

    /// The mapping before `range` grows by it.
    pub fn grow(&mut self, range: PageRange) {
        let before = *self.at(PageNumber(range.start.0 - 1));
        for page in pages_of(range) {
            *self.at_mut(page) = Place { pte: Pte::Missing, ..before };
        }
    }

    pub fn unmap(&mut self, range: PageRange) {
        for page in pages_of(range) {
            *self.at_mut(page) = NOWHERE;
        }
    }

    /// mremap: the pages of `from` are at `to`, in a mapping of their own.
    pub fn remap(&mut self, from: PageRange, to: PageNumber) {
        self.last_mapping += 1;
        for index in 0..from.pages {
            let old = std::mem::replace(self.at_mut(from.start.plus(index)), NOWHERE);
            *self.at_mut(to.plus(index)) = Place { mapping: self.last_mapping, ..old };
        }
    }

    /// madvise(MADV_DONTNEED), or MADV_FREE with `lazily`.
    pub fn drop_pages(&mut self, range: PageRange, lazily: bool) {
        for page in pages_of(range) {
            match &mut self.at_mut(page).pte {
                Pte::Present { lazy_free, .. } if lazily => *lazy_free = true,
                // A marker goes with either advice.
                pte => *pte = Pte::Missing,
            }
        }
    }

    /// Reads up to `most` messages: faults first.
    pub fn read(&mut self, most: usize) -> Vec<Message> {
        let mut read = Vec::new();
        while read.len() < most
            && let Some(message) = self.faults.pop_front().or_else(|| self.events.pop_front())
        {
            read.push(message);
        }
        read
    }

    /// Whether nothing can be filled: an event is under way, or held back.
    pub fn is_changing(&self) -> bool {
        self.changing > 0 || self.held
    }

    fn each(
        &mut self,
        page: PageNumber,
        pages: usize,
        mut one: impl FnMut(&mut Mm, usize) -> Option<Stop>,
    ) -> Progress {
        if self.is_changing() {
            return Progress { pages: 0, stop: Some(Stop::TryLater) };
        }
        for index in 0..pages {
            let target = page.plus(index as u64);
            if !self.inside(target) || !self.at(target).registered || self.at(target).mapping != self.at(page).mapping {
                return Progress { pages: index, stop: Some(Stop::Missing) };
            }
            if let Some(stop) = one(self, index) {
                return Progress { pages: index, stop: Some(stop) };
            }
        }
        Progress { pages, stop: None }
    }

    /// UFFDIO_COPY, and UFFDIO_ZEROPAGE with zeros.
    pub fn copy(&mut self, page: PageNumber, contents: &[Content], chance: &mut Chance) -> Progress {
        self.each(page, contents.len(), |mm, index| {
            if chance.happens(mm.no_memory, 1000) {
                return Some(Stop::NoMemory);
            }
            let place = mm.at_mut(page.plus(index as u64));
            if matches!(place.pte, Pte::Present { .. }) {
                return Some(Stop::AlreadyThere);
            }
            place.pte = Pte::present(contents[index]);
            None
        })
    }

    /// UFFDIO_MOVE of frames into the program.
    pub fn move_in(&mut self, page: PageNumber, frame: FrameId, pages: usize, chance: &mut Chance) -> Progress {
        if self.inside(page) && self.at(page).stubborn {
            return Progress { pages: 0, stop: Some(if self.is_changing() { Stop::TryLater } else { Stop::Invalid }) };
        }
        self.each(page, pages, |mm, index| {
            if chance.happens(mm.no_memory, 4000) {
                return Some(Stop::Busy);
            }
            let source = &mut mm.frames[frame.0 as usize + index];
            let Some(content) = *source else { return Some(Stop::Missing) };
            let place = &mm.places[(page.0 + index as u64 - BASE) as usize];
            if place.pte != Pte::Missing {
                return Some(Stop::AlreadyThere);
            }
            *source = None;
            mm.at_mut(page.plus(index as u64)).pte = Pte::present(content);
            None
        })
    }

    /// UFFDIO_MOVE of one page into a frame.
    pub fn move_out(&mut self, page: PageNumber, frame: FrameId, chance: &mut Chance) -> Option<Stop> {
        if self.is_changing() {
            return Some(Stop::TryLater);
        }
        if !self.inside(page) || self.at(page).mapping == 0 {
            return Some(Stop::Missing);
        }
        if self.at(page).stubborn {
            return Some(Stop::Invalid);
        }
        match self.at(page).pte {
            Pte::Missing | Pte::Poison => Some(Stop::Missing),
            Pte::Present { shared: true, .. } => Some(Stop::Busy),
            Pte::Present { .. } if chance.happens(self.no_memory, 4000) => Some(Stop::Busy),
            Pte::Present { content, .. } => {
                let target = &mut self.frames[frame.0 as usize];
                if target.is_some() {
                    return Some(Stop::AlreadyThere);
                }
                *target = Some(content);
                self.at_mut(page).pte = Pte::Missing;
                None
            }
        }
    }

    /// UFFDIO_POISON.
    pub fn poison(&mut self, page: PageNumber) {
        let registered = self.inside(page) && self.at(page).registered;
        if registered && !self.is_changing() && self.at(page).pte == Pte::Missing {
            self.at_mut(page).pte = Pte::Poison;
        }
    }
}

impl Mappings for Mm {
    fn is_registered(&self, range: PageRange) -> Option<bool> {
        let mapping = self.at(range.start).mapping;
        Some(pages_of(range).all(|page| self.at(page).registered && self.at(page).mapping == mapping))
    }

    fn is_present(&self, page: PageNumber) -> Option<bool> {
        Some(Mm::is_present(self, page))
    }
}

/// The pages of a range.
pub(super) fn pages_of(range: PageRange) -> impl Iterator<Item = PageNumber> {
    (range.start.0..range.end().0).map(PageNumber)
}
