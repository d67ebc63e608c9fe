//! Whether everything has a place of its own: files and functions that one can read, and no name for two things.
//!
//! Counted are lines with code in them: no comments, no blank lines, no modules of tests. What is still above the limits is
//! listed, with what it has: it may become less, and then the list does, too, but it cannot grow.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::rust::{Function, Source};

/// Lines of code of a file.
const FILE_MAX: usize = 500;
/// Lines of code of a function.
const FUNCTION_MAX: usize = 60;

/// Files above, with their lines.
const LONG_FILES: &[(&str, usize)] = &[];

/// Functions above, with their lines.
const LONG_FUNCTIONS: &[(&str, &str, usize)] = &[];

/// What runs in programs and in the command.
const PRODUCT: [&str; 5] = ["agent", "cli", "core", "engine", "sys"];
/// What is put beside it or under it: two models of Linux, policies to compare, the simulator and its subcommand.
const MODEL: [&str; 4] = ["linux", "model", "policy", "sim"];
/// Names that say nothing about what is in a file.
const NAMELESS: [&str; 5] = ["lib", "main", "mod", "tests", "check"];

/// What is wrong, with the file.
pub fn mistakes(root: &Path) -> Result<Vec<String>, String> {
    let mut paths = Vec::new();
    for directory in ["crates", "xtask", "tests/e2e"] {
        sources(&root.join(directory), &mut paths)?;
    }
    paths.sort();
    let mut wrong = Vec::new();
    let mut names = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        wrong.extend(too_long(&name, &Source::new(&text)));
        names.push(name);
    }
    wrong.extend(of_nothing(&names));
    wrong.extend(same_names(&names));
    Ok(wrong)
}

/// All files with code that is not for tests alone.
pub fn sources(directory: &Path, found: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = std::fs::read_dir(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_for_tests = ["tests", "benches", "target", "canaries", "words"].contains(&name)
            || ["tests.rs", "words.rs"].contains(&name);
        match path.is_dir() {
            _ if is_for_tests => {}
            true => sources(&path, found)?,
            false if name.ends_with(".rs") => found.push(path),
            false => {}
        }
    }
    Ok(())
}

/// Lines of a file and of its functions that are above the limits, or above or below what is listed.
fn too_long(name: &str, source: &Source) -> Vec<String> {
    let listed = LONG_FILES.iter().find(|(file, _)| *file == name).map(|(_, lines)| *lines);
    let mut wrong: Vec<String> =
        judge(source.lines(), FILE_MAX, listed).map(|what| format!("{name}: {what}")).into_iter().collect();
    // Of several with one name, the longest.
    let mut longest: BTreeMap<&str, usize> = BTreeMap::new();
    let functions = source.functions();
    for Function { name, lines } in &functions {
        let most = longest.entry(name).or_default();
        *most = (*most).max(*lines);
    }
    for (function, lines) in longest {
        let listed = LONG_FUNCTIONS.iter().find(|(file, of_it, _)| *file == name && *of_it == function);
        let what = judge(lines, FUNCTION_MAX, listed.map(|(.., lines)| *lines));
        wrong.extend(what.map(|what| format!("{name}: fn {function}: {what}")));
    }
    wrong
}

/// What is to be said of something with so many lines.
fn judge(lines: usize, most: usize, listed: Option<usize>) -> Option<String> {
    match listed {
        None if lines > most => Some(format!("{lines} lines of code, and at most {most} shall they be")),
        Some(listed) if lines > listed => Some(format!("{lines} lines of code, more than the {listed} it had")),
        Some(listed) if lines <= most => {
            Some(format!("{lines} lines of code: its exception of {listed} in docs/places.rs can go"))
        }
        _ => None,
    }
}

/// Exceptions for files that are not there.
fn of_nothing(names: &[String]) -> Vec<String> {
    let listed = LONG_FILES.iter().map(|(file, _)| file).chain(LONG_FUNCTIONS.iter().map(|(file, ..)| file));
    let gone = listed.filter(|file| !names.iter().any(|name| name == *file));
    gone.map(|file| format!("{file} is not there: its exception in docs/places.rs can go")).collect()
}

/// Files of the product and of a model with one name.
fn same_names(names: &[String]) -> Vec<String> {
    let of = |crates: &[&str]| {
        let mut by_stem: BTreeMap<String, String> = BTreeMap::new();
        for name in names {
            let Some((own, path)) = name.strip_prefix("crates/uswap-").and_then(|name| name.split_once("/src/")) else {
                continue;
            };
            // `uswap sim` and `uswap bench` are the command's, and belong to what they start.
            let own = if path.starts_with("sim/") || path == "bench.rs" { "sim" } else { own };
            if !crates.contains(&own) || (own == "sim" && name.starts_with("crates/uswap-cli")) {
                continue;
            }
            let parts: Vec<&str> = path.trim_end_matches(".rs").split('/').collect();
            for part in parts.into_iter().filter(|part| !NAMELESS.contains(part)) {
                by_stem.entry(part.to_owned()).or_insert_with(|| name.clone());
            }
        }
        by_stem
    };
    let (product, model) = (of(&PRODUCT), of(&MODEL));
    let both = product.iter().filter_map(|(stem, ours)| Some((stem, ours, model.get(stem)?)));
    both.map(|(stem, ours, theirs)| format!("{theirs}: the name '{stem}' is that of {ours}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_has_its_place() {
        let wrong = mistakes(crate::run::root()).unwrap();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn what_is_listed_may_become_less_but_not_more() {
        assert_eq!(judge(500, 500, None), None);
        assert!(judge(501, 500, None).unwrap().contains("at most 500"));
        assert_eq!(judge(590, 500, Some(600)), None);
        assert!(judge(601, 500, Some(600)).unwrap().contains("more than the 600"));
        assert!(judge(500, 500, Some(600)).unwrap().contains("can go"));
    }

    #[test]
    fn a_model_has_no_name_of_the_product() {
        let names = ["crates/uswap-core/src/zswap.rs", "crates/uswap-linux/src/zswap/mod.rs"].map(str::to_owned);
        let said = same_names(&names);
        assert_eq!(
            said,
            ["crates/uswap-linux/src/zswap/mod.rs: the name 'zswap' is that of crates/uswap-core/src/zswap.rs"]
        );
        let names =
            ["crates/uswap-core/src/tests.rs", "crates/uswap-linux/src/tests.rs", "crates/uswap-cli/src/sim/zswap.rs"]
                .map(str::to_owned);
        assert!(same_names(&names).is_empty());
    }
}
