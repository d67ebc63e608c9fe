//! Traces: which pages a program touched, in order.
//!
//! Two forms. Text, one access a line: `r PAGE [PROCESS]` or `w PAGE [PROCESS]`, numbers decimal or with `0x`; what follows
//! a `#` is a remark. Binary, for long ones: see [`binary`].

pub mod binary;
pub mod text;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use crate::input::InputError;

/// One access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Who.
    pub process: u32,
    /// The page, in the process's own address space.
    pub page: u64,
    /// Whether it writes.
    pub write: bool,
}

/// The first bytes of a trace, which tell its form, and the rest.
type Whole<R> = io::Chain<io::Cursor<Vec<u8>>, R>;

enum Form {
    Text(text::Lines),
    Binary(binary::Numbers),
}

/// A trace in either form, read while it is used: its accesses, up to its end or to what is wrong with it. Which of the two it
/// was, [`end`](Self::end) tells.
pub struct Reader<R> {
    name: String,
    input: Whole<R>,
    form: Form,
    is_empty: bool,
    problem: Option<InputError>,
}

/// Opens the trace at `path`.
///
/// # Errors
/// What is wrong with the file, or with its beginning.
pub fn open(path: &Path) -> Result<Reader<BufReader<File>>, InputError> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| InputError::of(&name, plain(&error)))?;
    Reader::new(&name, BufReader::with_capacity(1 << 16, file))
}

/// All accesses of a trace that is in memory; `name` is for messages.
///
/// # Errors
/// What is wrong with it.
pub fn parse(name: &str, bytes: &[u8]) -> Result<Vec<Access>, InputError> {
    let mut reader = Reader::new(name, bytes)?;
    let accesses = reader.by_ref().collect();
    reader.end().map(|()| accesses)
}

impl<R: BufRead> Reader<R> {
    /// The trace that `input` begins with; `name` is for messages.
    ///
    /// # Errors
    /// What is wrong with its beginning.
    pub fn new(name: &str, mut input: R) -> Result<Self, InputError> {
        let read = |error: io::Error| InputError::of(name, plain(&error));
        let mut first = Vec::new();
        input.by_ref().take(binary::MAGIC.len() as u64).read_to_end(&mut first).map_err(read)?;
        let is_binary = first == binary::MAGIC;
        let mut input = io::Cursor::new(first).chain(input);
        let form = match is_binary {
            true => Form::Binary(binary::Numbers::new(name, &mut input)?),
            false => Form::Text(text::Lines::default()),
        };
        Ok(Self { name: name.to_owned(), input, form, is_empty: true, problem: None })
    }

    /// Whether the accesses ended because the trace did.
    ///
    /// # Errors
    /// What is wrong with the trace, behind the accesses that it gave.
    pub fn end(self) -> Result<(), InputError> {
        match self.problem {
            Some(problem) => Err(problem),
            None if self.is_empty => Err(InputError::of(&self.name, "there is no access in it")),
            None => Ok(()),
        }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Access;

    fn next(&mut self) -> Option<Access> {
        if self.problem.is_some() {
            return None;
        }
        let next = match &mut self.form {
            Form::Text(lines) => lines.next(&self.name, &mut self.input),
            Form::Binary(numbers) => numbers.next(&self.name, &mut self.input),
        };
        match next {
            Ok(access) => {
                self.is_empty &= access.is_none();
                access
            }
            Err(problem) => {
                self.problem = Some(problem);
                None
            }
        }
    }
}

/// What the system says, without Rust's number behind it.
fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_give_back_what_was_written() {
        let accesses = [
            Access { process: 0, page: 5, write: false },
            Access { process: 0, page: u64::MAX >> 12, write: true },
            Access { process: 7, page: 0, write: false },
            Access { process: 0, page: 1, write: true },
        ];
        let text: String = accesses.iter().map(text::line).collect();
        assert_eq!(parse("t", text.as_bytes()).unwrap(), accesses);
        assert_eq!(parse("t", &binary::bytes(&accesses)).unwrap(), accesses);
    }

    /// Gives a byte at a time.
    struct Drops<'a>(&'a [u8]);

    impl Read for Drops<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let most = into.len().min(1);
            self.0.read(&mut into[..most])
        }
    }

    #[test]
    fn a_trace_that_comes_in_pieces_is_the_same_trace() {
        let accesses: Vec<Access> = (0..3000u64)
            .map(|n| Access { process: n as u32 / 1000, page: (n * n % 977) << (n % 40), write: n % 3 == 0 })
            .collect();
        let text: String = accesses.iter().map(text::line).collect();
        for bytes in [text.into_bytes(), binary::bytes(&accesses)] {
            for capacity in [1, 7, 64] {
                let mut reader = Reader::new("t", BufReader::with_capacity(capacity, Drops(&bytes))).unwrap();
                assert!(reader.by_ref().eq(accesses.iter().copied()));
                reader.end().unwrap();
            }
        }
    }

    #[test]
    fn what_comes_before_a_bad_line_is_given_and_then_nothing() {
        let mut reader = Reader::new("t", &b"r 1\nr 2\nx\nr 3\n"[..]).unwrap();
        assert_eq!(reader.by_ref().map(|access| access.page).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(reader.next(), None);
        assert_eq!(reader.end().unwrap_err().line, Some(3));
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        for (bytes, part) in [
            (&b""[..], "no access"),
            (b"# nothing\n\n", "no access"),
            (b"\xff\xfe\x00", "wrong magic"),
            (b"USWAPTR", "t:1: "),
        ] {
            let error = parse("t", bytes).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
