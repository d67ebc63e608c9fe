//! swapoff up to 5.0: the next slot in use, its page read alone and waited for, and then everybody searched for who refers to
//! it.
//!
//! Address spaces are searched from the one where the last search ended, each from its first page-table entry. What such a
//! walk compares is counted, not done: the books know the place.

use super::unuse_books::SwapoffBooks;
use super::{Cursor, Op, Pending, Swapoff, Target};
use crate::errno::Errno;
use crate::shmem::OwnerSearch;
use crate::swap_entry::SwapEntry;

/// Where the walk through the map is.
#[derive(Clone)]
pub(super) struct SlotCursor {
    search: OwnerSearch,
    slot: u64,
    /// The address space of the last hit.
    space: usize,
}

impl SlotCursor {
    pub fn new(search: OwnerSearch) -> Self {
        Self { search, slot: 0, space: 0 }
    }
}

impl Swapoff {
    fn slot_cursor(&mut self) -> &mut SlotCursor {
        match &mut self.cursor {
            Cursor::Slots(cursor) => cursor,
            Cursor::Walk(_) => unreachable!("an era goes one way"),
        }
    }

    /// Goes on to the next slot in use, round the end of the map.
    pub(super) fn next_slot<B: SwapoffBooks>(&mut self, books: &mut B) {
        let area = self.area;
        let slots = books.area(area).map_or(0, |area| area.slots);
        let last = self.slot_cursor().slot;
        let (slot, scanned) = match books.next_used(area, last + 1) {
            Some(slot) => (slot, slot - last),
            None => match books.next_used(area, 1) {
                Some(slot) => {
                    self.tell(Op::PassOver { left: books.in_use(area) });
                    (slot, slots - 1 - last + slot)
                }
                None => {
                    self.tell(Op::ScanMap { slots: slots - 1 - last });
                    return self.end(Ok(()));
                }
            },
        };
        self.slot_cursor().slot = slot;
        self.tell(Op::ScanMap { slots: scanned });
        let entry = SwapEntry { area, slot };
        let cached = books.is_cached(entry);
        self.tell(Op::Lookup { found: cached });
        if !cached {
            if books.read(entry, false).is_err() {
                return self.end(Err(Errno::ENOMEM));
            }
            self.tell(Op::Read { area, first: slot, slots: 1, live: 1 });
            self.tell(Op::Submit);
        }
        self.tell(Op::Wait { slot });
        self.pending = Some(Pending { entry, target: Target::Owners });
    }

    /// Finds everybody who refers to a slot, and gives them the page.
    pub(super) fn bring_to_owners<B: SwapoffBooks>(&mut self, entry: SwapEntry, books: &mut B) {
        let search = self.slot_cursor().search;
        if books.files().owner(entry).is_some() {
            let (owner, steps) = books.files_mut().find_owner(entry, search);
            self.tell(Op::SearchFiles(steps));
            if let Some((file, index)) = owner {
                books.give_to_file(file, index, self.read_failed);
                self.tell(Op::IntoFile { slot: entry.slot });
            }
            return;
        }
        let spaces = books.spaces();
        let start = self.slot_cursor().space;
        for space in (start..spaces).chain(0..start.min(spaces)) {
            if books.count(entry) == 0 {
                break;
            }
            self.search_space(space, entry, books);
        }
    }

    /// One address space may refer to a slot more than once; a walk ends at the first hit.
    fn search_space<B: SwapoffBooks>(&mut self, space: usize, entry: SwapEntry, books: &mut B) {
        while books.count(entry) > 0 {
            let hit = books.first_place(space, entry);
            let mappings = books.mappings(space);
            let whole = hit.map_or(mappings.end, |place| place.mapping);
            let mut ptes: u64 = (mappings.start..whole).map(|mapping| books.region(mapping).pages).sum();
            if let Some(place) = hit {
                ptes += place.page.0 - books.region(place.mapping).start.0 + 1;
            }
            self.tell(Op::SearchPtes { ptes });
            let Some(place) = hit else { return };
            self.slot_cursor().space = space;
            self.map(place, entry, books);
        }
    }
}
