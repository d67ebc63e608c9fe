//! What is read from the clients' userfaultfds: faults, which are handed on by their place in a window; and what the clients do to their
//! mappings, which ends here: it changes where pages are mapped, and not what is in them.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use uswap_sys::uffd::{RawMessage, Uffd};
use uswap_system::PAGE_SIZE;
use uswap_system::faults::Message;

use crate::client::Client;
use crate::moving;
use crate::shared::{Shared, Waiting};

/// Hands a userfaultfd over, to be kept by whoever outlives this process.
pub type Keep<'a> = &'a dyn Fn(BorrowedFd<'_>) -> io::Result<()>;

/// Messages of one client that are read at a time.
const MESSAGES: usize = 16;

/// Reads as many messages as fit. No page is on its way meanwhile.
pub fn read(shared: &Shared, out: &mut [Message], keep: Keep<'_>) -> io::Result<usize> {
    let mut count = 0;
    for client in shared.ready_clients() {
        let room = (out.len() - count).min(MESSAGES);
        if room == 0 {
            break;
        }
        let mut raw = [RawMessage::default(); MESSAGES];
        let read = client.uffd.read(&mut raw[..room])?;
        for message in &raw[..read] {
            if let Some(child) = message.take_child() {
                follow_fork(shared, &client, child, keep)?;
            } else if let Some(fault) = take_in(shared, &client, message.decode()) {
                out[count] = fault;
                count += 1;
            }
        }
    }
    Ok(count)
}

/// The child has mapped what its parent has, and goes on when its userfaultfd is known: that it is kept by another is told before the
/// next message is read.
fn follow_fork(shared: &Shared, parent: &Client, child: Uffd, keep: Keep<'_>) -> io::Result<()> {
    keep(child.as_fd())?;
    let mappings = parent.mappings().clone();
    shared.add_client(None, child, mappings)?;
    Ok(())
}

/// Returns a fault, by its place in a window.
fn take_in(shared: &Shared, client: &Arc<Client>, message: Message) -> Option<Message> {
    match message {
        Message::Fault { addr, write, protected, .. } => {
            let at = addr & !(PAGE_SIZE - 1);
            let page = client.mappings().to_window(at);
            match page {
                _ if protected => moving::let_write(client, at, page),
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
