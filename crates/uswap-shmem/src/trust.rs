//! What is known of clients, and how it gets to be known again ([`changes`](crate::changes)).

use std::sync::Arc;

use crate::changes::{Doubted, Trust};
use crate::client::{Client, Mapping};
use crate::kernel::{ClientUffd, Kernel};
use crate::shared::Shared;

/// If a client rests, that is noted. No message is read meanwhile: the caller has passed the door of the reports, or shut it.
pub fn rests<K: Kernel>(shared: &Shared<K>, client: &Client<K>) {
    if client.changes().is_quiet() || client.uffd.is_changing() {
        return;
    }
    let children = client.changes().rest();
    for child in children.into_iter().filter_map(|child| shared.client(child)) {
        child.changes().are_those_of_its_parent();
    }
}

/// Finds out what a client has mapped where what it has said does not tell. As long as it changes that, it is not found out. The
/// door of the reports is shut. Whether it is known.
pub fn settle<K: Kernel>(shared: &Shared<K>, client: &Client<K>) -> bool {
    if client.changes().trust() != Trust::Doubt {
        return client.is_known();
    }
    if client.uffd.is_changing() {
        return false;
    }
    // Before, too: pages may be protected, and not any more, to find it out.
    shared.reports.take_in();
    let mapped = K::mapped(shared, client);
    shared.reports.take_in();
    let Some(mappings) = mapped.filter(|_| !client.uffd.is_changing()) else { return false };
    *client.mappings() = mappings;
    // What it was believed to have its children were, too.
    let children = client.changes().are_known();
    doubt(shared, children);
    true
}

/// Of these there is doubt from here on.
pub(crate) fn doubt<K: Kernel>(shared: &Shared<K>, children: Doubted) {
    children.into_iter().filter_map(|child| shared.client(child)).for_each(|child| child.doubt());
}

/// Something has been mapped in a client. No message is read meanwhile.
pub fn maps<K: Kernel>(shared: &Shared<K>, client: &Client<K>, mapping: Mapping) {
    rests(shared, client);
    client.mappings().insert(mapping);
    let doubted = client.changes().changes(mapping.start..mapping.end);
    doubt(shared, doubted);
}

/// Whether it is known of all clients what they have mapped; else it is being found out.
pub(crate) fn all_are_known<K: Kernel>(shared: &Shared<K>, clients: &[Arc<Client<K>>]) -> bool {
    if clients.iter().all(|client| client.is_known()) {
        return true;
    }
    {
        let _passed = shared.reports.pass();
        clients.iter().for_each(|client| rests(shared, client));
    }
    let are_known = clients.iter().all(|client| client.is_known());
    if !are_known {
        shared.is_in_doubt();
    }
    are_known
}
