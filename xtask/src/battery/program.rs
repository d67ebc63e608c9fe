//! The programs of the battery: one shell script each, in `tests/battery/`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::run::root;

/// One program with its way to run it and to know its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The name of the script without its ending.
    pub name: String,
    /// Programs of a kind run together: `cargo xtask battery databases`.
    pub group: String,
    /// What the script runs, in a few words.
    pub about: String,
    /// Debian packages that it needs.
    pub packages: Vec<String>,
    /// What standard error must name, for a program that `uswap run` has to refuse.
    pub refusal: Option<String>,
    /// The script.
    pub script: PathBuf,
    /// The size of the data that it is prepared with, as `SCALE` tells it; what the environment says, if it is not given.
    pub data_scale: Option<&'static str>,
}

impl Program {
    /// Reads the head of a script.
    fn parse(script: &Path, text: &str) -> Result<Program, String> {
        let value = |key: &str| {
            let lines = text.lines().take_while(|line| line.starts_with('#'));
            lines
                .filter_map(|line| line.strip_prefix("# ")?.strip_prefix(key))
                .map(|value| value.trim().to_owned())
                .next()
        };
        let name = script.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let required = |key: &str| value(key).ok_or_else(|| format!("{}: no line '# {key}'", script.display()));
        Ok(Program {
            group: required("group:")?,
            about: required("about:")?,
            packages: required("packages:")?.split_ascii_whitespace().map(str::to_owned).collect(),
            refusal: value("refused:"),
            script: script.to_owned(),
            data_scale: None,
            name,
        })
    }

    /// Where its data and its results lie.
    pub fn directory(&self, data: &Path) -> PathBuf {
        data.join(&self.name)
    }

    /// Makes its data, once for each version of the script.
    pub fn prepare(&self, data: &Path) -> Result<(), String> {
        let directory = self.directory(data);
        let ready = directory.join("ready");
        let text = self.text()?;
        if std::fs::read_to_string(&ready).is_ok_and(|made_by| made_by == text) {
            return Ok(());
        }
        let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
        if directory.exists() {
            std::fs::remove_dir_all(&directory).map_err(failed)?;
        }
        std::fs::create_dir_all(&directory).map_err(failed)?;
        // Programs that give up root work here, too.
        let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&directory, everyone).map_err(failed)?;
        let log = directory.join("prepare.log");
        let output = std::fs::File::create(&log).map_err(failed)?;
        let mut command = self.command("prepare");
        command.current_dir(&directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        let status = command.status().map_err(failed)?;
        if !status.success() {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            let last = said.lines().last().unwrap_or("it said nothing");
            return Err(format!("cannot prepare {}: {last} (Debian packages: {})", self.name, self.packages.join(" ")));
        }
        std::fs::write(&ready, text).map_err(failed)
    }

    /// The script, and what it includes (`*.inc`).
    fn text(&self) -> Result<String, String> {
        let read = |path: &Path| std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
        let mut text = read(&self.script)?;
        for line in text.clone().lines().filter(|line| line.contains(".inc\"")) {
            let name = line.rsplit('/').next().unwrap_or_default().trim_end_matches('"');
            text.push_str(&read(&self.script.with_file_name(name))?);
        }
        Ok(text)
    }

    /// The script with its verb: `prepare` or `work`.
    pub fn command(&self, verb: &str) -> Command {
        let mut command = Command::new("/bin/bash");
        command.arg(&self.script).arg(verb);
        if let Some(scale) = self.data_scale.filter(|_| verb == "prepare") {
            command.env("SCALE", scale);
        }
        command
    }
}

/// All of them, by name.
pub fn all() -> Result<Vec<Program>, String> {
    let directory = root().join("tests/battery");
    let failed = |error| format!("{}: {error}", directory.display());
    let mut programs = Vec::new();
    for entry in std::fs::read_dir(&directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|ending| ending != "sh") || path.ends_with("common.sh") {
            continue;
        }
        let text = std::fs::read_to_string(&path).map_err(failed)?;
        programs.push(Program::parse(&path, &text)?);
    }
    programs.sort_by(|one, other| (&one.group, &one.name).cmp(&(&other.group, &other.name)));
    Ok(programs)
}

/// Those whose name or group is among `wanted`; all when nothing is wanted in particular.
pub fn chosen(wanted: &[&str]) -> Result<Vec<Program>, String> {
    let all = all()?;
    if let Some(unknown) = wanted.iter().find(|word| !all.iter().any(|program| is_called(program, word))) {
        let mut groups: Vec<&str> = all.iter().map(|program| program.group.as_str()).collect();
        groups.dedup();
        let names: Vec<&str> = all.iter().map(|program| program.name.as_str()).collect();
        return Err(format!("no program '{unknown}': there are {}; groups are {}", names.join(" "), groups.join(" ")));
    }
    Ok(all
        .into_iter()
        .filter(|program| wanted.is_empty() || wanted.iter().any(|word| is_called(program, word)))
        .collect())
}

fn is_called(program: &Program, word: &str) -> bool {
    program.name == word || program.group == word
}

#[cfg(test)]
mod tests {
    use super::{Program, all};
    use std::path::Path;

    #[test]
    fn every_script_of_the_battery_has_a_head() {
        let all = all().unwrap();
        assert!(all.len() >= 5, "{all:?}");
    }

    #[test]
    fn a_script_without_a_group_is_named() {
        let error = Program::parse(Path::new("a/b.sh"), "#!/bin/bash\n# about: x\n# packages:\n").unwrap_err();
        assert_eq!(error, "a/b.sh: no line '# group:'");
    }

    #[test]
    fn the_head_ends_with_the_first_line_that_is_no_comment() {
        let text = "#!/bin/bash\n# about: x\n# group: g\n# packages: p q\n\n# refused: no\n";
        let program = Program::parse(Path::new("b.sh"), text).unwrap();
        assert_eq!((program.refusal, program.packages), (None, vec!["p".to_owned(), "q".to_owned()]));
    }
}
