//! What swapoff does in each era, and how fast it is simulated: `cargo bench -p uswap-core --bench swapoff`.
//!
//! An area of a million slots in use, once in address order and once in random order, and a file of 128,000 pages, as in the
//! thread of 2011. Prints operations, device requests, and what searches looked at.

use std::time::Instant;

use uswap_core::{PageNumber, PageRange};
use uswap_linux::do_swap_page::SwapInPath;
use uswap_linux::swap_areas::{SwapAreas, SwapAreasConfig};
use uswap_linux::swap_header::{HEADER_BYTES, SwapHeader};
use uswap_linux::swap_info::AreaTraits;
use uswap_linux::swapin_readahead::Readahead;
use uswap_linux::swapon::{SwapTarget, SwaponRequest};
use uswap_linux::swapped_memory::{AreaTable, SwappedMemory};
use uswap_linux::try_to_unuse::{Op, Place, Swapoff, SwapoffEra, TableDrain};

const PAGES: u64 = 1_000_000;
const FILE_PAGES: u64 = 128_000;
/// A power of three has no factor in common with the number of pages: its multiples lead to every page once, far from the last.
const FACTOR: u64 = 387_420_489;

fn machine(slots: u64) -> SwappedMemory {
    let mut first_page = [0; HEADER_BYTES];
    SwapHeader::make(slots, &[], [0; 16], "bench").expect("the area is large enough").write(&mut first_page);
    let mut areas = SwapAreas::new(SwapAreasConfig::new(1));
    let device = AreaTraits { solid_state: true, block_device: true, ..AreaTraits::default() };
    let target = SwapTarget::new(1, device, &first_page, slots);
    areas.swapon(&SwaponRequest { flags: 0, privileged: true, target: Ok(target) }, &mut ()).expect("a good area");
    SwappedMemory::new(areas)
}

fn mapped(scattered: bool) -> SwappedMemory {
    let mut memory = machine(PAGES.next_multiple_of(512) * 2);
    memory.add_space();
    let mapping = memory.add_mapping(PageRange { start: PageNumber(512), pages: PAGES });
    for index in 0..PAGES {
        let page = if scattered { index * FACTOR % PAGES } else { index };
        memory.swap_out(Place { mapping, page: PageNumber(512 + page) }, 0, &mut ()).expect("there is room");
    }
    memory
}

fn file() -> SwappedMemory {
    let mut memory = machine(FILE_PAGES * 2);
    let file = memory.files_mut().add_file();
    for index in 0..FILE_PAGES {
        memory.files_mut().add_page(file, index);
        memory.swap_out_file(file, index, 0, &mut ()).expect("there is room");
    }
    memory
}

#[derive(Default)]
struct Sum {
    ops: u64,
    submissions: u64,
    requests: u64,
    slots: u64,
    windows: u64,
    searched: u64,
}

impl Sum {
    fn note(&mut self, op: Op) {
        self.ops += 1;
        match op {
            Op::Read { slots, .. } => {
                self.requests += 1;
                self.slots += u64::from(slots);
            }
            Op::Submit => self.submissions += 1,
            Op::Window { .. } => self.windows += 1,
            Op::SearchFiles(steps) => self.searched += steps.visited,
            Op::SearchPtes { ptes } => self.searched += ptes,
            _ => {}
        }
    }

    fn print(&self, name: &str, what: &str, start: Instant) {
        let Self { ops, submissions, requests, slots, windows, searched } = self;
        println!(
            "{name:>13} {what:<16} {slots:>8} slots in {requests:>7} requests, {submissions:>7} submissions; \
             {windows:>7} windows, {searched:>14} searched; {ops:>8} operations in {:.0?}",
            start.elapsed()
        );
    }
}

fn main() {
    for (what, build) in [
        ("address order", (|| mapped(false)) as fn() -> SwappedMemory),
        ("random order", || mapped(true)),
        ("file", file),
    ] {
        for by_address in [false, true] {
            for era in SwapoffEra::ALL {
                let by_slot = era.owner_search().is_some() || what == "file";
                if by_address && by_slot {
                    continue;
                }
                let mut memory = build();
                let area = memory.areas_mut().swapoff_begin(Ok(1), true, u64::MAX).expect("the area is in service");
                let mut path = SwapInPath::new(era.preset(), Readahead::new(3, by_address));
                let (mut swapoff, mut sum, start) = (Swapoff::new(era, area), Sum::default(), Instant::now());
                while let Some(op) = swapoff.next_op(&mut memory, &mut path) {
                    sum.note(op);
                }
                assert_eq!(swapoff.result(), Some(Ok(())));
                let readahead = if by_address { ", by address" } else { "" };
                sum.print(era.name(), &format!("{what}{readahead}"), start);
            }
        }
        let mut memory = build();
        memory.areas_mut().swapoff_begin(Ok(1), true, u64::MAX).expect("the area is in service");
        let (mut drain, mut sum, start) = (TableDrain::new(0), Sum::default(), Instant::now());
        while let Some(op) = drain.next_op(&mut AreaTable::new(&mut memory, 0)) {
            sum.note(op);
        }
        assert_eq!(drain.result(), Some(Ok(())));
        sum.print("ours", what, start);
    }
}
