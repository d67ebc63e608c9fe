//! What happened in a soak, counted: a soak in which nothing happens finds nothing.

macro_rules! happenings {
    ($($name:ident = $text:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Happening { $(#[doc = $text] $name,)* }

        /// All of them, with their names.
        pub const HAPPENINGS: &[(Happening, &str)] = &[$((Happening::$name, $text),)*];
    };
}

happenings! {
    Access = "accesses",
    Fault = "faults",
    ZeroFault = "faults answered with zeros",
    Restore = "pages moved back from the swap cache",
    LoadFromPool = "pages loaded from the pool",
    LoadFromArea = "pages loaded from an area",
    LoadForeign = "pages loaded from an ancestor's place",
    LoadCancelled = "loads that nobody waited for in the end",
    CameAlong = "pages that came along into the swap cache",
    ReadAhead = "stretches read ahead of a stream",
    Waited = "faults on a page that another thread brings in",
    TryLater = "operations that an event stood in the way of",
    MovedOut = "pages moved out",
    MoveRefused = "pages that could not be moved out",
    FoundMissing = "pages that were not there when they were to be moved",
    StoredClean = "pages that still equalled their copy",
    StoredZero = "pages of zeros stored as nothing",
    StoredInPool = "pages stored in the pool",
    StoredOnArea = "pages stored on an area",
    StoreFailed = "stores that failed",
    StoreWanted = "stores whose page was wanted meanwhile",
    WrittenBack = "objects written back to an area",
    Compacted = "objects moved inside the pool",
    CompactionGivenUp = "moves inside the pool that were given up",
    Trashed = "frames given back",
    Discard = "discards",
    Unmap = "unmappings",
    Remap = "movings of memory",
    EventHeld = "readings of events that were not settled at once",
    Decided = "movings put in order with others",
    EndedUnclear = "ends with a line, where nothing told two orders apart",
    Grow = "growings of memory",
    Adopt = "adoptions",
    LazilyDropped = "pages that the kernel dropped after MADV_FREE",
    Fork = "forks",
    FrozenFault = "faults served beside the books",
    ProcessEnd = "ends of a child",
    Zombie = "entries kept for a child",
    ReadFault = "faults injected into reads",
    WriteFault = "faults injected into writes",
    Lost = "pages lost for a reason",
    ClusterGiven = "clusters given back",
    SwapoffRead = "stretches read from an area that leaves",
    AreaEmptied = "areas emptied",
}

/// Counts of all [`Happening`]s.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Coverage([u64; HAPPENINGS.len()]);

impl Default for Coverage {
    fn default() -> Self {
        Self([0; HAPPENINGS.len()])
    }
}

impl Coverage {
    pub(super) fn note(&mut self, what: Happening) {
        self.add(what, 1);
    }

    pub(super) fn add(&mut self, what: Happening, count: u64) {
        self.0[what as usize] += count;
    }

    /// How often it happened.
    pub fn count(&self, what: Happening) -> u64 {
        self.0[what as usize]
    }

    /// Adds what happened elsewhere.
    pub fn merge(&mut self, other: &Coverage) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}
