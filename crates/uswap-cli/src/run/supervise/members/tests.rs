//! A supervisor without a program, at the other end of whose connection the test is.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, socketpair,
};
use uswap_engine::group::{Group, GroupConfig};
use uswap_engine::protocol::{FDS_MAX, Secret, Token};
use uswap_sys::launch::{self, SignalFd};

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
        secret: Secret { question: TOKEN, answer: Token([8; 16]) },
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

/// Else somebody could hold us up with one whose close takes long. A member may send its userfaultfds.
#[test]
fn strangers_send_no_descriptors() {
    let mut supervisor = supervisor("descriptors");
    let name = format!("uswap-test-descriptors-{}", std::process::id());
    let file = std::fs::File::open("/dev/null").unwrap();
    let connect = || protocol::Client::connect(name.as_bytes()).unwrap();
    let send = |client: &protocol::Client| protocol::keep_uffd(client.as_fd(), file.as_fd());
    let stranger = connect();
    if launch::let_descriptors_in(stranger.as_fd(), true).is_err() {
        return println!("skipped: Linux before 6.16 lets anybody send any");
    }
    let is_refused =
        |result: io::Result<()>| result.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    assert!(is_refused(send(&stranger)), "not accepted yet");
    supervisor.accept();
    assert!(is_refused(send(&stranger)));
    let member = connect();
    supervisor.accept();
    let hello = Message::Hello { token: TOKEN, pid: std::process::id(), kind: Kind::Exec };
    protocol::send(member.as_fd(), &hello, &[]).unwrap();
    let id = supervisor.tree.strangers.last().unwrap().id;
    supervisor.greet(id);
    send(&member).unwrap();
}

/// A process that ends by itself when nobody ends it.
fn somebody() -> Child {
    Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap()
}

fn member_of(supervisor: &mut Supervisor, id: u64, process: &Child, connection: OwnedFd) {
    let pid = rustix::process::Pid::from_child(process);
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    let index = supervisor.shared.group.allot(process.id());
    let room = Some(placeholder(&pidfd).unwrap());
    let connection = Some(connection);
    let (pid, uffds) = (process.id(), Vec::new());
    let member = Member { id, pid, index, pidfd, connection, uffds, room, unwelcomed: None, without_agent: None };
    supervisor.tree.members.push(member);
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

#[test]
fn who_says_nonsense_is_refused_and_not_just_left() {
    let mut supervisor = supervisor("nonsense");
    for (id, nonsense) in [(1, Message::KeepUffd), (2, Message::Refused(Refusal::Full))] {
        let (ours, theirs) = connection();
        supervisor.tree.strangers.push(Stranger::new(id, ours));
        protocol::send(&theirs, &nonsense, &[]).unwrap();
        supervisor.greet(id);
        assert!(matches!(
            protocol::receive(&theirs),
            Ok(Received::Message(Message::Refused(Refusal::WrongVersion), _))
        ));
        assert!(supervisor.tree.strangers.is_empty());
    }
}

#[test]
fn a_place_for_the_userfaultfd_is_kept_until_it_comes() {
    let mut supervisor = supervisor("place");
    let (ours, theirs) = connection();
    let hello = supervisor.admit(1, Kind::Exec, &ours).map(|member| Member { connection: Some(ours), ..member });
    let Ok(member) = hello else { panic!("not admitted") };
    assert!(member.room.is_some());
    supervisor.tree.members.push(member);
    // Nothing that needs it.
    protocol::send(&theirs, &Message::CannotJoin, &[]).unwrap();
    supervisor.hear(1);
    assert!(supervisor.tree.members[0].room.is_some());
    let file = std::fs::File::open("/dev/null").unwrap();
    protocol::keep_uffd(theirs.as_fd(), file.as_fd()).unwrap();
    supervisor.hear(1);
    assert_eq!((supervisor.tree.members[0].uffds.len(), supervisor.tree.members[0].room.is_some()), (1, false));
}

/// Here because there are too many of them for one message, elsewhere because the supervisor has no more.
#[test]
fn whose_userfaultfd_is_lost_is_ended() {
    let mut supervisor = supervisor("lost");
    let mut process = somebody();
    let (ours, theirs) = connection();
    member_of(&mut supervisor, 1, &process, ours);
    let file = std::fs::File::open("/dev/null").unwrap();
    let fds = [file.as_fd(); FDS_MAX + 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX + 8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let bytes = Message::KeepUffd.encode();
    rustix::net::sendmsg(&theirs, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty()).unwrap();
    supervisor.hear(1);
    let until = Instant::now() + Duration::from_secs(10);
    let status = loop {
        match process.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if Instant::now() > until => break None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    if status.is_none() {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    assert_eq!(status.and_then(|status| status.signal()), Some(libc::SIGKILL));
}

#[test]
fn who_could_not_be_welcomed_at_once_is_welcomed_or_refused_later() {
    for is_full in [false, true] {
        let mut supervisor = supervisor(if is_full { "never" } else { "later" });
        let mut process = somebody();
        let (ours, theirs) = connection();
        if is_full {
            fill(&ours);
        }
        member_of(&mut supervisor, 1, &process, ours);
        supervisor.tree.members[0].unwelcomed = Some(Instant::now());
        supervisor.welcome_the_late();
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(supervisor.tree.members[0].unwelcomed.is_none());
        assert_eq!(supervisor.shared.group.taken().count(), usize::from(!is_full));
        let is_welcome = matches!(protocol::receive(&theirs), Ok(Received::Message(Message::Welcome { .. }, _)));
        assert_eq!(is_welcome, !is_full);
        if is_full {
            while let Ok(Received::Message(..)) = protocol::receive(&theirs) {}
            assert!(matches!(protocol::receive(&theirs), Ok(Received::EndOfFile)), "it waits for ever");
        }
    }
    assert!(protocol::may_pass(&rustix::io::Errno::TOOMANYREFS.into()));
    assert!(!protocol::may_pass(&rustix::io::Errno::PIPE.into()));
}

/// A child of vfork may still use the memory of the image that is gone.
#[test]
fn a_userfaultfd_that_was_sent_is_not_lost_when_its_process_says_hello_anew() {
    let mut supervisor = supervisor("anew");
    let mut process = somebody();
    let (ours, theirs) = connection();
    member_of(&mut supervisor, 1, &process, ours);
    let file = std::fs::File::open("/dev/null").unwrap();
    protocol::keep_uffd(theirs.as_fd(), file.as_fd()).unwrap();
    let mut before = supervisor.tree.members.remove(0);
    before.take_what_was_sent();
    assert_eq!((before.uffds.len(), before.room.is_none(), before.connection.is_none()), (1, true, true));
    process.kill().unwrap();
    process.wait().unwrap();
}
