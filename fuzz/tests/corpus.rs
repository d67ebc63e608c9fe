//! The corpus of each fuzz target, and mutations of it, through the same functions that libFuzzer calls.
//!
//! The corpus is what the targets' `seeds` make, and inputs with which something was found. `USWAP_WRITE_CORPUS=1 cargo test -p
//! uswap-fuzz` writes the former.

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use uswap_fuzz::mutate::{Chance, mutation};
use uswap_fuzz::{Canary, TARGETS, Target};

/// Mutations of each target: a second of them.
const MUTATIONS: u64 = 4000;
/// Within so many the canary must have died.
const CANARY_MUTATIONS: u64 = 40_000;

fn directory(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// The committed inputs.
fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let directory = directory(target);
    let files = std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    // The order of a directory is anybody's; a seed is to lead to the same mutations.
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// The first mutation from which the target dies.
fn first_death(target: &Target, corpus: &[Vec<u8>], mutations: u64, canary: Canary) -> Option<(u64, Vec<u8>)> {
    (0..mutations).find_map(|seed| {
        let bytes = mutation(corpus, target.words, &mut Chance::new(seed));
        catch_unwind(|| (target.run)(&bytes, canary)).err().map(|_| (seed, bytes))
    })
}

fn shown(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_corpus_is_there_as_it_is_made() {
    for target in &TARGETS {
        for (name, bytes) in (target.seeds)() {
            let path = directory(target).join(name);
            if std::env::var_os("USWAP_WRITE_CORPUS").is_some() {
                std::fs::create_dir_all(directory(target)).unwrap();
                std::fs::write(&path, &bytes).unwrap();
            }
            assert!(std::fs::read(&path).is_ok_and(|found| found == bytes), "{}: is out of date", path.display());
        }
    }
}

#[test]
fn nothing_dies_of_the_corpus() {
    for target in &TARGETS {
        for bytes in corpus(target) {
            // The canary must be found by what makes new inputs.
            for canary in [Canary::Absent, Canary::Planted] {
                (target.run)(&bytes, canary);
            }
        }
        (target.run)(&[], Canary::Absent);
    }
}

#[test]
fn nothing_dies_of_what_is_not_far_from_the_corpus() {
    for target in &TARGETS {
        if let Some((seed, bytes)) = first_death(target, &corpus(target), MUTATIONS, Canary::Absent) {
            panic!("{} dies of mutation {seed}: {}", target.name, shown(&bytes));
        }
    }
}

#[test]
fn each_canary_dies() {
    // What a canary says when it dies is no news; what others say in other threads is.
    let (here, usual) = (std::thread::current().id(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().id() != here {
            usual(panic);
        }
    }));
    let lives: Vec<&str> = TARGETS
        .iter()
        .filter(|target| first_death(target, &corpus(target), CANARY_MUTATIONS, Canary::Planted).is_none())
        .map(|target| target.name)
        .collect();
    if !lives.is_empty() {
        // The test's own panic would not be heard.
        eprintln!("planted defects are not found: {lives:?}");
    }
    assert!(lives.is_empty());
}
