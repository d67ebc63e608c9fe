//! A supervisor without a program, at the other end of whose connection the test is.

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use uswap_engine::group::{Group, GroupConfig};
use uswap_engine::protocol::Token;
use uswap_sys::launch::SignalFd;

use super::super::super::user_anchors::UserAnchors;
use super::super::super::watchdog::OnStall;
use super::super::Shared;
use super::*;

const TOKEN: Token = Token([7; 16]);

fn supervisor(test: &str) -> Supervisor {
    let (group, group_fd) = Group::create(&GroupConfig::default()).unwrap();
    let shared = Shared {
        group,
        group_fd,
        proc: uswap_sys::proc::open_root().unwrap(),
        device: None,
        areas: Vec::new(),
        token: TOKEN,
        anchor_pid: 0,
    };
    let listener = protocol::listen(format!("uswap-test-{test}-{}", std::process::id()).as_bytes()).unwrap();
    let signals = SignalFd::new(&[libc::SIGCHLD]).unwrap();
    Supervisor::new(shared, UserAnchors::new("agent".into()), listener, signals, true, OnStall::Warn).unwrap()
}

/// Our end, as the supervisor has it, and the other one.
fn connection() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn fill(connection: &OwnedFd) {
    while protocol::send(connection, &Message::Refused(Refusal::Full), &[]).is_ok() {}
}

#[test]
fn who_cannot_be_welcomed_is_refused() {
    let mut supervisor = supervisor("unwelcome");
    let (ours, _theirs) = connection();
    fill(&ours);
    assert!(matches!(supervisor.admit(1, Kind::Exec, &ours), Err(Refusal::Resources)));
    assert_eq!(supervisor.shared.group.taken().count(), 0, "the slot is free again");

    // Of a fork nothing is left that its parent would have to keep pages for.
    let parent = supervisor.shared.group.allot(1).unwrap();
    let generation = supervisor.shared.group.process(parent).life.generation.load(Relaxed);
    supervisor.shared.group.process(parent).fork_begins();
    assert!(matches!(supervisor.admit(2, Kind::Fork { parent, generation }, &ours), Err(Refusal::Resources)));
    assert!(!supervisor.shared.group.process(parent).has_inheritors());
    assert_eq!(supervisor.shared.group.taken().count(), 1);
}
