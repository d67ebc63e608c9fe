//! Commands and options that documents name, against what the binary says of itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the binary's `--help` knows, asked once for each subcommand.
pub struct Help {
    binary: PathBuf,
    /// By subcommand, `sim run` for example: its options, and the names of its own subcommands.
    known: BTreeMap<String, Known>,
    chores: BTreeSet<String>,
}

#[derive(Clone, Default)]
struct Known {
    options: BTreeSet<String>,
    subcommands: BTreeSet<String>,
}

impl Known {
    fn parse(help: &str) -> Known {
        let mut known = Known::default();
        let mut in_commands = false;
        for line in help.lines() {
            if !line.starts_with(' ') {
                in_commands = line == "Commands:";
            }
            let words: Vec<&str> = line.split([' ', ',']).filter(|word| !word.is_empty()).collect();
            if in_commands && line.starts_with("  ") && !line.starts_with("   ") {
                known.subcommands.extend(words.first().map(|word| (*word).to_owned()));
            } else if line.trim_start().starts_with('-') {
                known.options.extend(words.iter().filter_map(|word| option_of(word)).take(2));
            }
        }
        known
    }
}

/// `--memory` of `--memory=64M`, `-m` of `-m64M`.
pub fn option_of(word: &str) -> Option<String> {
    match word.strip_prefix("--") {
        Some(long) => {
            let name: String = long.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
            (!name.is_empty()).then(|| format!("--{name}"))
        }
        None => word.strip_prefix('-')?.chars().next().filter(char::is_ascii_alphabetic).map(|c| format!("-{c}")),
    }
}

impl Help {
    /// Of this binary; `usage` is that of our own chores.
    pub fn of(binary: &Path, usage: &str) -> Result<Help, String> {
        let chores = usage
            .split(['|', ':'])
            .filter_map(|part| part.split_whitespace().find(|word| *word != "cargo" && *word != "xtask"));
        let mut help =
            Help { binary: binary.to_owned(), known: BTreeMap::new(), chores: chores.map(str::to_owned).collect() };
        help.learn("")?;
        Ok(help)
    }

    /// Asks for a subcommand and all below it.
    fn learn(&mut self, name: &str) -> Result<(), String> {
        let mut command = Command::new(&self.binary);
        let output = command.args(name.split_whitespace()).arg("--help").output();
        let output = output.map_err(|error| format!("{}: {error}", self.binary.display()))?;
        if !output.status.success() {
            return Err(format!("'uswap {name} --help' fails"));
        }
        let known = Known::parse(&String::from_utf8_lossy(&output.stdout));
        for subcommand in known.subcommands.iter().filter(|subcommand| *subcommand != "help") {
            self.learn(format!("{name} {subcommand}").trim())?;
        }
        self.known.insert(name.to_owned(), known);
        Ok(())
    }

    /// What is wrong with a line, if it is a command of ours.
    pub fn mistakes(&self, line: &str) -> Vec<String> {
        let cleaned = line.replace(['[', ']'], " ").replace("...", " ");
        let words: Vec<&str> = cleaned.split_whitespace().skip_while(|word| *word == "$").collect();
        match words.as_slice() {
            ["cargo", "xtask", chore, ..] | ["xtask", chore, ..] if !self.chores.contains(*chore) => {
                vec![format!("'cargo xtask {chore}': there is no such chore")]
            }
            ["cargo", "run", rest @ ..] if rest.contains(&"uswap-cli") => {
                let after = rest.iter().position(|word| *word == "--").map_or(rest.len(), |at| at + 1);
                self.mistakes_of(&rest[after..])
            }
            ["uswap", rest @ ..] => self.mistakes_of(rest),
            _ => Vec::new(),
        }
    }

    fn mistakes_of(&self, words: &[&str]) -> Vec<String> {
        let mut name = String::new();
        let mut mistakes = Vec::new();
        for (place, word) in words.iter().enumerate() {
            let known = &self.known[&name];
            // What comes now is the program's, the shell's or a remark.
            if matches!(*word, "--" | "|" | ">" | "&" | ";" | "#") {
                break;
            }
            if let Some(option) = option_of(word) {
                if !known.options.contains(&option) {
                    mistakes.push(format!("'uswap {name}' has no option '{option}'"));
                }
                continue;
            }
            let longer = format!("{name} {word}").trim().to_owned();
            if self.known.contains_key(&longer) {
                name = longer;
            } else if place == 0 && word.chars().all(|c| c.is_ascii_lowercase()) && word.len() > 1 {
                mistakes.push(format!("uswap has no subcommand '{word}'"));
                break;
            } else if !known.subcommands.is_empty() && !known.subcommands.contains(*word) && place > 0 {
                // `uswap sim soak`s sibling that is none; an upper-case word is a placeholder.
                if word.chars().all(|c| c.is_ascii_lowercase()) {
                    mistakes.push(format!("'uswap {name}' has no subcommand '{word}'"));
                }
                break;
            }
        }
        mistakes
    }

    /// The options of a subcommand, without that for help.
    pub fn options(&self, name: &str) -> BTreeSet<&str> {
        let options = self.known.get(name).map(|known| known.options.iter().map(String::as_str));
        options.into_iter().flatten().filter(|option| !matches!(*option, "-h" | "--help")).collect()
    }

    /// What is wrong with a code span that is an option and nothing before it.
    pub fn mistake_in_options(&self, span: &str) -> Option<String> {
        let option = span.split_whitespace().next().filter(|word| word.starts_with("--")).and_then(option_of)?;
        let known = self.known.values().any(|known| known.options.contains(&option));
        (!known).then(|| format!("nothing in uswap has an option '{option}'"))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn help() -> Help {
        let run = "Runs.\n\nUsage: uswap run [OPTIONS]\n\nOptions:\n  -m, --memory <SIZE>  Memory\n      --swap <SPEC>  An area\n";
        let all = "Usage: uswap\n\nCommands:\n  run  Runs\n  sim  Rehearses\n\nOptions:\n  -h, --help  Help\n";
        let sim = "Commands:\n  soak  Soaks\n";
        let known = [("", all), ("run", run), ("sim", sim), ("sim soak", "Options:\n      --seed <N>  A seed\n")];
        let known = known.into_iter().map(|(name, text)| (name.to_owned(), Known::parse(text))).collect();
        Help { binary: PathBuf::new(), known, chores: ["ci".to_owned()].into() }
    }

    #[test]
    fn commands_of_ours_are_checked_up_to_the_program() {
        let help = help();
        for fine in [
            "uswap run -m 64M --swap file:x -- ls --all",
            "$ uswap sim soak --seed 5 > out",
            "uswap run [-m SIZE] [--swap SPEC]...",
            "uswap SUBCOMMAND",
            "cargo run --release -p uswap-cli -- run -m64M -- python3 -c '",
            "cargo xtask ci",
            "ls --nothing",
        ] {
            assert_eq!(help.mistakes(fine), [""; 0], "{fine}");
        }
        assert_eq!(help.mistakes("uswap run --speed 5"), ["'uswap run' has no option '--speed'"]);
        assert_eq!(help.mistakes("uswap walk"), ["uswap has no subcommand 'walk'"]);
        assert_eq!(help.mistakes("uswap sim soap"), ["'uswap sim' has no subcommand 'soap'"]);
        assert_eq!(help.mistakes("uswap sim soak --seeed 4"), ["'uswap sim soak' has no option '--seeed'"]);
        assert_eq!(help.mistakes("cargo xtask dance"), ["'cargo xtask dance': there is no such chore"]);
    }

    #[test]
    fn an_option_alone_must_be_somebodys() {
        assert_eq!(help().mistake_in_options("--seed N"), None);
        assert_eq!(help().mistake_in_options("word --colour"), None);
        assert!(help().mistake_in_options("--colour").is_some());
    }
}
