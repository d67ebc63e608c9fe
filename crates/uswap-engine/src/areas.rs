//! The swap areas of this process: which one takes the next page, and what a failing one does.

use std::io;
use std::marker::PhantomData;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::Instant;

use uswap_core::slots::Refused;
use uswap_core::{AreaId, Core, tuning};
use uswap_sys::report::Reason;
use uswap_system::{Supervisor, System};

use crate::group::{AREAS_MAX, CLUSTER_SLOTS, Counter, Group};
use crate::lock_order::Lock;
use crate::member::Member;
use crate::store::faulty::FaultyStore;
use crate::store::file::FileStore;
use crate::store::{IoOutcome, Store, StoreError};

/// One area.
pub struct Area {
    /// Its number.
    pub id: AreaId,
    /// Its content.
    pub store: Box<dyn Store>,
    /// Slots in it, used or not.
    pub slots: u64,
    /// Higher is used first.
    pub priority: i32,
    group: &'static Group,
    paused_until: Mutex<Option<Instant>>,
    /// Until when a failed read is not waited for.
    read_at_once_until: Mutex<Option<Instant>>,
    write_errors: AtomicU64,
    said_no_space: AtomicBool,
    /// When a write last found no space.
    no_space_since: Mutex<Option<Instant>>,
}

/// All areas, highest priority first.
pub struct Areas<S> {
    areas: Vec<Area>,
    system: PhantomData<fn() -> S>,
}

/// No area has a slot to give.
#[derive(Debug, PartialEq, Eq)]
pub struct NoRoom;

impl<S: System> Areas<S> {
    /// The areas that `member` was given.
    pub fn open(member: &mut Member<S>) -> io::Result<Areas<S>> {
        let config = member.group.config();
        let mut areas = Vec::with_capacity(AREAS_MAX);
        for (index, area) in config.areas.iter().enumerate() {
            let Some(fd) = member.supervisor.take_area(index).filter(|_| area.present) else { continue };
            areas.push(Area {
                id: AreaId(index as u8),
                store: Box::new(FaultyStore::new(
                    FileStore::new(fd, area.slots, area.punch_holes),
                    config.fault_injection,
                )),
                slots: area.slots,
                priority: area.priority,
                group: member.group,
                paused_until: Mutex::new(None),
                read_at_once_until: Mutex::new(None),
                write_errors: AtomicU64::new(0),
                said_no_space: AtomicBool::new(false),
                no_space_since: Mutex::new(None),
            });
        }
        areas.sort_by_key(|area| std::cmp::Reverse(area.priority));
        Ok(Areas { areas, system: PhantomData })
    }

    /// The area `id`.
    pub fn get(&self, id: AreaId) -> &Area {
        self.areas.iter().find(|area| area.id == id).expect("an entry names an area of the group")
    }

    /// All areas.
    pub fn iter(&self) -> impl Iterator<Item = &Area> {
        self.areas.iter()
    }

    /// Whether some area may take pages at this moment.
    pub fn any_open(&self) -> bool {
        self.areas.iter().any(Area::is_open::<S>)
    }

    /// Whether the user has been told that an area cannot be written to, and that pages stay in memory because of it.
    pub fn have_complained(&self) -> bool {
        self.areas.iter().any(|area| area.said_no_space.load(Relaxed) || area.write_errors.load(Relaxed) > 0)
    }

    /// Areas that are to become empty.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = &Area> {
        self.areas.iter().filter(|area| area.is_leaving())
    }

    /// A run of up to `max` free slots of the best area that has some. An area that leaves gives none: asked while the
    /// books are in the caller's hands, so that who finds it empty by the books later finds all that it gave.
    pub fn alloc(&self, core: &mut Core, member: &Member<S>, max: u32) -> Result<(AreaId, u64, u32), NoRoom> {
        for area in self.areas.iter().filter(|area| area.is_open::<S>()) {
            let slots = core.slots_mut(area.id);
            loop {
                match slots.alloc_run(max) {
                    Ok((slot, count)) => return Ok((area.id, slot, count)),
                    Err(Refused::NeedCluster) => {
                        let Some(cluster) = member.group.claim_cluster(area.id.0 as usize, member.index) else { break };
                        slots.grant(cluster);
                    }
                }
            }
        }
        Err(NoRoom)
    }

    /// Gives clusters that became empty back to the group. No lock is held while the file system frees them.
    pub(crate) fn release_empty_clusters(&self, core: &Lock<Core, S>, member: &Member<S>) {
        for area in &self.areas {
            loop {
                let leaves = area.is_leaving();
                let mut core = core.lock();
                let slots = core.slots_mut(area.id);
                let taken = if leaves { slots.take_last_empty_cluster() } else { slots.take_empty_cluster() };
                drop(core);
                let Some(cluster) = taken else { break };
                if member.group.config().areas[area.id.0 as usize].punch_holes {
                    // Slot 0 is the header; the last cluster may be short.
                    let first = (u64::from(cluster) * CLUSTER_SLOTS).max(1);
                    let end = ((u64::from(cluster) + 1) * CLUSTER_SLOTS).min(area.slots);
                    area.store.discard(first, (end - first) as u32);
                }
                let released = member.group.release_cluster(area.id.0 as usize, cluster, member.index);
                debug_assert!(released, "a cluster belongs to whom it was granted");
            }
        }
    }

    /// Whether there is something for [`release_empty_clusters`](Self::release_empty_clusters) to do.
    pub(crate) fn have_spare_clusters(&self, core: &Core) -> bool {
        self.areas.iter().any(|area| core.slots(area.id).has_spare_cluster())
    }

    /// Publishes the use of each area.
    pub fn publish(&self, core: &Core, member: &Member<S>) {
        for area in &self.areas {
            member.slot().managed.area_used_slots[area.id.0 as usize].store(core.slots(area.id).used(), Relaxed);
        }
    }

    /// Whether the copy of a page that came in is kept: at least half of the area's clusters are free (vm_swap_full), and
    /// it does not leave.
    pub fn keeps_copies(&self, id: AreaId) -> bool {
        let area = self.get(id);
        !area.is_leaving() && area.group.clusters_taken(id.0 as usize) * CLUSTER_SLOTS * 2 <= area.slots
    }
}

/// Words for a failed write, without asking libc for them.
fn reason(error: StoreError) -> String {
    match error {
        StoreError::Io(number) => Reason(&io::Error::from_raw_os_error(number)).to_string(),
        StoreError::NoSpace => "no space left".into(),
        StoreError::Short => "it is shorter than it was".into(),
    }
}

impl Area {
    /// Whether it is to become empty.
    fn is_leaving(&self) -> bool {
        self.group.is_leaving(self.id.0 as usize)
    }

    fn is_open<S: System>(&self) -> bool {
        if self.is_leaving() || self.write_errors.load(Relaxed) >= tuning::WRITE_ERRORS_MAX {
            return false;
        }
        let mut paused = self.paused_until.lock().expect("no thread panics with this lock");
        match *paused {
            Some(until) if S::now() < until => false,
            Some(_) => {
                *paused = None;
                true
            }
            None => true,
        }
    }

    /// Whether what could not be read may be had later, so that it is worth waiting for.
    pub fn may_come_back<S: System>(&self, outcome: IoOutcome) -> bool {
        let is_transfer = matches!(outcome, IoOutcome::Failed(StoreError::Io(_)) | IoOutcome::Pending);
        let until = || *self.read_at_once_until.lock().expect("no thread panics with this lock");
        is_transfer && until().is_none_or(|until| S::now() >= until)
    }

    /// What was waited for did not come.
    pub fn was_read_in_vain<S: System>(&self) {
        *self.read_at_once_until.lock().expect("no thread panics with this lock") =
            Some(S::now() + tuning::READ_AT_ONCE_FOR);
    }

    /// A write failed: says so once, and leaves the area alone for a while.
    pub fn write_failed<S: System>(&self, error: StoreError, member: &Member<S>) {
        match error {
            StoreError::NoSpace => {
                member.slot().tally.add(Counter::NoSpace, 1);
                // Before the area closes: a thread that finds it closed asks whether the user knows.
                let known = self.said_no_space.swap(true, Relaxed);
                *self.paused_until.lock().expect("no thread panics with this lock") =
                    Some(S::now() + tuning::NO_SPACE_PAUSE);
                *self.no_space_since.lock().expect("no thread panics with this lock") = Some(S::now());
                if !known {
                    member.alarm(format_args!(
                        "uswap: no space left for swap area {}; pages stay in memory until there is some",
                        self.id.0
                    ));
                }
            }
            StoreError::Io(_) | StoreError::Short => {
                member.slot().tally.add(Counter::WriteErrors, 1);
                let errors = self.write_errors.fetch_add(1, Relaxed) + 1;
                if errors == 1 {
                    member.alarm(format_args!(
                        "uswap: cannot write to swap area {}: {}; the page stays in memory",
                        self.id.0,
                        reason(error)
                    ));
                }
                if errors == tuning::WRITE_ERRORS_MAX {
                    member.alarm(format_args!(
                        "uswap: swap area {} failed {} writes and takes no more pages",
                        self.id.0,
                        tuning::WRITE_ERRORS_MAX
                    ));
                }
            }
        }
    }

    /// A write went through. When that has lasted for a while, the next shortage is news.
    pub fn write_succeeded<S: System>(&self) {
        if self.said_no_space.load(Relaxed) {
            let failed = *self.no_space_since.lock().expect("no thread panics with this lock");
            if failed.is_none_or(|failed| S::since(failed) > tuning::SHORTAGE_SAID_AGAIN) {
                self.said_no_space.store(false, Relaxed);
            }
        }
    }
}
