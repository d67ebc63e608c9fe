//! Wrappers of exec: the next program stays managed even when its environment was made anew.
//!
//! The loader starts the agent because of LD_PRELOAD, and the agent finds its group by two more variables. A program that
//! hands an environment of its own to exec (`env -i`, `env LD_PRELOAD=...`, a supervisor) gets them added, and one that has
//! changed its user another path of the agent. Nothing is allocated: a child of vfork shares the memory of its parent.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};

use uswap_engine::protocol::AgentFile;
use uswap_sys::{PAGE_SIZE, placement, report};

use crate::agent_path::{self, AgentPath, Start};
use crate::by_descriptor::{self, Lent, Target};
use crate::kernel;
use crate::real::{Real, Wrapper};

const PRELOAD_NAME: &CStr = c"LD_PRELOAD";
const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// Longest value of LD_PRELOAD that is handled; a longer one is left as it is.
const PRELOAD_MAX: usize = 2048;
/// Variables of an environment that is made anew on the stack; a larger one is made in a mapping.
const STACK_VARIABLES: usize = 400;
/// The same, and bytes of its LD_PRELOAD, where little of the stack may be left: a handler of SIGSEGV on a stack of 8 KiB
/// executes who is to tell of it. Most of that is the kernel's.
const FEW_VARIABLES: usize = 64;
const SHORT_PRELOAD: usize = 256;
const VARIABLE_MAX: usize = 192;

/// The wrappers, and what they go on to.
const REALS: [(&CStr, &Real); 7] = [
    (c"execve", &execve::REAL),
    (c"execvpe", &execvpe::REAL),
    (c"execv", &execv::REAL),
    (c"execvp", &execvp::REAL),
    (c"fexecve", &fexecve::REAL),
    (c"posix_spawn", &posix_spawn::REAL),
    (c"posix_spawnp", &posix_spawnp::REAL),
];

pub(crate) type Variables = *const *const c_char;

struct Own {
    /// By which path this program got the agent.
    start: Start,
    /// "USWAP_SOCKET=..." and "USWAP_TOKEN=...", with their zero bytes.
    variables: [[u8; VARIABLE_MAX]; 2],
}

/// See [`deep_binding`](crate::deep_binding).
pub(crate) fn wrappers() -> [Wrapper; 7] {
    REALS.map(|(name, real)| Wrapper { name, ..real.wrapper() })
}

static OWN: std::sync::OnceLock<Own> = std::sync::OnceLock::new();

/// Remembers what has to be in the environment of the next program.
pub(crate) fn prepare() {
    // In the child of a fork that goes round libc the loader's lock may be held by a thread that is not there.
    for (_, real) in REALS {
        let _ = real.get();
    }
    // A library's constructor may wait for a thread that starts a shell.
    let _ = (SET.get(), UNSET.get());
    let Some(mut agent) = own_path().and_then(AgentPath::new) else { return };
    // The loader has just opened it.
    let file = agent.file();
    if let Some(fd) = by_descriptor::number(agent.as_bytes()) {
        by_descriptor::give_back(fd);
        let other = agent_path::ask().map_err(tell).ok();
        exchange(agent.as_bytes(), other.as_ref());
        let Some(other) = other else { return };
        agent = other;
    }
    let mut own = Own { start: Start::now(agent, file), variables: [[0; VARIABLE_MAX]; 2] };
    let names = [uswap_engine::protocol::SOCKET_VARIABLE, uswap_engine::protocol::TOKEN_VARIABLE];
    for (place, name) in own.variables.iter_mut().zip(names) {
        let value = std::env::var_os(name).unwrap_or_default();
        let value = value.as_encoded_bytes();
        if name.len() + value.len() + 2 > VARIABLE_MAX {
            return;
        }
        place[..name.len()].copy_from_slice(name.as_bytes());
        place[name.len()] = b'=';
        place[name.len() + 1..][..value.len()].copy_from_slice(value);
    }
    let _ = OWN.set(own);
}

#[inline(never)]
fn tell(why: impl std::fmt::Display) {
    let pid = std::process::id();
    report::stderr_line(format_args!("uswap: what process {pid} executes runs unmanaged: {why}"));
}

/// A list that there is no room in.
fn tell_too_long() {
    tell("its LD_PRELOAD is too long for the agent to be put in");
}

/// The path that the loader got this library by. It need not be the first in LD_PRELOAD: programs put theirs in front.
fn own_path() -> Option<&'static [u8]> {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the loader only looks the address up, and fills the record in if it says so.
    let found = unsafe {
        if libc::dladdr(own_path as *const c_void, found.as_mut_ptr()) == 0 {
            return None;
        }
        found.assume_init()
    };
    // SAFETY: null, or a string that lives as long as the library, which is never unloaded.
    (!found.dli_fname.is_null()).then(|| unsafe { CStr::from_ptr(found.dli_fname) }.to_bytes())
}

fn name_of(variable: &[u8]) -> &[u8] {
    &variable[..variable.iter().position(|&byte| byte == b'=').unwrap_or(variable.len())]
}

impl Own {
    fn own_variables(&self) -> impl Iterator<Item = &CStr> {
        self.variables.iter().filter_map(|variable| CStr::from_bytes_until_nul(variable).ok())
    }

    /// The agent's path for the next program; without, that one runs unmanaged, and the user is told.
    #[inline(never)]
    fn agent_for_next(&self) -> Option<AgentPath> {
        self.start.for_next().map_err(tell).ok()
    }

    /// Whether `variables` already start the agent for this group by this path.
    ///
    /// # Safety
    /// `variables` is an environment: strings, ended by a null pointer.
    unsafe fn is_complete(&self, agent: &[u8], variables: Variables) -> bool {
        let mut found = 0;
        // SAFETY: the caller's promise.
        for variable in unsafe { strings(variables) } {
            if let Some(value) = variable.to_bytes().strip_prefix(PRELOAD) {
                found |= u32::from(entries(value).any(|entry| entry == agent));
            }
            for (index, own) in self.own_variables().enumerate() {
                found |= u32::from(own == variable) << (index + 1);
            }
        }
        found == 0b111
    }
}

/// The libraries of LD_PRELOAD.
fn entries(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b':' || byte == b' ').filter(|entry| !entry.is_empty())
}

/// # Safety
/// `variables` is an array of strings, ended by a null pointer, that lives as long as the iterator.
unsafe fn strings<'a>(variables: Variables) -> impl Iterator<Item = &'a CStr> {
    let mut next = variables;
    std::iter::from_fn(move || {
        // SAFETY: the caller's promise: the array ends with a null pointer, which is not passed.
        let variable = unsafe { *next };
        if variable.is_null() {
            return None;
        }
        // SAFETY: as above.
        next = unsafe { next.add(1) };
        // SAFETY: as above.
        Some(unsafe { CStr::from_ptr(variable) })
    })
}

/// Whether it can be read. Of what cannot, the kernel is to say so.
fn is_environment(variables: Variables) -> bool {
    let (mut slots, mut texts) = (None, None);
    let looks = |address: usize, known: &mut Option<usize>| {
        let page = Some(address / PAGE_SIZE);
        let can_be_read = *known == page || kernel::can_be_read(address);
        *known = page;
        can_be_read
    };
    let mut next = variables;
    while looks(next.addr(), &mut slots) {
        // SAFETY: it can be read, as far as its page goes.
        let variable = unsafe { *next };
        if variable.is_null() {
            return true;
        }
        if !looks(variable.addr(), &mut texts) {
            return false;
        }
        next = next.wrapping_add(1);
    }
    false
}

/// Before libc starts a shell with the program's own environment: the agent in it gets the path that the shell can open.
/// Where the environment has no agent, it stays so.
pub(crate) fn refresh_environment() {
    let Some(own) = OWN.get() else { return };
    let Some(value) = own_preload() else { return };
    let Some(before) = entries(value).find(|entry| AgentFile::is_path(entry)) else { return };
    let agent = own.agent_for_next();
    if agent.as_ref().is_none_or(|agent| agent.as_bytes() != before) {
        exchange(before, agent.as_ref());
    }
}

/// Puts another path of the agent, or none, into the program's own LD_PRELOAD; one that is too long stays as it is.
fn exchange(before: &[u8], agent: Option<&AgentPath>) {
    let Some(value) = own_preload() else { return };
    let mut preload = Preload::<PRELOAD_MAX>::new(agent.map(AgentPath::as_bytes));
    match preload.add(value, before) {
        true => set_preload(preload.value()),
        false => tell_too_long(),
    }
}

static SET: Real = Real::new(c"setenv");
static UNSET: Real = Real::new(c"unsetenv");

/// By libc's functions: a shell may have some of the same names for variables of its own.
fn set_preload(value: Option<&CStr>) {
    type Set = unsafe extern "C" fn(*const c_char, *const c_char, c_int) -> c_int;
    type Unset = unsafe extern "C" fn(*const c_char) -> c_int;
    let name = PRELOAD_NAME.as_ptr();
    // SAFETY: null, or libc's functions of these names and signatures; they copy what they are given. Nobody changes the
    // environment while a thread uses it, which is libc's own rule.
    unsafe {
        let (set, unset) = (
            std::mem::transmute::<*mut c_void, Option<Set>>(SET.get()),
            std::mem::transmute::<*mut c_void, Option<Unset>>(UNSET.get()),
        );
        match (value, set, unset) {
            (Some(value), Some(set), _) => set(name, value.as_ptr(), 1),
            (None, _, Some(unset)) => unset(name),
            _ => 0,
        };
    }
}

fn own_preload() -> Option<&'static [u8]> {
    let environment = current();
    if environment.is_null() {
        return None;
    }
    // SAFETY: the environment, whose strings live until `set_preload` has read them.
    unsafe { strings(environment) }.find_map(|variable| variable.to_bytes().strip_prefix(PRELOAD))
}

/// Calls `exec` with `variables`, completed if needed.
///
/// # Safety
/// `variables` is null or an environment, and what `target` points to is a string.
unsafe fn with_environment<R>(target: Target, variables: Variables, exec: impl FnOnce(Variables) -> R) -> R {
    static EMPTY: [usize; 1] = [0];
    let Some(own) = OWN.get() else { return exec(variables) };
    if variables.is_null() && matches!(target, Target::Open(_)) {
        // libc refuses that.
        return exec(variables);
    }
    let given = if variables.is_null() { EMPTY.as_ptr().cast() } else { variables };
    if !is_environment(given) {
        return exec(variables);
    }
    let agent = own.agent_for_next();
    let lent = agent.as_ref().and_then(|agent| Lent::to(target, agent));
    let agent = lent.as_ref().map(Lent::path).or(agent);
    let agent = agent.as_ref().map(AgentPath::as_bytes);
    // SAFETY: the caller's promise; an environment that is null is taken for an empty one, as Linux does.
    if agent.is_some_and(|agent| unsafe { own.is_complete(agent, given) }) {
        return exec(variables);
    }
    // SAFETY: as above.
    let (count, preload) = unsafe { sizes(agent, given) };
    if count <= FEW_VARIABLES && preload <= SHORT_PRELOAD {
        // SAFETY: as above.
        return unsafe { complete_on_stack::<FEW_VARIABLES, SHORT_PRELOAD, R>(own, agent, given, exec) };
    }
    if count <= STACK_VARIABLES {
        // SAFETY: as above.
        return unsafe { complete_on_stack::<STACK_VARIABLES, PRELOAD_MAX, R>(own, agent, given, exec) };
    }
    // Unmapped below if exec fails.
    let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    let memory = placement::map(count * 8, protection, rustix::mm::MapFlags::PRIVATE, None);
    let Ok(memory) = memory.map(|base| base.as_ptr()) else { return exec(variables) };
    // SAFETY: fresh zeroed memory for `count` pointers.
    let made = unsafe { std::slice::from_raw_parts_mut(memory.cast::<*const c_char>(), count) };
    // SAFETY: as above.
    let result = unsafe { complete::<PRELOAD_MAX, R>(own, agent, given, made, exec) };
    // SAFETY: mapped above, and nobody keeps a pointer into it.
    let _ = unsafe { rustix::mm::munmap(memory.cast(), count * 8) };
    result
}

/// Room for the pointers, and for the bytes of LD_PRELOAD, that an environment with the agent takes at most.
///
/// # Safety
/// `given` is an environment.
unsafe fn sizes(agent: Option<&[u8]>, given: Variables) -> (usize, usize) {
    let first = (4, PRELOAD.len() + agent.map_or(0, <[u8]>::len) + 1);
    // SAFETY: the caller's promise.
    unsafe { strings(given) }.fold(first, |(count, bytes), variable| {
        let value = variable.to_bytes().strip_prefix(PRELOAD);
        (count + 1, bytes + value.map_or(0, |value| value.len() + 1))
    })
}

/// # Safety
/// `given` is an environment, of four variables less than there is room for.
#[inline(never)]
unsafe fn complete_on_stack<const VARIABLES: usize, const BYTES: usize, R>(
    own: &Own,
    agent: Option<&[u8]>,
    given: Variables,
    exec: impl FnOnce(Variables) -> R,
) -> R {
    let mut made = [std::ptr::null(); VARIABLES];
    // SAFETY: the caller's promise.
    unsafe { complete::<BYTES, R>(own, agent, given, &mut made, exec) }
}

/// # Safety
/// `given` is an environment, and `made` has room for four pointers more than it.
unsafe fn complete<const BYTES: usize, R>(
    own: &Own,
    agent: Option<&[u8]>,
    given: Variables,
    made: &mut [*const c_char],
    exec: impl FnOnce(Variables) -> R,
) -> R {
    let (mut preload, mut is_too_long) = (Preload::<BYTES>::new(agent), false);
    let mut count = 0;
    // SAFETY: the caller's promise.
    for variable in unsafe { strings(given) } {
        let bytes = variable.to_bytes();
        if let Some(value) = bytes.strip_prefix(PRELOAD) {
            if preload.add(value, b"") {
                continue;
            }
            is_too_long = true;
            if agent.is_some_and(|agent| entries(value).all(|entry| entry != agent)) {
                tell_too_long();
            }
        }
        if agent.is_some() && own.own_variables().any(|own| name_of(own.to_bytes()) == name_of(bytes)) {
            continue;
        }
        made[count] = variable.as_ptr();
        count += 1;
    }
    // Never two: the loader takes the last, libc the first.
    if !is_too_long && let Some(variable) = preload.variable() {
        made[count] = variable.as_ptr();
        count += 1;
    }
    if agent.is_some() {
        for variable in own.own_variables() {
            made[count] = variable.as_ptr();
            count += 1;
        }
    }
    made[count] = std::ptr::null();
    exec(made.as_ptr())
}

/// LD_PRELOAD in the making: the agent, then what a program wants besides.
struct Preload<const BYTES: usize> {
    bytes: [u8; BYTES],
    len: usize,
}

impl<const BYTES: usize> Preload<BYTES> {
    fn new(agent: Option<&[u8]>) -> Self {
        let mut preload = Preload { bytes: [0; BYTES], len: PRELOAD.len() };
        preload.bytes[..PRELOAD.len()].copy_from_slice(PRELOAD);
        agent.into_iter().for_each(|agent| preload.push(agent));
        preload
    }

    /// All of a value but the agent, by whatever path, if there is room for it; whether there is. All or nothing: half of a list is
    /// another list.
    fn add(&mut self, value: &[u8], agent_too: &[u8]) -> bool {
        let others = || entries(value).filter(|entry| !AgentFile::is_path(entry) && *entry != agent_too);
        let fits = self.len + others().map(|entry| entry.len() + 1).sum::<usize>() < BYTES;
        if fits {
            others().for_each(|entry| self.push(entry));
        }
        fits
    }

    fn push(&mut self, entry: &[u8]) {
        if self.len > PRELOAD.len() {
            self.bytes[self.len] = b':';
            self.len += 1;
        }
        self.bytes[self.len..][..entry.len()].copy_from_slice(entry);
        self.len += entry.len();
    }

    /// `None`: nothing is to be preloaded.
    fn variable(&self) -> Option<&CStr> {
        (self.len > PRELOAD.len()).then(|| CStr::from_bytes_until_nul(&self.bytes).ok()).flatten()
    }

    /// As `variable`, without the name.
    fn value(&self) -> Option<&CStr> {
        CStr::from_bytes_until_nul(&self.variable()?.to_bytes_with_nul()[PRELOAD.len()..]).ok()
    }
}

unsafe extern "C" {
    static environ: Variables;
}

fn current() -> Variables {
    // SAFETY: libc's variable; whoever calls exec while another thread changes the environment races with or without us.
    unsafe { (&raw const environ).read() }
}

/// Defines a wrapper that completes the environment.
macro_rules! wrap {
    ($(#[doc = $doc:literal])+ $name:ident = $real:literal ($($argument:ident: $kind:ty),*), $target:expr, $environment:expr,
     ($($before:ident),*) environment ($($after:ident),*), fails with $failure:expr) => {
        $(#[doc = $doc])+
        ///
        /// # Safety
        /// As for the function of libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            let real = $name::REAL.get();
            if real.is_null() {
                return $failure;
            }
            // SAFETY: the caller's promise, passed on to libc's function of this name and signature.
            unsafe {
                with_environment($target, $environment, |variables| {
                    wrap!(@call real, ($($before),*), variables, ($($after),*), ($($argument: $kind),*))
                })
            }
        }

        mod $name {
            pub(super) static REAL: super::Real = super::Real::new($real);
        }
    };
    (@call $real:ident, ($($before:ident),*), $variables:ident, (), ($($argument:ident: $kind:ty),*)) => {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($(wrap!(@word $before)),*, Variables) -> c_int>($real)(
            $($before as usize),*, $variables
        )
    };
    (@word $name:ident) => { usize };
}

wrap! {
    /// As libc's.
    execve = c"execve" (path: *const c_char, argv: Variables, envp: Variables), Target::File(path), envp,
    (path, argv) environment (), fails with -1
}
wrap! {
    /// As libc's.
    execvpe = c"execvpe" (file: *const c_char, argv: Variables, envp: Variables), Target::InPath(file), envp,
    (file, argv) environment (), fails with -1
}
wrap! {
    /// As libc's.
    execv = c"execve" (path: *const c_char, argv: Variables), Target::File(path), current(),
    (path, argv) environment (), fails with -1
}
wrap! {
    /// As libc's.
    execvp = c"execvpe" (file: *const c_char, argv: Variables), Target::InPath(file), current(),
    (file, argv) environment (), fails with -1
}
wrap! {
    /// As libc's.
    fexecve = c"fexecve" (fd: c_int, argv: Variables, envp: Variables), Target::Open(fd), envp,
    (fd, argv) environment (), fails with -1
}
wrap! {
    /// As libc's.
    posix_spawn = c"posix_spawn" (
        pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        argv: Variables, envp: Variables
    ), Target::Spawned, envp,
    (pid, path, actions, attributes, argv) environment (), fails with libc::ENOSYS
}
wrap! {
    /// As libc's.
    posix_spawnp = c"posix_spawnp" (
        pid: *mut libc::pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        argv: Variables, envp: Variables
    ), Target::Spawned, envp,
    (pid, file, actions, attributes, argv) environment (), fails with libc::ENOSYS
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    const AGENT: &[u8] = b"/proc/77/fd/9";

    fn own() -> Own {
        let mut own =
            Own { start: Start::now(AgentPath::new(AGENT).unwrap(), None), variables: [[0; VARIABLE_MAX]; 2] };
        for (place, text) in own.variables.iter_mut().zip([b"USWAP_SOCKET=s", &b"USWAP_TOKEN=t"[..]]) {
            place[..text.len()].copy_from_slice(text);
        }
        own
    }

    /// What `complete` makes of it.
    fn completed(agent: Option<&[u8]>, given: &[String]) -> Vec<String> {
        let given: Vec<CString> = given.iter().map(|text| CString::new(text.as_str()).unwrap()).collect();
        let pointers: Vec<_> = given.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
        let mut made = vec![std::ptr::null(); given.len() + 4];
        let copy = |made| {
            // SAFETY: what is made of an environment is one.
            unsafe { strings(made) }.map(|variable| variable.to_str().unwrap().to_owned()).collect()
        };
        // SAFETY: an environment, and room for four more.
        unsafe { complete::<PRELOAD_MAX, _>(&own(), agent, pointers.as_ptr(), &mut made, copy) }
    }

    #[test]
    fn the_agent_comes_before_what_a_program_preloads() {
        let made = completed(Some(AGENT), &["A=1".into(), "LD_PRELOAD=/a.so:/b.so".into(), "B=2".into()]);
        let expected = ["A=1", "B=2", "LD_PRELOAD=/proc/77/fd/9:/a.so:/b.so", "USWAP_SOCKET=s", "USWAP_TOKEN=t"];
        assert_eq!(made, expected);
    }

    /// It is the program's own, and half of it or nothing would be another.
    #[test]
    fn a_preload_that_is_too_long_for_the_agent_stays_as_it_is() {
        let long = format!("LD_PRELOAD={}", ["/a/library.so"; 3000 / 14].join(":"));
        for agent in [Some(AGENT), None] {
            let given = ["A=1".to_owned(), long.clone(), "B=2".to_owned()];
            let made = completed(agent, &given);
            for variable in &given {
                assert!(made.contains(variable), "{variable} is missing in {made:?}");
            }
            assert_eq!(made.iter().filter(|variable| variable.starts_with("LD_PRELOAD=")).count(), 1, "{made:?}");
        }
    }
}
