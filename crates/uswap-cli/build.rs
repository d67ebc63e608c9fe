//! Builds the agents, so that they can travel inside the command: one for groups that compress with Zstandard, and a
//! smaller one for all others.
//!
//! An agent is a shared library with its own profile (release, panic=abort), whatever profile the command is built
//! with, so cargo is run once more with a target directory of its own: the outer cargo holds the lock of the usual
//! one. The directory is shared by all profiles of the command: the agents are the same for all.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set by the outer cargo for us, or by tools around it, and wrong for the build inside.
const NOT_FOR_THE_AGENT: [&str; 9] = [
    "CARGO_ENCODED_RUSTFLAGS",
    // clippy, when the command is being linted.
    "RUSTC_WORKSPACE_WRAPPER",
    "CLIPPY_ARGS",
    "CARGO_TARGET_DIR",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_BUILD_BUILD_DIR",
    "CARGO_BUILD_TARGET",
    "CARGO_MANIFEST_PATH",
    "CARGO_UNSTABLE_BUILD_DIR",
];

/// Of zstd's compressors the agent needs only the fastest: its level is negative (uswap-engine/src/compress/zstd.rs). The
/// others would be a sixth of what is written to a memory file at each start of a program.
const SLOW_ZSTD_COMPRESSORS: [&str; 7] = ["DFAST", "GREEDY", "LAZY", "LAZY2", "BTLAZY2", "BTOPT", "BTULTRA"];

fn main() {
    let ours = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let crates = ours.parent().expect("crates/uswap-cli");
    let workspace = crates.parent().expect("crates");
    for name in ["uswap-agent", "uswap-engine", "uswap-sys", "uswap-system", "uswap-core"] {
        for part in ["src", "Cargo.toml", "build.rs"] {
            let path = crates.join(name).join(part);
            if path.exists() {
                // Relative to the package: clones of the project may have one target directory.
                println!("cargo::rerun-if-changed=../{name}/{part}");
            }
        }
    }
    for file in ["Cargo.toml", "Cargo.lock"] {
        println!("cargo::rerun-if-changed=../../{file}");
    }

    // For debuggers and profilers: the agent keeps its symbols.
    println!("cargo::rerun-if-env-changed=USWAP_AGENT_SYMBOLS");
    let symbols = env::var_os("USWAP_AGENT_SYMBOLS").is_some();

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    for (variable, name, features) in [
        ("USWAP_AGENT", "uswap-agent.so", ["--no-default-features"].as_slice()),
        ("USWAP_AGENT_ZSTD", "uswap-agent-zstd.so", &[]),
    ] {
        // Both are built to the same place.
        let library = out.join(name);
        let built = build_agent(workspace, features, symbols);
        std::fs::copy(&built, &library).unwrap_or_else(|error| panic!("{}: {error}", built.display()));
        println!("cargo::rustc-env={variable}={}", library.display());
    }
}

/// Builds one agent; returns where it is.
fn build_agent(workspace: &Path, features: &[&str], symbols: bool) -> PathBuf {
    let target = agent_target_directory();
    let triple = env::var("TARGET").expect("cargo sets it");
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets it"));
    cargo
        .current_dir(workspace)
        .args(["build", "--quiet", "--package", "uswap-agent", "--lib", "--release", "--target", &triple])
        .args(features)
        .arg("--target-dir")
        .arg(&target)
        // The outer cargo has just made the lock file fit; a build that changed it would start us again.
        .arg("--locked")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_LTO", "fat")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_STRIP", if symbols { "none" } else { "symbols" })
        .env("CARGO_PROFILE_RELEASE_DEBUG", if symbols { "1" } else { "0" });
    cargo.env("CFLAGS", c_flags());
    for name in NOT_FOR_THE_AGENT {
        cargo.env_remove(name);
    }
    let status = cargo.status().expect("cannot run cargo for the agent");
    assert!(status.success(), "the agent does not build");
    target.join(triple).join("release/libuswap_agent.so")
}

/// For the C code in the agent: what the outer build was given, and what is left out.
fn c_flags() -> String {
    println!("cargo::rerun-if-env-changed=CFLAGS");
    let without = SLOW_ZSTD_COMPRESSORS.map(|name| format!(" -DZSTD_EXCLUDE_{name}_BLOCK_COMPRESSOR"));
    env::var("CFLAGS").unwrap_or_default() + &without.concat()
}

/// OUT_DIR is TARGET/[TRIPLE/]PROFILE/build/uswap-cli-HASH/out: a sibling of PROFILE.
fn agent_target_directory() -> PathBuf {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let above_profile = out.ancestors().nth(4).filter(|path| path.parent().is_some());
    above_profile.unwrap_or(Path::new(&out)).join("agent")
}
