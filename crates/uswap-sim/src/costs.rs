//! What the processor needs for each step: one table, `costs.toml`, each price with its source.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::input::from_toml;

const TABLE: &str = include_str!("costs.toml");

/// One price.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Nanoseconds.
    pub ns: u64,
    /// Where the number is from.
    pub source: String,
}

/// The table.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuCosts {
    /// A fault that the kernel serves, without I/O.
    pub fault: Price,
    /// A fault that another thread serves through userfaultfd.
    pub user_fault: Price,
    /// A copy of a page.
    pub copy_page: Price,
    /// Compression of a page.
    pub compress: Price,
    /// Decompression of a page.
    pub decompress: Price,
    /// A page moved with UFFDIO_MOVE, many at a time.
    pub move_page: Price,
    /// One page table entry of a walk.
    pub pte_step: Price,
    /// What a touch of a page on another node costs more than one at home.
    pub remote_touch: Price,
    /// One lookup in the swap cache.
    pub cache_lookup: Price,
}

impl CpuCosts {
    /// The table.
    pub fn table() -> CpuCosts {
        from_toml("costs.toml", TABLE).expect("the built-in table is well-formed")
    }

    /// All prices by name, for a report.
    pub fn rows() -> BTreeMap<String, Price> {
        from_toml("costs.toml", TABLE).expect("the built-in table is well-formed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_price_has_a_source() {
        assert_eq!(CpuCosts::table().copy_page.ns, 180);
        assert!(CpuCosts::rows().values().all(|price| price.source.len() > 10 && price.ns > 0));
    }
}
