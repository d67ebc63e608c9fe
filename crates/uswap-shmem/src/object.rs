//! Objects of shared memory, and their windows: where each is mapped in the server.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

use rustix::mm::{MapFlags, ProtFlags};
use uswap_core::BLOCK_PAGES;
use uswap_sys::shared_file::{Inode, Origin, SharedFile};
use uswap_sys::uffd::Uffd;
use uswap_system::PAGE_SIZE;
use uswap_system::faults::{Progress, Wake};
use uswap_system::looks::PopulatedRange;

/// The server's page table has at most this part of a window, if nobody has it forget before.
const FILLED_PART: usize = 16;
/// Forgetting goes through the window's page table: of fewer than this part of it, it would cost more than it is worth.
const FORGOTTEN_PART: usize = 1024;

/// One object.
#[derive(Debug)]
pub struct Object {
    /// Its memory file.
    pub file: SharedFile,
    /// Which file that is.
    pub inode: Inode,
    /// Where it comes from.
    pub origin: Origin,
    window: usize,
    len: usize,
    managed: AtomicBool,
    /// Nothing leaves any more: it is brought back.
    stays: AtomicBool,
    /// Pages filled through the window since the server's page table has forgotten it.
    filled: AtomicUsize,
}

impl Object {
    /// Maps what another process has made. `filler` gets the window, to fill pages in it.
    ///
    /// # Errors
    /// It is no memory file, or cannot be mapped.
    pub fn new(fd: OwnedFd, filler: &Uffd) -> io::Result<Object> {
        Object::of(SharedFile::received(fd), Origin::Anonymous, filler)
    }

    /// Maps what is of this `origin`.
    ///
    /// # Errors
    /// It is empty, or cannot be mapped.
    pub fn of(file: SharedFile, origin: Origin, filler: &Uffd) -> io::Result<Object> {
        let look = file.look()?;
        let inode = Inode { device: look.device, number: look.number, is_segment: origin == Origin::Segment };
        if look.bytes == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let len = (look.bytes as usize).next_multiple_of(PAGE_SIZE);
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping where the kernel has room, which nobody reads or writes: its addresses are names.
        let window = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, flags, file.as_fd(), 0)? };
        uswap_sys::huge_pages::keep_from(window as usize, len);
        let (managed, stays) = (AtomicBool::new(false), AtomicBool::new(false));
        let filled = AtomicUsize::new(0);
        let object = Object { file, inode, origin, window: window as usize, len, managed, stays, filled };
        filler.register_to_fill(object.window, len)?;
        Ok(object)
    }

    /// First byte of its window.
    pub fn start(&self) -> usize {
        self.window
    }

    /// One past the last byte of its window.
    pub fn end(&self) -> usize {
        self.window + self.len
    }

    /// Whether it is swapped: all who have it mapped are known.
    pub fn is_managed(&self) -> bool {
        self.managed.load(Acquire)
    }

    /// From here on it is, or not any more.
    pub fn manage(&self, managed: bool) {
        self.managed.store(managed, Release);
    }

    /// Whether its pages may leave.
    pub fn may_leave(&self) -> bool {
        self.is_managed() && !self.stays.load(Acquire)
    }

    /// The file has become longer or shorter: where that ends in its window.
    pub fn new_end(&self) -> Option<usize> {
        let bytes = self.file.look().ok()?.bytes as usize;
        let end = self.window.saturating_add(bytes).min(self.end() + PAGE_SIZE).next_multiple_of(PAGE_SIZE);
        (end != self.end()).then_some(end)
    }

    /// Nothing of it leaves from here on.
    pub fn stay(&self) {
        self.stays.store(true, Release);
    }

    /// Where in the file an address of the window is.
    pub fn offset(&self, address: usize) -> u64 {
        (address - self.window) as u64
    }

    /// The first pages in memory within `start..end` of the window.
    pub fn populated(&self, start: usize, end: usize) -> io::Result<Option<PopulatedRange>> {
        let found = self.file.populated(self.offset(start), self.offset(end))?;
        let address = |offset: u64| self.window + offset as usize;
        Ok(found.map(|(from, to)| PopulatedRange {
            start: address(from) & !(PAGE_SIZE - 1),
            end: address(to).next_multiple_of(PAGE_SIZE),
            categories: PopulatedRange::PRESENT,
        }))
    }

    /// Fills pages of the object through its window, for whoever has it mapped.
    pub fn fill(&self, filler: &Uffd, at: usize, source: *const u8, len: usize) -> Progress {
        let progress = filler.copy(at, source, len, Wake::DontWake);
        self.have_filled(progress.bytes / PAGE_SIZE);
        progress
    }

    /// As [`fill`](Self::fill), with zeros.
    pub fn fill_with_zeros(&self, filler: &Uffd, at: usize, len: usize) -> Progress {
        let progress = filler.zeropage(at, len, Wake::DontWake);
        self.have_filled(progress.bytes / PAGE_SIZE);
        progress
    }

    /// Pages filled through the window are in the server's page table from here on.
    fn have_filled(&self, pages: usize) {
        let most = (self.len / PAGE_SIZE / FILLED_PART).max(BLOCK_PAGES);
        if self.filled.fetch_add(pages, Relaxed) + pages >= most {
            self.forget_filled();
        }
    }

    /// Has the server's page table forget what was filled, which stays in the object. Many pages at a time: to tell the CPUs on which
    /// other threads of the server run takes several times as long as to fill a page.
    pub fn forget_filled(&self) {
        let filled = self.filled.load(Relaxed);
        let is_worth_it = filled > self.len / PAGE_SIZE / FORGOTTEN_PART;
        if is_worth_it && self.filled.compare_exchange(filled, 0, Relaxed, Relaxed).is_ok() {
            // SAFETY: the mapping is shared, so its content stays; nobody reads it here.
            let _ = unsafe { rustix::mm::madvise(self.window as *mut _, self.len, rustix::mm::Advice::LinuxDontNeed) };
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody reads or writes it.
        let _ = unsafe { rustix::mm::munmap(self.window as *mut _, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use uswap_sys::pagemap::PageMap;
    use uswap_system::faults::Stop;

    use super::*;
    use crate::kernel::SharedObject;

    #[test]
    fn the_servers_page_table_forgets_what_was_filled_and_the_object_keeps_it() {
        const PAGES: usize = 512;
        let filler = match Uffd::to_fill_shared_memory(None) {
            Ok(filler) => filler,
            Err(why) => return println!("skipped: {why}"),
        };
        let file = SharedFile::new(PAGES * PAGE_SIZE).unwrap().as_fd().try_clone_to_owned().unwrap();
        let object = Object::new(file, &filler).unwrap();
        let pagemap = PageMap::open_self().unwrap();
        let content = [7u8; PAGE_SIZE];
        let mapped = || {
            let mut found = [PopulatedRange { start: 0, end: 0, categories: 0 }; PAGES];
            let (count, _) = pagemap.populated(object.start(), object.end(), &mut found).unwrap();
            found[..count].iter().map(|range| (range.end - range.start) / PAGE_SIZE).sum::<usize>()
        };
        for page in 0..PAGES {
            let at = object.start() + page * 5 % PAGES * PAGE_SIZE;
            assert!(object.fill(&filler, at, content.as_ptr(), PAGE_SIZE).is_complete());
            assert!(mapped() < PAGES / FILLED_PART, "after {page} pages");
        }
        assert!(object.fill(&filler, object.start(), content.as_ptr(), PAGE_SIZE).bytes == 0, "it is there");
        object.file.punch(0, PAGE_SIZE as u64).unwrap();
        assert!(object.fill_with_zeros(&filler, object.start(), PAGE_SIZE).is_complete());
        assert_eq!(mapped(), 1);
        object.forget_filled();
        assert_eq!(mapped(), 0);
        let mut back = vec![0; object.end() - object.start()];
        object.file.read(0, &mut back).unwrap();
        assert!(back[PAGE_SIZE..].iter().all(|&byte| byte == 7) && back[..PAGE_SIZE].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_page_is_said_to_be_there_only_where_it_is_while_page_tables_go() {
        const ROUNDS: usize = 300_000;
        /// More than there are CPUs: it takes that who fills is not running for a moment.
        const FORGETTERS: usize = 6;
        /// What a page table is about: it is freed where all of that is dropped at once.
        const TABLE: usize = 2 << 20;
        let filler = match Uffd::to_fill_shared_memory(None) {
            Ok(filler) => filler,
            Err(why) => return println!("skipped: {why}"),
        };
        let file = SharedFile::new(2 * TABLE).unwrap().as_fd().try_clone_to_owned().unwrap();
        let object = Object::new(file, &filler).unwrap();
        let page = object.start().next_multiple_of(TABLE);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // The page table has this page alone.
            let forget = || {
                while !is_over.load(Relaxed) {
                    object.filled.store(TABLE, Relaxed);
                    object.forget_filled();
                }
            };
            (0..FORGETTERS).for_each(|_| drop(scope.spawn(forget)));
            let wrong = (0..ROUNDS).filter(|_| {
                object.file.punch(object.offset(page), PAGE_SIZE as u64).unwrap();
                let filled = object.fill(&filler, page, [7; PAGE_SIZE].as_ptr(), PAGE_SIZE);
                object.looked_at(page, filled).stop == Some(Stop::AlreadyThere)
            });
            let wrong = wrong.count();
            is_over.store(true, Relaxed);
            assert_eq!(wrong, 0, "times that nothing was there");
        });
    }
}
