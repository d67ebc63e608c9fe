//! Trace files, in both forms.

use std::io::{self, BufReader, Read};

use uswap_sim::trace::{Access, Reader, binary, parse, text};

use crate::{Canary, Seed, Target};

/// This target.
pub const TARGET: Target = Target {
    name: "traces",
    run,
    seeds,
    words: &[b"USWAPTR1", b"r ", b"w ", b" 0x", b"\n", b"#", b"\x80\x80\x80\x80\x80"],
};

const NAME: &str = "t";
/// Pages of an address space of 64 bits.
const PAGES: u64 = 1 << 52;

/// Reads it whole and in pieces.
pub fn run(bytes: &[u8], canary: Canary) {
    let mut parsed = parse(NAME, bytes);
    if let (Canary::Planted, Ok(accesses)) = (canary, &mut parsed) {
        // As if page numbers had 32 bits.
        accesses.iter_mut().for_each(|access| access.page &= 0xffff_ffff);
    }
    for capacity in [1, 3, 64] {
        assert_eq!(
            in_pieces(bytes, capacity).map_err(|error| error.to_string()),
            parsed.clone().map_err(|e| e.to_string())
        );
    }
    match parsed {
        Ok(accesses) => is_written_as_it_was(&accesses),
        Err(error) => {
            let line = error.to_string();
            assert!(line.starts_with(NAME) && !line.contains('\n'), "{line:?} is no line");
        }
    }
}

/// Gives at most so many bytes at a time.
struct Drops<'a>(&'a [u8], usize);

impl Read for Drops<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = into.len().min(self.1);
        self.0.read(&mut into[..most])
    }
}

fn in_pieces(bytes: &[u8], capacity: usize) -> Result<Vec<Access>, uswap_sim::input::InputError> {
    let mut reader = Reader::new(NAME, BufReader::with_capacity(capacity, Drops(bytes, capacity)))?;
    let accesses = reader.by_ref().collect();
    reader.end().map(|()| accesses)
}

fn is_written_as_it_was(accesses: &[Access]) {
    assert!(!accesses.is_empty() && accesses.iter().all(|access| access.page < PAGES));
    let lines: String = accesses.iter().map(text::line).collect();
    for written in [binary::bytes(accesses), lines.into_bytes()] {
        assert_eq!(parse(NAME, &written).as_deref(), Ok(accesses));
    }
}

fn seeds() -> Vec<Seed> {
    let stream: Vec<Access> = (0..40u64).map(|n| Access { process: 0, page: 1000 + n, write: n % 4 == 0 }).collect();
    let both: Vec<Access> = (0..30u64)
        .map(|n| Access { process: n as u32 % 2 * 7, page: (n * n % 97) << (n % 9), write: n % 3 == 0 })
        .collect();
    let mut short = binary::bytes(&both);
    short.pop();
    vec![
        ("binary_stream", binary::bytes(&stream)),
        ("binary_of_two_processes", binary::bytes(&both)),
        ("binary_cut", short),
        ("text", b"# a remark\nr 5\nw 0x10 # written\n\n  r 7 3\nw 1 0x2\n".to_vec()),
        ("text_of_two_processes", both.iter().take(12).map(text::line).collect::<String>().into_bytes()),
        ("text_wrong", b"r 1\nx 2\n".to_vec()),
    ]
}
