//! The harness of the end-to-end tests: runs a program without uswap, then under `uswap run`, and compares.
//!
//! Every process that a test starts is bounded in time, watched from outside (memory of the whole tree, every
//! 20 ms), and killed by its process id only, with its descendants, when the test ends early. A test that
//! cannot run says why on standard error; where `USWAP_E2E_STRICT` is set (CI), a missing package is a failure.
//!
//! Environment:
//!
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `USWAP_BIN` | the `uswap` to test | built by `cargo build --release -p uswap-cli` |
//! | `USWAP_E2E_REPEAT` | runs of each program under uswap | 1 (a full run: 10) |
//! | `USWAP_E2E_KILLS` | kills in `kill.rs` | 60 (a full run: 200) |
//! | `USWAP_E2E_FULL` | real programs at full size, as in a full run | unset: some seconds each |
//! | `USWAP_E2E_SEED` | seed of everything random | from the clock, printed |
//! | `USWAP_E2E_TIME_LIMIT` | seconds that one run of a program may take at most | as each test says |
//! | `USWAP_E2E_TMP` | where temporary directories are made | the system's |
//! | `USWAP_E2E_BARE` | run everything without uswap, to check the tests themselves | unset |
//! | `USWAP_E2E_STRICT` | a missing package fails instead of skipping | unset |
//! | `USWAP_E2E_SKIPPED` | file to which each skipped test adds a line | unset |
#![forbid(unsafe_code)]

mod build;
mod charge;
mod compare;
mod huge_page_settings;
mod kernel_swap;
mod launch;
mod need;
mod random;
mod settings;
mod stats;
mod temp;
mod tree;

pub use build::{c_library, c_library_with, c_program, c_static_program, script};
pub use charge::{Charges, need_charges};
pub use compare::{Share, compare, record};
pub use huge_page_settings::Settings;
pub use kernel_swap::{KernelSwap, MemoryCgroup, SwapKind};
pub use launch::{Budget, Finished, Launch, Running};
pub use need::{is_root, need, skip};
pub use random::Random;
pub use settings::{bare_only, kills, repeat, seed, sized, uswap_binary};
pub use stats::Stats;
pub use temp::TempDir;
pub use tree::{ProcessMemory, Sample, Samples, is_alive, kill_process, member_of, name_of, start, tool};

/// Bytes in a mebibyte.
pub const MIB: u64 = 1 << 20;
