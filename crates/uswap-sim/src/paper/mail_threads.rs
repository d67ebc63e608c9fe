//! The rows, thread by thread.

use uswap_linux::shmem::OwnerSearch;
use uswap_linux::swap_entry::SwapEntry;
use uswap_linux::try_to_unuse::SwapoffEra;
use uswap_linux::zswap_store::{Compressed, InvalidateRule, LruId, StoreRequest, TreeCosts, Zswap, ZswapConfig};

use super::bystanders::Faults;
use super::calibration::Calibration;
use super::layout::{self, FileOrder, Layout};
use super::machine::{self, Setup};
use super::row::{NOISE, Pair, Row};
use crate::chance::Chance;
use crate::device::{Latency, Profile};

/// What the rows are made with.
pub(super) struct Context {
    pub calibration: Calibration,
    pub seed: u64,
    /// Runs are this much smaller than published where time grows with the number of pages: 1 for the command.
    pub shrink: u64,
}

impl Context {
    pub fn get(&self, name: &str) -> f64 {
        self.calibration.get(name)
    }

    pub fn row(&self, number: u32, test: &'static str, unit: &'static str) -> Row {
        Row {
            number,
            test,
            unit,
            published: None,
            simulated: None,
            noise: NOISE,
            ours: None,
            kind: self.calibration.kind(number),
            note: String::new(),
        }
    }

    /// Nanoseconds of what was done to zswap's trees.
    pub fn trees_ns(&self, costs: TreeCosts) -> f64 {
        let TreeCosts { tests, lookups, locks, .. } = costs;
        tests as f64 * self.get("tree_test_ns")
            + lookups as f64 * self.get("tree_lookup_ns")
            + locks as f64 * self.get("tree_lock_ns")
    }

    /// The device of rows 4 to 6.
    pub fn mysql(&self) -> Profile {
        let nvme = Profile::named("nvme").expect("a built-in device");
        let read_latency = match nvme.read_latency {
            Latency::SpreadUs { sigma, .. } => Latency::SpreadUs { median: self.get("mysql_read_us"), sigma },
            other => other,
        };
        Profile {
            read_latency,
            iops: Some(self.get("mysql_iops")),
            bandwidth_mib_s: Some(self.get("mysql_bandwidth_mib_s")),
            ..nvme
        }
    }

    fn guest(&self) -> Profile {
        Profile {
            read_latency: Latency::FixedUs(self.get("guest_request_us")),
            page_transfer_us: self.get("guest_page_us"),
            iops: Some(self.get("guest_iops")),
            bandwidth_mib_s: None,
            ..Profile::named("virtio").expect("a built-in device")
        }
    }
}

pub(super) fn pair(before: f64, after: f64) -> Option<Pair> {
    Some(Pair { before, after })
}

/// Rows 1 to 3: readahead statistics at swapoff, 2020.
pub(super) fn readahead_statistics(context: &Context) -> Vec<Row> {
    let pages = context.get("guest_pages") as u64 / context.shrink;
    let scale = context.shrink as f64;
    let profile = context.guest();
    let layout = Layout::Runs {
        run: context.get("guest_run_pages"),
        gap: context.get("guest_gap_slots"),
        others: context.get("guest_other_pages") as u64 / context.shrink,
    };
    let faults = Some(Faults {
        bursts_per_second: context.get("guest_bursts_per_second"),
        hits_mean: context.get("guest_hits_per_burst"),
    });
    let memory = || layout::swapped_out(pages, layout, &profile, &mut Chance::stream(context.seed, 10));
    let run = |era, by_address| machine::swapoff(memory(), Setup { era, by_address, faults }, &profile, context.seed);
    let (old, new) = (run(SwapoffEra::V5_2, false), run(SwapoffEra::V5_8, false));
    let ours = machine::our_swapoff(memory(), &profile, context.seed).seconds() * scale;
    let unknown = "how slots lay against addresses, how many of them were free, and what went on meanwhile is not in the mail: \
                   six constants were worked out from these eight numbers";
    let mut rows = Vec::new();
    for (window, test, before, after) in [
        (1, "calls that gave a window of 1", 49_290.0, 1_618.0),
        (2, "calls that gave a window of 2", 527_771.0, 4_960.0),
        (4, "calls that gave a window of 4", 44_151.0, 41_315.0),
        (8, "calls that gave a window of 8", 36_948.0, 103_521.0),
    ] {
        let calls = |ran: &machine::Ran| ran.calls(window) as f64 * scale;
        let note = if window == 1 { unknown.to_owned() } else { String::new() };
        rows.push(Row {
            published: pair(before, after),
            simulated: pair(calls(&old), calls(&new)),
            note,
            ..context.row(1, test, "calls")
        });
    }
    rows.push(Row {
        published: pair(22.09, 12.19),
        simulated: pair(old.seconds() * scale, new.seconds() * scale),
        ours: Some(ours),
        ..context.row(2, "swapoff, readahead by slot", "s")
    });
    let (old, new) = (run(SwapoffEra::V5_2, true), run(SwapoffEra::V5_8, true));
    rows.push(Row {
        published: pair(18.20, 15.33),
        simulated: pair(old.seconds() * scale, new.seconds() * scale),
        ours: Some(ours),
        ..context.row(3, "swapoff, readahead by address", "s")
    });
    rows
}

/// Rows 4 to 7: windows at swapoff, 2024.
pub(super) fn swapoff_windows(context: &Context) -> Vec<Row> {
    // A run takes as long as it has pages: an eighth of them is enough.
    let smaller = 8 * context.shrink;
    let pages = context.get("mysql_pages") as u64 / smaller;
    let profile = context.mysql();
    let memory = |profile| layout::swapped_out(pages, Layout::Random, profile, &mut Chance::stream(context.seed, 11));
    let run = |era, by_address, profile| {
        machine::swapoff(memory(profile), Setup { era, by_address, faults: None }, profile, context.seed)
    };
    let seconds = |ran: &machine::Ran| ran.seconds() * smaller as f64;
    let by_address = run(SwapoffEra::V5_8, true, &profile);
    let by_slot = run(SwapoffEra::Proposed2024, true, &profile);
    let blocks = run(SwapoffEra::Proposed2024Blocks, true, &profile);
    let ours = machine::our_swapoff(memory(&profile), &profile, context.seed);
    let sequential = machine::sequential_ns(pages, &profile, context.seed) as f64 / 1e9 * smaller as f64;
    let against = format!(
        "ours takes {:.2} times as long as the device needs for the pages one after the other ({sequential:.0} s); the device \
         'nvme' is fitted on rows 4 and 5, which assumes 24 GiB in swap; simulated with 1/{smaller} of the pages",
        seconds(&ours) / sequential
    );
    let small = by_slot.calls(1) + by_slot.calls(2);
    let all: u64 = by_slot.windows.iter().map(|(_, calls)| calls).sum();
    let zram = Profile::named("zram").expect("a built-in device");
    let (zram_by_address, zram_direct) =
        (run(SwapoffEra::V5_8, true, &zram), run(SwapoffEra::Proposed2024, true, &zram));
    vec![
        Row {
            published: pair(540.0, 1800.0),
            simulated: pair(seconds(&by_address), seconds(&by_slot)),
            ours: Some(seconds(&ours)),
            note: against,
            ..context.row(4, "swapoff of a fragmented area: by address, then by slot", "s")
        },
        Row {
            published: pair(540.0, 40.0),
            simulated: pair(seconds(&by_address), seconds(&blocks)),
            ours: Some(seconds(&ours)),
            ..context.row(5, "the same: by address, then blocks of 2 MiB", "s")
        },
        Row {
            simulated: pair(100.0, small as f64 / all as f64 * 100.0),
            note: "published: 'window 1 or 2'; no numbers. Before: all calls".into(),
            ..context.row(6, "calls that give a window of 1 or 2 on a fragmented area", "%")
        },
        Row {
            simulated: pair(seconds(&zram_by_address), seconds(&zram_direct)),
            note: "published: without readahead it is faster; no numbers".into(),
            ..context.row(7, "swapoff of zram: readahead by address, then none", "s")
        },
    ]
}

/// Rows 8 to 11: whose is a slot, 2011. Time grows with the square of the pages, so a small file tells the steps of a large
/// one.
pub(super) fn owner_searches(context: &Context) -> Vec<Row> {
    const FILE_PAGES: f64 = 128_000.0;
    let pages = 4_000 / context.shrink.min(8);
    let profile = Profile::named("hdd").expect("a built-in device");
    let visits = |order, search| {
        let mut memory = layout::swapped_file(pages, order, &profile, &mut Chance::stream(context.seed, 13));
        let files = memory.files_mut();
        let mut visited = 0;
        for slot in 1..=pages {
            let (owner, steps) = files.find_owner(SwapEntry { area: 0, slot }, search);
            let (file, index) = owner.expect("the slot is in use");
            files.swap_in(file, index);
            visited += steps.visited;
        }
        visited as f64
    };
    let seconds = |search, price: &str| {
        let visited = visits(FileOrder::Forward, search);
        visited * (FILE_PAGES / pages as f64).powi(2) * context.get(price) / 1e9
    };
    let vectors = seconds(OwnerSearch::SwapVectors, "visit_vectors_ns");
    let gang_debug = seconds(OwnerSearch::GangLookup, "visit_gang_debug_ns");
    let gang = seconds(OwnerSearch::GangLookup, "visit_gang_ns");
    let locate = seconds(OwnerSearch::LocateItem, "visit_locate_ns");
    let (ours, linear) = swapoff_of_ours(context, pages, FILE_PAGES, &profile);
    let mut rows = vec![
        Row {
            published: pair(30.0, 600.0),
            simulated: pair(vectors, gang_debug),
            ours: Some(ours),
            note: linear,
            ..context.row(8, "swapoff of a 500 MB file: 3.0, then 3.1-rc with lock debugging", "s")
        },
        Row {
            published: pair(1.0, 4.0),
            simulated: pair(1.0, gang / vectors),
            ..context.row(9, "the same without lock debugging", "times")
        },
        Row {
            published: pair(600.0, 60.0),
            simulated: pair(gang_debug, locate),
            note: "the mail's minute is twice 30 s, so the two numbers have different bases".into(),
            ..context.row(10, "the same: 3.1-rc with lock debugging, then locate_item", "s")
        },
    ];
    rows.extend(tags(context, visits));
    rows
}

/// What we take for a file of `file_pages`, in seconds, judged by one of `pages`; and how that was judged.
fn swapoff_of_ours(context: &Context, pages: u64, file_pages: f64, profile: &Profile) -> (f64, String) {
    let drain = |pages: u64| {
        let mut chance = Chance::stream(context.seed, 13);
        let file = layout::swapped_file(pages, FileOrder::Forward, profile, &mut chance);
        machine::our_swapoff(file, profile, context.seed).seconds() * file_pages / pages as f64
    };
    let (ours, of_half) = (drain(pages), drain(pages / 2));
    let linear = format!(
        "visits of {pages} pages counted, times the square of 128,000/{pages}; ours reads and searches nothing, so it is linear: \
         {ours:.1} s by {pages} pages, {of_half:.1} s by half as many (on 'hdd', an assumed laptop disk)"
    );
    (ours, linear)
}

/// Row 11: what a tag on swap entries would have saved, by visits.
fn tags(context: &Context, visits: impl Fn(FileOrder, OwnerSearch) -> f64) -> [Row; 3] {
    let tagged = |test, order| {
        let share = visits(order, OwnerSearch::TaggedLookup) / visits(order, OwnerSearch::GangLookup);
        Row { simulated: pair(1.0, share), ..context.row(11, test, "parts") }
    };
    [
        Row {
            note: "published: expected to halve the time, found erratic and often slower; no numbers. Entries looked at with \
                   the tag, in parts of those without: what it saves is the slots' order in the file. What tests of tags \
                   cost on the way is not known, and comes on top"
                .into(),
            ..tagged("a tag on swap entries, slots in any order", FileOrder::Random)
        },
        tagged("the same, slots in the file's order", FileOrder::Forward),
        tagged("the same, slots against the file's order", FileOrder::Backward),
    ]
}

/// Pages of the zswap tests: 2 GiB.
const ZSWAP_PAGES: u64 = 524_288;

/// Rows 17 to 20: freeing slots under zswap, 2024.
pub(super) fn zswap_trees(context: &Context) -> Vec<Row> {
    let both = |base: &str, enabled, stored| {
        let run = |rule| freeing(context, base, rule, enabled, stored);
        pair(run(InvalidateRule::Locked), run(InvalidateRule::EmptyTest))
    };
    // Nothing is freed on the way out: the rule cannot matter.
    let out = context.get("brd_out_zero_us") * ZSWAP_PAGES as f64;
    let input = "and rows 19 and 20: what the tree costs is from row 23; how often it is asked is counted";
    vec![
        Row {
            published: pair(1_704_580.0, 1_706_642.0),
            simulated: pair(out, out),
            note: "no slot is freed, so no rule is asked".into(),
            ..context.row(17, "swap-out of 2 GiB of zeros", "us")
        },
        Row {
            published: pair(1_906_640.0, 1_845_684.0),
            simulated: both("brd_in_zero_us", false, false),
            note: input.into(),
            ..context.row(18, "swap-in of 2 GiB of zeros, zswap off", "us")
        },
        Row {
            published: pair(1_897_748.0, 1_833_807.0),
            simulated: both("brd_in_zero_zswap_us", true, false),
            ..context.row(19, "swap-in of 2 GiB of zeros, zswap on", "us")
        },
        Row {
            published: pair(4_455_252.0, 4_449_725.0),
            simulated: both("brd_in_random_us", true, true),
            ..context.row(20, "swap-in of 2 GiB of noise, zswap on", "us")
        },
    ]
}

/// Row 23: the variants of the change that were measured.
pub(super) fn zswap_variants(context: &Context) -> Vec<Row> {
    use InvalidateRule::{Combined, EmptyTest, Locked, LookupFirst, NeverEnabled};
    let run = |rule| freeing(context, "brd_variants_us", rule, false, false);
    let variant = |test, published, rule| Row {
        published: pair(1_905_486.0, published),
        simulated: pair(run(Locked), run(rule)),
        ..context.row(23, test, "us")
    };
    vec![
        variant("swap-in of 2 GiB of zeros: xa_empty", 1_831_134.0, EmptyTest),
        variant("the same: zswap_never_enabled", 1_837_212.0, NeverEnabled),
        variant("the same: xas_load", 1_874_603.0, LookupFirst),
        variant("the same: combined", 1_837_831.0, Combined),
    ]
}

/// Microseconds of swapping 2 GiB in, with the price of what each freed slot does to the trees.
fn freeing(context: &Context, base: &str, rule: InvalidateRule, enabled: bool, stored: bool) -> f64 {
    let pages = ZSWAP_PAGES / context.shrink;
    let config = ZswapConfig { enabled, invalidate: rule, ..ZswapConfig::new(64 * ZSWAP_PAGES) };
    let mut zswap = Zswap::new(config);
    zswap.swapon(0, pages + 1);
    let lru = LruId { cgroup: 1, node: 0 };
    let entries = || (1..=pages).map(|slot| SwapEntry { area: 0, slot });
    if stored {
        for first in entries() {
            // Noise does not compress, and is kept as it is.
            let request = StoreRequest { first, lru, pages: &[Compressed::Bytes(4096)] };
            zswap.store(request, &mut ()).expect("the pool has room");
        }
    }
    let before = zswap.tree_costs();
    for entry in entries() {
        if stored {
            // A RAM disk is read past the swap cache, so the entry stays until its slot is freed.
            zswap.load(entry, 1, false, |_| true).expect("the page is there");
        }
        zswap.invalidate(entry);
    }
    let ns = context.trees_ns(zswap.tree_costs() - before);
    ZSWAP_PAGES as f64 * context.get(base) + ns / 1e3 * context.shrink as f64
}
