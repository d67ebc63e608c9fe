//! The constructor: what happens before the program's `main`.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

use uswap_engine::engine_threads::STACK_BYTES;
use uswap_engine::member::{self, Network, Rendezvous};
use uswap_engine::monitor;
use uswap_engine::post::Post;
use uswap_engine::protocol::{Kind, SOCKET_VARIABLE, Secret, TOKEN_VARIABLE};
use uswap_sys::linux::Linux;
use uswap_sys::thread::{self, FileTable};
use uswap_sys::{private_memory, report, reserve, test_hook, valgrind};

/// Between the program's threads and the monitor.
pub(crate) static POST: Post<Linux> = Post::new();
/// Where the group is; unset when this process was not started by `uswap run`.
pub(crate) static RENDEZVOUS: OnceLock<Rendezvous> = OnceLock::new();

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    // Also for a process that is nobody's: it has the same functions.
    crate::libc_functions::prepare();
    crate::own_userfaultfds::prepare();
    crate::page_references::prepare();
    crate::attach::prepare();
    crate::file_calls::prepare();
    crate::file_streams::prepare();
    crate::locks::prepare();
    crate::shell::prepare();
    let Some(rendezvous) = find_group() else { return };
    let _ = RENDEZVOUS.set(rendezvous);
    reserve::prepare();
    if let Some(failures) = variable(test_hook::VARIABLE) {
        test_hook::set(failures);
    }
    // What it finds is remembered: a filter that the program puts on itself may end who asks later.
    report::is_for_messages();
    thread::look_for_tracer();
    // A wrong page is worse than a crash.
    std::panic::set_hook(Box::new(|panic| report::end(format_args!("internal error: {panic}"))));
    note_private_memory();
    crate::advice::prepare();
    crate::remap::prepare();
    crate::raw_forks::prepare();
    crate::thread_count::prepare();
    crate::exec::prepare();
    crate::libc_fork::prepare();
    let _ = crate::forks::hook();
    crate::threads::prepare();
    let started = may_start()
        .and_then(|()| thread::prepare())
        .and_then(|()| crate::forks::prepare_membership())
        .and_then(|()| start_monitor(monitor_of_program).map(thread::precede_this_thread));
    // After all others have looked libc's functions up.
    crate::deep_binding::prepare();
    match started {
        Ok(()) => crate::forks::has_monitor(),
        Err(error) => {
            report::stderr_line(format_args!("uswap: cannot start in process {}: {error}", std::process::id()));
            POST.inert.store(true, std::sync::atomic::Ordering::Release);
        }
    }
}

/// What could not be managed without harm is said and left alone; what it executes may be managed again.
fn may_start() -> std::io::Result<()> {
    match valgrind::is_running() {
        true => Err(std::io::Error::other("it runs on valgrind, which runs one thread at a time")),
        false => Ok(()),
    }
}

/// Returns its thread's id.
pub(crate) fn start_monitor(main: extern "C" fn(*mut u8)) -> std::io::Result<u32> {
    let monitor = thread::spawn(c"uswap-monitor", STACK_BYTES, FileTable::Share, main, std::ptr::null_mut())?;
    let id = monitor.tid();
    POST.monitor.follow(monitor);
    Ok(id)
}

extern "C" fn monitor_of_program(_: *mut u8) {
    run_monitor(Kind::Exec);
}

pub(crate) fn run_monitor(kind: Kind) {
    if let Some(rendezvous) = RENDEZVOUS.get() {
        monitor::main(&POST, rendezvous, kind);
    }
}

fn find_group() -> Option<Rendezvous> {
    let name = variable(SOCKET_VARIABLE)?;
    let secret = Secret::from_hex(variable(TOKEN_VARIABLE)?)?;
    // Now, not when it is needed: what a program has added to its environment may be swapped out then.
    let anchor = std::env::var_os("LD_PRELOAD").and_then(|preload| member::anchor_in(&preload.to_string_lossy()));
    let network = anchor.and_then(|anchor| Network::of(anchor).ok());
    let mut rendezvous = Rendezvous { name: [0; 64], name_len: name.len(), secret, anchor, network };
    rendezvous.name.get_mut(..name.len())?.copy_from_slice(name);
    Some(rendezvous)
}

fn variable(name: &str) -> Option<&'static [u8]> {
    let mut buffer = [0u8; 64];
    buffer.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
    // SAFETY: the name ends with a zero byte, because it is shorter than the buffer. The environment is not changed
    // while the constructor runs.
    let value = unsafe { libc::getenv(buffer.as_ptr().cast()) };
    // SAFETY: getenv answers null or a string that lives in the environment; it is copied before anyone can change it.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes())
}

/// What agent threads touch beside the memory they map: this library's, libc's and the loader's own data.
fn note_private_memory() {
    // SAFETY: the callback matches the signature, and keeps nothing.
    unsafe { libc::dl_iterate_phdr(Some(note_module), std::ptr::null_mut()) };
}

unsafe extern "C" fn note_module(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
    // SAFETY: the loader hands over a valid record for the time of the call.
    let info = unsafe { &*info };
    // SAFETY: as above: a string or null.
    let name = if info.dlpi_name.is_null() { &[][..] } else { unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes() };
    // SAFETY: as above: an array of this length.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
    let segments = headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(|header| {
        let start = (info.dlpi_addr + header.p_vaddr) as usize;
        (start & !4095, (start + header.p_memsz as usize).next_multiple_of(4096))
    });
    let here = note_module as *const () as usize;
    let is_agent = segments.clone().any(|(start, end)| (start..end).contains(&here));
    let file = name.rsplit(|&byte| byte == b'/').next().unwrap_or(name);
    if is_agent || file.starts_with(b"libc.so") || file.starts_with(b"ld-linux") {
        for (start, end) in segments {
            let _ = private_memory::note(start, end);
        }
    }
    0
}
