//! What a client has mapped, as /proc shows it.
//!
//! The kernel does not say whose memory a userfaultfd is that a fork has brought, and a process may have got other memory since it sent its
//! own (exec). It is found by trying: a page is protected with the userfaultfd, and whoever shows that in his pagemap has this memory. A
//! child that is being forked is in /proc when its parent goes on.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use uswap_sys::maps::{self, MapsOf};
use uswap_sys::shared_file::Inode;
use uswap_system::PAGE_SIZE;

use crate::client::{Client, Mapping, Mappings};
use crate::shared::Shared;

/// The bit of an entry of pagemap that says that the page is protected by userfaultfd.
const PROTECTED: u64 = 1 << 57;
/// Mappings that are tried: some may not be there any more.
const TRIES: usize = 32;

/// What is registered with a client's userfaultfd, of known objects.
pub fn mapped(shared: &Shared, client: &Client) -> Option<Mappings> {
    if let Some(found) = client.seen_in().and_then(|process| mapped_in(shared, client, process, true)) {
        return Some(found);
    }
    let all = processes()?;
    let found = who_shows(client, &all).and_then(|process| Some((process, mapped_in(shared, client, process, false)?)));
    // Nothing may be where it was believed to be.
    let anywhere = || all.iter().find_map(|&process| Some((process, mapped_in(shared, client, process, false)?)));
    let (process, mappings) = found.or_else(anywhere)?;
    client.is_seen_in(process);
    Some(mappings)
}

/// The same, if it is a process that has this memory; where that has nothing of objects, it must be `known`.
fn mapped_in(shared: &Shared, client: &Client, process: u32, is_known: bool) -> Option<Mappings> {
    let mut text = Vec::new();
    maps::read_maps(MapsOf::Pid(process), &mut text).ok()?;
    let of_object = |vma: maps::Vma<'_>| {
        let object = Inode::of(&vma).filter(|_| vma.shared).and_then(|inode| shared.object_of(inode))?;
        let window = object.start() + vma.offset as usize;
        // Of what reaches beyond its object nothing is used, or it was not registered (`adoption`).
        let end = vma.end.min(vma.start + object.end().saturating_sub(window));
        let mapping = Mapping { start: vma.start, end, window, window_end: object.end() };
        (mapping.start < mapping.end).then_some((mapping, vma.len()))
    };
    let of_objects: Vec<(Mapping, usize)> = maps::vmas(&text).filter_map(of_object).collect();
    let is_its_own = match of_objects.is_empty() {
        true => is_known,
        false => of_objects.iter().take(TRIES).any(|(mapping, _)| !shows(client, &[process], mapping.start).is_empty()),
    };
    // What is registered with it already stays as it is; with another, it is refused.
    let is_registered = |&(mapping, len): &(Mapping, usize)| client.uffd.register(mapping.start, len).is_ok();
    is_its_own.then(|| of_objects.into_iter().filter(is_registered).map(|(mapping, _)| mapping).collect())
}

fn processes() -> Option<Vec<u32>> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    Some(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// A process that has the memory of a client, if something is where it is believed to be.
fn who_shows(client: &Client, all: &[u32]) -> Option<u32> {
    let believed: Vec<usize> = client.mappings().all().iter().take(TRIES).map(|mapping| mapping.start).collect();
    believed.into_iter().find_map(|page| shows(client, all, page).first().copied())
}

/// The processes that show that a page is protected when it is, and only then.
fn shows(client: &Client, processes: &[u32], page: usize) -> Vec<u32> {
    if !client.uffd.protect(page, PAGE_SIZE, false).is_complete() {
        return Vec::new();
    }
    let pagemap = |&process: &u32| Some((process, File::open(format!("/proc/{process}/pagemap")).ok()?));
    let mut all: Vec<(u32, File)> = processes.iter().filter_map(pagemap).collect();
    for protect in [false, true, false] {
        let _ = client.uffd.protect(page, PAGE_SIZE, protect);
        all.retain(|(_, pagemap)| is_protected(pagemap, page) == Some(protect));
    }
    all.into_iter().map(|(process, _)| process).collect()
}

fn is_protected(pagemap: &File, page: usize) -> Option<bool> {
    let mut entry = [0; 8];
    pagemap.read_exact_at(&mut entry, (page / PAGE_SIZE * 8) as u64).ok()?;
    Some(u64::from_ne_bytes(entry) & PROTECTED != 0)
}
