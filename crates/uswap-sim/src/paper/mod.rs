//! The published numbers of five threads about Linux swap, and the same from the simulator: every row is a workload that
//! goes through core's rules of the era, with the prices and devices of [`calibration`].

pub mod calibration;
pub mod machine;
mod page;
mod row;
mod threads;

pub use calibration::Calibration;
pub use page::{html, table};
pub use row::{Kind, Pair, Row};

use threads::Context;

/// All rows.
pub fn rows(seed: u64) -> Vec<Row> {
    smaller(seed, 1)
}

/// All rows, from runs that are `shrink` times smaller where time grows with the number of pages: for tests.
pub fn smaller(seed: u64, shrink: u64) -> Vec<Row> {
    let context = Context { calibration: Calibration::table(), seed, shrink };
    let mut rows = threads::readahead_statistics(&context);
    rows.extend(threads::swapoff_windows(&context));
    rows.extend(threads::owner_searches(&context));
    rows.extend(threads::needless_copies(&context));
    rows.extend(threads::zswap_trees(&context));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows whose ratio is to be within 15 % of the published one.
    const CLOSE: [u32; 15] = [2, 3, 4, 5, 8, 9, 10, 12, 13, 14, 15, 16, 18, 19, 20];

    #[test]
    fn every_change_goes_the_published_way() {
        for row in smaller(1, 16) {
            if row.number != 1 {
                assert_ne!(row.direction_is_right(), Some(false), "{row:?}");
            }
        }
    }

    #[test]
    fn ratios_are_near_the_published_ones() {
        for row in smaller(1, 16) {
            let Some(agreement) = row.agreement() else { continue };
            if CLOSE.contains(&row.number) || row.number == 23 {
                assert!((0.85..1.15).contains(&agreement), "{agreement:.3}: {row:?}");
            }
        }
    }

    #[test]
    fn rows_without_numbers_go_the_way_that_was_said() {
        let rows = smaller(1, 16);
        let simulated = |number| rows.iter().find(|row| row.number == number).unwrap().simulated.unwrap();
        assert!(simulated(6).after > 90.0, "nearly all windows are 1 or 2");
        assert!(simulated(7).after < simulated(7).before, "zram is faster without readahead");
    }

    #[test]
    fn ours_is_near_the_device_and_the_same_again() {
        let rows = smaller(1, 16);
        for number in [4, 5] {
            let row = rows.iter().find(|row| row.number == number).unwrap();
            assert!(row.ours.unwrap() < row.simulated.unwrap().after * 1.2, "{row:?}");
        }
        assert_eq!(rows, smaller(1, 16));
    }
}
