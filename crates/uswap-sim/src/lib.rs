//! uswap-sim rehearses: the core of uswap on virtual memory, virtual devices and virtual time.
//!
//! Core decides, here as in the engine; what is here is the world around it: time ([`clock`]), chance ([`chance`]),
//! devices ([`device`]), prices ([`costs`]), programs ([`workload`], [`trace`]). There are four ways to use it: [`counting`]
//! counts what a replacement policy misses, [`timing`] lets processes share memory and a device on which things go wrong,
//! [`paper`] puts published numbers beside simulated ones, and [`soak`] runs the books of the engine through adversarial
//! schedules. [`exhaustive`] takes all small ones of those that only the order of events is about. Everything is a function of its input and one seed: the same input gives the same bytes out. Nothing here asks
//! the machine for anything but files that the user names.
#![forbid(unsafe_code)]

pub mod chance;
pub mod clock;
pub mod costs;
pub mod counting;
pub mod device;
pub mod engine_memory;
pub mod exhaustive;
pub mod input;
mod page_content;
pub mod paper;
pub mod plot;
pub mod readahead_kinds;
pub mod soak;
pub mod timing;
pub mod trace;
pub mod violation;
pub mod workload;
