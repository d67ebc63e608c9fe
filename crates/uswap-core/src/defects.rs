//! Defects that are planted on purpose, to see whether the soak on the model finds each: a checker that cannot fail shows nothing.
//!
//! Each is one condition in the function that it spoils. Without the feature `sabotage`, which nothing that is shipped has,
//! [`is_on`] is the constant `false`. `cargo xtask sabotage` plants one after the other.

macro_rules! sabotages {
    ($($(#[doc = $doc:literal])+ $name:ident in $place:literal,)+) => {
        /// A defect.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u32)]
        pub enum Sabotage { $($(#[doc = $doc])+ $name,)+ }

        impl Sabotage {
            /// All of them.
            pub const ALL: &'static [Sabotage] = &[$(Sabotage::$name,)+];

            /// What it is called.
            pub const fn name(self) -> &'static str {
                match self { $(Sabotage::$name => stringify!($name),)+ }
            }

            /// What it does.
            pub const fn what(self) -> &'static str {
                match self { $(Sabotage::$name => concat!($($doc),+),)+ }
            }

            /// The file that it is in, below `crates/uswap-*/src`.
            pub const fn place(self) -> &'static str {
                match self { $(Sabotage::$name => $place,)+ }
            }
        }
    };
}

sabotages! {
    /// Who waits for zeros where none were put is not woken.
    OthersNotWoken in "engine/handler.rs",
    /// Who waits for a page of the swap cache that did not come in is not woken.
    WakeLost in "engine/handler.rs",
    /// A page that is there where zeros are put passes for resident, also if it is being discarded.
    ZerosOverDiscard in "engine/handler.rs",
    /// The gate is not held while a fault is answered.
    AnswerWithoutGate in "engine/handler.rs",
    /// The gate is not held while a block is moved out.
    MoveOutWithoutGate in "engine/swapout/mod.rs",
    /// EAGAIN of a move into the program passes for success.
    AgainIsSuccess in "engine/handler.rs",
    /// Pages that the kernel refused to move out pass for moved.
    RefusedIsMoved in "engine/swapout/moving.rs",
    /// A write that failed passes for done.
    FailedWriteIsDone in "engine/swapout/storing.rs",
    /// All pages of a write share one page of the buffer.
    BufferReused in "engine/swapout/storing.rs",
    /// A slot is free again before it is written.
    SlotFreedBeforeWrite in "engine/swapout/storing.rs",
    /// The page of a thread's control block moves out like any other.
    ControlBlockMoves in "engine/swapout/moving.rs",
    /// A page whose stored copy was dirtied passes for clean.
    DirtyIsClean in "engine/swapout/storing.rs",
    /// In a forked child a page whose stored copy was dirtied passes for clean.
    WrittenInChildIsClean in "engine/swapout/storing.rs",
    /// Any page with a zero at its end passes for zeros.
    NearlyZeroIsZero in "engine/swapout/storing.rs",
    /// An object leaves the pool although its copy on the area failed.
    WrittenBackUnwritten in "engine/swapout/writeback.rs",
    /// Nothing makes the pool smaller.
    PoolShareNotKept in "engine/swapout/writeback.rs",
    /// A pool object is freed twice.
    DoubleFree in "engine/content.rs",
    /// An event that is read when the window of a fork has just been closed is noted in it all the same.
    ClosedWindowNoted in "engine/handler.rs",
    /// The checksum of what was read is not compared.
    ChecksumNotCompared in "engine/swapin.rs",
    /// A read that failed gives zeros.
    FailedReadIsZero in "engine/swapin.rs",
    /// What could not be placed because an event is unread is forgotten, and nobody is woken.
    WaiterOfEventForgotten in "engine/handler.rs",
    /// The report of a mremap is lost.
    RemapLost in "engine/events.rs",
    /// The report of a discard is lost.
    RemoveLost in "engine/events.rs",
    /// The report of a munmap is lost.
    UnmapLost in "engine/events.rs",
    /// An unmapping that was refused after it had been reported passes for done.
    RefusedCallsBelieved in "core/event_order/mod.rs",
    /// Events are settled while the kernel still counts changes.
    SettledTooEarly in "engine/events.rs",
    /// Holes in what is moved are filled while events are held back.
    FilledWhileHeld in "engine/userfault.rs",
    /// A page that is said to be there is believed to be, though its page table may just have gone.
    ThereIsBelieved in "engine/presence.rs",
    /// An event that is read in the window of a fork is not noted.
    ForkNoteLost in "engine/events.rs",
    /// What was noted in the window of a fork is not applied to the parent's books.
    NotesNotApplied in "engine/beside.rs",
    /// The swap cache is not emptied before a fork.
    CacheNotEmptied in "engine/fork.rs",
    /// The forked child does not wait until its memory is served.
    ChildDoesNotWait in "engine/fork_post.rs",
    /// The child leaves out what its parent's other threads did to the mappings around the fork.
    ChangesNotApplied in "engine/fork_changes.rs",
    /// The ledger does not say what a child holds.
    LedgerBitNotSet in "engine/ledger.rs",
    /// Heirs are not told that the content of an entry has left its owner's pool.
    HeirsNotTold in "engine/ledger.rs",
    /// Heirs are told of a slot on an area that is to become empty.
    ToldOfLeavingArea in "engine/heirs.rs",
    /// One of several holders gives an entry up for all.
    GivenUpForAll in "engine/ledger.rs",
    /// One of several heirs gives back what it does not need itself.
    OtherHeirsForgotten in "engine/left_pools.rs",
    /// A child leaves out one page more than it may.
    ChangesOneTooLow in "engine/in_common.rs",
    /// A child leaves out what it has copied or dropped, too.
    CopiedIsLeftOut in "engine/in_common.rs",
    /// A parent does not count what it has copied or dropped while its children leave it out.
    ParentDoesNotBear in "core/in_common.rs",
    /// What a process has copied or dropped between a census and its look is forgotten.
    SinceMarkForgotten in "core/census.rs",
    /// A census holds though a process has ended since.
    EndForgotten in "engine/group/census.rs",
    /// Pages of zeros that are given back pass for memory that was.
    ZerosGivenBack in "engine/trash.rs",
    /// A child's memory is write-protected before it is registered.
    ProtectedUnregistered in "engine/monitor/share.rs",
    /// A write to what is protected does not wait for room.
    CopiedWithoutRoom in "engine/swapout/room.rs",
    /// Who waits to write to what is protected is not let go on.
    WriterNotWoken in "engine/write_protection.rs",
    /// MREMAP_DONTUNMAP passes for any mremap.
    LeftMappedUntold in "engine/left_mapped.rs",
    /// A program of several threads passes for one of a single thread.
    ThreadsNotCounted in "engine/events.rs",
    /// A call with MREMAP_DONTUNMAP that has returned is not told to whoever has just read its event.
    LeftMappedForgotten in "engine/left_mapped.rs",
    /// What the program keeps from a forked child passes for unmapped there.
    KeptIsUnmapped in "engine/fork_changes.rs",
    /// Pages side by side pass for pages of one mapping.
    OneMappingAssumed in "engine/userfault.rs",
    /// The kernel may make huge pages of a forked child's memory before that is registered.
    HugePagesAllowed in "engine/fork_post.rs",
    /// MADV_FREE is not noted.
    LazyFreeNotNoted in "engine/lazy_free.rs",
    /// Nothing is reclaimed.
    BudgetNotKept in "engine/monitor/mod.rs",
    /// What has been discarded is done with after a while, though a call may be in the kernel still.
    DiscardsEndByTime in "engine/monitor/mod.rs",
    /// An announcement (another budget, an area that leaves) is not heard.
    AnnouncementLost in "engine/swapoff.rs",
    /// Where the kernel counts changes, a scan takes its picture all the same.
    ScanWhileChanging in "engine/adopt/mod.rs",
    /// What lies under another mapping by now is not let go.
    NotVerified in "engine/adopt/verify.rs",
    /// What lies under another mapping is let go though ours may have been moved there after the look.
    OthersLetGoUnasked in "engine/adopt/verify.rs",
    /// A store that failed keeps its frame for ever.
    FailedStoreForgotten in "core/swapout.rs",
    /// Who waits for a page that is being stored is forgotten.
    WantedForgotten in "core/swapout.rs",
    /// A load goes on although its page was given up and is being loaded anew.
    OldLoadGoesOn in "core/fault.rs",
    /// A scan takes in what is being discarded.
    RecentDiscardsIgnored in "core/reclaim.rs",
    /// Only the first half of what a mremap moved is moved in the books.
    RemapHalf in "core/events.rs",
    /// A frame whose page was moved keeps its old owner.
    FrameOwnerStale in "core/events.rs",
    /// A discard leaves the content in the books.
    DiscardIgnored in "core/events.rs",
    /// A block that is put aside passes for moved out, though its pages are neither moved nor stored.
    AsideIsMoved in "core/reclaim.rs",
    /// What was put aside is never looked at again.
    AsideForgotten in "core/reclaim/order.rs",
    /// What an ancestor has stored passes for the child's own.
    ForeignIsOwn in "core/swap_table.rs",
    /// What an heir may read is freed.
    HeirForgotten in "core/swap_table.rs",
    /// An entry that is read at this moment is freed.
    PinIgnored in "core/swap_table.rs",
    /// A new entry keeps the hash of the one before.
    StaleHash in "core/swap_table.rs",
    /// The pool's object is freed, and its entry still names it.
    PlaceNotChanged in "core/swap_table.rs",
    /// Compaction moves what is being read.
    CompactionIgnoresPins in "core/compaction.rs",
    /// An area passes for empty that is not.
    AreaNotEmpty in "core/swapoff.rs",
    /// Events are applied in the order in which they were read.
    EventsAsRead in "core/event_order/mod.rs",
    /// The unmapping that ends a mremap passes for one of its own.
    OwnEndForgotten in "core/event_order/mod.rs",
    /// The first possible order of events is taken.
    FirstOrderTaken in "core/event_order/mod.rs",
    /// A page of shared memory is punched out before it is copied.
    PunchedUncopied in "shmem/moving.rs",
    /// One of the processes that have a page is not kept from writing to it while it leaves.
    OneMayWrite in "shmem/moving.rs",
    /// All may write again before the page is punched out.
    AllMayWriteEarly in "shmem/moving.rs",
    /// A page that another process has filled, and may have written to, is filled once more.
    FilledTwice in "shmem/moving.rs",
    /// A page that could not be copied is punched out all the same.
    RefusedIsPunched in "shmem/moving.rs",
    /// Who waits for a page of shared memory is not woken.
    SharedWakeLost in "shmem/shared.rs",
    /// Who waits to write to a page that has left is not let go on.
    SharedWriterNotWoken in "shmem/moving.rs",
    /// What a forked process has mapped is not known.
    ForkLost in "shmem/messages.rs",
    /// The report of a mremap of shared memory is lost.
    SharedRemapLost in "shmem/messages.rs",
    /// What a process is believed to have of shared memory is relied on also where the order of what it has done is not known.
    DoubtIsTrust in "shmem/changes.rs",
    /// A page is taken away also where something was taken in since it was protected.
    ReportsMissed in "shmem/reports.rs",
    /// A page of shared memory that is said to be there is believed to be.
    SharedThereIsBelieved in "shmem/kernel.rs",
}

/// One more than the number of the defect that is planted; 0: none.
#[cfg(feature = "sabotage")]
static PLANTED: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// Plants a defect, in the whole process; `None` takes it out again.
#[cfg(feature = "sabotage")]
pub fn plant(which: Option<Sabotage>) {
    PLANTED.store(which.map_or(0, |which| which as u32 + 1), core::sync::atomic::Ordering::Relaxed);
}

/// Whether a defect is planted.
#[cfg(feature = "sabotage")]
#[inline]
pub fn is_on(which: Sabotage) -> bool {
    PLANTED.load(core::sync::atomic::Ordering::Relaxed) == which as u32 + 1
}

/// Whether a defect is planted: there is none in this build.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub const fn is_on(_which: Sabotage) -> bool {
    false
}
