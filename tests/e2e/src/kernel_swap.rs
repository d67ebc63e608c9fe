//! The kernel's own swap, on for the time of one test; and a memory cgroup, so that the kernel reclaims from that test alone.
//!
//! Both are taken down however the test ends. Kernel swap is the whole machine's: meanwhile others may be swapped out, too.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{MIB, TempDir, is_root, settings, skip};

/// What the kernel swaps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapKind {
    /// A compressed device in RAM: swapped in without readahead, and pages that come back while they are written are shared.
    Zram,
    /// A file.
    File,
}

/// Kernel swap that is on; off again when dropped.
pub struct KernelSwap {
    path: PathBuf,
    zram: Option<u32>,
}

const ZRAM_CONTROL: &str = "/sys/class/zram-control";

impl KernelSwap {
    /// Turns it on. `None` where that cannot be done: the test has said why and must return; in CI that is a failure instead.
    pub fn on(test: &TempDir, kind: SwapKind, mib: u64) -> Option<KernelSwap> {
        let made = match kind {
            _ if !is_root() => Err("it needs root".to_owned()),
            SwapKind::Zram => zram(mib),
            SwapKind::File => file(test, mib),
        };
        let made = made.and_then(|swap| {
            run("mkswap", &swap.path)?;
            run("swapon", &swap.path)?;
            Ok(swap)
        });
        made.map_err(|why| cannot(&format!("no kernel swap to {kind:?}: {why}"))).ok()
    }
}

/// In CI, what the tests need can be had.
pub(crate) fn cannot(why: &str) {
    assert!(!settings::strict(), "{why}");
    skip(why);
}

fn zram(mib: u64) -> Result<KernelSwap, String> {
    if !Path::new(ZRAM_CONTROL).exists() {
        let _ = Command::new("modprobe").arg("zram").status();
    }
    let said = std::fs::read_to_string(format!("{ZRAM_CONTROL}/hot_add")).map_err(|error| format!("zram: {error}"))?;
    let number: u32 = said.trim().parse().map_err(|error| format!("zram: {error}"))?;
    let swap = KernelSwap { path: format!("/dev/zram{number}").into(), zram: Some(number) };
    std::fs::write(format!("/sys/block/zram{number}/disksize"), format!("{mib}M"))
        .map_err(|error| format!("zram{number}: {error}"))?;
    Ok(swap)
}

fn file(test: &TempDir, mib: u64) -> Result<KernelSwap, String> {
    let swap = KernelSwap { path: test.join("kernel-swap"), zram: None };
    let fail = |error: io::Error| format!("{}: {error}", swap.path.display());
    // The kernel wants a file without holes, which is its owner's alone.
    let mut from = std::fs::File::open("/dev/zero").map_err(fail)?;
    let mut to = std::fs::File::create(&swap.path).map_err(fail)?;
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&swap.path, private).map_err(fail)?;
    io::copy(&mut io::Read::take(&mut from, mib * MIB), &mut to).map_err(fail)?;
    to.sync_all().map_err(fail)?;
    Ok(swap)
}

fn run(program: &str, path: &Path) -> Result<(), String> {
    let output = Command::new(program).arg(path).output().map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{program} {}: {}", path.display(), String::from_utf8_lossy(&output.stderr).trim())),
    }
}

impl Drop for KernelSwap {
    fn drop(&mut self) {
        let is_on = std::fs::read_to_string("/proc/swaps")
            .is_ok_and(|swaps| swaps.lines().any(|line| line.split(' ').next() == self.path.to_str()));
        if is_on && let Err(why) = run("swapoff", &self.path) {
            eprintln!("{why}");
        }
        if let Some(number) = self.zram {
            let _ = std::fs::write(format!("/sys/block/zram{number}/reset"), "1");
            if let Err(error) = std::fs::write(format!("{ZRAM_CONTROL}/hot_remove"), number.to_string()) {
                eprintln!("cannot remove zram{number}: {error}");
            }
        }
    }
}

/// A memory cgroup of version 1 or 2, removed when dropped.
pub struct MemoryCgroup {
    path: PathBuf,
    /// What is written where to have the kernel reclaim.
    reclaim: (&'static str, &'static str),
}

impl MemoryCgroup {
    /// One in which the kernel reclaims from `mib` on. `None` as for [`KernelSwap::on`].
    pub fn new(name: &str, mib: u64) -> Option<MemoryCgroup> {
        let made = if is_root() { Self::make(name, mib) } else { Err("it needs root".to_owned()) };
        made.map_err(|why| cannot(&format!("no memory cgroup: {why}"))).ok()
    }

    fn make(name: &str, mib: u64) -> Result<MemoryCgroup, String> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").map_err(|error| format!("mounts: {error}"))?;
        let find = |kind: &str, option: &str| {
            mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find_map(|fields| {
                let matches = fields[2] == kind && (option.is_empty() || fields[3].split(',').any(|o| o == option));
                matches.then(|| PathBuf::from(fields[1]))
            })
        };
        let (root, limit, reclaim) = match find("cgroup", "memory") {
            Some(root) => (root, "memory.limit_in_bytes", ("memory.force_empty", "0")),
            None => {
                let root = find("cgroup2", "").ok_or("none is mounted")?;
                // It may be on already.
                let _ = std::fs::write(root.join("cgroup.subtree_control"), "+memory");
                (root, "memory.max", ("memory.reclaim", "64M"))
            }
        };
        let path = root.join(format!("uswap-e2e-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let group = MemoryCgroup { path, reclaim };
        std::fs::write(group.path.join(limit), (mib * MIB).to_string()).map_err(|error| format!("{limit}: {error}"))?;
        Ok(group)
    }

    /// Has the kernel reclaim now, as much as it can get.
    pub fn reclaim(&self) {
        let (file, what) = self.reclaim;
        // It says that it did not get all.
        let _ = std::fs::write(self.path.join(file), what);
    }

    /// The file to which a process writes to get into the group.
    pub fn entrance(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // Processes that were killed a moment ago may still be counted.
        let begun = Instant::now();
        while let Err(error) = std::fs::remove_dir(&self.path) {
            if begun.elapsed() > Duration::from_secs(5) {
                return eprintln!("cannot remove {}: {error}", self.path.display());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
