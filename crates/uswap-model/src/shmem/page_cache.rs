//! The page cache of an object, and the object as the server has it.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use uswap_shmem::kernel::SharedObject;
use uswap_system::PAGE_SIZE;
use uswap_system::faults::{Progress, Stop};
use uswap_system::looks::PopulatedRange;

use super::shared_mm::SharedPte;
use super::shared_uffd::SharedUffd;
use crate::coverage::Happening;
use crate::host_memory;
use crate::page_content::Content;
use crate::world::{Kernel, World, current};

/// Which object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectId(pub usize);

/// Pages of an object.
#[derive(Debug)]
pub struct PageCache {
    /// What is in memory.
    pub pages: Vec<Option<Content>>,
    /// What each page must read as, in every process.
    pub truth: Vec<Content>,
}

impl PageCache {
    /// One without any page in memory.
    pub fn new(pages: usize) -> PageCache {
        PageCache { pages: vec![None; pages], truth: vec![Content::ZERO; pages] }
    }
}

/// An object, and its window.
#[derive(Debug)]
pub struct ModelObject {
    /// Which.
    pub id: ObjectId,
    window: usize,
    len: usize,
    managed: AtomicBool,
}

impl ModelObject {
    /// With a window of its own.
    pub fn new(id: ObjectId) -> ModelObject {
        let world = current();
        let mut kernel = world.kernel_mut();
        let pages = kernel.shmem.caches[id.0].pages.len();
        let first = kernel.shmem.windows_end.max(world.config.base);
        kernel.shmem.windows_end = first + pages + 1;
        ModelObject { id, window: first * PAGE_SIZE, len: pages * PAGE_SIZE, managed: AtomicBool::new(false) }
    }

    /// Whether it is swapped from here on.
    pub fn manage(&self, managed: bool) {
        self.managed.store(managed, SeqCst);
    }

    fn pages(&self, start: usize, end: usize) -> Range<usize> {
        (start - self.window) / PAGE_SIZE..(end - self.window) / PAGE_SIZE
    }

    fn fill_with(&self, at: usize, len: usize, content: impl Fn(usize) -> Content) -> Progress {
        let world = current();
        for (index, page) in self.pages(at, at + len).enumerate() {
            world.point();
            // The page table of the window is freed where what has been filled is forgotten.
            let fill = |()| world.add_to_cache(&mut world.kernel_mut(), self.id, page, content(index));
            if let Err(stop) = world.has_a_table().and_then(fill) {
                return Progress { bytes: index * PAGE_SIZE, stop: Some(stop) };
            }
        }
        Progress { bytes: len, stop: None }
    }
}

impl World {
    /// A page that is missing comes into memory.
    pub(crate) fn add_to_cache(
        &self,
        kernel: &mut Kernel,
        ObjectId(object): ObjectId,
        page: usize,
        content: Content,
    ) -> Result<(), Stop> {
        if self.happens(self.config.no_memory, 1000) {
            self.note(Happening::NoMemory, 1);
            return Err(Stop::NoMemory);
        }
        let place = &mut kernel.shmem.caches[object].pages[page];
        if place.is_some() {
            return Err(Stop::AlreadyThere);
        }
        *place = Some(content);
        self.trace(&(page..page + 1), format_args!("{content:?} comes into object {object}, page"));
        Ok(())
    }
}

/// Whether an entry goes when its page is taken out of the cache, and what is left.
fn zapped(pte: SharedPte, keeps_markers: bool) -> Option<SharedPte> {
    match pte {
        SharedPte::Present { protected } => (protected && keeps_markers).then_some(SharedPte::Marker),
        other => Some(other),
    }
}

/// Takes a page out of all page tables.
fn unmap_everywhere(kernel: &mut Kernel, object: ObjectId, page: usize, keeps_markers: bool) {
    let Kernel { processes, shmem, .. } = kernel;
    for (process, mm) in &mut shmem.mms {
        if processes[process.0].is_alive {
            mm.change_where_mapped(object, page, |pte| zapped(pte, keeps_markers));
        }
    }
}

impl SharedObject<SharedUffd> for ModelObject {
    fn start(&self) -> usize {
        self.window
    }

    fn end(&self) -> usize {
        self.window + self.len
    }

    fn is_managed(&self) -> bool {
        self.managed.load(SeqCst)
    }

    fn name_page(&self, f: &mut fmt::Formatter<'_>, address: usize) -> fmt::Result {
        write!(f, "page {} of shared memory {}", (address - self.window) / PAGE_SIZE, self.id.0)
    }

    fn resident_pages(&self) -> u64 {
        current().kernel().shmem.caches[self.id.0].pages.iter().flatten().count() as u64
    }

    fn populated(&self, start: usize, end: usize) -> io::Result<Option<PopulatedRange>> {
        let world = current();
        world.point();
        let kernel = world.kernel();
        let pages = &kernel.shmem.caches[self.id.0].pages;
        let range = self.pages(start, end);
        let Some(first) = range.clone().find(|&page| pages[page].is_some()) else { return Ok(None) };
        let last = (first..range.end).find(|&page| pages[page].is_none()).unwrap_or(range.end);
        let address = |page: usize| self.window + page * PAGE_SIZE;
        Ok(Some(PopulatedRange { start: address(first), end: address(last), categories: PopulatedRange::PRESENT }))
    }

    fn read(&self, at: usize, out: &mut [u8]) -> io::Result<()> {
        let world = current();
        for (page, out) in self.pages(at, at + out.len()).zip(out.chunks_exact_mut(PAGE_SIZE)) {
            world.point();
            let content = world.kernel().shmem.caches[self.id.0].pages[page].unwrap_or(Content::ZERO);
            out.copy_from_slice(&content.bytes());
        }
        Ok(())
    }

    fn put_back(&self, _: usize, _: &[u8]) -> io::Result<()> {
        unreachable!("the model has no huge pages of shared memory: what is punched is gone")
    }

    fn punch(&self, at: usize, len: usize) -> io::Result<()> {
        let world = current();
        for page in self.pages(at, at + len) {
            world.point();
            unmap_everywhere(&mut world.kernel_mut(), self.id, page, true);
            // It may be mapped again from the cache before it leaves that.
            world.point();
            let mut kernel = world.kernel_mut();
            unmap_everywhere(&mut kernel, self.id, page, false);
            let content = kernel.shmem.caches[self.id.0].pages[page].take();
            drop(kernel);
            world.note(Happening::SharedPunched, usize::from(content.is_some()));
            world.trace(&(page..page + 1), format_args!("{content:?} leaves object {}, page", self.id.0));
        }
        Ok(())
    }

    fn fill(&self, _: &SharedUffd, at: usize, source: *const u8, len: usize) -> Progress {
        self.fill_with(at, len, |index| host_memory::read(source.addr() + index * PAGE_SIZE))
    }

    fn fill_with_zeros(&self, _: &SharedUffd, at: usize, len: usize) -> Progress {
        self.fill_with(at, len, |_| Content::ZERO)
    }
}
