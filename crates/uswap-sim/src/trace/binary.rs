//! The binary form of a trace: about two bytes an access.
//!
//! `USWAPTR1`, the number of accesses (8 bytes, little endian), then the accesses, each a variable-length number (7 bits a
//! byte, low ones first, the top bit says that more follow): bit 0 write, bit 1 another process than before, above it the
//! distance to the page before (zigzag: 0, -1, 1, -2, ...). With bit 1 the process follows, as another such number.

use std::io::{self, BufRead};

use super::{Access, plain};
use crate::input::InputError;

/// What it begins with.
pub(super) const MAGIC: [u8; 8] = *b"USWAPTR1";
/// Bytes of the longest number.
const NUMBER_MAX: usize = 11;

/// The bytes of a trace.
pub fn bytes(accesses: &[Access]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend((accesses.len() as u64).to_le_bytes());
    let (mut page, mut process) = (0u64, 0);
    for access in accesses {
        let distance = access.page.wrapping_sub(page) as i64;
        let zigzag = (distance << 1 ^ distance >> 63) as u64;
        let other = access.process != process;
        put(&mut bytes, u128::from(zigzag) << 2 | u128::from(other) << 1 | u128::from(access.write));
        if other {
            put(&mut bytes, u128::from(access.process));
        }
        (page, process) = (access.page, access.process);
    }
    bytes
}

fn put(bytes: &mut Vec<u8>, mut number: u128) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Where the reading of a trace is.
pub(super) struct Numbers {
    count: u64,
    done: u64,
    page: u64,
    process: u32,
}

impl Numbers {
    /// `input` goes on behind the magic.
    pub fn new(name: &str, input: &mut impl BufRead) -> Result<Self, InputError> {
        let (mut magic, mut count) = (MAGIC, [0; 8]);
        let read = input.read_exact(&mut magic).and_then(|()| input.read_exact(&mut count));
        let numbers = Self { count: u64::from_le_bytes(count), done: 0, page: 0, process: 0 };
        match read {
            Ok(()) => Ok(numbers),
            Err(_) => Err(Self { count: 0, ..numbers }.unreadable(name, None)),
        }
    }

    /// The next access, if there is one.
    pub fn next(&mut self, name: &str, input: &mut impl BufRead) -> Result<Option<Access>, InputError> {
        if self.done == self.count {
            return match io::copy(input, &mut io::sink()) {
                Ok(0) => Ok(None),
                Ok(bytes) => {
                    Err(InputError::of(name, format!("{bytes} bytes follow the {} accesses it announces", self.count)))
                }
                Err(error) => Err(self.unreadable(name, Some(error))),
            };
        }
        let word = take(input).map_err(|error| self.unreadable(name, error))?;
        let zigzag = (word >> 2) as u64;
        self.page = self.page.wrapping_add((zigzag >> 1 ^ (zigzag & 1).wrapping_neg()) as i64 as u64);
        let cannot_be =
            |what: String| InputError::of(name, format!("access {} has {what}, which cannot be", self.done));
        if word >> 1 & 1 == 1 {
            let number = take(input).map_err(|error| self.unreadable(name, error))?;
            self.process = u32::try_from(number).map_err(|_| cannot_be(format!("process {number}")))?;
        }
        if self.page > u64::MAX >> 12 {
            return Err(cannot_be(format!("page {:#x}", self.page)));
        }
        self.done += 1;
        Ok(Some(Access { process: self.process, page: self.page, write: word & 1 == 1 }))
    }

    /// It ends too early, or cannot be read.
    fn unreadable(&self, name: &str, error: Option<io::Error>) -> InputError {
        let Self { done, count, .. } = self;
        InputError::of(
            name,
            match error {
                Some(error) => plain(&error),
                None => format!("it is truncated: {done} of {count} accesses are there; record it again"),
            },
        )
    }
}

/// The next number. The error is none where the input ends, or is no number.
#[inline]
fn take(input: &mut impl BufRead) -> Result<u128, Option<io::Error>> {
    let buffer = input.fill_buf().map_err(Some)?;
    if let Some((number, bytes)) = number(buffer) {
        input.consume(bytes);
        return Ok(number);
    }
    // It goes on in the next buffer, if anywhere.
    let mut bytes = Vec::new();
    while bytes.len() < NUMBER_MAX {
        let mut byte = [0];
        input
            .read_exact(&mut byte)
            .map_err(|error| Some(error).filter(|error| error.kind() != io::ErrorKind::UnexpectedEof))?;
        bytes.extend(byte);
        if let Some((number, _)) = number(&bytes) {
            return Ok(number);
        }
    }
    Err(None)
}

/// The number that `bytes` begin with, and its length.
#[inline]
fn number(bytes: &[u8]) -> Option<(u128, usize)> {
    let mut number = 0;
    for (index, &byte) in bytes.iter().take(NUMBER_MAX).enumerate() {
        number |= u128::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((number, index + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::parse;

    fn some() -> Vec<Access> {
        (0..1000).map(|page| Access { process: page as u32 / 100, page: page * 3 % 70, write: page % 2 == 0 }).collect()
    }

    #[test]
    fn an_access_takes_about_two_bytes() {
        assert!(bytes(&some()).len() < 16 + 2100);
    }

    #[test]
    fn a_truncated_file_is_refused_wherever_it_ends() {
        let whole = bytes(&some());
        for len in 8..whole.len() {
            let error = parse("t", &whole[..len]).unwrap_err();
            assert!(error.problem.contains("truncated"), "{error}");
        }
        let mut longer = whole;
        longer.push(0);
        assert!(parse("t", &longer).unwrap_err().problem.contains("1 bytes follow"));
    }
}
