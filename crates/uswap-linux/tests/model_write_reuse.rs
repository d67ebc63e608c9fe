//! One anonymous page through random lives: whoever has it, and who had to be given a copy, against a plain list.

use std::collections::BTreeSet;

use proptest::prelude::*;
use uswap_linux::anon_page::{AnonPage, Process, Pte, Surroundings, Touched};
use uswap_linux::write_reuse::ReuseEra;

const CASES: u32 = 10_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    Fork(usize),
    Exit(usize),
    SwapOut,
    Written,
    DropClean,
    Touch(usize, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => any::<usize>().prop_map(Step::Fork),
        1 => any::<usize>().prop_map(Step::Exit),
        3 => Just(Step::SwapOut),
        2 => Just(Step::Written),
        2 => Just(Step::DropClean),
        8 => (any::<usize>(), any::<bool>()).prop_map(|(who, write)| Step::Touch(who, write)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn a_page_has_the_owners_that_a_plain_list_has(
        era in 0..ReuseEra::ALL.len(),
        around in any::<[bool; 3]>(),
        slow_writes in any::<bool>(),
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let era = ReuseEra::ALL[era];
        let [synchronous, stable_writes, swap_is_full] = around;
        let mut page = AnonPage::new(era, Surroundings { synchronous, stable_writes, swap_is_full });
        let mut owners = vec![0];
        let mut mapped = BTreeSet::from([0]);
        for step in steps {
            if owners.is_empty() {
                break;
            }
            let who = match step {
                Step::Fork(who) | Step::Exit(who) | Step::Touch(who, _) => owners[who % owners.len()],
                _ => owners[0],
            };
            match step {
                Step::Fork(_) if owners.len() < 8 => {
                    let child = page.fork(Process(who)).unwrap();
                    owners.push(child.0);
                    if mapped.contains(&who) {
                        mapped.insert(child.0);
                    }
                }
                Step::Fork(_) => {}
                Step::Exit(_) => {
                    page.exit(Process(who));
                    owners.retain(|&owner| owner != who);
                    mapped.remove(&who);
                }
                Step::SwapOut => {
                    page.swap_out();
                    mapped.clear();
                    if !slow_writes {
                        page.written();
                    }
                }
                Step::Written => page.written(),
                Step::DropClean => page.drop_clean(),
                Step::Touch(_, write) => {
                    let shared = owners.len() > 1;
                    match page.touch(Process(who), write) {
                        Touched::Copied => {
                            prop_assert!(write);
                            owners.retain(|&owner| owner != who);
                            mapped.remove(&who);
                        }
                        Touched::Mapped | Touched::NoFault => {
                            prop_assert!(!(write && shared), "a shared page was written");
                            mapped.insert(who);
                        }
                    }
                }
            }
            prop_assert_eq!(page.check(), Ok(()));
            prop_assert_eq!(page.mapped() as usize, mapped.len());
            prop_assert_eq!((page.mapped() + page.swap_count()) as usize, owners.len());
            prop_assert!(owners.iter().all(|&owner| page.pte(Process(owner)) != Pte::Elsewhere));
        }
        // Only counting the cache's reference, or a write in progress, makes the only owner copy.
        if era != ReuseEra::From5_9 && !slow_writes {
            prop_assert_eq!(page.events().copies_of_own, 0);
        }
    }
}
