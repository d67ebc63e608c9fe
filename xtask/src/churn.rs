//! The long matrix of `churn` beside the kernel's own swap: seeds, masks, kinds of kernel swap.

use crate::run::{build_uswap, cargo, step};

/// What `cargo xtask churn` is told, and the setting of the test that it becomes.
const OPTIONS: [(&str, &str); 4] = [
    ("--seeds", "USWAP_E2E_CHURN_SEEDS"),
    ("--seconds", "USWAP_E2E_CHURN_SECONDS"),
    ("--first-seed", "USWAP_E2E_CHURN_FIRST"),
    ("--swap", "USWAP_E2E_CHURN_SWAP"),
];

/// Runs it, and prints the table at its end. Root alone can turn kernel swap on.
pub fn run(options: &[&str]) -> Result<(), String> {
    let mut command = cargo(&["test", "-p", "uswap-e2e", "--test", "churn", "--", "--ignored", "--nocapture"]);
    for pair in options.chunks(2) {
        let known = OPTIONS.iter().find(|(name, _)| *name == pair[0]);
        let (Some((_, setting)), Some(value)) = (known, pair.get(1)) else {
            return Err("churn [--seeds N] [--seconds S] [--first-seed N] [--swap none,zram,file]".to_owned());
        };
        command.env(setting, value);
    }
    if std::env::var_os("USWAP_BIN").is_none() {
        command.env("USWAP_BIN", build_uswap()?);
    }
    step("churn", &mut command)
}
