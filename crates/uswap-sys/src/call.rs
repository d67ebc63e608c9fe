//! A call that handlers hear while they wait for messages: an eventfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use uswap_system::call_word::CallWord;

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
    word: CallWord,
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
        Ok(Call { event, word: CallWord::default() })
    }

    fn make(&self) {
        if let Some(event) = &self.event {
            self.word.make(|| {
                let _ = rustix::io::write(event, &1u64.to_ne_bytes());
            });
        }
    }

    fn end(&self) {
        if let Some(event) = &self.event {
            self.word.end(|| {
                let _ = rustix::io::read(event, &mut [0; 8]);
            });
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
