//! swapoff since 5.1: through the files first, then through the page tables of every address space, then through the map for
//! what only the swap cache still holds; again while slots are in use.

use alloc::collections::VecDeque;

use super::unuse_books::{Place, SwapoffBooks};
use super::{Cursor, Op, Swapoff, Target};
use crate::do_swap_page::SwapInPath;
use crate::errno::Errno;
use crate::shmem::FileId;
use crate::swap_entry::SwapEntry;
use uswap_core::units::PageNumber;

/// Where the walk is.
#[derive(Clone, Default)]
pub(super) struct WalkCursor {
    at: At,
    /// Passes that are over.
    passes: u64,
}

#[derive(Clone, Default)]
enum At {
    /// Files that were on the swap list when the pass began.
    Files { left: VecDeque<FileId>, last_index: Option<u64>, batch: VecDeque<(u64, SwapEntry)> },
    /// A page-table entry.
    Ptes { space: usize, mapping: usize, page: Option<PageNumber> },
    /// A slot of the map.
    Map { slot: u64 },
    /// Before a pass.
    #[default]
    Start,
}

impl Swapoff {
    /// Goes on to the next page that is to be brought home, or to the next part of the pass.
    pub(super) fn walk<B: SwapoffBooks>(&mut self, books: &mut B, path: &mut SwapInPath) {
        if books.in_use(self.area) == 0 {
            return self.end(Ok(()));
        }
        match &self.cursor_at().at {
            At::Start => {
                let left = books.files().swap_list().collect();
                self.cursor_at().at = At::Files { left, last_index: None, batch: VecDeque::new() };
            }
            At::Files { .. } => self.walk_files(books, path),
            At::Ptes { .. } => self.walk_ptes(books, path),
            At::Map { .. } => self.walk_map(books),
        }
    }

    fn cursor_at(&mut self) -> &mut WalkCursor {
        match &mut self.cursor {
            Cursor::Walk(cursor) => cursor,
            Cursor::Slots(_) => unreachable!("an era goes one way"),
        }
    }

    fn walk_files<B: SwapoffBooks>(&mut self, books: &mut B, path: &mut SwapInPath) {
        let (area, most) = (self.area, self.era.batch());
        let At::Files { left, last_index, batch } = &mut self.cursor_at().at else { unreachable!() };
        let Some(&file) = left.front() else {
            let mapping = (0..books.spaces()).map(|space| books.mappings(space).start).next().unwrap_or(0);
            self.cursor_at().at = At::Ptes { space: 0, mapping, page: None };
            return;
        };
        if let Some((index, entry)) = batch.pop_front() {
            return self.want(entry, Target::File(file, index), books, path);
        }
        let next = books.files().next_batch(file, area, *last_index, most);
        match next.found.last() {
            Some(&(index, _)) => *last_index = Some(index),
            None => {
                left.pop_front();
                *last_index = None;
            }
        }
        *batch = next.found.into();
        self.tell(Op::SearchFiles(next.steps));
    }

    fn walk_ptes<B: SwapoffBooks>(&mut self, books: &mut B, path: &mut SwapInPath) {
        let area = self.area;
        let At::Ptes { space, mapping, page } = &mut self.cursor_at().at else { unreachable!() };
        if *space == books.spaces() {
            self.cursor_at().at = At::Map { slot: 1 };
            return;
        }
        let mappings = books.mappings(*space);
        if *mapping < mappings.start {
            *mapping = mappings.start;
        }
        if *mapping >= mappings.end {
            *space += 1;
            return;
        }
        let region = books.region(*mapping);
        let first = page.unwrap_or(region.start);
        let place = |page: u64| Place { mapping: *mapping, page: PageNumber(page) };
        let found = (first.0..region.end().0)
            .find_map(|page| books.swap_pte(place(page)).filter(|entry| entry.area == area).map(|entry| (page, entry)));
        let ptes = found.map_or(region.end().0, |(page, _)| page + 1) - first.0;
        let wanted = found.map(|(page, entry)| (place(page), entry));
        match found {
            Some((at, _)) => *page = Some(PageNumber(at + 1)),
            None => {
                *mapping += 1;
                *page = None;
            }
        }
        if ptes > 0 {
            self.tell(Op::ScanPtes { ptes });
        }
        if let Some((place, entry)) = wanted {
            self.want(entry, Target::Pte(place), books, path);
        }
    }

    fn walk_map<B: SwapoffBooks>(&mut self, books: &mut B) {
        let (area, passes_max) = (self.area, self.era.passes_max());
        let slots = books.area(area).map_or(0, |area| area.slots);
        let At::Map { slot: from } = self.cursor_at().at else { unreachable!() };
        let used = books.next_used(area, from);
        self.tell(Op::ScanMap { slots: used.map_or(slots, |slot| slot + 1).saturating_sub(from) });
        if let Some(slot) = used {
            self.cursor_at().at = At::Map { slot: slot + 1 };
            let entry = SwapEntry { area, slot };
            if books.is_cached(entry) && books.free_if_unused(entry) {
                self.tell(Op::Free { slots: 1 });
            }
            return;
        }
        let left = books.in_use(area);
        if left == 0 {
            return self.end(Ok(()));
        }
        let cursor = self.cursor_at();
        cursor.passes += 1;
        cursor.at = At::Start;
        if cursor.passes == passes_max {
            return self.end(Err(Errno::EBUSY));
        }
        self.tell(Op::PassOver { left });
    }
}
