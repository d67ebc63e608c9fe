//! A directory that is removed when the test is done with it, however it ends; and the turn of that test.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::settings;

/// Whose turn it is. Tests measure memory and time, and collect orphans: two at once would disturb each other.
static TURN: Mutex<()> = Mutex::new(());

/// A new, empty directory; removed with everything in it on drop. A test makes exactly one, first of all: as long
/// as it exists, no other test of this binary runs.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl TempDir {
    /// Makes one whose name contains `name`.
    pub fn new(name: &str) -> TempDir {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = settings::temporary_root().join(format!("uswap-e2e-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
        // Programs that give up root still write here.
        let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&path, everyone).expect("mode of an own directory");
        TempDir { path, _turn: turn }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path inside.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes a directory inside.
    pub fn subdirectory(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}
