//! A process's membership in its group: what it got when it joined.

use std::io;
use std::os::fd::AsFd;

use rustix::thread::LinkNameSpaceType;
use rustix::thread::move_into_link_name_space;
use uswap_sys::linux::{self, Linux};
use uswap_system::{Supervisor, System};

use crate::group::{Group, Holder, ProcessSlot};
use crate::protocol::{Client, HelloError, Kind, Secret, Welcome, keep_uffd, share};

/// How often a process says hello when its connection is closed without a word. When the supervisor ends, that can happen twice:
/// to one that it had accepted, and to the next one, that waited to be. After that nobody listens.
const ATTEMPTS: u32 = 3;

/// Where the group is to be found, and what opens it. Plain data: a forked child uses its parent's copy.
#[derive(Clone, Copy)]
pub struct Rendezvous {
    /// Abstract name of the supervisor's socket.
    pub name: [u8; 64],
    /// How many bytes of `name` count.
    pub name_len: usize,
    /// What the group's processes and their supervisor know.
    pub secret: Secret,
    /// A process that lives in the supervisor's network namespace, if it still lives: it holds the agent's file.
    pub anchor: Option<u32>,
    /// The anchor's network namespace, as long as it could be seen: a process that has mounted a /proc of its own cannot see it.
    pub network: Option<Network>,
}

/// A network namespace, by the device and inode of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network([u64; 2]);

impl Network {
    /// That of the process `anchor`.
    pub fn of(anchor: u32) -> io::Result<Network> {
        Self::at(&format!("/proc/{anchor}/ns/net"))
    }

    fn of_this_thread() -> io::Result<Network> {
        Self::at("/proc/thread-self/ns/net")
    }

    fn at(path: &str) -> io::Result<Network> {
        let stat = rustix::fs::stat(path)?;
        Ok(Network([stat.st_dev, stat.st_ino]))
    }
}

/// Why a process could not join.
#[derive(Debug)]
pub enum JoinError {
    /// The supervisor could not be reached, or did not answer as one.
    Hello(HelloError),
    /// It has ended meanwhile.
    Ended,
    /// What it gave could not be used.
    Io(io::Error),
}

impl std::fmt::Display for JoinError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hello(HelloError::Refused(refusal)) => f.write_str(refusal.text()),
            Self::Hello(HelloError::NoAnswer) => f.write_str("no answer from the supervisor"),
            Self::Ended => f.write_str("the supervisor has ended"),
            Self::Hello(HelloError::Io(error)) | Self::Io(error) => uswap_sys::report::Reason(error).fmt(f),
        }
    }
}

impl JoinError {
    /// Whether the supervisor has ended. A process that may not leave its network namespace cannot see its socket
    /// either, so a refused connection alone says nothing there; such a process runs unmanaged.
    pub fn means_no_supervisor(&self, rendezvous: &Rendezvous) -> bool {
        match self {
            Self::Ended => true,
            Self::Hello(_) => false,
            Self::Io(error) => error.kind() == io::ErrorKind::ConnectionRefused && !in_another_network(rendezvous),
        }
    }
}

/// The anchor's process id, of what LD_PRELOAD names.
pub fn anchor_in(preload: &str) -> Option<u32> {
    // Other libraries may stand in front of it.
    let mut paths = preload.split([':', ' ']).filter_map(|path| path.strip_prefix("/proc/"));
    paths.next()?.split('/').next()?.parse().ok()
}

/// Whether this thread is in another network namespace than the anchor, and so the supervisor.
fn in_another_network(rendezvous: &Rendezvous) -> bool {
    let Some(anchor) = rendezvous.anchor else { return true };
    match (Network::of_this_thread(), Network::of(anchor), rendezvous.network) {
        // By now its number may be another's: in a /proc of another pid namespace, or since it has ended.
        (Ok(own), _, Some(at_start)) => own != at_start,
        (Ok(own), Ok(theirs), None) => own != theirs,
        // Gone with its supervisor.
        (Ok(_), Err(error), None) => error.kind() != io::ErrorKind::NotFound,
        _ => true,
    }
}

/// Connects to the supervisor. The calling thread moves into its network namespace if that is another and the process may:
/// the names of sockets belong to it. The program's threads stay where they are.
fn connect(rendezvous: &Rendezvous) -> io::Result<Client> {
    let name = &rendezvous.name[..rendezvous.name_len];
    match Client::connect(name) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let Some(anchor) = rendezvous.anchor else { return Err(error) };
            let network = std::fs::File::open(format!("/proc/{anchor}/ns/net"));
            let moved =
                network.map(|network| move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)));
            if matches!(moved, Ok(Ok(()))) { Client::connect(name) } else { Err(error) }
        }
        other => other,
    }
}

/// Says hello. A connection that is closed without a word is no sign that the supervisor has ended, as long as somebody listens:
/// it has no room for those who are long silent, and who was stopped before its hello is one.
fn hello(
    rendezvous: &Rendezvous,
    kind: Kind,
    connect: impl Fn() -> io::Result<Client>,
    wait: impl Fn(&Client),
) -> Result<(Client, Welcome), JoinError> {
    let mut client = connect().map_err(JoinError::Io)?;
    let mut attempts = 1;
    loop {
        match client.hello(&rendezvous.secret, kind, &wait) {
            Err(HelloError::NoAnswer) if attempts < ATTEMPTS => attempts += 1,
            other => return other.map(|welcome| (client, welcome)).map_err(JoinError::Hello),
        }
        client = match connect() {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Err(JoinError::Ended),
            other => other.map_err(JoinError::Io)?,
        };
    }
}

/// The membership.
pub struct Member<S: System> {
    /// What all processes of the group share.
    pub group: &'static Group,
    /// This process's slot in it.
    pub index: u32,
    /// How often the slot had been used before.
    pub generation: u32,
    /// The connection to the supervisor, and what it gave.
    pub supervisor: S::Supervisor,
}

impl Member<Linux> {
    /// Joins the group, after an exec or a fork. `wait` comes before an answer of the supervisor's is received.
    pub fn join(rendezvous: &Rendezvous, kind: Kind, wait: impl Fn(&Client)) -> Result<Self, JoinError> {
        let (client, welcome) = hello(rendezvous, kind, || connect(rendezvous), wait)?;
        uswap_sys::proc::set_root(welcome.proc);
        uswap_sys::report::set_agent_stderr(welcome.stderr.as_fd()).map_err(JoinError::Io)?;
        let group: &'static Group = Box::leak(Box::new(Group::open(&welcome.group).map_err(JoinError::Io)?));
        uswap_sys::report::set_ended_word(Some(&group.process(welcome.index).life.ended_by_agent));
        Ok(Member {
            group,
            index: welcome.index,
            generation: welcome.generation,
            supervisor: linux::Supervisor {
                socket: client.into(),
                device: welcome.device,
                stderr: welcome.stderr,
                areas: welcome.areas.into(),
                keep: keep_uffd,
                share,
            },
        })
    }
}

impl<S: System> Member<S> {
    /// This process's slot.
    pub fn slot(&self) -> &'static ProcessSlot {
        self.group.process(self.index)
    }

    /// This process, as others name it.
    pub fn holder(&self) -> Holder {
        Holder { index: self.index, generation: self.generation }
    }

    /// One line for the user, unless he asked for quiet.
    pub fn say(&self, args: std::fmt::Arguments<'_>) {
        if self.group.config().verbosity > 0 {
            self.supervisor.say(args);
        }
    }

    /// One line that the user must see.
    pub fn alarm(&self, args: std::fmt::Arguments<'_>) {
        self.supervisor.say(args);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::protocol::{Message, Received, listen, receive, send};

    fn rendezvous(test: &str) -> (Rendezvous, OwnedFd) {
        let text = format!("uswap-test-{test}-{}", std::process::id());
        let mut name = [0; 64];
        name[..text.len()].copy_from_slice(text.as_bytes());
        let listener = listen(text.as_bytes()).unwrap();
        rustix::io::ioctl_fionbio(&listener, false).unwrap();
        (Rendezvous { name, name_len: text.len(), secret: Secret::of([7; 32]), anchor: None, network: None }, listener)
    }

    fn says_hello(rendezvous: &Rendezvous) -> Result<u32, JoinError> {
        hello(rendezvous, Kind::Exec, || connect(rendezvous), |_| ()).map(|(_, welcome)| welcome.index)
    }

    fn welcome(connection: &OwnedFd) {
        assert!(matches!(receive(connection), Ok(Received::Message(Message::Hello { .. }, _))));
        let file = std::fs::File::open("/dev/null").unwrap();
        let welcome =
            Message::Welcome { index: 5, generation: 2, device: false, areas: 0, proof: Secret::of([7; 32]).answer };
        send(connection, &welcome, &[file.as_fd(); 3]).unwrap();
    }

    #[test]
    fn a_connection_that_is_closed_without_a_word_is_not_the_end_of_the_supervisor() {
        let (rendezvous, listener) = rendezvous("closed");
        let supervisor = std::thread::spawn(move || {
            // Before the hello, or after it; in either case it is not read.
            drop(rustix::net::accept(&listener).unwrap());
            let unread = rustix::net::accept(&listener).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(50));
            drop(unread);
            let connection = rustix::net::accept(&listener).unwrap();
            welcome(&connection);
            for _ in 0..ATTEMPTS {
                drop(rustix::net::accept(&listener).unwrap());
            }
        });
        assert_eq!(says_hello(&rendezvous).unwrap(), 5);
        let error = says_hello(&rendezvous).unwrap_err();
        assert!(!error.means_no_supervisor(&rendezvous), "{error}");
        assert_eq!(error.to_string(), "no answer from the supervisor");
        supervisor.join().unwrap();
    }

    #[test]
    fn a_supervisor_that_ends_before_it_answers_has_ended() {
        let (rendezvous, listener) = rendezvous("ended");
        let supervisor = std::thread::spawn(move || {
            let connection = rustix::net::accept(&listener).unwrap();
            drop(listener);
            drop(connection);
        });
        let error = says_hello(&rendezvous).unwrap_err();
        assert!(error.means_no_supervisor(&rendezvous), "{error}");
        supervisor.join().unwrap();
    }
}
