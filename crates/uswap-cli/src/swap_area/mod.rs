//! Opening swap areas: the unlinked temporary file, files and block devices that the user names ([`named`]).

mod content;
pub mod named;

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use uswap_engine::group::{AreaConfig, PAGE_BYTES};

use crate::failure::{Failure, reason};
use crate::size;

/// Smaller areas hold too little to be worth a file.
pub const AREA_BYTES_MIN: u64 = 1 << 20;
/// Slots have numbers of 32 bits.
pub const AREA_BYTES_MAX: u64 = PAGE_BYTES * u32::MAX as u64;

const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// An area, open and ours.
pub struct OpenArea {
    /// The file.
    pub fd: OwnedFd,
    /// How the group sees it.
    pub config: AreaConfig,
    /// How the user knows it.
    pub path: PathBuf,
    /// Pages that must not be used.
    pub bad_pages: Vec<u32>,
    /// The file did not exist before.
    pub new: Option<NewFile>,
}

/// A file that a run has made for itself, under a name. It goes again unless the run comes to use it.
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl NewFile {
    /// `file` has been made at `path`.
    pub fn new(path: &Path, file: &File) -> io::Result<NewFile> {
        let metadata = file.metadata()?;
        Ok(NewFile { path: path.to_owned(), identity: (metadata.dev(), metadata.ino()) })
    }

    /// The run uses it: it stays.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // Somebody may have put another in its place meanwhile.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Where the temporary file goes, and whether that is RAM.
pub fn temporary_directory() -> (PathBuf, bool) {
    let from_environment = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let directory = from_environment("USWAP_SWAP_DIR")
        .or_else(|| from_environment("TMPDIR"))
        .unwrap_or_else(|| PathBuf::from("/var/tmp"));
    let in_ram = rustix::fs::statfs(&directory).is_ok_and(is_ram);
    (directory, in_ram)
}

/// Whether two names lead to the same file, or to the same block device.
pub fn is_same_file(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    let are_devices = one.file_type().is_block_device() && other.file_type().is_block_device();
    (one.dev(), one.ino()) == (other.dev(), other.ino()) || (are_devices && one.rdev() == other.rdev())
}

fn is_ram(fs: rustix::fs::StatFs) -> bool {
    [TMPFS_MAGIC, RAMFS_MAGIC].contains(&(fs.f_type as u64 & 0xffff_ffff))
}

/// Opens a file that has no name, in a directory. The flag says whether the file system knows O_TMPFILE;
/// where it does not, a file is made and removed.
pub fn open_unnamed(directory: &Path, flags: OFlags) -> io::Result<(OwnedFd, bool)> {
    let flags = flags | OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::open(directory, flags | OFlags::TMPFILE, mode) {
        Ok(fd) => return Ok((fd, true)),
        // A kernel or file system without O_TMPFILE sees an attempt to write a directory.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR) => {}
        Err(error) => return Err(error.into()),
    }
    let path = directory.join(format!(".uswap-{}", std::process::id()));
    // Direct I/O comes after: where the file system refuses that, the file has been made all the same.
    let made = flags.difference(OFlags::DIRECT) | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let fd = rustix::fs::open(&path, made, mode)?;
    fs::remove_file(&path)?;
    if flags.contains(OFlags::DIRECT) {
        rustix::fs::fcntl_setfl(&fd, rustix::fs::fcntl_getfl(&fd)? | OFlags::DIRECT)?;
    }
    Ok((fd, false))
}

/// Whether direct I/O of single pages works on an open file: one page is read, aligned as the engine will.
pub fn direct_io_works(fd: impl AsFd) -> bool {
    let page = PAGE_BYTES as usize;
    let mut buffer = vec![0u8; 2 * page];
    let start = buffer.as_ptr().align_offset(page);
    // Page 1, never page 0: that one is the header. Past the end it reads nothing, which tells as much.
    let aligned = &mut buffer[start..start + page];
    rustix::io::retry_on_intr(|| rustix::io::pread(&fd, &mut *aligned, PAGE_BYTES)).is_ok()
}

/// Whether this process and its children may write files of that size. Beyond the limit the kernel does not only refuse: it
/// ends the process by SIGXFSZ.
fn may_be_as_large_as(bytes: u64) -> Result<(), Failure> {
    match rustix::process::getrlimit(rustix::process::Resource::Fsize).current {
        Some(limit) if limit < bytes => Err(Failure::ours(format!(
            "the limit on the size of files (ulimit -f) is {}, the swap file needs {}: raise it, or give a smaller one, as in \
             --swap file:PATH,size=64M",
            size::chosen(limit),
            size::chosen(bytes),
        ))),
        _ => Ok(()),
    }
}

/// Makes a file as large as wanted, or half of that, and so on, where the file system does not take files so large; how large
/// that is.
fn grown(file: &OwnedFd, wanted: u64) -> io::Result<u64> {
    let mut bytes = wanted;
    loop {
        match rustix::fs::ftruncate(file, bytes) {
            Err(rustix::io::Errno::FBIG) if bytes / 2 >= AREA_BYTES_MIN => bytes = bytes / 2 / PAGE_BYTES * PAGE_BYTES,
            other => return other.map(|()| bytes).map_err(io::Error::from),
        }
    }
}

/// The default area: an unlinked file.
pub fn temporary(directory: &Path, bytes: u64) -> Result<OpenArea, Failure> {
    let cannot = |error: io::Error| {
        let directory = directory.display();
        Failure::ours(format!("cannot make a swap file in '{directory}': {}", reason(&error)))
    };
    let bytes = bytes.max(AREA_BYTES_MIN) / PAGE_BYTES * PAGE_BYTES;
    may_be_as_large_as(bytes)?;
    let sized = |(fd, _): (OwnedFd, bool)| grown(&fd, bytes).map(|bytes| (fd, bytes));
    let direct = match open_unnamed(directory, OFlags::DIRECT) {
        Ok(opened) => Some(sized(opened).map_err(cannot)?).filter(|(fd, _)| direct_io_works(fd)),
        Err(_) => None,
    };
    let is_direct = direct.is_some();
    let (fd, bytes) = match direct {
        Some(opened) => opened,
        None => open_unnamed(directory, OFlags::empty()).and_then(sized).map_err(cannot)?,
    };
    Ok(OpenArea {
        fd,
        config: area(bytes, is_direct, true),
        path: directory.join("(unlinked)"),
        bad_pages: Vec::new(),
        new: None,
    })
}

fn area(bytes: u64, direct: bool, punch_holes: bool) -> AreaConfig {
    AreaConfig { present: true, slots: bytes / PAGE_BYTES, priority: 0, direct, punch_holes, ..AreaConfig::default() }
}

/// Priorities as swapon(2) gives them: areas without one come after all that have one, in their order.
pub fn set_priorities(areas: &mut [OpenArea], wanted: &[Option<i32>]) {
    let mut automatic = -1;
    for (area, wanted) in areas.iter_mut().zip(wanted) {
        area.config.priority = wanted.unwrap_or_else(|| {
            automatic -= 1;
            automatic
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub struct Directory(pub PathBuf);

    impl Directory {
        pub fn new(name: &str) -> Directory {
            let path = std::env::temp_dir().join(format!("uswap-area-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Directory(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_temporary_file_leaves_no_name() {
        let directory = Directory::new("temporary");
        let area = temporary(&directory.0, 10 << 20).unwrap();
        assert_eq!(area.config.slots, 2560);
        assert_eq!(rustix::fs::fstat(&area.fd).unwrap().st_size, 10 << 20);
        assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 0);
    }

    #[test]
    fn automatic_priorities_are_below_chosen_ones() {
        let directory = Directory::new("priorities");
        let mut areas: Vec<_> = (0..3).map(|_| temporary(&directory.0, 1 << 20).unwrap()).collect();
        set_priorities(&mut areas, &[None, Some(5), None]);
        assert_eq!(areas.iter().map(|a| a.config.priority).collect::<Vec<_>>(), [-2, 5, -3]);
    }
}
