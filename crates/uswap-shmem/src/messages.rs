//! What is read from the clients' userfaultfds: faults, which are handed on by their place in a window; and what the clients do to their
//! mappings, which ends here: it changes where pages are mapped, and not what is in them.

use std::io;
use std::sync::Arc;

use uswap_system::PAGE_SIZE;
use uswap_system::faults::Message;

use crate::client::Client;
use crate::kernel::{ClientUffd, FromClient, Kernel};
use crate::moving;
use crate::shared::{Shared, Waiting};

/// Reads as many messages as fit. No page is on its way meanwhile.
pub fn read<K: Kernel>(shared: &Shared<K>, out: &mut [Message]) -> io::Result<usize> {
    let mut count = 0;
    for client in shared.ready_clients() {
        let room = out.len() - count;
        if room == 0 {
            break;
        }
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
    }
    Ok(count)
}

/// The child has mapped what its parent has, and goes on when its userfaultfd is known: that it is kept by another is told before the
/// next message is read.
fn follow_fork<K: Kernel>(shared: &Shared<K>, parent: &Client<K>, child: K::Uffd) -> io::Result<()> {
    K::keep(&child)?;
    let mappings = parent.mappings().clone();
    shared.add_client(None, child, mappings)?;
    Ok(())
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
                    let _ = client.uffd.wake(at, PAGE_SIZE);
                }
            }
        }
        Message::Remap { from, to, len } => client.mappings().moved(from, to, len),
        Message::Unmap { start, end } => client.mappings().remove(start, end),
        Message::Remove { .. } | Message::Other(_) => {}
    }
    None
}
