//! Traces: which pages a program touched, in order.
//!
//! Two forms. Text, one access a line: `r PAGE [PROCESS]` or `w PAGE [PROCESS]`, numbers decimal or with `0x`; what follows
//! a `#` is a remark. Binary, for long ones: see [`binary`].

pub mod binary;
pub mod text;

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

/// Reads the trace at `path`, in either form.
pub fn read(path: &Path) -> Result<Vec<Access>, InputError> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| InputError::of(&name, plain(&error)))?;
    parse(&name, &bytes)
}

/// Reads a trace in either form; `name` is for messages.
pub fn parse(name: &str, bytes: &[u8]) -> Result<Vec<Access>, InputError> {
    let accesses = if binary::looks_binary(bytes) {
        binary::parse(name, bytes)?
    } else {
        let text = std::str::from_utf8(bytes).map_err(|_| {
            InputError::of(
                name,
                "it is neither text nor a binary trace (wrong magic); write one with 'uswap sim trace'",
            )
        })?;
        text::parse(name, text)?
    };
    if accesses.is_empty() {
        return Err(InputError::of(name, "there is no access in it"));
    }
    Ok(accesses)
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
