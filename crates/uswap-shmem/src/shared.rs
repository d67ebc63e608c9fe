//! What the server's threads share: objects by their windows, clients, and who waits for which page.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use uswap_core::defects::{Sabotage, is_on};
use uswap_engine::group::{Group, SwappedShared};
use uswap_sys::linux::Linux;
use uswap_sys::shared_file::Inode;
use uswap_system::PAGE_SIZE;
use uswap_system::faults::Message;

use crate::changes::Changes;
use crate::client::{Client, Mappings};
use crate::kernel::{ClientUffd, Kernel, Poll, SharedObject};
use crate::object::Object;
use crate::reports::Reports;

/// A thread of a client that waits for a page.
#[derive(Debug)]
pub struct Waiting<K: Kernel = Linux> {
    /// The page, in its window.
    pub page: usize,
    /// The client.
    pub client: Arc<Client<K>>,
    /// The page, in the client.
    pub at: usize,
}

impl<K: Kernel> Clone for Waiting<K> {
    fn clone(&self) -> Self {
        Waiting { page: self.page, client: self.client.clone(), at: self.at }
    }
}

/// A range of a window that is on its way out.
#[derive(Debug)]
pub struct Leaving<K: Kernel = Linux> {
    /// First byte.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// Who wanted to write meanwhile, and where; he goes on when it has left.
    pub writers: Vec<(Arc<Client<K>>, usize)>,
}

/// See the file's head. No lock of it is held while another one is taken, but for the door of the reports, which comes before all of them.
pub struct Shared<K: Kernel = Linux> {
    /// Fills windows.
    pub filler: K::Uffd,
    objects: RwLock<BTreeMap<usize, Arc<K::Object>>>,
    clients: RwLock<Vec<Arc<Client<K>>>>,
    waiting: Mutex<Vec<Waiting<K>>>,
    /// Pages of windows that nobody waits for, and that are to come back all the same.
    wanted: Mutex<Vec<usize>>,
    leaving: Mutex<Vec<Leaving<K>>>,
    /// What has been read of clients.
    pub reports: Reports<K>,
    /// Where messages of clients are waited for.
    poll: K::Poll,
    /// What the run's processes share.
    group: &'static Group,
    last_number: AtomicU64,
    /// Objects that are being forgotten.
    forgotten: AtomicU64,
    /// A page had to stay for a robust mutex that was held.
    pub has_held_mutexes: AtomicBool,
}

impl Shared {
    /// The object that a file is.
    pub fn object_of(&self, inode: Inode) -> Option<Arc<Object>> {
        self.objects().values().find(|object| object.inode == inode).cloned()
    }
}

impl<K: Kernel> Shared<K> {
    /// Of a process that has nothing yet.
    pub fn new(filler: K::Uffd, poll: K::Poll, group: &'static Group) -> Shared<K> {
        Shared {
            filler,
            objects: RwLock::default(),
            clients: RwLock::default(),
            waiting: Mutex::default(),
            wanted: Mutex::default(),
            leaving: Mutex::default(),
            reports: Reports::new(),
            poll,
            group,
            last_number: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            has_held_mutexes: AtomicBool::new(false),
        }
    }

    /// These pages are to come back. Whoever says so has to call a handler.
    pub fn want(&self, pages: Vec<usize>) {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = pages;
    }

    /// Those that are to, as faults, as many as fit. How many.
    pub(crate) fn take_wanted(&self, out: &mut [Message]) -> usize {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        let count = wanted.len().min(out.len());
        for (message, addr) in out.iter_mut().zip(wanted.drain(..count)) {
            *message = Message::Fault { addr, write: false, protected: false, thread: None };
        }
        count
    }

    /// Whether objects may be of files that become larger.
    pub fn may_grow(&self) -> bool {
        self.group.config().shared == SwappedShared::Files
    }

    /// Whether pages may leave: no process does direct I/O.
    pub fn may_swap(&self) -> bool {
        !self.group.does_direct_io()
    }

    fn objects(&self) -> RwLockReadGuard<'_, BTreeMap<usize, Arc<K::Object>>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// All objects, by their windows.
    pub fn all_objects(&self) -> Vec<Arc<K::Object>> {
        self.objects().values().cloned().collect()
    }

    /// The object in whose window an address is.
    pub fn object_at(&self, address: usize) -> Option<Arc<K::Object>> {
        let objects = self.objects();
        let (_, object) = objects.range(..=address).next_back()?;
        (address < object.end()).then(|| object.clone())
    }

    /// There is one more.
    pub fn add_object(&self, object: K::Object) -> Arc<K::Object> {
        let object = Arc::new(object);
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        objects.insert(object.start(), object.clone());
        object
    }

    /// There is one less. Its window stays until nobody has a reference to it.
    pub fn remove_object(&self, object: &K::Object) {
        self.objects.write().unwrap_or_else(PoisonError::into_inner).remove(&object.start());
    }

    /// What `forget` does to an object, which is managed no more from some moment of it on, takes time: until it is over, what the engine
    /// still has of the object is not what others find there.
    pub fn while_forgetting(&self, forget: impl FnOnce()) {
        self.forgotten.fetch_add(1, SeqCst);
        forget();
        self.forgotten.fetch_sub(1, SeqCst);
    }

    /// Whether an object is being forgotten.
    pub fn is_forgetting(&self) -> bool {
        self.forgotten.load(SeqCst) > 0
    }

    /// Shared memory that processes had already has become swapped, or has ceased to be.
    pub fn has_judged(&self) {
        self.group.judge_shared();
    }

    /// Pages of managed objects that are in memory.
    pub fn resident_pages(&self) -> u64 {
        self.objects().values().filter(|object| object.is_managed()).map(|object| object.resident_pages()).sum()
    }

    /// All clients.
    pub fn all_clients(&self) -> Vec<Arc<Client<K>>> {
        self.clients.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Managed objects that no client has mapped, nor a child of one, as far as forks have not been reported.
    pub fn unmapped_objects(&self) -> Vec<Arc<K::Object>> {
        let clients = self.all_clients();
        let has = |client: &Client<K>, object: &K::Object| {
            let window = object.start()..object.end();
            !client.is_known()
                || client.changes().may_have_been_inherited(&window)
                || client.mappings().has(window.start, window.end)
        };
        let mut objects = self.all_objects();
        objects.retain(|object| object.is_managed() && !clients.iter().any(|client| has(client, object)));
        objects
    }

    /// Whether it is not known of some client what it, or a child of it, has mapped.
    pub fn is_unsure(&self) -> bool {
        self.all_clients().iter().any(|client| !client.is_known() || !client.changes().is_quiet())
    }

    /// Nothing leaves before it is known what all clients have: who reads messages finds out.
    pub fn is_in_doubt(&self) {
        if self.reports.are_doubted() {
            K::have_messages_read(self);
        }
    }

    /// The client of this number.
    pub fn client(&self, number: u64) -> Option<Arc<Client<K>>> {
        let clients = self.clients.read().unwrap_or_else(PoisonError::into_inner);
        clients.iter().find(|client| client.number == number).cloned()
    }

    /// Where messages of clients are waited for.
    pub fn poll(&self) -> &K::Poll {
        &self.poll
    }

    /// There is one more, whose messages are heard from here on.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn add_client(
        &self,
        process: Option<u32>,
        uffd: K::Uffd,
        mappings: Mappings,
        changes: Changes,
    ) -> io::Result<Arc<Client<K>>> {
        let number = self.last_number.fetch_add(1, Relaxed) + 1;
        let client = Arc::new(Client::new(number, process, uffd, mappings, changes));
        self.clients.write().unwrap_or_else(PoisonError::into_inner).push(client.clone());
        self.poll.add(number, &client.uffd)?;
        Ok(client)
    }

    /// Its memory is gone.
    pub fn remove_client(&self, client: &Client<K>) {
        self.poll.remove(&client.uffd);
        let mut clients = self.clients.write().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|other| other.number != client.number);
        drop(clients);
        // What it would have said of itself is not heard any more.
        let children = client.changes().rest();
        children.into_iter().filter_map(|child| self.client(child)).for_each(|child| child.doubt());
        self.waiting().retain(|waiting| waiting.client.number != client.number);
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting<K>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread waits.
    pub fn waits(&self, waiting: Waiting<K>) {
        self.waiting().push(waiting);
    }

    /// Who waits for a page of `start..end`, of a window.
    pub fn who_waits(&self, start: usize, end: usize) -> Option<Waiting<K>> {
        self.waiting().iter().find(|waiting| (start..end).contains(&waiting.page)).cloned()
    }

    /// Wakes all that wait for pages of `start..end`, of a window.
    pub fn wake(&self, start: usize, end: usize) {
        let mut woken = Vec::new();
        self.waiting().retain(|waiting| {
            let is_one = (start..end).contains(&waiting.page);
            if is_one {
                woken.push(waiting.clone());
            }
            !is_one
        });
        if is_on(Sabotage::SharedWakeLost) {
            return;
        }
        for waiting in woken {
            let _ = waiting.client.uffd.wake(waiting.at, PAGE_SIZE);
        }
    }

    /// What is on its way out. Held for moments; no other lock is taken meanwhile.
    pub fn leaving(&self) -> MutexGuard<'_, Vec<Leaving<K>>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The clients that have sent some.
    pub fn ready_clients(&self) -> Vec<Arc<Client<K>>> {
        let mut ready = Vec::with_capacity(16);
        self.poll.ready(|number| ready.extend(self.client(number)));
        ready
    }
}
