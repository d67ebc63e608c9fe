//! The oracle: what each page of a program must read as, whatever the engine does.
//!
//! It is told at the moment at which the kernel does each thing. What a discarding leaves is open while it is under way, and what
//! was given up lazily may go until it is written to.

use std::ops::Range;

use crate::page_content::Content;

/// What a page may read as.
#[derive(Clone, Debug, Default)]
struct Expected {
    contents: Vec<Content>,
    /// It was written while it was being discarded: both are right.
    written_while_discarded: bool,
}

impl Expected {
    fn zeros() -> Expected {
        Expected { contents: vec![Content::ZERO], ..Expected::default() }
    }
}

/// What every page must read as.
#[derive(Clone)]
pub struct Oracle {
    base: usize,
    pages: Vec<Expected>,
    discarding: Vec<Range<usize>>,
}

impl Oracle {
    pub(crate) fn new(base: usize, span: usize) -> Oracle {
        Oracle { base, pages: vec![Expected::zeros(); span], discarding: Vec::new() }
    }

    fn at(&mut self, page: usize) -> &mut Expected {
        &mut self.pages[page - self.base]
    }

    fn is_discarding(&self, page: usize) -> bool {
        self.discarding.iter().any(|range| range.contains(&page))
    }

    /// In a forked child: discards that were under way in the parent never end here.
    pub(crate) fn forked(&self) -> Oracle {
        Oracle { base: self.base, pages: self.pages.clone(), discarding: Vec::new() }
    }

    /// What `page` may read as.
    pub fn expected(&self, page: usize) -> &[Content] {
        &self.pages[page - self.base].contents
    }

    pub(crate) fn wrote(&mut self, page: usize, content: Content) {
        let is_discarding = self.is_discarding(page);
        let expected = self.at(page);
        expected.contents = if is_discarding { vec![content, Content::ZERO] } else { vec![content] };
        expected.written_while_discarded |= is_discarding;
    }

    /// Whether `page` may read as `content`. What was seen is so from here on, unless `may_go`.
    pub(crate) fn read(&mut self, page: usize, content: Content, may_go: bool) -> bool {
        let is_open = may_go || self.is_discarding(page);
        let expected = self.at(page);
        let is_right = expected.contents.contains(&content);
        if is_right && !is_open {
            expected.contents = vec![content];
        }
        is_right
    }

    pub(crate) fn discard_begins(&mut self, range: Range<usize>) {
        for page in range.clone() {
            let is_discarding = self.is_discarding(page);
            let expected = self.at(page);
            if !expected.contents.contains(&Content::ZERO) {
                expected.contents.push(Content::ZERO);
            }
            if !is_discarding {
                expected.written_while_discarded = false;
            }
        }
        self.discarding.push(range);
    }

    /// What began for `range` has been done to `part` of it. `lazily`: the pages may still have their content.
    pub(crate) fn discard_ends(&mut self, range: &Range<usize>, part: &Range<usize>, lazily: bool) {
        let index = self.discarding.iter().position(|other| other == range).expect("it has begun");
        self.discarding.swap_remove(index);
        for page in part.clone() {
            let expected = self.at(page);
            if !lazily && !expected.written_while_discarded {
                expected.contents = vec![Content::ZERO];
            }
        }
    }

    /// Fresh memory, or none.
    pub(crate) fn fresh(&mut self, range: Range<usize>) {
        for page in range {
            *self.at(page) = Expected::zeros();
        }
    }

    pub(crate) fn moved(&mut self, from: Range<usize>, to: usize) {
        let old: Vec<Expected> = from.clone().map(|page| std::mem::replace(self.at(page), Expected::zeros())).collect();
        for (index, expected) in old.into_iter().enumerate() {
            *self.at(to + index) = expected;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_while_it_is_discarded_may_stay_or_go() {
        let mut oracle = Oracle::new(10, 4);
        let (one, two) = (Content(1), Content(2));
        oracle.wrote(11, one);
        assert!(oracle.read(11, one, false) && !oracle.read(11, two, false));
        oracle.discard_begins(11..13);
        assert!(oracle.read(11, one, false) && oracle.read(11, Content::ZERO, false));
        oracle.wrote(11, two);
        oracle.discard_ends(&(11..13), &(11..13), false);
        assert!(!oracle.read(11, one, false) && oracle.read(11, two, false));
        assert_eq!(oracle.expected(12), [Content::ZERO]);
        oracle.moved(11..12, 13);
        assert_eq!(oracle.expected(13), [two]);
        assert_eq!(oracle.expected(11), [Content::ZERO]);
    }

    #[test]
    fn what_was_given_up_lazily_may_go_until_it_is_written() {
        let mut oracle = Oracle::new(10, 4);
        oracle.wrote(10, Content(1));
        oracle.discard_begins(10..11);
        oracle.discard_ends(&(10..11), &(10..11), true);
        assert!(oracle.read(10, Content(1), true) && oracle.read(10, Content::ZERO, false));
        assert!(!oracle.read(10, Content(1), false));
    }
}
