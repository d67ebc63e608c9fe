//! /proc/PID/maps, read with plain system calls into the caller's buffer and taken apart in place; and a single mapping of
//! it, asked for by address.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

pub use uswap_system::looks::Vma;

/// Whose mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapsOf {
    /// The calling process's.
    SelfProcess,
    /// Another process's.
    Pid(u32),
}

/// Reads all of it into `buffer`, replacing what is there; the buffer keeps its capacity between calls.
///
/// A process that changes meanwhile is seen partly before and partly after: every line is true at the
/// moment it is read, and addresses never go backwards.
pub fn read_maps(of: MapsOf, buffer: &mut Vec<u8>) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = match of {
        MapsOf::SelfProcess => crate::proc::open(c"/proc/thread-self/maps")?,
        MapsOf::Pid(pid) => rustix::fs::open(format!("/proc/{pid}/maps"), flags, Mode::empty())?,
    };
    buffer.clear();
    let mut used = 0;
    loop {
        // The kernel writes at most a page or so per read.
        const STEP: usize = 16 << 10;
        if buffer.len() - used < STEP {
            buffer.resize(buffer.len() + 4 * STEP, 0);
        }
        match rustix::io::read(&file, &mut buffer[used..]) {
            Ok(0) => break,
            Ok(count) => used += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    buffer.truncate(used);
    Ok(())
}

/// `struct procmap_query` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct QueryRequest {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// `PROCMAP_QUERY`, Linux 6.11.
const PROCMAP_QUERY: Opcode = opcode::read_write::<QueryRequest>(b'f', 17);
/// `PROCMAP_QUERY_VMA_READABLE` and so on.
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const EXECUTABLE: u64 = 4;
const SHARED: u64 = 8;
/// `PROCMAP_QUERY_COVERING_OR_NEXT_VMA`.
const COVERING_OR_NEXT: u64 = 0x10;
/// Room for the names that memory without a file has: `[heap]`, `[anon:...]` with 80 characters.
const NAME_ROOM: usize = 128;

struct QueryCall<'a>(&'a mut QueryRequest);

// SAFETY: the request has the layout that this opcode reads and writes; its `name` and `name_size` describe an array of the
// caller's (see `MapQuery::at`).
unsafe impl Ioctl for QueryCall<'_> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        PROCMAP_QUERY
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// Asks for single mappings of the calling process, in a hundredth of the time that reading all of them takes.
#[derive(Debug)]
pub struct MapQuery {
    maps: OwnedFd,
    name: [u8; NAME_ROOM],
}

impl MapQuery {
    /// Opens the calling process's maps.
    pub fn open_self() -> io::Result<MapQuery> {
        Ok(MapQuery { maps: crate::proc::open(c"/proc/thread-self/maps")?, name: [0; NAME_ROOM] })
    }

    /// The mapping at `address`. `None` when there is none, and before Linux 6.11. A long name, as files have, is left out.
    pub fn at(&mut self, address: usize) -> Option<Vma<'_>> {
        self.ask(address, 0)
    }

    /// The mapping at `address`, or the first behind it.
    pub fn at_or_after(&mut self, address: usize) -> Option<Vma<'_>> {
        self.ask(address, COVERING_OR_NEXT)
    }

    fn ask(&mut self, address: usize, flags: u64) -> Option<Vma<'_>> {
        let mut request = QueryRequest {
            size: size_of::<QueryRequest>() as u64,
            flags,
            address: address as u64,
            name_size: NAME_ROOM as u32,
            name: self.name.as_mut_ptr().expose_provenance() as u64,
            ..QueryRequest::default()
        };
        // SAFETY: the request's name points to an array of that size, which nobody else uses during the call.
        let mut answer = unsafe { rustix::ioctl::ioctl(&self.maps, QueryCall(&mut request)) };
        if answer == Err(rustix::io::Errno::NAMETOOLONG) {
            (request.name, request.name_size) = (0, 0);
            // SAFETY: without a name nothing but the request is written.
            answer = unsafe { rustix::ioctl::ioctl(&self.maps, QueryCall(&mut request)) };
        }
        answer.ok()?;
        let has = |flag| request.vma_flags & flag != 0;
        // The size that comes back includes the null byte; without a name it is 0.
        let name = &self.name[..(request.name_size as usize).saturating_sub(1).min(NAME_ROOM)];
        Some(Vma {
            start: request.start as usize,
            end: request.end as usize,
            read: has(READABLE),
            write: has(WRITABLE),
            exec: has(EXECUTABLE),
            shared: has(SHARED),
            offset: request.offset,
            device: rustix::fs::makedev(request.dev_major, request.dev_minor),
            inode: request.inode,
            name,
        })
    }
}

/// The mappings in what [`read_maps`] read, lowest address first. Lines that make no sense are skipped.
pub fn vmas(buffer: &[u8]) -> impl Iterator<Item = Vma<'_>> {
    buffer.split(|&byte| byte == b'\n').filter_map(parse_line)
}

/// `7f00-7f01 rw-p 00000000 08:01 1234      /path with spaces`
fn parse_line(line: &[u8]) -> Option<Vma<'_>> {
    let (start, rest) = hex(line)?;
    let (end, rest) = hex(rest.strip_prefix(b"-")?)?;
    let rest = rest.strip_prefix(b" ")?;
    let (permissions, rest) = rest.split_at_checked(4)?;
    let (offset, rest) = hex(rest.strip_prefix(b" ")?)?;
    let (major, rest) = hex(rest.strip_prefix(b" ")?)?;
    let (minor, rest) = hex(rest.strip_prefix(b":")?)?;
    let rest = rest.strip_prefix(b" ")?;
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    let inode = str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    let name = &rest[digits..];
    let spaces = name.iter().take_while(|&&b| b == b' ').count();
    Some(Vma {
        start: start as usize,
        end: end as usize,
        read: permissions[0] == b'r',
        write: permissions[1] == b'w',
        exec: permissions[2] == b'x',
        shared: permissions[3] == b's',
        offset,
        device: rustix::fs::makedev(major as u32, minor as u32),
        inode,
        name: &name[spaces..],
    })
}

/// A hexadecimal number at the beginning, and what follows.
fn hex(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text.iter().take_while(|b| b.is_ascii_hexdigit()).count();
    let number = str::from_utf8(&text[..digits]).ok()?;
    Some((u64::from_str_radix(number, 16).ok()?, &text[digits..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart() {
        let text = b"7f0000-7f1000 rw-p 00000000 00:00 0 \n\
            55d0a000-55d0b000 r-xs 00002000 fe:01 1234                       /tmp/a b (deleted)\n\
            7ffd0000-7ffd1000 rw-p 00000000 00:00 0                          [stack]\n\
            ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n\
            nonsense\n";
        let all: Vec<_> = vmas(text).collect();
        assert_eq!(all.len(), 4);
        assert!(all[0].is_anonymous_private() && all[0].write && all[0].len() == 0x1000);
        assert_eq!(all[1].name, b"/tmp/a b (deleted)");
        assert!(all[1].shared && all[1].exec && !all[1].is_anonymous_private());
        assert_eq!((all[1].offset, all[1].inode), (0x2000, 1234));
        assert!(all[2].is_main_stack() && !all[2].is_special() && !all[2].is_anonymous_private());
        assert!(all[3].is_special());
    }

    #[test]
    fn our_own_stack_is_found() {
        let mut buffer = Vec::new();
        let here = &raw const buffer as usize;
        for of in [MapsOf::SelfProcess, MapsOf::Pid(std::process::id())] {
            read_maps(of, &mut buffer).unwrap();
            assert!(vmas(&buffer).any(|v| v.start <= here && here < v.end && v.write));
        }
    }

    #[test]
    fn a_mapping_that_is_asked_for_is_as_in_the_list() {
        let mut query = MapQuery::open_self().unwrap();
        let block = vec![1u8; 1 << 20];
        if query.at(block.as_ptr().addr()).is_none() {
            eprintln!("skipped: this kernel has no PROCMAP_QUERY, which came with Linux 6.11");
            return;
        }
        let mut buffer = Vec::new();
        read_maps(MapsOf::SelfProcess, &mut buffer).unwrap();
        let (mut same, mut named) = (0, 0);
        for listed in vmas(&buffer) {
            // Other tests map and unmap meanwhile, so not all of it stays.
            if let Some(found) = query.at(listed.start).filter(|found| found.start == listed.start) {
                same += u32::from(found == listed);
                named += u32::from(found == listed && !listed.name.is_empty());
            }
        }
        assert!(same >= 5 && named >= 3, "{same} {named}");
        assert_eq!(query.at(0), None);
        assert!(query.at_or_after(0).is_some_and(|first| first.start > 0));
        let text = vmas(&buffer).find(|vma| vma.exec && vma.inode != 0).unwrap();
        assert_eq!(
            query.at(text.start).map(|found| (found.start, found.end, found.inode)),
            Some((text.start, text.end, text.inode))
        );
    }
}
