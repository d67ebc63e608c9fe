//! A call that handlers hear while they wait for messages: an eventfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::*};

use rustix::event::{EventfdFlags, eventfd};

/// With a lower limit on descriptors (RLIMIT_NOFILE) each one counts: what only makes things faster goes without.
const DESCRIPTORS_MIN: u64 = 32;

/// Whether each descriptor counts.
pub fn descriptors_are_scarce() -> bool {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.is_some_and(|limit| limit < DESCRIPTORS_MIN)
}

/// A call.
#[derive(Debug)]
pub struct Call {
    /// Readable while somebody calls. `None` where descriptors are scarce: nobody is called then.
    event: Option<OwnedFd>,
    calls: AtomicBool,
}

impl Call {
    /// To be polled, if there is one.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.event.as_ref().map(AsFd::as_fd)
    }
}

impl uswap_system::faults::Call for Call {
    fn new() -> io::Result<Call> {
        let event = match descriptors_are_scarce() {
            true => None,
            false => Some(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
        };
        Ok(Call { event, calls: AtomicBool::new(false) })
    }

    fn make(&self) {
        if let Some(event) = &self.event
            && !self.calls.swap(true, AcqRel)
        {
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }

    fn end(&self) {
        // In this order: a call that is made in between is not heard, and can be made again. The other way round it would be
        // taken back with the old one, and then taken for made for ever.
        if let Some(event) = &self.event {
            let _ = rustix::io::read(event, &mut [0; 8]);
            self.calls.store(false, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use uswap_system::faults::Call as _;

    use super::*;

    fn is_heard(call: &Call) -> bool {
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(call.as_fd().unwrap(), rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Default::default())).unwrap() == 1
    }

    #[test]
    fn a_call_is_heard_until_it_ends() {
        let call = Call::new().unwrap();
        assert!(!is_heard(&call));
        call.make();
        call.make();
        assert!(is_heard(&call));
        call.end();
        assert!(!is_heard(&call));
    }

    /// As handlers do: who hears a call ends it.
    fn hear(call: &Call) {
        if is_heard(call) {
            call.end();
        }
    }

    #[test]
    fn after_calls_that_end_as_they_are_made_the_next_is_heard() {
        for _ in 0..300 {
            let call = Call::new().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| (0..1000).for_each(|_| call.make()));
                for _ in 0..2 {
                    scope.spawn(|| (0..1000).for_each(|_| hear(&call)));
                }
            });
            hear(&call);
            call.make();
            assert!(is_heard(&call), "calls are not heard any more");
        }
    }
}
