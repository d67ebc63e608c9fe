//! The supervisor's side of a group: its areas, and the slots of its processes.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use uswap_engine::group::{AreaConfig, Group, GroupConfig};
use uswap_engine::member::Member;
use uswap_system::System;

use crate::process::ProcessId;
use crate::supervisor::ModelSupervisor;
use crate::world::World;

/// The engine's threads beside the monitor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crew {
    /// Handlers; one at least.
    pub handlers: usize,
    /// Threads that read ahead.
    pub readers: usize,
    /// Whether there is a writer.
    pub has_writer: bool,
}

/// A process in the group.
struct Place {
    process: ProcessId,
    index: u32,
    is_retired: bool,
}

/// A tree of processes.
pub struct Tree {
    /// What they share.
    pub group: &'static Group,
    /// Their engines' threads.
    pub crew: Crew,
    /// The files of its areas.
    pub areas: Vec<OwnedFd>,
    /// Descriptors of them that processes were given.
    pub given: RefCell<Vec<RawFd>>,
    places: RefCell<Vec<Place>>,
}

impl Tree {
    /// A tree with areas of so many slots each.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(mut config: GroupConfig, area_slots: &[u64], crew: Crew) -> io::Result<Rc<Tree>> {
        let mut areas = Vec::new();
        for (index, &slots) in area_slots.iter().enumerate() {
            let area = rustix::fs::memfd_create(c"area", rustix::fs::MemfdFlags::CLOEXEC)?;
            rustix::fs::ftruncate(&area, slots * uswap_system::PAGE_SIZE as u64)?;
            config.areas[index] = AreaConfig {
                present: true,
                slots,
                priority: index as i32,
                direct: false,
                punch_holes: true,
                file: [0, index as u64],
            };
            areas.push(area);
        }
        let (group, _) = Group::create(&config)?;
        let group: &'static Group = Box::leak(Box::new(group));
        Ok(Rc::new(Tree { group, crew, areas, given: RefCell::default(), places: RefCell::new(Vec::new()) }))
    }

    /// Lets a process join; `parent`: the slot of who forked it.
    ///
    /// # Errors
    /// No descriptor is to be had, or the group is full.
    pub fn join<S: System<Supervisor = ModelSupervisor>>(
        &self,
        process: ProcessId,
        parent: Option<u32>,
    ) -> io::Result<Member<S>> {
        let index = self.group.allot(process.pid()).ok_or(io::ErrorKind::QuotaExceeded)?;
        if let Some(parent) = parent {
            self.group.fork_arrived(parent, index);
        }
        self.places.borrow_mut().push(Place { process, index, is_retired: false });
        let areas = self.areas.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<OwnedFd>>>()?;
        self.given.borrow_mut().extend(areas.iter().map(OwnedFd::as_raw_fd));
        let generation = self.group.process(index).life.generation.load(Relaxed);
        Ok(Member { group: self.group, index, generation, supervisor: ModelSupervisor::with_areas(areas) })
    }

    /// The slot of a process that has joined, if it lives.
    pub fn index_of(&self, process: ProcessId) -> Option<u32> {
        let places = self.places.borrow();
        places.iter().find(|place| place.process == process && !place.is_retired).map(|place| place.index)
    }

    /// Of an area that is empty: other bytes are on it from now on.
    pub fn spoil_area(&self, area: usize) {
        let len = self.group.config().areas[area].slots * uswap_system::PAGE_SIZE as u64;
        let spoilt = vec![0xE5; len as usize];
        let _ = rustix::io::pwrite(&self.areas[area], &spoilt, 0);
    }

    /// Looks which processes have died, and clears up after them.
    pub fn look_after_the_dead(&self, world: &World) {
        for place in self.places.borrow_mut().iter_mut().filter(|place| !place.is_retired) {
            if !world.kernel().process(place.process).is_alive {
                self.group.retire(place.index);
                place.is_retired = true;
            }
        }
        while let Some(index) = self.group.reapable().next() {
            self.group.reap(index);
        }
        for area in (0..self.areas.len()).filter(|&area| self.group.is_leaving(area)) {
            let left_behind: Vec<u32> = self.group.left_behind(area).collect();
            left_behind.into_iter().for_each(|index| self.group.release_all_on(area, index));
        }
    }
}
