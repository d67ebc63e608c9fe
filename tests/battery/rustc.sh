#!/bin/bash
# about: rustc -O on a generated crate of 25 modules; the program's answer and its sum
# group: build
# packages: 
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need rustc
    local unit units
    units=$(sized 25 10)
    {
        for ((unit = 0; unit < units; unit++)); do
            cat <<END
mod unit$unit {
    use std::collections::{BTreeMap, HashMap, VecDeque};
    #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub struct Entry { pub key: String, pub values: Vec<u64>, pub next: Option<Box<Entry>> }
    pub fn work(seed: u64) -> u64 {
        let mut table: BTreeMap<String, Entry> = BTreeMap::new();
        let mut queue: VecDeque<u64> = (0..100).map(|i| i * seed % 1000003).collect();
        while let Some(x) = queue.pop_front() {
            let entry = table.entry(format!("k{}", x % 17)).or_insert_with(|| Entry { key: x.to_string(), values: vec![], next: None });
            entry.values.push(x + $unit);
        }
        let counts: HashMap<u64, usize> = table.values().map(|e| (e.values.iter().sum::<u64>() % 7, e.key.len())).collect();
        counts.keys().sum::<u64>() + table.values().cloned().max().map_or(0, |e| e.values[0])
    }
}
END
        done
        echo 'fn main() { let mut sum = 0u64;'
        for ((unit = 0; unit < units; unit++)); do echo "sum = sum * 31 % 1000003 + unit$unit::work($unit + 3);"; done
        echo 'println!("{sum}"); }'
    } >main.rs
}

work() {
    made=made.$$
    trap 'rm -rf "$made"' EXIT
    mkdir "$made"
    rustc --edition 2021 -C debuginfo=1 -C codegen-units=4 -o "$made/program" main.rs >&2
    "$made/program"
    sum <"$made/program"
}

main "$@"
