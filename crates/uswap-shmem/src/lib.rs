//! Swaps memory that several processes share.
//!
//! Private memory is swapped by threads in its own process. Shared memory has no such process: each that maps it may end at any time,
//! and none can keep the others from writing to a page while it is stored. So one process of the run owns it, the *shared-memory
//! server*. It holds the memory file of each object, and a userfaultfd of each process that has one mapped; their faults and events come
//! to it alone. What happens with a page is decided and done by the engine that swaps private memory, too. It runs here over *windows*:
//! each object is mapped in the server at a place of its own, which is never touched, and whose addresses name the object's
//! pages. Where the engine moves a page out of its process's memory, [`moving`] takes it away from all processes that have it; where it
//! fills a page, it is filled once, for all of them.
//!
//! - [`object`]: objects, and their windows;
//! - [`client`]: the processes that have them mapped, where, and who waits there; [`changes`] and [`trust`]: whether that is known;
//!   [`whereabouts`]: how it is found out;
//! - [`shared`]: both, and how an address of one is told in the other;
//! - [`moving`]: how a page leaves, and how it comes back; [`messages`]: what is read from the processes' userfaultfds;
//!   [`reports`]: how both go on at the same time;
//!   [`robust_mutexes`]: which pages stay meanwhile;
//! - [`system`]: the system on which the engine runs here; [`kernel`]: what this crate asks of the one below, which is Linux ([`linux`]),
//!   or `uswap-model`'s;
//! - [`adoption`]: which objects are managed: those of which every mapping in the tree is known;
//! - [`named`]: what of that is different for segments and files, which have names;
//! - [`server`]: the life of the process.

#![deny(unsafe_code)]

mod adoption;
pub mod changes;
pub mod client;
pub mod kernel;
pub mod linux;
pub mod messages;
pub mod moving;
mod named;
pub mod object;
pub mod reports;
mod robust_mutexes;
pub mod server;
pub mod shared;
pub mod system;
pub mod trust;
mod whereabouts;
