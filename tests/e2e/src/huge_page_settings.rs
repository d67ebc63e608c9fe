//! How the kernel makes huge pages, for the time of one test. It is the whole machine's.

use std::fs;
use std::path::{Path, PathBuf};

use crate::kernel_swap::cannot;

const PLACE: &str = "/sys/kernel/mm/transparent_hugepage";
/// What makes khugepaged work without a pause.
const WITHOUT_A_PAUSE: [(&str, &str); 3] = [
    ("khugepaged/scan_sleep_millisecs", "0"),
    ("khugepaged/alloc_sleep_millisecs", "0"),
    ("khugepaged/pages_to_scan", "65536"),
];

/// Changed until this is dropped.
pub struct Settings {
    before: Vec<(PathBuf, String)>,
}

impl Settings {
    /// khugepaged works without a pause. `None` where that cannot be had: the test has said why and must return; in CI that is a failure
    /// instead.
    pub fn hurried_khugepaged() -> Option<Settings> {
        Settings::changed(&WITHOUT_A_PAUSE)
    }

    /// Where shared memory gets huge pages. `None` as above.
    pub fn of_huge_shared_pages(wanted: &str) -> Option<Settings> {
        Settings::changed(&[("shmem_enabled", wanted)])
    }

    fn changed(to: &[(&str, &str)]) -> Option<Settings> {
        // Dropped on an error, it puts back what was changed.
        let mut settings = Settings { before: Vec::new() };
        for (name, value) in to {
            let path = Path::new(PLACE).join(name);
            let changed = fs::read_to_string(&path).and_then(|before| {
                fs::write(&path, value)?;
                settings.before.push((path.clone(), before));
                Ok(())
            });
            if let Err(error) = changed {
                cannot(&format!("{}: {error}", path.display()));
                return None;
            }
        }
        Some(settings)
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        for (path, before) in &self.before {
            // Of several words, the one in brackets is the setting.
            let setting = before.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word);
            let _ = fs::write(path, setting.unwrap_or(before.trim()));
        }
    }
}
