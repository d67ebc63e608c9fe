//! The userfaultfd of a process that has objects mapped, as the server asks it.

use std::io;
use std::ops::Range;

use uswap_shmem::kernel::{ClientUffd, FromClient};
use uswap_system::PAGE_SIZE;
use uswap_system::faults::{Message, Progress, Stop, Wake};

use super::shared_mm::{SharedMm, SharedPte, SharedVma};
use crate::coverage::Happening;
use crate::host_memory;
use crate::mm::pages_of;
use crate::page_content::Content;
use crate::process::ProcessId;
use crate::userfaultfd_ctx::{Event, Fault, UserfaultId};
use crate::waits::Key;
use crate::world::{Kernel, World, current};

/// UFFD_EVENT_FORK.
pub(crate) const FORKED: Message = Message::Other(0x13);

/// A userfaultfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedUffd(pub UserfaultId);

fn stopped(bytes: usize, stop: Stop) -> Progress {
    Progress { bytes, stop: Some(stop) }
}

/// Sets or clears the protection of an entry.
fn protected(pte: Option<SharedPte>, protect: bool) -> Option<SharedPte> {
    match pte {
        Some(SharedPte::Present { .. }) => Some(SharedPte::Present { protected: protect }),
        None | Some(SharedPte::Marker) => protect.then_some(SharedPte::Marker),
        Some(SharedPte::Poison) => Some(SharedPte::Poison),
    }
}

impl SharedUffd {
    /// One past its handshake, for this process.
    pub fn open(kernel: &mut Kernel, process: ProcessId) -> SharedUffd {
        kernel.userfaults.push(crate::userfaultfd_ctx::Userfault::new(process));
        SharedUffd(UserfaultId(kernel.userfaults.len() - 1))
    }

    /// Whether somebody still has the memory that it is for.
    pub fn has_memory(&self) -> bool {
        let world = current();
        let kernel = world.kernel();
        kernel.process(kernel.userfaults[self.0.0].process).is_alive
    }

    /// What is mapped in its process and registered with it, as /proc shows it: one mapping after the other.
    pub fn mapped(&self) -> Option<Vec<SharedVma>> {
        let world = current();
        let process = {
            let kernel = world.kernel();
            kernel.userfaults[self.0.0].process
        };
        let (mut found, mut from) = (Vec::new(), 0);
        loop {
            world.point();
            let kernel = world.kernel();
            if !kernel.process(process).is_alive || kernel.shmem.unborn.contains(&process) {
                return None;
            }
            let mm = kernel.shmem.mms.get(&process)?;
            let Some(vma) = mm.vmas.iter().filter(|vma| vma.end > from).min_by_key(|vma| vma.start) else {
                return Some(found);
            };
            from = vma.end;
            found.extend(Some(*vma).filter(|vma| vma.userfault == Some(self.0)));
        }
    }

    /// With the lock of the mappings held for reading, where nothing is counted.
    fn with_mappings(&self, act: impl FnOnce(&World, ProcessId) -> Progress) -> Progress {
        let world = current();
        world.point();
        let process = match world.at_rest(self.0) {
            Ok(process) => process,
            Err(stop) => return stopped(0, stop),
        };
        world.hold_mappings(process);
        let progress = act(&world, process);
        world.let_go_of_mappings(process);
        progress
    }

    /// Fills one page after the other of a range that is all of one registered mapping.
    fn fill(
        &self,
        at: usize,
        len: usize,
        wake: Wake,
        fill: impl Fn(&mut Kernel, ProcessId, SharedVma, usize) -> Result<(), Stop>,
    ) -> Progress {
        let Some(pages) = pages_of(at, len) else { return stopped(0, Stop::Invalid) };
        let progress = self.with_mappings(|world, process| {
            let vma = world.kernel().shmem.mms.get(&process).and_then(|mm| mm.vma_at(pages.start));
            let Some(vma) = vma.filter(|vma| vma.end >= pages.end && vma.userfault.is_some()) else {
                return stopped(0, Stop::Missing);
            };
            for (index, page) in pages.clone().enumerate() {
                world.point();
                if !world.kernel().process(process).is_alive {
                    return stopped(index * PAGE_SIZE, Stop::ProcessGone);
                }
                let mut kernel = world.kernel_mut();
                // A page table with a marker in it stays.
                let is_empty = kernel.shmem.mms.get(&process).is_none_or(|mm| !mm.ptes.contains_key(&page));
                let table = if is_empty { world.has_a_table() } else { Ok(()) };
                if let Err(stop) = table.and_then(|()| fill(&mut kernel, process, vma, page)) {
                    return stopped(index * PAGE_SIZE, stop);
                }
            }
            Progress { bytes: len, stop: None }
        });
        if wake == Wake::Wake && progress.bytes > 0 {
            current().wake_range(self.0, &(pages.start..pages.start + progress.bytes / PAGE_SIZE));
        }
        progress
    }

    fn fill_with(&self, at: usize, len: usize, wake: Wake, content: impl Fn(usize) -> Content) -> Progress {
        let world = current();
        self.fill(at, len, wake, |kernel, process, vma, page| {
            world.add_to_cache(kernel, vma.object, vma.to_object(page), content(page - at / PAGE_SIZE))?;
            // Markers are overwritten.
            entry_of(kernel, process, page, SharedPte::Present { protected: false });
            let place = vma.to_object(page);
            world.trace(
                &(place..place + 1),
                format_args!("mapped at {page:x} in {process:?}: object {}, page", vma.object.0),
            );
            Ok(())
        })
    }

    /// What there is to read, and who goes on then.
    fn take_messages(&self, room: usize) -> (Vec<FromClient<SharedUffd>>, Vec<Event>) {
        let world = current();
        let mut kernel = world.kernel_mut();
        let kernel = &mut *kernel;
        let (mut taken, mut events) = (Vec::new(), Vec::new());
        let userfault = &mut kernel.userfaults[self.0.0];
        if !kernel.processes[userfault.process.0].is_alive {
            userfault.faults.clear();
            userfault.events.clear();
            return (taken, events);
        }
        while taken.len() < room {
            if let Some(Fault { page, write, protected, .. }) = userfault.faults.pop_front() {
                let addr = page * PAGE_SIZE;
                taken.push(FromClient::Message(Message::Fault { addr, write, protected, thread: None }));
                continue;
            }
            let Some(event) = userfault.events.pop_front() else { break };
            events.push(event);
            let births = &mut kernel.shmem.births;
            let is_this = |birth: &super::Birth| birth.thread == event.thread && birth.userfault == self.0;
            let birth = births.iter().position(is_this).filter(|_| event.message == FORKED);
            taken.push(match birth {
                Some(at) => FromClient::Child(SharedUffd(births.remove(at).child)),
                None => FromClient::Message(event.message),
            });
        }
        (taken, events)
    }
}

/// Sets an entry of a process's.
pub(crate) fn entry_of(kernel: &mut Kernel, process: ProcessId, page: usize, pte: SharedPte) {
    kernel.shmem.mms.entry(process).or_default().ptes.insert(page, pte);
}

/// Protects what is mapped of `pages`, up to the first mapping that is not registered; whether there was one that is, and none that is not.
fn change_protection(mm: &mut SharedMm, pages: &Range<usize>, protect: bool) -> bool {
    let mut vmas: Vec<SharedVma> = mm.vmas.iter().filter(|vma| !vma.within(pages).is_empty()).copied().collect();
    vmas.sort_unstable_by_key(|vma| vma.start);
    for vma in &vmas {
        if vma.userfault.is_none() {
            return false;
        }
        for page in vma.within(pages) {
            match protected(mm.ptes.get(&page).copied(), protect) {
                Some(pte) => mm.ptes.insert(page, pte),
                None => mm.ptes.remove(&page),
            };
        }
    }
    !vmas.is_empty()
}

impl ClientUffd for SharedUffd {
    fn protect(&self, at: usize, len: usize, protect: bool) -> Progress {
        let Some(pages) = pages_of(at, len) else { return stopped(0, Stop::Invalid) };
        let progress = self.with_mappings(|world, process| {
            world.note(Happening::SharedProtected, usize::from(protect));
            world.point();
            let mut kernel = world.kernel_mut();
            let mm = kernel.shmem.mms.entry(process).or_default();
            for vma in mm.vmas.iter().filter(|vma| !vma.within(&pages).is_empty()) {
                let within = vma.within(&pages);
                let (object, place) = (vma.object.0, vma.to_object(within.start)..vma.to_object(within.end - 1) + 1);
                let what = if protect { "protected" } else { "not protected" };
                world.trace(&place, format_args!("{what} in {process:?} ({within:x?}): object {object}, pages"));
            }
            match change_protection(mm, &pages, protect) {
                true => Progress { bytes: len, stop: None },
                false => stopped(0, Stop::Missing),
            }
        });
        if !protect && progress.is_complete() {
            current().wake_range(self.0, &pages);
        }
        progress
    }

    fn copy(&self, at: usize, source: *const u8, len: usize, wake: Wake) -> Progress {
        self.fill_with(at, len, wake, |index| host_memory::read(source.addr() + index * PAGE_SIZE))
    }

    fn zeropage(&self, at: usize, len: usize, wake: Wake) -> Progress {
        self.fill_with(at, len, wake, |_| Content::ZERO)
    }

    fn poison(&self, at: usize, len: usize) -> Progress {
        self.fill(at, len, Wake::Wake, |kernel, process, _, page| {
            let ptes = &mut kernel.shmem.mms.entry(process).or_default().ptes;
            if ptes.contains_key(&page) {
                return Err(Stop::AlreadyThere);
            }
            ptes.insert(page, SharedPte::Poison);
            Ok(())
        })
    }

    fn wake(&self, at: usize, len: usize) -> io::Result<()> {
        let world = current();
        world.point();
        if let Some(pages) = pages_of(at, len) {
            world.wake_range(self.0, &pages);
        }
        Ok(())
    }

    fn is_changing(&self) -> bool {
        let world = current();
        world.point();
        world.kernel().userfaults[self.0.0].changing > 0
    }

    fn read(&self, room: usize, mut each: impl FnMut(FromClient<SharedUffd>) -> io::Result<()>) -> io::Result<()> {
        let world = current();
        world.point();
        let (taken, events) = self.take_messages(room);
        world.note(Happening::EventRead, events.len());
        for event in events {
            world.wake_thread(event.thread, Key::Event);
        }
        taken.into_iter().try_for_each(&mut each)
    }
}
