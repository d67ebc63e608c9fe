//! What the server's threads share: objects by their windows, clients, and who waits for which page.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use rustix::event::epoll;
use uswap_engine::group::Group;
use uswap_sys::shared_file::Inode;
use uswap_sys::uffd::Uffd;
use uswap_system::PAGE_SIZE;

use crate::client::{Client, Mappings};
use crate::object::Object;

/// A thread of a client that waits for a page.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The page, in its window.
    pub page: usize,
    /// The client.
    pub client: Arc<Client>,
    /// The page, in the client.
    pub at: usize,
}

/// See the file's head. No lock of it is held while another one is taken.
pub struct Shared {
    /// Fills windows.
    pub filler: Uffd,
    objects: RwLock<BTreeMap<usize, Arc<Object>>>,
    clients: RwLock<Vec<Arc<Client>>>,
    waiting: Mutex<Vec<Waiting>>,
    /// Where messages of clients are waited for.
    poll: OwnedFd,
    /// What the run's processes share.
    group: &'static Group,
    last_number: AtomicU64,
}

static SHARED: OnceLock<Shared> = OnceLock::new();

impl Shared {
    /// Of this process, which has nothing yet.
    ///
    /// # Errors
    /// No descriptor or no userfaultfd is to be had.
    pub fn begin(device: Option<BorrowedFd<'_>>, group: &'static Group) -> io::Result<&'static Shared> {
        let filler = Uffd::to_fill_shared_memory(device).map_err(io::Error::other)?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(SHARED.get_or_init(|| Shared {
            filler,
            objects: RwLock::default(),
            clients: RwLock::default(),
            waiting: Mutex::default(),
            poll,
            group,
            last_number: AtomicU64::new(0),
        }))
    }

    /// That of this process, which has begun.
    pub fn of_process() -> &'static Shared {
        SHARED.get().expect("the server has begun")
    }

    /// Whether pages may leave: no process does direct I/O.
    pub fn may_swap(&self) -> bool {
        !self.group.does_direct_io()
    }

    fn objects(&self) -> RwLockReadGuard<'_, BTreeMap<usize, Arc<Object>>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// All objects, by their windows.
    pub fn all_objects(&self) -> Vec<Arc<Object>> {
        self.objects().values().cloned().collect()
    }

    /// The object in whose window an address is.
    pub fn object_at(&self, address: usize) -> Option<Arc<Object>> {
        let objects = self.objects();
        let (_, object) = objects.range(..=address).next_back()?;
        (address < object.end()).then(|| object.clone())
    }

    /// The object that a file is.
    pub fn object_of(&self, inode: Inode) -> Option<Arc<Object>> {
        self.objects().values().find(|object| object.inode == inode).cloned()
    }

    /// There is one more.
    pub fn add_object(&self, object: Object) -> Arc<Object> {
        let object = Arc::new(object);
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        objects.insert(object.start(), object.clone());
        object
    }

    /// There is one less. Its window stays until nobody has a reference to it.
    pub fn remove_object(&self, object: &Object) {
        self.objects.write().unwrap_or_else(PoisonError::into_inner).remove(&object.start());
    }

    /// Pages of managed objects that are in memory.
    pub fn resident_pages(&self) -> u64 {
        let managed = |object: &&Arc<Object>| object.is_managed();
        self.objects().values().filter(managed).filter_map(|object| object.file.look().ok()).map(|look| look.2).sum()
    }

    /// All clients.
    pub fn all_clients(&self) -> Vec<Arc<Client>> {
        self.clients.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The client of this number.
    pub fn client(&self, number: u64) -> Option<Arc<Client>> {
        let clients = self.clients.read().unwrap_or_else(PoisonError::into_inner);
        clients.iter().find(|client| client.number == number).cloned()
    }

    /// There is one more, whose messages are heard from here on.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn add_client(&self, process: Option<u32>, uffd: Uffd, mappings: Mappings) -> io::Result<Arc<Client>> {
        let number = self.last_number.fetch_add(1, Relaxed) + 1;
        let client = Arc::new(Client::new(number, process, uffd, mappings));
        self.clients.write().unwrap_or_else(PoisonError::into_inner).push(client.clone());
        epoll::add(&self.poll, client.uffd.as_fd(), epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        Ok(client)
    }

    /// Its memory is gone.
    pub fn remove_client(&self, client: &Client) {
        let _ = epoll::delete(&self.poll, client.uffd.as_fd());
        let mut clients = self.clients.write().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|other| other.number != client.number);
        drop(clients);
        self.waiting().retain(|waiting| waiting.client.number != client.number);
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread waits.
    pub fn waits(&self, waiting: Waiting) {
        self.waiting().push(waiting);
    }

    /// Who waits for a page of `start..end`, of a window.
    pub fn who_waits(&self, start: usize, end: usize) -> Option<Waiting> {
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
        for waiting in woken {
            let _ = waiting.client.uffd.wake(waiting.at, PAGE_SIZE);
        }
    }

    /// To be polled: somebody has sent messages.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }

    /// The clients that have sent some.
    pub fn ready_clients(&self) -> Vec<Arc<Client>> {
        let mut events = Vec::with_capacity(16);
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), Some(&Default::default())) {
            Ok(_) => events.iter().filter_map(|event| self.client(event.data.u64())).collect(),
            Err(_) => Vec::new(),
        }
    }
}
