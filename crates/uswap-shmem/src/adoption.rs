//! Which objects are managed: those of which every mapping is registered, in whichever process. A single one that were not would show
//! holes where pages have left.
//!
//! A process sends its userfaultfd when it is asked to (`monitor`), or when it maps an object while others are swapped. What it has mapped
//! is then read from its maps and registered. An object is managed from when two looks at all processes of the machine, some time apart,
//! find no mapping of it that is not registered: a child that was being forked meanwhile is seen by the second. The kernel shows mappings
//! part by part, and one that is moved meanwhile may be in none of them: what a look finds of a process counts where it is as much as the
//! process has mapped. Later mappings of it come
//! from those that are registered, by forks and mremap, and are reported; or, where it has a name, are told of by the agent (`named`); of forks the kernel tells, or the child itself does before anything
//! of the program runs in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use uswap_sys::maps::{self, MapsOf};
use uswap_sys::rss;
use uswap_sys::shared_file::{Inode, Origin};
use uswap_system::PAGE_SIZE;
use uswap_system::looks::Vma;

use crate::client::{Client, Mapping};
use crate::object::Object;
use crate::server::while_nothing_is_read;
use crate::shared::Shared;
use crate::trust;

/// How far apart the two looks are, at least: longer than a fork takes from its copy of the mappings to the child's entry in /proc.
pub const APART: Duration = Duration::from_millis(30);
/// How long a process may take to send its userfaultfd before an object is left alone.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the mappings of a process that changes them are read in one look.
const TRIES: usize = 8;
/// How often it is waited for a process that changes its mappings, and how long, before what is not known to have grown stays registered.
const UNREGISTER_TRIES: u32 = 20;
const UNREGISTER_EVERY: Duration = Duration::from_millis(1);

/// An object that is not managed yet.
#[derive(Debug)]
pub struct Candidate {
    object: Arc<Object>,
    waiting: Waiting,
    /// When no mapping was found that is not registered.
    complete: Option<Instant>,
}

/// Which process is waited for, and since when. Where processes fork all the time there is always one of which the kernel is just telling, but
/// not for long the same.
#[derive(Debug, Default)]
struct Waiting(Option<(u32, Instant)>);

impl Waiting {
    /// The first process that is waited for is this one at this moment. Whether it has been for too long.
    fn is_late(&mut self, process: u32, now: Instant) -> bool {
        match self.0 {
            Some((same, since)) if same == process => now - since > PATIENCE,
            _ => {
                self.0 = Some((process, now));
                false
            }
        }
    }
}

/// What became of a candidate.
#[derive(Debug)]
pub enum Verdict {
    /// It is managed.
    Managed,
    /// Nobody has it mapped any more.
    Unmapped,
    /// A mapping of this process could not be registered.
    LeftAlone(u32),
    /// Not known yet.
    Later,
}

/// What was found of an object in all processes.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    mappings: usize,
    /// One that is not registered, of the process with the lowest number: later ones may be children of which the kernel is just telling.
    unregistered: Option<Place>,
}

/// A mapping of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The process.
    pub process: u32,
    /// Where it begins; 0: not known.
    pub start: usize,
}

impl Candidate {
    /// One that nobody has looked for.
    pub fn new(object: Arc<Object>) -> Candidate {
        Candidate { object, waiting: Waiting::default(), complete: None }
    }

    /// The object.
    pub fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// What follows from a look at all processes.
    pub fn judge(&mut self, look: &Look) -> Verdict {
        let found = look.of(self.object.inode);
        if let Some(place) = found.unregistered {
            self.complete = None;
            let is_late = self.waiting.is_late(place.process, Instant::now());
            return if is_late { Verdict::LeftAlone(place.process) } else { Verdict::Later };
        }
        self.waiting = Waiting::default();
        if look.is_unsettled {
            return Verdict::Later;
        }
        if found.mappings == 0 {
            return Verdict::Unmapped;
        }
        let complete = *self.complete.get_or_insert_with(Instant::now);
        if complete.elapsed() >= APART { Verdict::Managed } else { Verdict::Later }
    }
}

/// Registers what a client has mapped of known objects, where nobody has yet. Whether nothing of them is left.
pub fn register(shared: &Shared, client: &Client) -> io::Result<bool> {
    let Some(process) = client.process else { return Ok(true) };
    let (mut text, mut is_whole) = (Vec::new(), true);
    maps::read_maps(MapsOf::Pid(process), &mut text)?;
    for vma in maps::vmas(&text).filter(|vma| vma.shared) {
        let Some(object) = Inode::of(&vma).and_then(|inode| shared.object_of(inode)) else { continue };
        is_whole &= register_mapping(shared, client, &object, &vma);
    }
    Ok(is_whole)
}

/// Registers one mapping of an object, if nobody has. Whether it is.
pub fn register_mapping(shared: &Shared, client: &Client, object: &Object, vma: &Vma<'_>) -> bool {
    let window = object.start() + vma.offset as usize;
    // Not what another mapping before it may have grown to: memory of which a part is protected otherwise is several mappings.
    if client.mappings().known_at(vma.start) == Some(window) {
        return true;
    }
    if object.origin != Origin::Anonymous && window + vma.len() > object.end() {
        // The file may have become larger.
        return false;
    }
    if window >= object.end() {
        // Of what the agent has made the program can use nothing there.
        return true;
    }
    let mapping = Mapping { start: vma.start, end: vma.end, window, window_end: object.end() };
    // First: what is unmapped from the registration on is reported.
    let before = client.mappings().clone();
    trust::maps(shared, client, mapping);
    let is_registered = client.uffd.register(vma.start, vma.end - vma.start).is_ok();
    if !is_registered {
        // Gone, or registered with that of a parent.
        *client.mappings() = before;
    }
    is_registered
}

/// Whether what a process has mapped at `start` is registered, be it with a userfaultfd that a fork has brought.
pub fn is_registered(process: u32, start: usize) -> bool {
    let smaps = fs::read(format!("/proc/{process}/smaps")).unwrap_or_default();
    registered(&smaps).any(|vma| vma.start == start)
}

/// Ends what was registered of an object that is left alone.
pub fn unregister(shared: &Shared, object: &Object) {
    for client in shared.all_clients() {
        for tries in 1..=UNREGISTER_TRIES {
            if while_nothing_is_read(|| unregister_in(shared, &client, object, tries == UNREGISTER_TRIES)) {
                break;
            }
            thread::sleep(UNREGISTER_EVERY);
        }
        client.uffd.wake_all();
    }
}

/// The same in one client. Not if it is changing its mappings just now, unless `anyway`.
fn unregister_in(shared: &Shared, client: &Client, object: &Object, anyway: bool) -> bool {
    let of_object = || -> Vec<Mapping> {
        let mappings = client.mappings();
        let is_of = |mapping: &&Mapping| (object.start()..object.end()).contains(&mapping.window);
        mappings.all().iter().filter(is_of).copied().collect()
    };
    // That a mapping grows is not reported, and a part that stayed registered would be a mapping of its own.
    let may_have_grown = |mapping: &Mapping| mapping.end - mapping.start < object.end() - mapping.window;
    if of_object().iter().any(may_have_grown) {
        client.doubt();
    }
    if !trust::settle(shared, client) && !anyway {
        return false;
    }
    for mapping in of_object() {
        let _ = client.uffd.unregister(mapping.start, mapping.end - mapping.start);
        client.mappings().remove(mapping.start, mapping.end);
    }
    true
}

/// What a look at all processes has found of objects. Those of others have none: to become another user takes an exec, or root, who may
/// look. But one of the run that keeps its memory to itself (prctl PR_SET_DUMPABLE) may.
#[derive(Debug, Default)]
pub struct Look {
    found: BTreeMap<Inode, Found>,
    /// A process of the run that cannot be looked at.
    unknown: Option<Place>,
    /// A process of the run changed its mappings while it was looked at.
    is_unsettled: bool,
}

impl Look {
    /// Looks who has what mapped.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn at_all(shared: &Shared) -> io::Result<Look> {
        let mut look = Look::default();
        let objects: BTreeSet<Inode> = shared.all_objects().iter().map(|object| object.inode).collect();
        for_processes(|pid, maps| match maps {
            Some(Maps { text, is_whole }) => {
                let has_some = look.at(pid, text, &objects);
                look.is_unsettled |= !is_whole && (has_some || is_of_the_run(pid));
            }
            None if is_of_the_run(pid) => look.unknown = Some(Place { process: pid, start: 0 }),
            None => {}
        })?;
        Ok(look)
    }

    /// Whether a process has some mapped.
    fn at(&mut self, pid: u32, maps: &[u8], objects: &BTreeSet<Inode>) -> bool {
        let mut here = Vec::new();
        for vma in maps::vmas(maps) {
            here.extend(Inode::of(&vma).filter(|inode| objects.contains(inode)).map(|inode| (inode, vma.start)));
        }
        if here.is_empty() {
            return false;
        }
        let smaps = fs::read(format!("/proc/{pid}/smaps")).unwrap_or_default();
        let registered: BTreeSet<(Inode, usize)> =
            registered(&smaps).filter_map(|vma| Some((Inode::of(&vma)?, vma.start))).collect();
        for (inode, start) in here {
            let found = self.found.entry(inode).or_default();
            found.mappings += 1;
            let is_first = found.unregistered.is_none_or(|place| pid <= place.process);
            if is_first && !registered.contains(&(inode, start)) {
                found.unregistered = Some(Place { process: pid, start });
            }
        }
        true
    }

    fn of(&self, inode: Inode) -> Found {
        let found = self.found.get(&inode).copied().unwrap_or_default();
        Found { unregistered: found.unregistered.or(self.unknown), ..found }
    }

    /// Where somebody has an object mapped, and is not registered there.
    pub fn stranger(&self, object: &Object) -> Option<Place> {
        self.found.get(&object.inode).and_then(|found| found.unregistered)
    }

    /// Whether anybody has an object mapped, or may have.
    pub fn is_mapped(&self, object: &Object) -> bool {
        let found = self.of(object.inode);
        self.is_unsettled || found.mappings > 0 || found.unregistered.is_some()
    }
}

/// What a process has mapped.
struct Maps<'a> {
    text: &'a [u8],
    /// Nothing is missing.
    is_whole: bool,
}

/// Reads the maps of a process. Whether that is all that it had mapped at some moment: they are shown some at a time, so that one which is
/// moved meanwhile may be missing.
fn read_whole_maps(pid: u32, text: &mut Vec<u8>) -> io::Result<bool> {
    let mut before = rss::mapped_pages(pid)?;
    for _ in 0..TRIES {
        maps::read_maps(MapsOf::Pid(pid), text)?;
        let after = rss::mapped_pages(pid)?;
        // It is the same in all processes, and none has it for its own.
        let shown = maps::vmas(text).filter(|vma| vma.name != b"[vsyscall]").map(|vma| (vma.len() / PAGE_SIZE) as u64);
        if before == after && shown.sum::<u64>() == after {
            return Ok(true);
        }
        before = after;
    }
    Ok(false)
}

/// Visits all processes but this one, with their maps, if they may be read.
fn for_processes(mut visit: impl FnMut(u32, Option<Maps<'_>>)) -> io::Result<()> {
    let (me, mut text) = (std::process::id(), Vec::new());
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if pid != me {
            match read_whole_maps(pid, &mut text) {
                Ok(is_whole) => visit(pid, Some(Maps { text: &text, is_whole })),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => visit(pid, None),
                // It has ended.
                Err(_) => {}
            }
        }
    }
    Ok(())
}

/// Whether a process that cannot be looked at may have shared memory of the run's: it descends from the supervisor, which is this one's
/// parent, and is of this one's user.
fn is_of_the_run(pid: u32) -> bool {
    let status = |pid: u32| fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let supervisor = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().cast_unsigned());
    let mut of_this = status(pid);
    let effective = of_this.lines().find_map(|line| line.strip_prefix("Uid:")?.split_ascii_whitespace().nth(1));
    if effective != Some(&rustix::process::geteuid().as_raw().to_string()) {
        return false;
    }
    loop {
        let parent = of_this.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
        match parent {
            Some(parent) if parent == supervisor => return true,
            Some(parent @ 2..) => of_this = status(parent),
            _ => return false,
        }
    }
}

/// The mappings that are registered, by what smaps says.
fn registered(smaps: &[u8]) -> impl Iterator<Item = Vma<'_>> {
    let mut last = None;
    smaps.split(|&byte| byte == b'\n').filter_map(move |line| {
        let Some(flags) = line.strip_prefix(b"VmFlags:") else {
            last = maps::vmas(line).next().or(last.take());
            return None;
        };
        let has = |flag: &[u8]| flags.split(|&byte| byte == b' ').any(|other| other == flag);
        last.take().filter(|vma| vma.shared && has(b"um") && has(b"uw"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_whole_where_nothing_changes_and_not_where_something_is_missing() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut text = Vec::new();
        // It may still be starting, and have next to nothing.
        let is_whole = (0..10_000).any(|_| {
            read_whole_maps(child.id(), &mut text).is_ok_and(|is_whole| is_whole) && maps::vmas(&text).count() > 3
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_whole);
        assert!(read_whole_maps(child.id(), &mut text).is_err(), "it has ended");
    }

    #[test]
    fn each_process_has_time_to_send_its_userfaultfd() {
        let (mut waiting, begun) = (Waiting::default(), Instant::now());
        let after = |part: u32| begun + PATIENCE * part / 2;
        for (part, process, is_late) in
            [(0, 7, false), (1, 7, false), (3, 7, true), (4, 8, false), (6, 8, false), (7, 8, true)]
        {
            assert_eq!(waiting.is_late(process, after(part)), is_late, "{part}, {process}");
        }
        assert!(!waiting.is_late(7, after(8)));
    }

    #[test]
    fn what_is_registered_is_told_by_the_flags_of_its_mapping() {
        let smaps = "\
7f00-7f10 rw-s 00000000 00:01 77                 /memfd:uswap-shared (deleted)
Size:                 64 kB
VmFlags: rd wr sh mr mw me ms um uw sd 
7f10-7f20 rw-s 00000000 00:01 77                 /memfd:uswap-shared (deleted)
Size:                 64 kB
VmFlags: rd wr sh mr mw me ms sd 
7f20-7f30 rw-s 00000000 00:01 78                 /memfd:uswap-shared (deleted)
Rss:                   0 kB
VmFlags: rd wr sh mr mw me ms um uw sd 
7f30-7f40 rw-s 00000000 00:01 77                 /memfd:others (deleted)
VmFlags: rd wr sh mr mw me ms um uw sd 
7f40-7f50 rw-p 00000000 00:01 77                 /memfd:uswap-shared (deleted)
VmFlags: rd wr mr mw me um uw sd 
7f50-7f60 rw-s 00000000 00:01 77                 /SYSV00000000 (deleted)
VmFlags: rd wr sh mr mw me ms um uw sd 
";
        let inode = |number, is_segment| Inode { device: 1, number, is_segment };
        let expected = [(inode(77, false), 2), (inode(78, false), 1), (inode(77, true), 1)];
        let mut counts = BTreeMap::new();
        for inode in registered(smaps.as_bytes()).filter_map(|vma| Inode::of(&vma)) {
            *counts.entry(inode).or_default() += 1;
        }
        assert_eq!(counts, BTreeMap::from(expected));
    }
}
