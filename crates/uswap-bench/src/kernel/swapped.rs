//! What swapping did, and what it cost the kernel's own threads.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;

use super::parse_key;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
