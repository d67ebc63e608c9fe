//! The simulated program: threads that read, write, discard, move and unmap memory, and what each page must read as.

use uswap_core::{PageNumber, PageRange};

use super::mm::BASE;
use super::violation::{Checked, Checker, ensure};
use crate::page_content::Content;

/// What a thread is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doing {
    /// Its next step is its own choice.
    Ready,
    /// It was woken, and tries its access again.
    Retry(Access),
    /// It sleeps until its page is there.
    Faulting(Access),
    /// It has changed the mappings, and let go of their lock; its event is not there yet.
    Changed(Call),
    /// It sleeps until its event is read.
    Posted(Call),
    /// Its event was read: it goes on.
    Read(Call),
    /// It waits until its process may be copied.
    Forking,
}

/// An access to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Access {
    pub page: PageNumber,
    /// What is written; `None`: it reads.
    pub write: Option<Content>,
}

/// A system call with an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Discard {
        range: PageRange,
        lazily: bool,
    },
    Remap {
        from: PageRange,
        to: PageNumber,
    },
    /// The second part of a mremap has its new place in `arrived`.
    Unmap {
        range: PageRange,
        arrived: Option<PageRange>,
    },
}

impl Doing {
    /// The system call that it is in.
    pub fn call(self) -> Option<Call> {
        match self {
            Doing::Changed(call) | Doing::Posted(call) | Doing::Read(call) => Some(call),
            Doing::Ready | Doing::Retry(_) | Doing::Faulting(_) | Doing::Forking => None,
        }
    }
}

impl Call {
    /// Where memory arrives that the program does not have before the call has returned.
    pub fn arriving(self) -> Option<PageRange> {
        match self {
            Call::Remap { from, to } => Some(from.moved_to(to)),
            Call::Unmap { arrived, .. } => arrived,
            Call::Discard { .. } => None,
        }
    }
}

/// What a page may read as.
#[derive(Clone, Debug, Default)]
struct Expected {
    contents: Vec<Content>,
    /// It was written while it was being discarded: both are right.
    written_while_discarded: bool,
    /// It was given up as lost, for a reason.
    lost: bool,
}

/// What every page must read as.
#[derive(Clone)]
pub(super) struct Truth {
    pages: Vec<Expected>,
    discarding: Vec<PageRange>,
}

impl Truth {
    pub fn new(span: u64) -> Self {
        let zeros = Expected { contents: vec![Content::ZERO], ..Expected::default() };
        Self { pages: vec![zeros; span as usize], discarding: Vec::new() }
    }

    fn at(&mut self, page: PageNumber) -> &mut Expected {
        &mut self.pages[(page.0 - BASE) as usize]
    }

    /// In a forked child: discards that were under way in the parent never end here.
    pub fn forked(&self) -> Truth {
        Truth { pages: self.pages.clone(), discarding: Vec::new() }
    }

    pub fn wrote(&mut self, page: PageNumber, content: Content) {
        let is_discarding = self.discarding.iter().any(|range| range.contains(page));
        let expected = self.at(page);
        expected.contents = if is_discarding { vec![content, Content::ZERO] } else { vec![content] };
        expected.written_while_discarded |= is_discarding;
        expected.lost = false;
    }

    pub fn read(&mut self, page: PageNumber, content: Content) -> Checked {
        let expected = self.at(page);
        ensure(expected.contents.contains(&content), Checker::RightContent, || {
            format!("{page:?} reads as {content:?} instead of one of {:?}", expected.contents)
        })
    }

    /// What was seen is so from here on, as far as the kernel promises that.
    pub fn settle(&mut self, page: PageNumber, content: Content) {
        let is_discarding = self.discarding.iter().any(|range| range.contains(page));
        if !is_discarding {
            self.at(page).contents = vec![content];
        }
    }

    pub fn allows(&self, page: PageNumber, hash: u128) -> bool {
        let expected = &self.pages[(page.0 - BASE) as usize];
        expected.contents.iter().any(|content| content.hash() == hash)
    }

    pub fn expected(&self, page: PageNumber) -> &[Content] {
        &self.pages[(page.0 - BASE) as usize].contents
    }

    /// The content with this hash, which the books have at `page`, is lost. It may have been moved a moment ago.
    pub fn lose(&mut self, page: PageNumber, hash: u128) {
        self.at(page).lost = true;
        for expected in &mut self.pages {
            expected.lost |= expected.contents.iter().any(|content| content.hash() == hash);
        }
    }

    pub fn is_lost(&self, page: PageNumber) -> bool {
        self.pages[(page.0 - BASE) as usize].lost
    }

    pub fn discard_begins(&mut self, range: PageRange) {
        for number in range.start.0..range.end().0 {
            let expected = self.at(PageNumber(number));
            expected.contents.push(Content::ZERO);
            expected.contents.dedup();
            if !self.discarding.iter().any(|other| other.contains(PageNumber(number))) {
                self.at(PageNumber(number)).written_while_discarded = false;
            }
        }
        self.discarding.push(range);
    }

    /// `lazily`: the pages may still have their content.
    pub fn discard_ends(&mut self, range: PageRange, lazily: bool) {
        let index = self.discarding.iter().position(|other| *other == range).expect("it has begun");
        self.discarding.swap_remove(index);
        for number in range.start.0..range.end().0 {
            let expected = self.at(PageNumber(number));
            if !lazily && !expected.written_while_discarded {
                expected.contents = vec![Content::ZERO];
                expected.lost = false;
            }
        }
    }

    /// The kernel has dropped the page after MADV_FREE.
    pub fn dropped(&mut self, page: PageNumber) {
        self.at(page).contents = vec![Content::ZERO];
    }

    pub fn is_discarding(&self, range: PageRange) -> bool {
        self.discarding.iter().any(|other| other.overlaps(range))
    }

    pub fn mapped(&mut self, range: PageRange) {
        for number in range.start.0..range.end().0 {
            *self.at(PageNumber(number)) = Expected { contents: vec![Content::ZERO], ..Expected::default() };
        }
    }

    pub fn moved(&mut self, from: PageRange, to: PageNumber) {
        for index in 0..from.pages {
            let old = std::mem::take(self.at(from.start.plus(index)));
            *self.at(to.plus(index)) = old;
        }
    }
}
