//! swapoff: bringing home every page of an area, era by era.
//!
//! Each era is a machine that is asked for its next operation ([`Swapoff::next_op`]) and changes the books as it goes
//! ([`SwapoffBooks`]): whoever drives it puts a price on the operation, lets reads take their time, and may change the books
//! between two operations, as threads that fault at the same time do. The driver takes the area out of service before, and
//! lets it go or puts it back after.
//!
//! Slots of a read are in the swap cache from the moment the read is submitted; [`Op::Wait`] is where the kernel sleeps until
//! the bytes are there.

mod by_slot;
mod by_table;
mod era;
mod unuse_books;
mod walk;

pub use by_table::TableDrain;
pub use era::{SwapoffEra, UnknownEra};
pub use unuse_books::{Place, ReadaheadBooks, SlotTable, SwapoffBooks};

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use self::by_slot::SlotCursor;
use self::walk::WalkCursor;
use super::do_swap_page::{Caller, Read, SwapInPath, SwappedIn};
use super::errno::Errno;
use super::shmem::{FilePage, SearchSteps};
use super::swap_entry::SwapEntry;
use super::swapin_readahead::{Mapping, VmaReadahead, Window};

/// One thing that swapoff does, in the order in which it does it. Slots are of the area that is going off, but for reads of
/// neighbours by address, which may be of any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Looks at so many page-table entries; the last one may be a swap entry of the area.
    ScanPtes {
        /// Entries.
        ptes: u64,
    },
    /// Looks at so many bytes of the swap map.
    ScanMap {
        /// Slots.
        slots: u64,
    },
    /// Compares so many page-table entries with one slot's, to find who refers to it.
    SearchPtes {
        /// Entries.
        ptes: u64,
    },
    /// Looks through files.
    SearchFiles(SearchSteps),
    /// Looks a slot up in the swap cache.
    Lookup {
        /// Whether the page is there.
        found: bool,
    },
    /// Works out a readahead window.
    Window {
        /// What the rule says, in pages.
        pages: u32,
        /// Slots or page-table entries that it looks at then, to see which are to be read.
        probed: u32,
    },
    /// Allocates pages and asks the device for adjacent slots.
    Read {
        /// The area of the slots.
        area: u8,
        /// The first slot.
        first: u64,
        /// How many.
        slots: u32,
        /// Those of them that hold a page; fewer where small holes are read over.
        live: u32,
    },
    /// What was asked for goes to the device together: what is adjacent on it may be merged.
    Submit,
    /// Reads one slot at once, outside of the swap cache.
    ReadDirect {
        /// The slot.
        slot: u64,
    },
    /// Sleeps until a slot's page has been read.
    Wait {
        /// The slot.
        slot: u64,
    },
    /// Maps the page of a slot at one page-table entry and drops a reference.
    Map {
        /// The slot.
        slot: u64,
    },
    /// Puts the page of a slot into its file.
    IntoFile {
        /// The slot.
        slot: u64,
    },
    /// Writes the new place of so many pages into our swap table.
    Relocate {
        /// Pages.
        pages: u64,
    },
    /// Frees so many slots, which takes their pages out of the swap cache.
    Free {
        /// Slots.
        slots: u64,
    },
    /// A pass is over and slots are still in use: everything again.
    PassOver {
        /// Slots in use.
        left: u64,
    },
}

/// What a page is for, while it is being read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    /// A page-table entry.
    Pte(Place),
    /// A page of a file.
    File(super::shmem::FileId, u64),
    /// Whoever refers to the slot.
    Owners,
}

#[derive(Clone, Copy)]
struct Pending {
    entry: SwapEntry,
    target: Target,
}

enum Cursor {
    Walk(WalkCursor),
    Slots(SlotCursor),
}

/// A swapoff under way.
pub struct Swapoff {
    area: u8,
    era: SwapoffEra,
    cursor: Cursor,
    /// Operations that have been done in the books and not been told.
    told: VecDeque<Op>,
    pending: Option<Pending>,
    reads: Vec<Read>,
    read_failed: bool,
    interrupted: bool,
    result: Option<Result<(), Errno>>,
}

impl Swapoff {
    /// A swapoff of an area that is out of service.
    pub fn new(era: SwapoffEra, area: u8) -> Self {
        let cursor = match era.owner_search() {
            Some(search) => Cursor::Slots(SlotCursor::new(search)),
            None => Cursor::Walk(WalkCursor::default()),
        };
        Self {
            area,
            era,
            cursor,
            told: VecDeque::new(),
            pending: None,
            reads: Vec::new(),
            read_failed: false,
            interrupted: false,
            result: None,
        }
    }

    /// How it ended; `None` while it has not. [`Errno::EINTR`], [`Errno::ENOMEM`] and [`Errno::EBUSY`] leave pages in the
    /// area, which is to be put back into service.
    pub fn result(&self) -> Option<Result<(), Errno>> {
        self.result
    }

    /// A signal is pending: it ends with [`Errno::EINTR`] after the page that it is at.
    pub fn interrupt(&mut self) {
        self.interrupted = true;
    }

    /// The read that the last [`Op::Wait`] or [`Op::ReadDirect`] named has failed: whoever has the page gets a poison marker
    /// for it.
    pub fn read_failed(&mut self) {
        self.read_failed = true;
    }

    /// The next operation; `None` at the end, see [`result`](Self::result). `path` is the machine's, with the era's
    /// [`preset`](SwapoffEra::preset).
    pub fn next_op<B: SwapoffBooks>(&mut self, books: &mut B, path: &mut SwapInPath) -> Option<Op> {
        loop {
            if let Some(op) = self.told.pop_front() {
                return Some(op);
            }
            if self.result.is_some() {
                return None;
            }
            if let Some(pending) = self.pending.take() {
                self.bring_home(pending, books);
                self.read_failed = false;
            } else if self.interrupted {
                self.result = Some(Err(Errno::EINTR));
            } else {
                match self.cursor {
                    Cursor::Walk(_) => self.walk(books, path),
                    Cursor::Slots(_) => self.next_slot(books),
                }
            }
        }
    }

    fn tell(&mut self, op: Op) {
        self.told.push_back(op);
    }

    fn end(&mut self, result: Result<(), Errno>) {
        self.result = Some(result);
    }

    /// Gets the page of a slot by the way in that faults use too, and remembers what for.
    fn want<B: SwapoffBooks>(&mut self, entry: SwapEntry, target: Target, books: &mut B, path: &mut SwapInPath) {
        let mut state = VmaReadahead::default();
        let mut reads = core::mem::take(&mut self.reads);
        reads.clear();
        let cached = books.is_cached(entry);
        let swapped_in = match target {
            Target::Pte(place) => {
                state = books.readahead(place.mapping);
                let mapping = Mapping { state: &mut state, region: books.region(place.mapping), page: place.page };
                let caller = Caller::Swapoff(mapping);
                path.swap_in(entry, caller, &mut ReadaheadBooks { books, mapping: place.mapping }, &mut reads)
            }
            // A window by slot looks at no mapping.
            Target::File(..) | Target::Owners => {
                path.swap_in(entry, Caller::Shmem, &mut ReadaheadBooks { books, mapping: 0 }, &mut reads)
            }
        };
        if let Target::Pte(place) = target {
            books.set_readahead(place.mapping, state);
        }
        if path.preset().swapoff_looks_first || matches!(target, Target::File(..)) {
            self.tell(Op::Lookup { found: cached });
        }
        let one_by_one = matches!(swapped_in.window, Some(Window::Pages(_)));
        if let Some(window) = &swapped_in.window {
            let probed = window.range().end.saturating_sub(window.range().start) as u32;
            self.tell(Op::Window { pages: window.size(), probed });
        }
        let got = self.read(entry, &reads, one_by_one, books);
        self.reads = reads;
        match swapped_in.outcome {
            _ if got.is_err() => return self.end(Err(Errno::ENOMEM)),
            SwappedIn::Gone => return,
            SwappedIn::Hit | SwappedIn::Miss => self.tell(Op::Wait { slot: entry.slot }),
            SwappedIn::Bypass => {
                if books.read(entry, false).is_err() {
                    return self.end(Err(Errno::ENOMEM));
                }
                self.tell(Op::ReadDirect { slot: entry.slot });
            }
        }
        self.pending = Some(Pending { entry, target });
    }

    /// Puts slots into the swap cache and tells the reads, adjacent slots of a block as one. Without memory for a page that
    /// nobody has asked for yet, that page is left out.
    fn read<B: SwapoffBooks>(
        &mut self,
        wanted: SwapEntry,
        reads: &[Read],
        one_by_one: bool,
        books: &mut B,
    ) -> Result<(), Errno> {
        let mut run: Option<(SwapEntry, u32)> = None;
        let mut told = 0;
        for read in reads {
            if let Err(no_memory) = books.read(read.entry, read.ahead) {
                if read.entry == wanted {
                    return Err(no_memory);
                }
                continue;
            }
            let goes_on = |&(first, slots): &(SwapEntry, u32)| {
                !one_by_one && first.area == read.entry.area && first.slot + u64::from(slots) == read.entry.slot
            };
            match run.filter(goes_on) {
                Some((first, slots)) => run = Some((first, slots + 1)),
                None => {
                    told += self.tell_run(run);
                    run = Some((read.entry, 1));
                }
            }
        }
        told += self.tell_run(run);
        if told > 0 {
            self.tell(Op::Submit);
        }
        Ok(())
    }

    fn tell_run(&mut self, run: Option<(SwapEntry, u32)>) -> u32 {
        let Some((first, slots)) = run else { return 0 };
        self.tell(Op::Read { area: first.area, first: first.slot, slots, live: slots });
        1
    }

    /// The page of a slot has been read: it goes where it belongs, unless it does not belong there any more.
    fn bring_home<B: SwapoffBooks>(&mut self, pending: Pending, books: &mut B) {
        let Pending { entry, target } = pending;
        match target {
            Target::Pte(place) => {
                if books.swap_pte(place) == Some(entry) {
                    self.map(place, entry, books);
                }
            }
            Target::File(file, index) => {
                if books.files().page(file, index) == Some(FilePage::Swapped(entry)) {
                    self.tell(Op::IntoFile { slot: entry.slot });
                    books.give_to_file(file, index, self.read_failed);
                }
            }
            Target::Owners => self.bring_to_owners(entry, books),
        }
        if books.free_if_unused(entry) {
            self.tell(Op::Free { slots: 1 });
        }
    }

    fn map<B: SwapoffBooks>(&mut self, place: Place, entry: SwapEntry, books: &mut B) {
        books.map(place, self.read_failed);
        self.tell(Op::Map { slot: entry.slot });
    }
}

#[cfg(test)]
mod tests;
