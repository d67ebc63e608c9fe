//! Readahead of one kind or another, chosen by name: what the kernel does by slot or by address, our streams, or none.
//!
//! This is the policy alone, for whoever has pages to bring and wants to compare. The kernel's way in as a whole, with the swap
//! cache, swapoff and the differences between versions, is [`uswap_linux::do_swap_page`].

use core::fmt;
use core::ops::Range;
use core::str::FromStr;

use uswap_core::units::{PageNumber, PageRange};
use uswap_linux::swapin_readahead::{ClusterReadahead, VmaReadahead};
use uswap_policy::streams::{Ahead, RegionStreams, Tag, WINDOW_MAX};

/// A kind of readahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadaheadKind {
    /// Only what is touched is read.
    None,
    /// The kernel's, by slot: one state for the machine.
    LinuxCluster,
    /// The kernel's, by address: one state for each region.
    LinuxVma,
    /// Ours.
    Streams,
}

impl ReadaheadKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::None, Self::LinuxCluster, Self::LinuxVma, Self::Streams];

    /// What it is called, and parsed from.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::LinuxCluster => "linux-cluster",
            Self::LinuxVma => "linux-vma",
            Self::Streams => "streams",
        }
    }
}

/// No kind of readahead has that name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownReadahead;

impl fmt::Display for UnknownReadahead {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("unknown readahead; choose one of")?;
        ReadaheadKind::ALL.iter().try_for_each(|kind| write!(out, " {}", kind.name()))
    }
}

impl core::error::Error for UnknownReadahead {}

impl FromStr for ReadaheadKind {
    type Err = UnknownReadahead;

    fn from_str(name: &str) -> Result<Self, UnknownReadahead> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or(UnknownReadahead)
    }
}

/// What is kept of one region.
#[derive(Clone, Debug)]
pub struct RegionReadahead {
    range: PageRange,
    state: RegionState,
}

#[derive(Clone, Debug)]
enum RegionState {
    Shared,
    Vma(VmaReadahead),
    Streams(Box<RegionStreams>),
}

/// What to read along. Pages in memory, pages that have no content on swap, and the missed page are to be left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadAlong {
    /// Nothing.
    Nothing,
    /// Slots of the missed slot's area.
    Slots(Range<u64>),
    /// Pages of the region.
    Pages(Range<u64>),
    /// Evenly spaced pages of the region. Each is to be kept with the tag.
    Steps(Ahead),
}

impl ReadAlong {
    /// What a page that came along is to be kept with.
    pub fn tag(&self) -> Option<Tag> {
        match self {
            Self::Steps(ahead) => Some(ahead.tag),
            _ => None,
        }
    }

    fn steps(ahead: Option<Ahead>) -> Self {
        ahead.map_or(Self::Nothing, Self::Steps)
    }
}

/// The state of a machine.
#[derive(Clone, Debug)]
pub struct SwapReadahead {
    kind: ReadaheadKind,
    page_cluster: u32,
    cluster: ClusterReadahead,
}

impl SwapReadahead {
    /// A machine that has not swapped yet. `page_cluster` is the kernel's; streams do not ask for it.
    pub fn new(kind: ReadaheadKind, page_cluster: u32) -> Self {
        Self { kind, page_cluster, cluster: ClusterReadahead::new(page_cluster) }
    }

    /// The kind.
    pub fn kind(&self) -> ReadaheadKind {
        self.kind
    }

    /// What to keep of a region without faults.
    pub fn region(&self, range: PageRange) -> RegionReadahead {
        let state = match self.kind {
            ReadaheadKind::None | ReadaheadKind::LinuxCluster => RegionState::Shared,
            ReadaheadKind::LinuxVma => RegionState::Vma(VmaReadahead::default()),
            ReadaheadKind::Streams => RegionState::Streams(Box::new(RegionStreams::new(range, WINDOW_MAX))),
        };
        RegionReadahead { range, state }
    }

    /// A thread touched `page`, which lies on slot `slot` of an area with `slots` slots and is not in memory.
    pub fn missed(&mut self, region: &mut RegionReadahead, page: PageNumber, slot: u64, slots: u64) -> ReadAlong {
        match &mut region.state {
            RegionState::Vma(state) => ReadAlong::Pages(state.miss(page, region.range, self.page_cluster).pages),
            RegionState::Streams(streams) => ReadAlong::steps(streams.missed(page)),
            RegionState::Shared if self.kind == ReadaheadKind::None => ReadAlong::Nothing,
            RegionState::Shared => ReadAlong::Slots(self.cluster.miss(slot, slots).slots),
        }
    }

    /// A thread touched `page`, which had come along with another and was not touched yet; it was kept with `tag`.
    pub fn found(&mut self, region: &mut RegionReadahead, page: PageNumber, tag: Option<Tag>) -> ReadAlong {
        match (&mut region.state, tag) {
            (RegionState::Streams(streams), Some(tag)) => return ReadAlong::steps(streams.found(page, tag)),
            (RegionState::Vma(state), _) => state.found(page, true),
            _ => self.cluster.hit(),
        }
        ReadAlong::Nothing
    }

    /// `page`, which had come along and was kept with `tag`, left memory untouched.
    pub fn dropped(&mut self, region: &mut RegionReadahead, page: PageNumber, tag: Option<Tag>) {
        if let (RegionState::Streams(streams), Some(tag)) = (&mut region.state, tag) {
            streams.dropped(page, tag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_parsed_from_its_name() {
        for kind in ReadaheadKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        let refused = "ondemand".parse::<ReadaheadKind>().unwrap_err().to_string();
        assert_eq!(refused, "unknown readahead; choose one of none linux-cluster linux-vma streams");
    }

    #[test]
    fn each_kind_reads_what_is_its_own() {
        let along = |kind| {
            let mut readahead = SwapReadahead::new(kind, 3);
            let mut region = readahead.region(PageRange { start: PageNumber(0), pages: 512 });
            let _ = readahead.missed(&mut region, PageNumber(100), 21, 64);
            readahead.missed(&mut region, PageNumber(101), 22, 64)
        };
        assert_eq!(along(ReadaheadKind::None), ReadAlong::Nothing);
        assert_eq!(along(ReadaheadKind::LinuxCluster), ReadAlong::Slots(20..24));
        assert_eq!(along(ReadaheadKind::LinuxVma), ReadAlong::Pages(101..105));
        let streams = along(ReadaheadKind::Streams);
        let ReadAlong::Steps(ahead) = streams else { panic!("{streams:?}") };
        assert_eq!(ahead.pages().collect::<Vec<_>>(), [PageNumber(102), PageNumber(103)]);
    }
}
