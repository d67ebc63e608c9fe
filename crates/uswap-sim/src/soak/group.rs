//! What the processes of a tree share: areas in clusters, pools that children read, ledgers of what they may still read.

use std::collections::{BTreeMap, BTreeSet};

use uswap_core::EntryId;
use uswap_core::slots::CLUSTER_SLOTS;

use super::coverage::{Coverage, Happening};
use super::violation::{Checked, Checker, ensure};
use crate::chance::Chance;
use crate::device::failures::{FaultRates, ReadFate, WriteFate};
use crate::page_content::Content;

/// One swap area.
pub(super) struct Area {
    pub slots: u64,
    content: BTreeMap<u64, Content>,
    /// Which process has each cluster.
    pub owners: Vec<Option<usize>>,
    /// It is to become empty, and takes no more pages: by which announcement.
    pub leaving: Option<u64>,
}

impl Area {
    pub fn clusters_taken(&self) -> u64 {
        self.owners.iter().flatten().count() as u64
    }
}

/// The compressed objects of one process.
#[derive(Default)]
pub(super) struct Pool {
    objects: BTreeMap<u32, Content>,
    free: Vec<u32>,
    next: u32,
}

impl Pool {
    pub fn alloc(&mut self, content: Content) -> u32 {
        let handle = self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next
        });
        self.objects.insert(handle, content);
        handle
    }

    /// Writes the bytes of an object that has a place.
    pub fn put(&mut self, handle: u32, content: Content) {
        self.objects.insert(handle, content);
    }

    pub fn free(&mut self, handle: u32) -> Checked {
        let freed = self.objects.remove(&handle);
        ensure(freed.is_some(), Checker::OneOwner, || format!("object {handle} of a pool is freed twice"))?;
        self.free.push(handle);
        Ok(())
    }

    pub fn get(&self, handle: u32) -> Option<Content> {
        self.objects.get(&handle).copied()
    }

    pub fn len(&self) -> u64 {
        self.objects.len() as u64
    }

    pub fn any_handle(&self) -> Option<u32> {
        self.objects.keys().next().copied()
    }
}

/// Which entries of a parent its children may still read.
pub(super) struct Ledger {
    held: BTreeSet<EntryId>,
    registered: u32,
    pending: u32,
    living: u32,
}

impl Ledger {
    pub fn new(held: BTreeSet<EntryId>) -> Self {
        Self { held, registered: 0, pending: 1, living: 0 }
    }

    pub fn fork_begins(&mut self) {
        self.pending += 1;
    }

    pub fn register(&mut self) {
        self.pending -= 1;
        self.registered += 1;
        self.living += 1;
    }

    pub fn holder_dies(&mut self) {
        self.living -= 1;
    }

    pub fn give_up(&mut self, entry: EntryId) {
        if self.registered == 1 && self.pending == 0 {
            self.held.remove(&entry);
        }
    }

    pub fn holds(&self, entry: EntryId) -> bool {
        self.held.contains(&entry)
    }

    pub fn is_alive(&self) -> bool {
        self.pending > 0 || self.living > 0
    }
}

/// What is shared.
pub(super) struct Group {
    pub areas: Vec<Area>,
    pub pools: Vec<Pool>,
    pub ledgers: Vec<Ledger>,
    pub faults: FaultRates,
    /// Contents into whose storage a fault was injected: the only ones that may be lost.
    excused: BTreeSet<Content>,
    serial: u64,
    last_content: u64,
    announcements: u64,
}

impl Group {
    pub fn new(area_slots: &[u64], faults: FaultRates) -> Self {
        let area = |&slots: &u64| Area {
            slots,
            content: BTreeMap::new(),
            owners: vec![None; slots.div_ceil(u64::from(CLUSTER_SLOTS)) as usize],
            leaving: None,
        };
        Self {
            areas: area_slots.iter().map(area).collect(),
            pools: Vec::new(),
            ledgers: Vec::new(),
            faults,
            excused: BTreeSet::new(),
            serial: 0,
            last_content: 0,
            announcements: 0,
        }
    }

    /// A content that nothing has had before.
    pub fn new_content(&mut self) -> Content {
        self.last_content += 1;
        Content(self.last_content)
    }

    /// An area leaves, or stays after all.
    pub fn change_mind(&mut self, area: usize) {
        self.announcements += 1;
        let leaving = &mut self.areas[area].leaving;
        *leaving = if leaving.is_none() { Some(self.announcements) } else { None };
    }

    /// A cluster of `area` for `process`.
    pub fn claim(&mut self, area: usize, process: usize, chance: &mut Chance) -> Option<u32> {
        let owners = &mut self.areas[area].owners;
        let from = chance.index(owners.len());
        let cluster = (0..owners.len()).map(|step| (from + step) % owners.len()).find(|&at| owners[at].is_none())?;
        owners[cluster] = Some(process);
        Some(cluster as u32)
    }

    pub fn release(&mut self, area: usize, cluster: u32, process: usize) -> Checked {
        let owner = &mut self.areas[area].owners[cluster as usize];
        ensure(*owner == Some(process), Checker::OneOwner, || {
            format!("process {process} releases cluster {cluster} of area {area}, which belongs to {owner:?}")
        })?;
        *owner = None;
        // The file system punches a hole.
        let first = u64::from(cluster * CLUSTER_SLOTS);
        let slots: Vec<u64> =
            self.areas[area].content.range(first..first + u64::from(CLUSTER_SLOTS)).map(|(&slot, _)| slot).collect();
        for slot in slots {
            self.areas[area].content.remove(&slot);
        }
        Ok(())
    }

    fn damaged(&mut self, content: Content) -> Content {
        self.serial += 1;
        self.excused.insert(content);
        content.damaged(self.serial)
    }

    /// Writes a page; whether success is reported.
    pub fn write(&mut self, area: usize, slot: u64, content: Content, chance: &mut Chance) -> Result<(), WriteFate> {
        let fate = self.faults.write(chance);
        match fate {
            WriteFate::Fine => {
                self.areas[area].content.insert(slot, content);
                Ok(())
            }
            WriteFate::Corrupt => {
                let damaged = self.damaged(content);
                self.areas[area].content.insert(slot, damaged);
                Ok(())
            }
            WriteFate::Tears => {
                // Reported, so nobody may ever read it: it excuses nothing.
                self.serial += 1;
                self.areas[area].content.insert(slot, content.damaged(self.serial));
                Err(fate)
            }
            WriteFate::Fails | WriteFate::Short | WriteFate::NoSpace => Err(fate),
        }
    }

    /// Reads a page; `None`: an error.
    pub fn read(&mut self, area: usize, slot: u64, coverage: &mut Coverage, chance: &mut Chance) -> Option<Content> {
        let content = self.peek(area, slot);
        match self.faults.read(chance) {
            ReadFate::Fine => Some(content),
            ReadFate::Fails => {
                coverage.note(Happening::ReadFault);
                self.excused.insert(content);
                None
            }
            ReadFate::Corrupt => {
                coverage.note(Happening::ReadFault);
                Some(self.damaged(content))
            }
        }
    }

    /// What is in a slot, zeros where nothing was written.
    pub fn peek(&self, area: usize, slot: u64) -> Content {
        self.areas[area].content.get(&slot).copied().unwrap_or(Content::ZERO)
    }

    /// Whether a fault is the reason why the content with `hash` cannot be had.
    pub fn is_excused(&self, hash: u128) -> bool {
        self.excused.iter().any(|content| content.hash() == hash)
    }

    /// Sabotage.
    pub fn overwrite(&mut self, area: usize, slot: u64) {
        self.areas[area].content.insert(slot, Content(u64::MAX >> 1));
    }
}
