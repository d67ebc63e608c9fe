//! Databases: sysbench's OLTP and memtier's key-value load, as page accesses.

use std::collections::VecDeque;

use super::{Spec, Zipf, scattered};
use crate::chance::Chance;
use crate::trace::Access;

/// Rows of 200 bytes: 80 in a page of 16 KiB of the database, which is 4 of ours; so 20 a page.
const ROWS_PER_PAGE: u64 = 20;
/// Rows of a range query.
const RANGE_ROWS: u64 = 100;

fn access(page: u64, write: bool) -> Access {
    Access { process: 0, page, write }
}

/// sysbench oltp_read_write: a transaction is 10 point reads, 4 ranges of 100 rows, and 4 writes. One page in 32 is index.
pub(super) fn sysbench(spec: &Spec, mut chance: Chance) -> impl Iterator<Item = Access> + use<> {
    let pages = spec.pages;
    let index_pages = (pages / 32).max(1);
    let row_pages = (pages - index_pages).max(1);
    let zipf = Zipf::new(row_pages, 0.6);
    let mut transaction: VecDeque<Access> = VecDeque::new();
    std::iter::repeat_with(move || {
        if transaction.is_empty() {
            for query in 0..18 {
                let row = scattered(zipf.draw(&mut chance), row_pages);
                transaction.push_back(access(row * index_pages / row_pages, false));
                let in_range = if (10..14).contains(&query) { RANGE_ROWS / ROWS_PER_PAGE } else { 1 };
                for page in row..(row + in_range).min(row_pages) {
                    transaction.push_back(access(index_pages + page, query >= 14));
                }
            }
        }
        transaction.pop_front().expect("a transaction has accesses")
    })
}

/// memtier_benchmark with its defaults: random keys, ten reads for each write. One page in eight is the index.
pub(super) fn memtier(spec: &Spec, mut chance: Chance) -> impl Iterator<Item = Access> + use<> {
    let pages = spec.pages;
    let index_pages = (pages / 8).max(1);
    let value_pages = (pages - index_pages).max(1);
    let mut value = None;
    std::iter::repeat_with(move || match value.take() {
        Some(access) => access,
        None => {
            let write = chance.happens(1, 11);
            value = Some(access(index_pages + chance.below(value_pages), write));
            access(chance.below(index_pages), false)
        }
    })
}
