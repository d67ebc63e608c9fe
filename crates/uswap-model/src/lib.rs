//! A model of Linux for the processes of one group, with a scheduler that goes by a seed.
//!
//! It implements [`uswap_system::System`], so that the engine that runs on Linux runs on it as it is. Everything that may come in
//! one order or another does so by a seed: the same seed gives the same run. What it says of Linux is checked against the real
//! kernel by `tests/real_kernel`.
//!
//! - The scheduler: [`world`] (what there is, and the loop), [`scheduler`] (who goes on), [`switching`] (by which rule),
//!   [`waits`] (asleep, and woken), [`clock`], [`coroutine`];
//! - memory: [`mm`], [`vma`], [`pte`], [`page_content`], [`host_memory`] (frames, which are real);
//! - userfaultfd: [`userfaultfd_ctx`] (messages), [`registration`], [`fill`], [`move_pages`];
//! - system calls of the program: [`user_mode`] (the list), [`touch`], [`mmap`], [`munmap`], [`mremap`], [`madvise`], [`protect`],
//!   [`dup_mmap`] (fork); [`oracle`]: what each page must read as;
//! - memory that processes share: [`shmem`], with the shared-memory server of `uswap-shmem` on it;
//! - what the kernel does by itself: [`background`];
//! - the engine in its processes: [`model_host`], [`hooks`] (what is done in the place of the agent), [`tree`] (the supervisor's side);
//! - [`soak`]: random programs under the engine;
//! - what the engine asks: [`system`], [`faults`], [`looks`], [`supervisor`].
//!
//! Others' schedulers were looked at first. shuttle and loom bring their own locks and atomics, and know neither time nor
//! processes that are killed and leave half of their work behind in shared memory; loom explores exhaustively, which a program of
//! a thousand steps is too long for. madsim and turmoil schedule futures; the engine's threads are none, and their faults are
//! in memory, where no future is awaited. What is needed is small: coroutines with stacks (corosensei), who goes on drawn by
//! a seed at each call of the system, and priorities as in PCT (Burckhardt and others, 2010) in some worlds, as shuttle has them.

#![deny(unsafe_code)]

pub mod background;
pub mod chance;
pub mod clock;
pub mod coroutine;
pub mod coverage;
pub mod dup_mmap;
pub mod faults;
pub mod fill;
pub mod frames;
pub mod hooks;
pub mod host_memory;
pub mod looks;
pub mod madvise;
pub mod mm;
pub mod mmap;
pub mod model_host;
pub mod move_pages;
pub mod mremap;
pub mod munmap;
pub mod oracle;
pub mod page_content;
pub mod process;
pub mod protect;
pub mod pte;
pub mod registration;
pub mod replay;
pub mod scheduler;
pub mod shmem;
pub mod soak;
pub mod supervisor;
pub mod switching;
pub mod system;
pub mod touch;
pub mod tree;
pub mod user_mode;
pub mod userfaultfd_ctx;
pub mod violation;
pub mod vma;
pub mod waits;
pub mod world;
pub mod world_config;
mod write_protect;

pub use chance::Chance;
pub use coverage::{Coverage, HAPPENINGS, Happening};
pub use page_content::Content;
pub use system::Model;
pub use violation::{Checker, Violation};
pub use world::{End, Outcome, World};
pub use world_config::WorldConfig;

/// Bytes of a page.
pub use uswap_system::PAGE_SIZE;
