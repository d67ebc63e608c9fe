//! What a client has mapped, as /proc shows it.
//!
//! The kernel does not say whose memory a userfaultfd is that a fork has brought. It is found by trying: a page is protected with it, and
//! whoever shows that in his pagemap has this memory. A child that is being forked is in /proc when its parent goes on.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use uswap_sys::maps::{self, MapsOf};
use uswap_sys::shared_file::Inode;
use uswap_system::PAGE_SIZE;

use crate::client::{Client, Mapping, Mappings};
use crate::shared::Shared;

/// The bit of an entry of pagemap that says that the page is protected by userfaultfd.
const PROTECTED: u64 = 1 << 57;
/// Pages that are tried: some may not be mapped any more.
const TRIES: usize = 64;

/// What is registered with a client's userfaultfd, of known objects.
pub fn mapped(shared: &Shared, client: &Client) -> Option<Mappings> {
    let process = match client.seen_in() {
        Some(process) => process,
        None => {
            let process = who_is(client)?;
            client.is_seen_in(process);
            process
        }
    };
    let mut text = Vec::new();
    maps::read_maps(MapsOf::Pid(process), &mut text).ok()?;
    let mapping = |vma: maps::Vma<'_>| {
        let object = shared.object_of(Inode::of(&vma)?)?;
        let window = object.start() + vma.offset as usize;
        // Of what reaches beyond its object nothing is used, or it was not registered (`adoption`).
        let end = vma.end.min(vma.start + object.end().saturating_sub(window));
        // What is registered with it already stays as it is; with another, it is refused.
        let is_its_own = vma.start < end && client.uffd.register(vma.start, vma.end - vma.start).is_ok();
        is_its_own.then_some(Mapping { start: vma.start, end, window, window_end: object.end() })
    };
    Some(maps::vmas(&text).filter(|vma| vma.shared).filter_map(mapping).collect())
}

/// A process that has the memory of a client.
fn who_is(client: &Client) -> Option<u32> {
    let page = {
        let mappings = client.mappings();
        let pages = |mapping: &Mapping| (mapping.start..mapping.end).step_by(PAGE_SIZE);
        let mut pages: Vec<usize> = mappings.all().iter().flat_map(pages).take(TRIES).collect();
        drop(mappings);
        pages.retain(|&page| client.uffd.protect(page, PAGE_SIZE, false).is_complete());
        pages.into_iter().next()?
    };
    let mut all: Vec<(u32, File)> = Vec::new();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        all.extend(File::open(format!("/proc/{process}/pagemap")).ok().map(|pagemap| (process, pagemap)));
    }
    for protect in [false, true, false] {
        let _ = client.uffd.protect(page, PAGE_SIZE, protect);
        all.retain(|(_, pagemap)| is_protected(pagemap, page) == Some(protect));
    }
    all.first().map(|(process, _)| *process)
}

fn is_protected(pagemap: &File, page: usize) -> Option<bool> {
    let mut entry = [0; 8];
    pagemap.read_exact_at(&mut entry, (page / PAGE_SIZE * 8) as u64).ok()?;
    Some(u64::from_ne_bytes(entry) & PROTECTED != 0)
}
