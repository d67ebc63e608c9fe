//! PAGEMAP_SCAN: which pages of our own memory exist.
//!
//! A page exists when its entry in the page table has content: PRESENT, or SWAPPED where the kernel has swapped it out by
//! itself, or is moving it to other memory at this moment (a migration entry). Neither is missing: a touch is the kernel's to
//! answer, and no message comes.
//!
//! What else the kernel shows as SWAPPED has no content: a guard (told apart by GUARD since Linux 6.15, without a word before),
//! a poison marker of userfaultfd, and a mark of hardware that failed. A touch of these is no message, either, but a signal.
//! They cannot be moved (UFFDIO_MOVE: EFAULT); who poisons a page knows it.
//!
//! In ranges with asynchronous write protection, which are not used here, protected missing pages show as SWAPPED, too.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

use crate::PAGE_SIZE;

pub use uswap_system::looks::PopulatedRange;

const CATEGORY_SWAPPED: u64 = 1 << 4;
/// Linux 6.15.
const CATEGORY_GUARD: u64 = 1 << 8;

/// The kernel does not know [`CATEGORY_GUARD`].
static SHOWS_NO_GUARDS: AtomicBool = AtomicBool::new(false);

/// `struct pm_scan_arg`.
#[repr(C)]
struct ScanRequest {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const PAGEMAP_SCAN: Opcode = opcode::read_write::<ScanRequest>(b'f', 16);

/// The ioctl, whose answer is the number of ranges it filled.
struct Scan<'a>(&'a mut ScanRequest);

// SAFETY: the request has the layout of pm_scan_arg, which this opcode reads and writes; its `vec` and
// `vec_len` describe the caller's array (see PageMap::populated). The answer is a count.
unsafe impl Ioctl for Scan<'_> {
    type Output = usize;
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        PAGEMAP_SCAN
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<usize> {
        Ok(out.max(0) as usize)
    }
}

/// Of an entry of the file itself: the page is there, is of a file or of shared memory, is this process's alone.
const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_FILE: u64 = 1 << 61;
const ENTRY_EXCLUSIVE: u64 = 1 << 56;
/// Entries read at once.
const ENTRIES: usize = 512;
/// Bytes of memory between two populated ranges whose entries are read along: 64 cost less than a call.
const ENTRIES_BETWEEN: usize = 64 * PAGE_SIZE;

/// Populated pages of one scan: the kernel looks at each of their table's entries.
const SCAN_PAGES: u64 = 4096;
/// Addresses of one scan. What was populated once has page tables still, which are gone through: two microseconds for 2 MiB at most.
const SCAN_BYTES: usize = 4 << 30;
/// Addresses that mincore(2) is asked about at once: a byte is written for each page.
const MINCORE_BYTES: usize = 16 << 20;

/// An open `/proc/self/pagemap`.
///
/// It shows the memory of the process that opened it, also after a fork: a child opens its own.
///
/// A process that has changed its user must not read it, so there is a second way. What mincore(2) shows exists; what it
/// does not show is missing, or swapped out by the kernel: [`is_exact`](PageMap::is_exact).
#[derive(Debug)]
pub struct PageMap {
    fd: Option<OwnedFd>,
}

impl PageMap {
    /// Opens the calling process's.
    pub fn open_self() -> io::Result<PageMap> {
        match crate::proc::open(c"/proc/thread-self/pagemap") {
            Ok(fd) => Ok(PageMap { fd: Some(fd) }),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Self::by_mincore()),
            Err(error) => Err(error),
        }
    }

    /// Asks mincore(2).
    pub fn by_mincore() -> PageMap {
        PageMap { fd: None }
    }

    /// Whether all that exists is shown. Otherwise pages that the kernel has swapped out are not.
    pub fn is_exact(&self) -> bool {
        self.fd.is_some()
    }

    /// Lists populated pages in `start..end`: how many ranges of `out` are filled, and where to go on,
    /// which is `end` when all has been seen. It takes no longer than a few milliseconds, however large the range is.
    ///
    /// `out` must not itself be missing in memory that this thread serves. Fault path.
    pub fn populated(&self, start: usize, end: usize, out: &mut [PopulatedRange]) -> io::Result<(usize, usize)> {
        let reach = if self.is_exact() { SCAN_BYTES } else { MINCORE_BYTES };
        self.scan(start, end.min(start.saturating_add(reach)), out, SCAN_PAGES)
    }

    /// Whether `start..end` has a populated page: looks no further than the first.
    pub fn has_populated(&self, start: usize, end: usize) -> io::Result<bool> {
        Ok(self.scan(start, end, &mut [PopulatedRange::default()], 1)?.0 > 0)
    }

    /// Private pages in memory of `start..end` that other processes have as well. Some 0.03 us for each page that is there.
    pub fn in_common(&self, start: usize, end: usize) -> io::Result<u64> {
        let (mut at, mut pages) = (start, 0);
        let mut ranges = [PopulatedRange::default(); 128];
        while at < end {
            let (filled, next) = self.populated(at, end, &mut ranges)?;
            let is_near = |one: &PopulatedRange, other: &PopulatedRange| other.start - one.end <= ENTRIES_BETWEEN;
            for near in ranges[..filled].chunk_by(is_near) {
                pages += self.in_common_of(near)?;
            }
            at = next;
        }
        Ok(pages)
    }

    /// Of some ranges, which are read with what lies between them.
    fn in_common_of(&self, ranges: &[PopulatedRange]) -> io::Result<u64> {
        let fd = self.fd.as_ref().ok_or(io::ErrorKind::PermissionDenied)?;
        // The zero page is nobody's alone, and takes no memory.
        let in_memory = |range: &&PopulatedRange| !range.kernel_swapped() && !range.zero_page() && !range.file();
        let Some(first) = ranges.iter().find(in_memory) else { return Ok(0) };
        let (mut at, end) = (first.start, ranges.iter().rfind(in_memory).map_or(first.end, |last| last.end));
        let mut entries = [0; ENTRIES * size_of::<u64>()];
        let mut pages = 0;
        while at < end {
            let wanted = ((end - at) / PAGE_SIZE).min(ENTRIES) * size_of::<u64>();
            let read = rustix::io::pread(fd, &mut entries[..wanted], (at / PAGE_SIZE * size_of::<u64>()) as u64)?;
            let (read, _) = entries[..read].as_chunks();
            if read.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let until = at + read.len() * PAGE_SIZE;
            let is_in_common = |entry: &&[u8; 8]| {
                let entry = u64::from_ne_bytes(**entry);
                entry & ENTRY_PRESENT != 0 && entry & (ENTRY_EXCLUSIVE | ENTRY_FILE) == 0
            };
            for range in ranges.iter().filter(in_memory).filter(|range| range.start < until && range.end > at) {
                let part = (range.start.max(at) - at) / PAGE_SIZE..(range.end.min(until) - at) / PAGE_SIZE;
                pages += read[part].iter().filter(is_in_common).count() as u64;
            }
            at = until;
        }
        Ok(pages)
    }

    /// `max_pages`: after how many it ends, at the earliest; 0: not before `end`.
    fn scan(&self, start: usize, end: usize, out: &mut [PopulatedRange], max_pages: u64) -> io::Result<(usize, usize)> {
        if start >= end || out.is_empty() {
            return Ok((0, start.min(end)));
        }
        let Some(fd) = &self.fd else { return mincore(start, end, out) };
        // Anything but a guard that is present or swapped.
        let exists = PopulatedRange::PRESENT | CATEGORY_SWAPPED;
        let mut guard = if SHOWS_NO_GUARDS.load(Relaxed) { 0 } else { CATEGORY_GUARD };
        loop {
            let mut request = ScanRequest {
                size: size_of::<ScanRequest>() as u64,
                flags: 0,
                start: start as u64,
                end: end as u64,
                walk_end: start as u64,
                vec: out.as_mut_ptr().expose_provenance() as u64,
                vec_len: out.len() as u64,
                max_pages,
                category_inverted: guard,
                category_mask: guard,
                category_anyof_mask: exists,
                return_mask: exists | PopulatedRange::FILE | PopulatedRange::ZERO_PAGE | PopulatedRange::HUGE,
            };
            // SAFETY: `vec` points to `vec_len` ranges of the kernel's layout, borrowed exclusively, and
            // any bytes are a valid PopulatedRange.
            match unsafe { rustix::ioctl::ioctl(fd, Scan(&mut request)) } {
                Ok(filled) => return Ok((filled.min(out.len()), (request.walk_end as usize).min(end))),
                Err(rustix::io::Errno::INVAL) if guard != 0 => {
                    SHOWS_NO_GUARDS.store(true, Relaxed);
                    guard = 0;
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// As [`PageMap::populated`]. Memory that is not mapped has no pages.
fn mincore(start: usize, end: usize, out: &mut [PopulatedRange]) -> io::Result<(usize, usize)> {
    const STEP: usize = 512;
    let room = out.len();
    let mut filled = 0;
    let mut at = start;
    while at < end {
        let mut there = [0u8; STEP];
        let mut pages = ((end - at) / PAGE_SIZE).min(STEP);
        loop {
            // SAFETY: the kernel writes one byte for each page, and there is room for `STEP`.
            let result = unsafe { libc::syscall(libc::SYS_mincore, at, pages * PAGE_SIZE, there.as_mut_ptr()) };
            if result == 0 {
                break;
            }
            // SAFETY: errno is this thread's own.
            match unsafe { *libc::__errno_location() } {
                libc::EAGAIN => {}
                libc::ENOMEM if pages > 1 => pages /= 2,
                libc::ENOMEM => {
                    there[0] = 0;
                    break;
                }
                errno => return Err(io::Error::from_raw_os_error(errno)),
            }
        }
        for (index, &state) in there[..pages].iter().enumerate() {
            let page = at + index * PAGE_SIZE;
            if state & 1 == 0 {
                continue;
            }
            match out[..filled].last_mut() {
                Some(last) if last.end == page => last.end += PAGE_SIZE,
                _ if filled == room => return Ok((filled, page)),
                _ => {
                    out[filled] =
                        PopulatedRange { start: page, end: page + PAGE_SIZE, categories: PopulatedRange::PRESENT };
                    filled += 1;
                }
            }
        }
        at += pages * PAGE_SIZE;
    }
    Ok((filled, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private_memory::{self, Purpose};

    #[test]
    fn a_tebibyte_is_gone_through_in_a_few_hundred_steps() {
        const SIZE: usize = 1 << 40;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, libc::PROT_WRITE, flags, -1, 0) }.addr();
        assert_ne!(start, usize::MAX);
        let touched = [start, start + (SIZE / 3).next_multiple_of(PAGE_SIZE), start + SIZE - PAGE_SIZE];
        for page in touched {
            // SAFETY: inside the mapping, which is ours.
            unsafe { (page as *mut u8).write_volatile(1) };
        }
        let pagemap = PageMap::open_self().unwrap();
        let (mut at, mut found) = (start, Vec::new());
        for step in 0.. {
            assert!(step < 300, "it takes more steps");
            let mut out = [PopulatedRange::default(); 4];
            let (filled, next) = pagemap.populated(at, start + SIZE, &mut out).unwrap();
            found.extend(out[..filled].iter().flat_map(|range| (range.start..range.end).step_by(PAGE_SIZE)));
            at = next;
            if at == start + SIZE {
                break;
            }
        }
        // SAFETY: as above.
        assert_eq!(unsafe { libc::munmap(start as *mut _, SIZE) }, 0);
        assert!(touched.iter().all(|page| found.contains(page)), "{found:x?}");
    }

    #[test]
    fn touched_pages_are_listed_and_others_are_not() {
        let mapping = private_memory::map(16 * PAGE_SIZE, Purpose::Buffers).unwrap();
        let (start, end) = (mapping.start(), mapping.end());
        for page in [2, 3, 7] {
            // SAFETY: inside the mapping, which is ours.
            unsafe { mapping.as_ptr().add(page * PAGE_SIZE).write_volatile(1) };
        }
        // SAFETY: as above.
        unsafe { mapping.as_ptr().add(9 * PAGE_SIZE).read_volatile() };
        let pagemap = match PageMap::open_self() {
            Ok(pagemap) => pagemap,
            Err(error) => {
                println!("skipped: no pagemap: {error}");
                return;
            }
        };
        let mut out = [PopulatedRange::default(); 8];
        let (filled, next) = pagemap.populated(start, end, &mut out).unwrap();
        assert_eq!(next, end);
        let page_of = |address: usize| (address - start) / PAGE_SIZE;
        let seen: Vec<_> = out[..filled].iter().map(|r| (page_of(r.start), page_of(r.end), r.zero_page())).collect();
        assert_eq!(seen, [(2, 4, false), (7, 8, false), (9, 10, true)]);

        // The other way sees the same pages.
        let (filled, next) = PageMap::by_mincore().populated(start, end, &mut out).unwrap();
        assert_eq!(next, end);
        let seen: Vec<_> = out[..filled].iter().map(|r| (page_of(r.start), page_of(r.end))).collect();
        assert_eq!(seen, [(2, 4), (7, 8), (9, 10)]);
        let (filled, next) = PageMap::by_mincore().populated(start, end, &mut out[..1]).unwrap();
        assert_eq!((filled, page_of(next)), (1, 7));

        // A short array is filled, and the scan goes on where it ended.
        let (filled, next) = pagemap.populated(start, end, &mut out[..1]).unwrap();
        assert_eq!(filled, 1);
        assert!(page_of(next) >= 4 && next < end, "{}", page_of(next));
        let (filled, _) = pagemap.populated(next, end, &mut out).unwrap();
        assert_eq!(filled, 2);

        for pagemap in [pagemap, PageMap::by_mincore()] {
            assert!(pagemap.has_populated(start, end).unwrap());
            assert!(!pagemap.has_populated(start, start + 2 * PAGE_SIZE).unwrap());
        }
    }
}
