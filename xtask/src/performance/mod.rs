//! docs/performance.md's tables, from what was measured.
//!
//!     cargo xtask performance [FILE]...
//!
//! Each FILE is what `uswap bench --json` wrote. It goes, with the date, into docs/performance.jsonl, in place of what the same
//! settings gave before; then the tables between the marks of docs/performance.md are made anew from there.

mod records;
mod tables;

use std::path::Path;

use crate::run::{root, today};
use records::Records;

const RECORDS: &str = "docs/performance.jsonl";
const PAGE: &str = "docs/performance.md";

/// Takes the reports in, and makes the tables anew.
pub fn run(files: &[&str]) -> Result<(), String> {
    let mut records = Records::read(&root().join(RECORDS))?;
    for file in files {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
        records.add(&text, &today()?).map_err(|why| format!("{file}: {why}"))?;
    }
    if !files.is_empty() {
        records.write()?;
    }
    let page = root().join(PAGE);
    let text = std::fs::read_to_string(&page).map_err(|error| format!("{PAGE}: {error}"))?;
    std::fs::write(&page, tables::into_page(&text, &records)?).map_err(|error| format!("{PAGE}: {error}"))
}

/// Tables of the page that are not what the records give.
pub fn mistakes(root: &Path) -> Result<Vec<String>, String> {
    let records = Records::read(&root.join(RECORDS))?;
    let text = std::fs::read_to_string(root.join(PAGE)).map_err(|error| format!("{PAGE}: {error}"))?;
    let is_made = tables::into_page(&text, &records)? == text;
    Ok(if is_made {
        Vec::new()
    } else {
        vec![format!("{PAGE}: not as `cargo xtask performance` makes it of {RECORDS}")]
    })
}
