//! The memory cgroup that a run happens in, of either generation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::take_down::{TakeDown, Undo};
use super::{Unavailable, parse_key, unavailable, unescape_octal};
use crate::rig::quoted;

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

    /// Bytes of shared memory among them.
    pub fn shared_bytes(&self) -> u64 {
        parse_key(&fs::read_to_string(self.path.join("memory.stat")).unwrap_or_default(), "shmem").unwrap_or(0)
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
