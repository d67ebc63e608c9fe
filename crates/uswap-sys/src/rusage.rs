//! What this process, or its children, have cost so far: CPU time and page faults, by getrusage(2).
//!
//! All threads count, those of a preloaded agent too.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::time::Duration;

/// CPU time and page faults of the calling process since it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Time spent in user mode, all threads together.
    pub user: Duration,
    /// Time spent in the kernel, all threads together.
    pub system: Duration,
    /// Faults that had to wait for I/O, as the kernel counts them.
    pub major_faults: u64,
    /// Faults that were served without I/O, as the kernel counts them.
    pub minor_faults: u64,
}

impl ProcessUsage {
    /// The usage at this moment.
    pub fn now() -> ProcessUsage {
        ProcessUsage::of(certain(usage(libc::RUSAGE_SELF)))
    }

    /// The usage of all children that have ended and were waited for, and of those that they had waited for.
    pub fn of_children() -> ProcessUsage {
        ProcessUsage::of(certain(usage(libc::RUSAGE_CHILDREN)))
    }

    fn of(usage: libc::rusage) -> ProcessUsage {
        ProcessUsage {
            user: duration(usage.ru_utime),
            system: duration(usage.ru_stime),
            major_faults: u64::try_from(usage.ru_majflt).unwrap_or(0),
            minor_faults: u64::try_from(usage.ru_minflt).unwrap_or(0),
        }
    }

    /// What was spent between `earlier` and `self`.
    pub fn since(&self, earlier: &ProcessUsage) -> ProcessUsage {
        ProcessUsage {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
            major_faults: self.major_faults.saturating_sub(earlier.major_faults),
            minor_faults: self.minor_faults.saturating_sub(earlier.minor_faults),
        }
    }
}

/// The most that the calling process has had in memory at once, files included. `None` where a seccomp filter keeps that secret.
pub fn peak_rss_bytes() -> Option<u64> {
    let usage = usage(libc::RUSAGE_SELF)?;
    Some(u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024)
}

/// Page faults that the calling process has ever had. `None` where a seccomp filter keeps that secret.
pub fn faults() -> Option<u64> {
    let usage = ProcessUsage::of(usage(libc::RUSAGE_SELF)?);
    Some(usage.major_faults + usage.minor_faults)
}

/// Processor time that the calling process has ever used. `None` where a seccomp filter keeps that secret.
pub fn processor_time() -> Option<Duration> {
    let usage = ProcessUsage::of(usage(libc::RUSAGE_SELF)?);
    Some(usage.user + usage.system)
}

fn certain(usage: Option<libc::rusage>) -> libc::rusage {
    usage.expect("getrusage of oneself or of children cannot fail")
}

fn usage(whose: libc::c_int) -> Option<libc::rusage> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a writable `rusage`, which is all that getrusage writes to.
    let status = unsafe { libc::getrusage(whose, usage.as_mut_ptr()) };
    // SAFETY: zeroed at first and filled in by the kernel; every bit pattern of its integers is valid.
    (status == 0).then(|| unsafe { usage.assume_init() })
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_fresh_memory_is_seen_as_faults_and_time() {
        let before = ProcessUsage::now();
        let mut touched = vec![0u8; 8 << 20];
        for page in touched.chunks_mut(4096) {
            page[0] = 1;
        }
        let spent = ProcessUsage::now().since(&before);
        assert_eq!(touched.iter().map(|&byte| usize::from(byte)).sum::<usize>(), 2048);
        assert!(spent.minor_faults > 0);
        assert!(peak_rss_bytes().is_some_and(|peak| peak > 8 << 20));
    }
}
