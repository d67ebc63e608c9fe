//! What of a process's shared memory the shared-memory server counts: that of mappings which are registered with it.
//!
//! Only smaps tells which those are, and it is slow. But as long as the process maps no other files, what it has more of shared memory is
//! in those, or in others that were there before: how much has come to the others is quickly seen.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::time::{Duration, Instant};

use uswap_sys::maps;
use uswap_system::looks::{Footprint, Mappings, Residency};

use crate::host::Host;
use crate::own_files::pages_of_file;

/// How often it is looked.
const EVERY: Duration = Duration::from_millis(10);
/// How often at smaps, at least where something changes: mappings may be replaced by others of the same size.
const ALL_EVERY: Duration = Duration::from_secs(1);
/// But such looks where nothing seems to be new take at most one part in so many of a CPU: each process of many looks.
const ALL_COST: u32 = 500;
/// Unless it has changed by less than so many pages: 256 KiB.
const CHANGE: u64 = 64;
/// Such looks take at most one part in so many of a CPU.
const COST: u32 = 16;
/// So much is looked at as soon as this allows, in pages: 4 MiB. What others have brought is mapped faster than memory is filled, and would
/// pass for the process's own.
const MUCH: u64 = 1024;
/// See there.
const COST_OF_MUCH: u32 = 4;

/// See the file's head.
#[derive(Default)]
pub(crate) struct SwappedShared {
    /// At the last look.
    pages: u64,
    /// All that it had then.
    of: u64,
    looked: Option<Instant>,
    took: Duration,
    /// [`Group::shared_judged`](crate::group::Group::shared_judged) at the last look.
    judged: u64,
    all: Option<All>,
    files: Files,
}

/// The files that the process has mapped.
#[derive(Default)]
struct Files {
    /// The text of /proc/self/maps, whenever it is read.
    maps: Vec<u8>,
}

impl Files {
    /// A number that is another one where they, or their places, are others.
    fn look<H: Host>(&mut self) -> io::Result<u64> {
        H::Mappings::read_maps(&mut self.maps)?;
        let mut hasher = DefaultHasher::new();
        for vma in maps::vmas(&self.maps).filter(|vma| vma.name.starts_with(b"/")) {
            (vma.start, vma.end, vma.offset, vma.device, vma.inode, vma.shared).hash(&mut hasher);
        }
        Ok(hasher.finish())
    }
}

/// The last look at smaps.
struct All {
    at: Instant,
    took: Duration,
    /// Pages of addresses that the process had mapped.
    mapped: u64,
    /// Which files, and where, when the look began.
    files: u64,
    /// Its shared pages beside those that the server counts.
    beside: u64,
    /// Mappings of files that the server knows nothing of, as bytes, and pages of files in them.
    mappings: Vec<(usize, usize)>,
    in_them: u64,
}

impl SwappedShared {
    /// Of `shmem` pages, in a process that has so many pages of addresses `mapped`, when the server has so often `judged` what processes
    /// had already. What is new since the last look counts as the process's own.
    pub fn pages<H: Host>(&mut self, shmem: u64, mapped: u64, judged: u64) -> u64 {
        if self.judged != judged {
            // As if nothing had been looked at yet.
            *self = SwappedShared { judged, took: self.took, looked: self.looked, ..SwappedShared::default() };
        }
        let change = shmem.abs_diff(self.of);
        let pause = if change >= MUCH { self.took * COST_OF_MUCH } else { EVERY.max(self.took * COST) };
        if change >= CHANGE && self.looked.is_none_or(|looked| H::since(looked) >= pause) {
            let begun = H::cpu_time();
            self.pages = match self.look_beside::<H>(shmem, mapped) {
                Some(pages) => pages,
                None => self.look_at_all::<H>(mapped).unwrap_or(0),
            };
            self.of = shmem;
            self.took = H::cpu_time().saturating_sub(begun);
            self.looked = Some(H::now());
        }
        self.pages.min(shmem)
    }

    /// The same by what the others have; `None` where that does not tell.
    fn look_beside<H: Host>(&mut self, shmem: u64, mapped: u64) -> Option<u64> {
        let all = self.all.as_mut().filter(|all| H::since(all.at) < ALL_EVERY.max(all.took * ALL_COST))?;
        if all.mapped != mapped {
            // Mostly it is the heap that has changed.
            if self.files.look::<H>().ok()? != all.files {
                return None;
            }
            all.mapped = mapped;
        }
        let now = pages_in::<H>(&all.mappings).ok()?;
        // What has gone from one of them may have come to another one.
        Some(shmem.saturating_sub(all.beside + now.saturating_sub(all.in_them)))
    }

    fn look_at_all<H: Host>(&mut self, mapped: u64) -> io::Result<u64> {
        self.all = None;
        let (at, begun) = (H::now(), H::cpu_time());
        let files = self.files.look::<H>();
        let mut mappings = Vec::new();
        let pages = H::Footprint::swapped_shmem(&mut mappings)?;
        // In this order: what comes meanwhile is taken for the process's own.
        let beside = H::Footprint::by_kind()?.shmem_pages.saturating_sub(pages);
        if let (Ok(in_them), Ok(files)) = (pages_in::<H>(&mappings), files) {
            let took = H::cpu_time().saturating_sub(begun);
            self.all = Some(All { at, took, mapped, files, beside, mappings, in_them });
        }
        Ok(pages)
    }
}

/// Pages of files in memory in some mappings.
fn pages_in<H: Host>(mappings: &[(usize, usize)]) -> io::Result<u64> {
    let residency = H::Residency::open()?;
    if !residency.is_exact() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    mappings.iter().map(|&(start, end)| pages_of_file(&residency, start, end)).sum()
}
