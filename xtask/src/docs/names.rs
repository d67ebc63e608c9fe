//! Files, directories and tests that documents name, against the repository.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Files whose names are looked at; others (`paper.html`) may be what a command writes.
const EXTENSIONS: [&str; 6] = ["rs", "md", "sh", "toml", "c", "h"];
/// A name with so many underscores is that of a test.
const UNDERSCORES_OF_A_TEST: usize = 3;

/// What there is.
pub struct Sources {
    /// All files and directories, from the top.
    paths: BTreeSet<PathBuf>,
    /// Names of all functions in Rust.
    functions: BTreeSet<String>,
}

impl Sources {
    /// Reads the repository below `top`.
    pub fn read(top: &Path) -> Result<Sources, String> {
        let mut sources = Sources { paths: BTreeSet::new(), functions: BTreeSet::new() };
        sources.walk(top, top).map_err(|error| format!("{}: {error}", top.display()))?;
        Ok(sources)
    }

    fn walk(&mut self, top: &Path, directory: &Path) -> std::io::Result<()> {
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.strip_prefix(top).expect("below the top").to_owned();
            if name.starts_with("target") || name.starts_with(".git") {
                continue;
            }
            if path.is_dir() {
                self.walk(top, &path)?;
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path)?;
                self.functions.extend(functions(&text));
            }
            self.paths.insert(name);
        }
        Ok(())
    }

    /// What is wrong with a code span, if it names something of ours that is not there.
    pub fn mistake(&self, span: &str) -> Option<String> {
        if span.contains(char::is_whitespace) {
            return None;
        }
        if is_test(span) {
            return (!self.functions.contains(span)).then(|| format!("there is no test or function '{span}'"));
        }
        if !is_path(span) || self.is_there(span) {
            return None;
        }
        Some(format!("there is no '{span}'"))
    }

    fn is_there(&self, span: &str) -> bool {
        let wanted = span.trim_end_matches('/');
        // `core/budget.rs` for crates/uswap-core/src/budget.rs, `core/src/budget.rs` and `budget.rs` likewise.
        let ours = |path: &Path| {
            let full = path.to_string_lossy().replace("crates/uswap-", "");
            let short = full.replacen("/src/", "/", 1);
            [path.to_string_lossy().into_owned(), full, short].iter().any(|name| {
                matches(name, wanted)
                    || name.rsplit_once(wanted).is_some_and(|(before, after)| after.is_empty() && before.ends_with('/'))
            })
        };
        self.paths.iter().any(|path| ours(path))
    }
}

/// What follows `fn`, and what a macro makes a test of: `a_name = "case",`.
fn functions(text: &str) -> impl Iterator<Item = String> {
    let is_name = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
    let defined = text.split("fn ").skip(1).map(move |rest| rest.chars().take_while(is_name).collect());
    let cases = text.lines().filter_map(|line| line.trim().split_once(" = \""));
    defined.chain(cases.map(|(name, _)| name.to_owned()))
}

fn is_test(span: &str) -> bool {
    let is_name = span.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    is_name && span.matches('_').count() >= UNDERSCORES_OF_A_TEST
}

fn is_path(span: &str) -> bool {
    let is_name = span.chars().all(|c| c.is_ascii_alphanumeric() || "/._-*".contains(c));
    let outside = span.starts_with(['/', '-', '*']) || span.starts_with("target/");
    let extension = Path::new(span).extension().and_then(|extension| extension.to_str());
    let known = extension.is_some_and(|extension| EXTENSIONS.contains(&extension));
    is_name && !outside && (known || span.ends_with('/') || span.starts_with("crates/"))
}

/// Whether `pattern`, in which a star is any text without a slash, is `name`.
fn matches(name: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => name == pattern,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
            ends.take_while(|at| !rest[..*at].contains('/')).any(|at| matches(&rest[at..], after))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_directories_and_tests_must_be_there() {
        let sources = Sources::read(crate::run::root()).unwrap();
        for fine in [
            "xtask/src/docs/names.rs",
            "core/budget.rs",
            "core/src/lib.rs",
            "engine/group/control.rs",
            "exec_lists.rs",
            "sim/timing/",
            "crates/uswap-*/",
            "benches/apps/*.sh",
            "docs/limits.md",
            "files_directories_and_tests_must_be_there",
            "mremap_into_the_hole_that_another_thread_leaves",
            "/proc/self/maps",
            "paper.html",
            "zswap_pool_bytes",
            "lz4",
        ] {
            assert_eq!(sources.mistake(fine), None, "{fine}");
        }
        for wrong in
            ["core/budgets.rs", "docs/nothing.md", "crates/uswap-capi/", "a_test_that_nobody_wrote", "benches/*.c"]
        {
            assert!(sources.mistake(wrong).is_some(), "{wrong}");
        }
    }
}
