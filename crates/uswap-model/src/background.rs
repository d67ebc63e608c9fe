//! What the kernel does by itself: it swaps pages out and drops those that were given up lazily; signals end waits for no reason.

use crate::coverage::Happening;
use crate::host_memory;
use crate::mm::{Mm, is_host};
use crate::page_content::Content;
use crate::pte::{Page, Pte};
use crate::vma::Vma;
use crate::waits::{Key, State, Woke};
use crate::world::World;

/// Pages of a huge page. Linux has 512 of them; a program of the model has fewer.
const HUGE_PAGE: usize = 16;

impl World {
    /// With each step, by chance.
    pub(crate) fn in_the_background(&self) {
        if self.happens(self.config.kernel_swap, 100_000) {
            self.note(Happening::KernelSwap, 1);
            self.change_some_page(|pte| match pte {
                Pte::Present(page) if !page.is_zero_page && !page.is_pinned && !page.is_lazy => {
                    Some(Pte::Swapped(page))
                }
                _ => None,
            });
        }
        if self.happens(self.config.lazy_drops, 100_000) {
            self.note(Happening::LazyDrop, 1);
            self.change_some_page(|pte| match pte {
                Pte::Present(page) if page.is_lazy => Some(Pte::Missing),
                _ => None,
            });
        }
        if self.happens(self.config.huge_pages, 100_000) {
            self.make_a_huge_page();
        }
        if self.happens(self.config.spurious, 100_000) {
            self.wake_somebody();
        }
    }

    /// Of the pages for which there is a change, one is changed.
    fn change_some_page(&self, change: impl Fn(Pte) -> Option<Pte>) {
        let mut kernel = self.kernel_mut();
        let living: Vec<usize> = kernel
            .processes
            .iter()
            .enumerate()
            .filter(|(_, process)| process.is_alive)
            .map(|(index, _)| index)
            .collect();
        if living.is_empty() {
            return;
        }
        let mm = &mut kernel.processes[living[self.below(living.len() as u64) as usize]].mm;
        let able: Vec<usize> = all_pages(mm).filter(|&page| change(mm.pte(page)).is_some()).collect();
        if able.is_empty() {
            return;
        }
        let page = able[self.below(able.len() as u64) as usize];
        let pte = change(mm.pte(page)).expect("it is one for which there is a change");
        if is_host(page) && pte == Pte::Missing {
            // The engine could not read there: the touch would be a message that it waits for itself.
            match self.config.spoils_dropped {
                true => host_memory::spoil(page),
                false => host_memory::clear(page),
            }
        }
        mm.set(page, pte);
    }

    /// khugepaged: where all of a huge page is one mapping without userfaultfd, and something of it is there, the rest comes to be there
    /// as zeros.
    fn make_a_huge_page(&self) {
        let mut kernel = self.kernel_mut();
        let process = self.below(kernel.processes.len() as u64) as usize;
        let process = &mut kernel.processes[process];
        let mm = &mut process.mm;
        if !process.is_alive || mm.readers > 0 {
            return;
        }
        if mm.no_huge_pages {
            if self.config.has_pagemap {
                self.read_from_outside(mm);
            }
            return;
        }
        let is_able = |vma: &&Vma| vma.attributes.userfault.is_none() && !vma.attributes.file && vma.attributes.write;
        let starts = |vma: &Vma| {
            let first = vma.start.next_multiple_of(HUGE_PAGE);
            (first..vma.end).step_by(HUGE_PAGE).filter(|start| start + HUGE_PAGE <= vma.end).collect::<Vec<_>>()
        };
        let is_begun = |start: &usize| (*start..start + HUGE_PAGE).any(|page| mm.pte(page).is_resident());
        let all: Vec<usize> = mm.vmas.iter().filter(is_able).flat_map(starts).filter(is_begun).collect();
        if all.is_empty() {
            return;
        }
        let start = all[self.below(all.len() as u64) as usize];
        for page in start..start + HUGE_PAGE {
            if mm.pte(page) == Pte::Missing {
                self.note(Happening::HugePage, 1);
                mm.filled_unasked += 1;
                mm.allocate(page, Pte::Present(Page::new(Content::ZERO)));
            }
        }
    }

    /// Another process reads memory of one that forks, or has just been forked: where nothing is there, and no userfaultfd, the kernel
    /// puts its page of zeros. Not in a process that is not shown that.
    fn read_from_outside(&self, mm: &mut Mm) {
        let is_able = |vma: &&Vma| vma.attributes.userfault.is_none() && !vma.attributes.file && vma.attributes.write;
        let missing = mm.vmas.iter().filter(is_able).flat_map(|vma| vma.start..vma.end);
        let all: Vec<usize> = missing.filter(|&page| mm.pte(page) == Pte::Missing).collect();
        if !all.is_empty() {
            let page = all[self.below(all.len() as u64) as usize];
            self.note(Happening::ReadFromOutside, 1);
            self.trace(&(page..page + 1), format_args!("read from outside"));
            mm.allocate(page, Pte::Present(Page::zero()));
        }
    }

    fn wake_somebody(&self) {
        let mut threads = self.scheduler.threads();
        let sleepers: Vec<usize> = (0..threads.len())
            .filter(|&index| {
                matches!(threads[index].state, State::Blocked { on: Key::Word(_) | Key::Fault(..) | Key::Poll(_), .. })
            })
            .collect();
        if !sleepers.is_empty() {
            let index = sleepers[self.below(sleepers.len() as u64) as usize];
            self.note(Happening::Spurious, 1);
            (threads[index].state, threads[index].woke) = (State::Ready, Woke::Woken);
        }
    }
}

fn all_pages(mm: &Mm) -> impl Iterator<Item = usize> {
    let mapped = mm.vmas.iter().flat_map(|vma| vma.start..vma.end);
    mapped.chain(mm.hosts.iter().flat_map(|host| host.pages()))
}
