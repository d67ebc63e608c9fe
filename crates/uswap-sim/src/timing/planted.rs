//! Defects that are planted on purpose, each to show that a checker fires.

/// What is done wrong, once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// A slot is freed while its write is in flight.
    FreeInFlight,
    /// A slot's content is overwritten with that of another page.
    OverwriteSlot,
    /// A page is handed over with the content of another one.
    Misread,
    /// The header's slot is read along with others.
    ReadHeader,
    /// A readahead window has another size than the rule allows.
    OddWindow,
    /// A page that readahead brought counts as two hits.
    CountHitTwice,
    /// A page is called lost that could be read.
    LoseForNothing,
    /// A slot is freed and its compressed copy stays.
    KeepCompressed,
    /// A page is brought into memory and not counted.
    ForgetCharge,
    /// A process ends and one of its slots stays in use.
    KeepSlot,
}
