//! Rows 21 and 22: a kernel build in too little memory, and what freeing its slots costs under two rules.
//!
//! The build is the built-in workload, so which pages leave and come back, and which die in swap, is reckoned and not known.
//! The seconds before the change are an input: those of the two rows together tell what the build takes without swapping,
//! and how often it swaps. The change is the price of the trees, for as many slots as the build frees.

use std::collections::HashMap;

use uswap_core::units::PAGE_SIZE;
use uswap_linux::swap_entry::SwapEntry;
use uswap_linux::swapped_memory::SwappedMemory;
use uswap_linux::zswap_store::{Compressed, InvalidateRule, LruId, StoreRequest, TreeCosts, Zswap, ZswapConfig};
use uswap_policy::{Access as Touched, by_name};

use super::machine::machine;
use super::mail_threads::{Context, pair};
use super::row::{Kind, Row};
use crate::costs::CpuCosts;
use crate::counting::PageNames;
use crate::device::Profile;
use crate::trace::Access;
use crate::workload::Spec;

/// The build is this much smaller than the real one, and so is its memory.
const SMALLER: u64 = 16;
/// make -j32, as the workload has it.
const JOBS: u64 = 32;
/// What a compressed page takes; it makes no difference here.
const COMPRESSED: Compressed = Compressed::Bytes(1400);
const LRU: LruId = LruId { cgroup: 1, node: 0 };

/// What a build did.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Counts {
    /// Pages that left for swap.
    outs: u64,
    /// Pages that came back from it.
    ins: u64,
    /// Pages of files that were read again.
    files: u64,
    /// Slots freed, by pages that came back and by processes that ended.
    freed: u64,
    /// Costs of freeing them before the change.
    before: TreeCosts,
    /// And after it.
    after: TreeCosts,
}

/// The area, and zswap under both rules side by side.
struct Swap {
    memory: SwappedMemory,
    zswaps: [Zswap; 2],
    zswap_on: bool,
    slots: HashMap<u32, SwapEntry>,
    counts: Counts,
}

impl Swap {
    fn new(pages: u64, zswap_on: bool) -> Self {
        let zswap = |invalidate| {
            let mut zswap = Zswap::new(ZswapConfig { enabled: zswap_on, invalidate, ..ZswapConfig::new(64 * pages) });
            zswap.swapon(0, 2 * pages);
            zswap
        };
        Self {
            memory: machine(2 * pages, &Profile::named("brd").expect("a built-in device")),
            zswaps: [zswap(InvalidateRule::Locked), zswap(InvalidateRule::EmptyTest)],
            zswap_on,
            slots: HashMap::new(),
            counts: Counts::default(),
        }
    }

    fn out(&mut self, page: u32) {
        self.counts.outs += 1;
        let first = self.memory.areas_mut().alloc(0, 0, &mut ()).expect("the area has room");
        self.slots.insert(page, first);
        for zswap in self.zswaps.iter_mut().filter(|_| self.zswap_on) {
            let request = StoreRequest { first, lru: LRU, pages: &[COMPRESSED] };
            zswap.store(request, &mut ()).expect("the pool has room");
        }
    }

    /// A page is in memory again, or nobody's any more.
    fn free(&mut self, page: u32) -> bool {
        let Some(entry) = self.slots.remove(&page) else { return false };
        self.counts.freed += 1;
        for (zswap, costs) in self.zswaps.iter_mut().zip([&mut self.counts.before, &mut self.counts.after]) {
            *costs += zswap.invalidate(entry);
        }
        self.memory.drop_from_cache(entry);
        true
    }
}

/// Builds in `memory_pages`. Pages of process 0 are files, which are read again and never swapped.
fn build(accesses: &[Access], memory_pages: usize, zswap_on: bool) -> Counts {
    let mut names = PageNames::default();
    // The last access of each process, after which its pages are nobody's.
    let mut last: HashMap<u32, usize> = HashMap::new();
    for (index, access) in accesses.iter().enumerate() {
        last.insert(access.process, index);
    }
    let mut pages_of: HashMap<u32, Vec<u32>> = HashMap::new();
    let mut is_file = Vec::new();
    let mut policy = by_name("linux-lru", memory_pages).expect("it is in the list of names");
    let mut swap = Swap::new(accesses.len() as u64 / 4 + 4096, zswap_on);
    for (index, &access) in accesses.iter().enumerate() {
        let page = names.number(access);
        if page as usize == is_file.len() {
            is_file.push(access.process == 0);
            pages_of.entry(access.process).or_default().push(page);
        }
        if let Touched::Miss { evicted } = policy.access(page) {
            if let Some(evicted) = evicted.filter(|&evicted| !is_file[evicted as usize]) {
                swap.out(evicted);
            }
            match swap.free(page) {
                true => swap.counts.ins += 1,
                false => swap.counts.files += u64::from(is_file[page as usize]),
            }
        }
        if access.process != 0 && last[&access.process] == index {
            for page in pages_of.remove(&access.process).unwrap_or_default() {
                policy.forget(page);
                swap.free(page);
            }
        }
    }
    swap.counts
}

/// What one row needs.
struct Setting {
    number: u32,
    test: &'static str,
    memory_gib: u64,
    zswap_on: bool,
    /// Means of the published runs.
    before_s: f64,
    after_s: f64,
    /// How far the runs lie apart, in parts of their mean.
    noise: f64,
}

/// Both rows.
pub(super) fn rows(context: &Context) -> Vec<Row> {
    let settings = [
        Setting {
            number: 21,
            test: "kernel build in 1 GiB, zswap off, system time",
            memory_gib: 1,
            zswap_on: false,
            before_s: 1659.03,
            after_s: 1655.20,
            noise: 0.01,
        },
        Setting {
            number: 22,
            test: "kernel build in 2 GiB, zswap on, system time",
            memory_gib: 2,
            zswap_on: true,
            before_s: 1246.50,
            after_s: 1236.72,
            noise: 0.013,
        },
    ];
    let gib_pages = (1 << 30) / PAGE_SIZE as u64 / SMALLER;
    let job_pages = (context.get("build_job_mib") * f64::from(1 << 20)) as u64 / PAGE_SIZE as u64 / SMALLER;
    let spec = format!("kernel-build:pages={},accesses={}", 2 * JOBS * job_pages, 4_000_000 / context.shrink);
    let accesses: Vec<Access> = Spec::parse(&spec).expect("a good specification").accesses(context.seed).collect();
    let counts = settings
        .each_ref()
        .map(|setting| build(&accesses, (setting.memory_gib * gib_pages) as usize, setting.zswap_on));
    // Seconds before = other + scale * microseconds of swapping: two rows, two unknowns.
    let swapping = [0, 1].map(|row: usize| swapping_us(context, &counts[row], settings[row].zswap_on));
    let scale = (settings[0].before_s - settings[1].before_s) / (swapping[0].0 - swapping[1].0);
    let other_s = settings[0].before_s - scale * swapping[0].0;
    settings
        .iter()
        .zip(counts)
        .zip(swapping)
        .map(|((setting, counts), (before_us, after_us))| Row {
            published: pair(setting.before_s, setting.after_s),
            simulated: pair(other_s + scale * before_us, other_s + scale * after_us),
            noise: setting.noise,
            kind: Kind::Change,
            note: format!(
                "what the build does to swap is not known: the built-in workload with compilers of {} MiB stands for it. \
                 With {other_s:.0} s that do not depend on memory the times before make {:.0} million slots freed. \
                 Published runs lie {:.1} % apart: a smaller change is none",
                context.get("build_job_mib"),
                scale * counts.freed as f64,
                setting.noise * 100.0
            ),
            ..context.row(setting.number, setting.test, "s")
        })
        .collect()
}

/// Microseconds that go into what too little memory makes: swapping, and reading files again; before and after the change.
fn swapping_us(context: &Context, counts: &Counts, zswap_on: bool) -> (f64, f64) {
    let costs = CpuCosts::table();
    // Pages of a compiler are not zeros. What content costs on the way in is the difference of rows 20 and 19; the way out
    // is taken to cost as much more.
    let content = context.get("brd_in_random_us") - context.get("brd_in_zero_zswap_us");
    let compress = if zswap_on { costs.compress.ns as f64 / 1e3 } else { 0.0 };
    let out = counts.outs as f64 * (context.get("brd_out_zero_us") + content + compress);
    let back = counts.ins as f64 * (context.get("brd_in_zero_us") + content);
    let files = counts.files as f64 * costs.fault.ns as f64 / 1e3;
    let swapping = out + back + files;
    (swapping + context.trees_ns(counts.before) / 1e3, swapping + context.trees_ns(counts.after) / 1e3)
}
