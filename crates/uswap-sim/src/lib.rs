//! uswap-sim rehearses swap on virtual memory, virtual devices and virtual time.
//!
//! Others decide: uswap-linux as the kernel does, uswap-policy by exchangeable policies, uswap-core as the engine does. What is here is the
//! world around them: time ([`clock`]), chance ([`chance`]),
//! devices ([`device`]), prices ([`costs`]), programs ([`workload`], [`trace`]). There are several ways to use it: [`counting`]
//! counts what a replacement policy misses, [`timing`] lets processes share memory and a device on which things go wrong,
//! [`paper`] puts published numbers beside simulated ones, and [`exhaustive`] takes all small schedules of those that only the
//! order of events is about (random ones of the engine itself are run by uswap-model); [`readahead_kinds`] puts
//! ways of reading ahead side by side. The engine is beside all others, as it is: it runs on uswap-model. Everything is a
//! function of its input and one seed: the same input gives the same bytes out. Nothing here asks the machine for anything but
//! files that the user names.
//!
//! ```
//! use uswap_policy::by_name;
//! use uswap_sim::counting;
//! use uswap_sim::device::Profile;
//! use uswap_sim::workload::Spec;
//!
//! // What a program waits that goes round in 100 pages, with memory for 50 and a fast disk.
//! let program = Spec::parse("loop:pages=100,accesses=1000").unwrap();
//! let disk = Profile::named("nvme").unwrap();
//! let mut policy = by_name("second-chance", 50).unwrap();
//! let counts = counting::run(program.accesses(1), &mut *policy, &disk, 1);
//! assert_eq!(counts.reads + 100, counts.misses);
//! assert!(counts.stalled_ns > 0);
//! ```
#![forbid(unsafe_code)]

pub mod chance;
pub mod clock;
pub mod costs;
pub mod counting;
pub mod device;
pub mod exhaustive;
pub mod input;
mod on_engine;
mod page_content;
pub mod paper;
pub mod plot;
pub mod readahead_kinds;
pub mod timing;
pub mod trace;
pub mod violation;
pub mod workload;
