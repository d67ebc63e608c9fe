//! Whether the program still gets anywhere: a hang is told from slowness by the processor time of its own threads.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Without progress for so long, a run hangs.
const STALL: Duration = Duration::from_secs(20);
/// Less than this in `STALL` is no progress: an idle runtime's clock threads tick, too.
const PROGRESS: Duration = Duration::from_millis(40);

/// Processor time of the program's threads, threads of uswap not counted.
#[derive(Debug, Default)]
pub struct Progress {
    threads: BTreeMap<u32, u64>,
    /// Growth at each look.
    looks: Vec<(Instant, u64)>,
}

impl Progress {
    /// Looks at all threads of these processes. True when nothing has been done for too long.
    pub fn look(&mut self, processes: &[u32]) -> bool {
        let mut threads = BTreeMap::new();
        for_each_thread(processes, |process, thread, name| {
            if !name.starts_with("uswap") {
                let ran = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat"));
                let ran = ran.ok().and_then(|text| text.split(' ').next()?.parse::<u64>().ok()).unwrap_or(0);
                threads.insert(thread, ran);
            }
        });
        let grown = |(thread, ran): (&u32, &u64)| ran.saturating_sub(self.threads.get(thread).copied().unwrap_or(0));
        let growth = threads.iter().map(grown).sum();
        self.threads = threads;
        self.note(Instant::now(), growth)
    }

    fn note(&mut self, at: Instant, growth_ns: u64) -> bool {
        self.looks.push((at, growth_ns));
        let old_enough = |(when, _): &(Instant, u64)| at.duration_since(*when) >= STALL;
        let Some(last_old) = self.looks.iter().rposition(old_enough) else {
            return false;
        };
        self.looks.drain(..last_old);
        let recent: u64 = self.looks[1..].iter().map(|(_, growth)| growth).sum();
        Duration::from_nanos(recent) < PROGRESS
    }
}

fn for_each_thread(processes: &[u32], mut see: impl FnMut(u32, u32, &str)) {
    for &process in processes {
        for task in std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
            let Ok(thread) = task.file_name().to_string_lossy().parse::<u32>() else {
                continue;
            };
            let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            see(process, thread, name.trim());
        }
    }
}

/// Where each thread is: for whoever has to find out why nothing moves.
pub fn whereabouts(processes: &[u32]) -> String {
    let mut text = String::new();
    for_each_thread(processes, |process, thread, name| {
        let read =
            |file: &str| std::fs::read_to_string(format!("/proc/{process}/task/{thread}/{file}")).unwrap_or_default();
        let stat = read("stat");
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('?');
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{process}/{thread} {name} {state} wchan {} syscall {} ran {}",
            read("wchan"),
            read("syscall").trim(),
            read("schedstat").trim()
        );
    });
    text
}

#[cfg(test)]
mod tests {
    use super::{PROGRESS, Progress, STALL};
    use std::time::{Duration, Instant};

    #[test]
    fn a_stall_is_noticed_only_after_its_time_and_a_little_work_is_not_enough() {
        let begun = Instant::now();
        let mut progress = Progress::default();
        let second = Duration::from_secs(1);
        let busy = PROGRESS.as_nanos() as u64;
        assert!(!progress.note(begun, busy));
        for at in 1..STALL.as_secs() as u32 {
            assert!(!progress.note(begun + second * at, 1000), "second {at}");
        }
        assert!(progress.note(begun + STALL, 1000));
        assert!(!progress.note(begun + STALL + second, busy), "work has begun again");
    }
}
