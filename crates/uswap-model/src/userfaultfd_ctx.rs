//! userfaultfd: what is reported, who waits for it, and what is counted meanwhile.
//!
//! A change of the mappings is counted from before the lock is let go until its report was read and its task has gone on, and
//! while anything is counted nothing is filled. Faults are read before events. A thread that is woken takes its unread
//! message along.

use std::collections::VecDeque;
use std::ops::Range;

use uswap_system::PAGE_SIZE;
use uswap_system::faults::{Message, Stop};

use crate::coverage::Happening;
use crate::process::ProcessId;
use crate::scheduler::ThreadId;
use crate::waits::Key;
use crate::world::World;

/// Which userfaultfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserfaultId(pub usize);

/// As what a range is registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// A touch of a missing page is a message.
    Missing,
    /// Pages can be moved there.
    Target,
}

/// A thread that waits for a page, unread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub thread: ThreadId,
    pub page: usize,
    pub write: bool,
    pub protected: bool,
}

/// An event, and the thread that waits until it is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Event {
    pub thread: ThreadId,
    pub message: Message,
}

/// A userfaultfd.
pub struct Userfault {
    /// Whose memory it is for.
    pub process: ProcessId,
    /// Changes of the mappings that are counted.
    pub changing: u32,
    /// What calls have unmapped or moved away since it was last seen that nothing is counted.
    pub(crate) unsettled: Vec<Range<usize>>,
    pub(crate) faults: VecDeque<Fault>,
    pub(crate) events: VecDeque<Event>,
}

impl Userfault {
    pub(crate) fn new(process: ProcessId) -> Userfault {
        Userfault { process, changing: 0, unsettled: Vec::new(), faults: VecDeque::new(), events: VecDeque::new() }
    }

    /// Whether calls are counted.
    pub(crate) fn is_changing(&mut self) -> bool {
        if self.changing == 0 {
            self.unsettled.clear();
        }
        self.changing > 0
    }

    /// Whether there is something to read.
    pub fn has_messages(&self) -> bool {
        !self.faults.is_empty() || !self.events.is_empty()
    }
}

/// What a change of the mappings has to report, in this order.
pub(crate) struct Report {
    pub userfault: UserfaultId,
    pub message: Message,
}

pub(crate) fn unmapped(range: &Range<usize>) -> Message {
    Message::Unmap { start: range.start * PAGE_SIZE, end: range.end * PAGE_SIZE }
}

/// What is not there any more when a call has been reported.
fn leaves(message: &Message) -> Option<Range<usize>> {
    let pages = |start: usize, end: usize| start / PAGE_SIZE..end / PAGE_SIZE;
    match *message {
        Message::Unmap { start, end } => Some(pages(start, end)),
        Message::Remap { from, len, .. } => Some(pages(from, from + len)),
        Message::Remove { .. } | Message::Fault { .. } | Message::Other(_) => None,
    }
}

impl World {
    /// Whose userfaultfd it is, of which nothing is counted: only then anything is filled or moved.
    pub(crate) fn at_rest(&self, id: UserfaultId) -> Result<ProcessId, Stop> {
        let kernel = self.kernel();
        let userfault = &kernel.userfaults[id.0];
        if !kernel.process(userfault.process).is_alive {
            return Err(Stop::ProcessGone);
        }
        if userfault.changing > 0 {
            self.note(Happening::TryLater, 1);
            return Err(Stop::TryLater);
        }
        Ok(userfault.process)
    }

    /// Reads as many messages as fit.
    pub(crate) fn read_messages(&self, id: UserfaultId, out: &mut [Message]) -> usize {
        self.point();
        let mut read_events = Vec::new();
        let mut count = 0;
        let mut kernel = self.kernel_mut();
        let userfault = &mut kernel.userfaults[id.0];
        while count < out.len() {
            if let Some(Fault { thread, page, write, protected }) = userfault.faults.pop_front() {
                let (addr, thread) = (page * PAGE_SIZE, Some(thread.tid()));
                out[count] = Message::Fault { addr, write, protected, thread };
            } else if let Some(event) = userfault.events.pop_front() {
                out[count] = event.message;
                read_events.push(event.thread);
            } else {
                break;
            }
            count += 1;
        }
        drop(kernel);
        self.note(Happening::EventRead, read_events.len());
        for thread in read_events {
            self.wake_thread(thread, Key::Event);
        }
        count
    }

    /// Wakes those who wait for pages of `range`.
    pub(crate) fn wake_range(&self, id: UserfaultId, range: &Range<usize>) {
        let woken = self.wake_those(
            usize::MAX,
            |_, on| matches!(on, Key::Fault(userfault, page) if userfault == id && range.contains(&page)),
        );
        if !woken.is_empty() {
            let faults = &mut self.kernel_mut().userfaults[id.0].faults;
            faults.retain(|fault| !woken.contains(&fault.thread));
        }
        if !woken.is_empty() {
            self.stand_still(self.config.woken_first);
        }
    }

    /// The running thread waits for a page.
    pub(crate) fn wait_for_page(&self, id: UserfaultId, page: usize, write: bool, protected: bool) {
        let thread = self.this_thread();
        self.note(Happening::Fault, 1);
        self.trace(&(page..page + 1), format_args!("faults"));
        self.kernel_mut().userfaults[id.0].faults.push_back(Fault { thread, page, write, protected });
        self.wake_pollers(id);
        self.block(Key::Fault(id, page), None);
        // Whoever woke us has taken the message away, or has read it; a signal has not.
        self.kernel_mut().userfaults[id.0].faults.retain(|fault| fault.thread != thread);
    }

    /// What the running thread's call was about has left: others may have its place. (A call that was refused is about it until it
    /// returns: nobody else knows before that the memory has stayed.)
    pub(crate) fn has_left(&self) {
        let thread = self.this_thread();
        let is_over = |claim: &crate::process::Claim| claim.thread == thread && claim.until_changed;
        self.kernel_mut().process_mut(self.this_process()).claims.retain(|claim| !is_over(claim));
    }

    /// The running thread has changed its mappings and let go of their lock, with each of these counted: reports them one after
    /// the other, and waits until each is read.
    pub(crate) fn report(&self, reports: Vec<Report>) {
        let thread = self.this_thread();
        for Report { userfault, message } in reports {
            // The lock was let go before: others may change their mappings and report that first.
            self.point();
            self.stand_still(self.config.late_reports);
            self.kernel_mut().userfaults[userfault.0].events.push_back(Event { thread, message });
            self.wake_pollers(userfault);
            self.block(Key::Event, None);
            self.stand_still(self.config.late_tasks);
            self.trace(&(0..usize::MAX), format_args!("reported {message:x?}"));
            self.point();
            self.kernel_mut().userfaults[userfault.0].changing -= 1;
        }
    }

    /// With `kernel` changed already: counts what is going to be reported.
    pub(crate) fn count(kernel: &mut crate::world::Kernel, reports: &[Report]) {
        for report in reports {
            let userfault = &mut kernel.userfaults[report.userfault.0];
            userfault.changing += 1;
            userfault.unsettled.extend(leaves(&report.message));
        }
    }

    /// Returns at a moment at which nobody holds the lock of the mappings of this process.
    pub(crate) fn lock_mappings(&self) {
        self.point();
        let process = self.this_process();
        while self.kernel().process(process).mm.readers > 0 {
            self.block(Key::Mappings(process), None);
        }
    }

    pub(crate) fn hold_mappings(&self, process: ProcessId) {
        self.kernel_mut().process_mut(process).mm.readers += 1;
    }

    pub(crate) fn let_go_of_mappings(&self, process: ProcessId) {
        let mut kernel = self.kernel_mut();
        let readers = &mut kernel.process_mut(process).mm.readers;
        *readers = readers.saturating_sub(1);
        drop(kernel);
        self.wake_key(Key::Mappings(process));
    }
}
