//! The policies that a run chooses: which block leaves, what comes along with a page, and how swapoff finds pages.

/// What is chosen.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Policies {
    /// Which block leaves.
    pub reclaim: ReclaimPolicy,
    /// What comes along with a page that is asked for.
    pub readahead: ReadaheadPolicy,
    /// How swapoff finds the page of a slot.
    pub swapoff: OwnerSearch,
}

/// Which block of pages leaves next ([`crate::reclaim`]).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ReclaimPolicy {
    /// The kernel's two lists: what is found in the swap cache is active.
    #[default]
    Lists = 0,
    /// The same, and what comes back from where it is stored is active, too, when it was out for no longer than the active
    /// list is long (the kernel's refault distance).
    Refault = 1,
    /// S3-FIFO: what comes back soon stays; what does not passes through a tenth of memory.
    S3Fifo = 2,
    /// LIRS, as far as faults can tell: all memory but a hundredth is for what has come back soon.
    Lirs = 3,
}

/// What comes along with a page that is asked for ([`crate::readahead`]).
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ReadaheadPolicy {
    /// Streams of faults are found and read ahead; with a page of no stream come its neighbours on the area.
    #[default]
    Stream = 0,
    /// The neighbours on the area, whatever the faults before.
    Cluster = 1,
    /// The neighbours by address, as the kernel's readahead by mapping.
    Vma = 2,
    /// Nothing.
    Off = 3,
}

/// How swapoff finds the page of a slot ([`crate::owner_search`]). All but the first are for comparison.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum OwnerSearch {
    /// What is where is noted for many slots at a time ([`crate::swapoff`]).
    #[default]
    Book = 0,
    /// For each slot the whole page table is gone through, until the page is found.
    Table = 1,
    /// The same, mapping by mapping from that of the last hit on; 16 pages at a time are copied out of the table and compared.
    Mapping = 2,
    /// The same, and compared where they are (Linux 3.1's `locate_item`).
    Locate = 3,
}

impl ReclaimPolicy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Lists, Self::Refault, Self::S3Fifo, Self::Lirs];

    /// What it is chosen by.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lists => "lists",
            Self::Refault => "refault",
            Self::S3Fifo => "s3fifo",
            Self::Lirs => "lirs",
        }
    }

    /// The policy of that number; `None` when there is none.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|&policy| policy as u32 == number)
    }
}

impl ReadaheadPolicy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Stream, Self::Cluster, Self::Vma, Self::Off];

    /// What it is chosen by.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Cluster => "cluster",
            Self::Vma => "vma",
            Self::Off => "off",
        }
    }

    /// The policy of that number; `None` when there is none.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|&policy| policy as u32 == number)
    }
}

impl OwnerSearch {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Book, Self::Table, Self::Mapping, Self::Locate];

    /// What it is chosen by.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Book => "book",
            Self::Table => "table",
            Self::Mapping => "mapping",
            Self::Locate => "locate",
        }
    }

    /// The search of that number; `None` when there is none.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|&search| search as u32 == number)
    }

    /// The search of that name; `None` when there is none.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|search| search.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_has_a_number_and_a_name_of_its_own() {
        for policy in ReclaimPolicy::ALL {
            assert_eq!(ReclaimPolicy::from_number(policy as u32), Some(policy));
            assert_eq!(ReclaimPolicy::ALL.iter().filter(|other| other.name() == policy.name()).count(), 1);
        }
        for policy in ReadaheadPolicy::ALL {
            assert_eq!(ReadaheadPolicy::from_number(policy as u32), Some(policy));
            assert_eq!(ReadaheadPolicy::ALL.iter().filter(|other| other.name() == policy.name()).count(), 1);
        }
        for search in OwnerSearch::ALL {
            assert_eq!(OwnerSearch::from_number(search as u32), Some(search));
            assert_eq!(OwnerSearch::from_name(search.name()), Some(search));
        }
        assert_eq!((OwnerSearch::from_number(99), OwnerSearch::from_name("")), (None, None));
        assert_eq!((ReclaimPolicy::from_number(99), ReadaheadPolicy::from_number(99)), (None, None));
    }
}
