//! Post: what threads of the program and the monitor say to each other.

use std::sync::OnceLock;
use std::time::Duration;

use uswap_sys::linux::Linux;
use uswap_sys::rusage::peak_rss_bytes;
use uswap_sys::thread::ThreadLife;
use uswap_system::Waited;
use uswap_system::atomic::{AtomicBool, AtomicU32, Ordering::*};
use uswap_system::sync::Word;

use crate::fork_post::{ForkPost, Monitored};
use crate::group::Group;
use crate::host::Host;
use crate::last_told::LastTold;
use crate::shared_mapping::SharedMappings;

/// To join the group costs as much as a little program, so a process without swapped memory does so late. Between looks, fast
/// ones fill 8 MiB.
const JOIN_AFTER: [Duration; 3] = [Duration::from_millis(2), Duration::from_millis(4), Duration::from_millis(8)];
/// Who has had so much, files included, joins at the first look.
const JOIN_ABOVE: u64 = 12 << 20;

/// What threads of the program and the monitor say to each other.
pub struct Post<H> {
    /// Counts what was posted; the monitor sleeps on it.
    pub wake: Word<H>,
    /// The monitor has ended, or never ran: nobody answers.
    pub inert: AtomicBool,
    /// The monitor's thread.
    pub monitor: ThreadLife,
    /// This process's slot and its generation, for its children.
    pub index: AtomicU32,
    /// See `index`.
    pub generation: AtomicU32,
    /// The group that it is in; that of the parent in a child that has not joined.
    pub group: OnceLock<&'static Group>,
    /// What the monitor has last told of the process's memory, for its children.
    pub last_told: LastTold,
    /// Shared memory that its threads are about to map.
    pub shared_mappings: SharedMappings<H>,
    /// Forks.
    pub fork: ForkPost<H>,
}

impl<H: Host> Post<H> {
    /// Nothing posted.
    pub const fn new() -> Post<H> {
        Post {
            wake: Word::new(0),
            inert: AtomicBool::new(false),
            monitor: ThreadLife::new(),
            index: AtomicU32::new(u32::MAX),
            generation: AtomicU32::new(0),
            group: OnceLock::new(),
            last_told: LastTold::nothing(),
            shared_mappings: SharedMappings::new(),
            fork: ForkPost::new(),
        }
    }

    /// Wakes the monitor.
    pub fn ring(&self) {
        self.wake.atomic().fetch_add(1, AcqRel);
        self.wake.wake_all();
    }

    /// Program thread: an mremap was refused. Waits until adopted memory does not end within a mapping; whether it is worth
    /// another try.
    pub fn ask_for_whole_mappings(&self) -> bool {
        let notices = H::notices();
        notices.has_engine() && notices.whole_mappings.ask(|| self.ring(), || self.is_inert())
    }
}

impl<H: Host> Monitored for Post<H> {
    fn birth_begins(&self) {
        if let Some(group) = self.group.get() {
            group.process(self.index.load(Acquire)).birth_begins();
        }
    }

    fn ring(&self) {
        Post::ring(self);
    }

    fn is_inert(&self) -> bool {
        self.inert.load(Acquire)
    }

    fn has_ended(&self) -> bool {
        self.monitor.has_ended()
    }

    /// A seccomp filter may have ended it.
    fn is_deserted(&self) -> bool {
        if !self.is_inert() && self.has_ended() && !self.is_inert() {
            if H::notices().has_engine() {
                H::end(format_args!("its memory is partly swapped out, and the agent's thread has been ended"));
            }
            self.inert.store(true, Release);
        }
        self.is_inert()
    }
}

impl Post<Linux> {
    /// Monitor, before it joins: most programs that a script runs have ended by then.
    pub(crate) fn linger(&self) {
        for pause in JOIN_AFTER {
            let posted = self.wake.load();
            if self.fork.is_requested() || self.wake.wait(posted, Some(pause)) != Waited::TimedOut {
                return;
            }
            if peak_rss_bytes().is_none_or(|peak| peak > JOIN_ABOVE) {
                return;
            }
        }
    }
}

impl<H: Host> Default for Post<H> {
    fn default() -> Self {
        Self::new()
    }
}
