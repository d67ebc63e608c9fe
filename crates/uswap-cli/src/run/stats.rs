//! What a run did: the summary line, and the file of `--stats`.

use std::fs::File;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value, json};
use uswap_engine::group::{Counter, Group, Histogram, LatencyKind, PAGE_BYTES, SlotState};

use super::outside::{Outside, Overrun};
use super::supervise::Shared;
use crate::size;
use crate::swap_area::OpenArea;

/// The largest values seen of what rises and falls. At the end of a run all of it is zero.
#[derive(Clone, Debug, Default)]
pub struct Peaks {
    managed_bytes: u64,
    unmanaged_bytes: u64,
    swapped_bytes: u64,
    kernel_swapped_bytes: u64,
    pool_bytes: u64,
    pool_stored_bytes: u64,
    pool_original_bytes: u64,
    area_used_slots: [u64; uswap_engine::group::AREAS_MAX],
}

impl Peaks {
    /// Looks at the group once.
    pub fn sample(&mut self, group: &Group) {
        use std::sync::atomic::Ordering::Relaxed;
        let mut now = Peaks::default();
        for (_, slot) in group.taken() {
            if slot.state() == SlotState::Dead {
                continue;
            }
            now.managed_bytes += slot.managed.pages.load(Relaxed) * PAGE_BYTES;
            now.unmanaged_bytes += slot.resident.unmanaged_pages.load(Relaxed) * PAGE_BYTES;
            now.swapped_bytes += slot.managed.swapped_pages.load(Relaxed) * PAGE_BYTES;
            now.kernel_swapped_bytes += slot.resident.kernel_swapped_pages.load(Relaxed) * PAGE_BYTES;
            now.pool_bytes += slot.pool.bytes.load(Relaxed);
            now.pool_stored_bytes += slot.pool.stored_bytes.load(Relaxed);
            now.pool_original_bytes += slot.pool.original_bytes.load(Relaxed);
            for (now, used) in now.area_used_slots.iter_mut().zip(&slot.managed.area_used_slots) {
                *now += used.load(Relaxed);
            }
        }
        group.note_resident_bytes(group.resident_pages_at_least() * PAGE_BYTES);
        self.managed_bytes = self.managed_bytes.max(now.managed_bytes);
        self.unmanaged_bytes = self.unmanaged_bytes.max(now.unmanaged_bytes);
        self.swapped_bytes = self.swapped_bytes.max(now.swapped_bytes);
        self.kernel_swapped_bytes = self.kernel_swapped_bytes.max(now.kernel_swapped_bytes);
        self.pool_bytes = self.pool_bytes.max(now.pool_bytes);
        if now.pool_stored_bytes > self.pool_stored_bytes {
            // Both of the same moment, so that their ratio is one that was.
            self.pool_stored_bytes = now.pool_stored_bytes;
            self.pool_original_bytes = now.pool_original_bytes;
        }
        for (peak, now) in self.area_used_slots.iter_mut().zip(now.area_used_slots) {
            *peak = (*peak).max(now);
        }
    }
}

/// The line at the end.
pub fn summary(group: &Group, peaks: &Peaks, overrun: &Overrun) -> String {
    let limit = size::chosen(group.limit_bytes());
    let peak = match group.peak_resident_bytes() {
        0 => format!("budget {limit}"),
        bytes => format!("peak {} of {limit}", size::measured(bytes)),
    };
    let pages = |counter| size::measured(group.count(counter) * PAGE_BYTES);
    let failures = group.count(Counter::ChecksumFailures);
    let lost = group.count(Counter::PoisonedPages);
    let mut parts = vec![peak];
    // Bursts of less are what reclaim answers to.
    if overrun.most_bytes > (group.limit_bytes() / 50).max(1 << 20)
        && let Some(reason) = &overrun.reason
    {
        let (most, seconds) = (size::measured(overrun.most_bytes), overrun.lasted.as_secs_f64());
        parts.push(format!("passed by {most} (for {seconds:.2} s: {reason})"));
    }
    let out = group.count(Counter::Pswpout) + group.count(Counter::SwpoutZero) + group.count(Counter::CleanDropped);
    if out == 0 {
        parts.push("nothing swapped".to_owned());
    } else {
        parts.push(format!("{} swapped out", size::measured(out * PAGE_BYTES)));
        parts.push(format!("{} in", pages(Counter::Pswpin)));
        parts.extend(compressed(group, peaks));
        parts.push(format!("{failures} checksum failures"));
    }
    if peaks.kernel_swapped_bytes > 0 {
        parts.push(format!("up to {} swapped out by the kernel", size::measured(peaks.kernel_swapped_bytes)));
    }
    if lost > 0 {
        parts.push(format!("{lost} pages lost"));
    }
    parts.join(", ")
}

/// How well it was compressed, and how much of it, unless that is nearly all: what does not compress goes to the areas, and
/// says nothing of itself.
fn compressed(group: &Group, peaks: &Peaks) -> Option<String> {
    if peaks.pool_stored_bytes == 0 || peaks.pool_original_bytes == 0 {
        return None;
    }
    let ratio = peaks.pool_original_bytes as f64 / peaks.pool_stored_bytes as f64;
    let percent = group.count(Counter::Zswpout) * 100 / group.count(Counter::Pswpout).max(1);
    Some(match percent {
        90.. => format!("{ratio:.1}x compressed"),
        0 => format!("less than 1 % of it {ratio:.1}x compressed"),
        _ => format!("{percent} % of it {ratio:.1}x compressed"),
    })
}

#[derive(Serialize)]
struct AreaStats {
    path: String,
    size_bytes: u64,
    used_bytes: u64,
    priority: i32,
    direct: bool,
}

/// Percentiles of one kind of fault, in microseconds; null when there was none.
fn percentiles(histogram: &Histogram) -> Value {
    let us = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1000.0);
    let at = |fraction| us(histogram.percentile_ns(fraction));
    let max = (histogram.count() > 0).then(|| histogram.max_ns());
    json!({ "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": us(max) })
}

/// The object that `--stats` writes.
pub fn json(shared: &Shared, peaks: &Peaks, outside: &Outside, exit_status: i32, wall_seconds: f64) -> Value {
    let mut object = totals(&shared.group, peaks, &shared.areas);
    object.extend(seen_from_outside(&shared.group, outside));
    object.insert("exit_status".to_owned(), exit_status.into());
    object.insert("wall_seconds".to_owned(), wall_seconds.into());
    Value::Object(object)
}

/// Whether the budget held.
fn seen_from_outside(group: &Group, outside: &Outside) -> Map<String, Value> {
    let overrun = outside.overrun(group);
    let unmanaged: Vec<Value> = outside
        .unmanaged()
        .into_iter()
        .map(|(pid, outsider)| json!({ "pid": pid, "name": outsider.name, "peak_bytes": outsider.peak_bytes }))
        .collect();
    [
        ("over_limit_bytes", overrun.most_bytes.into()),
        ("over_limit_seconds", overrun.lasted.as_secs_f64().into()),
        ("over_limit_reason", overrun.reason.map(|reason| reason.to_string()).into()),
        ("unmanaged_processes", unmanaged.into()),
    ]
    .map(|(key, value): (&str, Value)| (key.to_owned(), value))
    .into_iter()
    .collect()
}

/// What the group has counted.
fn totals(group: &Group, peaks: &Peaks, areas: &[OpenArea]) -> Map<String, Value> {
    let vmstat: Map<String, Value> =
        Counter::ALL.iter().map(|c| (c.name().to_owned(), Value::from(group.count(*c)))).collect();
    let latency: Map<String, Value> =
        LatencyKind::ALL.iter().map(|kind| (kind.name().to_owned(), percentiles(&group.latency(*kind)))).collect();
    let areas: Vec<AreaStats> = areas
        .iter()
        .zip(peaks.area_used_slots)
        .map(|(area, used)| AreaStats {
            path: area.path.display().to_string(),
            size_bytes: area.config.slots * PAGE_BYTES,
            used_bytes: used * PAGE_BYTES,
            priority: area.config.priority,
            direct: area.config.direct,
        })
        .collect();
    let object = json!({
        "reclaim": group.config().policies.reclaim.name(),
        "readahead": group.config().policies.readahead.name(),
        "memory_limit_bytes": group.limit_bytes(),
        "peak_resident_bytes": group.peak_resident_bytes(),
        "managed_bytes": peaks.managed_bytes,
        "unmanaged_bytes": peaks.unmanaged_bytes,
        "swapped_bytes": peaks.swapped_bytes,
        "kernel_swapped_bytes": peaks.kernel_swapped_bytes,
        "zswap_pool_bytes": peaks.pool_bytes,
        "zswap_stored_bytes": peaks.pool_stored_bytes,
        "areas": areas,
        "vmstat": vmstat,
        "fault_latency_us": latency,
        "checksum_failures": group.count(Counter::ChecksumFailures),
    });
    let Value::Object(object) = object else { unreachable!("made as an object") };
    object
}

/// Writes it over what the file had.
pub fn write(mut file: &File, stats: &Value) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(stats).expect("a tree of numbers and strings");
    text.push('\n');
    file.set_len(0).or_else(|error| if file.metadata()?.is_file() { Err(error) } else { Ok(()) })?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::run::outside::Reason;
    use uswap_engine::group::GroupConfig;

    fn group() -> Group {
        Group::create(&GroupConfig { memory_limit_bytes: 150 << 20, ..GroupConfig::default() }).unwrap().0
    }

    #[test]
    fn the_summary_says_what_happened() {
        let group = group();
        let mut peaks = Peaks::default();
        assert_eq!(summary(&group, &peaks, &Overrun::default()), "budget 150 MiB, nothing swapped");
        let slot = group.process(group.allot(1).unwrap());
        slot.resident.anon_pages.store(100 << 8, Relaxed);
        slot.pool.stored_bytes.store(10 << 20, Relaxed);
        slot.pool.original_bytes.store(21 << 20, Relaxed);
        slot.tally.add(Counter::Pswpout, 200 << 8);
        slot.tally.add(Counter::Zswpout, 190 << 8);
        slot.tally.add(Counter::Pswpin, 300 << 8);
        peaks.sample(&group);
        slot.resident.anon_pages.store(0, Relaxed);
        slot.pool.stored_bytes.store(0, Relaxed);
        peaks.sample(&group);
        let expected = "peak 100.0 MiB of 150 MiB, 200.0 MiB swapped out, 300.0 MiB in, 2.1x compressed, \
                        0 checksum failures";
        assert_eq!(summary(&group, &peaks, &Overrun::default()), expected);
        let lasted = std::time::Duration::from_millis(60);
        let overrun = Overrun { most_bytes: 17 << 20, lasted, reason: Some(Reason::TooFast) };
        let why = "passed by 17.0 MiB (for 0.06 s: memory was filled faster than it could be adopted and swapped), 200";
        assert!(summary(&group, &peaks, &overrun).contains(why), "{}", summary(&group, &peaks, &overrun));
        let little = Overrun { most_bytes: 3 << 20, ..overrun };
        assert_eq!(summary(&group, &peaks, &little), expected);
        slot.resident.kernel_swapped_pages.store(3 << 8, Relaxed);
        peaks.sample(&group);
        slot.resident.kernel_swapped_pages.store(1 << 8, Relaxed);
        peaks.sample(&group);
        assert_eq!(
            summary(&group, &peaks, &Overrun::default()),
            format!("{expected}, up to 3.0 MiB swapped out by the kernel")
        );
    }

    /// Of random data only the few pages that are not random are in the pool.
    #[test]
    fn a_ratio_of_few_pages_is_said_to_be_one() {
        let group = group();
        let mut peaks = Peaks { pool_stored_bytes: 1 << 20, pool_original_bytes: 3 << 20, ..Peaks::default() };
        let slot = group.process(group.allot(1).unwrap());
        slot.tally.add(Counter::Pswpout, 10_000);
        slot.tally.add(Counter::Zswpout, 420);
        assert_eq!(compressed(&group, &peaks).unwrap(), "4 % of it 3.0x compressed");
        slot.tally.add(Counter::Pswpout, 100_000);
        assert_eq!(compressed(&group, &peaks).unwrap(), "less than 1 % of it 3.0x compressed");
        slot.tally.add(Counter::Zswpout, 110_000);
        assert_eq!(compressed(&group, &peaks).unwrap(), "3.0x compressed");
        peaks.pool_stored_bytes = 0;
        assert_eq!(compressed(&group, &peaks), None);
    }

    #[test]
    fn the_file_has_the_keys_that_stay() {
        let group = group();
        group.process(group.allot(1).unwrap()).tally.latency(LatencyKind::Zswap).record(2000);
        let mut stats = totals(&group, &Peaks::default(), &[]);
        stats.extend(seen_from_outside(&group, &Outside::new()));
        let keys: Vec<&str> = stats.keys().map(String::as_str).collect();
        let mut expected = [
            "reclaim",
            "readahead",
            "memory_limit_bytes",
            "peak_resident_bytes",
            "managed_bytes",
            "unmanaged_bytes",
            "swapped_bytes",
            "kernel_swapped_bytes",
            "zswap_pool_bytes",
            "zswap_stored_bytes",
            "areas",
            "vmstat",
            "fault_latency_us",
            "checksum_failures",
            "over_limit_bytes",
            "over_limit_seconds",
            "over_limit_reason",
            "unmanaged_processes",
        ];
        expected.sort_unstable();
        assert_eq!(keys, expected);
        assert_eq!(stats["fault_latency_us"]["zswap"]["max"], 2.0);
        assert!(stats["fault_latency_us"]["area"]["p50"].is_null());
        assert_eq!(stats["vmstat"]["pswpin"], 0);
        assert_eq!((&stats["reclaim"], &stats["readahead"]), (&json!("lists"), &json!("stream")));
    }
}
