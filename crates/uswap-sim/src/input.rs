//! What is wrong with what the user gave: one line, with the file and the line in it.

use std::fmt;

/// Bad input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InputError {
    /// The file, as the user named it.
    pub file: String,
    /// The line, counted from 1; `None` where the input has no lines.
    pub line: Option<usize>,
    /// What is wrong, and what to do.
    pub problem: String,
}

impl InputError {
    /// Something is wrong in `line` of `file`.
    pub fn at(file: &str, line: usize, problem: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line: Some(line), problem: problem.into() }
    }

    /// Something is wrong with `file`.
    pub fn of(file: &str, problem: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line: None, problem: problem.into() }
    }
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file, self.problem),
            None => write!(f, "{}: {}", self.file, self.problem),
        }
    }
}

impl std::error::Error for InputError {}

/// Reads a TOML document; the error names the line.
pub fn from_toml<T: serde::de::DeserializeOwned>(file: &str, text: &str) -> Result<T, InputError> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| line_of(text, span.start));
        // The message of an unknown field lists all known ones; newlines have no place in one line.
        InputError { file: file.to_owned(), line, problem: error.message().replace('\n', " ") }
    })
}

/// The line of the byte at `offset`, counted from 1.
pub fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())].iter().filter(|&&byte| byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_toml_names_its_line() {
        let error = from_toml::<std::collections::BTreeMap<String, u32>>("a.toml", "x = 1\ny = 'z'\n").unwrap_err();
        assert_eq!((error.line, error.file.as_str()), (Some(2), "a.toml"));
        assert!(error.to_string().starts_with("a.toml:2: "), "{error}");
    }
}
