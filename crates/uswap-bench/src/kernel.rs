//! The kernel's own swap, set up for one run and taken down again.
//!
//! A run happens in a memory cgroup of its own (v1 or v2, whatever is mounted) with exactly one swap device on. How all of
//! that ends is in `take_down`.

mod memory_cgroup;
mod swapped;
mod take_down;

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::FallocateFlags;

pub use memory_cgroup::{Cgroup, Hierarchy};
pub use swapped::{Kswapd, Swapped};
pub use take_down::{Journal, TakeDown};
use take_down::{Undo, command};

const ZSWAP: &str = "/sys/module/zswap/parameters";
const ZRAM_CONTROL: &str = "/sys/class/zram-control";
/// One line on why a back end cannot be measured here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable(pub String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn unavailable(what: impl fmt::Display, error: impl fmt::Display) -> Unavailable {
    Unavailable(format!("{what}: {error}"))
}

/// Which of the kernel's ways to swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelSwap {
    /// A zram device, compressed with LZ4.
    Zram,
    /// A swap file with zswap in front of it.
    Zswap,
    /// A swap file alone.
    SwapFile,
}

/// Turns one kind of kernel swap on. What `down` notes turns it off again.
pub fn set_up(
    kind: KernelSwap,
    swap_file: Option<&Path>,
    area_bytes: u64,
    down: &mut TakeDown<'_>,
) -> Result<Device, Unavailable> {
    let zswap = Path::new(ZSWAP);
    if kind != KernelSwap::Zswap && zswap.exists() {
        down.set(&zswap.join("enabled"), "N").map_err(|error| unavailable("cannot turn zswap off", error))?;
    }
    if kind == KernelSwap::Zram {
        return set_up_zram(area_bytes, down);
    }
    let (pool, compressor) = match kind {
        KernelSwap::Zswap => (Pool::Zswap, set_up_zswap(zswap, down)?),
        _ => (Pool::None, "none"),
    };
    let path = swap_file.expect("all but zram need a swap file").to_owned();
    swap_on(&path, down)?;
    Ok(Device { path, pool, compressor })
}

/// Kernel swap that is on.
pub struct Device {
    /// The swap file, or block device.
    pub path: PathBuf,
    /// Where its compressed data is counted.
    pub pool: Pool,
    /// What compresses it.
    pub compressor: &'static str,
}

/// RAM that holds swapped pages.
#[derive(Clone, Copy, Debug)]
pub enum Pool {
    /// All of it goes to disk.
    None,
    /// This zram device.
    Zram(u32),
    /// zswap; there is one for the whole machine.
    Zswap,
}

impl Pool {
    /// RAM it takes at this moment.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Pool::None => Some(0),
            Pool::Zram(index) => parse_mm_stat(&fs::read_to_string(format!("/sys/block/zram{index}/mm_stat")).ok()?),
            Pool::Zswap => parse_meminfo(&fs::read_to_string("/proc/meminfo").ok()?, "Zswap:"),
        }
    }
}

fn set_up_zram(area_bytes: u64, down: &mut TakeDown<'_>) -> Result<Device, Unavailable> {
    if !Path::new(ZRAM_CONTROL).exists() {
        command(Command::new("modprobe").args(["zram", "num_devices=0"]))
            .map_err(|error| unavailable("this kernel has no zram and the module cannot be loaded", error))?;
        down.push(Undo::UnloadModule("zram".to_owned()));
    }
    let index = fs::read_to_string(format!("{ZRAM_CONTROL}/hot_add"))
        .map_err(|error| unavailable("cannot add a zram device", error))?;
    let index: u32 = index.trim().parse().map_err(|error| unavailable("cannot add a zram device", error))?;
    down.push(Undo::RemoveZram(index));

    let sys = PathBuf::from(format!("/sys/block/zram{index}"));
    let algorithm = sys.join("comp_algorithm");
    fs::write(&algorithm, "lz4").map_err(|_| {
        let known = fs::read_to_string(&algorithm).unwrap_or_default();
        Unavailable(format!("zram has no lz4 in this kernel, only {}", known.trim()))
    })?;
    fs::write(sys.join("disksize"), area_bytes.to_string())
        .map_err(|error| unavailable("cannot give the zram device a size", error))?;
    let device = PathBuf::from(format!("/dev/zram{index}"));
    if !device.exists() {
        return Err(Unavailable(format!("'{}' does not appear", device.display())));
    }
    swap_on(&device, down)?;
    Ok(Device { path: device, pool: Pool::Zram(index), compressor: "lz4" })
}

/// Turns zswap on, with LZ4 if the kernel's crypto layer has it, else with LZO.
fn set_up_zswap(zswap: &Path, down: &mut TakeDown<'_>) -> Result<&'static str, Unavailable> {
    if !zswap.exists() {
        return Err(Unavailable("this kernel has no zswap".to_owned()));
    }
    let path = zswap.join("compressor");
    let takes = |down: &mut TakeDown<'_>, name: &str| {
        down.set(&path, name).is_ok() && fs::read_to_string(&path).is_ok_and(|now| now.trim() == name)
    };
    let compressor = if takes(down, "lz4") {
        "lz4"
    } else if takes(down, "lzo") {
        "lzo"
    } else {
        return Err(Unavailable("zswap takes neither lz4 nor lzo as its compressor".to_owned()));
    };
    down.set(&zswap.join("enabled"), "Y").map_err(|error| unavailable("cannot turn zswap on", error))?;
    Ok(compressor)
}

/// Makes the file that the kernel swaps to; it is deleted with the journal. The kernel wants one without
/// holes.
pub fn create_swap_file(directory: &Path, bytes: u64, journal: &mut Journal) -> Result<PathBuf, Unavailable> {
    let path = directory.join(format!("uswap-bench-{}.kernel-swap", std::process::id()));
    let what = format!("cannot make swap file '{}'", path.display());
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .map_err(|error| unavailable(&what, error))?;
    journal.push(Undo::RemoveFile(path.clone()));
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes).map_err(|error| unavailable(&what, error))?;
    file.sync_all().map_err(|error| unavailable(&what, error))?;
    Ok(path)
}

fn swap_on(path: &Path, down: &mut TakeDown<'_>) -> Result<(), Unavailable> {
    command(Command::new("mkswap").arg(path))
        .map_err(|error| unavailable(format!("mkswap on '{}' failed", path.display()), error))?;
    // First noted, then done: swapoff of what is not on does nothing.
    down.push(Undo::Swapoff(path.to_owned()));
    command(Command::new("swapon").arg(path))
        .map_err(|error| unavailable(format!("the kernel cannot swap to '{}'", path.display()), error))
}

/// The swap devices that are on before we do anything.
pub fn swaps_in_use() -> Vec<String> {
    parse_swaps(&fs::read_to_string("/proc/swaps").unwrap_or_default())
}

fn parse_swaps(text: &str) -> Vec<String> {
    text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// Whether /proc/swaps lists `path`.
fn is_swapped_to(swaps: &str, path: &Path) -> bool {
    parse_swaps(swaps).iter().any(|listed| unescape_octal(listed) == path)
}

/// The third number of zram's mm_stat: bytes of RAM that it takes.
fn parse_mm_stat(text: &str) -> Option<u64> {
    text.split_whitespace().nth(2)?.parse().ok()
}

/// A line of /proc/meminfo or /proc/PID/status, in bytes.
pub fn parse_meminfo(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

fn parse_key(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.split_once(' ').filter(|(name, _)| *name == key))?.1.trim().parse().ok()
}

/// The `\040` of /proc/mounts and /proc/swaps.
fn unescape_octal(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = (byte == b'\\')
            .then(|| after.get(..3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match code {
            Some(code) => {
                bytes.push(code);
                rest = &after[3..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    PathBuf::from(OsStr::from_bytes(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_tables_are_read() {
        let swaps = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/tmp/a\\040b                               file\t\t1048572\t\t0\t\t-2\n";
        assert_eq!(parse_swaps(swaps), ["/tmp/a\\040b"]);
        assert!(is_swapped_to(swaps, Path::new("/tmp/a b")));
        assert!(!is_swapped_to(swaps, Path::new("/tmp/a")));
        assert!(parse_swaps("Filename Type Size Used Priority\n").is_empty());
        assert_eq!(parse_mm_stat(" 4096  74 12288  0  12288 0 0 0 0\n"), Some(12288));
        assert_eq!(parse_meminfo("MemTotal: 5 kB\nZswap:          12 kB\n", "Zswap:"), Some(12288));
        assert_eq!(parse_key("under_oom 0\noom_kill 2\n", "oom_kill"), Some(2));
        assert_eq!(parse_key("oom 1\noom_kill 0\noom_group_kill 3\n", "oom_kill"), Some(0));
    }
}
