//! The options of `uswap run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use uswap_core::{OwnerSearch, Policies, ReadaheadPolicy, ReclaimPolicy};
use uswap_engine::group::{Compressor, SwappedShared};

use super::watchdog::OnStall;
use crate::failure::Failure;
use crate::memory_limit;
use crate::size;
use crate::swap_spec::{self, SwapSpec};

/// The smallest budget: below it uswap's own tables and frames would leave nothing to the program.
pub const MEMORY_BYTES_MIN: u64 = 16 << 20;
/// The largest: more than any machine has, and few enough pages that nothing overflows.
pub const MEMORY_BYTES_MAX: u64 = 16 << 40;
/// How much larger than the memory the temporary swap file may get.
pub const SWAP_TO_MEMORY: u64 = 4;
/// Default swap space of small budgets.
pub const SWAP_BYTES_MIN: u64 = 4 << 30;

/// How stored pages are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompressorName {
    /// Fast, about 2:1
    Lz4,
    /// Slower, about 3:1
    Zstd,
    /// No compressed pool: everything goes to the swap areas
    None,
}

impl From<CompressorName> for Compressor {
    fn from(name: CompressorName) -> Compressor {
        match name {
            CompressorName::Lz4 => Compressor::Lz4,
            CompressorName::Zstd => Compressor::Zstd,
            CompressorName::None => Compressor::None,
        }
    }
}

/// Which shared memory is swapped
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SharedName {
    /// None: it stays in memory, and counts
    None,
    /// What is mapped with MAP_SHARED and MAP_ANONYMOUS
    Anonymous,
    /// That, System V segments, and what is mapped of files in memory (memfd_create, shm_open, tmpfs): read(2) and sendfile(2) of such
    /// a file, and processes outside of the run, see zeros for what is swapped out; takes root
    Files,
}

impl From<SharedName> for SwappedShared {
    fn from(name: SharedName) -> SwappedShared {
        match name {
            SharedName::None => SwappedShared::None,
            SharedName::Anonymous => SwappedShared::Anonymous,
            SharedName::Files => SwappedShared::Files,
        }
    }
}

/// Which pages leave
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReclaimName {
    /// Two lists, as the kernel's: what is wanted again at once is active
    Lists,
    /// The same; what comes back soon by its refault distance is active, too
    Refault,
    /// S3-FIFO: what does not come back soon passes through a tenth of the memory
    #[value(name = "s3fifo")]
    S3Fifo,
    /// LIRS: nearly all memory is for what has come back soon
    Lirs,
}

impl From<ReclaimName> for ReclaimPolicy {
    fn from(name: ReclaimName) -> ReclaimPolicy {
        match name {
            ReclaimName::Lists => ReclaimPolicy::Lists,
            ReclaimName::Refault => ReclaimPolicy::Refault,
            ReclaimName::S3Fifo => ReclaimPolicy::S3Fifo,
            ReclaimName::Lirs => ReclaimPolicy::Lirs,
        }
    }
}

/// What is read along with a page
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReadaheadName {
    /// What follows in a stream; else the neighbours in the swap area
    Stream,
    /// The neighbours in the swap area
    Cluster,
    /// The neighbours by address, as the kernel's
    Vma,
    /// Nothing
    Off,
}

impl From<ReadaheadName> for ReadaheadPolicy {
    fn from(name: ReadaheadName) -> ReadaheadPolicy {
        match name {
            ReadaheadName::Stream => ReadaheadPolicy::Stream,
            ReadaheadName::Cluster => ReadaheadPolicy::Cluster,
            ReadaheadName::Vma => ReadaheadPolicy::Vma,
            ReadaheadName::Off => ReadaheadPolicy::Off,
        }
    }
}

/// Runs a program, and all that it starts, inside a memory budget.
///
/// What does not fit is compressed in RAM; what does not fit there goes to a swap file. The exit status is the
/// program's; uswap's own failures are 125, a program that cannot be run 126, one that is not found 127.
#[derive(Args, Debug)]
pub struct RunOptions {
    /// Resident memory of the whole tree: 512M, 2G, 1.5GiB; at least 16M [default: half of what the container or
    /// the machine has]
    #[arg(short = 'm', long = "memory", value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    pub memory_bytes: Option<u64>,

    /// A swap area: file:PATH[,size=SIZE][,prio=NUMBER][,overwrite]; may repeat. A file that is neither blank nor a
    /// swap area of its own size is used with `overwrite` only [default: an unlinked file of four times the memory, at
    /// least 4G, in $USWAP_SWAP_DIR, $TMPDIR or /var/tmp]
    #[arg(long = "swap", value_name = "SPEC", value_parser = swap_spec::parse)]
    pub swap: Vec<SwapSpec>,

    /// Share of the memory that compressed pages may fill
    #[arg(long, value_name = "N", default_value_t = 35, value_parser = clap::value_parser!(u32).range(0..=90),
          allow_negative_numbers = true)]
    pub zpool_percent: u32,

    /// How pages are compressed
    #[arg(long, value_name = "NAME", default_value = "lz4")]
    pub compressor: CompressorName,

    /// Which pages leave when the memory is full
    #[arg(long, value_name = "POLICY", default_value = "lists")]
    pub reclaim: ReclaimName,

    /// What is read along with a page
    #[arg(long, value_name = "POLICY", default_value = "stream")]
    pub readahead: ReadaheadName,

    /// Which shared memory is swapped
    #[arg(long, value_name = "WHICH", default_value = "anonymous")]
    pub shared: SharedName,

    /// Writes what happened to a file, as JSON
    #[arg(long, value_name = "FILE.json")]
    pub stats: Option<PathBuf>,

    /// What is done when threads wait for pages that do not come, for ten seconds, or a minute where others come or a disk is waited for
    #[arg(long, value_name = "ACTION", default_value = "warn")]
    pub on_stall: OnStall,

    /// No summary, no warnings
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Says what it does
    #[arg(short = 'v', long)]
    pub verbose: bool,

    #[command(flatten)]
    pub trials: Trials,

    /// The program and its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// A budget of whole pages, if what was asked for is enough.
pub fn checked_budget(bytes: u64) -> Result<u64, Failure> {
    if bytes < MEMORY_BYTES_MIN {
        let (asked, minimum) = (size::chosen(bytes), size::chosen(MEMORY_BYTES_MIN));
        return Err(Failure::ours(format!("a memory budget of {asked} is below the minimum of {minimum}")));
    }
    if bytes > MEMORY_BYTES_MAX {
        let (asked, maximum) = (size::chosen(bytes), size::chosen(MEMORY_BYTES_MAX));
        return Err(Failure::ours(format!("a memory budget of {asked} is above the maximum of {maximum}")));
    }
    Ok(bytes / 4096 * 4096)
}

/// What tests and comparisons ask for.
#[derive(Args, Debug)]
pub struct Trials {
    /// Makes the store fail on purpose, for tests: KIND:every=N,after=N,until=N
    #[arg(long, value_name = "PLAN", hide = true)]
    pub fault_injection: Option<String>,

    /// How swapoff finds the page of a slot, for comparison: book, table, mapping or locate
    #[arg(long, value_name = "SEARCH", hide = true, default_value = "book", value_parser = owner_search)]
    pub swapoff_search: OwnerSearch,
}

fn owner_search(name: &str) -> Result<OwnerSearch, String> {
    OwnerSearch::from_name(name).ok_or_else(|| "there is no such search".to_owned())
}

impl RunOptions {
    /// What leaves, and what comes along.
    pub fn policies(&self) -> Policies {
        Policies { reclaim: self.reclaim.into(), readahead: self.readahead.into(), swapoff: self.trials.swapoff_search }
    }

    /// 0 quiet, 1 as usual, 2 everything.
    pub fn verbosity(&self) -> u8 {
        match (self.quiet, self.verbose) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2,
        }
    }

    /// The budget: what was asked for, or half of what there is.
    pub fn budget_bytes(&self) -> Result<u64, Failure> {
        let minimum = size::chosen(MEMORY_BYTES_MIN);
        match self.memory_bytes {
            Some(bytes) => checked_budget(bytes),
            None => match memory_limit::find() {
                Some(limit) if limit.bytes / 2 >= MEMORY_BYTES_MIN => Ok(limit.bytes / 2 / 4096 * 4096),
                Some(limit) => {
                    let half = size::chosen(limit.bytes / 2);
                    Err(Failure::ours(format!(
                        "half of the memory there is ({half}) is below the minimum of {minimum}: give --memory"
                    )))
                }
                None => Err(Failure::ours("cannot find out how much memory there is: give --memory")),
            },
        }
    }
}
