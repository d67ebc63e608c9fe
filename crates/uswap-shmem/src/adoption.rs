//! Which objects are managed: those of which every mapping is registered, in whichever process. A single one that were not would show
//! holes where pages have left.
//!
//! A process sends its userfaultfd when it is asked to (`monitor`), or when it maps an object while others are swapped. What it has mapped
//! is then read from its maps and registered. An object is managed from when two looks at all processes of the machine, some time apart,
//! find no mapping of it that is not registered: a child that was being forked meanwhile is seen by the second. Later mappings of it come
//! from those that are registered, by forks and mremap, and are reported.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uswap_sys::maps::{self, MapsOf};
use uswap_sys::shared_file::{Inode, NAME_IN_MAPS};

use crate::client::{Client, Mapping};
use crate::object::Object;
use crate::server::while_nothing_is_read;
use crate::shared::Shared;

/// How far apart the two looks are, at least: longer than a fork takes from its copy of the mappings to the child's entry in /proc.
const APART: Duration = Duration::from_millis(30);
/// How long processes may take to send their userfaultfds before an object is left alone.
const PATIENCE: Duration = Duration::from_secs(5);

/// An object that is not managed yet.
#[derive(Debug)]
pub struct Candidate {
    object: Arc<Object>,
    since: Instant,
    /// When no mapping was found that is not registered.
    complete: Option<Instant>,
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
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    mappings: usize,
    /// A process with one that is not registered.
    unregistered: Option<u32>,
}

impl Candidate {
    /// From now on.
    pub fn new(object: Arc<Object>) -> Candidate {
        Candidate { object, since: Instant::now(), complete: None }
    }

    /// The object.
    pub fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// Looks who has it mapped.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn judge(&mut self, shared: &Shared) -> io::Result<Verdict> {
        for client in shared.all_clients() {
            let _ = while_nothing_is_read(|| register(shared, &client));
        }
        let found = look(self.object.inode)?;
        if let Some(process) = found.unregistered {
            self.complete = None;
            let is_late = self.since.elapsed() > PATIENCE;
            return Ok(if is_late { Verdict::LeftAlone(process) } else { Verdict::Later });
        }
        if found.mappings == 0 {
            return Ok(Verdict::Unmapped);
        }
        let complete = *self.complete.get_or_insert_with(Instant::now);
        Ok(if complete.elapsed() >= APART { Verdict::Managed } else { Verdict::Later })
    }
}

/// Registers what a client has mapped of known objects, where nobody has yet.
pub fn register(shared: &Shared, client: &Client) -> io::Result<()> {
    let Some(process) = client.process else { return Ok(()) };
    let mut text = Vec::new();
    maps::read_maps(MapsOf::Pid(process), &mut text)?;
    for vma in maps::vmas(&text).filter(|vma| vma.shared && vma.name == NAME_IN_MAPS) {
        let Some(object) = shared.object_of(Inode(vma.inode)) else { continue };
        let window = object.start() + vma.offset as usize;
        if window >= object.end() || client.mappings().to_window(vma.start) == Some(window) {
            continue;
        }
        let mapping = Mapping { start: vma.start, end: vma.end, window, window_end: object.end() };
        // First: what is unmapped from the registration on is reported.
        let before = client.mappings().clone();
        client.mappings().insert(mapping);
        if client.uffd.register(vma.start, vma.end - vma.start).is_err() {
            // Gone, or registered with that of a parent.
            *client.mappings() = before;
        }
    }
    Ok(())
}

/// Ends what was registered of an object that is left alone.
pub fn unregister(shared: &Shared, object: &Object) {
    for client in shared.all_clients() {
        let of_object: Vec<Mapping> = {
            let mappings = client.mappings();
            let is_of = |mapping: &&Mapping| (object.start()..object.end()).contains(&mapping.window);
            mappings.all().iter().filter(is_of).copied().collect()
        };
        while_nothing_is_read(|| {
            for mapping in of_object {
                let _ = client.uffd.unregister(mapping.start, mapping.end - mapping.start);
                client.mappings().remove(mapping.start, mapping.end);
            }
        });
        client.uffd.wake_all();
    }
}

/// Looks at all processes.
fn look(inode: Inode) -> io::Result<Found> {
    let mut found = Found::default();
    let me = std::process::id();
    let mut text = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // Those of others have none: to become another user takes an exec, or root, who may look.
        if pid == me || maps::read_maps(MapsOf::Pid(pid), &mut text).is_err() {
            continue;
        }
        let is_one = |vma: &maps::Vma<'_>| vma.inode == inode.0 && vma.name == NAME_IN_MAPS;
        let count = maps::vmas(&text).filter(is_one).count();
        if count == 0 {
            continue;
        }
        found.mappings += count;
        let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
        if registered(&smaps, inode) < count {
            found.unregistered = Some(pid);
        }
    }
    Ok(found)
}

/// How many mappings of a file are registered, by what smaps says.
fn registered(smaps: &str, inode: Inode) -> usize {
    let name = str::from_utf8(NAME_IN_MAPS).expect("it is text");
    let of_file = format!(" {} ", inode.0);
    let (mut is_of_file, mut count) = (false, 0);
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |flag| flags.split_ascii_whitespace().any(|other| other == flag);
            count += usize::from(is_of_file && has("um") && has("uw"));
        } else if line.as_bytes().first().is_some_and(|first| first.is_ascii_hexdigit() && !first.is_ascii_uppercase())
        {
            is_of_file = line.ends_with(name) && line.contains(&of_file);
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

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
";
        assert_eq!(
            (registered(smaps, Inode(77)), registered(smaps, Inode(78)), registered(smaps, Inode(7))),
            (1, 1, 0)
        );
    }
}
