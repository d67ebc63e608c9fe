//! The memory cgroup of one run: who is in it, what memory they have, and their end.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Its files have other names in the two versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A cgroup; what is in it is killed, and it is removed, on drop.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    /// Where the first version counts processor time, in a hierarchy of its own.
    cpu: Option<PathBuf>,
    version: Version,
}

impl Cgroup {
    /// Makes one; `limit_bytes` bounds all memory in it, page cache too.
    pub fn new(limit_bytes: Option<u64>) -> Result<Cgroup, String> {
        let mounts =
            std::fs::read_to_string("/proc/self/mounts").map_err(|error| format!("/proc/self/mounts: {error}"))?;
        let (mount, version) = find(&mounts).ok_or("the battery needs a memory cgroup, and none is mounted")?;
        if version == Version::Two {
            // Where it is passed on already, this changes nothing; where it cannot be, the limit below says so.
            let _ = std::fs::write(mount.join("cgroup.subtree_control"), "+memory");
        }
        let name = format!("uswap-battery-{}", std::process::id());
        let path = mount.join(&name);
        std::fs::create_dir(&path)
            .map_err(|error| format!("the battery runs as root, in memory cgroups: {}: {error}", path.display()))?;
        let mut cgroup = Cgroup { path, cpu: None, version };
        if let Some(mount) = find_cpu(&mounts) {
            let cpu = mount.join(name);
            std::fs::create_dir(&cpu).map_err(|error| format!("{}: {error}", cpu.display()))?;
            cgroup.cpu = Some(cpu);
        }
        if let Some(limit_bytes) = limit_bytes {
            let limit = cgroup.path.join(cgroup.name("memory.limit_in_bytes", "memory.max"));
            std::fs::write(&limit, limit_bytes.to_string()).map_err(|error| format!("{}: {error}", limit.display()))?;
        }
        Ok(cgroup)
    }

    fn name(&self, one: &'static str, two: &'static str) -> &'static str {
        match self.version {
            Version::One => one,
            Version::Two => two,
        }
    }

    /// `command`, but started inside: a shell enters the cgroup and becomes the program.
    pub fn enter(&self, command: &Command) -> Command {
        let mut inside = Command::new("/bin/sh");
        let cpu = self.cpu.as_ref().unwrap_or(&self.path);
        inside.arg("-c").arg(r#"echo $$ >"$0/cgroup.procs" && echo $$ >"$1/cgroup.procs" && shift && exec "$@""#);
        inside.arg(&self.path).arg(cpu);
        inside.arg(command.get_program()).args(command.get_args());
        inside
    }

    /// The processes in it.
    pub fn processes(&self) -> Vec<u32> {
        let list = std::fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        list.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Anonymous and shared memory that is resident: what uswap's budget is about.
    pub fn resident_bytes(&self) -> u64 {
        let stat = std::fs::read_to_string(self.path.join("memory.stat")).unwrap_or_default();
        let of = |key: &str| -> u64 {
            let line = stat.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
            line.and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        of(self.name("rss", "anon")) + of("shmem")
    }

    /// Processor time that was used in it, uswap's own too. On a busy machine it tells more than the clock.
    pub fn cpu_seconds(&self) -> f64 {
        if let Some(cpu) = &self.cpu {
            let usage = std::fs::read_to_string(cpu.join("cpuacct.usage")).unwrap_or_default();
            return usage.trim().parse().map_or(0.0, |nanoseconds: f64| nanoseconds / 1e9);
        }
        let stat = std::fs::read_to_string(self.path.join("cpu.stat")).unwrap_or_default();
        let usage = stat.lines().find_map(|line| line.strip_prefix("usage_usec "));
        usage.and_then(|number| number.parse().ok()).map_or(0.0, |microseconds: f64| microseconds / 1e6)
    }

    /// Kills all that is inside, as often as something is.
    pub fn kill(&self) {
        let begun = Instant::now();
        loop {
            let processes = self.processes();
            if processes.is_empty() || begun.elapsed() > Duration::from_secs(20) {
                return;
            }
            // One that has ended meanwhile is what is wanted.
            let _ = Command::new("kill").arg("-9").args(processes.iter().map(u32::to_string)).output();
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.kill();
        let begun = Instant::now();
        for path in [Some(&self.path), self.cpu.as_ref()].into_iter().flatten() {
            // The kernel needs a moment after the last process.
            while let Err(error) = std::fs::remove_dir(path) {
                if begun.elapsed() > Duration::from_secs(10) {
                    eprintln!("cannot remove {}: {error}", path.display());
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// Where the first version of cgroups has its clock of processor time.
fn find_cpu(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (path, kind, options) = (words.next()?, words.next()?, words.next()?);
        let counts = kind == "cgroup" && options.split(',').any(|option| option == "cpuacct");
        counts.then(|| PathBuf::from(path))
    })
}

fn find(mounts: &str) -> Option<(PathBuf, Version)> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (path, kind, options) = (PathBuf::from(words.next()?), words.next()?, words.next()?);
        match kind {
            "cgroup" if options.split(',').any(|option| option == "memory") => Some((path, Version::One)),
            "cgroup2" => {
                let controllers = std::fs::read_to_string(path.join("cgroup.controllers")).ok()?;
                controllers.split_ascii_whitespace().any(|name| name == "memory").then_some((path, Version::Two))
            }
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::{Version, find};
    use std::path::PathBuf;

    #[test]
    fn the_first_version_is_found_by_its_controller() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n";
        assert_eq!(find(mounts), Some((PathBuf::from("/sys/fs/cgroup/memory"), Version::One)));
        assert_eq!(find("proc /proc proc rw 0 0\n"), None);
    }
}
