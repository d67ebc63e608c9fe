//! What a process of the tree and the supervisor say to each other, over one SOCK_SEQPACKET connection.
//!
//! A process says `Hello` once: after exec, or after fork. The answer is `Welcome` with descriptors, or
//! `Refused`, after which the process must stop. Later the process sends its userfaultfds (`KeepUffd`), which
//! the supervisor keeps open until the process has ended: closing the last one would turn swapped-out pages
//! into zeros. The connection itself is a sign of life in both directions: end of file tells the process that
//! its supervisor is gone, and the supervisor that the program image is.
//!
//! A process that has changed its user asks, on a connection of its own, by which path the next program can open the agent
//! (`AskAgent`); the answer is `AgentAt` or `Refused`.
//!
//! The name of the socket is no secret, and free again as soon as the supervisor has ended, which processes that it did not
//! know of may outlive. So each side proves that it is the one that is meant ([`Secret`]), before it gets or gives anything.
//!
//! Every message is one packet of `MESSAGE_BYTES`, little-endian, so a reader never sees half of one. Nothing
//! here allocates: an agent thread may run in a process whose memory it manages.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use uswap_system::Sharing;

use crate::group::AREAS_MAX;

/// Bytes in every message.
pub const MESSAGE_BYTES: usize = 64;
/// Descriptors that one message can carry: the group, a userfaultfd device, standard error, the areas.
pub const FDS_MAX: usize = 4 + AREAS_MAX;
/// Grows with every change of the messages.
const VERSION: u32 = 5;
/// How long an exec waits to be told where the agent is: after that the program runs unmanaged.
const AGENT_PATIENCE: Duration = Duration::from_secs(5);

/// Environment variable that names the socket (abstract).
pub const SOCKET_VARIABLE: &str = "USWAP_SOCKET";
/// Environment variable with the secret, in hexadecimal.
pub const TOKEN_VARIABLE: &str = "USWAP_TOKEN";

/// What proves something to the other side: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token(pub [u8; 16]);

impl Token {
    /// Compares without telling by its duration where the difference is.
    pub fn matches(&self, other: &Token) -> bool {
        let difference = self.0.iter().zip(&other.0).fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(difference) == 0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// What the processes of a tree and their supervisor know, and nobody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Secret {
    /// A process says this: it belongs to the tree.
    pub question: Token,
    /// The supervisor answers with this: it is not somebody who has taken the socket's name after its end.
    pub answer: Token,
}

impl Secret {
    /// Of random bytes.
    pub fn of(random: [u8; 32]) -> Secret {
        let mut secret = Secret { question: Token([0; 16]), answer: Token([0; 16]) };
        secret.question.0.copy_from_slice(&random[..16]);
        secret.answer.0.copy_from_slice(&random[16..]);
        secret
    }

    /// 64 hexadecimal digits.
    pub fn to_hex(&self) -> [u8; 64] {
        let mut hex = [0; 64];
        for (byte, digits) in self.question.0.iter().chain(&self.answer.0).zip(hex.chunks_exact_mut(2)) {
            digits[0] = b"0123456789abcdef"[usize::from(byte >> 4)];
            digits[1] = b"0123456789abcdef"[usize::from(byte & 15)];
        }
        hex
    }

    /// The reverse of `to_hex`.
    pub fn from_hex(hex: &[u8]) -> Option<Secret> {
        if hex.len() != 64 {
            return None;
        }
        let digit = |c: u8| char::from(c).to_digit(16);
        let mut random = [0; 32];
        for (byte, digits) in random.iter_mut().zip(hex.chunks_exact(2)) {
            *byte = (digit(digits[0])? << 4 | digit(digits[1])?) as u8;
        }
        Some(Secret::of(random))
    }
}

/// How a process came to have an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It started a program, or was forked from a process that had not swapped anything: it inherits nothing.
    Exec,
    /// It was forked from a process of the group that had called `fork_begins`, whose index and generation were
    /// these.
    Fork {
        /// The parent's process slot.
        parent: u32,
        /// The parent's `generation`, for the slot may have a new user meanwhile.
        generation: u32,
    },
}

/// Why a process may not join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Refusal {
    /// The token is not this group's.
    WrongToken = 1,
    /// The agent is from another version of uswap.
    WrongVersion = 2,
    /// All process slots are taken.
    Full = 3,
    /// The supervisor cannot see the process: it lives in an unrelated pid namespace.
    Invisible = 4,
    /// The parent it names is not in the group.
    UnknownParent = 5,
    /// The supervisor ran out of descriptors or memory.
    Resources = 6,
    /// It has become another user than the supervisor's, who is not root.
    OtherUser = 7,
}

impl Refusal {
    fn from_raw(raw: u32) -> Option<Refusal> {
        use Refusal::*;
        let all = [WrongToken, WrongVersion, Full, Invisible, UnknownParent, Resources, OtherUser];
        all.into_iter().find(|r| *r as u32 == raw)
    }

    /// For the one line on standard error.
    pub const fn text(self) -> &'static str {
        match self {
            Refusal::WrongToken => "wrong token",
            Refusal::WrongVersion => "the agent belongs to another version of uswap",
            Refusal::Full => "too many processes in the group",
            Refusal::Invisible => "the process is in a pid namespace that the supervisor cannot see",
            Refusal::UnknownParent => "its parent is not in the group",
            Refusal::Resources => "the supervisor ran out of descriptors or memory",
            Refusal::OtherUser => "it changed its user, and the supervisor may not",
        }
    }
}

/// Longest path of the agent, with a zero byte behind it.
pub const AGENT_PATH_MAX: usize = 32;

/// A process of uswap's that holds the agent's file, and its descriptor there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentFile {
    /// The process.
    pub pid: u32,
    /// Its descriptor.
    pub fd: u32,
}

impl AgentFile {
    /// Whether an entry of LD_PRELOAD is such a path.
    pub fn is_path(entry: &[u8]) -> bool {
        let number = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
        let mut parts = entry.split(|&byte| byte == b'/');
        let mut next = || parts.next().unwrap_or_default();
        next().is_empty()
            && next() == b"proc"
            && number(next())
            && next() == b"fd"
            && number(next())
            && parts.next().is_none()
    }
}

impl std::fmt::Display for AgentFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "/proc/{}/fd/{}", self.pid, self.fd)
    }
}

/// One packet. Descriptors travel beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Process to supervisor, first of all.
    Hello {
        /// The question of the [`Secret`].
        token: Token,
        /// Its own pid, for messages only: the supervisor asks the kernel.
        pid: u32,
        /// After exec or after fork.
        kind: Kind,
    },
    /// Supervisor to process. Descriptors: the group, /proc, the userfaultfd device if `device`, standard error of
    /// `uswap run`, the areas in their order.
    Welcome {
        /// The process slot.
        index: u32,
        /// The slot's generation, for `Kind::Fork` of children.
        generation: u32,
        /// /dev/userfaultfd is among the descriptors.
        device: bool,
        /// How many areas are among them.
        areas: u32,
        /// The answer of the [`Secret`].
        proof: Token,
    },
    /// Supervisor to process: it may not join.
    Refused(Refusal),
    /// Process to supervisor, with one descriptor to be kept.
    KeepUffd,
    /// Process to supervisor: how does a program open the agent that I execute as the user that I am now?
    AskAgent {
        /// The question of the [`Secret`].
        token: Token,
    },
    /// Supervisor to process: by this.
    AgentAt {
        /// The file.
        file: AgentFile,
        /// The answer of the [`Secret`].
        proof: Token,
    },
    /// Process to supervisor, with one descriptor: it has mapped this memory file in place of anonymous shared memory. And on, to the
    /// shared-memory server, with the process that said so.
    SharedObject {
        /// 0 from a process, which the supervisor knows.
        process: u32,
        /// Its slot; from a process as above.
        index: u32,
        /// How often that had been used before, so that nobody else is answered; from a process as above.
        generation: u32,
        /// Where it is mapped, if it has been registered with the process's userfaultfd before anybody could use it; or 0.
        start: u64,
    },
    /// Process to supervisor, with one descriptor: the userfaultfd for its shared memory. And on, to the shared-memory server.
    SharedClient {
        /// As in `SharedObject`.
        process: u32,
        /// As in `SharedObject`.
        index: u32,
        /// As in `SharedObject`.
        generation: u32,
    },
    /// Process to supervisor, with its userfaultfd for shared memory once more: it has mapped shared memory that has a name, and waits. And
    /// on, to the shared-memory server.
    SharedNamed {
        /// As in `SharedObject`.
        process: u32,
        /// As in `SharedObject`.
        index: u32,
        /// As in `SharedObject`.
        generation: u32,
        /// Where.
        start: u64,
    },
    /// Process to supervisor, with any descriptor: a file in memory is about to be changed by the kernel, and who does that waits. And on, to
    /// the shared-memory server.
    SharedChanged {
        /// As in `SharedObject`.
        process: u32,
        /// As in `SharedObject`.
        index: u32,
        /// As in `SharedObject`.
        generation: u32,
        /// Of the file.
        device: u64,
        /// Of the file, there.
        number: u64,
    },
    /// Process to supervisor, after `Welcome`: it could not take what came with it, for it may have too few descriptors. It
    /// has no standard error to say so.
    CannotJoin,
}

/// Somebody sent what is not a message of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Another version of the protocol.
    Version,
    /// Not a message.
    Content,
    /// Cut off: this process may not have as many descriptors as came with it.
    Descriptors,
}

impl Message {
    /// The packet.
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut words = [0u32; MESSAGE_BYTES / 4];
        words[0] = VERSION;
        let mut token_bytes = [0; 16];
        match *self {
            Message::Hello { token, pid, kind } => {
                words[1] = 1;
                words[2] = pid;
                if let Kind::Fork { parent, generation } = kind {
                    (words[3], words[4], words[5]) = (1, parent, generation);
                }
                token_bytes = token.0;
            }
            Message::Welcome { index, generation, device, areas, proof } => {
                words[1..6].copy_from_slice(&[2, index, generation, u32::from(device), areas]);
                token_bytes = proof.0;
            }
            Message::Refused(refusal) => words[1..3].copy_from_slice(&[3, refusal as u32]),
            Message::KeepUffd => words[1] = 4,
            Message::AskAgent { token } => {
                words[1] = 5;
                token_bytes = token.0;
            }
            Message::AgentAt { file: AgentFile { pid, fd }, proof } => {
                words[1..4].copy_from_slice(&[6, pid, fd]);
                token_bytes = proof.0;
            }
            Message::CannotJoin => words[1] = 7,
            Message::SharedObject { process, index, generation, start } => {
                words[1..7].copy_from_slice(&[8, process, index, start as u32, (start >> 32) as u32, generation]);
            }
            Message::SharedClient { process, index, generation } => {
                words[1..5].copy_from_slice(&[9, process, index, generation]);
            }
            Message::SharedNamed { process, index, generation, start } => {
                words[1..7].copy_from_slice(&[10, process, index, start as u32, (start >> 32) as u32, generation]);
            }
            Message::SharedChanged { process, index, generation, device, number } => {
                words[1..5].copy_from_slice(&[11, process, index, generation]);
                for (place, long) in [(5, device), (7, number)] {
                    words[place..place + 2].copy_from_slice(&[long as u32, (long >> 32) as u32]);
                }
            }
        }
        let mut bytes = [0; MESSAGE_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes[MESSAGE_BYTES - 16..].copy_from_slice(&token_bytes);
        bytes
    }

    /// Reads a packet.
    pub fn decode(bytes: &[u8]) -> Result<Message, Malformed> {
        if bytes.len() < 8 {
            return Err(Malformed::Content);
        }
        let word = |n: usize| u32::from_le_bytes([bytes[n * 4], bytes[n * 4 + 1], bytes[n * 4 + 2], bytes[n * 4 + 3]]);
        let long = |n: usize| u64::from(word(n + 1)) << 32 | u64::from(word(n));
        if word(0) != VERSION {
            return Err(Malformed::Version);
        }
        if bytes.len() != MESSAGE_BYTES {
            return Err(Malformed::Content);
        }
        let token = || {
            let mut token = [0; 16];
            token.copy_from_slice(&bytes[MESSAGE_BYTES - 16..]);
            Token(token)
        };
        match word(1) {
            1 => {
                let kind = match word(3) {
                    0 => Kind::Exec,
                    1 => Kind::Fork { parent: word(4), generation: word(5) },
                    _ => return Err(Malformed::Content),
                };
                Ok(Message::Hello { token: token(), pid: word(2), kind })
            }
            2 => {
                let (index, generation, areas) = (word(2), word(3), word(5));
                Ok(Message::Welcome { index, generation, device: word(4) != 0, areas, proof: token() })
            }
            3 => Refusal::from_raw(word(2)).map(Message::Refused).ok_or(Malformed::Content),
            4 => Ok(Message::KeepUffd),
            5 => Ok(Message::AskAgent { token: token() }),
            6 => Ok(Message::AgentAt { file: AgentFile { pid: word(2), fd: word(3) }, proof: token() }),
            7 => Ok(Message::CannotJoin),
            8 => Ok(Message::SharedObject { process: word(2), index: word(3), generation: word(6), start: long(4) }),
            9 => Ok(Message::SharedClient { process: word(2), index: word(3), generation: word(4) }),
            10 => Ok(Message::SharedNamed { process: word(2), index: word(3), generation: word(6), start: long(4) }),
            11 => {
                let (process, index, generation) = (word(2), word(3), word(4));
                Ok(Message::SharedChanged { process, index, generation, device: long(5), number: long(7) })
            }
            _ => Err(Malformed::Content),
        }
    }
}

/// What came in.
pub enum Received {
    /// The other side is gone.
    EndOfFile,
    /// Nothing is waiting (only on a non-blocking socket).
    Nothing,
    /// A packet that is no message.
    Malformed(Malformed),
    /// A message and its descriptors.
    Message(Message, Fds),
}

/// Descriptors of one message, in their order.
#[derive(Default)]
pub struct Fds {
    fds: [Option<OwnedFd>; FDS_MAX],
    next: usize,
}

impl Fds {
    fn push(&mut self, fd: OwnedFd) {
        // More than fit were truncated by the kernel already.
        if let Some(place) = self.fds.iter_mut().find(|place| place.is_none()) {
            *place = Some(fd);
        }
    }
}

impl Iterator for Fds {
    type Item = OwnedFd;

    fn next(&mut self) -> Option<OwnedFd> {
        let fd = self.fds.get_mut(self.next)?.take();
        self.next += 1;
        fd
    }
}

/// Sends one message. `NoSignal`: a vanished reader is an error, not a SIGPIPE.
pub fn send(socket: impl AsFd, message: &Message, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = message.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

/// Receives one message. Descriptors are close-on-exec.
pub fn receive(socket: impl AsFd) -> io::Result<Received> {
    match receive_once(&socket) {
        // The other side has gone without having read what we sent, which is told before what it had sent itself.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => match receive_once(&socket) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(Received::EndOfFile),
            other => other,
        },
        other => other,
    }
}

fn receive_once(socket: impl AsFd) -> io::Result<Received> {
    let mut bytes = [0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let result = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let got = match result {
        Err(rustix::io::Errno::AGAIN) => return Ok(Received::Nothing),
        other => other?,
    };
    let mut fds = Fds::default();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            rights.for_each(|fd| fds.push(fd));
        }
    }
    if got.bytes == 0 {
        return Ok(Received::EndOfFile);
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        return Ok(Received::Malformed(Malformed::Descriptors));
    }
    if got.flags.contains(ReturnFlags::TRUNC) {
        return Ok(Received::Malformed(Malformed::Content));
    }
    Ok(match Message::decode(&bytes[..got.bytes]) {
        Ok(message) => Received::Message(message, fds),
        Err(malformed) => Received::Malformed(malformed),
    })
}

/// Opens the listening socket. `name` is abstract: no file is left behind.
pub fn listen(name: &[u8]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    // As many as can be in the group: a pool of workers may be forked at once.
    rustix::net::listen(&socket, crate::group::PROCESSES_MAX as i32)?;
    Ok(socket)
}

/// Why saying hello failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum HelloError {
    /// The supervisor said no.
    Refused(Refusal),
    /// The supervisor has closed the connection, or who answered is not the supervisor.
    NoAnswer,
    /// The system said no.
    Io(io::Error),
}

impl From<io::Error> for HelloError {
    fn from(error: io::Error) -> HelloError {
        HelloError::Io(error)
    }
}

impl std::fmt::Display for HelloError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HelloError::Refused(refusal) => f.write_str(refusal.text()),
            HelloError::NoAnswer => f.write_str("no answer from the supervisor"),
            HelloError::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for HelloError {}

/// What a process gets when it joins.
pub struct Welcome {
    /// Its process slot.
    pub index: u32,
    /// The slot's generation.
    pub generation: u32,
    /// The memory file of the group, for `Group::open`.
    pub group: OwnedFd,
    /// /proc, as the supervisor sees it.
    pub proc: OwnedFd,
    /// /dev/userfaultfd, unless the syscall is to be used.
    pub device: Option<OwnedFd>,
    /// Where messages to the user go.
    pub stderr: OwnedFd,
    /// The swap areas, in the order of `GroupConfig::areas`.
    pub areas: [Option<OwnedFd>; AREAS_MAX],
}

/// A process's side of the connection.
pub struct Client {
    socket: OwnedFd,
}

impl Client {
    /// Connects to the supervisor.
    pub fn connect(name: &[u8]) -> io::Result<Client> {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let address = SocketAddrUnix::new_abstract_name(name)?;
        rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address))?;
        Ok(Client { socket })
    }

    /// Whether there is an answer, or the supervisor is gone, within `patience`; without one it waits for as long as it takes.
    pub fn is_answered(&self, patience: Option<Duration>) -> bool {
        let patience = patience.and_then(|patience| Timespec::try_from(patience).ok());
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        !matches!(rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, patience.as_ref())), Ok(0))
    }

    /// Sends what is to be answered. Who does not read it may have answered before: a refusal.
    fn ask(&self, message: &Message) -> io::Result<()> {
        match send(&self.socket, message, &[]) {
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => Ok(()),
            other => other,
        }
    }

    /// Joins the group. `wait` comes before the answer is received.
    pub fn hello(&self, secret: &Secret, kind: Kind, wait: impl FnOnce(&Client)) -> Result<Welcome, HelloError> {
        let pid = rustix::process::getpid().as_raw_nonzero().get() as u32;
        self.ask(&Message::Hello { token: secret.question, pid, kind })?;
        wait(self);
        match receive(&self.socket)? {
            Received::Message(Message::Refused(refusal), _) => Err(HelloError::Refused(refusal)),
            Received::Message(Message::Welcome { index, generation, device, areas, proof }, mut fds)
                if proof.matches(&secret.answer) =>
            {
                let group = fds.next().ok_or(HelloError::NoAnswer)?;
                let proc = fds.next().ok_or(HelloError::NoAnswer)?;
                let device = if device { Some(fds.next().ok_or(HelloError::NoAnswer)?) } else { None };
                let stderr = fds.next().ok_or(HelloError::NoAnswer)?;
                let mut area_fds = [const { None }; AREAS_MAX];
                for place in area_fds.iter_mut().take(areas as usize) {
                    *place = Some(fds.next().ok_or(HelloError::NoAnswer)?);
                }
                Ok(Welcome { index, generation, group, proc, device, stderr, areas: area_fds })
            }
            Received::Malformed(Malformed::Descriptors) => {
                let _ = send(&self.socket, &Message::CannotJoin, &[]);
                Err(HelloError::Io(rustix::io::Errno::MFILE.into()))
            }
            _ => Err(HelloError::NoAnswer),
        }
    }

    /// Asks by which path a program can open the agent that the calling thread executes as the user that it is now.
    pub fn ask_agent(&self, secret: &Secret) -> Result<AgentFile, HelloError> {
        self.ask(&Message::AskAgent { token: secret.question })?;
        if !self.is_answered(Some(AGENT_PATIENCE)) {
            return Err(HelloError::NoAnswer);
        }
        match receive(&self.socket)? {
            Received::Message(Message::Refused(refusal), _) => Err(HelloError::Refused(refusal)),
            Received::Message(Message::AgentAt { file, proof }, _) if proof.matches(&secret.answer) => Ok(file),
            _ => Err(HelloError::NoAnswer),
        }
    }
}

/// How long it is tried to send what could not be sent for a moment.
pub const TIME_TO_SEND: Duration = Duration::from_secs(2);
/// How often.
const TRY_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// Whether descriptors that could not be sent may be sent a moment later: too many of this user's are under way, until others have
/// read theirs, or there was no memory.
pub fn may_pass(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM))
}

/// Has the supervisor at the other end of `socket` hold a reference to a userfaultfd of this process until it ends.
pub fn keep_uffd(socket: BorrowedFd<'_>, uffd: BorrowedFd<'_>) -> io::Result<()> {
    hand_over(socket, &Message::KeepUffd, uffd)
}

/// Has the supervisor at the other end of `socket` hand something of this process's to the shared-memory server.
pub fn share(socket: BorrowedFd<'_>, fd: BorrowedFd<'_>, what: Sharing) -> io::Result<()> {
    let message = match what {
        Sharing::Object { start } => Message::SharedObject { process: 0, index: 0, generation: 0, start: start as u64 },
        Sharing::Client => Message::SharedClient { process: 0, index: 0, generation: 0 },
        Sharing::Named { start } => Message::SharedNamed { process: 0, index: 0, generation: 0, start: start as u64 },
        Sharing::Changed { device, number } => {
            Message::SharedChanged { process: 0, index: 0, generation: 0, device, number }
        }
    };
    hand_over(socket, &message, fd)
}

fn hand_over(socket: BorrowedFd<'_>, message: &Message, fd: BorrowedFd<'_>) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match send(socket, message, &[fd]) {
            Err(error) if may_pass(&error) && begun.elapsed() < TIME_TO_SEND => {
                let _ = rustix::event::poll(&mut [], Some(&TRY_EVERY));
            }
            other => return other,
        }
    }
}

impl From<Client> for OwnedFd {
    fn from(client: Client) -> OwnedFd {
        client.socket
    }
}

impl AsFd for Client {
    /// Readable with end of file when the supervisor is gone; nothing else is ever sent.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Token = Token(*b"0123456789abcdef");
    const SECRET: Secret = Secret { question: TOKEN, answer: Token(*b"fedcba9876543210") };

    fn all_messages() -> [Message; 12] {
        [
            Message::Hello { token: TOKEN, pid: 9, kind: Kind::Exec },
            Message::Hello { token: TOKEN, pid: 9, kind: Kind::Fork { parent: 3, generation: 8 } },
            Message::Welcome { index: 1023, generation: 7, device: true, areas: 8, proof: TOKEN },
            Message::Refused(Refusal::Invisible),
            Message::KeepUffd,
            Message::AskAgent { token: TOKEN },
            Message::AgentAt { file: AgentFile { pid: 4194303, fd: 1023 }, proof: TOKEN },
            Message::CannotJoin,
            Message::SharedObject { process: 77, index: 5, generation: 3, start: 0x7fff_1234_5000 },
            Message::SharedClient { process: 78, index: 1023, generation: 4 },
            Message::SharedNamed { process: 79, index: 6, generation: 5, start: 0x7fff_1234_6000 },
            Message::SharedChanged { process: 80, index: 7, generation: 6, device: 1 << 40 | 26, number: 2 << 32 | 5 },
        ]
    }

    #[test]
    fn every_message_comes_back() {
        for message in all_messages() {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
        for raw in 1..=7 {
            let refused = Message::Refused(Refusal::from_raw(raw).unwrap());
            assert_eq!(Message::decode(&refused.encode()), Ok(refused));
        }
    }

    #[test]
    fn nonsense_is_malformed() {
        assert_eq!(Message::decode(&[]), Err(Malformed::Content));
        assert_eq!(Message::decode(&[9; MESSAGE_BYTES]), Err(Malformed::Version));
        let mut bytes = Message::KeepUffd.encode();
        assert_eq!(Message::decode(&bytes[..MESSAGE_BYTES - 1]), Err(Malformed::Content));
        bytes[4] = 99;
        assert_eq!(Message::decode(&bytes), Err(Malformed::Content));
    }

    #[test]
    fn the_path_of_an_agent_is_told_from_others() {
        let longest = AgentFile { pid: u32::MAX, fd: u32::MAX }.to_string();
        assert!(longest.len() < AGENT_PATH_MAX);
        assert!(AgentFile::is_path(longest.as_bytes()));
        for other in ["", "libx.so", "/proc/1/fd", "/proc/1/fd/", "/proc/self/fd/3", "/proc/1/fd/3/4", "x/proc/1/fd/3"]
        {
            assert!(!AgentFile::is_path(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn the_secret_travels_as_text() {
        let hex = SECRET.to_hex();
        assert_eq!(Secret::from_hex(&hex), Some(SECRET));
        assert!(TOKEN.matches(&TOKEN) && !TOKEN.matches(&SECRET.answer));
        assert!(Secret::from_hex(&hex[1..]).is_none());
        assert!(Secret::from_hex(&[b'x'; 64]).is_none());
    }

    /// The supervisor of a run that has ended is whoever takes its name.
    #[test]
    fn who_does_not_know_the_answer_is_not_believed() {
        let name = format!("uswap-test-false-{}", std::process::id());
        let listener = listen(name.as_bytes()).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        // All that it can know is what it was asked with.
        for proof in [Token([0; 16]), SECRET.question] {
            let client = Client::connect(name.as_bytes()).unwrap();
            let server = rustix::net::accept(&listener).unwrap();
            send(&server, &Message::AgentAt { file: AgentFile { pid: 1, fd: 3 }, proof }, &[]).unwrap();
            assert!(matches!(client.ask_agent(&SECRET), Err(HelloError::NoAnswer)));
            let welcome = Message::Welcome { index: 0, generation: 0, device: false, areas: 0, proof };
            send(&server, &welcome, &[file.as_fd(); 3]).unwrap();
            assert!(matches!(client.hello(&SECRET, Kind::Exec, |_| ()), Err(HelloError::NoAnswer)));
        }
    }

    #[test]
    fn a_process_joins_with_all_its_descriptors() {
        let name = format!("uswap-test-{}", std::process::id());
        let listener = listen(name.as_bytes()).unwrap();
        let client = Client::connect(name.as_bytes()).unwrap();
        let server = rustix::net::accept(&listener).unwrap();
        // The answer is ready before the question: one thread is enough.
        let files: Vec<_> = (0..FDS_MAX).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let fds: Vec<_> = files.iter().map(|f| f.as_fd()).collect();
        let (areas, proof) = (AREAS_MAX as u32, SECRET.answer);
        let welcome = Message::Welcome { index: 5, generation: 2, device: true, areas, proof };
        send(&server, &welcome, &fds).unwrap();
        let got = client.hello(&SECRET, Kind::Exec, |_| ()).unwrap();
        assert_eq!((got.index, got.generation), (5, 2));
        assert!(got.device.is_some() && got.areas.iter().all(Option::is_some));

        let Ok(Received::Message(Message::Hello { token, pid, kind: Kind::Exec }, _)) = receive(&server) else {
            panic!("no hello");
        };
        assert!(token.matches(&TOKEN) && pid == std::process::id());
        keep_uffd(client.as_fd(), fds[0]).unwrap();
        drop(client);
        let Ok(Received::Message(Message::KeepUffd, mut kept)) = receive(&server) else { panic!("nothing to keep") };
        assert!(kept.next().is_some() && kept.next().is_none());
        assert!(matches!(receive(&server), Ok(Received::EndOfFile)));
    }

    #[test]
    fn a_refusal_says_why() {
        let name = format!("uswap-test-refusal-{}", std::process::id());
        let listener = listen(name.as_bytes()).unwrap();
        let client = Client::connect(name.as_bytes()).unwrap();
        let server = rustix::net::accept(&listener).unwrap();
        send(&server, &Message::Refused(Refusal::WrongToken), &[]).unwrap();
        assert!(matches!(client.hello(&SECRET, Kind::Exec, |_| ()), Err(HelloError::Refused(Refusal::WrongToken))));
        drop(server);
        assert!(matches!(client.hello(&SECRET, Kind::Exec, |_| ()), Err(HelloError::NoAnswer)));
    }

    #[test]
    fn a_refusal_is_found_by_who_was_not_heard() {
        let name = format!("uswap-test-unheard-{}", std::process::id());
        let listener = listen(name.as_bytes()).unwrap();
        let refuse = |server: &OwnedFd| send(server, &Message::Refused(Refusal::Resources), &[]).unwrap();
        let is_refused = |client: Client| {
            matches!(client.hello(&SECRET, Kind::Exec, |_| ()), Err(HelloError::Refused(Refusal::Resources)))
        };
        // Refused and left before the hello.
        let client = Client::connect(name.as_bytes()).unwrap();
        let server = rustix::net::accept(&listener).unwrap();
        refuse(&server);
        drop(server);
        assert!(is_refused(client));
        // Left after it, and nobody had read it.
        let client = Client::connect(name.as_bytes()).unwrap();
        let server = rustix::net::accept(&listener).unwrap();
        client.ask(&Message::Hello { token: TOKEN, pid: 1, kind: Kind::Exec }).unwrap();
        refuse(&server);
        drop(server);
        assert!(matches!(receive(&client), Ok(Received::Message(Message::Refused(Refusal::Resources), _))));
        assert!(matches!(receive(&client), Ok(Received::EndOfFile)));
    }
}
