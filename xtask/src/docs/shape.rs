//! What single documents must be: a README that one reads to its end, and a guide that has all options and no others.

use std::collections::BTreeSet;

use super::commands::{Help, option_of};
use super::markdown::Document;

/// Three screens: who wants more follows its links.
const README_LINES_MAX: usize = 150;
/// Commands of which the guide names each option.
const IN_THE_GUIDE: [&str; 4] = ["run", "set", "swapoff", "doctor"];
/// Title of the first column of the guide's table of the options of `uswap run`.
const TITLE: &str = "option";

/// What is wrong with the shape of a document, with the line.
pub fn mistakes(document: &Document, help: &Help) -> Vec<(usize, String)> {
    match document.name.as_str() {
        "README.md" => too_long(document).into_iter().collect(),
        "docs/guide.md" => options(document, help),
        _ => Vec::new(),
    }
}

fn too_long(readme: &Document) -> Option<(usize, String)> {
    let length = readme.length();
    let what = || (length, format!("{length} lines, and at most {README_LINES_MAX} shall they be"));
    (length > README_LINES_MAX).then(what)
}

/// Options that the guide does not name, and rows of its table that are no option of `uswap run`.
fn options(guide: &Document, help: &Help) -> Vec<(usize, String)> {
    let mut wrong = Vec::new();
    let rows = guide.column(TITLE);
    let run = help.options("run");
    let mut in_table = BTreeSet::new();
    for (line, cell) in &rows {
        let known: Vec<String> = cell.split(['`', ' ', ',']).filter_map(option_of).collect();
        for option in known.iter().filter(|option| !run.contains(option.as_str())) {
            wrong.push((*line, format!("'uswap run' has no option '{option}'")));
        }
        in_table.extend(known);
    }
    let commands = guide.commands();
    let words = commands.iter().flat_map(|(_, text)| text.split([' ', '[', ']', ','])).filter_map(option_of);
    let named: BTreeSet<String> = words.collect();
    for command in IN_THE_GUIDE {
        let known = if command == "run" { &in_table } else { &named };
        for option in help.options(command).into_iter().filter(|option| !known.contains(*option)) {
            wrong.push((
                rows.first().map_or(1, |(line, _)| *line),
                format!("'{option}' of 'uswap {command}' is missing"),
            ));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::super::commands::tests::help;
    use super::*;

    fn document(name: &str, text: &str) -> Document {
        Document::new(name.to_owned(), text)
    }

    #[test]
    fn a_long_readme_is_too_long() {
        assert_eq!(mistakes(&document("README.md", &"line\n".repeat(README_LINES_MAX)), &help()), []);
        let long = document("README.md", &"line\n".repeat(README_LINES_MAX + 1));
        assert_eq!(mistakes(&long, &help()).len(), 1);
        let other = document("docs/limits.md", &"line\n".repeat(1000));
        assert_eq!(mistakes(&other, &help()), []);
    }

    #[test]
    fn the_guide_has_all_options_of_run_and_no_others() {
        let table = "| option | x |\n| --- | --- |\n| `-m`, `--memory SIZE` | y |\n";
        let whole = format!("{table}| `--swap file:PATH[,size=SIZE]` | y |\n");
        assert_eq!(mistakes(&document("docs/guide.md", &whole), &help()), []);
        let missing = mistakes(&document("docs/guide.md", table), &help());
        assert_eq!(missing, [(3, "'--swap' of 'uswap run' is missing".to_owned())]);
        let more = format!("{whole}| `--speed` | y |\n");
        assert_eq!(
            mistakes(&document("docs/guide.md", &more), &help()),
            [(5, "'uswap run' has no option '--speed'".to_owned())]
        );
    }
}
