//! What undoes each step that changed the machine, also after a `kill -9`.
//!
//! Every step is noted in [`TakeDown`] together with its opposite; the opposites run in reverse order when it is dropped, so
//! an error or an interrupt leaves nothing behind. They are also kept in a journal file, from which the next `uswap bench`
//! takes down what a dead one left.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal};

use super::{Unavailable, ZRAM_CONTROL, is_swapped_to, unavailable};

/// Where the steps to be undone are kept. One bench at a time holds its lock.
const JOURNAL: &str = "/run/uswap-bench.journal";
/// First word of the journal; the boot's id follows.
const JOURNAL_MAGIC: &str = "uswap-bench-1";
/// How long a device or cgroup may stay busy after its last user is gone.
const BUSY_RETRY: Duration = Duration::from_secs(5);

/// The opposite of one step that changed the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undo {
    /// Turn swapping to this file or device off.
    Swapoff(PathBuf),
    /// Empty this zram device and remove it.
    RemoveZram(u32),
    /// Remove this cgroup.
    RemoveCgroup(PathBuf),
    /// Write this value back to this file of sysfs or a cgroup.
    Restore { path: PathBuf, value: String },
    /// Delete this file.
    RemoveFile(PathBuf),
    /// Unload this kernel module.
    UnloadModule(String),
}

impl Undo {
    /// Does it. What is gone already counts as done.
    fn apply(&self) -> io::Result<()> {
        match self {
            Undo::Swapoff(path) => {
                if is_swapped_to(&fs::read_to_string("/proc/swaps")?, path) {
                    command(Command::new("swapoff").arg(path))?;
                }
                Ok(())
            }
            Undo::RemoveZram(index) => {
                if !Path::new(&format!("/sys/block/zram{index}")).exists() {
                    return Ok(());
                }
                while_busy(|| fs::write(format!("/sys/block/zram{index}/reset"), "1"))?;
                while_busy(|| fs::write(format!("{ZRAM_CONTROL}/hot_remove"), index.to_string()))
            }
            Undo::RemoveCgroup(path) => while_busy(|| {
                // Nobody but a program under test whose bench was killed can be in there.
                kill_all(&fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default());
                gone_is_fine(fs::remove_dir(path))
            }),
            Undo::Restore { path, value } => fs::write(path, value),
            Undo::RemoveFile(path) => gone_is_fine(fs::remove_file(path)),
            Undo::UnloadModule(name) => while_busy(|| command(Command::new("rmmod").arg(name))),
        }
    }

    /// Its line in the journal: words without blanks, so a path with blanks survives.
    fn to_line(&self) -> String {
        match self {
            Undo::Swapoff(path) => format!("swapoff {}", escape(path)),
            Undo::RemoveZram(index) => format!("remove-zram {index}"),
            Undo::RemoveCgroup(path) => format!("remove-cgroup {}", escape(path)),
            Undo::Restore { path, value } => {
                format!("restore {} {}", escape(path), escape(Path::new(value)))
            }
            Undo::RemoveFile(path) => format!("remove-file {}", escape(path)),
            Undo::UnloadModule(name) => format!("unload-module {}", escape(Path::new(name))),
        }
    }

    /// What a line of the journal means; `None` for a line that was cut short or is not ours.
    fn parse(line: &str) -> Option<Undo> {
        let mut words = line.split(' ');
        let (verb, first, second) = (words.next()?, words.next()?, words.next());
        if words.next().is_some() || (second.is_some() && verb != "restore") {
            return None;
        }
        Some(match verb {
            "swapoff" => Undo::Swapoff(unescape(first)?),
            "remove-zram" => Undo::RemoveZram(first.parse().ok()?),
            "remove-cgroup" => Undo::RemoveCgroup(unescape(first)?),
            "restore" => {
                Undo::Restore { path: unescape(first)?, value: unescape(second?)?.into_os_string().into_string().ok()? }
            }
            "remove-file" => Undo::RemoveFile(unescape(first)?),
            "unload-module" => Undo::UnloadModule(unescape(first)?.into_os_string().into_string().ok()?),
            _ => return None,
        })
    }
}

impl fmt::Display for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Undo::Swapoff(path) => write!(f, "turn off swap on '{}'", path.display()),
            Undo::RemoveZram(index) => write!(f, "remove /dev/zram{index}"),
            Undo::RemoveCgroup(path) => write!(f, "remove cgroup '{}'", path.display()),
            Undo::Restore { path, value } => {
                write!(f, "write '{value}' back to '{}'", path.display())
            }
            Undo::RemoveFile(path) => write!(f, "delete '{}'", path.display()),
            Undo::UnloadModule(name) => write!(f, "unload module {name}"),
        }
    }
}

/// Percent-escapes what is not a visible ASCII character.
fn escape(path: &Path) -> String {
    let mut text = String::new();
    for &byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02x}"));
        }
    }
    text
}

fn unescape(text: &str) -> Option<PathBuf> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(byte);
            rest = after;
        }
    }
    Some(PathBuf::from(std::ffi::OsString::from_vec(bytes)))
}

/// The lines of a journal of this boot, oldest first. Lines of another boot mean nothing any more, but
/// for files, which outlive it.
fn parse_journal(text: &str, boot_id: &str) -> Vec<Undo> {
    let mut lines = text.lines();
    let same_boot = match lines.next().and_then(|header| header.split_once(' ')) {
        Some((JOURNAL_MAGIC, id)) => id == boot_id,
        _ => return Vec::new(),
    };
    lines.filter_map(Undo::parse).filter(|undo| same_boot || matches!(undo, Undo::RemoveFile(_))).collect()
}

/// The journal file, locked by this process.
pub struct Journal {
    file: File,
    boot_id: String,
    /// To be undone, the newest last.
    pending: Vec<Undo>,
    /// Could not be undone; the next bench tries again.
    failed: Vec<Undo>,
}

impl Journal {
    /// Locks the journal and takes down what a bench that was killed has left.
    pub fn open() -> Result<Journal, Unavailable> {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(JOURNAL)
            .map_err(|error| unavailable(format!("cannot open '{JOURNAL}'"), error))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| Unavailable("another uswap bench is running".to_owned()))?;
        let mut text = String::new();
        (&file).read_to_string(&mut text).map_err(|error| unavailable(format!("cannot read '{JOURNAL}'"), error))?;
        let mut journal = Journal { file, boot_id, pending: Vec::new(), failed: Vec::new() };
        journal.pending = parse_journal(&text, &journal.boot_id);
        for undo in journal.pending.iter().rev() {
            eprintln!("uswap: bench: left by an earlier run: {undo}");
        }
        journal.undo_down_to(0);
        Ok(journal)
    }

    pub fn push(&mut self, undo: Undo) {
        self.pending.push(undo);
        self.save();
    }

    /// Undoes the newest steps until `keep` are left. What fails is said and kept for the next bench; a
    /// later step backwards may still succeed.
    fn undo_down_to(&mut self, keep: usize) {
        while self.pending.len() > keep {
            let Some(undo) = self.pending.last() else {
                break;
            };
            let outcome = undo.apply();
            if let Err(error) = &outcome {
                eprintln!("uswap: bench: could not {undo}: {error}");
            }
            // Out of the journal only now: killed before, the next bench does it again.
            if let (Some(undo), Err(_)) = (self.pending.pop(), outcome) {
                self.failed.insert(0, undo);
            }
            self.save();
        }
    }

    /// Rewrites the file; a write that fails costs only the protection against `kill -9`.
    fn save(&mut self) {
        let mut text = String::new();
        if !self.pending.is_empty() || !self.failed.is_empty() {
            text = format!("{JOURNAL_MAGIC} {}\n", self.boot_id);
            for undo in self.failed.iter().chain(&self.pending) {
                text.push_str(&undo.to_line());
                text.push('\n');
            }
        }
        let _ =
            self.file.rewind().and_then(|()| self.file.set_len(0)).and_then(|()| self.file.write_all(text.as_bytes()));
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.undo_down_to(0);
        // The file itself stays, empty: deleting it would race with the next bench's lock.
    }
}

/// Steps that end with this value, in reverse order of their beginning.
pub struct TakeDown<'a> {
    journal: &'a mut Journal,
    outer_steps: usize,
}

impl<'a> TakeDown<'a> {
    /// No steps so far.
    pub fn new(journal: &'a mut Journal) -> TakeDown<'a> {
        let outer_steps = journal.pending.len();
        TakeDown { journal, outer_steps }
    }

    pub fn push(&mut self, undo: Undo) {
        self.journal.push(undo);
    }

    /// Writes `value` to `path` until the take-down, unless it is there already.
    pub fn set(&mut self, path: &Path, value: &str) -> io::Result<()> {
        let old = fs::read_to_string(path)?.trim().to_owned();
        if old == value {
            return Ok(());
        }
        self.push(Undo::Restore { path: path.to_owned(), value: old });
        fs::write(path, value)
    }
}

impl Drop for TakeDown<'_> {
    fn drop(&mut self) {
        self.journal.undo_down_to(self.outer_steps);
    }
}

/// Runs a small command, out of reach of the terminal's Ctrl-C, so that a take-down runs to its end.
pub fn command(command: &mut Command) -> io::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.process_group(0).stdin(Stdio::null()).output().map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound { io::Error::other(format!("no command '{name}'")) } else { error }
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty());
    // "swapon: /a/file: swapon failed: Invalid argument": who and where is said by the caller.
    let reason = last.and_then(|line| line.rsplit(": ").next());
    Err(io::Error::other(reason.unwrap_or("it failed without a word").trim().to_owned()))
}

/// Kills the processes listed, one per line.
fn kill_all(pids: &str) {
    let pids = pids.lines().filter_map(|line| line.trim().parse().ok()).filter_map(Pid::from_raw);
    for pid in pids {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// Tries again while the kernel says EBUSY, for a while.
fn while_busy(mut action: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match action() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && start.elapsed() < BUSY_RETRY => {
                std::thread::sleep(Duration::from_millis(20));
            }
            outcome => return outcome,
        }
    }
}

fn gone_is_fine(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn every_undo() -> Vec<Undo> {
        vec![
            Undo::RemoveFile("/var/tmp/with blank, 100% and \n newline".into()),
            Undo::UnloadModule("zram".to_owned()),
            Undo::RemoveZram(3),
            Undo::Restore { path: "/sys/module/zswap/parameters/enabled".into(), value: "N".to_owned() },
            Undo::Swapoff("/dev/zram3".into()),
            Undo::RemoveCgroup("/sys/fs/cgroup/memory/uswap-bench-1".into()),
            Undo::RemoveFile(PathBuf::from(OsStr::from_bytes(b"/tmp/not-\xff-utf8"))),
        ]
    }

    fn journal_text(boot_id: &str) -> String {
        let lines: Vec<String> = every_undo().iter().map(Undo::to_line).collect();
        format!("{JOURNAL_MAGIC} {boot_id}\n{}\n", lines.join("\n"))
    }

    #[test]
    fn a_journal_reads_back_as_it_was_written() {
        assert_eq!(parse_journal(&journal_text("abc"), "abc"), every_undo());
    }

    #[test]
    fn only_files_outlive_a_reboot() {
        let left = parse_journal(&journal_text("abc"), "def");
        assert_eq!(left.len(), 2);
        assert!(left.iter().all(|undo| matches!(undo, Undo::RemoveFile(_))));
    }

    #[test]
    fn a_foreign_or_damaged_journal_does_nothing() {
        assert_eq!(parse_journal("", "abc"), []);
        assert_eq!(parse_journal("remove-file /etc/passwd\n", "abc"), []);
        let damaged =
            format!("{JOURNAL_MAGIC} abc\nremove-zram x\nrestore /sys/x\nremove-file %4\nswapoff /a b\nformat /\n");
        assert_eq!(parse_journal(&damaged, "abc"), []);
    }

    #[test]
    fn files_are_deleted_newest_first_and_missing_ones_do_not_matter() {
        let directory = std::env::temp_dir().join(format!("uswap-take-down-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let journal_path = directory.join("journal");
        let mut journal = Journal {
            file: OpenOptions::new().read(true).write(true).create_new(true).open(&journal_path).unwrap(),
            boot_id: "abc".to_owned(),
            pending: Vec::new(),
            failed: Vec::new(),
        };
        let (kept, inner, knob) = (directory.join("kept"), directory.join("inner"), directory.join("knob"));
        for path in [&kept, &inner] {
            fs::write(path, "x").unwrap();
        }
        fs::write(&knob, "old\n").unwrap();
        journal.push(Undo::RemoveFile(kept.clone()));
        {
            let mut down = TakeDown::new(&mut journal);
            down.push(Undo::RemoveFile(inner.clone()));
            down.push(Undo::RemoveFile(directory.join("never-made")));
            down.set(&knob, "new").unwrap();
            assert_eq!(fs::read_to_string(&knob).unwrap(), "new");
            assert_eq!(parse_journal(&fs::read_to_string(&journal_path).unwrap(), "abc").len(), 4);
        }
        assert!(kept.exists() && !inner.exists());
        assert_eq!(fs::read_to_string(&knob).unwrap(), "old");
        drop(journal);
        assert!(!kept.exists());
        assert_eq!(fs::read_to_string(&journal_path).unwrap(), "");
        fs::remove_dir_all(&directory).unwrap();
    }
}
