//! The life of the shared-memory server.
//!
//! The supervisor starts it when shared memory is to be swapped for the first time, and hands it what processes send. The run ends with
//! it, for nobody else has what it has swapped out. When the supervisor ends, so do the processes of the run, each by itself; until the last
//! of them has, their pages are served: with the last reference to a userfaultfd gone, what is missing would read as zeros.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use uswap_engine::engine::Engine;
use uswap_engine::group::{Group, SHARED_REFUSED, SwappedShared};
use uswap_engine::member::Member;
use uswap_engine::monitor::Monitor;
use uswap_engine::post::Post;
use uswap_engine::protocol::{self, Message, Received, keep_uffd};
use uswap_sys::huge_pages;
use uswap_sys::linux::Supervisor;
use uswap_sys::maps::{self, MapsOf};
use uswap_sys::shared_file::{Inode, Origin};
use uswap_sys::thread;
use uswap_sys::uffd::Uffd;
use uswap_system::looks::Vma;
use uswap_system::{Scope, System};

use crate::adoption::{self, Candidate, Look, Verdict};
use crate::changes::Changes;
use crate::client::{Client, Mapping, Mappings};
use crate::named::{self, Returns, Watch};
use crate::object::Object;
use crate::shared::Shared;
use crate::system::SharedMemory;
use crate::trust;

/// How often it is looked whether candidates are complete.
const JUDGE_EVERY: Duration = Duration::from_millis(10);
/// How often it is looked who has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How many messages are heard before all of that is looked at, if they come one after another without end.
const HEARD_AT_ONCE: u32 = 64;

/// Who waits for an answer, by its slot, and what its word was when it had asked.
struct Asker {
    index: u32,
    word: u32,
}

/// What it is answered.
enum Answer {
    /// It can go on.
    Known,
    /// It must not use what it has mapped, or is not served.
    Refused,
}

/// What the server begins with.
pub struct Start {
    /// What the run's processes share, for as long as this process lives.
    pub group: &'static Group,
    /// The server's slot in it.
    pub index: u32,
    /// How often the slot had been used before.
    pub generation: u32,
    /// The connection to the supervisor.
    pub socket: OwnedFd,
    /// /dev/userfaultfd, if that is the way.
    pub device: Option<OwnedFd>,
    /// Where messages to the user go.
    pub stderr: OwnedFd,
    /// The swap areas.
    pub areas: Vec<OwnedFd>,
    /// The kernel tells this process of forks; else children do, by themselves.
    pub hears_of_forks: bool,
}

static POST: Post<SharedMemory> = Post::new();
static SOCKET: OnceLock<OwnedFd> = OnceLock::new();

/// Has the supervisor keep the userfaultfd of a client that a fork has brought.
pub(crate) fn keep(uffd: BorrowedFd<'_>) -> io::Result<()> {
    keep_uffd(SOCKET.get().expect("the server has begun").as_fd(), uffd)
}

/// Serves until the supervisor has gone.
///
/// # Errors
/// It could not begin.
pub fn serve(start: Start) -> io::Result<()> {
    let Start { group, index, generation, socket, device, stderr, areas, hears_of_forks } = start;
    uswap_sys::report::set_agent_stderr(stderr.as_fd())?;
    thread::prepare()?;
    let shared = Shared::begin(device.as_ref().map(AsFd::as_fd), group)?;
    let control = SOCKET.get_or_init(|| socket);
    let supervisor = Supervisor {
        socket: control.try_clone()?,
        device,
        stderr,
        areas: areas.into_iter().map(Some).collect(),
        keep: keep_uffd,
        share: protocol::share,
    };
    let member = Member::<SharedMemory> { group, index, generation, supervisor };
    let mut monitor = Monitor::new(&POST, member)?;
    let (begun, has_begun) = std::sync::mpsc::channel();
    // A thread of libc's, before the engine makes its own: libc's allocator takes no locks in a process that it believes to have one.
    std::thread::Builder::new().name("uswap-monitor".to_owned()).spawn(move || {
        thread::prefer();
        // Its handlers are there before any client is: one that forks waits for them.
        let is_ready = monitor.ready();
        let _ = begun.send(is_ready);
        if is_ready {
            monitor.run()
        }
    })?;
    if has_begun.recv() != Ok(true) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let mut server = Server {
        shared,
        group,
        hears_of_forks,
        candidates: Vec::new(),
        unmapped: BTreeMap::new(),
        looked: Instant::now(),
        judged: Instant::now(),
        judging_took: Duration::ZERO,
        returns: Returns::default(),
        watch: Watch::default(),
    };
    thread::prefer();
    if let Err(error) = server.run(control) {
        uswap_sys::report::end(format_args!("the supervisor cannot be heard: {error}"));
    }
    Ok(())
}

/// The supervisor is gone: ends this process when nobody has shared memory that is swapped.
pub(crate) fn end_after_its_clients() -> ! {
    let shared = Shared::of_process();
    while shared.all_clients().iter().any(|client| client.uffd.has_memory()) {
        std::thread::sleep(JUDGE_EVERY);
    }
    named::bring_all_back(shared);
    std::process::exit(0)
}

/// Does something while no thread has read a message that it has not taken in yet. What was unmapped before the mapping in its place was
/// made is known by then.
pub(crate) fn while_nothing_is_read<R>(act: impl FnOnce() -> R) -> R {
    let engine = Engine::<SharedMemory>::of_process().expect("the engine has begun before the first client");
    engine.while_nothing_moves(|| {
        let _alone = Shared::of_process().reports.alone();
        act()
    })
}

/// Whether the supervisor says something, waited for as long.
fn has_message(control: &OwnedFd, patience: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::new(control, PollFlags::IN)];
    let timeout = Timespec::try_from(patience).ok();
    Ok(rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, timeout.as_ref()))? > 0)
}

struct Server {
    shared: &'static Shared,
    group: &'static Group,
    hears_of_forks: bool,
    candidates: Vec<Candidate>,
    /// Windows of objects that no client has mapped any more, and when that was seen first.
    unmapped: BTreeMap<usize, Instant>,
    looked: Instant,
    judged: Instant,
    judging_took: Duration,
    returns: Returns,
    watch: Watch,
}

impl Server {
    fn run(&mut self, control: &OwnedFd) -> io::Result<()> {
        let mut heard = 0;
        loop {
            self.returns.go_on(self.shared, |object| forget(self.shared, object));
            if has_message(control, if heard == 0 { self.patience() } else { Duration::ZERO })? {
                match protocol::receive(control)? {
                    Received::EndOfFile => end_after_its_clients(),
                    Received::Message(message, mut fds) => self.hear(message, fds.next()),
                    Received::Nothing | Received::Malformed(_) => {}
                }
                heard += 1;
                if heard < HEARD_AT_ONCE {
                    continue;
                }
            }
            heard = 0;
            self.look();
        }
    }

    /// For how long nothing need be looked at. Looking at all processes takes at most a part of the time.
    fn patience(&self) -> Duration {
        match (self.returns.is_empty(), self.candidates.is_empty()) {
            (false, _) => Duration::ZERO,
            (true, true) => LOOK_EVERY,
            (true, false) => JUDGE_EVERY.max(4 * self.judging_took),
        }
    }

    /// Does what it is time for.
    fn look(&mut self) {
        self.look_for_direct_io();
        if self.judged.elapsed() >= JUDGE_EVERY.max(4 * self.judging_took) {
            let begun = Instant::now();
            self.judge_candidates();
            (self.judged, self.judging_took) = (Instant::now(), begun.elapsed());
        }
        if self.watch.is_due() {
            self.watch_what_others_can_have();
        }
        if self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            self.forget_what_is_gone();
        }
    }

    fn hear(&mut self, message: Message, fd: Option<OwnedFd>) {
        let Some(fd) = fd else { return };
        match message {
            Message::SharedObject { process, index, generation, start } => {
                let asker = self.asker(index, generation);
                match Object::new(fd, &self.shared.filler) {
                    Ok(object) if start == 0 => {
                        return self.candidates.push(Candidate::new(self.shared.add_object(object)));
                    }
                    Ok(object) => self.begin_with(object, process, start as usize),
                    Err(error) => self.say(format_args!("uswap: shared memory is not swapped: {error}")),
                }
                self.answer(asker, Answer::Known);
            }
            Message::SharedClient { process, index, generation } => {
                let asker = self.asker(index, generation);
                let answer = match self.add_client(process, Uffd::received(fd)) {
                    Ok(()) => Answer::Known,
                    Err(error) => {
                        self.say(format_args!("uswap: shared memory of process {process} is not swapped: {error}"));
                        Answer::Refused
                    }
                };
                self.answer(asker, answer);
            }
            Message::SharedNamed { process, index, generation, start } => {
                let asker = self.asker(index, generation);
                let answer = self.has_mapped(process, start as usize);
                self.answer(asker, answer);
            }
            Message::SharedChanged { process, index, generation, device, number } => {
                let asker = self.asker(index, generation);
                let answer = self.is_to_change(process, Inode { device, number, is_segment: false });
                self.answer(asker, answer);
            }
            _ => {}
        }
    }

    /// A process has mapped memory that has a name, and waits.
    fn has_mapped(&mut self, process: u32, start: usize) -> Answer {
        let clients = self.shared.all_clients();
        let Some(client) = clients.iter().rev().find(|client| client.process == Some(process)) else {
            return Answer::Refused;
        };
        let mut text = Vec::new();
        // Who cannot be looked at may have mapped what is swapped out.
        if maps::read_maps(MapsOf::Pid(process), &mut text).is_err() {
            return Answer::Refused;
        }
        let vma = maps::vmas(&text).find(|vma| (vma.start..vma.end).contains(&start));
        match vma.is_none_or(|vma| self.consider(client, process, &vma)) {
            true => Answer::Known,
            false => Answer::Refused,
        }
    }

    /// A process is about to cut off a file, or to map its pages in another order, or the like, and waits until none of it is swapped out.
    fn is_to_change(&mut self, process: u32, inode: Inode) -> Answer {
        if self.returns.is_returning(inode) {
            return Answer::Refused;
        }
        let Some(object) = self.shared.object_of(inode) else { return Answer::Known };
        let what = match object.origin {
            Origin::Anonymous => "maps it once more, or its pages in another order",
            _ => "cuts off, punches or seals its file, or maps its pages in another order",
        };
        if object.is_managed() {
            self.give_back(&object, format_args!("is not swapped any more: process {process} {what}"));
            return Answer::Refused;
        }
        self.candidates.retain(|candidate| candidate.object().inode != inode);
        self.leave_alone(&object, format_args!("is not swapped: process {process} {what}"));
        Answer::Known
    }

    /// A client has mapped something: it is, or becomes, an object, or is brought back if it cannot be one any more. Whether it may be used.
    fn consider(&mut self, client: &Client, process: u32, vma: &Vma<'_>) -> bool {
        let Some(inode) = Inode::of(vma) else { return true };
        if self.returns.is_returning(inode) {
            return false;
        }
        let Some(object) = self.object_of(inode, process, vma) else { return true };
        if vma.shared
            && (while_nothing_is_read(|| adoption::register_mapping(self.shared, client, &object, vma))
                || adoption::is_registered(process, vma.start))
        {
            return true;
        }
        let why = format_args!("that process {process} has mapped is not swapped: it cannot be registered there");
        if object.is_managed() {
            self.give_back(&object, why);
            return false;
        }
        self.candidates.retain(|candidate| candidate.object().inode != inode);
        self.leave_alone(&object, why);
        true
    }

    /// What had been swapped is not any more.
    fn give_back(&mut self, object: &Arc<Object>, why: std::fmt::Arguments<'_>) {
        self.returns.leave_alone(object.inode);
        if self.returns.begin(object) {
            self.say(format_args!("uswap: shared memory {why}"));
        }
    }

    /// Memory that has a name, which a process of which nobody knows has mapped.
    fn watch_what_others_can_have(&mut self) {
        let has_name = |object: &Arc<Object>| object.is_managed() && object.origin != Origin::Anonymous;
        let mut objects: Vec<_> = self.shared.all_objects().into_iter().filter(has_name).collect();
        objects.retain(|object| !self.returns.is_returning(object.inode));
        for object in &objects {
            if object.new_end().is_some() {
                self.give_back(object, format_args!("is not swapped any more: its file has got another size"));
            } else if named::is_locked(object) {
                self.give_back(object, format_args!("is not swapped any more: it has been locked (SHM_LOCK)"));
            }
        }
        let look = if objects.is_empty() { None } else { Look::at_all(self.shared).ok() };
        for (object, process) in self.watch.see(&objects, look.as_ref()) {
            self.give_back(&object, format_args!("that process {process} has mapped, too, is not swapped any more"));
        }
    }

    /// A process has sent its userfaultfd.
    fn add_client(&mut self, process: u32, uffd: Uffd) -> io::Result<()> {
        // Another program by now, of which nothing is known.
        let is_before = |client: &Client| client.process == Some(process) && !client.uffd.has_memory();
        let clients = self.shared.all_clients();
        clients.iter().filter(|client| is_before(client)).for_each(|client| self.shared.remove_client(client));
        // It has not waited for the answer, and sends the same one again.
        if clients.iter().any(|client| client.process == Some(process) && client.uffd.has_memory()) {
            return Ok(());
        }
        uffd.serves_shared_memory(self.hears_of_forks).map_err(io::Error::other)?;
        let client = self.shared.add_client(Some(process), uffd, Mappings::default(), Changes::default())?;
        // Before it goes on. Of the fork of a process that has nothing registered the kernel tells nobody, and the child takes it to be told.
        let registered = while_nothing_is_read(|| adoption::register(self.shared, &client));
        if self.hears_of_forks {
            if self.group.config().shared == SwappedShared::Files {
                self.find_named(&client, process);
            }
            return Ok(());
        }
        // It may have been forked, and what it has may be swapped out: it goes on when all of that is registered.
        match registered {
            Ok(true) => Ok(()),
            not => {
                self.shared.remove_client(&client);
                Err(not.err().unwrap_or_else(|| io::Error::other("it cannot be registered there")))
            }
        }
    }

    /// What a client has mapped before anybody asked. What cannot be registered is being mapped just now, or will be found by looking.
    fn find_named(&mut self, client: &Client, process: u32) {
        let mut text = Vec::new();
        if maps::read_maps(MapsOf::Pid(process), &mut text).is_err() {
            return;
        }
        for vma in maps::vmas(&text).filter(|vma| vma.shared && vma.name.starts_with(b"/")) {
            let object = Inode::of(&vma).and_then(|inode| self.object_of(inode, process, &vma));
            if let Some(object) = object.filter(|object| !self.returns.is_returning(object.inode)) {
                while_nothing_is_read(|| adoption::register_mapping(self.shared, client, &object, &vma));
            }
        }
    }

    /// What a process has mapped, if it is an object, or can become one.
    fn object_of(&mut self, inode: Inode, process: u32, vma: &Vma<'_>) -> Option<Arc<Object>> {
        if let Some(object) = self.shared.object_of(inode) {
            return Some(object);
        }
        if self.returns.is_left_alone(inode) || !vma.shared {
            return None;
        }
        let object = named::open(self.shared, process, vma).ok()??;
        if huge_pages::are_made_of_files(inode.device) {
            self.returns.leave_alone(inode);
            self.say(format_args!(
                "uswap: shared memory that process {process} has mapped is not swapped: the kernel may put it into huge pages"
            ));
            return None;
        }
        let object = self.shared.add_object(object);
        self.candidates.push(Candidate::new(object.clone()));
        Some(object)
    }

    /// An object that is registered where `process` has it mapped, and nowhere else yet: nobody can use it before this is known.
    fn begin_with(&self, object: Object, process: u32, start: usize) {
        let clients = self.shared.all_clients();
        let Some(client) = clients.iter().rev().find(|client| client.process == Some(process)) else { return };
        let object = self.shared.add_object(object);
        let end = start + (object.end() - object.start());
        let mapping = Mapping { start, end, window: object.start(), window_end: object.end() };
        while_nothing_is_read(|| trust::maps(self.shared, client, mapping));
        object.manage(true);
        POST.ring();
    }

    /// Who has said something, if it still has its slot.
    fn asker(&self, index: u32, generation: u32) -> Option<Asker> {
        // In this order: who has the slot next changes both.
        let word = self.group.process(index).called.shared_known.load(Acquire);
        (self.group.process(index).life.generation.load(Acquire) == generation).then_some(Asker { index, word })
    }

    /// It can go on; or nobody is answered, where somebody else has its slot by now.
    fn answer(&self, asker: Option<Asker>, answer: Answer) {
        let Some(Asker { index, word }) = asker else { return };
        let changed = match answer {
            Answer::Known => (word & SHARED_REFUSED) | (word.wrapping_add(1) & !SHARED_REFUSED),
            Answer::Refused => word ^ SHARED_REFUSED,
        };
        let shared_known = &self.group.process(index).called.shared_known;
        if shared_known.compare_exchange(word, changed, AcqRel, Relaxed).is_ok() {
            <SharedMemory>::wake(shared_known, Scope::Shared, i32::MAX as u32);
        }
    }

    /// What a device writes to a page that has left would be lost.
    fn look_for_direct_io(&self) {
        if self.group.is_direct_io_announced() {
            while_nothing_is_read(|| self.group.direct_io_is_known::<SharedMemory>());
            self.say(format_args!(
                "uswap: shared memory stays in memory from here on: a process does direct I/O (O_DIRECT)"
            ));
        }
    }

    fn say(&self, line: std::fmt::Arguments<'_>) {
        if self.group.config().verbosity > 0 {
            uswap_sys::report::stderr_line(line);
        }
    }

    fn judge_candidates(&mut self) {
        if self.candidates.is_empty() {
            return;
        }
        for client in self.shared.all_clients() {
            let _ = while_nothing_is_read(|| adoption::register(self.shared, &client));
        }
        let look = Look::at_all(self.shared);
        for mut candidate in std::mem::take(&mut self.candidates) {
            let object = candidate.object().clone();
            match look.as_ref().map(|look| candidate.judge(look)) {
                Ok(Verdict::Later) => self.candidates.push(candidate),
                Ok(Verdict::Managed) => {
                    object.manage(true);
                    self.shared.has_judged();
                    POST.ring();
                }
                Ok(Verdict::Unmapped) => self.shared.remove_object(&object),
                Ok(Verdict::LeftAlone(process)) => {
                    self.leave_alone(
                        &object,
                        format_args!("that process {process} has mapped is not swapped: it cannot be registered there"),
                    );
                }
                Err(error) => self.leave_alone(&object, format_args!("is not swapped: /proc cannot be read: {error}")),
            }
        }
    }

    fn leave_alone(&mut self, object: &Object, why: std::fmt::Arguments<'_>) {
        self.returns.leave_alone(object.inode);
        self.say(format_args!("uswap: shared memory {why}"));
        adoption::unregister(self.shared, object);
        self.shared.remove_object(object);
        self.shared.has_judged();
    }

    /// Clients whose memory is gone, and objects that nobody has mapped.
    fn forget_what_is_gone(&mut self) {
        for client in self.shared.all_clients() {
            if !client.uffd.has_memory() {
                self.shared.remove_client(&client);
            }
        }
        let mut gone = self.shared.unmapped_objects();
        if !gone.is_empty() || self.shared.is_unsure() {
            // Looked at once more while nothing is read: a fork may just have brought a client that has what its parent has unmapped.
            gone = while_nothing_is_read(|| {
                self.shared.all_clients().iter().for_each(|client| {
                    trust::rests(self.shared, client);
                    trust::settle(self.shared, client);
                });
                self.shared.unmapped_objects()
            });
        }
        if !self.hears_of_forks {
            self.leave_out_what_children_have(&mut gone);
        }
        gone.retain(|object| !self.returns.is_returning(object.inode));
        for object in gone {
            // Others may map it later.
            match named::outlives_its_mappings(&object) {
                true => drop(self.returns.begin(&object)),
                false => forget(self.shared, &object),
            }
        }
    }

    /// A child that has been forked and has not told of itself yet may have what no client has: two looks at all processes, some time apart.
    fn leave_out_what_children_have(&mut self, gone: &mut Vec<Arc<Object>>) {
        if gone.is_empty() {
            return self.unmapped.clear();
        }
        let now = Instant::now();
        let Ok(look) = Look::at_all(self.shared) else { return gone.clear() };
        gone.retain(|object| !look.is_mapped(object));
        let since = |object: &Arc<Object>| self.unmapped.get(&object.start()).copied().unwrap_or(now);
        self.unmapped = gone.iter().map(|object| (object.start(), since(object))).collect();
        gone.retain(|object| now - self.unmapped[&object.start()] >= adoption::APART);
    }
}

/// Nobody has it any more, or it is not swapped.
fn forget(shared: &Shared, object: &Object) {
    // In this order: what the engine takes it for from here on it is not, and what it has of it is forgotten while its window is still
    // there.
    shared.while_forgetting(|| {
        object.manage(false);
        shared.remove_object(object);
        if let Some(engine) = Engine::<SharedMemory>::of_process() {
            engine.manages_no_more(object.start(), object.end());
        }
    });
}
