//! Opening swap areas: the unlinked temporary file, files and block devices that the user names.
//!
//! A named file is only ever used when it is plainly meant for swap: it is new or empty, begins with a blank
//! page, or has a swap header. The header itself is never overwritten by pages; files that we make get one
//! too, so that a later run knows them again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use uswap_engine::group::{AreaConfig, PAGE_BYTES};

use crate::failure::{Failure, reason};
use crate::mkswap::{self, HEADER_BYTES};
use crate::size;
use crate::swap_spec::SwapSpec;

/// Smaller areas hold too little to be worth a file.
pub const AREA_BYTES_MIN: u64 = 1 << 20;

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
}

/// Where the temporary file goes, and whether that is RAM.
pub fn temporary_directory() -> (PathBuf, bool) {
    let from_environment = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let directory = from_environment("USWAP_SWAP_DIR")
        .or_else(|| from_environment("TMPDIR"))
        .unwrap_or_else(|| PathBuf::from("/var/tmp"));
    let in_ram = rustix::fs::statfs(&directory)
        .is_ok_and(|fs| [TMPFS_MAGIC, RAMFS_MAGIC].contains(&(fs.f_type as u64 & 0xffff_ffff)));
    (directory, in_ram)
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
    let fd = rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode)?;
    fs::remove_file(&path)?;
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

/// The default area: an unlinked file.
pub fn temporary(directory: &Path, bytes: u64) -> Result<OpenArea, Failure> {
    let cannot = |error: io::Error| {
        let directory = directory.display();
        Failure::ours(format!("cannot make a swap file in '{directory}': {}", reason(&error)))
    };
    let bytes = bytes.max(AREA_BYTES_MIN) / PAGE_BYTES * PAGE_BYTES;
    may_be_as_large_as(bytes)?;
    let grown = |fd: OwnedFd| rustix::fs::ftruncate(&fd, bytes).map(|()| fd).map_err(io::Error::from);
    let direct = match open_unnamed(directory, OFlags::DIRECT) {
        Ok((fd, _)) => Some(grown(fd).map_err(cannot)?).filter(|fd| direct_io_works(fd)),
        Err(_) => None,
    };
    let is_direct = direct.is_some();
    let fd = match direct {
        Some(fd) => fd,
        None => open_unnamed(directory, OFlags::empty()).and_then(|(fd, _)| grown(fd)).map_err(cannot)?,
    };
    Ok(OpenArea { fd, config: area(bytes, is_direct, true), path: directory.join("(unlinked)"), bad_pages: Vec::new() })
}

fn area(bytes: u64, direct: bool, punch_holes: bool) -> AreaConfig {
    AreaConfig { present: true, slots: bytes / PAGE_BYTES, priority: 0, direct, punch_holes, ..AreaConfig::default() }
}

/// A file or block device that the user named.
pub fn named(spec: &SwapSpec) -> Result<OpenArea, Failure> {
    let shown = spec.path.display();
    let cannot = |error: io::Error| Failure::ours(format!("cannot open swap file '{shown}': {}", reason(&error)));
    let refuse = |why: &str| Failure::ours(format!("cannot use swap file '{shown}': {why}"));

    // 1. Open it, and be alone with it. Nothing is truncated: the file may be anything.
    let file = open_named(&spec.path).map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => refuse("it is in use"),
        _ => cannot(error),
    })?;
    let kind = file.metadata().map_err(cannot)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(refuse("it is neither a file nor a block device"));
    }
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() || is_kernel_swap(&file) {
        return Err(refuse("it is in use"));
    }

    // 2. See what it is.
    let length = length_of(&file).map_err(cannot)?;
    let mut first = [0; HEADER_BYTES];
    let read = read_up_to(&file, &mut first).map_err(cannot)?;
    let header = mkswap::parse(&first).map_err(|bad| refuse(&bad.to_string()))?;
    let blank = first[..read].iter().all(|byte| *byte == 0);
    let ours = header.as_ref().is_some_and(|h| h.ours);
    if header.is_none() && (!blank || kind.is_block_device()) {
        return Err(refuse("it holds something else; run mkswap on it if it may be overwritten"));
    }

    // 3. Decide how large it is.
    let formatted = header.as_ref().filter(|h| !h.ours).map(|h| h.pages * PAGE_BYTES);
    let bytes = match (formatted, spec.size_bytes) {
        (Some(formatted), _) if formatted > length => {
            return Err(refuse("it is shorter than its swap header says"));
        }
        (Some(formatted), wanted) => wanted.map_or(formatted, |wanted| wanted.min(formatted)),
        (None, Some(wanted)) => wanted,
        (None, None) if length == 0 => {
            return Err(refuse("it is empty: give its size, as in size=8G"));
        }
        (None, None) => length,
    };
    let bytes = bytes / PAGE_BYTES * PAGE_BYTES;
    if bytes < AREA_BYTES_MIN {
        return Err(refuse("it is smaller than 1 MiB"));
    }
    if bytes / PAGE_BYTES > u64::from(u32::MAX) {
        return Err(refuse("it is larger than 16 TiB"));
    }

    // 4. What we make is marked as swap.
    if formatted.is_none() {
        if bytes > length || ours {
            may_be_as_large_as(bytes)?;
            file.set_len(bytes).map_err(cannot)?;
        }
        let uuid = crate::random::bytes().map_err(cannot)?;
        file.write_all_at(&mkswap::format(bytes / PAGE_BYTES, uuid), 0).map_err(cannot)?;
    }

    // 5. Direct I/O where it works. The flag is changed on the locked description: a second one would be
    // locked out by the first.
    let direct = set_direct(&file, true) && (direct_io_works(&file) || !set_direct(&file, false));
    // Blocks that mkswap's owner laid out stay where they are: swapon(8) refuses files with holes.
    let punch_holes = kind.is_file() && formatted.is_none();
    Ok(OpenArea {
        fd: file.into(),
        config: area(bytes, direct, punch_holes),
        path: spec.path.clone(),
        bad_pages: header.map(|h| h.bad_pages).unwrap_or_default(),
    })
}

fn open_named(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let block_device = fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
    // On a block device O_EXCL says: not while it is mounted or swapped to. NONBLOCK: a pipe shall not hang us.
    let extra = if block_device { OFlags::EXCL } else { OFlags::NONBLOCK };
    options.custom_flags(extra.bits() as i32);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => options.create_new(true).open(path),
        other => other,
    }
}

fn set_direct(file: &File, on: bool) -> bool {
    let Ok(flags) = rustix::fs::fcntl_getfl(file) else {
        return false;
    };
    let flags = if on { flags | OFlags::DIRECT } else { flags - OFlags::DIRECT };
    rustix::fs::fcntl_setfl(file, flags - OFlags::NONBLOCK).is_ok()
}

fn length_of(mut file: &File) -> io::Result<u64> {
    // Not metadata: a block device has a length of zero there.
    io::Seek::seek(&mut file, io::SeekFrom::End(0))
}

fn read_up_to(mut file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    io::Seek::seek(&mut file, io::SeekFrom::Start(0))?;
    let mut read = 0;
    while read < buffer.len() {
        match file.read(&mut buffer[read..]) {
            Ok(0) => break,
            Ok(n) => read += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// Whether the kernel itself swaps to this file.
fn is_kernel_swap(file: &File) -> bool {
    let (Ok(ours), Ok(swaps)) = (file.metadata(), fs::read_to_string("/proc/swaps")) else {
        return false;
    };
    let same = |path: &str| {
        // Blanks in names are written as in fstab(5).
        let path = path.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\");
        fs::metadata(path).is_ok_and(|m| {
            (m.file_type().is_block_device() && m.rdev() == ours.rdev() && ours.file_type().is_block_device())
                || (m.dev(), m.ino()) == (ours.dev(), ours.ino())
        })
    };
    swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).any(same)
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

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let path = std::env::temp_dir().join(format!("uswap-area-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Directory(path)
        }

        fn spec(&self, name: &str, size_bytes: Option<u64>) -> SwapSpec {
            SwapSpec { path: self.0.join(name), size_bytes, priority: None }
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn refusal(result: Result<OpenArea, Failure>) -> String {
        match result {
            Ok(_) => panic!("it was not refused"),
            Err(failure) => failure.to_string(),
        }
    }

    #[test]
    fn a_new_file_is_private_and_known_again() {
        let directory = Directory::new("new");
        let spec = directory.spec("swap", Some(4 << 20));
        let area = named(&spec).unwrap();
        assert_eq!(area.config.slots, 1024);
        assert!(area.config.punch_holes);
        assert_eq!(fs::metadata(&spec.path).unwrap().mode() & 0o777, 0o600);
        assert!(refusal(named(&spec)).contains("in use"));
        drop(area);
        assert_eq!(named(&directory.spec("swap", None)).unwrap().config.slots, 1024);
        assert_eq!(named(&directory.spec("swap", Some(2 << 20))).unwrap().config.slots, 512);
        assert_eq!(named(&directory.spec("swap", Some(8 << 20))).unwrap().config.slots, 2048);
    }

    #[test]
    fn a_file_with_other_content_is_left_alone() {
        let directory = Directory::new("other");
        let spec = directory.spec("thesis", Some(4 << 20));
        fs::write(&spec.path, "years of work").unwrap();
        assert!(refusal(named(&spec)).contains("something else"));
        assert_eq!(fs::read(&spec.path).unwrap(), b"years of work");
    }

    #[test]
    fn a_formatted_file_keeps_its_size_and_header() {
        let directory = Directory::new("mkswap");
        let spec = directory.spec("formatted", None);
        let mut page = mkswap::format(512, [1; 16]);
        page[1052..1057].copy_from_slice(b"admin");
        page[1032] = 1;
        page[1536] = 9;
        fs::write(&spec.path, page).unwrap();
        assert!(refusal(named(&spec)).contains("shorter"));
        File::options().write(true).open(&spec.path).unwrap().set_len(4 << 20).unwrap();
        let area = named(&spec).unwrap();
        assert_eq!((area.config.slots, area.config.punch_holes), (512, false));
        assert_eq!(area.bad_pages, [9]);
        assert_eq!(fs::read(&spec.path).unwrap()[..4096], page);
    }

    #[test]
    fn an_empty_file_needs_a_size() {
        let directory = Directory::new("empty");
        let spec = directory.spec("empty", None);
        fs::write(&spec.path, "").unwrap();
        assert!(refusal(named(&spec)).contains("size=8G"));
        assert!(refusal(named(&directory.spec("empty", Some(4096)))).contains("1 MiB"));
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let directory = Directory::new("kinds");
        let null = SwapSpec { path: "/dev/null".into(), size_bytes: Some(4 << 20), priority: None };
        assert!(refusal(named(&null)).contains("neither"));
        let itself = SwapSpec { path: directory.0.clone(), size_bytes: Some(4 << 20), priority: None };
        assert!(refusal(named(&itself)).contains("directory"));
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
