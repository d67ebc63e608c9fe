//! Messages between a process and its supervisor, the secret in the environment, and paths that may be the agent's.
//!
//! Anybody of the machine can connect to the supervisor's socket, and send what he likes.

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use uswap_engine::protocol::{
    AGENT_PATH_MAX, AgentFile, Kind, MESSAGE_BYTES, Malformed, Message, Received, Refusal, Secret, Token, receive,
};

use crate::{Canary, Seed, Target};

/// This target.
pub const TARGET: Target =
    Target { name: "messages", run, seeds, words: &[b"/proc/", b"/fd/", b"0123456789abcdefABCDEF", b"\x04\0\0\0"] };

/// Reads it as each of them.
pub fn run(bytes: &[u8], canary: Canary) {
    let mut decoded = Message::decode(bytes);
    if let (Canary::Planted, Ok(Message::Welcome { areas, .. })) = (canary, &mut decoded) {
        // As if the number of areas were a byte.
        *areas &= 0xff;
    }
    match decoded {
        Ok(message) => says_what_stands_there(message, bytes),
        Err(Malformed::Version) => assert!(bytes.len() >= 8 && bytes[..4] != Message::KeepUffd.encode()[..4]),
        Err(Malformed::Content) => {}
        Err(Malformed::Descriptors) => panic!("no descriptors are in a packet's bytes"),
    }
    is_received_alike(bytes);
    secret(bytes);
    agent_path(bytes);
}

/// Each word that has a meaning in this message is in it.
fn says_what_stands_there(message: Message, bytes: &[u8]) {
    let again = message.encode();
    assert_eq!((bytes.len(), Message::decode(&again)), (MESSAGE_BYTES, Ok(message)));
    let has_token = !matches!(
        message,
        Message::Refused(_)
            | Message::KeepUffd
            | Message::CannotJoin
            | Message::SharedObject { .. }
            | Message::SharedClient { .. }
            | Message::SharedNamed { .. }
            | Message::SharedChanged { .. }
    );
    let words: &[usize] = match message {
        Message::Hello { kind: Kind::Exec, .. } => &[2, 3],
        Message::Hello { kind: Kind::Fork { .. }, .. } => &[2, 3, 4, 5],
        // The fourth says whether there is a device: any number but 0 does.
        Message::Welcome { .. } => &[2, 3, 5],
        Message::Refused(_) => &[2],
        Message::SharedObject { .. } | Message::SharedNamed { .. } => &[2, 3, 4, 5, 6],
        Message::SharedClient { .. } => &[2, 3, 4],
        Message::SharedChanged { .. } => &[2, 3, 4, 5, 6, 7, 8],
        Message::AgentAt { file, .. } => {
            let path = file.to_string();
            assert!(path.len() < AGENT_PATH_MAX && AgentFile::is_path(path.as_bytes()), "{path}");
            &[2, 3]
        }
        Message::KeepUffd | Message::AskAgent { .. } | Message::CannotJoin => &[],
    };
    for word in [0, 1].iter().chain(words) {
        let there = word * 4..word * 4 + 4;
        assert_eq!(again[there.clone()], bytes[there], "word {word} of {message:?}");
    }
    if has_token {
        assert_eq!(again[MESSAGE_BYTES - 16..], bytes[MESSAGE_BYTES - 16..]);
    }
}

/// As a packet of a socket it is the same.
fn is_received_alike(bytes: &[u8]) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (ours, theirs) = pair.expect("there are descriptors");
    if rustix::net::send(&theirs, bytes, SendFlags::NOSIGNAL).is_err() {
        // Longer than a packet may be.
        return;
    }
    match receive(&ours).expect("a packet is there") {
        // An empty packet cannot be told from the end.
        Received::EndOfFile => assert!(bytes.is_empty()),
        Received::Nothing => panic!("a packet has gone"),
        Received::Malformed(_) => assert!(Message::decode(bytes).is_err()),
        Received::Message(message, mut fds) => {
            assert_eq!(Message::decode(bytes), Ok(message));
            assert!(fds.next().is_none());
        }
    }
}

fn secret(bytes: &[u8]) {
    for hex in [bytes, &bytes[..bytes.len().min(64)]] {
        let is_hex = hex.len() == 64 && hex.iter().all(u8::is_ascii_hexdigit);
        let secret = Secret::from_hex(hex);
        assert_eq!(secret.is_some(), is_hex);
        if let Some(secret) = secret {
            assert!(secret.to_hex().eq_ignore_ascii_case(hex) && secret.answer.matches(&secret.answer));
        }
    }
}

fn agent_path(bytes: &[u8]) {
    let numbers = bytes.strip_prefix(b"/proc/").and_then(|rest| {
        let at = rest.windows(4).position(|four| four == b"/fd/")?;
        Some([&rest[..at], &rest[at + 4..]])
    });
    let is_number = |text: &&[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let expected = numbers.is_some_and(|numbers| numbers.iter().all(is_number));
    assert_eq!(AgentFile::is_path(bytes), expected);
}

fn seeds() -> Vec<Seed> {
    let token = Token(*b"0123456789abcdef");
    let message = |message: Message| message.encode().to_vec();
    vec![
        ("hello", message(Message::Hello { token, pid: 9, kind: Kind::Exec })),
        ("hello_of_a_child", message(Message::Hello { token, pid: 9, kind: Kind::Fork { parent: 3, generation: 8 } })),
        ("welcome", message(Message::Welcome { index: 1023, generation: 7, device: true, areas: 8, proof: token })),
        ("refused", message(Message::Refused(Refusal::Full))),
        ("keep", message(Message::KeepUffd)),
        ("ask_agent", message(Message::AskAgent { token })),
        ("agent_at", message(Message::AgentAt { file: AgentFile { pid: 4194303, fd: 1023 }, proof: token })),
        ("cannot_join", message(Message::CannotJoin)),
        (
            "shared_object",
            message(Message::SharedObject { process: 77, index: 5, generation: 3, start: 0x7fff_1234_5000 }),
        ),
        ("shared_client", message(Message::SharedClient { process: 78, index: 1023, generation: 4 })),
        ("secret", Secret { question: token, answer: token }.to_hex().to_vec()),
        ("path", b"/proc/4194303/fd/1023".to_vec()),
    ]
}
