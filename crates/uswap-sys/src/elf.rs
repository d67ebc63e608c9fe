//! What kind of program a file is: whether the dynamic loader runs it, and so whether a preloaded
//! agent gets into it.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Word size of an ELF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// ELFCLASS32.
    Bits32,
    /// ELFCLASS64.
    Bits64,
}

/// EM_X86_64: the one machine we know.
pub const MACHINE_X86_64: u16 = 62;

/// What a file is, as execve(2) sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// An ELF program that its interpreter, the dynamic loader, runs.
    Dynamic {
        /// The loader's path.
        interpreter: PathBuf,
        /// Word size.
        class: Class,
        /// EM_*.
        machine: u16,
    },
    /// An ELF program without interpreter: nothing can be preloaded into it.
    Static {
        /// Word size.
        class: Class,
        /// EM_*.
        machine: u16,
    },
    /// `#!interpreter argument`
    Script {
        /// The interpreter's path.
        interpreter: PathBuf,
        /// All that follows it on the line.
        arg: Option<OsString>,
    },
    /// A directory, or a file without execute permission.
    NotExecutable,
    /// None of these; perhaps a shell knows what to do with it.
    Unknown,
}

/// Looks at a file the way execve(2) would.
pub fn inspect(path: &Path) -> io::Result<Program> {
    let metadata = std::fs::metadata(path)?;
    let allowed = rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    if !metadata.is_file() || !allowed {
        return Ok(Program::NotExecutable);
    }
    inspect_bytes(&File::open(path)?)
}

/// A source of bytes at offsets: a file, or a test's array.
trait Bytes {
    /// Reads up to `into.len()` bytes; fewer at the end.
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl Bytes for File {
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut used = 0;
        while used < into.len() {
            match FileExt::read_at(self, &mut into[used..], offset + used as u64) {
                Ok(0) => break,
                Ok(count) => used += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(used)
    }
}

/// The kernel looks at this much of a script's first line.
const HEAD_BYTES: usize = 256;
const PT_INTERP: u32 = 3;
const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;

fn inspect_bytes(file: &impl Bytes) -> io::Result<Program> {
    let mut head = [0; HEAD_BYTES];
    let used = file.read_at(&mut head, 0)?;
    let head = &head[..used];
    if let Some(line) = head.strip_prefix(b"#!") {
        return Ok(script(line));
    }
    if head.starts_with(b"\x7fELF") {
        return Ok(elf(file, head)?.unwrap_or(Program::Unknown));
    }
    Ok(Program::Unknown)
}

fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// As Linux does for the first line of a script: a carriage return is a part of the name.
fn trim_blanks(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|byte| !is_blank(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_blank(byte)).map_or(start, |last| last + 1);
    &text[start..end]
}

fn script(text: &[u8]) -> Program {
    let line = trim_blanks(text.split(|&b| b == b'\n' || b == 0).next().unwrap_or(text));
    let (interpreter, arg) = match line.iter().position(is_blank) {
        Some(at) => (&line[..at], trim_blanks(&line[at..])),
        None => (line, &b""[..]),
    };
    if interpreter.is_empty() {
        return Program::Unknown;
    }
    Program::Script {
        interpreter: OsString::from_vec(interpreter.to_vec()).into(),
        arg: (!arg.is_empty()).then(|| OsString::from_vec(arg.to_vec())),
    }
}

/// None if the headers make no sense.
fn elf(file: &impl Bytes, head: &[u8]) -> io::Result<Option<Program>> {
    let Some(header) = Header::parse(head) else {
        return Ok(None);
    };
    let (class, machine) = (header.class, header.machine);
    let mut table = vec![0; usize::from(header.entry_bytes) * usize::from(header.entries)];
    if file.read_at(&mut table, header.table_offset)? != table.len() {
        return Ok(None);
    }
    for entry in table.chunks_exact(usize::from(header.entry_bytes)) {
        if u32_at(entry, 0) != Some(PT_INTERP) {
            continue;
        }
        let place = match class {
            Class::Bits64 => u64_at(entry, 8).zip(u64_at(entry, 32)),
            Class::Bits32 => u32_at(entry, 4).zip(u32_at(entry, 16)).map(|(o, s)| (o.into(), s.into())),
        };
        let Some((offset, size)) = place.filter(|&(_, size)| (2..=4096).contains(&size)) else {
            return Ok(None);
        };
        let mut name = vec![0; size as usize];
        if file.read_at(&mut name, offset)? != name.len() || name.pop() != Some(0) {
            return Ok(None);
        }
        let interpreter = OsString::from_vec(name).into();
        return Ok(Some(Program::Dynamic { interpreter, class, machine }));
    }
    Ok(Some(Program::Static { class, machine }))
}

struct Header {
    class: Class,
    machine: u16,
    table_offset: u64,
    entry_bytes: u16,
    entries: u16,
}

impl Header {
    fn parse(head: &[u8]) -> Option<Header> {
        let class = match head.get(4)? {
            1 => Class::Bits32,
            2 => Class::Bits64,
            _ => return None,
        };
        // Little-endian only: the other kind does not run here.
        if *head.get(5)? != 1 || ![ET_EXEC, ET_DYN].contains(&u16_at(head, 16)?) {
            return None;
        }
        let (table_offset, entry_bytes, entries, entry_min) = match class {
            Class::Bits64 => (u64_at(head, 32)?, u16_at(head, 54)?, u16_at(head, 56)?, 56),
            Class::Bits32 => (u32_at(head, 28)?.into(), u16_at(head, 42)?, u16_at(head, 44)?, 32),
        };
        if entry_bytes != entry_min || entries == 0 {
            return None;
        }
        Some(Header { class, machine: u16_at(head, 18)?, table_offset, entry_bytes, entries })
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Bytes for Vec<u8> {
        fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
            let rest = self.get(offset as usize..).unwrap_or(&[]);
            let count = rest.len().min(into.len());
            into[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        }
    }

    fn of(bytes: &[u8]) -> Program {
        inspect_bytes(&bytes.to_vec()).unwrap()
    }

    /// A 64-bit ELF file with one program header of this type, which points at `/ld.so`.
    fn elf64(header_type: u32) -> Vec<u8> {
        let mut file = vec![0; 64 + 56];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[16..18].copy_from_slice(&ET_DYN.to_le_bytes());
        file[18..20].copy_from_slice(&MACHINE_X86_64.to_le_bytes());
        file[32..40].copy_from_slice(&64u64.to_le_bytes());
        file[54..56].copy_from_slice(&56u16.to_le_bytes());
        file[56..58].copy_from_slice(&1u16.to_le_bytes());
        file[64..68].copy_from_slice(&header_type.to_le_bytes());
        file[72..80].copy_from_slice(&120u64.to_le_bytes());
        file[96..104].copy_from_slice(&7u64.to_le_bytes());
        file.extend(b"/ld.so\0");
        file
    }

    #[test]
    fn elf_files_are_told_apart_by_their_interpreter() {
        let (class, machine) = (Class::Bits64, MACHINE_X86_64);
        assert_eq!(of(&elf64(PT_INTERP)), Program::Dynamic { interpreter: "/ld.so".into(), class, machine });
        assert_eq!(of(&elf64(1)), Program::Static { class, machine });
    }

    #[test]
    fn scripts_name_their_interpreter() {
        let script = |interpreter: &str, arg: Option<&str>| Program::Script {
            interpreter: interpreter.into(),
            arg: arg.map(Into::into),
        };
        assert_eq!(of(b"#!/bin/sh\necho"), script("/bin/sh", None));
        assert_eq!(of(b"#! /usr/bin/env  -S python3 -u \n"), script("/usr/bin/env", Some("-S python3 -u")));
        assert_eq!(of(b"#!/bin/sh\r\n"), script("/bin/sh\r", None), "there is no such file, and Linux looks for it");
        assert_eq!(of(b"#!\n"), Program::Unknown);
        assert_eq!(of(b"#! \t\n"), Program::Unknown);
        assert_eq!(of(b"echo"), Program::Unknown);
        assert_eq!(of(b""), Program::Unknown);
    }

    #[test]
    fn a_file_cut_anywhere_is_unknown() {
        let whole = elf64(PT_INTERP);
        for len in 4..whole.len() {
            assert_eq!(of(&whole[..len]), Program::Unknown, "{len}");
        }
    }

    #[test]
    fn any_flipped_byte_gives_an_answer() {
        let whole = elf64(PT_INTERP);
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut file = whole.clone();
                file[at] = value;
                let _ = of(&file);
            }
        }
    }

    #[test]
    fn real_files() {
        let own = inspect(&std::env::current_exe().unwrap()).unwrap();
        assert!(matches!(own, Program::Dynamic { .. }), "{own:?}");
        assert_eq!(inspect(Path::new("/")).unwrap(), Program::NotExecutable);
        assert_eq!(inspect(Path::new("/proc/version")).unwrap(), Program::NotExecutable);
        assert!(inspect(Path::new("/no/such/file")).is_err());
    }
}
