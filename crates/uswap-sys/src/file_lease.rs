//! Leases on files: to know that nobody else has a file open, and to keep it so for a moment.
//!
//! Locks only bind those who ask for them. A lease for writing is refused by the kernel as long as anybody else has the file
//! open, a loop device or the kernel's own swap included; and while it is held, who opens the file waits for its end, at most
//! for /proc/sys/fs/lease-break-time.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Which signal a lease's owner gets; libc does not name it.
const F_SETSIG: libc::c_int = 10;

const NFS_MAGIC: u64 = 0x6969;

/// Why there is no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoLease {
    /// Somebody else has the file open.
    OpenElsewhere,
    /// This file system has no leases, or the file is somebody else's: nothing is known.
    NotPossible,
}

/// Nobody else has the file open as long as this lives and [`holds`](WriteLease::holds).
#[derive(Debug)]
pub struct WriteLease {
    file: OwnedFd,
}

impl WriteLease {
    /// Takes a lease on a file that is open for reading and writing.
    ///
    /// # Errors
    /// When there is none.
    pub fn take(file: BorrowedFd<'_>) -> Result<WriteLease, NoLease> {
        // Another number for the same open file, which is what has the lease.
        let file = file.try_clone_to_owned().map_err(|_| NoLease::NotPossible)?;
        // Who waits for the lease makes the kernel send a signal. SIGIO would end the process; SIGURG does nothing.
        if fcntl(&file, F_SETSIG, libc::SIGURG).is_err() {
            return Err(NoLease::NotPossible);
        }
        match fcntl(&file, libc::F_SETLEASE, libc::F_WRLCK) {
            Ok(_) => Ok(WriteLease { file }),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && !is_on_nfs(&file) => {
                Err(NoLease::OpenElsewhere)
            }
            Err(_) => Err(NoLease::NotPossible),
        }
    }

    /// False when somebody waits to open the file, or does not wait any more.
    pub fn holds(&self) -> bool {
        fcntl(&self.file, libc::F_GETLEASE, 0).is_ok_and(|kind| kind == libc::F_WRLCK)
    }
}

impl Drop for WriteLease {
    fn drop(&mut self) {
        // A lease that has been taken away is none to give back.
        let _ = fcntl(&self.file, libc::F_SETLEASE, libc::F_UNLCK);
    }
}

/// There a lease needs a delegation of the server's, and without one the answer is the same as that for a file that somebody
/// has open.
fn is_on_nfs(file: &OwnedFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|fs| fs.f_type as u64 & 0xffff_ffff == NFS_MAGIC)
}

fn fcntl(file: &OwnedFd, command: libc::c_int, argument: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: these commands take a number and touch no memory; the descriptor is open as long as it is borrowed.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::time::Duration;

    fn file(name: &str) -> (std::path::PathBuf, File) {
        let path = std::env::temp_dir().join(format!("uswap-lease-{name}-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        (path, file)
    }

    #[test]
    fn a_file_that_somebody_has_open_gives_no_lease() {
        let (path, ours) = file("open");
        drop(WriteLease::take(ours.as_fd()).unwrap());
        let theirs = File::options().append(true).open(&path).unwrap();
        assert_eq!(WriteLease::take(ours.as_fd()).unwrap_err(), NoLease::OpenElsewhere);
        drop(theirs);
        assert!(WriteLease::take(ours.as_fd()).unwrap().holds());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn who_opens_a_leased_file_waits_and_is_noticed() {
        let (path, ours) = file("wait");
        let lease = WriteLease::take(ours.as_fd()).unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| File::open(&path).unwrap());
            let begun = std::time::Instant::now();
            while lease.holds() {
                assert!(begun.elapsed() < Duration::from_secs(30), "the other never came");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(!other.is_finished(), "it did not wait");
            drop(lease);
            other.join().unwrap();
        });
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_is_no_file_has_no_leases() {
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        assert_eq!(WriteLease::take(null.as_fd()).unwrap_err(), NoLease::NotPossible);
    }
}
