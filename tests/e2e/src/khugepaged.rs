//! The kernel's khugepaged, working without a pause for the time of one test. It is the whole machine's.

use std::fs;
use std::path::{Path, PathBuf};

use crate::kernel_swap::cannot;

const SETTINGS: &str = "/sys/kernel/mm/transparent_hugepage/khugepaged";
/// What makes it do so.
const WITHOUT_A_PAUSE: [(&str, &str); 3] =
    [("scan_sleep_millisecs", "0"), ("alloc_sleep_millisecs", "0"), ("pages_to_scan", "65536")];

/// Works without a pause until this is dropped.
pub struct Khugepaged {
    before: Vec<(PathBuf, String)>,
}

impl Khugepaged {
    /// `None` where that cannot be had: the test has said why and must return; in CI that is a failure instead.
    pub fn hurried() -> Option<Khugepaged> {
        // Dropped on an error, it puts back what was changed.
        let mut khugepaged = Khugepaged { before: Vec::new() };
        for (name, value) in WITHOUT_A_PAUSE {
            let path = Path::new(SETTINGS).join(name);
            let changed = fs::read_to_string(&path).and_then(|before| {
                fs::write(&path, value)?;
                khugepaged.before.push((path.clone(), before));
                Ok(())
            });
            if let Err(error) = changed {
                cannot(&format!("{}: {error}", path.display()));
                return None;
            }
        }
        Some(khugepaged)
    }
}

impl Drop for Khugepaged {
    fn drop(&mut self) {
        for (path, before) in &self.before {
            let _ = fs::write(path, before.trim());
        }
    }
}
