//! What a fault means for a page in each state.

use crate::ahead::HOLE_MAX;
use crate::core::Core;
use crate::defects::{Sabotage, is_on};
use crate::entry::{AreaId, EntryId, Epoch, Location};
use crate::page_table::{OpId, PageState, PageTable};
use crate::readahead::Window;
use crate::reclaim::order::Came;
use crate::swap_cache::{FrameBlock, FrameId, FrameUse};
use crate::swap_table::SwapTable;
use crate::units::{BLOCK_PAGES, PageNumber, PageRange};

/// Most pages of one window.
pub const MAX_WINDOW: usize = BLOCK_PAGES;

/// Pages from which on a move is cheaper than a copy: a move makes every other CPU that runs the process drop its TLB, a
/// copy into an empty page does not.
pub const MOVE_PAGES_MIN: usize = 4;

/// What to do about a fault.
#[expect(clippy::large_enum_variant, reason = "lives on the stack of one handler; nothing may be allocated there")]
#[derive(Clone, Copy, Debug)]
#[must_use]
pub enum FaultPlan {
    /// The page is not adopted. Once no event is unread it is new memory that an mremap has grown: adopt it.
    NotAdopted,
    /// Map zeros; then [`Core::zeros_installed`].
    Zero {
        /// Pages to map, the faulting one among them.
        range: PageRange,
        /// Names the swap-in.
        op: OpId,
    },
    /// Move frames back; then [`Core::restored`].
    Restore {
        /// First page; page `first + i` is in frame `frame + i`.
        first: PageNumber,
        /// First frame.
        frame: FrameId,
        /// How many.
        pages: u32,
    },
    /// Read or decompress, then move in; each page ends in one of the `load_…` verbs.
    Load(LoadPlan),
    /// Another thread is at it and will wake the faulting one.
    Wait,
    /// The books say that the page is there: wake the thread, but check (see the engine).
    Present,
    /// The content is lost.
    Poisoned,
}

/// What it means that a resident page is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Vanished {
    /// The program has discarded it.
    Discarded,
    /// Its content is lost.
    Lost,
}

/// Pages to bring in: side by side, or elsewhere, which then land in buffers.
#[derive(Clone, Copy, Debug)]
pub struct LoadPlan {
    /// Names the swap-in.
    pub op: OpId,
    /// The pages, in address order where a thread waits for one; only the first [`count`](Self::count) are meant.
    pub pages: [LoadPage; MAX_WINDOW],
    /// How many pages.
    pub count: usize,
    /// Which of them the thread waits for; none where pages are read ahead.
    pub faulting: Option<usize>,
    /// From which page to before which they go to the program; the others rest in the swap cache.
    pub(crate) mapped: (usize, usize),
    /// Pages brought along earlier that were used, for the statistics.
    pub hits: u32,
}

impl LoadPlan {
    /// Of one page, with which the books have nothing to do.
    pub(crate) fn alone(page: PageNumber, entry: EntryId, table: &SwapTable) -> LoadPlan {
        let load = LoadPage {
            page,
            entry: Some(entry),
            location: table.location(entry),
            epoch: table.epoch_of(entry),
            hash: table.hash(entry),
            landing: Landing::Buffer,
        };
        let mut pages = [NO_PAGE; MAX_WINDOW];
        pages[0] = load;
        LoadPlan { op: OpId(0), pages, count: 1, faulting: Some(0), mapped: (0, 1), hits: 0 }
    }

    /// The pages.
    pub fn pages(&self) -> &[LoadPage] {
        &self.pages[..self.count]
    }

    /// The run of addresses that holds the pages from `index` on.
    pub fn span_from(&self, index: usize) -> PageRange {
        let pages = || self.pages()[index..].iter().map(|load| load.page);
        let (first, last) = (pages().min().expect("a page is left"), pages().max().expect("a page is left"));
        PageRange { start: first, pages: last.0 - first.0 + 1 }
    }

    /// Whether any of them is on an area.
    pub fn reads_area(&self) -> bool {
        let on_area = |load: &LoadPage| load.entry.is_some() && matches!(load.location, Location::Slot { .. });
        self.pages().iter().any(on_area)
    }

    /// Which of them go to the program; the others rest in the swap cache.
    pub fn mapped(&self) -> core::ops::Range<usize> {
        self.mapped.0..self.mapped.1
    }
}

/// What a page that went to the program left behind in its frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameLeft {
    /// Nothing: the memory itself was moved.
    Empty,
    /// The memory: the content was copied.
    Populated,
}

/// Where the content of a page is put before it goes to the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Landing {
    /// A free frame, moved in without a copy.
    Frame(FrameId),
    /// None was free: a buffer of the thread, copied in.
    Buffer,
}

/// One page of a [`LoadPlan`].
#[derive(Clone, Copy, Debug)]
pub struct LoadPage {
    /// The page.
    pub page: PageNumber,
    /// Its entry (pinned); `None`: all zeros.
    pub entry: Option<EntryId>,
    /// Where the content is (meaningless for zeros).
    pub location: Location,
    /// Who stored it.
    pub epoch: Epoch,
    /// Its hash.
    pub hash: u128,
    /// Where it is to be put.
    pub landing: Landing,
}

const NO_PAGE: LoadPage = LoadPage {
    page: PageNumber(0),
    entry: None,
    location: Location::Pool { handle: 0, len: 0 },
    epoch: Epoch(0),
    hash: 0,
    landing: Landing::Buffer,
};

impl Core {
    /// A thread touched `page`, which is not mapped.
    pub fn fault(&mut self, page: PageNumber, write: bool) -> FaultPlan {
        let Some(state) = self.pages.get(page) else { return FaultPlan::NotAdopted };
        self.eviction.order.just_asked.note(page);
        let comes_in = matches!(state, PageState::Untouched | PageState::Swapped { .. } | PageState::SwappedZero);
        if comes_in && self.pages.is_isolating(page) {
            if let Some(block) = self.pages.block_mut(page) {
                block.wanted |= 1 << page.index_in_block();
            }
            return FaultPlan::Wait;
        }
        match state {
            PageState::Resident { .. } => FaultPlan::Present,
            PageState::Poisoned => FaultPlan::Poisoned,
            PageState::ReadingIn { .. } => FaultPlan::Wait,
            PageState::InFrame { frame } => self.fault_in_frame(page, frame),
            PageState::Untouched => self.fault_untouched(page, write),
            PageState::Swapped { .. } | PageState::SwappedZero => self.fault_swapped(page),
        }
    }

    fn fault_in_frame(&mut self, page: PageNumber, frame: FrameId) -> FaultPlan {
        let record = self.cache.frame_mut(frame);
        assert!(record.owner == Some(page), "{page:?} is in {frame:?}, which belongs to {:?}", record.owner);
        if record.state != FrameUse::Cached {
            record.wanted = true;
            self.touched(frame);
            return FaultPlan::Wait;
        }
        // Blocks move out whole, so a stream that comes back finds its pages side by side.
        let window = self.window(page);
        let mut pages = 0;
        while pages <= window.after() {
            let (next_page, next_frame) = (page.plus(u64::from(pages)), FrameId(frame.0 + pages));
            let there = next_frame.block() == frame.block()
                && self.pages.get(next_page) == Some(PageState::InFrame { frame: next_frame })
                && self.cache.frame(next_frame).state == FrameUse::Cached;
            if !there {
                break;
            }
            self.cache.restore(next_frame);
            pages += 1;
        }
        self.windows.streams.brought(page, window, pages);
        self.go_ahead(window, pages, 0);
        FaultPlan::Restore { first: page, frame, pages }
    }

    fn fault_untouched(&mut self, page: PageNumber, write: bool) -> FaultPlan {
        let op = self.next_op();
        let window = self.windows.streams.window(page);
        let mut end = page;
        // Pages that are read before they are written stay the shared zero page: no memory is spent on them.
        let after = if write { window.after() } else { 0 };
        while end.0 <= page.0 + u64::from(after)
            && self.pages.get(end) == Some(PageState::Untouched)
            && !self.pages.is_isolating(end)
        {
            self.pages.set(end, PageState::ReadingIn { entry: None, op });
            end = end.plus(1);
        }
        self.windows.streams.brought(page, window, (end.0 - page.0) as u32);
        self.counts.loads_in_flight += 1;
        FaultPlan::Zero { range: PageRange { start: page, pages: end.0 - page.0 }, op }
    }

    fn fault_swapped(&mut self, page: PageNumber) -> FaultPlan {
        let op = self.next_op();
        let window = self.window(page);
        let mut count = 1;
        while count < window.pages as usize && window.page(page, count as u32).is_some_and(|page| self.is_swapped(page))
        {
            count += 1;
        }
        self.windows.streams.brought(page, window, count as u32);
        // Holes are known of neighbours alone.
        self.go_ahead(window, count as u32, if window.step.unsigned_abs() == 1 { HOLE_MAX } else { 0 });
        // In address order.
        let (mut start, mut step) = match window.step {
            step @ ..0 => (window.page(page, count as u32 - 1).expect("looked at above"), -step as u64),
            step => (page, step as u64),
        };
        let mut block = None;
        let mut around = false;
        if count >= MOVE_PAGES_MIN && step == 1 {
            block = self.free_block(count as u64);
        } else if count == 1 {
            let range = self.around(page);
            // Without frames to land in, nothing can rest in the swap cache.
            block = if range.pages > 1 { self.free_block(range.pages) } else { None };
            if block.is_some() {
                around = true;
                (start, step, count) = (range.start, 1, range.pages as usize);
            }
        }
        let mut pages = [NO_PAGE; MAX_WINDOW];
        for (index, slot) in pages[..count].iter_mut().enumerate() {
            *slot = self.plan_load(start.plus(index as u64 * step), index, block, op);
        }
        self.counts.loads_in_flight += count as u32;
        self.counts.swapped_pages -= count as u64;
        let faulting = ((page.0 - start.0) / step) as usize;
        let hits = window.hits + self.windows.cluster.take_hits();
        if let Some(entry) = pages[faulting].entry {
            self.note_refault(entry);
        }
        let mapped = if around { (faulting, faulting + 1) } else { (0, count) };
        FaultPlan::Load(LoadPlan { op, pages, count, faulting: Some(faulting), mapped, hits })
    }

    /// The window of a fault at a page that has content.
    fn window(&mut self, page: PageNumber) -> Window {
        let Core { windows, pages, .. } = self;
        let was_never_used = |page| pages.get(PageNumber(page)) == Some(PageState::Untouched);
        windows.streams.window_over_holes(page, |range| (range.start.0..range.end().0).all(was_never_used))
    }

    /// The first `pages` pages of `window` come in: what follows them is read ahead, if there is anything to read. If not all of it
    /// comes in, or where it goes on was never used, only behind a hole of at most `hole_max` pages.
    fn go_ahead(&mut self, window: Window, pages: u32, hole_max: u32) {
        let goes_on = |next: PageNumber| {
            let mut behind = (0..=hole_max).filter_map(|index| next.stepped(window.step, index));
            let first = behind.find(|&page| self.pages.get(page) != Some(PageState::Untouched));
            first.is_some_and(|page| self.is_swapped(page))
        };
        if (hole_max > 0 || pages == window.pages) && self.windows.streams.goes_on_at().is_some_and(goes_on) {
            self.windows.streams.go_ahead();
        }
    }

    /// Pages that no thread waits for: from `first` to `last`, one every `step`. `first` rests in the first frame of
    /// `marker`, if there is one.
    pub(crate) fn load_ahead(
        &mut self,
        first: PageNumber,
        last: PageNumber,
        step: i64,
        marker: Option<FrameBlock>,
    ) -> LoadPlan {
        let (start, step) = (first.min(last), step.unsigned_abs());
        let count = (first.0.abs_diff(last.0) / step) as usize + 1;
        let mut pages = [PageNumber(0); MAX_WINDOW];
        for (index, page) in pages[..count].iter_mut().enumerate() {
            *page = start.plus(index as u64 * step);
        }
        let mapped = match marker {
            None => (0, count),
            Some(_) if first == start => (1, count),
            Some(_) => (0, count - 1),
        };
        let marker = |page| marker.filter(|_| page == first);
        LoadPlan { mapped, ..self.load_unasked(&pages[..count], marker) }
    }

    /// Pages that no thread waits for, in any order; all go to the program.
    pub(crate) fn load_scattered(&mut self, pages: &[PageNumber]) -> LoadPlan {
        self.load_unasked(pages, |_| None)
    }

    /// `block`: in whose first frame a page is to rest.
    fn load_unasked(&mut self, wanted: &[PageNumber], block: impl Fn(PageNumber) -> Option<FrameBlock>) -> LoadPlan {
        let op = self.next_op();
        let count = wanted.len();
        let mut pages = [NO_PAGE; MAX_WINDOW];
        for (slot, &page) in pages.iter_mut().zip(wanted) {
            *slot = self.plan_load(page, 0, block(page), op);
        }
        self.counts.loads_in_flight += count as u32;
        self.counts.swapped_pages -= count as u64;
        LoadPlan { op, pages, count, faulting: None, mapped: (0, count), hits: 0 }
    }

    /// Whether `page` can be brought in from where it is stored.
    pub(crate) fn is_swapped(&self, page: PageNumber) -> bool {
        is_swapped(&self.pages, page)
    }

    /// A block of free frames of which the first `pages` are to be filled.
    pub(crate) fn free_block(&mut self, pages: u64) -> Option<FrameBlock> {
        if self.windows.land_in_frames { self.cache.take_block(((1u32 << pages) - 1) as u16) } else { None }
    }

    /// A thread wants the content of `entry`.
    fn note_refault(&mut self, entry: EntryId) {
        if self.table.is_foreign(entry) {
            return;
        }
        let in_pool = matches!(self.table.location(entry), Location::Pool { .. });
        let soon = self.eviction.workingset.refaulted(self.table.stamp(entry), in_pool, self.pool_objects());
        self.table.set_wanted_soon(entry, soon);
    }

    /// The pages to read together with `page`, which is on an area: its neighbours whose copies are there too; unless readahead
    /// goes by address, beside its own.
    fn around(&mut self, page: PageNumber) -> PageRange {
        let alone = PageRange { start: page, pages: 1 };
        let Some((area, slot)) = self.own_slot(page) else { return alone };
        let (first, pages) = self.neighbours(page);
        let beside = |core: &Self, other: PageNumber| {
            let Some((its_area, its_slot)) = core.own_slot(other) else { return false };
            let expected = (slot + other.0).checked_sub(page.0);
            core.windows.by_address.is_some() || its_area == area && Some(its_slot) == expected
        };
        let mut range = alone;
        while range.start > first && beside(self, PageNumber(range.start.0 - 1)) {
            range = PageRange { start: PageNumber(range.start.0 - 1), pages: range.pages + 1 };
        }
        while range.end() < first.plus(u64::from(pages)) && beside(self, range.end()) {
            range.pages += 1;
        }
        range
    }

    /// The window around `page`: its first page, and how many.
    fn neighbours(&mut self, page: PageNumber) -> (PageNumber, u32) {
        match &mut self.windows.by_address {
            Some(by_address) => {
                let mapping = self.pages.adopted_around(page).expect("a page on an area is adopted");
                by_address.window(page, mapping)
            }
            None => self.windows.cluster.window(page),
        }
    }

    /// Where `page` is on an area, if that is the only place and this process's own.
    fn own_slot(&self, page: PageNumber) -> Option<(AreaId, u64)> {
        let Some(PageState::Swapped { entry }) = self.pages.get(page) else { return None };
        match self.table.location(entry) {
            Location::Slot { area, slot } if !self.table.is_foreign(entry) && !self.pages.is_isolating(page) => {
                Some((area, slot))
            }
            _ => None,
        }
    }

    /// A thread asks for what is in `frame`.
    fn touched(&mut self, frame: FrameId) -> bool {
        let came_along = core::mem::take(&mut self.cache.frame_mut(frame).came_along);
        if came_along {
            self.windows.cluster.wanted();
        }
        if let (Some(by_address), Some(page)) = (&mut self.windows.by_address, self.cache.frame(frame).owner)
            && let Some(mapping) = self.pages.adopted_around(page)
        {
            by_address.found(page, mapping, came_along);
        }
        came_along
    }

    /// `load` came along with another page: it rests in the swap cache.
    pub fn load_cached(&mut self, load: &LoadPage, op: OpId) {
        let (Landing::Frame(frame), Some(entry)) = (load.landing, load.entry) else {
            unreachable!("only what lies on an area comes along, and only into frames")
        };
        if !self.still_loading(load.page, op) {
            return self.load_cancelled(load, op);
        }
        self.counts.loads_in_flight -= 1;
        self.unpin(entry);
        self.cache.cached(frame, load.page, Some(entry));
        self.cache.frame_mut(frame).came_along = true;
        self.pages.set(load.page, PageState::InFrame { frame });
    }

    fn plan_load(&mut self, page: PageNumber, index: usize, block: Option<FrameBlock>, op: OpId) -> LoadPage {
        let entry = match self.pages.get(page) {
            Some(PageState::Swapped { entry }) => Some(entry),
            _ => None,
        };
        self.pages.set(page, PageState::ReadingIn { entry, op });
        let frame = block.map(|block| block.frame(index));
        let mut plan = LoadPage { page, entry, landing: frame.map_or(Landing::Buffer, Landing::Frame), ..NO_PAGE };
        if let Some(entry) = entry {
            self.table.pin(entry);
            self.table.set_wanted_soon(entry, false);
            plan.location = self.table.location(entry);
            plan.epoch = self.table.epoch_of(entry);
            plan.hash = self.table.hash(entry);
        }
        plan
    }

    /// Whether `page` still waits for the swap-in `op`. Asked right before the content is moved in.
    pub fn still_loading(&self, page: PageNumber, op: OpId) -> bool {
        matches!(self.pages.get(page), Some(PageState::ReadingIn { op: current, .. }) if current == op || is_on(Sabotage::OldLoadGoesOn))
    }

    /// The first `installed` pages of `range` now are zeros in the program; the others are not.
    pub fn zeros_installed(&mut self, range: PageRange, op: OpId, installed: u64) {
        self.counts.loads_in_flight -= 1;
        for index in 0..range.pages {
            let page = range.start.plus(index);
            if !self.still_loading(page, op) {
                continue;
            }
            if index < installed {
                self.pages.set(page, PageState::Resident { clean: None });
                self.note_resident(page, Came::Unasked);
            } else {
                self.pages.set(page, PageState::Untouched);
            }
        }
    }

    /// The first `moved` pages of a [`FaultPlan::Restore`] are back in the program; the others stay cached.
    pub fn restored(&mut self, first: PageNumber, frame: FrameId, pages: u32, moved: u32, left: FrameLeft) {
        for index in 0..pages {
            let (page, frame) = (first.plus(u64::from(index)), FrameId(frame.0 + index));
            let record = *self.cache.frame(frame);
            assert!(record.state == FrameUse::Restoring && record.owner == Some(page));
            let came_along = index < moved && self.touched(frame);
            if index < moved {
                self.leave_frame(frame, left);
                self.pages.set(page, PageState::Resident { clean: record.clean });
                // The first is the one that faulted.
                let came = match (index, came_along) {
                    (0, false) => Came::FromCache,
                    (0, true) => Came::Along,
                    _ => Came::Unasked,
                };
                self.note_resident(page, came);
            } else {
                self.cache.cached_again(frame);
            }
        }
    }

    /// The first page of a [`FaultPlan::Restore`] is taken already, by something newer; the others stay cached. `is_populated`: that is
    /// a page, and no guard, which reads as zeros when it is taken away.
    pub fn restore_superseded(&mut self, first: PageNumber, frame: FrameId, pages: u32, is_populated: bool) {
        for index in 1..pages {
            self.cache.cached_again(FrameId(frame.0 + index));
        }
        let record = *self.cache.frame(frame);
        assert!(record.state == FrameUse::Restoring && record.owner == Some(first));
        self.cache.release(frame);
        self.drop_clean(record.clean);
        if !is_populated {
            self.pages.note_discarded(first.alone());
        }
        self.pages.set(first, PageState::Resident { clean: None });
        self.note_resident(first, Came::Unasked);
    }

    fn leave_frame(&mut self, frame: FrameId, left: FrameLeft) {
        match left {
            FrameLeft::Empty => self.cache.emptied(frame),
            FrameLeft::Populated => self.cache.release(frame),
        }
    }

    /// `load` is in the program. A copy on an area is kept for the next eviction unless `keep_clean` is false, and so is one that an
    /// ancestor has stored, wherever: what comes back unchanged need not be stored again by each of its children.
    /// `wanted`: it is the page that faulted.
    pub fn load_done(&mut self, load: &LoadPage, op: OpId, left: FrameLeft, keep_clean: bool, wanted: bool) {
        assert!(self.still_loading(load.page, op), "{:?} was moved in without being waited for", load.page);
        self.counts.loads_in_flight -= 1;
        if let Landing::Frame(frame) = load.landing {
            self.leave_frame(frame, left);
        }
        let mut clean = None;
        if let Some(entry) = load.entry {
            let area = matches!(self.table.location(entry), Location::Slot { .. });
            if keep_clean && (area || self.table.is_foreign(entry)) {
                clean = Some(entry);
                self.unpin(entry);
            } else {
                self.unpin(entry);
                self.let_go(entry);
            }
        }
        self.pages.set(load.page, PageState::Resident { clean });
        self.note_resident(load.page, if wanted { Came::FromStore } else { Came::Unasked });
    }

    /// `load` did not get in, or nobody waits for it any more; if somebody does, it is swapped out as before.
    pub fn load_cancelled(&mut self, load: &LoadPage, op: OpId) {
        self.end_load(load);
        if self.still_loading(load.page, op) {
            let state = load.entry.map_or(PageState::SwappedZero, |entry| PageState::Swapped { entry });
            self.pages.set(load.page, state);
            self.counts.swapped_pages += 1;
        }
    }

    /// The content of `load` cannot be had: whoever touches the page gets SIGBUS.
    /// Returns whether the page was still waited for.
    pub fn load_lost(&mut self, load: &LoadPage, op: OpId) -> bool {
        self.end_load(load);
        let waited_for = self.still_loading(load.page, op);
        if waited_for {
            if let Some(entry) = load.entry {
                self.let_go(entry);
            }
            self.pages.set(load.page, PageState::Poisoned);
        }
        waited_for
    }

    /// `load` is in the program already: the kernel found its page populated. What is there is newer than any copy.
    pub fn load_superseded(&mut self, load: &LoadPage, op: OpId) {
        self.end_load(load);
        if self.still_loading(load.page, op) {
            if let Some(entry) = load.entry {
                self.let_go(entry);
            }
            self.pages.set(load.page, PageState::Resident { clean: None });
            self.note_resident(load.page, Came::Unasked);
        }
    }

    /// Whether the books say that `page` is mapped in the program.
    pub fn is_resident(&self, page: PageNumber) -> bool {
        matches!(self.pages.get(page), Some(PageState::Resident { .. }))
    }

    /// The resident `page` is not there. Where the program has discarded memory it reads as zeros from here on; elsewhere
    /// its content is lost, and that is never answered with zeros.
    pub fn vanished(&mut self, page: PageNumber) -> Vanished {
        if let Some(PageState::Resident { clean }) = self.pages.get(page) {
            self.drop_clean(clean);
        }
        let (state, answer) = match self.pages.was_discarded(page) {
            true => (PageState::Untouched, Vanished::Discarded),
            false => (PageState::Poisoned, Vanished::Lost),
        };
        self.pages.set(page, state);
        answer
    }

    /// A page that [`vanished`](Self::vanished) called lost is there after all.
    pub fn not_lost(&mut self, page: PageNumber) {
        if self.pages.get(page) == Some(PageState::Poisoned) {
            self.pages.set(page, PageState::Resident { clean: None });
            self.note_resident(page, Came::Unasked);
        }
    }

    fn end_load(&mut self, load: &LoadPage) {
        self.counts.loads_in_flight -= 1;
        if let Landing::Frame(frame) = load.landing {
            self.cache.release(frame);
        }
        if let Some(entry) = load.entry {
            self.unpin(entry);
        }
    }
}

/// Whether `page` can be brought in from where it is stored.
fn is_swapped(pages: &PageTable, page: PageNumber) -> bool {
    matches!(pages.get(page), Some(PageState::Swapped { .. } | PageState::SwappedZero)) && !pages.is_isolating(page)
}
