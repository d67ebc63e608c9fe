//! The kernel's own swap, set up for one run and taken down again.
//!
//! A run happens in a memory cgroup of its own (v1 or v2, whatever is mounted) with exactly one swap
//! device on. Every step that changes the machine is noted in `TakeDown` together with its opposite; the
//! opposites run in reverse order when it is dropped, so an error or an interrupt leaves nothing behind.
//! They are also kept in a journal file, so that after a `kill -9` the next `uswap bench` takes down what
//! the dead one left.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::process::{Pid, Signal};
use serde::Serialize;

use crate::rig::quoted;

/// Where the steps to be undone are kept. One bench at a time holds its lock.
const JOURNAL: &str = "/run/uswap-bench.journal";
/// First word of the journal; the boot's id follows.
const JOURNAL_MAGIC: &str = "uswap-bench-1";
const ZSWAP: &str = "/sys/module/zswap/parameters";
const ZRAM_CONTROL: &str = "/sys/class/zram-control";
/// How long a device or cgroup may stay busy after its last user is gone.
const BUSY_RETRY: Duration = Duration::from_secs(5);

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

// ---------------------------------------------------------------------------------------------------
// Taking down

/// The opposite of one step that changed the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Undo {
    /// Turn swapping to this file or device off.
    Swapoff(PathBuf),
    /// Empty this zram device and remove it.
    RemoveZram(u32),
    /// Remove this cgroup.
    RemoveCgroup(PathBuf),
    /// Write this value back to this file of sysfs or a cgroup.
    Restore { path: PathBuf, value: String },
    /// Delete this file.
    RemoveFile(PathBuf),
    /// Unload this kernel module.
    UnloadModule(String),
}

impl Undo {
    /// Does it. What is gone already counts as done.
    fn apply(&self) -> io::Result<()> {
        match self {
            Undo::Swapoff(path) => {
                if is_swapped_to(&fs::read_to_string("/proc/swaps")?, path) {
                    command(Command::new("swapoff").arg(path))?;
                }
                Ok(())
            }
            Undo::RemoveZram(index) => {
                if !Path::new(&format!("/sys/block/zram{index}")).exists() {
                    return Ok(());
                }
                while_busy(|| fs::write(format!("/sys/block/zram{index}/reset"), "1"))?;
                while_busy(|| fs::write(format!("{ZRAM_CONTROL}/hot_remove"), index.to_string()))
            }
            Undo::RemoveCgroup(path) => while_busy(|| {
                // Nobody but a program under test whose bench was killed can be in there.
                kill_all(&fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default());
                gone_is_fine(fs::remove_dir(path))
            }),
            Undo::Restore { path, value } => fs::write(path, value),
            Undo::RemoveFile(path) => gone_is_fine(fs::remove_file(path)),
            Undo::UnloadModule(name) => while_busy(|| command(Command::new("rmmod").arg(name))),
        }
    }

    /// Its line in the journal: words without blanks, so a path with blanks survives.
    fn to_line(&self) -> String {
        match self {
            Undo::Swapoff(path) => format!("swapoff {}", escape(path)),
            Undo::RemoveZram(index) => format!("remove-zram {index}"),
            Undo::RemoveCgroup(path) => format!("remove-cgroup {}", escape(path)),
            Undo::Restore { path, value } => {
                format!("restore {} {}", escape(path), escape(Path::new(value)))
            }
            Undo::RemoveFile(path) => format!("remove-file {}", escape(path)),
            Undo::UnloadModule(name) => format!("unload-module {}", escape(Path::new(name))),
        }
    }

    /// What a line of the journal means; `None` for a line that was cut short or is not ours.
    fn parse(line: &str) -> Option<Undo> {
        let mut words = line.split(' ');
        let (verb, first, second) = (words.next()?, words.next()?, words.next());
        if words.next().is_some() || (second.is_some() && verb != "restore") {
            return None;
        }
        Some(match verb {
            "swapoff" => Undo::Swapoff(unescape(first)?),
            "remove-zram" => Undo::RemoveZram(first.parse().ok()?),
            "remove-cgroup" => Undo::RemoveCgroup(unescape(first)?),
            "restore" => {
                Undo::Restore { path: unescape(first)?, value: unescape(second?)?.into_os_string().into_string().ok()? }
            }
            "remove-file" => Undo::RemoveFile(unescape(first)?),
            "unload-module" => Undo::UnloadModule(unescape(first)?.into_os_string().into_string().ok()?),
            _ => return None,
        })
    }
}

impl fmt::Display for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Undo::Swapoff(path) => write!(f, "turn off swap on '{}'", path.display()),
            Undo::RemoveZram(index) => write!(f, "remove /dev/zram{index}"),
            Undo::RemoveCgroup(path) => write!(f, "remove cgroup '{}'", path.display()),
            Undo::Restore { path, value } => {
                write!(f, "write '{value}' back to '{}'", path.display())
            }
            Undo::RemoveFile(path) => write!(f, "delete '{}'", path.display()),
            Undo::UnloadModule(name) => write!(f, "unload module {name}"),
        }
    }
}

/// Percent-escapes what is not a visible ASCII character.
fn escape(path: &Path) -> String {
    let mut text = String::new();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02x}"));
        }
    }
    text
}

fn unescape(text: &str) -> Option<PathBuf> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(byte);
            rest = after;
        }
    }
    Some(PathBuf::from(std::ffi::OsString::from_vec(bytes)))
}

/// The lines of a journal of this boot, oldest first. Lines of another boot mean nothing any more, but
/// for files, which outlive it.
fn parse_journal(text: &str, boot_id: &str) -> Vec<Undo> {
    let mut lines = text.lines();
    let same_boot = match lines.next().and_then(|header| header.split_once(' ')) {
        Some((JOURNAL_MAGIC, id)) => id == boot_id,
        _ => return Vec::new(),
    };
    lines.filter_map(Undo::parse).filter(|undo| same_boot || matches!(undo, Undo::RemoveFile(_))).collect()
}

/// The journal file, locked by this process.
pub struct Journal {
    file: File,
    boot_id: String,
    /// To be undone, the newest last.
    pending: Vec<Undo>,
    /// Could not be undone; the next bench tries again.
    failed: Vec<Undo>,
}

impl Journal {
    /// Locks the journal and takes down what a bench that was killed has left.
    pub fn open() -> Result<Journal, Unavailable> {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(JOURNAL)
            .map_err(|error| unavailable(format!("cannot open '{JOURNAL}'"), error))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| Unavailable("another uswap bench is running".to_owned()))?;
        let mut text = String::new();
        (&file).read_to_string(&mut text).map_err(|error| unavailable(format!("cannot read '{JOURNAL}'"), error))?;
        let mut journal = Journal { file, boot_id, pending: Vec::new(), failed: Vec::new() };
        journal.pending = parse_journal(&text, &journal.boot_id);
        for undo in journal.pending.iter().rev() {
            eprintln!("uswap: bench: left by an earlier run: {undo}");
        }
        journal.undo_down_to(0);
        Ok(journal)
    }

    fn push(&mut self, undo: Undo) {
        self.pending.push(undo);
        self.save();
    }

    /// Undoes the newest steps until `keep` are left. What fails is said and kept for the next bench; a
    /// later step backwards may still succeed.
    fn undo_down_to(&mut self, keep: usize) {
        while self.pending.len() > keep {
            let Some(undo) = self.pending.last() else {
                break;
            };
            let outcome = undo.apply();
            if let Err(error) = &outcome {
                eprintln!("uswap: bench: could not {undo}: {error}");
            }
            // Out of the journal only now: killed before, the next bench does it again.
            if let (Some(undo), Err(_)) = (self.pending.pop(), outcome) {
                self.failed.insert(0, undo);
            }
            self.save();
        }
    }

    /// Rewrites the file; a write that fails costs only the protection against `kill -9`.
    fn save(&mut self) {
        let mut text = String::new();
        if !self.pending.is_empty() || !self.failed.is_empty() {
            text = format!("{JOURNAL_MAGIC} {}\n", self.boot_id);
            for undo in self.failed.iter().chain(&self.pending) {
                text.push_str(&undo.to_line());
                text.push('\n');
            }
        }
        let _ =
            self.file.rewind().and_then(|()| self.file.set_len(0)).and_then(|()| self.file.write_all(text.as_bytes()));
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.undo_down_to(0);
        // The file itself stays, empty: deleting it would race with the next bench's lock.
    }
}

/// Steps that end with this value, in reverse order of their beginning.
pub struct TakeDown<'a> {
    journal: &'a mut Journal,
    outer_steps: usize,
}

impl<'a> TakeDown<'a> {
    /// No steps so far.
    pub fn new(journal: &'a mut Journal) -> TakeDown<'a> {
        let outer_steps = journal.pending.len();
        TakeDown { journal, outer_steps }
    }

    fn push(&mut self, undo: Undo) {
        self.journal.push(undo);
    }

    /// Writes `value` to `path` until the take-down, unless it is there already.
    fn set(&mut self, path: &Path, value: &str) -> io::Result<()> {
        let old = fs::read_to_string(path)?.trim().to_owned();
        if old == value {
            return Ok(());
        }
        self.push(Undo::Restore { path: path.to_owned(), value: old });
        fs::write(path, value)
    }
}

impl Drop for TakeDown<'_> {
    fn drop(&mut self) {
        self.journal.undo_down_to(self.outer_steps);
    }
}

// ---------------------------------------------------------------------------------------------------
// Setting up

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

// ---------------------------------------------------------------------------------------------------
// The memory cgroup

/// Which generation of cgroups limits memory here, and where it is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hierarchy {
    /// The memory controller of cgroup v1.
    V1(PathBuf),
    /// The unified hierarchy, with the memory controller in it.
    V2(PathBuf),
}

impl Hierarchy {
    /// Looks through the mounts.
    pub fn find() -> Result<Hierarchy, Unavailable> {
        let mounts = fs::read_to_string("/proc/self/mounts")
            .map_err(|error| unavailable("cannot read /proc/self/mounts", error))?;
        Hierarchy::in_mounts(&mounts, |v2| {
            fs::read_to_string(v2.join("cgroup.controllers"))
                .is_ok_and(|list| list.split_whitespace().any(|name| name == "memory"))
        })
        .ok_or_else(|| Unavailable("no memory cgroup controller is mounted".to_owned()))
    }

    fn in_mounts(mounts: &str, v2_has_memory: impl Fn(&Path) -> bool) -> Option<Hierarchy> {
        mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (path, kind, options) = (unescape_octal(words.next()?), words.next()?, words.next()?);
            match kind {
                "cgroup" if options.split(',').any(|option| option == "memory") => Some(Hierarchy::V1(path)),
                "cgroup2" if v2_has_memory(&path) => Some(Hierarchy::V2(path)),
                _ => None,
            }
        })
    }

    /// 1 or 2.
    pub fn version(&self) -> u32 {
        match self {
            Hierarchy::V1(_) => 1,
            Hierarchy::V2(_) => 2,
        }
    }

    /// The file of a cgroup that has its limit.
    fn limit_name(&self) -> &'static str {
        match self {
            Hierarchy::V1(_) => "memory.limit_in_bytes",
            Hierarchy::V2(_) => "memory.max",
        }
    }

    /// Makes an empty cgroup that may use `limit_bytes`, to be removed at the take-down.
    pub fn create(&self, limit_bytes: u64, down: &mut TakeDown<'_>) -> Result<Cgroup, Unavailable> {
        let (Hierarchy::V1(mount) | Hierarchy::V2(mount)) = self;
        if let Hierarchy::V2(_) = self {
            let control = mount.join("cgroup.subtree_control");
            let enabled = fs::read_to_string(&control).unwrap_or_default();
            if !enabled.split_whitespace().any(|name| name == "memory") {
                fs::write(&control, "+memory")
                    .map_err(|error| unavailable("cannot pass the memory controller on to cgroups", error))?;
                down.push(Undo::Restore { path: control, value: "-memory".to_owned() });
            }
        }
        let path = mount.join(format!("uswap-bench-{}", std::process::id()));
        fs::create_dir(&path)
            .map_err(|error| unavailable(format!("cannot make cgroup '{}'", path.display()), error))?;
        down.push(Undo::RemoveCgroup(path.clone()));
        fs::write(path.join(self.limit_name()), limit_bytes.to_string())
            .map_err(|error| unavailable("cannot set the memory limit of a cgroup", error))?;
        Ok(Cgroup { path, hierarchy: self.clone() })
    }
}

/// A memory cgroup for one run.
pub struct Cgroup {
    path: PathBuf,
    hierarchy: Hierarchy,
}

impl Cgroup {
    /// A command that starts `program` inside. The shell enters the cgroup, then becomes the program, so
    /// that every byte the program ever uses is charged here.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(r#"echo $$ >"$0/cgroup.procs" && exec "$@""#).arg(&self.path).arg(program);
        command
    }

    /// What a shell does to end the limit.
    pub fn lift_limit(&self) -> String {
        let unlimited = match self.hierarchy {
            Hierarchy::V1(_) => "-1",
            Hierarchy::V2(_) => "max",
        };
        format!("echo {unlimited} >{}", quoted(&self.path.join(self.hierarchy.limit_name())))
    }

    /// Bytes charged at this moment.
    pub fn usage_bytes(&self) -> Option<u64> {
        let name = match self.hierarchy {
            Hierarchy::V1(_) => "memory.usage_in_bytes",
            Hierarchy::V2(_) => "memory.current",
        };
        fs::read_to_string(self.path.join(name)).ok()?.trim().parse().ok()
    }

    /// How many processes the kernel killed in here because memory ran out.
    pub fn oom_kills(&self) -> u64 {
        let name = match self.hierarchy {
            Hierarchy::V1(_) => "memory.oom_control",
            Hierarchy::V2(_) => "memory.events",
        };
        parse_key(&fs::read_to_string(self.path.join(name)).unwrap_or_default(), "oom_kill").unwrap_or(0)
    }
}

fn parse_key(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.split_once(' ').filter(|(name, _)| *name == key))?.1.trim().parse().ok()
}

// ---------------------------------------------------------------------------------------------------
// What swapping did, and what it cost

/// Pages that left the memory of programs and came back to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Swapped {
    /// Pages whose memory reclaim got back, those whose copy was still good among them.
    pub pages_out: u64,
    /// Pages brought back from wherever they were, zeros too, and those read ahead.
    pub pages_in: u64,
}

impl Swapped {
    /// Since the machine was started. There is no other swap than ours on it.
    pub fn by_the_kernel() -> Swapped {
        Swapped::in_vmstat(&fs::read_to_string("/proc/vmstat").unwrap_or_default())
    }

    fn in_vmstat(text: &str) -> Swapped {
        let of = |key| parse_key(text, key).unwrap_or(0);
        Swapped { pages_out: of("pgsteal_anon"), pages_in: of("pswpin") + of("zswpin") + of("swpin_zero") }
    }

    /// By the counters of `uswap run --stats`, which have the same meaning, but for pswpin: that has the pool in it.
    pub fn by_uswap(stats: &serde_json::Value) -> Swapped {
        let of = |key: &str| stats["vmstat"][key].as_u64().unwrap_or(0);
        Swapped { pages_out: of("pgsteal"), pages_in: of("pswpin") + of("swpin_zero") }
    }

    /// What was added since `earlier`.
    pub fn since(&self, earlier: &Swapped) -> Swapped {
        Swapped {
            pages_out: self.pages_out.saturating_sub(earlier.pages_out),
            pages_in: self.pages_in.saturating_sub(earlier.pages_in),
        }
    }

    /// Both ways.
    pub fn pages(&self) -> u64 {
        self.pages_out + self.pages_in
    }
}

/// The kernel's threads that reclaim when the whole machine runs short. A cgroup at its limit reclaims in its own
/// processes, so there is rarely anything to see here.
pub struct Kswapd(Vec<PathBuf>);

impl Kswapd {
    /// Looks through all processes.
    pub fn find() -> Kswapd {
        let is_kswapd =
            |process: &PathBuf| fs::read_to_string(process.join("comm")).is_ok_and(|name| name.starts_with("kswapd"));
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
        Kswapd(processes.filter(is_kswapd).map(|process| process.join("stat")).collect())
    }

    /// User and system time of all of them since the machine was started.
    pub fn cpu_seconds(&self) -> f64 {
        let ticks = self.0.iter().filter_map(|stat| parse_cpu_ticks(&fs::read_to_string(stat).ok()?));
        // 100 ticks a second: USER_HZ of x86-64.
        ticks.sum::<u64>() as f64 / 100.0
    }
}

/// Fields 14 and 15 of /proc/PID/stat; the name in field 2 may have blanks.
fn parse_cpu_ticks(stat: &str) -> Option<u64> {
    let mut after_name = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(after_name.next()?.parse::<u64>().ok()? + after_name.next()?.parse::<u64>().ok()?)
}

// ---------------------------------------------------------------------------------------------------
// Helpers

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

/// Runs a small command, out of reach of the terminal's Ctrl-C, so that a take-down runs to its end.
fn command(command: &mut Command) -> io::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.process_group(0).stdin(Stdio::null()).output().map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound { io::Error::other(format!("no command '{name}'")) } else { error }
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty());
    // "swapon: /a/file: swapon failed: Invalid argument": who and where is said by the caller.
    let reason = last.and_then(|line| line.rsplit(": ").next());
    Err(io::Error::other(reason.unwrap_or("it failed without a word").trim().to_owned()))
}

/// Kills the processes listed, one per line.
fn kill_all(pids: &str) {
    let pids = pids.lines().filter_map(|line| line.trim().parse().ok()).filter_map(Pid::from_raw);
    for pid in pids {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// Tries again while the kernel says EBUSY, for a while.
fn while_busy(mut action: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match action() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && start.elapsed() < BUSY_RETRY => {
                std::thread::sleep(Duration::from_millis(20));
            }
            outcome => return outcome,
        }
    }
}

fn gone_is_fine(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_undo() -> Vec<Undo> {
        vec![
            Undo::RemoveFile("/var/tmp/with blank, 100% and \n newline".into()),
            Undo::UnloadModule("zram".to_owned()),
            Undo::RemoveZram(3),
            Undo::Restore { path: "/sys/module/zswap/parameters/enabled".into(), value: "N".to_owned() },
            Undo::Swapoff("/dev/zram3".into()),
            Undo::RemoveCgroup("/sys/fs/cgroup/memory/uswap-bench-1".into()),
            Undo::RemoveFile(PathBuf::from(OsStr::from_bytes(b"/tmp/not-\xff-utf8"))),
        ]
    }

    fn journal_text(boot_id: &str) -> String {
        let lines: Vec<String> = every_undo().iter().map(Undo::to_line).collect();
        format!("{JOURNAL_MAGIC} {boot_id}\n{}\n", lines.join("\n"))
    }

    #[test]
    fn a_journal_reads_back_as_it_was_written() {
        assert_eq!(parse_journal(&journal_text("abc"), "abc"), every_undo());
    }

    #[test]
    fn only_files_outlive_a_reboot() {
        let left = parse_journal(&journal_text("abc"), "def");
        assert_eq!(left.len(), 2);
        assert!(left.iter().all(|undo| matches!(undo, Undo::RemoveFile(_))));
    }

    #[test]
    fn a_foreign_or_damaged_journal_does_nothing() {
        assert_eq!(parse_journal("", "abc"), []);
        assert_eq!(parse_journal("remove-file /etc/passwd\n", "abc"), []);
        let damaged =
            format!("{JOURNAL_MAGIC} abc\nremove-zram x\nrestore /sys/x\nremove-file %4\nswapoff /a b\nformat /\n");
        assert_eq!(parse_journal(&damaged, "abc"), []);
    }

    #[test]
    fn files_are_deleted_newest_first_and_missing_ones_do_not_matter() {
        let directory = std::env::temp_dir().join(format!("uswap-take-down-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let journal_path = directory.join("journal");
        let mut journal = Journal {
            file: OpenOptions::new().read(true).write(true).create_new(true).open(&journal_path).unwrap(),
            boot_id: "abc".to_owned(),
            pending: Vec::new(),
            failed: Vec::new(),
        };
        let (kept, inner, knob) = (directory.join("kept"), directory.join("inner"), directory.join("knob"));
        for path in [&kept, &inner] {
            fs::write(path, "x").unwrap();
        }
        fs::write(&knob, "old\n").unwrap();
        journal.push(Undo::RemoveFile(kept.clone()));
        {
            let mut down = TakeDown::new(&mut journal);
            down.push(Undo::RemoveFile(inner.clone()));
            down.push(Undo::RemoveFile(directory.join("never-made")));
            down.set(&knob, "new").unwrap();
            assert_eq!(fs::read_to_string(&knob).unwrap(), "new");
            assert_eq!(parse_journal(&fs::read_to_string(&journal_path).unwrap(), "abc").len(), 4);
        }
        assert!(kept.exists() && !inner.exists());
        assert_eq!(fs::read_to_string(&knob).unwrap(), "old");
        drop(journal);
        assert!(!kept.exists());
        assert_eq!(fs::read_to_string(&journal_path).unwrap(), "");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn the_memory_controller_is_found_in_either_generation() {
        let v1 = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                  cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n\
                  cgroup /sys/fs/cgroup/me\\040mory cgroup rw,relatime,memory 0 0\n\
                  cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        assert_eq!(Hierarchy::in_mounts(v1, |_| false), Some(Hierarchy::V1("/sys/fs/cgroup/me mory".into())));
        let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        assert_eq!(Hierarchy::in_mounts(v2, |_| true), Some(Hierarchy::V2("/sys/fs/cgroup".into())));
        assert_eq!(Hierarchy::in_mounts(v2, |_| false), None);
    }

    #[test]
    fn swapped_pages_are_counted_alike() {
        let vmstat = "pswpin 5\npswpout 7\npgsteal_anon 100\nswpin_zero 2\nzswpin 30\nzswpout 70\n";
        assert_eq!(Swapped::in_vmstat(vmstat), Swapped { pages_out: 100, pages_in: 37 });
        let stats = serde_json::json!({"vmstat": {"pgsteal": 100, "pswpin": 35, "zswpin": 30, "swpin_zero": 2}});
        assert_eq!(Swapped::by_uswap(&stats), Swapped { pages_out: 100, pages_in: 37 });
        let later = Swapped { pages_out: 150, pages_in: 37 };
        assert_eq!(later.since(&Swapped::in_vmstat(vmstat)).pages(), 50);
    }

    #[test]
    fn cpu_time_is_behind_a_name_with_blanks() {
        let stat = "71 (ksw) apd0) S 2 0 0 0 -1 10619968 1 2 3 4 150 75 0 0 20 0 1 0 5 0 0";
        assert_eq!(parse_cpu_ticks(stat), Some(225));
        assert_eq!(parse_cpu_ticks("71 (kswapd0) S 2"), None);
    }

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
