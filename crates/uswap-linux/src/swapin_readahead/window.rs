//! How large a readahead window is: the one rule that both kinds of kernel readahead share (`__swapin_nr_pages`).

/// Slots (or pages) to read for a miss, the missed one included. Linux 5.18 to 7.3, and by all signs since 4.14.
///
/// `previous` and `current` are slot offsets or page numbers; `hits` is how many pages that readahead brought were wanted
/// since the last miss; `max` is `2^page_cluster`; `previous_window` is what this function said at the last miss.
///
/// No hits: 2 next to the previous miss, otherwise 1. Some hits: the next power of two from 4 on. At most `max`, but never
/// less than half of the previous window, and that rule comes last: a window may be larger than a `max` that was lowered.
pub fn window(previous: u64, current: u64, hits: u32, max: u32, previous_window: u32) -> u32 {
    let wanted = match hits {
        0 if current.abs_diff(previous) == 1 => 2,
        0 => 1,
        hits => (u64::from(hits) + 2).next_power_of_two().max(4).min(u64::from(u32::MAX)) as u32,
    };
    wanted.min(max).max(previous_window / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_choose_the_window() {
        let far = |hits| window(0, 100, hits, 64, 0);
        assert_eq!(far(0), 1);
        assert_eq!(window(99, 100, 0, 64, 0), 2);
        assert_eq!(window(101, 100, 0, 64, 0), 2);
        for (hits, expected) in [(1..=2, 4), (3..=6, 8), (7..=14, 16), (15..=30, 32), (31..=62, 64)] {
            for hits in hits {
                assert_eq!(far(hits), expected, "{hits} hits");
            }
        }
    }

    #[test]
    fn t3g_the_formula() {
        assert_eq!(window(0, 100, 0, 8, 8), 4);
        assert_eq!(window(0, 100, 0, 8, 4), 2);
        assert_eq!(window(0, 100, 3, 8, 0), 8);
        assert_eq!(window(0, 100, 40, 64, 0), 64);
    }

    #[test]
    fn without_hits_it_halves_down_to_one_or_two() {
        let decay = |adjacent: bool| {
            let mut sizes = alloc::vec![8];
            for _ in 0..4 {
                let previous = if adjacent { 99 } else { 0 };
                sizes.push(window(previous, 100, 0, 8, *sizes.last().unwrap()));
            }
            sizes
        };
        assert_eq!(decay(false), [8, 4, 2, 1, 1]);
        assert_eq!(decay(true), [8, 4, 2, 2, 2]);
    }

    #[test]
    fn half_of_the_last_window_may_exceed_a_lowered_maximum() {
        assert_eq!(window(0, 100, 0, 4, 16), 8);
    }

    #[test]
    fn any_number_of_hits_is_defined() {
        assert_eq!(window(0, 100, u32::MAX, 8, 0), 8);
        assert_eq!(window(0, u64::MAX, u32::MAX, u32::MAX, u32::MAX), u32::MAX);
    }
}
