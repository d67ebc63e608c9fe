//! The process that is the shared-memory server: the engine in it is the one that runs on Linux, on the code of `uswap-shmem`, and so is
//! what reads the processes' messages. What asks Linux's /proc who has what mapped (`adoption`) is not here: all that is mapped was
//! registered before.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use uswap_engine::engine::Engine;
use uswap_engine::monitor::Monitor;
use uswap_engine::notices::Notices;
use uswap_engine::post::Post;
use uswap_shmem::changes::Changes;
use uswap_shmem::client::{Client, Mapping, Mappings};
use uswap_shmem::kernel::{Kernel, Poll, SharedObject};
use uswap_shmem::shared::Shared;
use uswap_shmem::system::SharedMemory;
use uswap_shmem::trust;
use uswap_system::faults::Heard;
use uswap_system::sync::Word;
use uswap_system::{PAGE_SIZE, System};

use super::page_cache::{ModelObject, ObjectId};
use super::shared_mm::SharedVma;
use super::shared_uffd::SharedUffd;
use crate::faults::ModelCall;
use crate::mm::is_host;
use crate::model_host::{ModelThreads, OnModel};
use crate::process::ProcessId;
use crate::scheduler::Kind;
use crate::supervisor::ModelSupervisor;
use crate::system::Model;
use crate::tree::{Crew, Tree};
use crate::userfaultfd_ctx::UserfaultId;
use crate::waits::{Key, Woke};
use crate::world::{End, World, current};

/// How often the server looks who has ended.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What a process asks of the server.
enum Request {
    /// It has made a userfaultfd.
    Client(ProcessId, SharedUffd),
    /// It has mapped an object at this page, registered.
    Object(ProcessId, ObjectId, usize),
}

/// What the server has, beside the engine.
pub struct ServerEnvironment {
    shared: Shared<Model>,
    notices: Notices<SharedMemory<Model>>,
    post: Post<SharedMemory<Model>>,
    crew: Crew,
}

/// The way to the server.
pub struct Server {
    /// Its process.
    pub process: ProcessId,
    requests: RefCell<VecDeque<(Request, Rc<Word<Model>>)>>,
    posted: Word<Model>,
    has_begun: Cell<bool>,
}

/// Of the process of the running thread, which is the server.
fn environment() -> &'static ServerEnvironment {
    let world = current();
    let environment = world.kernel().process(world.this_process()).environment;
    environment.and_then(|found| found.downcast_ref()).expect("this is the server")
}

impl OnModel for SharedMemory<Model> {
    fn crew() -> Crew {
        environment().crew
    }
}

impl Kernel for Model {
    type Uffd = SharedUffd;
    type Object = ModelObject;
    type Poll = ModelPoll;
    type Threads = ModelThreads<SharedMemory<Model>>;

    fn shared() -> &'static Shared<Model> {
        &environment().shared
    }

    fn notices() -> &'static Notices<SharedMemory<Model>> {
        &environment().notices
    }

    fn is_of_engine(start: usize, _: usize) -> bool {
        is_host(start / PAGE_SIZE)
    }

    fn keep(_: &SharedUffd) -> io::Result<()> {
        current().point();
        Ok(())
    }

    fn mapped(shared: &Shared<Model>, client: &Client<Model>) -> Option<Mappings> {
        client.uffd.mapped().map(|vmas| vmas.iter().filter_map(|vma| mapping_of(shared, vma)).collect())
    }

    fn have_messages_read(shared: &Shared<Model>) {
        shared.poll().is_called.store(true, Relaxed);
        current().wake_key(Key::Clients);
    }

    fn wait_for_clients(
        poll: &ModelPoll,
        call: &ModelCall,
        _: &ModelSupervisor,
        patience: Option<Duration>,
    ) -> io::Result<Heard> {
        let world = current();
        world.point();
        let until = patience.map(|patience| world.clock().deadline(patience));
        loop {
            let mut messages = poll.is_called.swap(false, Relaxed);
            poll.ready(|_| messages = true);
            let heard = Heard { messages, call: call.is_made(), no_supervisor: false };
            if heard != Heard::default() || world.block(Key::Clients, until) == Woke::TimedOut {
                return Ok(heard);
            }
        }
    }

    fn end_after_clients() -> ! {
        Model::kill_self()
    }
}

/// What is mapped, by the window of its object, if that is known still.
fn mapping_of(shared: &Shared<Model>, vma: &SharedVma) -> Option<Mapping> {
    let object = shared.all_objects().into_iter().find(|object| object.id == vma.object)?;
    let window = object.start() + vma.first * PAGE_SIZE;
    Some(Mapping { start: vma.start * PAGE_SIZE, end: vma.end * PAGE_SIZE, window, window_end: object.end() })
}

/// The userfaultfds that are polled.
#[derive(Default)]
pub struct ModelPoll {
    userfaults: Mutex<Vec<(u64, UserfaultId)>>,
    /// Messages are to be read, though there may be none.
    is_called: AtomicBool,
}

impl ModelPoll {
    fn userfaults(&self) -> MutexGuard<'_, Vec<(u64, UserfaultId)>> {
        self.userfaults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ModelPoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ModelPoll")
    }
}

impl Poll<SharedUffd> for ModelPoll {
    fn add(&self, number: u64, uffd: &SharedUffd) -> io::Result<()> {
        self.userfaults().push((number, uffd.0));
        // Messages that are there already are heard.
        current().wake_key(Key::Clients);
        Ok(())
    }

    fn remove(&self, uffd: &SharedUffd) {
        self.userfaults().retain(|(_, other)| *other != uffd.0);
    }

    fn ready(&self, mut each: impl FnMut(u64)) {
        let world = current();
        let has_some = |id: &UserfaultId| {
            let kernel = world.kernel();
            let userfault = &kernel.userfaults[id.0];
            userfault.has_messages() && kernel.process(userfault.process).is_alive
        };
        let polled = self.userfaults().clone();
        polled.iter().filter(|(_, id)| has_some(id)).for_each(|(number, _)| each(*number));
    }
}

impl Server {
    /// Starts it, in a process of its own.
    pub fn start(world: &World, tree: &Rc<Tree>) -> Rc<Server> {
        let process = world.new_process();
        let server = Rc::new(Server {
            process,
            requests: RefCell::default(),
            posted: Word::new(0),
            has_begun: Cell::new(false),
        });
        let (tree, begun) = (tree.clone(), server.clone());
        world.spawn(process, "monitor", Kind::Engine, move || monitor(&tree, &begun));
        let control = server.clone();
        world.spawn(process, "server", Kind::Engine, move || control.run());
        server
    }

    /// The running thread's process has a userfaultfd for shared memory from here on.
    pub fn becomes_client(&self) -> SharedUffd {
        let world = current();
        let process = world.this_process();
        let uffd = SharedUffd::open(&mut world.kernel_mut(), process);
        self.ask(Request::Client(process, uffd));
        uffd
    }

    /// An object that the running thread has mapped is known from here on.
    pub fn has_mapped(&self, object: ObjectId, page: usize) {
        self.ask(Request::Object(current().this_process(), object, page));
    }

    fn ask(&self, request: Request) {
        let done = Rc::new(Word::new(0));
        self.requests.borrow_mut().push_back((request, done.clone()));
        self.posted.atomic().fetch_add(1, Relaxed);
        self.posted.wake_all();
        done.wait_while(0);
    }

    fn run(&self) {
        while !self.has_begun.get() {
            Model::sleep(Duration::from_micros(50));
        }
        loop {
            let posted = self.posted.load();
            let request = self.requests.borrow_mut().pop_front();
            match request {
                Some((request, done)) => {
                    serve(request);
                    done.store_and_wake(1);
                }
                None => {
                    forget_what_is_gone();
                    let _ = self.posted.wait(posted, Some(LOOK_EVERY));
                }
            }
        }
    }
}

/// The life of the server's monitor.
fn monitor(tree: &Rc<Tree>, server: &Server) {
    let world = current();
    let process = server.process;
    let filler = SharedUffd::open(&mut world.kernel_mut(), process);
    let environment: &'static ServerEnvironment = Box::leak(Box::new(ServerEnvironment {
        shared: Shared::new(filler, ModelPoll::default(), tree.group),
        notices: Notices::new(),
        post: Post::new(),
        crew: tree.crew,
    }));
    world.kernel_mut().process_mut(process).environment = Some(environment);
    let monitor = tree.join::<SharedMemory<Model>>(process, None).and_then(|member| {
        let slot = member.slot();
        let pool_pages = || slot.pool.bytes.load(Relaxed) / PAGE_SIZE as u64;
        world.kernel_mut().process_mut(process).shared_pages = Some(Box::new(pool_pages));
        Monitor::new(&environment.post, member)
    });
    let why = match monitor {
        Ok(mut monitor) => {
            if monitor.ready() {
                server.has_begun.set(true);
                monitor.run()
            }
            "cannot swap".to_owned()
        }
        Err(error) => format!("cannot join: {error}"),
    };
    world.end(End::Ended { process, why });
}

fn while_nothing_is_read<R>(act: impl FnOnce() -> R) -> R {
    let engine = Engine::<SharedMemory<Model>>::of_process().expect("the engine has begun before the first client");
    engine.while_nothing_moves(|| {
        let _alone = environment().shared.reports.alone();
        act()
    })
}

/// As `uswap-shmem`'s server does it.
fn serve(request: Request) {
    let ServerEnvironment { shared, post, .. } = environment();
    match request {
        Request::Client(process, uffd) => {
            shared
                .add_client(Some(process.pid()), uffd, Mappings::default(), Changes::default())
                .expect("it can be polled");
        }
        Request::Object(process, object, page) => {
            let clients = shared.all_clients();
            let is_of = |client: &&Arc<Client<Model>>| client.process == Some(process.pid());
            let Some(client) = clients.iter().rev().find(is_of) else { return };
            let object = shared.add_object(ModelObject::new(object));
            let start = page * PAGE_SIZE;
            let end = start + (object.end() - object.start());
            let mapping = Mapping { start, end, window: object.start(), window_end: object.end() };
            while_nothing_is_read(|| trust::maps(shared, client, mapping));
            object.manage(true);
            post.ring();
        }
    }
}

/// As `uswap-shmem`'s server does it, where the kernel tells of forks.
fn forget_what_is_gone() {
    let shared = &environment().shared;
    for client in shared.all_clients() {
        if !client.uffd.has_memory() {
            shared.remove_client(&client);
        }
    }
    let mut gone = shared.unmapped_objects();
    if !gone.is_empty() || shared.is_unsure() {
        gone = while_nothing_is_read(|| {
            shared.all_clients().iter().for_each(|client| {
                trust::rests(shared, client);
                trust::settle(shared, client);
            });
            shared.unmapped_objects()
        });
    }
    for object in gone {
        shared.while_forgetting(|| {
            object.manage(false);
            shared.remove_object(&object);
            if let Some(engine) = Engine::<SharedMemory<Model>>::of_process() {
                engine.manages_no_more(object.start(), object.end());
            }
        });
        // The file goes with its last descriptor.
        current().trace(&(0..usize::MAX), format_args!("object {} is forgotten", object.id.0));
        current().kernel_mut().shmem.caches[object.id.0].pages.fill(None);
    }
}
