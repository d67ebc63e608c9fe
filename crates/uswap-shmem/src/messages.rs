//! What is read from the clients' userfaultfds: faults, which are handed on by their place in a window; and what the clients do to their
//! mappings, which ends here: it changes where pages are mapped, and not what is in them.

use std::io;
use std::sync::Arc;

use uswap_core::defects::{Sabotage, is_on};
use uswap_system::PAGE_SIZE;
use uswap_system::faults::{Message, Stop};

use crate::client::{Client, Mappings};
use crate::kernel::{ClientUffd, FromClient, Kernel};
use crate::moving;
use crate::shared::{Shared, Waiting};

/// Reads as many messages as fit. No page is on its way meanwhile.
pub fn read<K: Kernel>(shared: &Shared<K>, out: &mut [Message]) -> io::Result<usize> {
    let mut count = shared.take_wanted(out);
    for client in shared.ready_clients() {
        let room = out.len() - count;
        if room == 0 {
            break;
        }
        rests(&client);
        client.uffd.read(room, |read| {
            match read {
                FromClient::Child(child) => follow_fork(shared, &client, child)?,
                FromClient::Message(message) => {
                    if let Some(fault) = take_in(shared, &client, message) {
                        out[count] = fault;
                        count += 1;
                    }
                }
            }
            Ok(())
        })?;
        settle(&client);
    }
    Ok(count)
}

/// What a client has unmapped is in no child of it of which is not known yet, if all that it does is known.
pub fn rests<K: Kernel>(client: &Client<K>) {
    if !client.gone().is_empty() && !client.uffd.is_changing() {
        client.gone().clear();
    }
}

/// Finds out what a client has where what it has said does not tell: the kernel protects only what is mapped. No page is on its way
/// meanwhile, so that none must be protected. As long as the client changes its mappings it is not found out.
pub fn settle<K: Kernel>(client: &Client<K>) {
    loop {
        let Some(at) = client.mappings().unsure() else { return };
        match client.uffd.protect(at, PAGE_SIZE, false).stop {
            Some(Stop::TryLater) => return,
            stop => client.mappings().is_sure(at, stop.is_none()),
        }
    }
}

/// The child has mapped what its parent has, and goes on when its userfaultfd is known: that it is kept by another is told before the
/// next message is read. What another thread of its parent's had unmapped by then, as far as was reported, may be in it: that is found out
/// before it goes on.
fn follow_fork<K: Kernel>(shared: &Shared<K>, parent: &Client<K>, child: K::Uffd) -> io::Result<()> {
    K::keep(&child)?;
    let mut mappings = if is_on(Sabotage::ForkLost) { Mappings::default() } else { parent.mappings().clone() };
    parent.gone().iter().for_each(|&mapping| mappings.add_unsure(mapping));
    let child = shared.add_client(None, child, mappings)?;
    settle(&child);
    Ok(())
}

/// What is at `start..end` goes.
fn goes<K: Kernel>(client: &Client<K>, start: usize, end: usize) {
    let pieces = client.mappings().pieces(start, end);
    client.gone().extend(pieces);
}

/// Returns a fault, by its place in a window.
fn take_in<K: Kernel>(shared: &Shared<K>, client: &Arc<Client<K>>, message: Message) -> Option<Message> {
    match message {
        Message::Fault { addr, write, protected, .. } => {
            let at = addr & !(PAGE_SIZE - 1);
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
        }
        Message::Remap { .. } if is_on(Sabotage::SharedRemapLost) => {}
        Message::Remap { from, to, len } => {
            goes(client, from, from + len);
            client.mappings().moved(from, to, len);
        }
        Message::Unmap { start, end } => {
            goes(client, start, end);
            client.mappings().remove(start, end);
        }
        Message::Remove { .. } | Message::Other(_) => {}
    }
    None
}
