//! Shared memory of the tree: what its processes have mapped, and the server that swaps it once that is needed.
//!
//! Until then an object is only held here, and given up when nobody has it mapped. A userfaultfd for shared memory is kept here as well as
//! in the server, as long as there is memory that it is for: if the server were killed, and with it the last reference to one, what is missing
//! would read as zeros until the tree has ended.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, WaitOptions};
use uswap_engine::group::{Group, Holder};
use uswap_engine::protocol::{self, Message, Received};
use uswap_shmem::server::{self, Start};
use uswap_sys::launch::{self, Side};
use uswap_sys::shared_file::SharedFile;
use uswap_sys::thread;
use uswap_sys::uffd::{Uffd, UffdUnavailable};

use super::super::watchdog::SharedServer;
use super::{Ending, Shared, Supervisor};
use crate::failure::{reason, say};

/// So much of the budget must be in use before shared memory is swapped, as for private memory.
const STARTS_AT_EIGHTHS: u64 = 5;
/// Less shared memory, in pages, is left alone.
const PAGES_MIN: u64 = 256;
/// With this status the server ends that could not begin.
const NEVER_BEGAN: i32 = 3;
/// How long the end of the server is waited for.
const ENDS_WITHIN: Duration = Duration::from_secs(1);
/// How long, if it brings back what outlives the run: at the speed of a slow disk.
const BRINGS_BACK_WITHIN: Duration = Duration::from_secs(600);
/// How often it is looked which memory is gone.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What is held for the server, or for nobody yet.
#[derive(Default)]
pub(super) struct SharedMemory {
    /// Objects, with what is to be said of them, as long as there is no server.
    objects: Vec<(SharedFile, Message)>,
    /// All userfaultfds whose memory is in use, with the process that has sent it, if one has.
    kept: Vec<(Uffd, Option<u32>)>,
    looked: Option<Instant>,
    server: Option<Server>,
    /// It could not be started: nothing is tried again.
    is_impossible: bool,
}

struct Server {
    pid: u32,
    index: u32,
    line: OwnedFd,
    /// The kernel tells it of forks.
    hears_of_forks: bool,
}

impl Server {
    fn send(&self, message: &Message, fd: BorrowedFd<'_>) {
        // Where it has ended, that is found by itself.
        let _ = protocol::send(&self.line, message, &[fd]);
    }
}

impl SharedMemory {
    /// Whether it is the server.
    pub fn is_server(&self, pid: u32) -> bool {
        self.server.as_ref().is_some_and(|server| server.pid == pid)
    }

    /// Where the server says something.
    pub fn line(&self) -> Option<BorrowedFd<'_>> {
        self.server.as_ref().map(|server| server.line.as_fd())
    }

    /// The server, and who may wait for it.
    pub fn watched<'a>(&'a self, group: &'a Group) -> Option<SharedServer<'a>> {
        let server = self.server.as_ref()?;
        let uffds = self.kept.iter().map(|(uffd, process)| (uffd.as_fd(), *process)).collect();
        Some(SharedServer { pid: server.pid, slot: group.process(server.index), uffds })
    }

    /// A process has mapped an object, or handed over the userfaultfd for its shared memory.
    pub fn hand_over(&mut self, message: Message, fd: OwnedFd, process: u32, holder: Holder) {
        let Holder { index, generation } = holder;
        let message = match message {
            Message::SharedObject { start, .. } => Message::SharedObject { process, index, generation, start },
            Message::SharedNamed { start, .. } => Message::SharedNamed { process, index, generation, start },
            Message::SharedChanged { device, number, .. } => {
                Message::SharedChanged { process, index, generation, device, number }
            }
            _ => {
                self.kept.extend(fd.try_clone().map(|fd| (Uffd::received(fd), Some(process))).ok());
                Message::SharedClient { process, index, generation }
            }
        };
        match (&self.server, message) {
            (Some(server), _) => server.send(&message, fd.as_fd()),
            (None, Message::SharedObject { .. }) if !self.is_impossible => {
                self.objects.push((SharedFile::received(fd), message));
            }
            // It asks once there is a server, or when there was one.
            (None, _) => {}
        }
    }

    /// Pages of objects that are in memory. What nobody has mapped is given up.
    fn pages(&mut self) -> u64 {
        self.objects.retain(|(file, _)| file.is_mapped());
        self.objects.iter().filter_map(|(file, _)| file.look().ok()).map(|look| look.pages).sum()
    }

    /// What the server says. False when it has ended.
    fn hear(&mut self) -> bool {
        let Some(server) = &self.server else { return true };
        loop {
            match protocol::receive(&server.line) {
                Ok(Received::Message(Message::KeepUffd, fds)) => {
                    self.kept.extend(fds.map(|fd| (Uffd::received(fd), None)));
                }
                Ok(Received::Message(..) | Received::Malformed(_)) => {}
                Ok(Received::Nothing) => return true,
                Ok(Received::EndOfFile) | Err(_) => return false,
            }
        }
    }

    /// Userfaultfds whose memory is gone are closed.
    fn forget_what_is_gone(&mut self) {
        if self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY) {
            self.looked = Some(Instant::now());
            self.kept.retain(|(uffd, _)| uffd.has_memory());
        }
    }

    /// Hands over what came before there was a server.
    fn hand_all_over(&mut self) {
        let Some(server) = &self.server else { return };
        for (file, message) in self.objects.drain(..) {
            server.send(&message, file.as_fd());
        }
    }

    /// Ends the server, after the tree. It stays as long as somebody whom nobody knows has shared memory still. Until it has brought back what
    /// `outlives` the run, others would see zeros.
    pub fn end(&mut self, outlives: bool) {
        let Some(Server { pid, line, .. }) = self.server.take() else { return };
        drop(line);
        let (pid, begun) = (Pid::from_raw(pid as i32), Instant::now());
        let within = if outlives { BRINGS_BACK_WITHIN } else { ENDS_WITHIN };
        while matches!(rustix::process::waitpid(pid, WaitOptions::NOHANG), Ok(None)) && begun.elapsed() < within {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Supervisor {
    /// In each turn.
    pub(super) fn look_after_shared_memory(&mut self) {
        let of_tree = &mut self.tree.shared_memory;
        if !of_tree.hear() {
            let pid = of_tree.server.as_ref().and_then(|server| Pid::from_raw(server.pid as i32));
            // It is our child, unless this is a process that stayed behind.
            let status = rustix::io::retry_on_intr(|| rustix::process::waitpid(pid, WaitOptions::empty()));
            let status = status.ok().flatten().and_then(|(_, status)| status.exit_status());
            return self.shared_memory_server_has_ended(status);
        }
        of_tree.forget_what_is_gone();
        let group = &self.shared.group;
        let has_named = group.is_named_memory_mapped();
        if of_tree.server.is_some() || of_tree.is_impossible || (of_tree.objects.is_empty() && !has_named) {
            return;
        }
        let is_scarce = group.usage_pages() > group.limit_pages() / 8 * STARTS_AT_EIGHTHS;
        let is_enough = of_tree.pages() >= PAGES_MIN || (has_named && group.fixed_pages().1 >= PAGES_MIN);
        if !is_enough || !is_scarce {
            return;
        }
        if group.does_direct_io() {
            of_tree.is_impossible = true;
            of_tree.objects.clear();
            return self.tell("shared memory is not swapped: a process does direct I/O (O_DIRECT)");
        }
        match start(&self.shared, self.messages.for_agents()) {
            Ok(server) => {
                let hears_of_forks = server.hears_of_forks;
                of_tree.server = Some(server);
                of_tree.hand_all_over();
                self.shared.group.swap_shared(hears_of_forks);
                if has_named && !hears_of_forks {
                    self.tell(
                        "segments and files in memory are not swapped (--shared files): that takes CAP_SYS_PTRACE",
                    );
                }
            }
            Err(error) => {
                of_tree.is_impossible = true;
                of_tree.objects.clear();
                self.tell(format_args!("shared memory is not swapped: {}", reason(&error)));
            }
        }
    }

    /// The server has ended, and with it what it had swapped out, unless it never began.
    pub(super) fn shared_memory_server_has_ended(&mut self, status: Option<i32>) {
        let Some(server) = self.tree.shared_memory.server.take() else { return };
        if status == Some(NEVER_BEGAN) {
            self.tree.shared_memory.is_impossible = true;
            self.tell("shared memory is not swapped: its server could not begin");
            return self.shared.group.retire(server.index);
        }
        say("the run is ended: the process that has its shared memory has ended");
        self.end_tree(Ending::EndedByUs);
        self.shared.group.retire(server.index);
    }
}

/// Whether the kernel tells us of forks of those whose shared memory is served: that takes CAP_SYS_PTRACE.
fn hears_of_forks(device: Option<BorrowedFd<'_>>) -> Result<bool, UffdUnavailable> {
    for hears in [true, false] {
        match Uffd::for_shared_memory(device)?.serves_shared_memory(hears) {
            Err(UffdUnavailable::NoPermission) if hears => {}
            tried => return tried.map(|()| hears),
        }
    }
    Err(UffdUnavailable::NoPermission)
}

/// Starts the server: a child of ours with nothing of ours but what it needs.
fn start(shared: &Shared, stderr: BorrowedFd<'_>) -> io::Result<Server> {
    let hears_of_forks = hears_of_forks(shared.device.as_ref().map(AsFd::as_fd)).map_err(io::Error::other)?;
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    let stderr = stderr.try_clone_to_owned()?;
    let device = shared.device.as_ref().map(OwnedFd::try_clone).transpose()?;
    let areas = shared.areas.iter().map(|area| area.fd.try_clone()).collect::<io::Result<Vec<OwnedFd>>>()?;
    let index = shared.group.allot(std::process::id()).ok_or(io::ErrorKind::OutOfMemory)?;
    let generation = shared.group.process(index).life.generation.load(Relaxed);
    match launch::fork() {
        Ok(Side::Parent(pid)) => {
            shared.group.process(index).life.pid.store(pid, Relaxed);
            Ok(Server { pid, index, line: ours, hears_of_forks })
        }
        Ok(Side::Child) => {
            let group = Group::open(&shared.group_fd);
            let mut kept = vec![theirs.as_raw_fd(), stderr.as_raw_fd()];
            kept.extend(device.iter().chain(&areas).map(AsRawFd::as_raw_fd));
            let _ = rustix::process::setsid();
            let _ = rustix::thread::set_name(c"uswap-shmem");
            let served = thread::unshare_files_and_close(&kept).and(group).and_then(|group| {
                let group: &'static Group = Box::leak(Box::new(group));
                server::serve(Start { group, index, generation, socket: theirs, device, stderr, areas, hears_of_forks })
            });
            std::process::exit(if served.is_err() { NEVER_BEGAN } else { 0 })
        }
        Err(error) => {
            shared.group.retire(index);
            Err(error)
        }
    }
}
