//! mremap(2), with all its flags.

use std::ops::Range;

use uswap_system::PAGE_SIZE;
use uswap_system::faults::Message;

use crate::coverage::Happening;
use crate::munmap::{self, teller};
use crate::process::ProcessId;
use crate::pte::Pte;
use crate::userfaultfd_ctx::{Report, unmapped};
use crate::vma::Vma;
use crate::world::{Kernel, World};

/// Where memory may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// It stays where it is, or the call fails.
    Here,
    /// Here if there is room, or at this page (MREMAP_MAYMOVE: the kernel's choice, drawn by the caller).
    Anywhere(usize),
    /// At this page, over what is there (MREMAP_FIXED).
    Fixed(usize),
}

/// Why mremap fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The old range is not one mapping (EFAULT).
    NotOne,
    /// There is no room (ENOMEM).
    NoRoom,
    /// The ranges overlap, or the lengths do not fit the flags (EINVAL).
    Invalid,
}

impl World {
    /// Makes `old` be `new_pages` long, at `place`; `stays`: MREMAP_DONTUNMAP. Returns where it is.
    pub(crate) fn remap(
        &self,
        old: Range<usize>,
        new_pages: usize,
        place: Place,
        stays: bool,
    ) -> Result<usize, Refused> {
        self.lock_mappings();
        self.note(if place == Place::Here { Happening::Grow } else { Happening::Remap }, 1);
        let from = old.clone();
        let mut kernel = self.kernel_mut();
        let process = self.this_process();
        let mut reports = Vec::new();
        let moved = change(&mut kernel, process, old, new_pages, place, stays, &mut reports);
        World::count(&mut kernel, &reports);
        drop(kernel);
        self.trace(&from, format_args!("mremap to {place:x?} gives {moved:x?}, from"));
        if let Ok(to) = moved {
            self.trace(&(to..to + new_pages), format_args!("mremap from {from:x?}, to"));
            self.has_left();
        }
        self.report(reports);
        moved
    }
}

/// What mremap does under the lock; where the memory is afterwards. What is to be reported is added to `reports`, also if it fails.
fn change(
    kernel: &mut Kernel,
    process: ProcessId,
    old: Range<usize>,
    new_pages: usize,
    place: Place,
    stays: bool,
    reports: &mut Vec<Report>,
) -> Result<usize, Refused> {
    let span = kernel.process(process).mm.span();
    let vma = *kernel.process(process).mm.vmas.at(old.start).ok_or(Refused::NotOne)?;
    if let Place::Fixed(to) = place {
        let new = to..to + new_pages;
        let overlaps = new.start < old.end && old.start < new.end;
        if overlaps || new.start < span.start || new.end > span.end || stays && new_pages != old.len() {
            return Err(Refused::Invalid);
        }
        return move_fixed(kernel, process, old, new, stays, reports);
    }
    if stays {
        let Place::Anywhere(to) = place else { return Err(Refused::Invalid) };
        return move_to_hole(kernel, process, old, to..to + new_pages, true, reports);
    }
    if new_pages <= old.len() {
        let tail = old.start + new_pages..old.end;
        reports.extend(if tail.is_empty() { None } else { munmap::unmap(kernel, process, tail) });
        return Ok(old.start);
    }
    if vma.end < old.end {
        return Err(Refused::NotOne);
    }
    let more = old.end..old.start + new_pages;
    if vma.end == old.end && more.end <= span.end && kernel.process(process).mm.vmas.is_free(more.clone()) {
        let process = kernel.process_mut(process);
        process.oracle.fresh(more.clone());
        process.mm.map(more, vma.attributes);
        return Ok(old.start);
    }
    match place {
        Place::Anywhere(to) => move_to_hole(kernel, process, old, to..to + new_pages, false, reports),
        _ => Err(Refused::NoRoom),
    }
}

fn move_to_hole(
    kernel: &mut Kernel,
    process: ProcessId,
    old: Range<usize>,
    new: Range<usize>,
    stays: bool,
    reports: &mut Vec<Report>,
) -> Result<usize, Refused> {
    let mm = &kernel.process(process).mm;
    if new.start < mm.span().start || new.end > mm.span().end || !mm.vmas.is_free(new.clone()) {
        return Err(Refused::NoRoom);
    }
    let vma = *mm.vmas.at(old.start).ok_or(Refused::NotOne)?;
    if vma.end < old.end {
        return Err(Refused::NotOne);
    }
    let start = new.start;
    reports.extend(carry(kernel, process, vma, old, new, stays));
    Ok(start)
}

/// What is at the new place goes, the tail of what becomes shorter goes, and then the rest moves. Since Linux 6.17 several mappings
/// may move, one after the other, up to the first that is registered.
fn move_fixed(
    kernel: &mut Kernel,
    process: ProcessId,
    mut old: Range<usize>,
    new: Range<usize>,
    stays: bool,
    reports: &mut Vec<Report>,
) -> Result<usize, Refused> {
    let pieces: Vec<Vma> = kernel.process(process).mm.vmas.over(old.clone()).copied().collect();
    if pieces[0].end >= old.end {
        reports.extend(munmap::unmap(kernel, process, new.clone()));
        let tail = old.start + new.len().min(old.len())..old.end;
        old.end = tail.start;
        let cut = if tail.is_empty() { None } else { munmap::unmap(kernel, process, tail) };
        let mut moved = carry(kernel, process, pieces[0], old, new.clone(), stays).into_iter();
        // What the tail has to report comes after the move, and before what the old place has.
        reports.extend(moved.next());
        reports.extend(cut);
        reports.extend(moved);
        return Ok(new.start);
    }
    if new.len() != old.len() {
        return Err(Refused::NotOne);
    }
    for vma in pieces {
        if vma.attributes.userfault.is_some() {
            return Err(Refused::NotOne);
        }
        let part = vma.within(&old);
        let place = new.start + part.start - old.start..new.start + part.end - old.start;
        reports.extend(munmap::unmap(kernel, process, place.clone()));
        reports.extend(carry(kernel, process, vma, part, place, stays));
    }
    Ok(new.start)
}

/// Moves pages and mapping; what is to be reported.
fn carry(
    kernel: &mut Kernel,
    process: ProcessId,
    vma: Vma,
    old: Range<usize>,
    new: Range<usize>,
    stays: bool,
) -> Vec<Report> {
    let process = kernel.process_mut(process);
    let mm = &mut process.mm;
    let entries: Vec<Pte> = old.clone().map(|page| mm.pte(page)).collect();
    let mut attributes = vma.attributes;
    // Nothing of it was ever written to: it begins anew where it is.
    attributes.origin =
        if attributes.anon.is_some() { attributes.origin + old.start as isize - new.start as isize } else { 0 };
    if stays {
        old.clone().for_each(|page| mm.set(page, Pte::Missing));
        if attributes.locked {
            mm.vmas.change(old.clone(), |attributes| attributes.locked = false);
        }
    } else {
        mm.unmap(old.clone());
    }
    mm.map(new.clone(), attributes);
    for (index, pte) in entries.into_iter().enumerate() {
        mm.set(new.start + index, pte);
    }
    process.oracle.fresh(new.clone());
    process.oracle.moved(old.clone(), new.start);
    let Some(userfault) = teller(&vma) else { return Vec::new() };
    let (from, to, len) = (old.start * PAGE_SIZE, new.start * PAGE_SIZE, old.len() * PAGE_SIZE);
    let mut reports = vec![Report { userfault, message: Message::Remap { from, to, len } }];
    if !stays {
        reports.push(Report { userfault, message: unmapped(&old) });
    }
    reports
}
