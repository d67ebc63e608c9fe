//! Starting a program so that it cannot tell who started it, and what a supervisor needs besides.
//!
//! A Rust program differs from what it was started as before `main` begins: the standard library ignores
//! SIGPIPE and opens /dev/null where standard descriptors were closed. So a function that runs before that
//! remembers how we came into the world, and the child gets it back, together with the signal mask that
//! the supervisor had before it blocked what it reads from its `SignalFd`.
//!
//! Compiled only with the feature `launch`: none of this belongs into a foreign process.

#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, Ordering::Relaxed};

/// Bits of `INHERITED`: standard descriptors 0, 1, 2 were closed; signals were ignored.
const CLOSED: u32 = 1;
const SIGPIPE_IGNORED: u32 = 1 << 3;
const SIGCHLD_IGNORED: u32 = 1 << 4;
const SIGXFSZ_IGNORED: u32 = 1 << 5;

static INHERITED: AtomicU32 = AtomicU32::new(0);

/// Runs before `main`, and before the standard library changes anything.
extern "C" fn remember_what_we_inherited() {
    let mut inherited = 0;
    for fd in 0..3 {
        // SAFETY: F_GETFD only asks, of any number.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
            inherited |= CLOSED << fd;
        }
    }
    let looked_at =
        [(libc::SIGPIPE, SIGPIPE_IGNORED), (libc::SIGCHLD, SIGCHLD_IGNORED), (libc::SIGXFSZ, SIGXFSZ_IGNORED)];
    for (signal, bit) in looked_at {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: with no new action, sigaction only fills in `action`; all zeroes are a value of it too.
        let handler = unsafe {
            libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
            action.assume_init().sa_sigaction
        };
        if handler == libc::SIG_IGN {
            inherited |= bit;
        }
    }
    INHERITED.store(inherited, Relaxed);
}

#[used]
// SAFETY: functions of .init_array are called once, before main, with arguments that this one ignores; it
// uses nothing that is not there so early.
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = remember_what_we_inherited;

fn inherited(bit: u32) -> bool {
    INHERITED.load(Relaxed) & bit != 0
}

/// Calls `set_disposition(signal, SIG_DFL or SIG_IGN)`. Async-signal-safe.
fn set_disposition(signal: c_int, handler: libc::sighandler_t) {
    // SAFETY: no handler of ours is installed, so nothing of ours runs later. Fails for SIGKILL and SIGSTOP,
    // which have what we would set.
    unsafe { libc::signal(signal, handler) };
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set; sigaddset refuses numbers that are no signals.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for &signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// The signal mask as it was before `block`.
#[derive(Clone, Copy)]
pub struct SavedMask(libc::sigset_t);

/// Blocks signals, so that a `SignalFd` gets them. SIGCHLD gets its default disposition, or the kernel would
/// reap our children itself.
pub fn block(signals: &[i32]) -> io::Result<SavedMask> {
    set_disposition(libc::SIGCHLD, libc::SIG_DFL);
    block_set(&set_of(signals))
}

/// Blocks all signals that can be blocked. A process that holds something for others must not end because somebody
/// signals everybody, as systemd does when it stops a service. SIGKILL ends it all the same.
pub fn block_all() -> io::Result<SavedMask> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set.
    let all = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        all.assume_init()
    };
    block_set(&all)
}

fn block_set(set: &libc::sigset_t) -> io::Result<SavedMask> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets are ours; on success the old one has been filled in.
    unsafe {
        check(-libc::pthread_sigmask(libc::SIG_BLOCK, set, before.as_mut_ptr()))?;
        Ok(SavedMask(before.assume_init()))
    }
}

impl SavedMask {
    /// The calling thread has it again.
    pub fn restore(&self) {
        // SAFETY: the set was a thread's mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// From now on, a write beyond the limit on the size of files (ulimit -f) is an error here, and no end without a word. The
/// programs that [`spawn`] starts have the signal as we were given it.
pub fn ignore_file_size_signal() {
    set_disposition(libc::SIGXFSZ, libc::SIG_IGN);
}

/// One signal that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalInfo {
    /// Its number.
    pub signal: i32,
    /// The kernel sent it by itself: a key on the terminal, a hang-up. Everybody in the foreground has got it.
    pub from_kernel: bool,
    /// Who sent it, if a process did.
    pub sender_pid: u32,
    /// What was sent with it, by sigqueue(3).
    pub value: Option<usize>,
}

/// signalfd(2): blocked signals, as something to read.
pub struct SignalFd(OwnedFd);

impl SignalFd {
    /// For these signals, which must be blocked.
    pub fn new(signals: &[i32]) -> io::Result<SignalFd> {
        let set = set_of(signals);
        // SAFETY: `set` is a signal set; -1 asks for a new descriptor, which is ours alone.
        unsafe {
            let fd = check(libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
            Ok(SignalFd(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// The next signal, if one waits.
    pub fn read(&self) -> Option<SignalInfo> {
        // struct signalfd_siginfo: signo at 0, code at 8, pid at 12, ptr at 48.
        let mut bytes = [0u8; size_of::<libc::signalfd_siginfo>()];
        let got = rustix::io::read(&self.0, &mut bytes).ok()?;
        if got != bytes.len() {
            return None;
        }
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let value = word(48) as usize | (word(52) as usize) << 32;
        Some(SignalInfo {
            signal: word(0) as i32,
            from_kernel: word(8) as i32 == libc::SI_KERNEL,
            sender_pid: word(12),
            value: (word(8) as i32 == libc::SI_QUEUE).then_some(value),
        })
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Why a program did not start.
#[derive(Debug)]
pub enum SpawnError {
    /// There is no process for it.
    Fork(io::Error),
    /// execve(2) refused.
    Exec(io::Error),
}

/// A program, ready to be started: nothing is allocated after the fork.
pub struct Program {
    /// The file, as execve(2) wants it.
    pub file: CString,
    /// Arguments, the name first.
    pub arguments: Vec<CString>,
    /// Its environment.
    pub environment: Environment,
}

/// The environment of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `NAME=value` each.
    pub variables: Vec<CString>,
    /// Names of variables whose value is the program's pid.
    pub with_own_pid: Vec<CString>,
}

/// `NAME=pid`, in which the child itself fills in the pid: nobody else knows it before the program runs.
struct OwnPid {
    /// A C string with room for the digits: zeros.
    text: Box<[AtomicU8]>,
    digits_at: usize,
}

/// Digits of the largest pid, and the zero at the end.
const PID_ROOM: usize = 11;

impl OwnPid {
    fn new(name: &CString) -> OwnPid {
        let named = name.as_bytes().iter().chain(b"=").chain(&[0; PID_ROOM]);
        OwnPid { text: named.map(|byte| AtomicU8::new(*byte)).collect(), digits_at: name.as_bytes().len() + 1 }
    }

    /// Allocates nothing.
    fn fill_in(&self, pid: u32) {
        let digits = pid.checked_ilog10().unwrap_or(0) as usize + 1;
        let mut rest = pid;
        for place in self.text[self.digits_at..][..digits].iter().rev() {
            place.store(b'0' + (rest % 10) as u8, Relaxed);
            rest /= 10;
        }
    }
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Bytes of the stack that a child runs on until it executes its program: a handful of calls.
const CHILD_STACK_BYTES: usize = 64 << 10;

/// Starts a program as our child, with the signal mask, ignored signals and closed descriptors that we were
/// started with. It is killed when we die. Returns its pid when it has been executed.
///
/// As vfork(2), and for its reason: a fork that is followed by an exec copies page tables for nothing. The child runs
/// on a stack of its own while this thread waits.
pub fn spawn(program: &Program, mask: &SavedMask) -> Result<u32, SpawnError> {
    let arguments = pointers(&program.arguments);
    let own_pid: Vec<OwnPid> = program.environment.with_own_pid.iter().map(OwnPid::new).collect();
    let mut environment = pointers(&program.environment.variables);
    // In front of the null pointer.
    let end = environment.len() - 1;
    environment.splice(end..end, own_pid.iter().map(|variable| variable.text.as_ptr().cast()));
    let start = Start {
        file: program.file.as_ptr(),
        arguments: arguments.as_ptr(),
        environment: environment.as_ptr(),
        own_pid: &own_pid,
        mask,
        parent: std::process::id(),
        errno: AtomicI32::new(0),
    };
    let mut stack = vec![MaybeUninit::<u128>::uninit(); CHILD_STACK_BYTES / size_of::<u128>()];
    // SAFETY: the child shares our memory, and this thread is stopped until the child executes a program or ends: so
    // `start`, what it points to, and the stack outlive its use of them, and what it does to libc's data of this thread
    // (errno) is over when this thread goes on. The stack's end is aligned as a u128 is. The child calls
    // async-signal-safe functions only; signals that have handlers of ours are those of faults in our own code.
    let child = check(unsafe {
        libc::clone(
            start_program,
            stack.as_mut_ptr_range().end.cast(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            std::ptr::from_ref(&start).cast_mut().cast(),
        )
    })
    .map_err(SpawnError::Fork)?;
    match start.errno.load(Relaxed) {
        // It executes, or was killed before it could, which its status will say.
        0 => Ok(child as u32),
        errno => {
            // SAFETY: our own child, which exits right now; no status is asked for.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            Err(SpawnError::Exec(io::Error::from_raw_os_error(errno)))
        }
    }
}

/// What a child needs to become a program, and what it answers.
struct Start<'a> {
    file: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    own_pid: &'a [OwnPid],
    mask: &'a SavedMask,
    parent: u32,
    /// Why execve(2) refused.
    errno: AtomicI32,
}

/// The child's part: never returns. Its argument is a [`Start`].
extern "C" fn start_program(start: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes a pointer to its own `Start`, and waits.
    let start = unsafe { &*start.cast::<Start<'_>>() };
    start.own_pid.iter().for_each(|variable| variable.fill_in(std::process::id()));
    // SAFETY: async-signal-safe calls with valid arguments, the two lists being of C strings and ending with null; the
    // descriptors closed are those that were closed when we started, in a table that is the child's own.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if ![start.parent, 0].contains(&(libc::getppid() as u32)) {
            // The supervisor died before the line above: nobody would tell us. In a pid namespace of the child's own
            // (unshare -p) it has no number.
            libc::_exit(125);
        }
        for fd in 0..3 {
            if inherited(CLOSED << fd) {
                libc::close(fd);
            }
        }
        let ignored_or_default = |bit| {
            if inherited(bit) { libc::SIG_IGN } else { libc::SIG_DFL }
        };
        set_disposition(libc::SIGPIPE, ignored_or_default(SIGPIPE_IGNORED));
        set_disposition(libc::SIGCHLD, ignored_or_default(SIGCHLD_IGNORED));
        set_disposition(libc::SIGXFSZ, ignored_or_default(SIGXFSZ_IGNORED));
        libc::pthread_sigmask(libc::SIG_SETMASK, &start.mask.0, std::ptr::null_mut());
        // The system call itself: in a nested run the outer agent wraps execve to put itself in front.
        libc::syscall(libc::SYS_execve, start.file, start.arguments, start.environment);
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOEXEC);
        start.errno.store(errno, Relaxed);
        libc::_exit(126)
    }
}

/// Which side of a `fork` we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The old process; the new one has this pid.
    Parent(u32),
    /// The new process.
    Child,
}

/// fork(2), for a supervisor that has no threads of its own.
pub fn fork() -> io::Result<Side> {
    // SAFETY: glibc keeps its own locks consistent over fork, and threads that could hold others (the agent of
    // an outer group, in a nested run) share no locks with our code.
    match check(unsafe { libc::fork() })? {
        0 => Ok(Side::Child),
        pid => Ok(Side::Parent(pid as u32)),
    }
}

/// The descriptors that we were started with, standard ones aside. To be asked before anything is opened.
pub struct InheritedDescriptors(Vec<RawFd>);

impl InheritedDescriptors {
    /// Looks them up.
    pub fn now() -> InheritedDescriptors {
        InheritedDescriptors(open_descriptors())
    }

    /// Closes them here, once the program has its own: or whoever reads from the other end of a pipe would wait
    /// for us, too. Not those by which this process has locked a file (`setlock FILE uswap run ...`): the locks would go.
    pub fn close(self) {
        for fd in self.0.into_iter().filter(|&fd| !has_record_locks(fd)) {
            // SAFETY: it was open before this program opened anything, so no object of ours owns it.
            unsafe { libc::close(fd) };
        }
    }
}

/// Whether this process has a lock of fcntl(2) on the file.
fn has_record_locks(fd: RawFd) -> bool {
    let is_ours = |line: &str| line.starts_with("lock:") && line.contains("POSIX");
    std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).is_ok_and(|text| text.lines().any(is_ours))
}

/// Open descriptors but 0, 1, 2.
fn open_descriptors() -> Vec<RawFd> {
    let Ok(directory) = std::fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    let number = |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let mut fds: Vec<RawFd> = directory.filter_map(number).filter(|fd| *fd > 2).collect();
    // The one that the directory was read by is gone.
    // SAFETY: F_GETFD only asks, of any number.
    fds.retain(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } != -1);
    fds
}

/// Puts /dev/null in the place of standard input and output, and of standard error if asked.
pub fn null_stdio(error_too: bool) -> io::Result<()> {
    let open = || std::fs::OpenOptions::new().read(true).write(true).open("/dev/null").map(OwnedFd::from);
    // Without /dev: what refuses all text.
    let null = open().or_else(|_| rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC))?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    if error_too {
        rustix::stdio::dup2_stderr(&null)?;
    }
    Ok(())
}

/// Sends a signal by number to the process group that process `leader` leads.
pub fn send_signal_to_group(leader: u32, signal: i32) -> io::Result<()> {
    if leader <= 1 {
        // To kill(2) -1 is everybody.
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: kill has no preconditions on memory.
    check(unsafe { libc::kill(-(leader as libc::pid_t), signal) }).map(drop)
}

/// Sends a signal by number, real-time signals included.
pub fn send_signal(pid: u32, signal: i32) -> io::Result<()> {
    if pid == 0 {
        // To kill(2) that is our own process group.
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: kill has no preconditions on memory.
    check(unsafe { libc::kill(pid as libc::pid_t, signal) }).map(drop)
}

/// Hands a signal on, with what was sent with it.
pub fn pass_signal(pid: u32, info: &SignalInfo) -> io::Result<()> {
    let Some(value) = info.value else { return send_signal(pid, info.signal) };
    if pid == 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    let value = libc::sigval { sival_ptr: value as *mut libc::c_void };
    // SAFETY: sigqueue has no preconditions on memory; the value is not looked at.
    check(unsafe { libc::sigqueue(pid as libc::pid_t, info.signal, value) }).map(drop)
}

/// Stops ourselves until somebody sends SIGCONT.
pub fn stop_self() {
    // SAFETY: raise has no preconditions on memory.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Ends this process by a signal, as the program that it ran for was: default action, no core file. `alone`: no anchor
/// shares our memory any more.
pub fn die_by_signal(signal: i32, alone: bool) -> ! {
    // Less than any core file; and 1, not 0, because a core may also go to a program (core_pattern), which only 1 forbids.
    let none = rustix::process::Rlimit { current: Some(1), maximum: Some(1) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    if alone {
        // The kernel need not even log that. It goes by memory, and nobody could open the descriptors of an anchor.
        let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    }
    set_disposition(signal, libc::SIG_DFL);
    let set = set_of(&[signal]);
    // SAFETY: unblocking and raising a signal with its default action runs no code of ours.
    unsafe {
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        libc::raise(signal);
    }
    // A signal whose default action does not end a process cannot have ended the other one either.
    std::process::exit(128 + signal)
}

/// The process at the other end of a unix socket when it connected: a descriptor and its pid, which is 0 when
/// its pid namespace is not one that we can see.
pub fn peer_process(socket: BorrowedFd<'_>) -> io::Result<(u32, OwnedFd)> {
    let credentials = peer_credentials(socket)?;
    let pid = credentials.pid as u32;
    let mut pidfd: c_int = -1;
    if get_option(socket, libc::SO_PEERPIDFD, &mut pidfd).is_ok() && pidfd >= 0 {
        // SAFETY: the kernel has just made this descriptor for us.
        return Ok((pid, unsafe { OwnedFd::from_raw_fd(pidfd) }));
    }
    // Before Linux 6.5; or the process is gone, which this says too.
    let pid_or_gone = rustix::process::Pid::from_raw(credentials.pid).ok_or(io::ErrorKind::NotFound)?;
    let pidfd = rustix::process::pidfd_open(pid_or_gone, rustix::process::PidfdFlags::empty())?;
    Ok((pid, pidfd))
}

/// `SO_PASSRIGHTS` of asm-generic/socket.h.
const SO_PASSRIGHTS: c_int = 83;

/// Whether descriptors may be sent to a unix socket, and to those that are accepted from it. Who receives one has to close it, which
/// may take as long as its sender likes: that of a connection that lingers, or of a file system that he serves.
///
/// # Errors
/// Before Linux 6.16, where anybody may send any.
pub fn let_descriptors_in(socket: BorrowedFd<'_>, may: bool) -> io::Result<()> {
    let value = c_int::from(may);
    // SAFETY: the kernel reads a `c_int`.
    check(unsafe {
        let (value, length) = (std::ptr::from_ref(&value).cast(), size_of::<c_int>() as libc::socklen_t);
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, value, length)
    })
    .map(drop)
}

/// The effective user and group of whoever is at the other end of a unix socket, when it connected.
pub fn peer_user(socket: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let credentials = peer_credentials(socket)?;
    Ok((credentials.uid, credentials.gid))
}

fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    get_option(socket, libc::SO_PEERCRED, &mut credentials)?;
    Ok(credentials)
}

/// Types that getsockopt(2) may fill in.
trait SocketOption {}
impl SocketOption for libc::ucred {}
impl SocketOption for c_int {}

fn get_option<T: SocketOption>(socket: BorrowedFd<'_>, option: c_int, value: &mut T) -> io::Result<()> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` has `length` bytes, and any bytes are a value of it: `SocketOption` is for integers only.
    check(unsafe {
        let value = std::ptr::from_mut(value).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, &mut length)
    })
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(words: &[&str]) -> Program {
        let c = |s: &&str| CString::new(*s).unwrap();
        Program {
            file: c(&words[0]),
            arguments: words.iter().map(c).collect(),
            environment: Environment { variables: vec![c(&"A=b")], with_own_pid: Vec::new() },
        }
    }

    fn status_of(pid: u32) -> i32 {
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(pid as i32, &mut status, 0) }, pid as i32);
        status
    }

    #[test]
    fn a_program_starts_with_its_arguments_and_environment() {
        let mask = block(&[]).unwrap();
        let pid = spawn(&program(&["/bin/sh", "-c", "test $A = b && exit 7"]), &mask).unwrap();
        assert_eq!(libc::WEXITSTATUS(status_of(pid)), 7);
    }

    #[test]
    fn a_program_is_told_its_own_pid() {
        let mask = block(&[]).unwrap();
        let mut program = program(&["/bin/sh", "-c", "test $A$FIRST$SECOND = b$$$$ && exit 7"]);
        program.environment.with_own_pid = vec![c"FIRST".into(), c"SECOND".into()];
        let pid = spawn(&program, &mask).unwrap();
        assert_eq!(libc::WEXITSTATUS(status_of(pid)), 7);
        for pid in [1, 10, 4194303, u32::MAX] {
            let variable = OwnPid::new(&c"X".into());
            variable.fill_in(pid);
            let text: Vec<u8> =
                variable.text.iter().map(|byte| byte.load(Relaxed)).take_while(|byte| *byte != 0).collect();
            assert_eq!(String::from_utf8(text).unwrap(), format!("X={pid}"));
        }
    }

    #[test]
    fn a_program_that_cannot_be_executed_says_why() {
        let mask = block(&[]).unwrap();
        let Err(SpawnError::Exec(error)) = spawn(&program(&["/nowhere/at/all"]), &mask) else { panic!("it ran") };
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_child_has_the_mask_from_before() {
        let mask = block(&[libc::SIGUSR1, libc::SIGWINCH]).unwrap();
        let pid = spawn(&program(&["/bin/sh", "-c", "kill -USR1 $$; exit 3"]), &mask).unwrap();
        assert_eq!(libc::WTERMSIG(status_of(pid)), libc::SIGUSR1);
    }

    #[test]
    fn signals_are_read_with_their_sender() {
        block(&[libc::SIGUSR2]).unwrap();
        let signals = SignalFd::new(&[libc::SIGUSR2]).unwrap();
        assert_eq!(signals.read(), None);
        // SAFETY: sends a blocked signal to this thread.
        unsafe { libc::raise(libc::SIGUSR2) };
        let info = signals.read().unwrap();
        assert_eq!((info.signal, info.from_kernel, info.sender_pid), (libc::SIGUSR2, false, std::process::id()));
    }

    #[test]
    fn a_process_dies_by_the_signal_it_is_told() {
        for alone in [true, false] {
            match fork().unwrap() {
                Side::Child => die_by_signal(libc::SIGSEGV, alone),
                Side::Parent(pid) => {
                    let status = status_of(pid);
                    assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
                    assert!(!libc::WCOREDUMP(status));
                }
            }
        }
    }

    #[test]
    fn the_peer_of_a_socket_is_known() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let (pid, _pidfd) = peer_process(one.as_fd()).unwrap();
        assert_eq!(pid, std::process::id());
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!(peer_user(one.as_fd()).unwrap(), (user, group));
    }

    #[test]
    fn what_was_sent_with_a_signal_is_read_with_it() {
        let signal = libc::SIGRTMIN() + 5;
        std::thread::spawn(move || {
            block(&[signal]).unwrap();
            let signals = SignalFd::new(&[signal]).unwrap();
            let me = std::process::id();
            // struct siginfo: signo at 0, code at 8, pid at 16, value at 24.
            let mut info = [0u32; 32];
            (info[0], info[2], info[4]) = (signal as u32, libc::SI_QUEUE as u32, me);
            (info[6], info[7]) = (0x9abc_def0, 0x1234_5678);
            // For this thread alone: others of the tests do not have it blocked.
            let me_thread = rustix::thread::gettid().as_raw_nonzero().get();
            // SAFETY: the kernel reads 128 bytes. Queues a signal for the calling thread, which has it blocked.
            let queued = unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, me, me_thread, signal, info.as_ptr()) };
            assert_eq!(queued, 0);
            let got = signals.read().unwrap();
            assert_eq!((got.signal, got.sender_pid, got.value), (signal, me, Some(0x1234_5678_9abc_def0)));
            assert!(signals.read().is_none());
        })
        .join()
        .unwrap();
    }
}
