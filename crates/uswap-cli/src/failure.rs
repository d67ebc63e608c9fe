//! How the command says that something went wrong: one line, and an exit status.

use std::fmt::{self, Display};
use std::process::ExitCode;

use crate::stderr;

/// What the user gave to the simulator is wrong.
pub const BAD_INPUT: u8 = 2;
/// uswap itself failed, before the program or instead of it.
pub const OURS: u8 = 125;
/// The program cannot be run.
pub const NOT_EXECUTABLE: u8 = 126;
/// The program was not found.
pub const NOT_FOUND: u8 = 127;

/// One line for the user, and the exit status.
#[derive(Debug)]
pub struct Failure {
    status: u8,
    text: String,
}

impl Failure {
    /// A failure of uswap's own.
    pub fn ours(text: impl Into<String>) -> Failure {
        Failure { status: OURS, text: text.into() }
    }

    /// Something is wrong with what the simulator was given.
    pub fn bad_input(text: impl Into<String>) -> Failure {
        Failure { status: BAD_INPUT, text: text.into() }
    }

    /// A program that cannot be run.
    pub fn not_executable(text: impl Into<String>) -> Failure {
        Failure { status: NOT_EXECUTABLE, text: text.into() }
    }

    /// A program that was not found.
    pub fn not_found(text: impl Into<String>) -> Failure {
        Failure { status: NOT_FOUND, text: text.into() }
    }

    /// Prints the line.
    pub fn report(&self) -> ExitCode {
        say(self);
        stderr::drain(stderr::LAST_WORDS);
        ExitCode::from(self.status)
    }

    /// The exit status.
    #[cfg(test)]
    pub fn status(&self) -> u8 {
        self.status
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One line, whatever a file was called.
        f.write_str(&self.text.replace('\n', " "))
    }
}

/// A line on standard error, in one write, so that it stays whole beside the lines of others. Nobody is told
/// when standard error is closed: there is nowhere to.
pub fn say(text: impl Display) {
    stderr::write(format!("uswap: {text}\n").as_bytes());
}

/// The reason of a system error, without Rust's "(os error 13)".
pub fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_what_strerror_says() {
        assert_eq!(reason(&std::io::Error::from_raw_os_error(13)), "Permission denied");
        assert_eq!(reason(&std::io::Error::other("odd")), "odd");
    }

    #[test]
    fn a_failure_is_one_line() {
        assert_eq!(Failure::ours("cannot open 'a\nb'").to_string(), "cannot open 'a b'");
    }
}
