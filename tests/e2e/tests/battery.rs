//! The shortest programs of the battery (`cargo xtask battery`), in a small size and in half of their memory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use uswap_e2e::{Budget, Launch, Share, TempDir, bare_only, compare, need, tool};

/// The script of a program. It must be found, and what it needs be installed.
fn prepared(test: &TempDir, name: &str) -> (PathBuf, Launch) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../battery").join(name).with_extension("sh");
    let launch = Launch::new(test, "bash").env("SCALE", "small").time_limit(Duration::from_secs(180));
    let mut prepare = Command::new("bash");
    let made = tool(prepare.arg(&script).arg("prepare").env("SCALE", "small").current_dir(launch.work()));
    assert!(made.status.success(), "cannot prepare {name}: {}", String::from_utf8_lossy(&made.stderr));
    (script, launch)
}

/// Runs a program of the battery with and without uswap; what it prints must be the same, and not nothing.
fn battery(name: &str, needs: &[(&str, &str)]) {
    if needs.iter().any(|(program, package)| need(program, package).is_none()) {
        return;
    }
    let test = TempDir::new(name);
    let (script, launch) = prepared(&test, name);
    let launch = launch.arg(script).arg("work");
    compare(&launch, Share::Half, |_, finished| assert!(!finished.stdout.is_empty(), "no result\n{finished}"));
}

#[test]
fn node_gives_the_same_in_half_of_its_memory() {
    battery("node", &[("node", "nodejs")]);
}

#[test]
fn threads_of_node_give_the_same_in_half_of_their_memory() {
    battery("node-workers", &[("node", "nodejs")]);
}

#[test]
fn sbcl_gives_the_same_in_half_of_its_memory() {
    battery("sbcl", &[("sbcl", "sbcl")]);
}

#[test]
fn erlang_gives_the_same_in_half_of_its_memory() {
    battery("erlang", &[("erl", "erlang-base"), ("erlc", "erlang-base")]);
}

#[test]
fn php_gives_the_same_in_half_of_its_memory() {
    battery("php-cli", &[("php", "php-cli")]);
}

#[test]
fn gcc_makes_the_same_program_in_half_of_its_memory() {
    battery("gpp", &[("g++", "g++")]);
}

#[test]
fn memcached_keeps_its_values_in_half_of_its_memory() {
    battery("memcached", &[("memcached", "memcached"), ("python3", "python3")]);
}

#[test]
fn sort_gives_the_same_in_half_of_its_memory() {
    battery("sort", &[("sort", "coreutils")]);
}

#[test]
fn rustc_makes_the_same_program_in_half_of_its_memory() {
    battery("rustc", &[("rustc", "rustc")]);
}

#[test]
fn npm_installs_the_same_tree_of_packages_in_half_of_its_memory() {
    battery("npm", &[("node", "nodejs"), ("npm", "npm")]);
}

#[test]
fn a_static_program_of_the_battery_is_refused_by_name() {
    if need("gcc", "gcc").is_none() {
        return;
    }
    let test = TempDir::new("c-static");
    let (_, launch) = prepared(&test, "c-static");
    let program = launch.work().join("program");
    let finished = Launch::new(&test, &program).time_limit(Duration::from_secs(30)).under(&Budget::mib(64)).finish();
    if bare_only() {
        return;
    }
    assert_eq!(finished.code(), 125, "{finished}");
    assert!(finished.stderr.contains("statically linked"), "{finished}");
    assert!(finished.stderr.contains(&*program.to_string_lossy()), "{finished}");
}
