//! A client: the memory of a process that has objects mapped, as the server sees it: its userfaultfd, and what is mapped where.

use std::sync::{Mutex, MutexGuard, PoisonError};

use uswap_sys::linux::Linux;
use uswap_system::PAGE_SIZE;

use crate::kernel::Kernel;

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

    /// Nothing is mapped at `start..end` any more.
    pub fn remove(&mut self, start: usize, end: usize) {
        let parts = self.0.drain(..).flat_map(|mapping| {
            let before = Mapping { end: mapping.end.min(start), ..mapping };
            let from = mapping.start.max(end);
            let behind = Mapping {
                start: from,
                window: mapping.window.saturating_add(from - mapping.start).min(mapping.window_end),
                ..mapping
            };
            [before, behind].into_iter().filter(|part| part.start < part.end)
        });
        self.0 = parts.collect();
    }

    /// What was at `from..from + len` is at `to`; with a `len` of 0, another mapping of what is at `from` is at `to`, of which nobody
    /// knows how long it is.
    pub fn moved(&mut self, from: usize, to: usize, len: usize) {
        let end = if len == 0 { from + PAGE_SIZE } else { from + len };
        let there: Vec<Mapping> = self.within(from, end).collect();
        if len > 0 {
            self.remove(from, end);
            self.remove(to, to + len);
        }
        for mapping in there {
            let end = if len == 0 { mapping.reach() } else { mapping.end };
            self.insert(Mapping { start: to + (mapping.start - from), end: to + (end - from), ..mapping });
        }
    }

    fn within(&self, start: usize, end: usize) -> impl Iterator<Item = Mapping> + '_ {
        self.0.iter().filter(move |mapping| mapping.start < end && start < mapping.end).map(move |mapping| {
            let from = mapping.start.max(start);
            Mapping { start: from, end: mapping.end.min(end), window: mapping.to_window(from), ..*mapping }
        })
    }

    /// The address in a window of what is, or may be, at `address`.
    pub fn to_window(&self, address: usize) -> Option<usize> {
        let is_there = |mapping: &&Mapping| (mapping.start..mapping.end).contains(&address);
        let may_be = |mapping: &&Mapping| (mapping.start..mapping.reach()).contains(&address);
        let mapping = self.0.iter().find(is_there).or_else(|| self.0.iter().rev().find(may_be))?;
        Some(mapping.to_window(address))
    }

    /// Where `start..end` of a window is, or may be.
    pub fn parts(&self, start: usize, end: usize) -> impl Iterator<Item = Part> + '_ {
        self.0.iter().filter_map(move |mapping| {
            let (from, to) = (mapping.window.max(start), mapping.window_end.min(end));
            let known = mapping.window + (mapping.end - mapping.start);
            (from < to).then(|| Part {
                at: mapping.start + (from - mapping.window),
                len: to - from,
                window: from,
                is_mapped: to <= known,
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
}

impl<K: Kernel> Client<K> {
    /// With what it has mapped.
    pub fn new(number: u64, process: Option<u32>, uffd: K::Uffd, mappings: Mappings) -> Client<K> {
        Client { number, process, uffd, mappings: Mutex::new(mappings) }
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
        assert_eq!(pages(&mappings), [(10, 20, 1000), (50, 58, 1002)]);
        assert_eq!(mappings.to_window(57 * PAGE), Some(1009 * PAGE));
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
