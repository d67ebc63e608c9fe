//! Usage: what the processes have of the budget, and how much of it cannot be swapped.

use uswap_system::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::{Group, ProcessSlot};

impl ProcessSlot {
    /// Resident pages of the process, those that others have as well in full.
    pub fn resident_pages(&self) -> u64 {
        self.resident.anon_pages.load(Relaxed) + self.beside_private_pages()
    }

    /// Those of them that are not private.
    pub(super) fn beside_private_pages(&self) -> u64 {
        self.resident.shmem_pages.load(Relaxed) + self.resident.nested_pages.load(Relaxed)
    }

    /// Private pages that are no ancestor's as well, at the least.
    fn own_private_pages(&self) -> u64 {
        match (self.parent().is_some(), self.resident.inherited_pages.load(Relaxed)) {
            // It has not looked yet.
            (true, 0) => 0,
            (_, inherited) => self.resident.anon_pages.load(Relaxed).saturating_sub(inherited),
        }
    }
}

impl Group {
    /// Resident pages that count against the budget, of all living processes and of what others have left to them: what several have of a
    /// fork, once.
    pub fn usage_pages(&self) -> u64 {
        let family = self.family();
        self.processes().map(|(index, slot)| family.usage_pages(self, index, slot)).sum::<u64>()
            + self.left_pool_pages()
    }

    /// The same of one process.
    pub fn usage_pages_of(&self, index: u32) -> u64 {
        self.family().usage_pages(self, index, self.process(index))
    }

    /// Pages that living processes have resident at the least: what may be counted in several of them counts once, or by a census, as long
    /// as one holds.
    pub fn resident_pages_at_least(&self) -> u64 {
        let beside = |slot: &ProcessSlot| {
            let beside = slot.resident.shmem_pages.load(Relaxed).saturating_sub(slot.shared.pages.load(Relaxed));
            beside + slot.resident.nested_pages.load(Relaxed)
        };
        let (mut private, mut others) = (0, 0);
        for (_, slot) in self.processes() {
            (private, others) = (private + slot.own_private_pages(), others + beside(slot));
        }
        let by_census = self.by_census().map_or(0, |counted| counted.least);
        private.max(by_census) + others + self.shared_pages_seen() + self.left_pool_pages()
    }

    /// Pages of shared memory that living processes have, at the least, while they map each other's: how much there is was known
    /// better before they began.
    fn shared_pages_seen(&self) -> u64 {
        let now = self.shared_pages_at_least();
        self.header().budget.shared_seen.fetch_max(now, AcqRel).max(now)
    }

    /// Pages of shared memory that living processes have, at the least. Their shares add up to it if all were taken at one time.
    /// A page that another has mapped since the oldest was taken, and counts for a half or less, counts in full before.
    fn shared_pages_at_least(&self) -> u64 {
        let growth = self.shared_growth();
        let (mut shares, mut most, mut oldest) = (0, 0, growth);
        for (_, slot) in self.processes() {
            let own = slot.shared.pages.load(Relaxed);
            shares += own.saturating_sub(slot.shared.new_pages.load(Relaxed));
            most = most.max(own).max(slot.shared.resident_pages.load(Relaxed));
            if own > 0 {
                oldest = oldest.min(slot.shared.growth.load(Relaxed));
            }
        }
        most.max(shares.saturating_sub((growth - oldest).div_ceil(2)))
    }

    /// By how many pages the shared memory of processes has ever grown: what one of them has learnt of who else has its own is
    /// out of date by so much.
    pub fn shared_growth(&self) -> u64 {
        self.header().budget.shared_growth.load(Acquire)
    }

    /// How often shared memory that processes had already has become swapped, or has ceased to be: who counts it is another one since.
    pub fn shared_judged(&self) -> u64 {
        self.header().budget.shared_judged.load(Acquire)
    }

    /// It has happened once more.
    pub fn judge_shared(&self) {
        self.header().budget.shared_judged.fetch_add(1, AcqRel);
    }

    /// A process has so many pages of shared memory more than it had.
    pub(crate) fn shared_memory_grows(&self, pages: u64) {
        self.header().budget.shared_growth.fetch_add(pages, AcqRel);
    }

    /// A process has so many pages of shared memory less than it had: they may be gone.
    pub(crate) fn shared_memory_shrinks(&self, pages: u64) {
        let less = |seen: u64| Some(seen.saturating_sub(pages));
        let _ = self.header().budget.shared_seen.fetch_update(AcqRel, Relaxed, less);
    }

    /// Pages of living processes that cannot be swapped, and those of them that are shared memory. What may be a parent's
    /// as well is left out.
    pub fn fixed_pages(&self) -> (u64, u64) {
        let own =
            |slot: &ProcessSlot| if slot.parent().is_some() { 0 } else { slot.resident.unmanaged_pages.load(Relaxed) };
        let private: u64 = self.processes().map(|(_, slot)| own(slot)).sum();
        let shared = self.shared_pages_at_least();
        (private + shared, shared)
    }

    /// The largest usage seen.
    pub fn peak_resident_bytes(&self) -> u64 {
        self.header().budget.peak_resident_bytes.load(Relaxed)
    }

    /// The most that usage was seen above the budget of that moment.
    pub fn most_over_bytes(&self) -> u64 {
        self.header().budget.most_over_bytes.load(Relaxed)
    }

    /// Notes a usage.
    pub fn note_resident_bytes(&self, bytes: u64) {
        self.header().budget.peak_resident_bytes.fetch_max(bytes, Relaxed);
        self.header().budget.most_over_bytes.fetch_max(bytes.saturating_sub(self.limit_bytes()), Relaxed);
    }
}
