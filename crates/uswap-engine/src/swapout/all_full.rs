//! What happens when the pool and all areas are full, or fail: pages stay in memory, and the program goes beyond its budget.

use crate::engine::Engine;
use crate::group::Counter;
use crate::host::Host;
use crate::names::MemoryName;

impl<H: Host> Engine<H> {
    /// Nothing could be stored. Says so once; for a while nobody waits for memory.
    pub(super) fn give_up_for_a_while(&self) {
        self.pressure.lose_hope();
        if self.content.areas.have_complained() {
            return;
        }
        self.count(Counter::NoSpace, 1);
        if self.pressure.say_full() {
            let memory = MemoryName::<H>::new();
            self.member.alarm(format_args!("uswap: swap space is full; {memory} goes beyond its budget"));
        }
    }
}
