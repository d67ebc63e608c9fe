//! What the engine does since the soak has found what happens otherwise. Without any one of these the soak finds that
//! fault again.

/// Which remedies are applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remedies {
    /// Whoever waits for a page of a range is woken when the discarding, unmapping or moving of the range is applied. A
    /// thread that waits for a page whose frame is being stored is forgotten otherwise, when the page is discarded.
    pub events_wake: bool,
    /// Memory that carries pages given up with MADV_FREE before it was adopted counts as discarded: the kernel may drop
    /// them later, and then they are zeros, not lost.
    pub lazy_pages_are_seen: bool,
    /// When zeros cannot be mapped because of an event or for want of memory, all that wait for a page of the window are
    /// woken: a thread may have been told to wait for a page behind the one that faulted.
    pub zero_windows_wake: bool,
    /// A resident page that is not there is judged only once no event is unread: it may have been unmapped or moved a
    /// moment ago.
    pub events_before_judgement: bool,
    /// Events are applied in the order in which memory changed, not as they were read: a thread that has freed a range may
    /// be reported after another that has moved memory there.
    pub events_in_order: bool,
    /// Memory is adopted, and the books are told which pages are populated, only when no event is unread: what is there may
    /// have been moved there, and the books would take it for what was there before.
    pub scans_when_still: bool,
    /// Where events may have happened in more than one order, the kernel is asked what is mapped and populated. What has gone
    /// stayed in the books otherwise, and was called lost later.
    pub mappings_are_asked: bool,
}

impl Remedies {
    /// All of them.
    pub const ALL: Remedies = Remedies {
        events_wake: true,
        lazy_pages_are_seen: true,
        zero_windows_wake: true,
        events_before_judgement: true,
        events_in_order: true,
        scans_when_still: true,
        mappings_are_asked: true,
    };
}
