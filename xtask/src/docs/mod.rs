//! Whether the documents agree with the repository and the binary: `cargo xtask docs`.
//!
//! What is looked at: links with their anchors; the commands and options of `uswap` against its `--help`, and those of
//! `cargo xtask` against its usage; files, directories and tests that are named; the length of the README, and whether the guide
//! has all options; and, of the code itself, whether files and functions can be read, no two have one name, structs of the engine
//! are small, and its modules import each other in no circle. A sentence that is wrong in another way is not found.

mod commands;
mod markdown;
mod names;
mod parts;
mod places;
mod rust;
mod shape;

use std::path::{Path, PathBuf};

use crate::run::root;
use commands::Help;
use markdown::Document;
use names::Sources;

/// Checks all documents against the repository and `binary`.
pub fn check(binary: &Path) -> Result<(), String> {
    println!("\n== documents");
    let documents = documents()?;
    let sources = Sources::read(root())?;
    let help = Help::of(binary, crate::USAGE)?;
    let mut wrong = Vec::new();
    for document in &documents {
        let mut say = |line: usize, what: String| wrong.push(format!("{}:{line}: {what}", document.name));
        for (line, target) in document.links() {
            if let Some(what) = broken(&target, document, &documents) {
                say(line, what);
            }
        }
        for (line, command) in document.commands() {
            help.mistakes(&command).into_iter().for_each(|what| say(line, what));
        }
        for (line, span) in document.spans() {
            help.mistake_in_options(&span).into_iter().for_each(|what| say(line, what));
            sources.mistake(&span).into_iter().for_each(|what| say(line, what));
        }
        shape::mistakes(document, &help).into_iter().for_each(|(line, what)| say(line, what));
    }
    for limit in without_a_line(&documents) {
        println!("docs/limits.md: no line in docs/claims.md: {limit}");
    }
    wrong.extend(places::mistakes(root())?);
    wrong.extend(parts::mistakes(root())?);
    wrong.extend(crate::performance::mistakes(root())?);
    wrong.iter().for_each(|what| println!("{what}"));
    println!("== documents: {} looked at, {} mistakes", documents.len(), wrong.len());
    if wrong.is_empty() { Ok(()) } else { Err(format!("{} mistakes in the documents", wrong.len())) }
}

/// Limits of which docs/claims.md does not say what shows them. They are told and are no failure: whoever finds a limit shall
/// write it down first.
fn without_a_line(documents: &[Document]) -> Vec<String> {
    let named = |name: &str| documents.iter().find(|document| document.name == name);
    let (Some(limits), Some(claims)) = (named("docs/limits.md"), named("docs/claims.md")) else {
        return Vec::new();
    };
    let rows = claims.rows();
    limits.bold().into_iter().map(|(_, limit)| limit).filter(|limit| !rows.contains(&limit.as_str())).collect()
}

/// The documents at the top, and those in docs/ and docs/decisions/.
fn documents() -> Result<Vec<Document>, String> {
    let mut paths: Vec<PathBuf> = Vec::new();
    for directory in [root().to_owned(), root().join("docs"), root().join("docs/decisions")] {
        let entries = std::fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        paths.extend(
            entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "md")),
        );
    }
    paths.sort();
    let read = |path: &PathBuf| {
        let name = path.strip_prefix(root()).unwrap_or(path).display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        Ok(Document::new(name, &text))
    };
    paths.iter().map(read).collect()
}

/// What is wrong with a link, if something is. Other sites are not asked.
fn broken(target: &str, from: &Document, documents: &[Document]) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let name = match (file, Path::new(&from.name).parent()) {
        ("", _) => PathBuf::from(&from.name),
        (file, parent) => normal(&parent.unwrap_or(Path::new("")).join(file)),
    };
    if !root().join(&name).exists() {
        return Some(format!("a link to '{target}', which is not there"));
    }
    if anchor.is_empty() {
        return None;
    }
    let document = documents.iter().find(|document| Path::new(&document.name) == name);
    let has_anchor = document.is_some_and(|document| document.anchors().any(|known| known == anchor));
    (!has_anchor).then(|| format!("a link to '{target}': no heading gives '#{anchor}'"))
}

/// Without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(result.pop()),
            std::path::Component::CurDir => {}
            other => result.push(other),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_to_files_and_headings() {
        let here = Document::new("docs/limits.md".to_owned(), "# Limits\n\n## Two words, and more\n");
        let documents = [here];
        let broken = |target| broken(target, &documents[0], &documents);
        for fine in ["limits.md", "#two-words-and-more", "../README.md", "limits.md#limits", "https://example.org/x"] {
            assert_eq!(broken(fine), None, "{fine}");
        }
        assert!(broken("nowhere.md").unwrap().contains("not there"));
        assert!(broken("#two-words").unwrap().contains("no heading"));
        assert!(broken("../docs/limits.md#three").unwrap().contains("no heading"));
    }
}
