//! Memory that mremap has added to a managed mapping.
//!
//! A mapping that grows hands on what it has: the kernel's registration, and the engine's MADV_DONTFORK. No event tells of
//! it, and the books learn of such a page when it is touched. A child must have all of it, touched or not, so it is adopted
//! before a fork at the latest.

use std::io;

use uswap_core::event_order::Mappings;
use uswap_core::{PAGE_SIZE, PageRange};
use uswap_sys::{maps, private_memory};
use uswap_system::faults::Faults;
use uswap_system::looks::{Mappings as _, Vma};

use crate::adopt::Adopter;
use crate::engine::Engine;
use crate::host::Host;

impl<H: Host> Adopter<H> {
    /// Adopts what the kernel has registered at or after `from` and the books do not know. While no event is read or applied.
    /// Where the program is changing its memory it stops, and returns the address. Once all that is registered is adopted, advice about what is
    /// not is forgotten: the kernel has it as long as that is there, and nothing tells of its end.
    pub fn adopt_grown(&mut self, engine: &Engine<H>, from: usize) -> io::Result<Option<usize>> {
        H::Mappings::read_maps(&mut self.maps)?;
        for vma in maps::vmas(&self.maps).filter(Vma::is_anonymous_private) {
            let mut at = vma.start.max(from);
            while let Some((start, end)) = (at < vma.end).then(|| private_memory::next_gap(at, vma.end)).flatten() {
                at = end;
                let new: Vec<PageRange> = engine.core().pages().not_adopted(PageRange::of_bytes(start, end)).collect();
                for part in new {
                    let (start, len) = (part.start.address(), part.pages as usize * PAGE_SIZE);
                    if engine.memory.uffd.holds_events() {
                        return Ok(Some(start));
                    }
                    match Mappings::is_registered(engine, part) {
                        None => return Ok(Some(start)),
                        // Unless it is the program's own userfaultfd that it is registered with.
                        Some(true) if engine.memory.uffd.register(start, len).is_ok() => {
                            self.kept.has_grown(part);
                            engine.note_if_changing(part);
                            engine.core().adopt(part);
                        }
                        Some(_) => {}
                    }
                }
                self.kept.extend_to_grown(PageRange::of_bytes(vma.start, vma.end));
            }
        }
        self.kept.forget_all_of(|range| engine.core().pages().not_adopted(range).collect());
        Ok(None)
    }
}
