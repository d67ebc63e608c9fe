//! Random bits of the kernel.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// So many random bytes. No file of /dev is needed, which sandboxes may lack; so few bytes come in one piece.
pub fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256) };
    let mut bytes = [0; N];
    let filled = rustix::io::retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()))?;
    assert_eq!(filled, N);
    Ok(bytes)
}
