//! The device of the area, with what lies in each slot of it, and what is on its way there.
//!
//! A write takes effect when it ends, so one that is delayed lands after those that overtook it. What goes wrong with it is
//! drawn when it is submitted and felt when it ends. A slot keeps what it holds when it is freed.

use std::collections::BTreeMap;

use uswap_linux::swap_entry::SwapEntry;

use crate::chance::Chance;
use crate::device::failures::{FaultRates, ReadFate, WriteFate};
use crate::device::{Device, Direction, Profile, Request};
use crate::page_content::Content;

/// A transfer that is delayed takes so many times as long.
const DELAY: u64 = 50;

/// A page that is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    pub entry: SwapEntry,
    pub content: Content,
    /// The cgroup of its owner is charged for it until it is written.
    pub is_charged: bool,
}

/// A write that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landed {
    pub write: Write,
    /// An error was reported: the page in memory is the only copy.
    pub failed: bool,
}

/// What a read gave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Got {
    pub entry: SwapEntry,
    /// When it is there.
    pub end_ns: u64,
    /// `None` for an error.
    pub content: Option<Content>,
    /// Something was done to this read, or to what it read.
    pub was_injected: bool,
}

pub(super) struct Disk {
    device: Device,
    faults: FaultRates,
    chance: Chance,
    slots: BTreeMap<SwapEntry, Content>,
    /// By the time of its end.
    flight: BTreeMap<(u64, u64), (Write, WriteFate)>,
    /// Where in `flight` a slot's write is.
    by_entry: BTreeMap<SwapEntry, (u64, u64)>,
    serial: u64,
}

impl Disk {
    pub fn new(profile: &Profile, faults: FaultRates, seed: u64) -> Self {
        Self {
            device: Device::new(profile.clone(), Chance::stream(seed, 1)),
            faults,
            chance: Chance::stream(seed, 2),
            slots: BTreeMap::new(),
            flight: BTreeMap::new(),
            by_entry: BTreeMap::new(),
            serial: 0,
        }
    }

    /// Writes pages; neighbours in the order given become one request.
    pub fn write(&mut self, now_ns: u64, writes: &[Write]) {
        let requests: Vec<Request> = writes.iter().map(|write| Request { slot: write.entry.slot, pages: 1 }).collect();
        let mut writes = writes.iter();
        for (request, end_ns) in self.device.submit(now_ns, Direction::Write, &requests) {
            let end_ns = self.delayed(now_ns, end_ns);
            let mut is_short = false;
            for write in writes.by_ref().take(request.pages as usize) {
                let fate = if is_short { WriteFate::Short } else { self.faults.write(&mut self.chance) };
                is_short |= fate == WriteFate::Short;
                self.serial += 1;
                self.flight.insert((end_ns, self.serial), (*write, fate));
                self.by_entry.insert(write.entry, (end_ns, self.serial));
            }
        }
    }

    fn delayed(&mut self, now_ns: u64, end_ns: u64) -> u64 {
        if self.faults.delays(&mut self.chance) { now_ns + DELAY * (end_ns - now_ns) } else { end_ns }
    }

    /// When the first of the writes in flight ends.
    pub fn next_end_ns(&self) -> Option<u64> {
        self.flight.first_key_value().map(|(&(end_ns, _), _)| end_ns)
    }

    /// The next write that has ended by `now_ns`; it takes effect.
    pub fn landed(&mut self, now_ns: u64) -> Option<Landed> {
        let first = self.flight.first_entry().filter(|first| first.key().0 <= now_ns)?;
        let (key, (write, fate)) = first.remove_entry();
        let Write { entry, content, .. } = write;
        self.by_entry.remove(&entry);
        let left = match fate {
            WriteFate::Fine => Some(content),
            WriteFate::Tears | WriteFate::Corrupt => Some(content.damaged(key.1)),
            WriteFate::Fails | WriteFate::Short | WriteFate::NoSpace => None,
        };
        if let Some(left) = left {
            self.slots.insert(entry, left);
        }
        Some(Landed { write, failed: !matches!(fate, WriteFate::Fine | WriteFate::Corrupt) })
    }

    /// The page that is being written to a slot.
    pub fn in_flight(&self, entry: SwapEntry) -> Option<Content> {
        self.by_entry.get(&entry).map(|key| self.flight[key].0.content)
    }

    /// The slots that are being written to.
    pub fn slots_in_flight(&self) -> impl Iterator<Item = SwapEntry> + '_ {
        self.by_entry.keys().copied()
    }

    /// What lies in a slot.
    pub fn at(&self, entry: SwapEntry) -> Option<Content> {
        self.slots.get(&entry).copied()
    }

    /// Something else comes to lie in a slot.
    pub fn overwrite(&mut self, entry: SwapEntry, content: Content) {
        self.slots.insert(entry, content);
    }

    /// Reads slots together; what each gave, in the order given.
    pub fn read(&mut self, now_ns: u64, entries: &[SwapEntry]) -> Vec<Got> {
        let requests: Vec<Request> = entries.iter().map(|entry| Request { slot: entry.slot, pages: 1 }).collect();
        let mut entries = entries.iter();
        let mut got = Vec::new();
        for (request, end_ns) in self.device.submit(now_ns, Direction::Read, &requests) {
            let end_ns = self.delayed(now_ns, end_ns);
            for &entry in entries.by_ref().take(request.pages as usize) {
                let stored = self.at(entry);
                let fate = self.faults.read(&mut self.chance);
                self.serial += 1;
                let content = match fate {
                    ReadFate::Fine => stored,
                    ReadFate::Fails => None,
                    ReadFate::Corrupt => stored.map(|content| content.damaged(self.serial)),
                };
                let was_injected = fate != ReadFate::Fine || stored.is_some_and(Content::is_garbage);
                got.push(Got { entry, end_ns, content, was_injected });
            }
        }
        got
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: SwapEntry = SwapEntry { area: 0, slot: 7 };

    fn write_of(slot: u64) -> Write {
        Write { entry: SwapEntry { slot, ..ENTRY }, content: Content(slot), is_charged: true }
    }

    fn disk(faults: FaultRates) -> Disk {
        Disk::new(&Profile::named("nvme").unwrap(), faults, 1)
    }

    /// Writes slots 7, 8, 9 in one request and tells what became of them.
    fn written(faults: FaultRates) -> (Disk, Vec<Landed>) {
        let mut disk = disk(faults);
        disk.write(0, &[write_of(7), write_of(8), write_of(9)]);
        assert_eq!((disk.in_flight(ENTRY), disk.at(ENTRY)), (Some(Content(7)), None));
        let landed = std::iter::from_fn(|| disk.landed(u64::MAX)).collect();
        (disk, landed)
    }

    #[test]
    fn a_write_takes_effect_when_it_ends() {
        let (disk, landed) = written(FaultRates::NONE);
        assert!(landed.len() == 3 && landed.iter().all(|landed| !landed.failed));
        assert_eq!((disk.at(ENTRY), disk.in_flight(ENTRY)), (Some(Content(7)), None));
    }

    #[test]
    fn each_fault_of_a_write_leaves_what_it_says() {
        let all = FaultRates::OF;
        let none = FaultRates::NONE;
        for (faults, failed, left) in [
            (FaultRates { write_fails: all, ..none }, true, None),
            (FaultRates { no_space: all, ..none }, true, None),
            (FaultRates { write_is_short: all, ..none }, true, None),
            (FaultRates { write_tears: all, ..none }, true, Some(true)),
            (FaultRates { write_corrupts: all, ..none }, false, Some(true)),
        ] {
            let (disk, landed) = written(faults);
            assert!(landed.iter().all(|landed| landed.failed == failed), "{faults:?}");
            assert_eq!(disk.at(ENTRY).map(Content::is_garbage), left, "{faults:?}");
        }
    }

    #[test]
    fn what_follows_a_short_write_in_its_request_is_not_written() {
        let faults = FaultRates { write_is_short: FaultRates::OF / 2, ..FaultRates::NONE };
        let mut disk = disk(faults);
        for round in 0..100 {
            disk.write(0, &(1..9).map(|slot| write_of(round * 9 + slot)).collect::<Vec<_>>());
            let landed: Vec<bool> = std::iter::from_fn(|| disk.landed(u64::MAX)).map(|landed| landed.failed).collect();
            assert!(landed.is_sorted(), "{landed:?}");
        }
    }

    #[test]
    fn a_delayed_transfer_is_overtaken() {
        let mut disk = disk(FaultRates { delays: FaultRates::OF / 2, ..FaultRates::NONE });
        for slot in 1..50 {
            disk.write(0, &[write_of(slot * 9)]);
        }
        let order: Vec<u64> =
            std::iter::from_fn(|| disk.landed(u64::MAX)).map(|landed| landed.write.entry.slot).collect();
        assert!(!order.is_sorted() && order.len() == 49);
        let ends: Vec<u64> = (1..50).map(|slot| disk.read(0, &[SwapEntry { area: 0, slot }])[0].end_ns).collect();
        assert!(ends.iter().max() > ends.iter().min().map(|least| least * 20).as_ref(), "{ends:?}");
    }

    #[test]
    fn a_read_gives_what_is_there_or_says_that_it_was_tampered_with() {
        let read = |faults| {
            let mut disk = disk(faults);
            disk.overwrite(ENTRY, Content(5));
            let got = disk.read(0, &[ENTRY])[0];
            (got.content, got.was_injected)
        };
        assert_eq!(read(FaultRates::NONE), (Some(Content(5)), false));
        assert_eq!(read(FaultRates { read_fails: FaultRates::OF, ..FaultRates::NONE }), (None, true));
        let (content, was_injected) = read(FaultRates { read_corrupts: FaultRates::OF, ..FaultRates::NONE });
        assert!(content.unwrap().is_garbage() && was_injected);
    }
}
