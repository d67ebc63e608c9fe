//! UFFDIO_MOVE: pages change places, between the program and the engine's frames.
//!
//! Its count can be one too low: the page after the counted ones has moved all the same, and the next call, which goes on there, finds its
//! target taken. So may a call of one page say of its own: Linux 6.18 tries again when it did not get a lock at once, and then takes the
//! page that it has just moved for one that was there.

use std::ops::Range;

use uswap_system::PAGE_SIZE;
use uswap_system::faults::{Holes, Progress, Stop, Wake};

use crate::coverage::Happening;
use crate::host_memory;
use crate::mm::{Mm, is_host, pages_of};
use crate::page_content::Content;
use crate::process::ProcessId;
use crate::pte::Pte;
use crate::userfaultfd_ctx::UserfaultId;
use crate::world::World;

impl World {
    pub(crate) fn move_pages(
        &self,
        id: UserfaultId,
        target: usize,
        source: usize,
        len: usize,
        holes: Holes,
        wake: Wake,
    ) -> Progress {
        self.point();
        let refused = |stop| Progress { bytes: 0, stop: Some(stop) };
        let (Some(to), Some(from)) = (pages_of(target, len), pages_of(source, len)) else {
            return refused(Stop::Invalid);
        };
        let process = match self.may_move(id, &to, &from) {
            Ok(process) => process,
            Err(stop) => return refused(stop),
        };
        self.hold_mappings(process);
        let mut is_uncounted = false;
        let (mut done, mut stop) = self.each_page(to.len(), |index| {
            if is_uncounted {
                return Err(Stop::AlreadyThere);
            }
            self.move_page(process, to.start + index, from.start + index, holes)?;
            is_uncounted = self.is_miscounted(index);
            Ok(())
        });
        if is_uncounted {
            self.note(Happening::Miscount, 1);
            (done, stop) = (done - 1, Some(Stop::AlreadyThere));
        }
        self.let_go_of_mappings(process);
        if wake == Wake::Wake {
            self.wake_range(id, &(to.start..to.start + done));
        }
        Progress { bytes: done * PAGE_SIZE, stop }
    }

    /// Whether a page that has moved is not counted. The first of a call is only where its process cannot read its pagemap, so that all other
    /// seeds stay what they were; there it needs no kernel swap.
    fn is_miscounted(&self, index: usize) -> bool {
        const FIRST: u64 = 25;
        match self.config.has_pagemap {
            true => index > 0 && self.happens(self.config.miscounts, 1000),
            false => self.happens(self.config.miscounts.max(FIRST), 1000),
        }
    }

    fn may_move(&self, id: UserfaultId, to: &Range<usize>, from: &Range<usize>) -> Result<ProcessId, Stop> {
        let owner = self.at_rest(id)?;
        let kernel = self.kernel();
        let process = kernel.process(owner);
        let source = process.mm.vma_at(from.start).ok_or(Stop::Missing)?;
        let target = process.mm.vma_at(to.start).ok_or(Stop::Missing)?;
        let is_registered = target.attributes.userfault.is_some_and(|(registered, _)| registered == id);
        let fits = from.end <= source.end
            && to.end <= target.end
            && source.attributes.is_like(&target.attributes)
            && source.attributes.write;
        if !fits || !is_registered {
            return Err(Stop::Invalid);
        }
        Ok(process.id)
    }

    fn move_page(&self, process: ProcessId, to: usize, from: usize, holes: Holes) -> Result<(), Stop> {
        let mut kernel = self.kernel_mut();
        let mm = &mut kernel.process_mut(process).mm;
        if mm.pte(to) != Pte::Missing {
            return Err(Stop::AlreadyThere);
        }
        let pte = mm.pte(from);
        let page = match pte {
            Pte::Missing if holes == Holes::Allow => return Ok(()),
            Pte::Missing => return Err(Stop::Missing),
            Pte::Poison => return Err(Stop::Fault),
            Pte::Present(page) | Pte::Swapped(page) => page,
        };
        if page.is_pinned || !(page.is_exclusive || page.is_zero_page) || self.happens(self.config.busy, 1000) {
            self.note(Happening::Busy, 1);
            return Err(Stop::Busy);
        }
        if self.happens(self.config.no_memory, 1000) {
            self.note(Happening::NoMemory, 1);
            return Err(Stop::NoMemory);
        }
        self.carry(mm, to, from, pte);
        Ok(())
    }

    /// The entry goes, and the bytes with it.
    fn carry(&self, mm: &mut Mm, to: usize, from: usize, pte: Pte) {
        let pte = pte.with(|page| page.is_protected = false);
        let moved = match (is_host(to), is_host(from)) {
            (true, false) => {
                let page = pte.page().expect("a page is moved");
                self.note(Happening::CameForNothing, usize::from(!page.is_accessed && page.content != Content::ZERO));
                host_memory::write(to, page.content);
                pte
            }
            (false, true) => {
                let content = host_memory::read(from * PAGE_SIZE);
                self.refuse_garbage(content, to);
                host_memory::spoil(from);
                pte.with(|page| (page.content, page.is_accessed) = (content, false))
            }
            // To the trash, where nobody reads.
            (true, true) => {
                host_memory::spoil(from);
                pte
            }
            (false, false) => pte,
        };
        self.trace(&(from..from + 1), format_args!("moved out: {moved:?}"));
        self.trace(&(to..to + 1), format_args!("moved in: {moved:?}"));
        self.note(if is_host(from) { Happening::MovedIn } else { Happening::MovedOut }, 1);
        mm.set(from, Pte::Missing);
        mm.allocate(to, moved);
    }
}
