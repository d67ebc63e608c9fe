//! libFuzzer's entry to [`uswap_fuzz::group_file`].

#![no_main]

use uswap_fuzz::{Canary, group_file};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| group_file::run(bytes, Canary::of_the_environment()));
