//! A client: the memory of a process that has objects mapped, as the server sees it: its userfaultfd, and what is mapped where.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use uswap_sys::linux::Linux;
use uswap_system::PAGE_SIZE;

use crate::changes::{Changes, Trust};
use crate::kernel::{ClientUffd, Kernel};

/// A mapping of an object in a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First byte, in the client.
    pub start: usize,
    /// One past the last byte that is known to be mapped.
    pub end: usize,
    /// The address in the object's window that is mapped at `start`.
    pub window: usize,
    /// One past the last byte of the object's window.
    pub window_end: usize,
}

impl Mapping {
    /// One past the last address in the client that the mapping may reach: it may grow by mremap, up to the object's end, and nothing
    /// tells.
    pub fn reach(&self) -> usize {
        self.start + (self.window_end - self.window)
    }

    fn to_window(self, address: usize) -> usize {
        self.window + (address - self.start)
    }
}

/// Where a part of a window is in a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Address in the client.
    pub at: usize,
    /// Bytes.
    pub len: usize,
    /// Address in the window.
    pub window: usize,
    /// All of it is known to be mapped; else it may be.
    pub is_mapped: bool,
}

/// What of objects a client has mapped, by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mappings(Vec<Mapping>);

impl Mappings {
    /// A mapping is there, in place of others.
    pub fn insert(&mut self, mapping: Mapping) {
        self.remove(mapping.start, mapping.end);
        let at = self.0.partition_point(|other| other.start < mapping.start);
        self.0.insert(at, mapping);
    }

    /// Whether it is known what is left when `start..end` is not mapped any more: nothing goes of which it was not known whether it was
    /// there, for what is behind that may be there still.
    pub fn knows_what_is_left(&self, start: usize, end: usize) -> bool {
        self.with_limits()
            .all(|(mapping, limit)| mapping.end.max(start) >= limit || mapping.start >= end || end < mapping.end)
    }

    /// Nothing is mapped at `start..end` any more.
    pub fn remove(&mut self, start: usize, end: usize) {
        let parts = std::mem::take(&mut self.0).into_iter().flat_map(|mapping| {
            let before = Mapping { end: mapping.end.min(start), ..mapping };
            let from = mapping.start.max(end);
            let behind = Mapping { start: from, window: mapping.to_window(from), ..mapping };
            let parts = [(before, before.start < before.end), (behind, from < mapping.end)];
            parts.into_iter().filter_map(|(part, is_left)| is_left.then_some(part))
        });
        self.0 = parts.collect();
    }

    /// What was at `from..from + len` is at `to`; with a `len` of 0, another mapping of what is at `from` is at `to`, and a page of it is
    /// known.
    pub fn moved(&mut self, from: usize, to: usize, len: usize) {
        let there = self.pieces(from, from + len.max(PAGE_SIZE));
        if len > 0 {
            self.remove(from, from + len);
            self.remove(to, to + len);
        }
        for mapping in there {
            let place = |at: usize| to + (at - from);
            self.insert(Mapping { start: place(mapping.start), end: place(mapping.end), ..mapping });
        }
    }

    /// All of them, each with the end of where it may be: no other begins before.
    fn with_limits(&self) -> impl Iterator<Item = (Mapping, usize)> + '_ {
        self.0.iter().enumerate().map(|(index, mapping)| {
            let next = self.0.get(index + 1).map_or(usize::MAX, |next| next.start);
            (*mapping, mapping.reach().min(next))
        })
    }

    /// What must be mapped at `start..end`, as far as it is of objects.
    pub fn pieces(&self, start: usize, end: usize) -> Vec<Mapping> {
        let pieces = self.with_limits().filter_map(|(mapping, limit)| {
            let (from, to) = (mapping.start.max(start), limit.min(end));
            (from < to).then(|| Mapping { start: from, end: to, window: mapping.to_window(from), ..mapping })
        });
        pieces.collect()
    }

    /// The address in a window of what is, or may be, at `address`.
    pub fn to_window(&self, address: usize) -> Option<usize> {
        let may_be = |(mapping, limit): &(Mapping, usize)| (mapping.start..*limit).contains(&address);
        self.with_limits().find(may_be).map(|(mapping, _)| mapping.to_window(address))
    }

    /// The address in a window of what is known to be at `address`.
    pub fn known_at(&self, address: usize) -> Option<usize> {
        let mapping = self.0.iter().find(|mapping| (mapping.start..mapping.end).contains(&address))?;
        Some(mapping.to_window(address))
    }

    /// Where `start..end` of a window is, or may be.
    pub fn parts(&self, start: usize, end: usize) -> impl Iterator<Item = Part> + '_ {
        self.with_limits().filter_map(move |(mapping, limit)| {
            let (from, to) = (mapping.window.max(start), mapping.to_window(limit).min(end));
            (from < to).then(|| Part {
                at: mapping.start + (from - mapping.window),
                len: to - from,
                window: from,
                is_mapped: to <= mapping.to_window(mapping.end),
            })
        })
    }

    /// Whether anything of a window is mapped.
    pub fn has(&self, start: usize, end: usize) -> bool {
        self.0.iter().any(|mapping| mapping.window < end && start < mapping.window_end)
    }

    /// All of them.
    pub fn all(&self) -> &[Mapping] {
        &self.0
    }
}

impl FromIterator<Mapping> for Mappings {
    /// Of what is mapped at the same time.
    fn from_iter<I: IntoIterator<Item = Mapping>>(mappings: I) -> Mappings {
        let mut all: Vec<Mapping> = mappings.into_iter().collect();
        all.sort_unstable_by_key(|mapping| mapping.start);
        Mappings(all)
    }
}

/// See the file's head.
#[derive(Debug)]
pub struct Client<K: Kernel = Linux> {
    /// Names it.
    pub number: u64,
    /// The process whose agent has sent the userfaultfd; none where it was brought by a fork.
    pub process: Option<u32>,
    /// A process that has this memory, if one was found; else 0.
    seen_in: AtomicU32,
    /// Of its memory.
    pub uffd: K::Uffd,
    mappings: Mutex<Mappings>,
    changes: Mutex<Changes>,
}

impl<K: Kernel> Client<K> {
    /// With what it has mapped, as far as its `changes` say that this is known.
    pub fn new(number: u64, process: Option<u32>, uffd: K::Uffd, mappings: Mappings, changes: Changes) -> Client<K> {
        let seen_in = AtomicU32::new(process.unwrap_or(0));
        Client { number, process, seen_in, uffd, mappings: Mutex::new(mappings), changes: Mutex::new(changes) }
    }

    /// A process that has this memory, as far as one is known.
    pub fn seen_in(&self) -> Option<u32> {
        Some(self.seen_in.load(Relaxed)).filter(|&process| process != 0)
    }

    /// This process has its memory.
    pub fn is_seen_in(&self, process: u32) {
        self.seen_in.store(process, Relaxed);
    }

    /// What it has done. Held for moments; no lock is taken meanwhile.
    pub fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is known what it has mapped.
    pub fn is_known(&self) -> bool {
        self.changes().trust() == Trust::Known
    }

    /// It is not known what it has mapped.
    pub fn doubt(&self) {
        self.changes().doubt();
    }

    /// All that it has done to its mappings is known.
    pub fn is_at_rest(&self) -> bool {
        self.is_known() && !self.uffd.is_changing()
    }

    /// What it has mapped. Held for moments; no lock is taken meanwhile.
    pub fn mappings(&self) -> MutexGuard<'_, Mappings> {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = PAGE_SIZE;

    /// Pages `start..end`, of an object of `len` pages whose window begins at page 1000, from its page `first` on.
    fn mapping(start: usize, end: usize, first: usize, len: usize) -> Mapping {
        Mapping { start: start * PAGE, end: end * PAGE, window: (1000 + first) * PAGE, window_end: (1000 + len) * PAGE }
    }

    fn pages(mappings: &Mappings) -> Vec<(usize, usize, usize)> {
        let page = |mapping: &Mapping| (mapping.start / PAGE, mapping.end / PAGE, mapping.window / PAGE);
        mappings.all().iter().map(page).collect()
    }

    #[test]
    fn what_is_mapped_follows_what_the_process_does() {
        let mut mappings = Mappings::default();
        mappings.insert(mapping(10, 20, 0, 10));
        mappings.remove(13 * PAGE, 15 * PAGE);
        assert_eq!(pages(&mappings), [(10, 13, 1000), (15, 20, 1005)]);
        mappings.moved(15 * PAGE, 40 * PAGE, 3 * PAGE);
        assert_eq!(pages(&mappings), [(10, 13, 1000), (18, 20, 1008), (40, 43, 1005)]);
        mappings.insert(mapping(11, 19, 0, 100));
        assert_eq!(pages(&mappings), [(10, 11, 1000), (11, 19, 1000), (19, 20, 1009), (40, 43, 1005)]);
    }

    #[test]
    fn of_what_is_mapped_once_more_a_page_is_known() {
        let mut mappings = Mappings::default();
        mappings.insert(mapping(10, 20, 0, 10));
        mappings.moved(12 * PAGE, 50 * PAGE, 0);
        assert_eq!(pages(&mappings), [(10, 20, 1000), (50, 51, 1002)]);
        assert_eq!(mappings.to_window(57 * PAGE), Some(1009 * PAGE));
        // It hides nothing that is known to be mapped behind it.
        mappings.insert(mapping(55, 60, 0, 10));
        mappings.moved(12 * PAGE, 48 * PAGE, 0);
        let [before, hidden, known] = [49, 54, 55].map(|page| mappings.to_window(page * PAGE).map(|at| at / PAGE));
        assert_eq!([before, hidden, known], [Some(1003), Some(1006), Some(1000)]);
        let parts: Vec<usize> = mappings.parts(1003 * PAGE, 1010 * PAGE).map(|part| part.at / PAGE).collect();
        assert_eq!(parts, [13, 49, 51, 58]);
    }

    #[test]
    fn what_was_looked_at_comes_in_any_order() {
        let all = [mapping(40, 50, 3, 20), mapping(10, 20, 0, 10)];
        assert_eq!(pages(&all.into_iter().collect()), [(10, 20, 1000), (40, 50, 1003)]);
    }

    #[test]
    fn what_has_grown_moves_and_may_be_left_where_its_beginning_goes() {
        let mut mappings = Mappings::default();
        mappings.insert(mapping(10, 13, 0, 10));
        let knows =
            |mappings: &Mappings, start: usize, end: usize| mappings.knows_what_is_left(start * PAGE, end * PAGE);
        assert!(knows(&mappings, 10, 12) && knows(&mappings, 5, 10) && knows(&mappings, 20, 25));
        // It may have grown to 10..20.
        assert!(!knows(&mappings, 10, 13) && !knows(&mappings, 12, 13) && !knows(&mappings, 15, 17));
        mappings.moved(15 * PAGE, 40 * PAGE, 2 * PAGE);
        assert_eq!(pages(&mappings), [(10, 13, 1000), (40, 42, 1005)]);
        mappings.remove(10 * PAGE, 14 * PAGE);
        assert_eq!(pages(&mappings), [(40, 42, 1005)]);
        mappings.insert(mapping(10, 20, 0, 10));
        assert!(
            knows(&mappings, 10, 20) && knows(&mappings, 15, 20) && knows(&mappings, 12, 15),
            "all of it was there"
        );
    }

    #[test]
    fn what_may_have_grown_is_looked_for_where_it_may_be() {
        let mut mappings = Mappings::default();
        mappings.insert(mapping(10, 20, 0, 10));
        mappings.remove(14 * PAGE, 20 * PAGE);
        let part = |at: usize, len: usize, window: usize, is_mapped| Part {
            at: at * PAGE,
            len: len * PAGE,
            window: window * PAGE,
            is_mapped,
        };
        let parts = |start: usize, end: usize| mappings.parts(start * PAGE, end * PAGE).collect::<Vec<_>>();
        assert_eq!(parts(1000, 1002), [part(10, 2, 1000, true)]);
        assert_eq!(parts(1003, 1006), [part(13, 3, 1003, false)]);
        assert_eq!(parts(1010, 1020), []);
        assert_eq!(mappings.to_window(16 * PAGE), Some(1006 * PAGE));
        assert_eq!(mappings.to_window(20 * PAGE), None);
    }
}
