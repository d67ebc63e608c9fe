//! How a process joins its group: on the agent's first thread, which then is the monitor.

use std::sync::atomic::Ordering::Release;
use std::time::Duration;

use uswap_sys::linux::Linux;
use uswap_sys::report::Reason;
use uswap_sys::thread;
use uswap_system::System;

use super::Monitor;
use crate::fork_copy::Inherited;
use crate::host::notices;
use crate::member::{Member, Rendezvous};
use crate::post::Post;
use crate::protocol::{Client, Kind};

/// How long the supervisor may take to answer a process that joins, before that is said.
const WELCOME_PATIENCE: Duration = Duration::from_secs(2);

/// A forked child: its parent has had an engine, or shared memory of which the child must tell.
fn may_have_pages_out() -> bool {
    notices().has_engine() || Linux::shared_forks_are_followed()
}

/// The supervisor may be stopped. A program goes on meanwhile, and its forks need nothing; but for the child of one that
/// swaps, which has pages that nobody can bring in before.
fn wait_for_welcome(post: &Post<Linux>, client: &Client, has_pages_out: bool) {
    if !has_pages_out {
        post.fork.monitor_sleeps(true);
    }
    if !client.is_answered(Some(WELCOME_PATIENCE)) {
        uswap_sys::report::stderr_line(format_args!(
            "uswap: process {} {} its supervisor, which does not answer; is it stopped?",
            std::process::id(),
            if has_pages_out { "waits for" } else { "runs unmanaged without" },
        ));
        client.is_answered(None);
    }
    if !has_pages_out {
        post.fork.monitor_wakes(&[]);
    }
}

/// Joins the group and runs the monitor on the calling thread, which is the agent's first.
pub fn main(post: &'static Post<Linux>, rendezvous: &Rendezvous, kind: Kind) {
    if matches!(kind, Kind::Exec) {
        post.linger();
    }
    post.fork.monitor_wakes(&[]);
    uswap_sys::report::set_ended_word(None);
    // The program's standard error, until there is a way through the supervisor: nothing is said to nobody.
    let stderr = uswap_sys::report::is_for_messages().then_some(2);
    if let Err(error) = thread::unshare_files_and_close(stderr.as_slice()) {
        // A filter of seccomp's that the program has put on itself, for one. What is written to descriptor 2 goes to the program's.
        if stderr.is_some() {
            return cannot_join(post, &format!("it gets no descriptors of its own: {}", Reason(&error)));
        } else if may_have_pages_out() {
            uswap_sys::report::kill_self();
        }
        return leave(post);
    }
    let has_pages_out = may_have_pages_out();
    let joined = Member::<Linux>::join(rendezvous, kind, |client| wait_for_welcome(post, client, has_pages_out));
    let monitor = match joined {
        Ok(member) => Monitor::new(post, member).map_err(|error| Reason(&error).to_string()),
        // The tree ends with its supervisor, also a process that was just about to join.
        Err(error) if error.means_no_supervisor(rendezvous) => uswap_sys::report::kill_self(),
        Err(error) => Err(error.to_string()),
    };
    match monitor {
        Ok(mut monitor) => {
            monitor.inherit(Inherited::take);
            thread::give_back_stack();
            thread::prefer();
            monitor.run()
        }
        Err(error) => cannot_join(post, &error),
    }
}

/// A process could not join its group. A child whose memory is partly swapped out cannot live without: that would read as zeros. Any
/// other goes on first, and then hears of it: its standard error may have no room.
fn cannot_join(post: &Post<Linux>, error: &str) {
    if may_have_pages_out() {
        uswap_sys::report::end(format_args!("its memory is partly swapped out, and it cannot join its group: {error}"));
    }
    leave(post);
    uswap_sys::report::stderr_line(format_args!(
        "uswap: process {} cannot join its group: {error}; it runs unmanaged",
        std::process::id(),
    ));
}

/// The process runs without a monitor from here on.
fn leave(post: &Post<Linux>) {
    post.inert.store(true, Release);
    post.fork.give_up();
}
