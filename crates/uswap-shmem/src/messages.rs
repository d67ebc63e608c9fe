//! What is read from the clients' userfaultfds: faults, which are handed on by their place in a window; and what the clients do to their
//! mappings, which ends here: it changes where pages are mapped, and not what is in them.

use std::io;
use std::sync::Arc;

use uswap_core::defects::{Sabotage, is_on};
use uswap_system::PAGE_SIZE;
use uswap_system::faults::Message;

use crate::changes::Changes;
use crate::client::{Client, Mappings};
use crate::kernel::{ClientUffd, FromClient, Kernel};
use crate::moving;
use crate::shared::{Shared, Waiting};
use crate::trust::{doubt, rests, settle};

/// Faults of one client for which room is made at once.
const FAULTS: usize = 16;

/// Reads as many messages as fit.
pub fn read<K: Kernel>(shared: &Shared<K>, out: &mut [Message]) -> io::Result<usize> {
    let _alone = shared.reports.alone();
    if shared.reports.takes_doubts() {
        shared.all_clients().iter().for_each(|client| {
            rests(shared, client);
            settle(shared, client);
        });
    }
    let mut count = shared.take_wanted(out);
    for client in shared.ready_clients() {
        let room = out.len() - count;
        if room == 0 {
            break;
        }
        rests(shared, &client);
        // What a page is where a thread waits, all that was read tells together.
        let mut faults = Vec::with_capacity(room.min(FAULTS));
        client.uffd.read(room, |read| {
            if !matches!(read, FromClient::Message(Message::Fault { .. })) {
                shared.reports.take_in();
            }
            match read {
                FromClient::Child(child) => follow_fork(shared, &client, child)?,
                FromClient::Message(Message::Fault { addr, write, protected, .. }) => {
                    faults.push((addr & !(PAGE_SIZE - 1), write, protected));
                }
                FromClient::Message(message) => take_in(shared, &client, message),
            }
            Ok(())
        })?;
        for (at, write, protected) in faults {
            settle(shared, &client);
            if let Some(fault) = fault(shared, &client, at, write, protected) {
                out[count] = fault;
                count += 1;
            }
        }
    }
    Ok(count)
}

/// The child has mapped what its parent has, and goes on when its userfaultfd is known: that it is kept by another is told before the
/// next message is read.
fn follow_fork<K: Kernel>(shared: &Shared<K>, parent: &Client<K>, child: K::Uffd) -> io::Result<()> {
    K::keep(&child)?;
    let mappings = if is_on(Sabotage::ForkLost) { Mappings::default() } else { parent.mappings().clone() };
    let child = shared.add_client(None, child, mappings, Changes::of_child())?;
    let doubted = parent.changes().forks(child.number);
    doubt(shared, doubted);
    Ok(())
}

/// What is at `start..end` goes.
fn goes<K: Kernel>(client: &Client<K>, start: usize, end: usize) {
    let (pieces, is_known) = {
        let mappings = client.mappings();
        (mappings.pieces(start, end), mappings.knows_what_is_left(start, end))
    };
    if !is_known {
        client.doubt();
    }
    let windows = pieces.iter().map(|piece| piece.window..piece.window + (piece.end - piece.start));
    client.changes().have_gone(windows);
}

/// A thread waits at `at`: by the place in a window, if it is not let go on. All that was read has been taken in.
fn fault<K: Kernel>(
    shared: &Shared<K>,
    client: &Arc<Client<K>>,
    at: usize,
    write: bool,
    protected: bool,
) -> Option<Message> {
    let page = client.mappings().to_window(at);
    match page {
        _ if protected => moving::let_write(shared, client, at, page),
        Some(page) => {
            shared.waits(Waiting { page, client: client.clone(), at });
            return Some(Message::Fault { addr: page, write, protected: false, thread: None });
        }
        // Moved there, and the report comes next.
        None => {
            if shared.may_grow() && client.is_at_rest() {
                // Or a mapping has grown beyond its object.
                client.uffd.let_go(at, PAGE_SIZE);
            }
            let _ = client.uffd.wake(at, PAGE_SIZE);
        }
    }
    None
}

/// What a client has done to its mappings.
fn take_in<K: Kernel>(shared: &Shared<K>, client: &Client<K>, message: Message) {
    match message {
        Message::Remap { .. } if is_on(Sabotage::SharedRemapLost) => {}
        Message::Remap { from, to, len } => {
            goes(client, from, from + len);
            client.mappings().moved(from, to, len);
            let doubted = client.changes().moves(from, to, len);
            doubt(shared, doubted);
        }
        Message::Unmap { start, end } if client.changes().ends_move(&(start..end)) => {}
        Message::Unmap { start, end } => {
            goes(client, start, end);
            client.mappings().remove(start, end);
            let doubted = client.changes().changes(start..end);
            doubt(shared, doubted);
        }
        Message::Fault { .. } | Message::Remove { .. } | Message::Other(_) => {}
    }
}
