//! What is in a file that is to become a swap area: nothing, a swap area, or something that must not be lost.
//!
//! A file system image, a disk image and many archives begin with blank pages, so a look at the first page tells nothing. All
//! of the file is looked at: what the file system calls a hole is blank, the rest is read, up to a limit.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{Advice, SeekFrom};
use rustix::io::Errno;

use crate::mkswap::{self, HEADER_BYTES, Header};
use crate::size;

/// The most that is read to see whether a file is blank: a second or two of a disk's time, and ten of a slow one's. Nobody
/// waits longer for a program to start, and whoever writes gigabytes of zeros to make a swap file means to run mkswap on it.
pub const READ_BYTES_MAX: u64 = 1 << 30;
/// So much of both ends is read even where the file system knows of a hole: all magic numbers and the copies of partition
/// tables lie there, so that a file system that is wrong about its holes costs nobody's data.
const END_BYTES: u64 = 1 << 20;
const CHUNK_BYTES: usize = 1 << 20;
/// Where Linux writes `SWAPSPACE2`, a hibernated system writes this.
const HIBERNATED: [&[u8]; 2] = [b"S1SUSPEND", b"S2SUSPEND"];

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub enum Content {
    /// Zeros from end to end, or no bytes at all.
    Blank,
    /// A swap area as large as the file.
    Swap(Header),
    /// Anything else, and what makes us think so.
    Other(String),
}

/// Looks at all of a file of `length` bytes.
///
/// # Errors
/// When it cannot be read.
pub fn examine(file: &File, length: u64) -> io::Result<Content> {
    let mut first = [0; HEADER_BYTES];
    read_all_there_is(file, &mut first, 0)?;
    let whole_pages = length / HEADER_BYTES as u64;
    match mkswap::parse(&first) {
        Ok(Some(header)) if header.pages == whole_pages => {
            return Ok(match other_use(file, length)? {
                None => Content::Swap(header),
                Some(what) => Content::Other(format!("it has a swap header, and is {what}")),
            });
        }
        Ok(Some(header)) => {
            let (says, has) = (header.pages * HEADER_BYTES as u64, whole_pages * HEADER_BYTES as u64);
            return Ok(Content::Other(format!("its swap header tells of {says} bytes, and it has {has}")));
        }
        Err(bad) => return Ok(Content::Other(format!("it has a swap header that cannot be used: {bad}"))),
        Ok(None) => {}
    }
    if HIBERNATED.iter().any(|magic| first[HEADER_BYTES - 10..].starts_with(magic)) {
        return Ok(Content::Other("it holds a hibernated system".to_owned()));
    }
    Ok(match find_data(file, length, READ_BYTES_MAX)? {
        Found::Nothing => Content::Blank,
        Found::At(offset) => Content::Other(format!("it is not blank: there is data at byte {offset}")),
        Found::TooMuchToRead => Content::Other(format!(
            "it is not known to be blank: more than {} of it are no holes",
            size::chosen(READ_BYTES_MAX)
        )),
    })
}

/// What else a disk is by now whose first page has stayed as mkswap(8) left it: what begins behind that page, or at the end, need not
/// write there. Magic numbers and their places are those that blkid(8) knows.
fn other_use(file: &File, length: u64) -> io::Result<Option<&'static str>> {
    const MD: &[u8] = &0xa92b_4efc_u32.to_le_bytes();
    const BCACHE: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
    const MEMBER: &str = "a member of a RAID array (md)";
    // md's formats 0.90 and 1.0 lie at the end: 64 KiB from it, and 8 KiB, both rounded down.
    let from_end = |bytes: u64, rounded: u64| (length / rounded * rounded).checked_sub(bytes);
    let places = [
        (Some(0), MD, MEMBER),
        (Some(4 << 10), MD, MEMBER),
        (from_end(64 << 10, 64 << 10), MD, MEMBER),
        (length.checked_sub(8 << 10).map(|at| at / 4096 * 4096), MD, MEMBER),
        (Some((4 << 10) + 24), BCACHE, "a disk of bcache"),
        (Some((64 << 10) + 64), b"_BHRfS_M", "a disk of btrfs"),
        (Some(0), b"LUKS\xba\xbe", "encrypted (LUKS)"),
        (Some(512), b"LABELONE", "a physical volume of LVM"),
    ];
    for (place, magic, what) in places {
        let Some(place) = place else { continue };
        let mut bytes = [0; 16];
        if read_all_there_is(file, &mut bytes[..magic.len()], place)? == magic.len() && bytes.starts_with(magic) {
            return Ok(Some(what));
        }
    }
    Ok(None)
}

#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    At(u64),
    TooMuchToRead,
}

/// The first byte that is not zero, as far as `read_max` bytes of data tell.
fn find_data(file: &File, length: u64, read_max: u64) -> io::Result<Found> {
    for (from, to) in [(0, length.min(END_BYTES)), (length.saturating_sub(END_BYTES), length)] {
        if let Some(offset) = first_byte(file, from, to)? {
            return Ok(Found::At(offset));
        }
    }
    let (mut from, mut left) = (0, read_max);
    while from < length {
        from = match rustix::fs::seek(file, SeekFrom::Data(from)) {
            Ok(data) => data,
            // Nothing but a hole up to the end.
            Err(Errno::NXIO) => break,
            // A file system without holes.
            Err(_) => from,
        };
        let to = rustix::fs::seek(file, SeekFrom::Hole(from)).unwrap_or(length).clamp(from + 1, length.max(from + 1));
        if let Some(offset) = first_byte(file, from, to.min(from.saturating_add(left)))? {
            return Ok(Found::At(offset));
        }
        if to - from > left {
            return Ok(Found::TooMuchToRead);
        }
        left -= to - from;
        from = to;
    }
    Ok(Found::Nothing)
}

/// The first byte from `from` up to `to` that is not zero.
fn first_byte(file: &File, from: u64, to: u64) -> io::Result<Option<u64>> {
    let mut chunk = vec![0; CHUNK_BYTES.min(usize::try_from(to - from).unwrap_or(CHUNK_BYTES))];
    let mut offset = from;
    while offset < to {
        let wanted = chunk.len().min(usize::try_from(to - offset).unwrap_or(usize::MAX));
        let read = read_all_there_is(file, &mut chunk[..wanted], offset)?;
        if let Some(at) = chunk[..read].iter().position(|byte| *byte != 0) {
            return Ok(Some(offset + at as u64));
        }
        if read < wanted {
            // The file has become shorter.
            break;
        }
        // It is looked at once: what others have in the page cache is worth more.
        let _ = rustix::fs::fadvise(file, offset, std::num::NonZeroU64::new(read as u64), Advice::DontNeed);
        offset += read as u64;
    }
    Ok(None)
}

/// Reads until the buffer is full or the file ends; how many bytes that was.
fn read_all_there_is(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(bytes) => read += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An unnamed file of `length` bytes in a directory that is no RAM where there is one.
    fn file(length: u64) -> File {
        let (fd, _) = super::super::open_unnamed(&std::env::temp_dir(), rustix::fs::OFlags::empty()).unwrap();
        let file = File::from(fd);
        file.set_len(length).unwrap();
        file
    }

    #[test]
    fn one_byte_anywhere_is_found() {
        const LENGTH: u64 = 9 << 20;
        assert_eq!(find_data(&file(LENGTH), LENGTH, READ_BYTES_MAX).unwrap(), Found::Nothing);
        for at in [0, 1, 4095, 4096, 32768, 0x10040, (1 << 20) - 1, 1 << 20, (5 << 20) + 7, LENGTH - 1] {
            let file = file(LENGTH);
            file.write_all_at(b"x", at).unwrap();
            assert_eq!(find_data(&file, LENGTH, READ_BYTES_MAX).unwrap(), Found::At(at));
        }
    }

    #[test]
    fn zeros_that_are_no_hole_are_read_up_to_a_limit() {
        const LENGTH: u64 = 8 << 20;
        let file = file(LENGTH);
        file.write_all_at(&vec![0; 4 << 20], 2 << 20).unwrap();
        assert_eq!(find_data(&file, LENGTH, 4 << 20).unwrap(), Found::Nothing);
        assert_eq!(find_data(&file, LENGTH, (4 << 20) - 1).unwrap(), Found::TooMuchToRead);
        file.write_all_at(b"x", 3 << 20).unwrap();
        assert_eq!(find_data(&file, LENGTH, 2 << 20).unwrap(), Found::At(3 << 20), "what was read counts");
    }

    #[test]
    fn a_file_shorter_than_a_page_is_looked_at_too() {
        assert_eq!(examine(&file(0), 0).unwrap(), Content::Blank);
        assert_eq!(examine(&file(100), 100).unwrap(), Content::Blank);
        let short = file(100);
        short.write_all_at(b"x", 99).unwrap();
        assert!(matches!(examine(&short, 100).unwrap(), Content::Other(why) if why.contains("byte 99")));
    }

    #[test]
    fn a_swap_header_is_believed_only_when_it_tells_the_size() {
        let file = file(4 << 20);
        file.write_all_at(&mkswap::format(1024, [1; 16]), 0).unwrap();
        file.write_all_at(b"swapped", 1 << 20).unwrap();
        let header = Header { pages: 1024, bad_pages: vec![], ours: true };
        assert_eq!(examine(&file, 4 << 20).unwrap(), Content::Swap(header));
        // Not a whole page more: mkswap does the same.
        file.set_len((4 << 20) + 4095).unwrap();
        assert!(matches!(examine(&file, (4 << 20) + 4095).unwrap(), Content::Swap(_)));
        for length in [(4 << 20) - 1, (4 << 20) + 4096, 4096] {
            file.set_len(length).unwrap();
            assert!(matches!(examine(&file, length).unwrap(), Content::Other(why) if why.contains("4194304")));
        }
    }

    #[test]
    fn a_swap_header_before_something_else_is_not_believed() {
        const LENGTH: u64 = (4 << 20) + (40 << 10);
        let header = mkswap::format(LENGTH / 4096, [1; 16]);
        let cases: [(u64, &[u8], &str); 6] = [
            (4096, &0xa92b_4efc_u32.to_le_bytes(), "RAID"),
            // Of 4136 KiB: 4096 is the last whole piece of 64, and the one before it is the superblock's; 8 before the end, as it is.
            (4032 << 10, &0xa92b_4efc_u32.to_le_bytes(), "RAID"),
            (4128 << 10, &0xa92b_4efc_u32.to_le_bytes(), "RAID"),
            (65600, b"_BHRfS_M", "btrfs"),
            (0, b"LUKS\xba\xbe", "LUKS"),
            (512, b"LABELONE", "LVM"),
        ];
        for (at, magic, what) in cases {
            let file = file(LENGTH);
            file.write_all_at(&header, 0).unwrap();
            assert!(matches!(examine(&file, LENGTH).unwrap(), Content::Swap(_)));
            file.write_all_at(magic, at).unwrap();
            assert!(
                matches!(examine(&file, LENGTH).unwrap(), Content::Other(why) if why.contains(what)),
                "{what} at {at}"
            );
        }
    }

    #[test]
    fn a_hibernated_system_is_no_swap_area() {
        let file = file(4 << 20);
        let mut page = mkswap::format(1024, [1; 16]);
        page[4086..4095].copy_from_slice(b"S1SUSPEND");
        file.write_all_at(&page, 0).unwrap();
        assert_eq!(examine(&file, 4 << 20).unwrap(), Content::Other("it holds a hibernated system".to_owned()));
    }
}
