//! Processes below this one, and what memory they have, as /proc shows it from outside.

use std::fs;

use super::processes::read_proc;

/// A process as /proc/PID/status and /proc/PID/stat show it, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looks {
    /// Its name.
    pub name: String,
    /// Who started it, or adopted it.
    pub parent: u32,
    /// Resident anonymous and shared memory.
    pub counted: u64,
    /// Resident pages of files.
    pub file: u64,
    /// The most that it ever had resident, of all kinds.
    pub most: u64,
    /// Sizes by which a process that shares its parent's memory (vfork) is known.
    pub sizes: [u64; 3],
}

impl Looks {
    /// Whether it has the very memory of its parent, as after vfork.
    pub fn shares_memory_of_its_parent(&self) -> bool {
        look(self.parent).is_some_and(|parent| parent.sizes == self.sizes && parent.most == self.most)
    }
}

/// Children of all threads of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let list = read_proc(task.path().join("children")).unwrap_or_default();
        found.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    found
}

/// Whether the kernel tells that at all (CONFIG_PROC_CHILDREN).
pub fn children_are_told() -> bool {
    fs::exists("/proc/thread-self/children").unwrap_or(false)
}

/// What the process looks like; `None` where it is gone, or has no memory any more.
pub fn look(pid: u32) -> Option<Looks> {
    parse_status(&read_proc(format!("/proc/{pid}/status")).ok()?)
}

fn parse_status(status: &str) -> Option<Looks> {
    let mut looks = Looks::default();
    let mut has_memory = false;
    for line in status.lines() {
        let Some((field, value)) = line.split_once(':') else { continue };
        let bytes =
            || value.trim().strip_suffix(" kB").and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or(0) << 10;
        match field {
            "Name" => looks.name = value.trim().to_owned(),
            "PPid" => looks.parent = value.trim().parse().unwrap_or(0),
            "RssAnon" | "RssShmem" => looks.counted += bytes(),
            "RssFile" => looks.file = bytes(),
            "VmHWM" => looks.most = bytes(),
            "VmSize" => (looks.sizes[0], has_memory) = (bytes(), true),
            "VmData" => looks.sizes[1] = bytes(),
            "VmPTE" => looks.sizes[2] = bytes(),
            _ => {}
        }
    }
    has_memory.then_some(looks)
}

/// Whether the process was forked and has not executed a program since; `None` if that cannot be seen.
pub fn is_before_exec(pid: u32) -> Option<bool> {
    /// PF_FORKNOEXEC of the kernel.
    const FORKED: u64 = 0x40;
    let stat = read_proc(format!("/proc/{pid}/stat")).ok()?;
    // pid (name) state parent group session terminal its_group flags; the name may have anything in it.
    let flags: u64 = stat.rsplit_once(") ")?.1.split(' ').nth(6)?.parse().ok()?;
    Some(flags & FORKED != 0)
}

/// The process's share of anonymous and shared memory: a page that three have counts as a third. Slow: the kernel looks at
/// every page.
pub fn share(pid: u32) -> u64 {
    let text = read_proc(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let kib = lines.filter(|(field, _)| matches!(*field, "Pss_Anon" | "Pss_Shmem"));
    kib.filter_map(|(_, value)| value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()).sum::<u64>() << 10
}

/// Something that changes when a process is made; `None` where that cannot be told.
pub fn last_process() -> Option<String> {
    let text = read_proc("/proc/loadavg").ok()?;
    text.split_ascii_whitespace().nth(4).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_taken_apart() {
        let status = "Name:\ta b\nPPid:\t7\nVmSize:\t 100 kB\nVmHWM:\t 40 kB\nRssAnon:\t 4 kB\nRssFile:\t 8 kB\nRssShmem:\t 12 kB\n\
                      VmData:\t 5 kB\nVmPTE:\t 6 kB\n";
        let expected = Looks {
            name: "a b".to_owned(),
            parent: 7,
            counted: 16 << 10,
            file: 8 << 10,
            most: 40 << 10,
            sizes: [100 << 10, 5 << 10, 6 << 10],
        };
        assert_eq!(parse_status(status), Some(expected));
        assert_eq!(parse_status("Name:\tzombie\nState:\tZ\n"), None);
    }

    #[test]
    fn we_are_seen_as_we_are() {
        let me = std::process::id();
        let block = std::hint::black_box(vec![1u8; 16 << 20]);
        let looks = look(me).unwrap();
        assert!(looks.counted >= 16 << 20 && looks.most >= looks.counted, "{looks:?}");
        assert!(share(me) >= 16 << 20);
        assert_eq!(is_before_exec(me), Some(false));
        assert!(children(std::os::unix::process::parent_id()).contains(&me));
        assert!(last_process().is_some() && children_are_told());
        drop(block);
    }
}
