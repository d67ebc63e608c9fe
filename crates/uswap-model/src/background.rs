//! What the kernel does by itself: it swaps pages out and drops those that were given up lazily; signals end waits for no reason.

use crate::coverage::Happening;
use crate::host_memory;
use crate::mm::{Mm, is_host};
use crate::pte::Pte;
use crate::waits::{Key, State, Woke};
use crate::world::World;

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
