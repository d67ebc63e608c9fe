//! The binary form of a trace: about two bytes an access.
//!
//! `USWAPTR1`, the number of accesses (8 bytes, little endian), then the accesses, each a variable-length number (7 bits a
//! byte, low ones first, the top bit says that more follow): bit 0 write, bit 1 another process than before, above it the
//! distance to the page before (zigzag: 0, -1, 1, -2, ...). With bit 1 the process follows, as another such number.

use super::Access;
use crate::input::InputError;

const MAGIC: &[u8; 8] = b"USWAPTR1";

/// Whether `bytes` begin as a binary trace does.
pub fn looks_binary(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

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

/// Reads the bytes of a trace.
pub fn parse(name: &str, bytes: &[u8]) -> Result<Vec<Access>, InputError> {
    let truncated = |done: usize, of: u64| {
        InputError::of(name, format!("it is truncated: {done} of {of} accesses are there; record it again"))
    };
    let mut rest = bytes.strip_prefix(MAGIC).unwrap_or_default();
    let Some((count, behind)) = rest.split_first_chunk() else { return Err(truncated(0, 0)) };
    let count = u64::from_le_bytes(*count);
    rest = behind;
    let mut accesses = Vec::with_capacity((count as usize).min(bytes.len()));
    let (mut page, mut process) = (0u64, 0);
    for index in 0..count as usize {
        let word = take(&mut rest).ok_or_else(|| truncated(index, count))?;
        let zigzag = (word >> 2) as u64;
        page = page.wrapping_add((zigzag >> 1 ^ (zigzag & 1).wrapping_neg()) as i64 as u64);
        if word >> 1 & 1 == 1 {
            let number = take(&mut rest).ok_or_else(|| truncated(index, count))?;
            process = u32::try_from(number)
                .map_err(|_| InputError::of(name, format!("access {index} has process {number}, which cannot be")))?;
        }
        if page > u64::MAX >> 12 {
            return Err(InputError::of(name, format!("access {index} has page {page:#x}, which cannot be")));
        }
        accesses.push(Access { process, page, write: word & 1 == 1 });
    }
    if !rest.is_empty() {
        return Err(InputError::of(name, format!("{} bytes follow the {count} accesses it announces", rest.len())));
    }
    Ok(accesses)
}

fn take(rest: &mut &[u8]) -> Option<u128> {
    let mut number = 0;
    for shift in (0..77).step_by(7) {
        let (&byte, behind) = rest.split_first()?;
        *rest = behind;
        number |= u128::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

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
