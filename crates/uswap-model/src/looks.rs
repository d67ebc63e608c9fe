//! What the engine sees of page tables, mappings and sizes.

use std::io::{self, Write};
use std::ops::Range;
use std::time::Duration;

use uswap_system::PAGE_SIZE;
use uswap_system::looks::{Footprint, Mappings, PopulatedRange, Residency, Rss, Vma};

use crate::coverage::Happening;
use crate::mm::{Mm, is_host};
use crate::pte::{Page, Pte};
use crate::world::{World, current};

/// pagemap of a process, or mincore(2).
#[derive(Debug)]
pub struct ModelResidency {
    is_exact: bool,
}

/// What is shown of a page, if it exists.
fn categories(mm: &Mm, page: usize, is_exact: bool) -> Option<u64> {
    if is_host(page) && mm.host(page).is_none() {
        // Memory of the engine that nobody has told the kernel's model of.
        return Some(PopulatedRange::PRESENT);
    }
    match mm.pte(page) {
        Pte::Present(found) if found.is_zero_page && is_exact => {
            Some(PopulatedRange::PRESENT | PopulatedRange::ZERO_PAGE)
        }
        Pte::Present(_) => Some(PopulatedRange::PRESENT),
        Pte::Swapped(_) if is_exact => Some(0),
        // A marker shows as swapped out.
        Pte::Poison if is_exact => Some(0),
        Pte::Swapped(_) | Pte::Poison | Pte::Missing => None,
    }
}

/// A look that fails, in a few worlds.
fn fails(world: &World) -> io::Result<()> {
    let fails = world.happens(world.config.failed_looks, 10_000);
    world.note(Happening::LookFailed, usize::from(fails));
    if fails { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(()) }
}

fn pages(start: usize, end: usize) -> Range<usize> {
    start / PAGE_SIZE..end / PAGE_SIZE
}

impl Residency for ModelResidency {
    fn open() -> io::Result<Self> {
        Ok(ModelResidency { is_exact: current().config.has_pagemap })
    }

    fn is_exact(&self) -> bool {
        self.is_exact
    }

    fn populated(&self, start: usize, end: usize, out: &mut [PopulatedRange]) -> io::Result<(usize, usize)> {
        let world = current();
        world.point();
        fails(&world)?;
        let kernel = world.kernel();
        let mm = &kernel.process(world.this_process()).mm;
        let mut count = 0;
        for page in within(mm, pages(start, end)) {
            let Some(categories) = categories(mm, page, self.is_exact) else { continue };
            let (from, to) = (page * PAGE_SIZE, (page + 1) * PAGE_SIZE);
            if let Some(last) = out[..count].last_mut()
                && last.end == from
                && last.categories == categories
            {
                last.end = to;
                continue;
            }
            if count == out.len() {
                return Ok((count, from));
            }
            out[count] = PopulatedRange { start: from, end: to, categories };
            count += 1;
        }
        Ok((count, end))
    }

    fn has_populated(&self, start: usize, end: usize) -> io::Result<bool> {
        let mut first = [PopulatedRange::default()];
        Ok(self.populated(start, end, &mut first)?.0 > 0)
    }

    fn shows_absence(&self) -> bool {
        self.is_exact || current().config.kernel_swap == 0
    }

    fn in_common(&self, start: usize, end: usize) -> io::Result<u64> {
        if !self.is_exact {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let world = current();
        world.point();
        fails(&world)?;
        let kernel = world.kernel();
        let mm = &kernel.process(world.this_process()).mm;
        let is_in_common =
            |&page: &usize| matches!(mm.pte(page), Pte::Present(found) if mm.frames.is_mapped_elsewhere(&found));
        let count = within(mm, pages(start, end)).filter(is_in_common).count() as u64;
        world.note(Happening::SeenInCommon, count as usize);
        Ok(count)
    }

    fn keep_lazily_freed(&self, start: usize, pages: u16) -> io::Result<u16> {
        let world = current();
        let mut gone = 0;
        for index in (0..u16::BITS).filter(|index| pages >> index & 1 == 1) {
            world.point();
            fails(&world)?;
            let page = start / PAGE_SIZE + index as usize;
            let mut kernel = world.kernel_mut();
            let mm = &mut kernel.process_mut(world.this_process()).mm;
            match mm.pte(page).page() {
                Some(found) => mm.set(page, Pte::Present(Page { is_lazy: false, ..found })),
                None => gone |= 1 << index,
            }
        }
        Ok(gone)
    }
}

/// Of a range that may be all addresses, what a program can have.
fn within(mm: &Mm, range: Range<usize>) -> Range<usize> {
    let span = mm.span();
    if is_host(range.start) { range } else { range.start.max(span.start)..range.end.min(span.end) }
}

/// Mappings of a process.
#[derive(Debug)]
pub struct ModelMappings(());

/// A mapping as shown, in bytes.
fn shown(vma: crate::vma::Vma) -> Vma<'static> {
    let crate::vma::Attributes { read, write, exec, file, .. } = vma.attributes;
    let (start, end) = (vma.start * PAGE_SIZE, vma.end * PAGE_SIZE);
    Vma { start, end, read, write, exec, shared: false, offset: 0, device: 0, inode: u64::from(file), name: b"" }
}

/// All mappings of the process of the running thread, in order.
fn all() -> Vec<crate::vma::Vma> {
    let world = current();
    let kernel = world.kernel();
    let mm = &kernel.process(world.this_process()).mm;
    let mut all: Vec<crate::vma::Vma> = mm.vmas.iter().copied().collect();
    for host in &mm.hosts {
        let mut at = host.pages().start;
        while at < host.pages().end {
            let vma = host.vma_at(at);
            at = vma.end;
            all.push(vma);
        }
    }
    all.sort_unstable_by_key(|vma| vma.start);
    all
}

impl Mappings for ModelMappings {
    fn open() -> io::Result<Self> {
        match current().config.has_map_query && !current().refuses(Happening::LookRefused) {
            true => Ok(ModelMappings(())),
            false => Err(io::Error::from(io::ErrorKind::Unsupported)),
        }
    }

    fn at(&mut self, address: usize) -> Option<Vma<'_>> {
        let page = address / PAGE_SIZE;
        let world = current();
        world.point();
        let kernel = world.kernel();
        let mm = &kernel.process(world.this_process()).mm;
        if is_host(page) && mm.host(page).is_none() {
            // The engine's own memory of which nobody has told: one mapping of a page.
            return Some(shown(crate::vma::Vma {
                start: page,
                end: page + 1,
                attributes: crate::vma::Attributes::PLAIN,
            }));
        }
        mm.vma_at(page).map(shown)
    }

    fn at_or_after(&mut self, address: usize) -> Option<Vma<'_>> {
        current().point();
        all().into_iter().find(|vma| vma.end * PAGE_SIZE > address).map(shown)
    }

    fn read_maps(buffer: &mut Vec<u8>) -> io::Result<()> {
        let world = current();
        world.point();
        fails(&world)?;
        buffer.clear();
        for vma in all() {
            line(buffer, &vma)?;
        }
        // It is out of date at once.
        world.stand_still(world.config.late_looks);
        Ok(())
    }

    fn read_smaps(buffer: &mut Vec<u8>) -> io::Result<()> {
        let world = current();
        world.point();
        fails(&world)?;
        buffer.clear();
        for vma in all() {
            line(buffer, &vma)?;
            let kernel = world.kernel();
            let mm = &kernel.process(world.this_process()).mm;
            let is_lazy = |page: &usize| mm.pte(*page).page().is_some_and(|page| page.is_lazy);
            let lazy = (vma.start..vma.end).filter(is_lazy).count();
            writeln!(buffer, "LazyFree: {:>14} kB", lazy * PAGE_SIZE / 1024)?;
            write!(buffer, "VmFlags: rd wr mr mw me ac")?;
            for (is_so, flag) in [
                (vma.attributes.dont_fork, " dc"),
                (vma.attributes.userfault.is_some(), " um"),
                (vma.attributes.locked, " lo"),
            ] {
                write!(buffer, "{}", if is_so { flag } else { "" })?;
            }
            writeln!(buffer)?;
        }
        Ok(())
    }
}

fn line(buffer: &mut Vec<u8>, vma: &crate::vma::Vma) -> io::Result<()> {
    let letter = |is_so, letter| if is_so { letter } else { '-' };
    let attributes = &vma.attributes;
    writeln!(
        buffer,
        "{:08x}-{:08x} {}{}{}p 00000000 00:00 {} ",
        vma.start * PAGE_SIZE,
        vma.end * PAGE_SIZE,
        letter(attributes.read, 'r'),
        letter(attributes.write, 'w'),
        letter(attributes.exec, 'x'),
        u8::from(attributes.file),
    )
}

/// The size of a process.
#[derive(Debug)]
pub struct ModelFootprint;

impl Footprint for ModelFootprint {
    fn open() -> io::Result<Self> {
        Ok(ModelFootprint)
    }

    fn main_has_ended(&self) -> bool {
        false
    }

    fn read(&mut self) -> io::Result<(u64, u64)> {
        let rss = Self::by_kind()?;
        Ok((rss.anon_pages + rss.shmem_pages, rss.shmem_pages))
    }

    fn faults() -> io::Result<u64> {
        let world = current();
        world.point();
        let mut kernel = world.kernel_mut();
        let process = kernel.process_mut(world.this_process());
        // It asks twice for all that it tells once.
        process.told_at = process.asked_at.replace(process.mm.changes());
        Ok(process.mm.faults)
    }

    /// A process that takes no faults does nothing.
    fn processor_time() -> io::Result<Duration> {
        Ok(Duration::ZERO)
    }

    fn sign_of_growth() -> io::Result<u64> {
        let world = current();
        world.point();
        let kernel = world.kernel();
        Ok(kernel.process(world.this_process()).mm.faults)
    }

    fn by_kind() -> io::Result<Rss> {
        let world = current();
        world.point();
        let kernel = world.kernel();
        let process = kernel.process(world.this_process());
        let shmem_pages = process.shared_pages.as_ref().map_or(0, |count| count());
        let (anon_pages, swap_pages) = (process.mm.resident(), process.mm.swapped());
        Ok(Rss { anon_pages, file_pages: 0, shmem_pages, swap_pages })
    }

    fn share_of_shmem() -> io::Result<u64> {
        Ok(Self::by_kind()?.shmem_pages)
    }

    fn share_of_private() -> io::Result<u64> {
        let world = current();
        world.point();
        fails(&world)?;
        world.note(Happening::SharesTold, 1);
        let kernel = world.kernel();
        Ok(kernel.process(world.this_process()).mm.share())
    }
}
