//! A client: the memory of a process that has objects mapped, as the server sees it: its userfaultfd, and what is mapped where.

use std::sync::{Mutex, MutexGuard, PoisonError};

use uswap_sys::linux::Linux;
use uswap_system::PAGE_SIZE;

use crate::kernel::{ClientUffd, Kernel};

/// A mapping of an object in a client. One of which nothing is known to be mapped may have ended ([`Mappings::unsure`]).
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
        // What nobody was sure of yet came before.
        self.0.retain(|other| other.start < other.end || !(mapping.start..mapping.reach()).contains(&other.start));
        let at = self.0.partition_point(|other| other.start < mapping.start);
        self.0.insert(at, mapping);
    }

    /// Nothing is mapped at `start..end` any more. What is behind it may be: a mapping that has grown, or of which nobody knew how long it is.
    pub fn remove(&mut self, start: usize, end: usize) {
        let parts = self.with_limits().flat_map(|(mapping, limit)| {
            let before = Mapping { end: mapping.end.min(start), ..mapping };
            let from = mapping.start.max(end);
            let window = mapping.window.saturating_add(from - mapping.start).min(mapping.window_end);
            let behind = Mapping { start: from, end: mapping.end.max(from), window, ..mapping };
            let is_behind = from < mapping.end || mapping.start >= end || mapping.start >= start && from < limit;
            let parts = [(before, mapping.start < start), (behind, is_behind)];
            parts.into_iter().filter_map(|(part, is_left)| is_left.then_some(part))
        });
        self.0 = parts.collect();
    }

    /// What was at `from..from + len` is at `to`; with a `len` of 0, another mapping of what is at `from` is at `to`, and how long it is
    /// must be found out.
    pub fn moved(&mut self, from: usize, to: usize, len: usize) {
        let there = self.pieces(from, from + len.max(PAGE_SIZE));
        if len > 0 {
            self.remove(from, from + len);
            self.remove(to, to + len);
        }
        for mapping in there {
            let place = |at: usize| to + (at - from);
            let mapping = Mapping { start: place(mapping.start), end: place(mapping.end), ..mapping };
            self.insert(mapping);
            if len == 0 {
                self.go_on_behind(mapping);
            }
        }
    }

    /// Whether a mapping goes on behind what is known of it is not sure.
    fn go_on_behind(&mut self, mapping: Mapping) {
        let at = self.0.partition_point(|other| other.start < mapping.end);
        let is_taken = self.0.get(at).is_some_and(|next| next.start == mapping.end);
        if mapping.end < mapping.reach() && !is_taken {
            let window = mapping.to_window(mapping.end);
            self.0.insert(at, Mapping { start: mapping.end, window, ..mapping });
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

    /// An address where something of an object may be mapped, and nothing else is known of that mapping.
    pub fn unsure(&self) -> Option<usize> {
        self.0.iter().find(|mapping| mapping.start == mapping.end).map(|mapping| mapping.start)
    }

    /// Something may be mapped from the beginning of `mapping` on, if nothing else is known to be.
    pub fn add_unsure(&mut self, mapping: Mapping) {
        let is_known =
            |other: &Mapping| other.start == mapping.start || (other.start..other.end).contains(&mapping.start);
        if !self.0.iter().any(is_known) {
            let at = self.0.partition_point(|other| other.start < mapping.start);
            self.0.insert(at, Mapping { end: mapping.start, ..mapping });
        }
    }

    /// Whether something is mapped at an [`unsure`](Self::unsure) address.
    pub fn is_sure(&mut self, address: usize, is_mapped: bool) {
        let Some(at) = self.0.iter().position(|one| one.start == address && one.end == address) else { return };
        let mut mapping = self.0.remove(at);
        if !is_mapped {
            return;
        }
        mapping.end += PAGE_SIZE;
        let before = at.checked_sub(1).and_then(|before| self.0.get_mut(before));
        match before.filter(|before| before.end == address && before.to_window(address) == mapping.window) {
            Some(before) => before.end = mapping.end,
            None => self.0.insert(at, mapping),
        }
        self.go_on_behind(mapping);
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

/// See the file's head.
#[derive(Debug)]
pub struct Client<K: Kernel = Linux> {
    /// Names it.
    pub number: u64,
    /// The process whose agent has sent the userfaultfd; none where it was brought by a fork.
    pub process: Option<u32>,
    /// Of its memory.
    pub uffd: K::Uffd,
    mappings: Mutex<Mappings>,
    /// What it has unmapped or moved away since it was last seen that all it does was reported: a fork before that may be reported after it.
    gone: Mutex<Vec<Mapping>>,
}

impl<K: Kernel> Client<K> {
    /// With what it has mapped.
    pub fn new(number: u64, process: Option<u32>, uffd: K::Uffd, mappings: Mappings) -> Client<K> {
        Client { number, process, uffd, mappings: Mutex::new(mappings), gone: Mutex::default() }
    }

    /// What a child that it has forked may have beside what it has itself. Held for moments; no lock is taken meanwhile.
    pub fn gone(&self) -> MutexGuard<'_, Vec<Mapping>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that it has done to its mappings is known.
    pub fn is_at_rest(&self) -> bool {
        !self.uffd.is_changing() && self.gone().is_empty() && self.mappings().unsure().is_none()
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
    fn an_alias_is_as_long_as_it_may_be() {
        let mut mappings = Mappings::default();
        mappings.insert(mapping(10, 20, 0, 10));
        mappings.moved(12 * PAGE, 50 * PAGE, 0);
        assert_eq!(pages(&mappings), [(10, 20, 1000), (50, 51, 1002), (51, 51, 1003)]);
        assert_eq!(mappings.to_window(57 * PAGE), Some(1009 * PAGE));
        mappings.is_sure(51 * PAGE, true);
        mappings.is_sure(52 * PAGE, true);
        mappings.is_sure(53 * PAGE, false);
        assert_eq!((pages(&mappings), mappings.unsure()), (vec![(10, 20, 1000), (50, 53, 1002)], None));
        // It hides nothing that is known to be mapped behind it.
        mappings.insert(mapping(55, 60, 0, 10));
        mappings.moved(12 * PAGE, 48 * PAGE, 0);
        let [before, hidden, known] = [49, 54, 55].map(|page| mappings.to_window(page * PAGE).map(|at| at / PAGE));
        assert_eq!([before, hidden, known], [Some(1003), Some(1006), Some(1000)]);
        mappings.is_sure(49 * PAGE, true);
        assert_eq!((pages(&mappings)[1], mappings.unsure()), ((48, 50, 1002), None));
        let parts: Vec<usize> = mappings.parts(1003 * PAGE, 1010 * PAGE).map(|part| part.at / PAGE).collect();
        assert_eq!(parts, [13, 49, 51, 58]);
    }

    #[test]
    fn what_has_grown_moves_and_stays_when_its_beginning_goes() {
        let mut mappings = Mappings::default();
        mappings.insert(mapping(10, 13, 0, 10));
        // It had grown to 10..20.
        mappings.moved(15 * PAGE, 40 * PAGE, 2 * PAGE);
        assert_eq!(pages(&mappings), [(10, 13, 1000), (40, 42, 1005)]);
        mappings.remove(10 * PAGE, 14 * PAGE);
        assert_eq!(pages(&mappings), [(14, 14, 1004), (40, 42, 1005)]);
        assert_eq!(mappings.unsure(), Some(14 * PAGE));
        let mut gone = mappings.clone();
        gone.is_sure(14 * PAGE, false);
        assert_eq!((pages(&gone), gone.unsure()), (vec![(40, 42, 1005)], None));
        mappings.is_sure(14 * PAGE, true);
        assert_eq!(pages(&mappings), [(14, 15, 1004), (15, 15, 1005), (40, 42, 1005)]);
        assert_eq!(mappings.to_window(19 * PAGE), Some(1009 * PAGE));
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
