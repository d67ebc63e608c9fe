//! `uswap doctor`: what the environment allows, found out by doing it, and how to get what is missing.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Args;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::process::Resource;
use serde::Serialize;
use uswap_engine::group::Compressor;
use uswap_sys::AlignedBuffer;
use uswap_sys::launch;
use uswap_sys::pagemap::PageMap;
use uswap_sys::ring::Ring;
use uswap_sys::swapped_moves::{self, Tried};
use uswap_sys::uffd::{Features, Holes, Uffd, UffdUnavailable, Wake};

use crate::failure::reason;
use crate::memory_limit::{self, Source};
use crate::output::print;
use crate::run::agent;
use crate::run::options::MEMORY_BYTES_MIN;
use crate::size;
use crate::swap_area;
use crate::userfaultfd;

/// Says what the environment allows, and for each missing thing how to get it.
///
/// The exit status is 0 when `uswap run` can work here, and 1 when it cannot.
#[derive(Args, Debug)]
pub struct DoctorOptions {
    /// Prints one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// There, and it works.
    Ok,
    /// Not there, and uswap works without it, not as well.
    Warning,
    /// Not there, and uswap does not work without it.
    Missing,
    /// Not there, and uswap does not work with none of those that are marked so.
    OneOf,
    /// Good to know.
    Info,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Missing => "MISSING",
            Verdict::OneOf => "ONE OF",
            Verdict::Info => "info",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    name: &'static str,
    verdict: Verdict,
    detail: String,
    /// The one command or container option that helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Finding {
    fn new(name: &'static str, verdict: Verdict, detail: impl Into<String>) -> Finding {
        Finding { name, verdict, detail: detail.into(), fix: None }
    }

    fn ok(name: &'static str, detail: impl Into<String>) -> Finding {
        Finding::new(name, Verdict::Ok, detail)
    }

    fn fix(mut self, fix: impl Into<String>) -> Finding {
        self.fix = Some(fix.into());
        self
    }
}

/// The subcommand.
pub fn main(options: &DoctorOptions) -> ExitCode {
    // A limit on the size of files (ulimit -f) is a finding.
    launch::ignore_file_size_signal();
    let findings = examine();
    let works = findings.iter().all(|finding| !matches!(finding.verdict, Verdict::Missing | Verdict::OneOf));
    let ways = findings.iter().filter(|finding| finding.verdict == Verdict::OneOf).count();
    let mut text = String::new();
    if options.json {
        let object = serde_json::json!({ "works": works, "findings": findings });
        text = serde_json::to_string_pretty(&object).expect("a tree of strings") + "\n";
    } else {
        for finding in &findings {
            text += &format!("{:8} {:18} {}\n", finding.verdict.word(), finding.name, finding.detail);
            if let Some(fix) = &finding.fix {
                text += &format!("{:27} fix: {fix}\n", "");
            }
        }
        if ways > 0 {
            text += &format!("of the {ways} marked ONE OF, one is enough: each is a way to userfaultfd\n");
        }
        text += if works { "uswap run works here\n" } else { "uswap run cannot work here\n" };
    }
    if let Err(failure) = print(&text) {
        return failure.report();
    }
    if works { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn examine() -> Vec<Finding> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut findings = vec![Finding::new("kernel", Verdict::Info, format!("Linux {release}"))];
    findings.extend(userfaultfd());
    let proc = proc();
    let has_proc = proc.verdict != Verdict::Missing;
    findings.push(proc);
    // Of no use without, and what they then say is not the reason.
    findings.extend(has_proc.then(pagemap_scan));
    findings.push(io_uring());
    findings.extend(has_proc.then(preload));
    findings.extend(swap_directory());
    findings.push(kernel_swap());
    findings.push(seccomp());
    findings.extend(limits());
    findings.push(memory());
    findings
}

// userfaultfd

/// One way to get a descriptor: the features it gives, or what is in the way.
type Way = Result<Features, UffdUnavailable>;

fn by_device() -> Way {
    let device = userfaultfd::open_device().map_err(|error| match error.kind() {
        std::io::ErrorKind::PermissionDenied => UffdUnavailable::NoPermission,
        _ => UffdUnavailable::Io(error),
    })?;
    Uffd::available(Some(device.as_fd()))
}

fn userfaultfd() -> Vec<Finding> {
    let (device, syscall) = (by_device(), Uffd::available(None));
    let features = device.as_ref().or(syscall.as_ref()).ok().copied();
    // Either way is enough: what is missing is worth knowing when the other one works.
    let verdict = |other_works: bool| {
        if other_works { Verdict::Info } else { Verdict::OneOf }
    };
    let mut findings =
        vec![of_device(&device, verdict(syscall.is_ok())), of_system_call(&syscall, verdict(device.is_ok()))];
    if let Some(features) = features {
        findings.extend([moves(features), poison(features)]);
    }
    findings
}

fn of_device(device: &Result<Features, UffdUnavailable>, verdict: Verdict) -> Finding {
    match device {
        Ok(_) => Finding::ok("userfaultfd device", "/dev/userfaultfd can be used"),
        Err(UffdUnavailable::NoPermission) => {
            Finding::new("userfaultfd device", verdict, "no permission for /dev/userfaultfd")
                .fix("sudo chmod 666 /dev/userfaultfd (in a container also --device /dev/userfaultfd)")
        }
        Err(error) => {
            let what = match error {
                UffdUnavailable::Io(error) => format!("/dev/userfaultfd: {}", reason(error)),
                other => other.to_string(),
            };
            Finding::new("userfaultfd device", verdict, what)
                .fix("docker run --device /dev/userfaultfd (Linux 6.1 and later)")
        }
    }
}

fn of_system_call(syscall: &Result<Features, UffdUnavailable>, verdict: Verdict) -> Finding {
    let sysctl = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    let sysctl = format!("vm.unprivileged_userfaultfd = {}", sysctl.trim());
    match syscall {
        Ok(_) => Finding::ok("userfaultfd(2)", sysctl),
        Err(UffdUnavailable::NoPermission) => {
            let what = format!("no permission for the system call, {sysctl}");
            let finding = Finding::new("userfaultfd(2)", verdict, what);
            match seccomp_mode() {
                Some(2) => finding.fix("docker run --security-opt seccomp=FILE with a profile that allows userfaultfd"),
                _ => finding.fix("sudo sysctl vm.unprivileged_userfaultfd=1"),
            }
        }
        Err(error) => Finding::new("userfaultfd(2)", verdict, error.to_string()),
    }
}

fn moves(features: Features) -> Finding {
    let lacking = userfaultfd::NEEDED.without(features);
    if !lacking.is_empty() {
        return Finding::new("UFFDIO_MOVE", Verdict::Missing, format!("the kernel lacks {lacking}"))
            .fix("boot Linux 6.8 or later");
    }
    match move_a_page() {
        Ok(()) => Finding::ok("UFFDIO_MOVE", "a page was moved, and was whole"),
        Err(why) => Finding::new("UFFDIO_MOVE", Verdict::Missing, why).fix("boot Linux 6.8 or later"),
    }
}

fn poison(features: Features) -> Finding {
    if features.contains(Features::POISON) {
        return Finding::ok("UFFDIO_POISON", "lost pages can be marked");
    }
    Finding::new("UFFDIO_POISON", Verdict::Warning, "lost pages end the program instead of raising SIGBUS")
        .fix("boot Linux 6.6 or later")
}

/// Moves one page, as the agent does with thousands.
fn move_a_page() -> Result<(), String> {
    let failed = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    let device = userfaultfd::open_device().ok();
    // Without events: nobody would read them, and the end of the buffers would wait for that.
    let uffd = Uffd::new(device.as_ref().map(|d| d.as_fd()), Features::MOVE)
        .or_else(|_| Uffd::new(None, Features::MOVE))
        .map_err(|error| failed("userfaultfd", &error))?;
    let buffer = |_| AlignedBuffer::new(uswap_sys::PAGE_SIZE).map_err(|error| failed("mmap", &error));
    let (mut from, mut to) = (buffer(())?, buffer(())?);
    from.fill(0xa5);
    let (from_addr, to_addr) = (from.as_mut_ptr().addr(), to.as_mut_ptr().addr());
    uffd.register(to_addr, uswap_sys::PAGE_SIZE).map_err(|error| failed("register", &error))?;
    let progress = uffd.move_pages(to_addr, from_addr, uswap_sys::PAGE_SIZE, Holes::Refuse, Wake::DontWake);
    // Nobody serves faults here, so the target may be looked at only when it is there.
    match progress.stop {
        None if to.iter().all(|byte| *byte == 0xa5) => Ok(()),
        None => Err("a moved page had other content".to_owned()),
        Some(stop) => Err(format!("a page could not be moved: {stop:?}")),
    }
}

// Other things of the kernel.

fn proc() -> Finding {
    match uswap_sys::proc::open_root() {
        Ok(_) => Finding::ok("/proc", "it is there, and of this pid namespace"),
        Err(error) => Finding::new("/proc", Verdict::Missing, reason(&error)),
    }
}

fn pagemap_scan() -> Finding {
    let scan = || {
        let mut buffer = AlignedBuffer::new(uswap_sys::PAGE_SIZE)?;
        buffer.fill(1);
        let start = buffer.as_mut_ptr().addr();
        let mut ranges = [Default::default(); 4];
        let (found, _) = PageMap::open_self()?.populated(start, start + uswap_sys::PAGE_SIZE, &mut ranges)?;
        Ok::<_, std::io::Error>(found)
    };
    match scan() {
        Ok(1..) => Finding::ok("PAGEMAP_SCAN", "a populated page was found"),
        Ok(0) => Finding::new("PAGEMAP_SCAN", Verdict::Missing, "a populated page was not found")
            .fix("boot Linux 6.7 or later"),
        Err(error) => Finding::new("PAGEMAP_SCAN", Verdict::Missing, reason(&error)).fix("boot Linux 6.7 or later"),
    }
}

fn io_uring() -> Finding {
    match Ring::new(8) {
        Ok(_) => Finding::ok("io_uring", "a ring was set up"),
        Err(error) => {
            let finding = Finding::new("io_uring", Verdict::Warning, format!("{}: I/O is slower", reason(&error)));
            let sysctl = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
            match sysctl.trim() {
                "" | "0" => finding.fix("docker run --security-opt seccomp=FILE with a profile that allows io_uring_*"),
                _ => finding.fix("sudo sysctl kernel.io_uring_disabled=0"),
            }
        }
    }
}

/// Preloads the agent into a program, from a memory file as `uswap run` does. Without a supervisor to talk to it
/// does nothing.
fn preload() -> Finding {
    let name = "preloading";
    let fix = "sudo sysctl vm.memfd_noexec=0";
    let library = match agent::library(Compressor::Lz4) {
        Ok(library) => library,
        Err(error) => {
            return Finding::new(name, Verdict::Missing, format!("memory file: {}", reason(&error))).fix(fix);
        }
    };
    let path = format!("/proc/{}/fd/{}", std::process::id(), library.as_raw_fd());
    let output = Command::new("/bin/sh")
        .args(["-c", "exit 42"])
        .env_clear()
        .env("LD_PRELOAD", path)
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) if output.status.code() == Some(42) && output.stderr.is_empty() => {
            Finding::ok(name, "a program started with the agent in it")
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().next().unwrap_or("the program did not start");
            Finding::new(name, Verdict::Missing, said.to_owned()).fix(fix)
        }
        Err(error) => Finding::new(name, Verdict::Warning, format!("not tested: /bin/sh: {}", reason(&error))),
    }
}

// Swap files.

fn swap_directory() -> Vec<Finding> {
    let (directory, in_ram) = swap_area::temporary_directory();
    let shown = directory.display();
    let mut findings = Vec::new();
    let choose = "export USWAP_SWAP_DIR=DIRECTORY (on a local disk)";
    let (file, has_tmpfile) = match swap_area::open_unnamed(&directory, OFlags::empty()) {
        Ok(opened) => opened,
        Err(error) => {
            return vec![
                Finding::new("swap directory", Verdict::Missing, format!("'{shown}': {}", reason(&error))).fix(choose),
            ];
        }
    };
    let free = rustix::fs::fstatvfs(&file).map(|fs| fs.f_bavail * fs.f_frsize).unwrap_or(0);
    let detail = format!("'{shown}' has {} free", size::measured(free));
    findings.push(if in_ram {
        Finding::new("swap directory", Verdict::Warning, format!("{detail}, but is in RAM")).fix(choose)
    } else {
        Finding::ok("swap directory", detail)
    });
    findings.push(if has_tmpfile {
        Finding::ok("O_TMPFILE", "swap files never have a name")
    } else {
        Finding::new("O_TMPFILE", Verdict::Warning, "the file system lacks it: swap files have a name for a moment")
            .fix(choose)
    });
    let direct = swap_area::open_unnamed(&directory, OFlags::DIRECT)
        .is_ok_and(|(fd, _)| rustix::fs::ftruncate(&fd, 1 << 20).is_ok() && swap_area::direct_io_works(&fd));
    findings.push(if direct {
        Finding::ok("O_DIRECT", "swap files bypass the page cache")
    } else {
        Finding::new("O_DIRECT", Verdict::Warning, "the file system lacks it: swapped pages fill the page cache, too")
            .fix(choose)
    });
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punches =
        rustix::fs::ftruncate(&file, 1 << 20).and_then(|()| rustix::fs::fallocate(&file, punch, 4096, 4096)).is_ok();
    findings.push(if punches {
        Finding::ok("hole punching", "freed swap space goes back to the file system")
    } else {
        Finding::new("hole punching", Verdict::Warning, "swap files never shrink").fix(choose)
    });
    findings
}

// Kernel swap

/// For how long moves are tried beside kernel swap.
const TRIED_FOR: Duration = Duration::from_millis(300);

fn kernel_swap() -> Finding {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let areas: Vec<&str> = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    if areas.is_empty() {
        return Finding::ok("kernel swap", "off");
    }
    let device = userfaultfd::open_device().ok();
    let tried = swapped_moves::try_for(device.as_ref().map(AsFd::as_fd), TRIED_FOR);
    judge_kernel_swap(&areas.join(", "), tried)
}

fn judge_kernel_swap(areas: &str, tried: Result<Tried, UffdUnavailable>) -> Finding {
    let name = "kernel swap";
    match tried {
        Ok(Tried { wrong: 0, swapped: 0, .. }) => {
            Finding::new(name, Verdict::Info, format!("on ({areas}), but does not take pages of this process"))
        }
        Ok(Tried { wrong: 0, moved, swapped, uncounted }) => {
            let detail = format!("on ({areas}): {moved} pages were moved, {swapped} of them swapped out, all right");
            Finding::ok(name, if uncounted > 0 { format!("{detail}; {uncounted} not counted") } else { detail })
        }
        Ok(Tried { wrong, .. }) => {
            let detail = format!("on ({areas}), and {wrong} moved pages were wrong: this kernel loses pages then");
            Finding::new(name, Verdict::Warning, detail).fix("sudo swapoff -a, or boot Linux 6.16 or later")
        }
        Err(error) => Finding::new(name, Verdict::Warning, format!("on ({areas}), and not tried: {error}"))
            .fix("what is missing above; or sudo swapoff -a"),
    }
}

// Limits

fn seccomp_mode() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("Seccomp:"))?.trim().parse().ok()
}

fn seccomp() -> Finding {
    let detail = match seccomp_mode() {
        Some(0) => "no filter",
        Some(1) => "strict mode",
        Some(2) => "a filter is on; what it refuses shows above",
        _ => "unknown",
    };
    Finding::new("seccomp", Verdict::Info, detail)
}

fn limits() -> Vec<Finding> {
    let mut findings = Vec::new();
    // Registration splits mappings; the agent stays under a quarter of what a process may have.
    const MAP_COUNT_MIN: u64 = 65530;
    let count = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    findings.push(match count.trim().parse::<u64>().ok() {
        Some(count) if count < MAP_COUNT_MIN => {
            Finding::new("vm.max_map_count", Verdict::Warning, format!("{count}: programs with many mappings may fail"))
                .fix(format!("sudo sysctl vm.max_map_count={MAP_COUNT_MIN}"))
        }
        Some(count) => Finding::ok("vm.max_map_count", count.to_string()),
        None => Finding::new("vm.max_map_count", Verdict::Info, "unknown"),
    });
    // The supervisor needs about four for each process, and some for itself.
    const FILES_MIN: u64 = 4096;
    const FILES_TO_START: u64 = 20;
    let files = rustix::process::getrlimit(Resource::Nofile).maximum;
    findings.push(match files {
        Some(files) if files < FILES_TO_START => {
            Finding::new("open files", Verdict::Missing, format!("hard limit {files}: uswap run cannot start"))
                .fix(format!("ulimit -H -n {FILES_MIN} (docker run --ulimit nofile={FILES_MIN})"))
        }
        Some(files) if files < FILES_MIN => Finding::new(
            "open files",
            Verdict::Warning,
            format!("hard limit {files}: enough for about {} processes in a tree", files / 4),
        )
        .fix(format!("ulimit -H -n {FILES_MIN} (docker run --ulimit nofile={FILES_MIN})")),
        Some(files) => Finding::ok("open files", format!("hard limit {files}")),
        None => Finding::ok("open files", "no limit"),
    });
    if let Some(bytes) = rustix::process::getrlimit(Resource::Fsize).current {
        findings.push(
            Finding::new(
                "size of files",
                Verdict::Warning,
                format!("limited to {}: no swap file may be larger", size::chosen(bytes)),
            )
            .fix("ulimit -f unlimited, or uswap run --swap file:PATH,size=SIZE"),
        );
    }
    if let Some(bytes) = rustix::process::getrlimit(Resource::As).current {
        findings.push(
            Finding::new(
                "address space",
                Verdict::Warning,
                format!("limited to {}: uswap needs some beside the program", size::chosen(bytes)),
            )
            .fix("ulimit -v unlimited"),
        );
    }
    findings
}

fn memory() -> Finding {
    match memory_limit::find() {
        None => Finding::new("memory", Verdict::Warning, "cannot be found out").fix("uswap run --memory SIZE"),
        Some(limit) => {
            let whose = match &limit.source {
                Source::Machine => "the machine".to_owned(),
                Source::Cgroup(file) => format!("cgroup '{}'", file.parent().unwrap_or(Path::new("/")).display()),
            };
            let half = size::measured(limit.bytes / 2);
            let detail = format!("{whose} has {}; uswap run uses {half} unless told", size::measured(limit.bytes));
            match limit.bytes / 2 < MEMORY_BYTES_MIN {
                true => Finding::new("memory", Verdict::Warning, detail).fix("uswap run --memory SIZE"),
                false => Finding::new("memory", Verdict::Info, detail),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_swap_is_judged_by_what_was_seen() {
        let tried = Tried { moved: 320, swapped: 40, uncounted: 0, wrong: 0 };
        let judge = |tried| judge_kernel_swap("/dev/zram0", Ok(tried));
        let finding = judge(tried);
        assert_eq!(finding.verdict, Verdict::Ok);
        assert_eq!(finding.detail, "on (/dev/zram0): 320 pages were moved, 40 of them swapped out, all right");
        assert_eq!(judge(Tried { uncounted: 2, ..tried }).verdict, Verdict::Ok);
        assert_eq!(judge(Tried { swapped: 0, ..tried }).verdict, Verdict::Info);
        assert_eq!(judge(Tried { wrong: 1, ..tried }).verdict, Verdict::Warning);
        assert_eq!(judge_kernel_swap("/swap", Err(UffdUnavailable::NoPermission)).verdict, Verdict::Warning);
    }

    #[test]
    fn every_missing_thing_has_a_fix() {
        for finding in examine() {
            let bad = matches!(finding.verdict, Verdict::Missing | Verdict::OneOf | Verdict::Warning);
            assert!(!bad || finding.fix.is_some() || finding.name == "preloading", "{finding:?}");
        }
    }
}
