//! Rows 12 to 16: needless copies of pages that were read back and then written, 2022.

use uswap_core::reclaim::IsolationOutcome;
use uswap_core::{BLOCK_PAGES, Core, CoreConfig, FaultPlan, FrameLeft, PageNumber, PageRange, StoreResult};
use uswap_linux::anon_page::{AnonPage, Process, Surroundings, Touched};
use uswap_linux::write_reuse::ReuseEra;

use super::mail_threads::{Context, pair};
use super::row::{Kind, Pair, Row};
use crate::chance::Chance;

/// The rows.
pub(super) fn rows(context: &Context) -> Vec<Row> {
    let (before, copies_before) = redis(context, ReuseEra::From5_9);
    let (after, copies_after) = redis(context, ReuseEra::From5_18);
    let ratio = |name: &str| (before * context.get(name), after * context.get(name));
    let row = |number, test, unit, published: Option<Pair>, (before, after): (f64, f64)| Row {
        published,
        simulated: pair(before, after),
        ..context.row(number, test, unit)
    };
    // 256 requests are under way all the time.
    let latency = (256.0 / before * 1e3, 256.0 / after * 1e3);
    vec![
        row(12, "redis, operations", "1/s", pair(109_497.0, 155_428.0), (before, after)),
        Row {
            simulated: pair(copies_before, copies_after),
            ours: Some(our_copies()),
            kind: Kind::Predicted,
            note: "copies of pages that had one owner; no numbers published. Ours is counted on its own books: a page that \
                   was read back is its program's, and a write to it is no further fault"
                .into(),
            ..context.row(12, "the same, copies for each page that came back", "copies")
        },
        row(13, "redis, hits", "1/s", pair(8_653.0, 12_283.0), ratio("redis_hit_share")),
        row(14, "redis, misses", "1/s", pair(90_889.0, 129_014.0), ratio("redis_miss_share")),
        Row {
            // It follows from row 12 and shows no more than that.
            kind: Kind::Fitted,
            note: "256 requests in the time of row 12: its change is that of row 12 turned round".into(),
            ..row(15, "redis, latency", "ms", pair(2.297, 1.603), latency)
        },
        row(16, "redis, transferred", "KB/s", pair(44_569.0, 63_186.0), ratio("redis_kb_per_op")),
    ]
}

/// Operations a second under the rules of `era`, and copies of pages with one owner for each page that came back.
fn redis(context: &Context, era: ReuseEra) -> (f64, f64) {
    const OPERATIONS: u64 = 200_000;
    let mut chance = Chance::stream(context.seed, 12);
    let (mut us, mut copies, mut came_back) = (0.0, 0, 0u64);
    for _ in 0..OPERATIONS {
        us += context.get("redis_op_us");
        if !chance.with(context.get("redis_swapped_share")) {
            continue;
        }
        came_back += 1;
        let mut page = AnonPage::new(era, Surroundings::default());
        page.swap_out();
        page.written();
        page.drop_clean();
        // The guest reads, and then writes beside what it has read.
        let _ = page.touch(Process(0), false);
        if page.touch(Process(0), true) == Touched::Copied {
            us += context.get("redis_copy_us");
        }
        copies += page.events().copies_of_own;
    }
    (OPERATIONS as f64 / us * 1e6, copies as f64 / came_back as f64)
}

/// Writes that were more than a write, of pages that ours has read back, in parts of these pages: a block of them leaves for
/// the pool, is read, and is written.
fn our_copies() -> f64 {
    let mut core = Core::new(CoreConfig {
        frame_blocks: 4,
        area_slots: Vec::new(),
        window_max: 16,
        ahead_max: 0,
        ..CoreConfig::default()
    });
    let block = PageRange { start: PageNumber(0), pages: BLOCK_PAGES as u64 };
    core.adopt(block);
    core.found_present(block);
    let isolation = core.isolate().expect("a block is resident");
    let _ = core.isolated(isolation, IsolationOutcome { moved: isolation.mask, ..Default::default() });
    let mut handle = 0;
    while let Some(job) = core.next_store() {
        let _ = core.stored(job, StoreResult::Pool { handle, len: 2000, hash: u128::from(handle) });
        handle += 1;
    }
    assert_eq!(core.swapped_pages(), block.pages, "the whole block is out");
    let pages = || (0..block.pages).map(|index| block.start.plus(index));
    for page in pages() {
        if let FaultPlan::Load(plan) = core.fault(page, false) {
            for (index, load) in plan.pages().iter().enumerate() {
                core.load_done(load, plan.op, FrameLeft::Populated, true, plan.faulting == Some(index));
            }
        }
    }
    let more = pages().filter(|&page| !matches!(core.fault(page, true), FaultPlan::Present)).count();
    more as f64 / block.pages as f64
}
