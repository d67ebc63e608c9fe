//! A cgroup: its limits, its pages in memory, and those that came along and were not touched yet.

use std::collections::{BTreeMap, VecDeque};

use uswap_linux::memory_max::Limits;
use uswap_linux::numa::Node;
use uswap_linux::swap_entry::SwapEntry;
use uswap_policy::Replacement;

use crate::page_content::Content;

/// Pages that came along and were not touched may take one part of so many of memory.
const AHEAD_SHARE: u64 = 8;

/// A page of the swap cache that readahead brought.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    pub ready_ns: u64,
    pub content: Content,
    pub node: Node,
    /// It came out of the compressed pool, which has no copy any more.
    pub is_dirty: bool,
}

pub(super) struct Cgroup {
    pub limits: Limits,
    pub policy: Box<dyn Replacement>,
    /// Its pages that are being written.
    pub in_flight: u64,
    /// Pages that have left its memory so far, by reclaim.
    pub freed: u64,
    ahead: BTreeMap<SwapEntry, Ahead>,
    /// The same, oldest first; some are gone.
    ahead_order: VecDeque<SwapEntry>,
}

impl Cgroup {
    pub fn new(limits: Limits, policy: Box<dyn Replacement>) -> Self {
        Self { limits, policy, in_flight: 0, freed: 0, ahead: BTreeMap::new(), ahead_order: VecDeque::new() }
    }

    /// Pages in memory that it is charged for, without what is compressed.
    pub fn pages(&self) -> u64 {
        (self.policy.resident() + self.ahead.len()) as u64 + self.in_flight
    }

    pub fn add_ahead(&mut self, entry: SwapEntry, ahead: Ahead) {
        self.ahead.insert(entry, ahead);
        self.ahead_order.push_back(entry);
    }

    pub fn take_ahead(&mut self, entry: SwapEntry) -> Option<Ahead> {
        self.ahead.remove(&entry)
    }

    pub fn ahead(&self, entry: SwapEntry) -> Option<Ahead> {
        self.ahead.get(&entry).copied()
    }

    /// Pages that came along and were not touched.
    pub fn pages_ahead(&self) -> u64 {
        self.ahead.len() as u64
    }

    /// What came along takes more than its share.
    pub fn has_too_many_ahead(&self) -> bool {
        self.pages_ahead() > self.limits.max / AHEAD_SHARE
    }

    /// The one that came first.
    pub fn oldest_ahead(&mut self) -> Option<(SwapEntry, Ahead)> {
        while let Some(entry) = self.ahead_order.pop_front() {
            if let Some(ahead) = self.ahead.remove(&entry) {
                return Some((entry, ahead));
            }
        }
        None
    }
}
