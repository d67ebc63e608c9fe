//! A model test with a planted defect. It must fail: `cargo xtask fuzz` and `ci` look whether it does, and whether they would
//! have said so.

use proptest::prelude::*;
use uswap_core::slots::Slots;

proptest! {
    // What it finds is not kept as a regression.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn canary_a_slot_that_is_not_freed_is_noticed(steps in proptest::collection::vec(any::<bool>(), 1..100)) {
        let mut slots = Slots::new(1024, &[]);
        slots.grant(0);
        let (mut used, mut frees) = (Vec::new(), 0);
        for alloc in steps {
            if alloc {
                used.push(slots.alloc().unwrap());
            } else if let Some(slot) = used.pop() {
                frees += 1;
                // The defect: one is forgotten.
                if frees != 7 {
                    let _ = slots.free(slot);
                }
            }
            prop_assert_eq!(slots.used(), used.len() as u64);
        }
    }
}
