//! Adds up what the test programs say at their ends.

use std::fmt;

/// Tests of all test programs so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Passed.
    pub passed: u64,
    /// Failed.
    pub failed: u64,
    /// Ignored, or ended early because something was missing.
    pub skipped: u64,
}

impl Summary {
    /// Takes in one line of output: `test result: ok. 3 passed; 0 failed; 1 ignored; ...` counts, others do not.
    pub fn line(&mut self, line: &str) {
        let Some((_, result)) = line.split_once("test result: ") else {
            return;
        };
        let Some((_, counts)) = result.split_once(". ") else {
            return;
        };
        for count in counts.split(';') {
            let mut words = count.split_ascii_whitespace();
            let (Some(Ok(number)), Some(what)) = (words.next().map(str::parse::<u64>), words.next()) else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.skipped += number,
                _ => {}
            }
        }
    }

    /// Tests that said themselves that they could not run; the test program has counted them as passed.
    pub fn skipped_inside(&mut self, tests: u64) {
        let moved = tests.min(self.passed);
        self.passed -= moved;
        self.skipped += moved;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::Summary;

    #[test]
    fn results_of_several_programs_add_up() {
        let mut summary = Summary::default();
        summary.line("running 12 tests");
        summary.line("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.03s");
        summary.line("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out");
        summary.line("test the_test_result ... ok");
        summary.skipped_inside(4);
        assert_eq!(summary, Summary { passed: 11, failed: 2, skipped: 5 });
        assert_eq!(summary.to_string(), "11 passed, 2 failed, 5 skipped");
    }

    #[test]
    fn skipped_tests_never_exceed_those_that_passed() {
        let mut summary = Summary { passed: 1, failed: 0, skipped: 0 };
        summary.skipped_inside(3);
        assert_eq!(summary, Summary { passed: 0, failed: 0, skipped: 1 });
    }
}
