//! How much memory a process has resident, by kind.

use std::io;
use std::os::fd::OwnedFd;

use crate::PAGE_SIZE;

pub use uswap_system::looks::Rss;

/// Reads the status of the calling process. The kernel's counts may lag by some dozens of pages per thread.
pub fn own_rss() -> io::Result<Rss> {
    // The second, when the main thread has ended.
    for path in [c"/proc/self/status", c"/proc/thread-self/status"] {
        let mut status = Status::default();
        each_line(&crate::proc::open(path)?, |line| status.note(line))?;
        if let Some(rss) = status.rss() {
            return Ok(rss);
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

/// The calling process's share of the shared pages that it has resident: one that three processes have counts as a third.
/// Slow: the kernel looks at every page.
pub fn own_share_of_shmem() -> io::Result<u64> {
    Ok(in_pages(own_share_kib(b"Pss_Shmem:")?))
}

/// The same of its private pages, rounded up.
pub fn own_share_of_private() -> io::Result<u64> {
    // What is less than a KiB is left out.
    Ok((own_share_kib(b"Pss_Anon:")? + 1).div_ceil(PAGE_SIZE as u64 / 1024))
}

fn own_share_kib(field: &[u8]) -> io::Result<u64> {
    let mut share = None;
    let rollup = crate::proc::open(c"/proc/thread-self/smaps_rollup")?;
    each_line(&rollup, |line| share = share.or_else(|| line.strip_prefix(field).and_then(kib)))?;
    share.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Pages of shared memory files that the calling process has resident in mappings that are registered with a userfaultfd, and its share
/// of them. Puts into `others` where all other files are mapped, as bytes. Slow.
pub fn own_registered_shmem(others: &mut Vec<(usize, usize)>) -> io::Result<(u64, u64)> {
    others.clear();
    let mut registered = Registered { others: std::mem::take(others), ..Registered::default() };
    each_line(&crate::proc::open(c"/proc/thread-self/smaps")?, |line| registered.note(line))?;
    *others = registered.others;
    Ok(registered.pages)
}

/// What lines of smaps say of such mappings.
#[derive(Default)]
struct Registered {
    /// Of those that have ended: resident pages, and the share of them.
    pages: (u64, u64),
    /// Of other mappings of files: where they are.
    others: Vec<(usize, usize)>,
    is_shared: bool,
    /// Where this one is, if it is of a file.
    place: Option<(usize, usize)>,
    of_this: (u64, u64),
}

impl Registered {
    fn note(&mut self, line: &[u8]) {
        if let Some(rss) = line.strip_prefix(b"Rss:").and_then(pages) {
            self.of_this.0 = rss;
        } else if let Some(share) = line.strip_prefix(b"Pss:").and_then(pages) {
            self.of_this.1 = share;
        } else if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            let place = self.place.take();
            if self.is_shared && flags.split(|&byte| byte == b' ').any(|flag| flag == b"um") {
                self.pages = (self.pages.0 + self.of_this.0, self.pages.1 + self.of_this.1);
            } else if let Some((start, end)) = place {
                match self.others.last_mut() {
                    Some(last) if last.1 == start => last.1 = end,
                    _ => self.others.push((start, end)),
                }
            }
        } else if let Some(vma) = crate::maps::vmas(line).next() {
            self.is_shared = vma.shared;
            // A System V segment may have 0 for its inode.
            self.place = vma.name.starts_with(b"/").then_some((vma.start, vma.end));
            self.of_this = (0, 0);
        }
    }
}

/// Lines longer than this are left out.
const LINE_MAX: usize = 4096;

/// Gives `note` each line of a file but long ones: a user may be in hundreds of groups, which are one line of his status.
fn each_line(file: &OwnedFd, mut note: impl FnMut(&[u8])) -> io::Result<()> {
    let mut text = [0; LINE_MAX];
    // Of a line whose end has not been read, and whether it is too long.
    let (mut begun, mut is_long) = (0, false);
    loop {
        let end = match rustix::io::read(file, &mut text[begun..]) {
            Ok(0) => return Ok(()),
            Ok(count) => begun + count,
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let mut start = 0;
        while let Some(length) = text[start..end].iter().position(|&byte| byte == b'\n') {
            if !std::mem::take(&mut is_long) {
                note(&text[start..start + length]);
            }
            start += length + 1;
        }
        text.copy_within(start..end, 0);
        begun = end - start;
        if begun == LINE_MAX {
            (begun, is_long) = (0, true);
        }
    }
}

/// `  123 kB`
fn pages(text: &[u8]) -> Option<u64> {
    kib(text).map(in_pages)
}

fn in_pages(kib: u64) -> u64 {
    kib * 1024 / PAGE_SIZE as u64
}

fn kib(text: &[u8]) -> Option<u64> {
    str::from_utf8(text).ok()?.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// What lines of a status say of memory.
#[derive(Default)]
struct Status {
    rss: Rss,
    is_found: bool,
    is_wrong: bool,
}

impl Status {
    fn note(&mut self, line: &[u8]) {
        let (field, rest) = if let Some(rest) = line.strip_prefix(b"RssAnon:") {
            (&mut self.rss.anon_pages, rest)
        } else if let Some(rest) = line.strip_prefix(b"RssFile:") {
            (&mut self.rss.file_pages, rest)
        } else if let Some(rest) = line.strip_prefix(b"RssShmem:") {
            (&mut self.rss.shmem_pages, rest)
        } else if let Some(rest) = line.strip_prefix(b"VmSwap:") {
            (&mut self.rss.swap_pages, rest)
        } else {
            return;
        };
        match pages(rest) {
            Some(pages) => (*field, self.is_found) = (pages, true),
            None => self.is_wrong = true,
        }
    }

    /// Nothing where memory is not spoken of: a thread that has ended has none.
    fn rss(self) -> Option<Rss> {
        (self.is_found && !self.is_wrong).then_some(self.rss)
    }
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
    mapped: u64,
}

impl StatM {
    /// Opens the calling process's.
    pub fn open_self() -> io::Result<StatM> {
        Ok(StatM { fd: crate::proc::open(c"/proc/self/statm")?, main_has_ended: false, mapped: 0 })
    }

    /// Whether the main thread had ended when this was last read.
    pub fn main_has_ended(&self) -> bool {
        self.main_has_ended
    }

    /// Pages resident, and those of them that are of files or shared memory.
    pub fn read(&mut self) -> io::Result<(u64, u64)> {
        let mut pages = self.look()?;
        if pages[1] == 0 {
            self.main_has_ended = true;
            self.fd = crate::proc::open(c"/proc/thread-self/statm")?;
            pages = self.look()?;
        }
        let [mapped, resident, shared] = pages;
        self.mapped = mapped;
        Ok((resident, shared))
    }

    /// Pages of addresses that were mapped when this was last read.
    pub fn mapped(&self) -> u64 {
        self.mapped
    }

    fn look(&self) -> io::Result<[u64; 3]> {
        let mut text = [0; 128];
        let count = rustix::io::pread(&self.fd, &mut text, 0)?;
        parse_statm(&text[..count]).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// Bytes of addresses that this process has mapped: what RLIMIT_AS bounds.
pub fn mapped_bytes() -> io::Result<u64> {
    let mut text = [0; 128];
    let count = rustix::io::read(&crate::proc::open(c"/proc/thread-self/statm")?, &mut text)?;
    let pages = parse_statm(&text[..count]);
    pages.map(|[mapped, ..]| mapped * crate::PAGE_SIZE as u64).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Pages of addresses that another process has mapped.
pub fn mapped_pages(pid: u32) -> io::Result<u64> {
    let statm = std::fs::read(format!("/proc/{pid}/statm"))?;
    parse_statm(&statm).map(|[mapped, ..]| mapped).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// `size resident shared text lib data dt`
fn parse_statm(text: &[u8]) -> Option<[u64; 3]> {
    let mut fields = str::from_utf8(text).ok()?.split_ascii_whitespace().map(|field| field.parse().ok());
    Some([fields.next()??, fields.next()??, fields.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(text: &[u8]) -> Option<Rss> {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let text = text.to_vec();
        let writer =
            std::thread::spawn(move || std::io::Write::write_all(&mut std::fs::File::from(write), &text).unwrap());
        let mut status = Status::default();
        each_line(&read, |line| status.note(line)).unwrap();
        writer.join().unwrap();
        status.rss()
    }

    #[test]
    fn status_is_taken_apart() {
        let text = b"Name:\tx\nRssAnon:\t     124 kB\nRssFile:\t  8 kB\nRssShmem:\t 4 kB\nVmSwap:\t 20 kB\n";
        let rss = Rss { anon_pages: 31, file_pages: 2, shmem_pages: 1, swap_pages: 5 };
        assert_eq!(status(text), Some(rss));
        assert_eq!(status(b"Name:\tzombie\n"), None);
        assert_eq!(status(b"RssAnon:\tmany\n"), None);
        // Of a user in hundreds of groups, wherever a read ends.
        for groups in [300, 4085, 4086, 4087, 4088, 10_000] {
            let text = [b"Groups:\t", &vec![b'7'; groups][..], b"\n", text].concat();
            assert_eq!(status(&text), Some(rss), "{groups}");
        }
    }

    #[test]
    fn registered_shared_memory_is_told_apart() {
        let smaps = b"1000-3000 r-xp 00000000 fe:00 12 /lib/a.so\nRss: 8 kB\nPss: 2 kB\nVmFlags: rd ex \n\
            3000-4000 rw-p 00001000 fe:00 12 /lib/a.so\nRss: 4 kB\nPss: 4 kB\nVmFlags: rd wr \n\
            5000-7000 rw-p 00000000 00:00 0 [heap]\nRss: 8 kB\nPss: 8 kB\nVmFlags: rd wr um \n\
            8000-9000 rw-s 00000000 00:01 0 /SYSV00000000 (deleted)\nRss: 4 kB\nPss: 2 kB\nVmFlags: rd wr sh \n\
            9000-d000 rw-s 00000000 00:01 7 /memfd:uswap-shared (deleted)\nRss: 16 kB\nPss: 4 kB\nVmFlags: rd wr sh um \n";
        let mut registered = Registered::default();
        smaps.split(|&byte| byte == b'\n').for_each(|line| registered.note(line));
        assert_eq!(registered.pages, (4, 1));
        assert_eq!(registered.others, [(0x1000, 0x4000), (0x8000, 0x9000)]);
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
