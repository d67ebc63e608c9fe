//! How much memory a process has resident, by kind.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

use crate::PAGE_SIZE;

pub use uswap_system::looks::Rss;

/// Reads the status of the calling process. The kernel's counts may lag by some dozens of pages per thread.
pub fn own_rss() -> io::Result<Rss> {
    let mut text = [0; 4096];
    // The second, when the main thread has ended.
    for path in [c"/proc/self/status", c"/proc/thread-self/status"] {
        let len = read_all(path, &mut text)?;
        if let Some(rss) = parse_status(&text[..len]) {
            return Ok(rss);
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

/// The calling process's share of the shared pages that it has resident: one that three processes have counts as a third.
/// Slow: the kernel looks at every page.
pub fn own_share_of_shmem() -> io::Result<u64> {
    let mut text = [0; 4096];
    let len = read_all(c"/proc/thread-self/smaps_rollup", &mut text)?;
    let share = text[..len].split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Pss_Shmem:"));
    share.and_then(pages).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn read_all(path: &CStr, text: &mut [u8]) -> io::Result<usize> {
    let fd = crate::proc::open(path)?;
    let mut len = 0;
    loop {
        match rustix::io::read(&fd, &mut text[len..]) {
            Ok(0) => return Ok(len),
            Ok(count) => len += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// `  123 kB`
fn pages(text: &[u8]) -> Option<u64> {
    let kib: u64 = str::from_utf8(text).ok()?.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024 / PAGE_SIZE as u64)
}

/// Nothing where memory is not spoken of: a thread that has ended has none.
fn parse_status(text: &[u8]) -> Option<Rss> {
    let mut rss = Rss::default();
    let mut found = false;
    for line in text.split(|&byte| byte == b'\n') {
        let (field, rest) = if let Some(rest) = line.strip_prefix(b"RssAnon:") {
            (&mut rss.anon_pages, rest)
        } else if let Some(rest) = line.strip_prefix(b"RssFile:") {
            (&mut rss.file_pages, rest)
        } else if let Some(rest) = line.strip_prefix(b"RssShmem:") {
            (&mut rss.shmem_pages, rest)
        } else if let Some(rest) = line.strip_prefix(b"VmSwap:") {
            (&mut rss.swap_pages, rest)
        } else {
            continue;
        };
        *field = pages(rest)?;
        found = true;
    }
    found.then_some(rss)
}

/// An open `/proc/self/statm`: the cheap way to watch our own memory.
///
/// It shows the process that opened it, also after a fork: a child opens its own. The calling thread's file shows the same,
/// and is used only when the main thread has ended, whose file is empty then: where two threads that end together both have
/// entries in /proc that were used, the kernel lets one wait for the other in a loop, for milliseconds if both are on one
/// CPU (d_invalidate).
#[derive(Debug)]
pub struct StatM {
    fd: OwnedFd,
    main_has_ended: bool,
}

impl StatM {
    /// Opens the calling process's.
    pub fn open_self() -> io::Result<StatM> {
        Ok(StatM { fd: crate::proc::open(c"/proc/self/statm")?, main_has_ended: false })
    }

    /// Whether the main thread had ended when this was last read.
    pub fn main_has_ended(&self) -> bool {
        self.main_has_ended
    }

    /// Pages resident, and those of them that are of files or shared memory.
    pub fn read(&mut self) -> io::Result<(u64, u64)> {
        match self.look()? {
            (0, _) => {
                self.main_has_ended = true;
                self.fd = crate::proc::open(c"/proc/thread-self/statm")?;
                self.look()
            }
            pages => Ok(pages),
        }
    }

    fn look(&self) -> io::Result<(u64, u64)> {
        let mut text = [0; 128];
        let count = rustix::io::pread(&self.fd, &mut text, 0)?;
        parse_statm(&text[..count]).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// Bytes of addresses that this process has mapped: what RLIMIT_AS bounds.
pub fn mapped_bytes() -> io::Result<u64> {
    let mut text = [0; 128];
    let count = rustix::io::read(&crate::proc::open(c"/proc/thread-self/statm")?, &mut text)?;
    let pages = str::from_utf8(&text[..count]).ok().and_then(|text| text.split_ascii_whitespace().next()?.parse().ok());
    pages.map(|pages: u64| pages * crate::PAGE_SIZE as u64).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// `size resident shared text lib data dt`
fn parse_statm(text: &[u8]) -> Option<(u64, u64)> {
    let mut fields = str::from_utf8(text).ok()?.split_ascii_whitespace().skip(1);
    let resident = fields.next()?.parse().ok()?;
    let shared = fields.next()?.parse().ok()?;
    Some((resident, shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_taken_apart() {
        let text = b"Name:\tx\nRssAnon:\t     124 kB\nRssFile:\t  8 kB\nRssShmem:\t 4 kB\nVmSwap:\t 20 kB\n";
        assert_eq!(parse_status(text), Some(Rss { anon_pages: 31, file_pages: 2, shmem_pages: 1, swap_pages: 5 }));
        assert_eq!(parse_status(b"Name:\tzombie\n"), None);
        assert_eq!(parse_status(b"RssAnon:\tmany\n"), None);
    }

    #[test]
    fn touched_memory_is_counted() {
        // Other tests come and go, so only the floor can be relied on.
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        let (resident, shared) = StatM::open_self().unwrap().read().unwrap();
        assert!(resident - shared >= 16_000, "{resident} {shared}");
        assert!(own_rss().unwrap().anon_pages >= 16_000);
        drop(block);
    }
}
