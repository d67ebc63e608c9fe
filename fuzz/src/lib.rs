//! Fuzz targets: what comes to uswap as bytes from outside, each read by the product's own code.
//!
//! A target is a function of bytes. It panics when what the product makes of them is not what is promised: most targets say
//! what that is in properties (what is written is read again as it was; nothing outside of the buffers is touched), one
//! ([`control_words`]) by a plain map beside the real thing. Two things run them: libFuzzer, from `fuzz_targets/`, for as long
//! as somebody likes (`cargo xtask fuzz bytes`), and the test `corpus` on each change: all of the corpus, and some thousand
//! [mutations](mutate) of it, from a seed.
//!
//! Each has a [`Canary`]: what the product made is spoilt as a defect of the product's would, for rare inputs of which the
//! corpus has none. If neither libFuzzer nor the test finds that, they find nothing.

#![deny(unsafe_code)]

pub mod control_words;
pub mod decompressors;
pub mod group_file;
mod guarded;
pub mod messages;
pub mod mutate;
pub mod swap_header;
pub mod swap_specs;
pub mod traces;

// The command is a program, not a library. These files of it need nothing but each other.
#[path = "../../crates/uswap-cli/src/mkswap.rs"]
mod mkswap;
#[path = "../../crates/uswap-cli/src/size.rs"]
mod size;
#[path = "../../crates/uswap-cli/src/swap_spec.rs"]
mod swap_spec;

use std::sync::OnceLock;

/// Whether a defect is planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Canary {
    /// The product as it is.
    Absent,
    /// With a defect, which must be found.
    Planted,
}

/// In the environment of a program of libFuzzer's: a defect is planted.
const CANARY_VARIABLE: &str = "USWAP_FUZZ_CANARY";

impl Canary {
    /// As the environment has it.
    pub fn of_the_environment() -> Canary {
        static FOUND: OnceLock<Canary> = OnceLock::new();
        *FOUND.get_or_init(|| match std::env::var_os(CANARY_VARIABLE) {
            Some(_) => Canary::Planted,
            None => Canary::Absent,
        })
    }

    fn is_planted(self) -> bool {
        self == Canary::Planted
    }
}

/// An input of the corpus, and the name of its file.
pub type Seed = (&'static str, Vec<u8>);

/// A fuzz target.
pub struct Target {
    /// As its file is called.
    pub name: &'static str,
    /// What must not panic.
    pub run: fn(&[u8], Canary),
    /// The corpus: the files of `corpus/NAME`.
    pub seeds: fn() -> Vec<Seed>,
    /// What inputs are made of, for those who mutate them.
    pub words: &'static [&'static [u8]],
}

/// All of them.
pub const TARGETS: [Target; 7] = [
    swap_header::TARGET,
    group_file::TARGET,
    control_words::TARGET,
    messages::TARGET,
    traces::TARGET,
    swap_specs::TARGET,
    decompressors::TARGET,
];
