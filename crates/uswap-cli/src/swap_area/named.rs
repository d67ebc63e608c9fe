//! Swap areas that the user names: files and block devices.
//!
//! A mistyped name costs no data. A file is used when it is new, blank from end to end, or a swap area of its own size; a block
//! device when it is a swap area; anything else only when the user says `overwrite`. All of that is looked at through one open
//! descriptor. From before the first look until the header is written we hold a lock, which binds other uswaps and mkswap, and
//! where the file system has it a lease, which binds everybody; where it has none, a file that changes meanwhile is not used.
//!
//! Nothing is written before every area of the run has been looked at. The header itself is never overwritten by pages; what
//! we make gets one too, so that a later run knows it again.

use std::fs::{self, File, FileType, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use uswap_engine::group::PAGE_BYTES;
use uswap_sys::file_lease::{NoLease, WriteLease};

use super::content::{self, Content};
use super::{
    AREA_BYTES_MAX, AREA_BYTES_MIN, NewFile, OpenArea, area, direct_io_works, is_ram, is_same_file, may_be_as_large_as,
};
use crate::failure::{Failure, reason};
use crate::mkswap;
use crate::size;
use crate::swap_spec::SwapSpec;

/// How often a lock or lease is asked for, and the pause in between: the end of another run, which the kernel tidies up after,
/// is waited for, not a run.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);

/// An area that has been looked at, and in which nothing has been changed.
pub struct Candidate<'a> {
    spec: &'a SwapSpec,
    file: File,
    new: Option<NewFile>,
    kind: FileType,
    length: u64,
    bytes: u64,
    /// The header that is there and stays.
    formatted: Option<mkswap::Header>,
    /// What it was before it was looked at.
    seen: Stamp,
    lease: Option<WriteLease>,
    /// One line each.
    pub warnings: Vec<String>,
}

/// What changes when somebody changes a file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(file: &File) -> io::Result<Stamp> {
        let now = file.metadata()?;
        Ok(Stamp {
            length: now.len(),
            modified: (now.mtime(), now.mtime_nsec()),
            changed: (now.ctime(), now.ctime_nsec()),
        })
    }
}

fn refused(spec: &SwapSpec, why: impl std::fmt::Display) -> Failure {
    Failure::ours(format!("cannot use swap file '{}': {why}", spec.path.display()))
}

/// Looks at what the user named. `earlier` are the areas before it.
pub fn look_at<'a>(spec: &'a SwapSpec, earlier: &[Candidate<'_>]) -> Result<Candidate<'a>, Failure> {
    let refuse = |why: &dyn std::fmt::Display| refused(spec, why);
    let failed = |error: io::Error| refuse(&reason(&error));
    let shown = spec.path.display();

    // 1. Open it, and be alone with it. Nothing is truncated: the file may be anything.
    let wanted = spec.size_bytes.map(|bytes| checked_size(bytes).map_err(|why| refuse(&why))).transpose()?;
    let (file, new) = open(spec, wanted, earlier)?;
    let metadata = file.metadata().map_err(failed)?;
    let kind = metadata.file_type();
    lock(&file).map_err(|why| refuse(&why))?;
    let seen = Stamp::of(&file).map_err(failed)?;
    let lease = lease(&file).map_err(|why| refuse(&why))?;

    // 2. See what it is.
    let length = length_of(&file).map_err(failed)?;
    let found = content::examine(&file, length).map_err(failed)?;
    let formatted = match found {
        Content::Swap(header) => Some(header),
        Content::Blank if kind.is_block_device() && !spec.overwrite => {
            return Err(refuse(&format!(
                "a block device needs a swap header: run mkswap on it, or --swap file:{shown},overwrite uses it all the same"
            )));
        }
        Content::Other(why) if !spec.overwrite => {
            return Err(refuse(&format!("{why}; --swap file:{shown},overwrite uses it all the same")));
        }
        Content::Blank | Content::Other(_) => None,
    };

    // 3. Decide how large it is. A file may grow, unless mkswap's owner laid it out; it never becomes shorter.
    let grows = kind.is_file() && formatted.as_ref().is_none_or(|header| header.ours);
    let bytes = match wanted {
        Some(wanted) if wanted > length && !grows => {
            return Err(refuse(&format!("it has {length} bytes, and {wanted} are asked for")));
        }
        Some(wanted) => wanted,
        None if length == 0 => return Err(refuse(&"it is empty: give its size, as in size=8G")),
        None => checked_size(length).map_err(|why| refuse(&why))?,
    };
    let warnings = warnings(spec, &file, &metadata);
    Ok(Candidate { spec, file, new, kind, length, bytes, formatted, seen, lease, warnings })
}

/// Whole pages, if an area may have so many.
fn checked_size(bytes: u64) -> Result<u64, &'static str> {
    match bytes / PAGE_BYTES * PAGE_BYTES {
        ..AREA_BYTES_MIN => Err("a swap area needs 1 MiB or more"),
        bytes if bytes > AREA_BYTES_MAX => Err("a swap area has less than 16 TiB: give a size, as in size=8G"),
        bytes => Ok(bytes),
    }
}

// --- opening ---

/// Opens what is there, or makes a file. What is neither a file nor a block device is not even opened: that may have
/// consequences.
fn open(spec: &SwapSpec, wanted: Option<u64>, earlier: &[Candidate<'_>]) -> Result<(File, Option<NewFile>), Failure> {
    let path = &spec.path;
    let refuse = |why: &dyn std::fmt::Display| refused(spec, why);
    // Twice, because others make and remove files, too.
    for _ in 0..2 {
        match rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Ok(named) => {
                let named = File::from(named);
                // Before it is opened again: that would wait for our own lease.
                if earlier.iter().any(|other| is_same(&other.file, &named)) {
                    return Err(refuse(&"it is named twice"));
                }
                return open_existing(&named).map(|file| (file, None)).map_err(|why| refuse(&why));
            }
            Err(Errno::NOENT) => {}
            Err(error) => return Err(refuse(&reason(&error.into()))),
        }
        if let Ok(target) = fs::read_link(path) {
            return Err(refuse(&format!("it is a symbolic link to '{}', which is not there", target.display())));
        }
        let Some(bytes) = wanted else {
            return Err(refuse(&"it is not there: give a size and it is made, as in size=8G"));
        };
        may_be_as_large_as(bytes)?;
        match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path) {
            Ok(file) => {
                let new = NewFile::new(path, &file).map_err(|error| refuse(&reason(&error)))?;
                return Ok((file, Some(new)));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(refuse(&missing_directory(path))),
            Err(error) => return Err(refuse(&format!("it cannot be made: {}", reason(&error)))),
        }
    }
    Err(refuse(&"it comes and goes"))
}

fn missing_directory(path: &Path) -> String {
    let missing = path.ancestors().skip(1).filter(|place| !place.as_os_str().is_empty() && !place.exists()).last();
    match missing {
        Some(place) => format!("there is no directory '{}'", place.display()),
        None => "No such file or directory".to_owned(),
    }
}

fn open_existing(named: &File) -> Result<File, String> {
    let kind = named.metadata().map_err(|error| reason(&error))?.file_type();
    let other = [
        (kind.is_dir(), "a directory"),
        (kind.is_fifo(), "a FIFO"),
        (kind.is_socket(), "a socket"),
        (kind.is_char_device(), "a character device"),
    ];
    if let Some((_, what)) = other.iter().find(|(is, _)| *is) {
        return Err(format!("it is {what}, neither a file nor a block device"));
    }
    // On a block device O_EXCL says: not while it is mounted, swapped to or part of another one.
    let flags = if kind.is_block_device() { OFlags::EXCL } else { OFlags::empty() };
    let path = format!("/proc/self/fd/{}", named.as_raw_fd());
    rustix::fs::open(path, flags | OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map(File::from).map_err(|error| {
        match error {
            Errno::BUSY => "it is in use: mounted, swapped to, or part of another device".to_owned(),
            error => reason(&error.into()),
        }
    })
}

fn is_same(a: &File, b: &File) -> bool {
    a.metadata().is_ok_and(|a| b.metadata().is_ok_and(|b| is_same_file(&a, &b)))
}

fn length_of(mut file: &File) -> io::Result<u64> {
    // Not metadata: a block device has a length of zero there.
    io::Seek::seek(&mut file, io::SeekFrom::End(0))
}

// --- in use ---

/// The lock is ours as long as anybody of the tree has the descriptor.
fn lock(file: &File) -> Result<(), &'static str> {
    if is_kernel_swap(file) {
        return Err("it is in use: the kernel swaps to it");
    }
    for attempt in 1.. {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            // A file system without locks.
            Err(Errno::NOTSUP | Errno::NOLCK | Errno::NOSYS) => break,
            Err(_) if attempt == ATTEMPTS => {
                return Err("it is in use: another uswap, or somebody else, has locked it");
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
    Ok(())
}

/// `None` where there are no leases.
fn lease(file: &File) -> Result<Option<WriteLease>, &'static str> {
    for attempt in 1.. {
        match WriteLease::take(file.as_fd()) {
            Ok(lease) => return Ok(Some(lease)),
            Err(NoLease::NotPossible) => break,
            Err(NoLease::OpenElsewhere) if attempt == ATTEMPTS => {
                return Err("it is in use: somebody else has it open");
            }
            Err(NoLease::OpenElsewhere) => std::thread::sleep(PAUSE),
        }
    }
    Ok(None)
}

/// Whether the kernel itself swaps to this file, as far as /proc/swaps tells: in a container it may name files by other
/// paths. Then the lease is refused.
fn is_kernel_swap(file: &File) -> bool {
    let (Ok(ours), Ok(swaps)) = (file.metadata(), fs::read_to_string("/proc/swaps")) else {
        return false;
    };
    let same = |path: &str| {
        // Blanks in names are written as in fstab(5).
        let path = path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\");
        fs::metadata(path).is_ok_and(|theirs| is_same_file(&theirs, &ours))
    };
    swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).any(same)
}

/// What swapon(8) warns of, and RAM.
fn warnings(spec: &SwapSpec, file: &File, metadata: &fs::Metadata) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut warn = |what: String| warnings.push(format!("warning: '{}': {what}", spec.path.display()));
    let (mode, kind) = (metadata.mode() & 0o7777, metadata.file_type());
    // A device's group may be that of those who look after disks.
    let (mask, suggested) = if kind.is_block_device() { (0o7007, 0o660) } else { (0o7077, 0o600) };
    if mode & mask != 0 {
        warn(format!("insecure permissions {mode:04o}, {suggested:04o} suggested"));
    }
    let user = rustix::process::geteuid().as_raw();
    if kind.is_file() && metadata.uid() != user && metadata.uid() != 0 {
        warn(format!("insecure file owner {}, {user} suggested", metadata.uid()));
    }
    if kind.is_file() && rustix::fs::fstatfs(file).is_ok_and(is_ram) {
        warn("it is in RAM, and so is what is swapped out to it".to_owned());
    }
    warnings
}

// --- taking it ---

impl Candidate<'_> {
    /// Writes the header, if there is none that stays, and makes it an area.
    pub fn take(self) -> Result<OpenArea, Failure> {
        let spec = self.spec;
        let failed = |error: io::Error| match error.raw_os_error() {
            Some(libc::EFBIG) => {
                refused(spec, format_args!("the file system takes no file of {}", size::chosen(self.bytes)))
            }
            _ => refused(spec, reason(&error)),
        };

        // 1. It must still be what was looked at, and nobody else may come until the header is there. Another uswap may have
        // tried to open it, and gone when it met our lock.
        let lease = match self.lease {
            Some(lease) if lease.holds() => Some(lease),
            lost => {
                drop(lost);
                lease(&self.file).map_err(|why| refused(spec, why))?
            }
        };
        if Stamp::of(&self.file).map_err(failed)? != self.seen {
            return Err(refused(spec, "somebody else changes it"));
        }

        // 2. What we make is marked as swap, in all its length.
        let length = self.length.max(self.bytes);
        let foreign = self.formatted.as_ref().is_some_and(|header| !header.ours);
        if self.kind.is_file() {
            // The limit is also on what is written into a file that has this length already.
            may_be_as_large_as(if foreign { self.bytes } else { length })?;
        }
        if !foreign {
            if self.kind.is_file() && length > self.length {
                self.file.set_len(length).map_err(failed)?;
            }
            let uuid = crate::random::bytes().map_err(failed)?;
            let header = mkswap::format(length / PAGE_BYTES, uuid);
            self.file.write_all_at(&header, 0).map_err(failed)?;
        }
        drop(lease);

        // 3. Direct I/O where it works. The flag is changed on the locked description: a second one would be locked out by
        // the first.
        let direct = set_direct(&self.file, true) && (direct_io_works(&self.file) || !set_direct(&self.file, false));
        // Blocks that mkswap's owner laid out stay where they are: swapon(8) refuses files with holes.
        let punch_holes = self.kind.is_file() && !foreign;
        Ok(OpenArea {
            fd: self.file.into(),
            config: area(self.bytes, direct, punch_holes),
            path: spec.path.clone(),
            bad_pages: self.formatted.map(|header| header.bad_pages).unwrap_or_default(),
            new: self.new,
        })
    }
}

fn set_direct(file: &File, on: bool) -> bool {
    let Ok(flags) = rustix::fs::fcntl_getfl(file) else {
        return false;
    };
    let flags = if on { flags | OFlags::DIRECT } else { flags - OFlags::DIRECT };
    rustix::fs::fcntl_setfl(file, flags).is_ok()
}

#[cfg(test)]
mod tests;
