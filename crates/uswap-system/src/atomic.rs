//! The words that threads share, and the locks of [`sync`](crate::sync): std's.
//!
//! Built with `--cfg uswap_words` they are those of `words`, where a scheduler decides at each of them who goes on. Whatever
//! shares words without a lock takes them from here.

#[cfg(not(uswap_words))]
pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(uswap_words))]
pub(crate) use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(uswap_words)]
pub use crate::words::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence};
#[cfg(uswap_words)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(uswap_words)]
pub use std::sync::atomic::Ordering;
