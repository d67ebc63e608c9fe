//! The text form of a trace.

use std::io::{BufRead, Read};

use super::{Access, plain};
use crate::input::InputError;

/// Bytes of the longest line.
const LINE_MAX: u64 = 4096;

/// One access, as a line.
pub fn line(access: &Access) -> String {
    let verb = if access.write { 'w' } else { 'r' };
    match access.process {
        0 => format!("{verb} {:#x}\n", access.page),
        process => format!("{verb} {:#x} {process}\n", access.page),
    }
}

/// Where the reading of a text is.
#[derive(Default)]
pub(super) struct Lines {
    line: Vec<u8>,
    number: usize,
}

impl Lines {
    /// The next access, if there is one.
    pub fn next(&mut self, name: &str, input: &mut impl BufRead) -> Result<Option<Access>, InputError> {
        loop {
            self.line.clear();
            let read = input.by_ref().take(LINE_MAX).read_until(b'\n', &mut self.line);
            if read.map_err(|error| InputError::of(name, plain(&error)))? == 0 {
                return Ok(None);
            }
            self.number += 1;
            let line = std::str::from_utf8(&self.line).map_err(|_| {
                InputError::of(
                    name,
                    "it is neither text nor a binary trace (wrong magic); write one with 'uswap sim trace'",
                )
            })?;
            if line.len() as u64 == LINE_MAX {
                return Err(InputError::at(name, self.number, format!("a line has less than {LINE_MAX} bytes")));
            }
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                let access = parse_line(line).map_err(|problem| InputError::at(name, self.number, problem))?;
                return Ok(Some(access));
            }
        }
    }
}

fn parse_line(line: &str) -> Result<Access, String> {
    let mut words = line.split_whitespace();
    let write = match words.next() {
        Some("r") => false,
        Some("w") => true,
        other => return Err(format!("'{}' is neither r nor w", other.unwrap_or_default())),
    };
    let page = words.next().ok_or("the page is missing")?;
    let page = number(page).ok_or_else(|| format!("'{page}' is not the number of a page"))?;
    // Page numbers of an address space of 64 bits.
    if page > u64::MAX >> 12 {
        return Err(format!("there is no page {page:#x}; a page is an address divided by 4096"));
    }
    let process = match words.next() {
        None => 0,
        Some(word) => number(word)
            .and_then(|number| u32::try_from(number).ok())
            .ok_or_else(|| format!("'{word}' is not the number of a process"))?,
    };
    match words.next() {
        Some(word) => Err(format!("'{word}' is one word too many")),
        None => Ok(Access { process, page, write }),
    }
}

fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::parse;

    #[test]
    fn remarks_and_empty_lines_are_skipped() {
        let accesses = parse("t", b"# a trace\n\nr 10 # first\n  w 0x10 3").unwrap();
        assert_eq!(
            accesses,
            [Access { process: 0, page: 10, write: false }, Access { process: 3, page: 16, write: true }]
        );
    }

    #[test]
    fn a_malformed_line_is_named() {
        for (line, part) in [
            ("x 5", "'x' is neither r nor w"),
            ("r", "the page is missing"),
            ("r -5", "'-5' is not the number of a page"),
            ("r 0xffffffffffffffff", "there is no page"),
            ("r 5 99999999999", "not the number of a process"),
            ("r 5 6 7", "one word too many"),
            (&"r 5 ".repeat(2000), "less than 4096 bytes"),
        ] {
            let error = parse("t.txt", format!("r 1\n{line}\n").as_bytes()).unwrap_err();
            assert_eq!(error.line, Some(2));
            assert!(error.problem.contains(part), "{error}");
        }
    }
}
