//! What the monitor of a process has last told of its memory: its forked children have that, too.

use std::sync::atomic::Ordering::Relaxed;

use uswap_system::atomic::{AtomicU32, AtomicU64};

/// What the monitor of a process has last told: of a forked process its child finds it, as its parent's.
pub struct LastTold {
    /// Who told it: the process's id, and its [`Holder`](crate::group::Holder) as a word.
    pub(crate) process: AtomicU32,
    pub(crate) holder: AtomicU64,
    pub(crate) changes: AtomicU64,
    pub(crate) private_pages: AtomicU64,
}

impl LastTold {
    pub(crate) const fn nothing() -> LastTold {
        LastTold {
            process: AtomicU32::new(0),
            holder: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            private_pages: AtomicU64::new(0),
        }
    }

    /// In a forked child whose memory is no copy of its parent's, as in a model.
    pub fn copies(&self, parent: &LastTold) {
        self.process.store(parent.process.load(Relaxed), Relaxed);
        self.holder.store(parent.holder.load(Relaxed), Relaxed);
        self.changes.store(parent.changes.load(Relaxed), Relaxed);
        self.private_pages.store(parent.private_pages.load(Relaxed), Relaxed);
    }
}
