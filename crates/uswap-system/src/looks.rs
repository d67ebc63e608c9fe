//! What is where: page tables, mappings, and the size of the process.

use std::fmt;
use std::io;
use std::time::Duration;

/// Pages that exist, as PAGEMAP_SCAN shows them. A page exists when its entry in the page table has content: in memory, or
/// where the kernel has swapped it out by itself.
///
/// In the kernel's layout (`struct page_region`), so that it can be written straight into the caller's array.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct PopulatedRange {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// `PAGE_IS_*` of linux/fs.h.
    pub categories: u64,
}

impl PopulatedRange {
    /// PAGE_IS_FILE.
    pub const FILE: u64 = 1 << 2;
    /// PAGE_IS_PRESENT.
    pub const PRESENT: u64 = 1 << 3;
    /// PAGE_IS_PFNZERO.
    pub const ZERO_PAGE: u64 = 1 << 5;
    /// PAGE_IS_HUGE.
    pub const HUGE: u64 = 1 << 6;

    /// Whether its pages are not in memory: the kernel has swapped them out, or is just moving them.
    pub fn kernel_swapped(&self) -> bool {
        self.categories & Self::PRESENT == 0
    }

    /// Whether its pages are the zero page: read, and never written.
    pub fn zero_page(&self) -> bool {
        self.categories & Self::ZERO_PAGE != 0
    }

    /// Whether its pages belong to a file or to shared memory.
    pub fn file(&self) -> bool {
        self.categories & Self::FILE != 0
    }

    /// Whether huge pages are mapped there.
    pub fn huge(&self) -> bool {
        self.categories & Self::HUGE != 0
    }
}

impl fmt::Debug for PopulatedRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("PopulatedRange")
            .field("start", &format_args!("{:#x}", self.start))
            .field("end", &format_args!("{:#x}", self.end))
            .field("kernel_swapped", &self.kernel_swapped())
            .field("zero_page", &self.zero_page())
            .field("file", &self.file())
            .field("huge", &self.huge())
            .finish()
    }
}

/// Which pages of the process's own memory exist.
pub trait Residency: Sized + Send + Sync {
    /// To look at the calling process. A forked child opens its own.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn open() -> io::Result<Self>;

    /// Whether all that exists is shown. Otherwise pages that the kernel has swapped out are not.
    fn is_exact(&self) -> bool;

    /// Whether what is not shown does not exist: all is shown, or the machine has no swap that the kernel could have used.
    fn shows_absence(&self) -> bool;

    /// Lists populated pages in `start..end`: how many ranges of `out` are filled, and where to go on, which is `end` when
    /// all has been seen. It ends before that where it would take more than milliseconds; who holds a lock meanwhile asks for less.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn populated(&self, start: usize, end: usize, out: &mut [PopulatedRange]) -> io::Result<(usize, usize)>;

    /// Whether `start..end` has a populated page: looks no further than the first.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn has_populated(&self, start: usize, end: usize) -> io::Result<bool>;

    /// Private pages in memory of `start..end` that other processes have as well.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn in_common(&self, start: usize, end: usize) -> io::Result<u64>;

    /// Makes the kernel keep pages of the engine's that it may drop at any time, as they came from a program that gave them up
    /// (MADV_FREE): bit `i` of `pages` is the page at `start + i * PAGE_SIZE`. Which of them seem to be gone already, for which
    /// nobody waits. Nothing of a page that is there is changed.
    ///
    /// # Errors
    /// It is refused; some may be kept.
    fn keep_lazily_freed(&self, start: usize, pages: u16) -> io::Result<u16>;
}

/// One mapping. Neighbouring mappings merge, so never reason by mapping about who owns an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vma<'a> {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// May be executed.
    pub exec: bool,
    /// MAP_SHARED.
    pub shared: bool,
    /// Offset in the file.
    pub offset: u64,
    /// Device of the file, as stat(2) has it; 0 without one.
    pub device: u64,
    /// Inode of the file, 0 without one.
    pub inode: u64,
    /// Path, or a name in brackets, or nothing.
    pub name: &'a [u8],
}

impl Vma<'_> {
    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Private anonymous memory, the heap included; the main stack and special mappings are not.
    pub fn is_anonymous_private(&self) -> bool {
        !self.shared
            && self.inode == 0
            && (self.name.is_empty() || self.name == b"[heap]" || self.name.starts_with(b"[anon:"))
    }

    /// The stack of the process's first thread, which grows.
    pub fn is_main_stack(&self) -> bool {
        self.name == b"[stack]"
    }

    /// A mapping of the kernel's own: `[vdso]`, `[vvar]`, `[vsyscall]`, `[uprobes]`, ...
    pub fn is_special(&self) -> bool {
        self.name.starts_with(b"[")
            && !self.is_main_stack()
            && self.name != b"[heap]"
            && !self.name.starts_with(b"[anon")
    }
}

/// The process's mappings, asked for one by one (PROCMAP_QUERY), or read as text.
pub trait Mappings: Sized {
    /// To ask for single mappings of the calling process.
    ///
    /// # Errors
    /// It cannot be asked (before Linux 6.11).
    fn open() -> io::Result<Self>;

    /// The mapping at `address`, if there is one.
    fn at(&mut self, address: usize) -> Option<Vma<'_>>;

    /// The mapping at `address`, or the first behind it.
    fn at_or_after(&mut self, address: usize) -> Option<Vma<'_>>;

    /// Reads the text of /proc/self/maps into `buffer`, replacing what is there.
    ///
    /// # Errors
    /// It cannot be read.
    fn read_maps(buffer: &mut Vec<u8>) -> io::Result<()>;

    /// Reads the text of /proc/self/smaps into `buffer`, replacing what is there.
    ///
    /// # Errors
    /// It cannot be read.
    fn read_smaps(buffer: &mut Vec<u8>) -> io::Result<()>;
}

/// Resident pages of a process, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rss {
    /// Anonymous pages.
    pub anon_pages: u64,
    /// Pages of files.
    pub file_pages: u64,
    /// Pages of shared memory and tmpfs.
    pub shmem_pages: u64,
    /// Anonymous pages that the kernel has swapped out: not resident.
    pub swap_pages: u64,
}

/// How much memory the process has.
pub trait Footprint: Sized + Send {
    /// To look at the calling process.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn open() -> io::Result<Self>;

    /// Whether the main thread had ended when this was last read.
    fn main_has_ended(&self) -> bool;

    /// Pages resident, and those of them that are of files or shared memory. Cheap.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn read(&mut self) -> io::Result<(u64, u64)>;

    /// Page faults that the process has ever had, those of the engine's own threads as well. A copy on write takes one.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn faults() -> io::Result<u64>;

    /// Processor time that the process has ever used, that of the engine's own threads as well.
    ///
    /// # Errors
    /// It cannot be looked at, or does not tell whether somebody uses its memory.
    fn processor_time() -> io::Result<Duration>;

    /// Resident pages by kind.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn by_kind() -> io::Result<Rss>;

    /// Differs from what it was if the process may have more pages than it had.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn sign_of_growth() -> io::Result<u64> {
        Self::faults()
    }

    /// Pages of addresses that were mapped when this was last read.
    fn mapped(&self) -> u64 {
        0
    }

    /// Shared pages that it has resident, and that are swapped and counted by the shared-memory server. Puts into `others` where all other
    /// files are mapped, as bytes. Slow.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn swapped_shmem(others: &mut Vec<(usize, usize)>) -> io::Result<u64> {
        others.clear();
        Ok(0)
    }

    /// The process's share of the shared pages that it has resident, without those: one that three processes have counts as a third. Slow.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn share_of_shmem() -> io::Result<u64>;

    /// The process's share of its private pages: one that three processes have counts as a third. No less than that. Slow.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn share_of_private() -> io::Result<u64>;
}
