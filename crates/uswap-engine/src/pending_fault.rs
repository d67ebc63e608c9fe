//! A fault that has been read and not yet served.

use std::time::Instant;

use uswap_core::PageNumber;
use uswap_system::System;
use uswap_system::faults::Message;

/// What serving a fault came to.
#[derive(PartialEq, Eq)]
pub(crate) enum Served {
    /// The thread goes on, or another thread sees to it.
    Done,
    /// An unread event stands in the way.
    AfterEvents,
}

/// A fault that has been read.
#[derive(Clone, Copy)]
pub(crate) struct PendingFault {
    pub page: PageNumber,
    pub write: bool,
    /// The page is there, and protected (`write_protection.rs`).
    pub protected: bool,
    /// Who waits.
    pub thread: Option<u32>,
    /// When it was read.
    pub since: Instant,
    /// No event was unread when the fault had been tried before: the books are up to date for it.
    pub nothing_unread: bool,
}

impl PendingFault {
    /// What was read at `since`, if it is one.
    pub(crate) fn of(message: Message, since: Instant) -> Option<PendingFault> {
        let Message::Fault { addr, write, protected, thread } = message else { return None };
        let page = PageNumber::containing(addr);
        Some(PendingFault { page, write, protected, thread, since, nothing_unread: false })
    }

    /// A fault that nobody sent: a page is to come back because a thread waits for it.
    pub fn wanted<S: System>(page: PageNumber) -> Self {
        Self { page, write: false, protected: false, thread: None, since: S::now(), nothing_unread: false }
    }
}
