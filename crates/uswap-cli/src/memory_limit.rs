//! How much memory there is to share: the container's limit (cgroup v1 or v2) or the machine's memory.
//!
//! A limit of any cgroup above ours counts too, so all levels up to the mount point are read. In a container
//! without a cgroup namespace, /proc/self/cgroup names a path that the mount does not have; then the mount's
//! own root, as /proc/self/mountinfo tells it, is taken off first.

use std::fs;
use std::path::{Path, PathBuf};

/// Where a limit comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The cgroup whose file says so.
    Cgroup(PathBuf),
    /// All memory of the machine.
    Machine,
}

/// What bounds us, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The bound.
    pub bytes: u64,
    /// Whose it is.
    pub source: Source,
}

/// The smaller of the container's limit and the machine's memory.
pub fn find() -> Option<MemoryLimit> {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| mem_total(&text));
    let cgroup = cgroup_limit(&read);
    let machine = machine.map(|bytes| MemoryLimit { bytes, source: Source::Machine });
    [cgroup, machine].into_iter().flatten().min_by_key(|limit| limit.bytes)
}

fn mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Of version 1: it has the limit of the whole hierarchy.
const STAT: &str = "memory.stat";

/// The limit files on the way from our cgroup to the mount points, version 2 and version 1.
fn limit_files(cgroups: &str, mountinfo: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in mountinfo.lines() {
        // 31 23 0:26 /root /mount/point rw,... - cgroup2 cgroup rw,nsdelegate
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let left: Vec<&str> = left.split(' ').collect();
        let right: Vec<&str> = right.split(' ').collect();
        let (Some(root), Some(mount), Some(kind)) = (left.get(3), left.get(4), right.first()) else {
            continue;
        };
        let options = right.get(2).copied().unwrap_or("");
        let has_memory = |list: &str| list.split(',').any(|c| c == "memory");
        let (ours, file) = match *kind {
            "cgroup2" => (cgroups.lines().find_map(|l| l.strip_prefix("0::")), "memory.max"),
            "cgroup" if has_memory(options) => {
                let ours = cgroups.lines().find_map(|l| {
                    let mut fields = l.splitn(3, ':').skip(1);
                    fields.next().filter(|controllers| has_memory(controllers))?;
                    fields.next()
                });
                (ours, "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let Some(ours) = ours else { continue };
        let below = match ours.strip_prefix(*root) {
            Some(below) if *root == "/" || below.is_empty() || below.starts_with('/') => below,
            // Our cgroup is outside of what is mounted: the top of it is the best we can see.
            _ => "",
        };
        let mount = Path::new(mount);
        let mut directory = mount.join(below.trim_start_matches('/'));
        if *kind == "cgroup" {
            // It has the least of all limits above, those that are not mounted here too.
            files.push(directory.join(STAT));
        }
        loop {
            files.push(directory.join(file));
            if directory == mount || !directory.pop() {
                break;
            }
        }
    }
    files
}

fn cgroup_limit(read: &dyn Fn(&Path) -> Option<String>) -> Option<MemoryLimit> {
    let cgroups = read(Path::new("/proc/self/cgroup"))?;
    let mountinfo = read(Path::new("/proc/self/mountinfo"))?;
    let limit = |file: PathBuf| {
        let text = read(&file)?;
        let number = match file.ends_with(STAT) {
            true => text.lines().find_map(|line| line.strip_prefix("hierarchical_memory_limit "))?,
            false => &text,
        };
        // "max" is no number, and version 1 says 2^63 rounded down to a page.
        let bytes = number.trim().parse().ok().filter(|bytes| *bytes < 1 << 60)?;
        Some(MemoryLimit { bytes, source: Source::Cgroup(file) })
    };
    limit_files(&cgroups, &mountinfo).into_iter().filter_map(limit).min_by_key(|limit| limit.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_in<'a>(files: &'a [(&'a str, &'a str)]) -> Option<(u64, String)> {
        let read =
            |path: &Path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| (*text).to_owned());
        let found = cgroup_limit(&read)?;
        let Source::Cgroup(file) = found.source else { panic!("not a cgroup") };
        Some((found.bytes, file.display().to_string()))
    }

    #[test]
    fn version_2_takes_the_smallest_limit_on_the_way_up() {
        let files = [
            ("/proc/self/cgroup", "0::/user.slice/job\n"),
            ("/proc/self/mountinfo", "31 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"),
            ("/sys/fs/cgroup/user.slice/job/memory.max", "max\n"),
            ("/sys/fs/cgroup/user.slice/memory.max", "1000000\n"),
        ];
        assert_eq!(find_in(&files), Some((1_000_000, "/sys/fs/cgroup/user.slice/memory.max".to_owned())));
    }

    #[test]
    fn version_1_in_a_container_without_a_cgroup_namespace() {
        let files = [
            ("/proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n"),
            ("/proc/self/mountinfo", "9 8 0:3 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
        ];
        assert_eq!(find_in(&files).unwrap().0, 512 << 20);
    }

    #[test]
    fn no_limit_is_no_limit() {
        let files = [
            ("/proc/self/cgroup", "4:memory:/\n0::/\n"),
            (
                "/proc/self/mountinfo",
                "9 8 0:3 / /cg/memory rw - cgroup cgroup rw,memory\n9 8 0:3 / /cg/u rw - cgroup2 cgroup2 rw\n",
            ),
            ("/cg/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(find_in(&files), None);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(find().unwrap().bytes > 1 << 20);
        assert_eq!(mem_total("MemFree: 3 kB\nMemTotal:        2048 kB\n"), Some(2 << 20));
    }
}
