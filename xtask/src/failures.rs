//! What failed tests said, to be said again where a reader looks first: at the end.

use std::collections::VecDeque;
use std::fmt;

/// Lines kept of each failed test: its last ones.
const LINES: usize = 60;

/// The end of the output of each failed test, from the output of test programs that run one test at a time and do not
/// hold their lines back.
#[derive(Debug, Default)]
pub struct Failures {
    /// Of the test that is running, from its name on.
    current: VecDeque<String>,
    failed: Vec<String>,
}

impl Failures {
    /// Takes in one line of output.
    pub fn line(&mut self, line: &str) {
        if line.starts_with("test ") && line.contains(" ... ") {
            self.current.clear();
        }
        if self.current.len() == LINES {
            // The name stays.
            self.current.remove(1);
        }
        self.current.push_back(line.to_owned());
        if line == "FAILED" || line.ends_with(" ... FAILED") {
            self.failed.push(Vec::from(std::mem::take(&mut self.current)).join("\n"));
        }
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.failed.iter().try_for_each(|failed| writeln!(f, "\n== {failed}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_tests_lines_are_said_again() {
        let mut failures = Failures::default();
        for line in ["test good ... ", "a word", "ok", "test bad ... one", "two", "FAILED", "test held_back ... FAILED"]
        {
            failures.line(line);
        }
        assert_eq!(failures.to_string(), "\n== test bad ... one\ntwo\nFAILED\n\n== test held_back ... FAILED\n");
    }

    #[test]
    fn of_many_lines_the_last_are_kept() {
        let mut failures = Failures::default();
        failures.line("test bad ... ");
        (0..1000).for_each(|line| failures.line(&format!("line {line}")));
        failures.line("FAILED");
        let text = failures.to_string();
        assert!(text.starts_with("\n== test bad ... \nline 942\n") && text.ends_with("line 999\nFAILED\n"), "{text}");
    }
}
