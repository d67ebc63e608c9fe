//! Random bits of the kernel.

use std::fs::File;
use std::io::{self, Read};

/// So many random bytes.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}
