//! uswap-agent: the engine as a library that the loader puts into an unmodified program.
//!
//! `uswap run` preloads it. The constructor notes what must never be swapped, hooks fork, and starts one thread, the
//! monitor, which does the rest on its own. Threads of the program enter the agent in a few places only (the
//! constructor, the fork handlers, and the wrappers of `exec`, `system`, `popen`, `fork`, `_Fork`, `madvise`, `process_madvise`,
//! `mlockall`, `mlock`, `mlock2`, `mmap`, `open`, `openat`, `fopen`, `freopen`, `fcntl`, `mremap`, `shmat`, `shmdt`, `pthread_create`, `thrd_create`, `__register_atfork`, `posix_spawn`, `posix_spawnp`, `vmsplice`, `setsockopt`,
//! `ioctl`, `send`, `sendto`, `sendmsg`, `sendmmsg`, `syscall`, `clone`, `dlopen`, `dlmopen` and `stat`); there they take no lock of the engine, allocate nothing, and keep errno as libc left it.

#![deny(unsafe_code)]

mod advice;
mod agent_path;
mod attach;
mod by_descriptor;
mod deep_binding;
mod exec;
mod exec_lists;
mod file_calls;
mod file_streams;
mod fork_turns;
mod forks;
mod kept_arguments;
mod kernel;
mod libc_fork;
mod libc_functions;
mod libc_handlers;
mod locks;
mod named_changes;
mod named_memory;
mod own_userfaultfds;
mod page_references;
mod process_advice;
mod raw_calls;
mod raw_forks;
mod real;
mod remap;
mod remap_several;
mod shared_advice;
mod shared_memory;
mod shell;
mod start;
mod thread_count;
mod threads;

use uswap_sys::heap::AgentHeap;

/// The agent's own heap: the program's may be swapped out.
#[global_allocator]
static HEAP: AgentHeap = AgentHeap;
