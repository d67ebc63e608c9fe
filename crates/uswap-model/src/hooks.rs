//! What the agent does in a process: it starts the monitor, and stands between the program and the calls that the engine must
//! know of.

use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use uswap_engine::engine::Engine;
use uswap_engine::fork_advice::Advice;
use uswap_engine::fork_copy::Inherited;
use uswap_engine::monitor::Monitor;
use uswap_engine::notices::Notices;
use uswap_engine::post::Post;
use uswap_system::PAGE_SIZE;
use uswap_system::sync::RawLock;

use crate::mremap::{Place, Refused};
use crate::process::ProcessId;
use crate::scheduler::Kind;
use crate::system::Model;
use crate::tree::Tree;
use crate::user_mode;
use crate::world::{End, World, current};

/// How often a refused mremap is tried again after its mappings were made whole.
const TRIES: u32 = 2;

/// What is in a process beside the program.
pub struct Environment {
    /// Its group.
    pub tree: Rc<Tree>,
    /// What its threads have noted.
    pub notices: Notices<Model>,
    /// What they and the monitor say to each other.
    pub post: Post<Model>,
    /// Held by the one thread that forks.
    forking: RawLock<Model>,
}

/// Of the process of the running thread.
///
/// # Panics
/// It has no agent.
pub fn environment() -> &'static Environment {
    let world = current();
    let environment = world.kernel().process(world.this_process()).environment;
    environment.and_then(|found| found.downcast_ref()).expect("the agent has started")
}

fn install(world: &World, process: ProcessId, tree: Rc<Tree>) -> &'static Environment {
    // A process is never taken apart; its memory goes with the world's process of the machine.
    let environment: &'static Environment =
        Box::leak(Box::new(Environment { tree, notices: Notices::new(), post: Post::new(), forking: RawLock::new() }));
    world.kernel_mut().process_mut(process).environment = Some(environment);
    environment
}

/// Starts the agent in a new process.
pub fn start(world: &World, process: ProcessId, tree: &Rc<Tree>) {
    let environment = install(world, process, tree.clone());
    world.spawn(process, "monitor", Kind::Engine, move || monitor(environment, None, None));
}

/// The life of a monitor. `parent`: the slot of who forked this process.
fn monitor(environment: &'static Environment, parent: Option<u32>, inherited: Option<Inherited<Model>>) {
    environment.post.fork.monitor_wakes(&[]);
    let process = current().this_process();
    match begin(environment, process, parent) {
        Ok(mut monitor) => {
            monitor.inherit(|| inherited);
            monitor.run()
        }
        Err(error) => current().end(End::Ended { process, why: format!("cannot join: {error}") }),
    }
}

fn begin(environment: &'static Environment, process: ProcessId, parent: Option<u32>) -> io::Result<Monitor<Model>> {
    let member = environment.tree.join(process, parent)?;
    let slot = member.slot();
    let pool_pages = || slot.pool.bytes.load(Relaxed) / PAGE_SIZE as u64;
    current().kernel_mut().process_mut(process).shared_pages = Some(Box::new(pool_pages));
    Monitor::new(&environment.post, member)
}

/// fork, with the hooks around it; `child` is what the child does. False when there is no memory for it.
pub fn fork(child_does: impl FnOnce() + 'static) -> bool {
    let (world, environment) = (current(), environment());
    let Environment { tree, notices, post, forking } = environment;
    forking.lock();
    if !post.fork.has_memory(post) {
        forking.unlock();
        return false;
    }
    post.fork.prepare(post, world.this_thread().tid());
    let child = world.fork();
    // In the same step: both are what one copy of memory would have.
    let inherited = Engine::of_process().map(Inherited::of).transpose().expect("there are addresses");
    let of_child = install(&world, child, tree.clone());
    of_child.post.fork.copies(&post.fork);
    of_child.post.last_told.copies(&post.last_told);
    for (mine, of_child) in [
        (&notices.uses.lazy_free, &of_child.notices.uses.lazy_free),
        (&notices.uses.page_references, &of_child.notices.uses.page_references),
        (&notices.uses.guard_regions, &of_child.notices.uses.guard_regions),
    ] {
        if mine.is_noted() {
            of_child.note();
        }
    }
    // A parent without engine has nothing to inherit.
    let parent = inherited.is_some().then(|| post.index.load(Relaxed));
    world.spawn(child, "program", Kind::Program, move || {
        let post = &of_child.post;
        post.fork.child_begins();
        let swapped = inherited.is_some();
        let world = current();
        world.spawn(world.this_process(), "monitor", Kind::Engine, move || monitor(of_child, parent, inherited));
        if swapped {
            post.fork.child_waits(post);
        }
        child_does();
    });
    post.fork.parent(post, true);
    forking.unlock();
    true
}

/// The program has given pages to a pipe, and installed guards; not in the memory that it is judged by.
pub fn note([references, guards]: [bool; 2]) {
    let notices = &environment().notices;
    if references {
        notices.uses.page_references.note();
    }
    if guards {
        notices.uses.guard_regions.note();
    }
}

/// mremap, as the wrapper has it.
///
/// # Errors
/// As of the call.
pub fn mremap(old: Range<usize>, new_pages: usize, place: Place, stays: bool) -> Result<usize, Refused> {
    let Environment { notices, post, .. } = environment();
    let mut tries = 0;
    loop {
        notices.giving_way.give_way();
        let _posted = stays.then(|| notices.left_mapped.post(old.start * PAGE_SIZE));
        let moved = user_mode::mremap(old.clone(), new_pages, place, stays);
        if moved != Err(Refused::NotOne) || tries == TRIES || !post.ask_for_whole_mappings() {
            return moved;
        }
        tries += 1;
    }
}

/// madvise of what goes, as the wrapper has it.
pub fn discard(range: Range<usize>, lazily: bool) {
    let notices = &environment().notices;
    if notices.giving_way.is_asked_for() {
        notices.giving_way.give_way();
    }
    if lazily {
        notices.uses.lazy_free.note();
    }
    let _counted = notices.discards.begin();
    user_mode::discard(range, lazily);
}

/// madvise about forks, as the wrapper has it.
pub fn keep_from_forks(range: Range<usize>, kept: bool) {
    let notices = &environment().notices;
    user_mode::keep_from_forks(range.clone(), kept);
    let advice = if kept { Advice::DontFork } else { Advice::DoFork };
    notices.advise_for_forks(advice, range.start * PAGE_SIZE, range.len() * PAGE_SIZE);
}
