//! The file that `uswap run --stats FILE` writes.

use std::path::Path;

use serde_json::Value;

/// One JSON object; see docs/guide.md for its keys.
#[derive(Debug, Clone)]
pub struct Stats(Value);

impl Stats {
    pub(crate) fn read(path: &Path) -> Stats {
        let text = std::fs::read_to_string(path)
            .unwrap_or_else(|error| panic!("no statistics in {}: {error}", path.display()));
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("statistics: {error}:\n{text}"));
        Stats(value)
    }

    /// A number at the top level.
    pub fn number(&self, key: &str) -> u64 {
        self.0[key].as_u64().unwrap_or_else(|| panic!("no number '{key}' in the statistics:\n{:#}", self.0))
    }

    /// A counter of the `vmstat` object.
    pub fn counter(&self, key: &str) -> u64 {
        let value = &self.0["vmstat"][key];
        value.as_u64().unwrap_or_else(|| panic!("no counter '{key}' in the statistics:\n{:#}", self.0))
    }

    /// The whole object.
    pub fn json(&self) -> &Value {
        &self.0
    }

    /// Pages that left memory with content: to the pool, or to an area.
    pub fn pages_swapped_out(&self) -> u64 {
        self.counter("zswpout") + self.counter("pswpout")
    }
}
