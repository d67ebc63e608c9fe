//! Bad input: each is one line on standard error, and the exit status that says whose fault it is.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NOBODY: u32 = 65534;

fn uswap() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uswap"));
    command.stdin(Stdio::null()).env_remove("USWAP_SWAP_DIR");
    command
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// Runs it, and wants one line that has all of `parts`, and this exit status.
#[track_caller]
fn expect(command: &mut Command, status: i32, parts: &[&str]) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert_eq!(text.lines().count(), 1, "not one line: {text}");
    assert!(text.starts_with("uswap: ") && text.ends_with('\n'), "{text}");
    for part in parts {
        assert!(text.contains(part), "no '{part}' in: {text}");
    }
    assert!(output.stdout.is_empty());
}

#[track_caller]
fn expect_run(arguments: &[&str], status: i32, parts: &[&str]) {
    expect(uswap().arg("run").args(arguments), status, parts);
}

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("uswap-bad-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Directory(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A copy of a program, with this mode.
    fn copy(&self, of: impl AsRef<Path>, name: &str, mode: u32) -> PathBuf {
        let path = self.path(name);
        // By another process: a file that this one has open for writing while another test starts a program cannot be executed.
        assert!(Command::new("cp").arg(of.as_ref()).arg(&path).status().unwrap().success());
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn unknown_size_suffix() {
    expect_run(&["-m", "512Q", "--", "true"], 125, &["--memory", "unknown size suffix 'Q'"]);
    expect_run(&["--swap", "file:/x,size=1Z", "true"], 125, &["--swap", "'Z'"]);
}

#[test]
fn budget_below_the_minimum() {
    expect_run(&["-m", "1M", "--", "true"], 125, &["1 MiB", "minimum of 16 MiB"]);
}

#[test]
fn unknown_options_and_values() {
    expect_run(&["--fast", "--", "true"], 125, &["--fast"]);
    expect_run(&["--compressor", "rar", "true"], 125, &["rar"]);
    expect_run(&["--zpool-percent", "120", "true"], 125, &["120"]);
    expect_run(&["-q", "-v", "true"], 125, &["--quiet", "--verbose"]);
    expect_run(&["--fault-injection", "gremlins", "true"], 125, &["gremlins"]);
    expect(uswap().arg("walk"), 125, &["walk"]);
    expect(&mut uswap(), 125, &["uswap run"]);
}

#[test]
fn unwritable_swap_directory() {
    let set = |directory: &str| {
        let mut command = uswap();
        command.env("USWAP_SWAP_DIR", directory).args(["run", "-m", "32M", "true"]);
        command
    };
    expect(&mut set("/no/such/directory"), 125, &["/no/such/directory", "No such file"]);
    expect(&mut set("/proc"), 125, &["swap file in '/proc'"]);
}

/// The kernel would end uswap by SIGXFSZ.
#[test]
fn swap_file_larger_than_the_limit_on_files() {
    let run = |options: &str| {
        let mut shell = Command::new("/bin/sh");
        let script = format!("ulimit -f 4096 && exec '{}' run {options} true", env!("CARGO_BIN_EXE_uswap"));
        shell.args(["-c", &script]).stdin(Stdio::null()).env_remove("USWAP_SWAP_DIR");
        shell
    };
    expect(&mut run("-m 64M"), 125, &["ulimit -f", "4 GiB"]);
    let directory = Directory::new("limit");
    let file = directory.path("swap");
    expect(&mut run(&format!("-m 64M --swap file:{},size=64M", file.display())), 125, &["ulimit -f", "64 MiB"]);
}

#[test]
fn swap_file_that_cannot_be_used() {
    let directory = Directory::new("swap");
    let file = directory.path("swap");
    let spec = format!("file:{},size=4M", file.display());
    // In use, by another run.
    let holder = fs::File::create(&file).unwrap();
    holder.lock().unwrap();
    expect_run(&["--swap", &spec, "true"], 125, &[file.to_str().unwrap(), "in use"]);
    drop(holder);
    fs::write(&file, "a letter").unwrap();
    let overwrite = format!("--swap file:{},overwrite uses it all the same", file.display());
    expect_run(&["--swap", &spec, "true"], 125, &["not blank", "byte 0", &overwrite]);
    assert_eq!(fs::read(&file).unwrap(), b"a letter");
    expect_run(&["--swap", "zram:4G", "true"], 125, &["file:PATH"]);
    expect_run(&["--swap", "file:/no/such/place,size=4M", "true"], 125, &["/no/such/place"]);
}

/// What came before it in the command may have made a file, or found a blank one.
#[test]
fn a_refused_run_leaves_files_as_they_were() {
    let directory = Directory::new("refused");
    let (new, blank, other) = (directory.path("new"), directory.path("blank"), directory.path("other"));
    fs::File::create(&blank).unwrap().set_len(4 << 20).unwrap();
    fs::write(&other, "a letter").unwrap();
    let spec = |path: &Path| format!("file:{},size=4M", path.display());
    let areas = [spec(&new), spec(&blank), spec(&other)];
    expect_run(&["-q", "--swap", &areas[0], "--swap", &areas[1], "--swap", &areas[2], "true"], 125, &["not blank"]);
    expect_run(&["-q", "--swap", &areas[0], "--swap", &areas[0], "true"], 125, &["named twice"]);
    // Refused for another reason, and so late that the areas are there.
    let script = directory.path("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o644)).unwrap();
    expect_run(&["--swap", &areas[0], script.to_str().unwrap()], 126, &["not executable"]);
    assert!(!new.exists());
    let stats = directory.path("stats");
    expect_run(&["--stats", stats.to_str().unwrap(), "--swap", &spec(&other), "true"], 125, &["not blank"]);
    assert!(!stats.exists());
    assert_eq!(fs::metadata(&blank).unwrap().len(), 4 << 20);
    assert!(fs::read(&blank).unwrap().iter().all(|byte| *byte == 0), "the blank file was written to");
    assert_eq!(fs::read(&other).unwrap(), b"a letter");
}

#[test]
fn insecure_swap_file_is_one_warning_and_none_when_quiet() {
    let directory = Directory::new("insecure");
    let file = directory.path("swap");
    fs::File::create(&file).unwrap().set_len(4 << 20).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let run = |quiet: &[&str]| {
        let spec = format!("file:{}", file.display());
        let output = uswap().arg("run").args(quiet).args(["-m", "32M", "--swap", &spec, "true"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stderr).unwrap()
    };
    let warning = format!("uswap: warning: '{}': insecure permissions 0644, 0600 suggested\n", file.display());
    assert!(run(&[]).starts_with(&warning), "{}", run(&[]));
    assert!(!run(&["-q"]).contains("insecure"));
}

#[test]
fn budgets_beyond_the_machine() {
    expect_run(&["-m", "99T", "true"], 125, &["99 TiB", "maximum of 16 TiB"]);
    let output = uswap().args(["run", "-m", "16T", "true"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("warning: the budget of 16 TiB is more than the"), "{text}");
    assert_eq!(text.lines().count(), 2, "a warning and the summary: {text}");
}

/// Each of these says in one line what is wrong with it.
#[test]
fn many_bad_command_lines() {
    let size = "a size is a number and K, M, G or T";
    let swap = "a swap area is file:PATH[,size=SIZE][,prio=NUMBER][,overwrite]";
    let lines: [(&[&str], &str); 56] = [
        (&["run", "-m", "-5M", "true"], size),
        (&["run", "-m", "", "true"], size),
        (&["run", "-m", "M", "true"], size),
        (&["run", "-m", "NaN", "true"], size),
        (&["run", "-m", "-q", "true"], size),
        (&["run", "-m"], "value is required for '--memory"),
        (&["run", "-m", "1e9", "true"], "unknown size suffix 'e9'"),
        (&["run", "-m", "1,5G", "true"], "unknown size suffix ',5G'"),
        (&["run", "-m", "1.2.3G", "true"], "not a size"),
        (&["run", "-m", "0", "true"], "a size of zero"),
        (&["run", "-m", "99999999999999999999", "true"], "too large"),
        (&["run", "-m", "512", "true"], "512 B is below the minimum"),
        (&["run", "-m", "64M", "-m", "32M", "true"], "cannot be used multiple times"),
        (&["run", "-m64Q", "true"], "unknown size suffix 'Q'"),
        (&["run", "--memory=", "true"], "--memory"),
        (&["run", "--compressor", "zip", "true"], "(it is lz4, zstd or none)"),
        (&["run", "--compressor", "LZ4", "true"], "(it is lz4, zstd or none)"),
        (&["run", "--compressor", "", "true"], "--compressor"),
        (&["run", "--reclaim", "lru", "true"], "(it is lists, refault, s3fifo or lirs)"),
        (&["run", "--readahead", "on", "true"], "(it is stream, cluster, vma or off)"),
        (&["run", "--zpool-percent", "91", "true"], "91 is not in 0..=90"),
        (&["run", "--zpool-percent", "-1", "true"], "-1"),
        (&["run", "--zpool-percent", "x", "true"], "not a whole number"),
        (&["run", "--zpool-percent", "3.5", "true"], "not a whole number"),
        (&["run", "--swap", "", "true"], swap),
        (&["run", "--swap", "/tmp/x", "true"], swap),
        (&["run", "--swap", "zram", "true"], swap),
        (&["run", "--swap", "file:", "true"], "needs a path"),
        (&["run", "--swap", "file:,overwrite", "true"], "needs a path"),
        (&["run", "--swap", "file:/x,size=5Q", "true"], "unknown size suffix 'Q'"),
        (&["run", "--swap", "file:/x,size=", "true"], size),
        (&["run", "--swap", "file:/x,size=-1M", "true"], size),
        (&["run", "--swap", "file:/x,size=64M,,prio=3", "true"], "missing after a comma"),
        (&["run", "--swap", "file:/x,Size=3M", "true"], "unknown or repeated option 'Size'"),
        (&["run", "--swap", "file:/x,prio=x", "true"], "priority 'x'"),
        (&["run", "--swap", "file:/x,prio=40000", "true"], "priority '40000'"),
        (&["run", "--swap", "file:/dev/null,size=4M", "true"], "a character device"),
        (&["run", "--swap", "file:/tmp,size=4M", "true"], "a directory"),
        (&["run", "--swap", "file:/no/such/place", "true"], "give a size"),
        (&["run", "--swap", "file:/no/such/place,size=4M", "true"], "no directory '/no'"),
        (&["run", "--swap", "file:/proc/self/status,size=4M", "true"], "/proc/self/status"),
        (&["run", "--swap", "file:/tmp/x,size=99T", "true"], "less than 16 TiB"),
        (&["run", "--stats", "/tmp", "true"], "Is a directory"),
        (&["run", "--stats", "", "true"], "--stats"),
        (&["run", "--stat", "x", "true"], "did you mean '--stats'?"),
        (&["run", "-x", "true"], "'-x'"),
        (&["run", "-q", "-q", "true"], "cannot be used multiple times"),
        (&["runn", "true"], "did you mean 'run'?"),
        (&["set"], "--pid <PID>"),
        (&["set", "-p", "abc", "-m", "64M"], "not a whole number"),
        (&["set", "-p", "-1", "-m", "64M"], "-1"),
        (&["set", "-p", "0", "-m", "64M"], "no process 0"),
        (&["set", "-p", "1", "-m", "99T"], "maximum of 16 TiB"),
        (&["swapoff", "-p", "4000000"], "no process 4000000"),
        (&["swapoff", "-p", "1", "--all", "0"], "cannot be used with"),
        (&["doctor", "--jsn"], "did you mean '--json'?"),
    ];
    for (arguments, says) in lines {
        eprintln!("uswap {}", arguments.join(" "));
        expect(uswap().args(arguments), 125, &[says]);
    }
    expect(uswap().arg("sim"), 2, &["what shall 'sim' do?"]);
}

#[test]
fn unwritable_stats_file() {
    expect_run(&["--stats", "/no/such/place.json", "true"], 125, &["/no/such/place.json"]);
}

#[test]
fn missing_command() {
    expect_run(&["-m", "32M"], 125, &["no command"]);
    expect_run(&["-m", "32M", "--"], 125, &["no command"]);
    expect_run(&["--", "surely-no-such-command"], 127, &["not found", "surely-no-such-command"]);
    expect_run(&["/no/such/command"], 127, &["/no/such/command"]);
}

#[test]
fn bench_of_a_command() {
    let bench = |arguments: &[&str], parts: &[&str]| {
        let mut command = uswap();
        command.args(["bench", "--backends", "uswap-file"]).args(arguments);
        expect(&mut command, 125, parts);
    };
    bench(&["--", "true"], &["--memory is needed"]);
    bench(&["-m", "64M", "--"], &["no command"]);
    bench(&["-m", "64M", "true"], &["unexpected argument 'true'"]);
    bench(&["-m", "1M", "--", "true"], &["1 MiB", "minimum of 16 MiB"]);
    bench(&["-m", "64M", "--threads", "2", "--", "true"], &["--threads", "COMMAND"]);
    bench(&["-m", "64M", "--shared", "--", "true"], &["--shared", "COMMAND"]);
    bench(&["-m", "64M", "--size", "1G", "--", "true"], &["--size", "COMMAND"]);
    bench(&["-m", "64M", "--workloads", "fill", "--", "true"], &["--workloads", "COMMAND"]);
    bench(&["-m", "64M", "--swap-size", "100M"], &["--swap-size", "448 MiB"]);
    bench(&["-m", "64M", "--swap-size", "4K", "--", "true"], &["--swap-size", "1M"]);
    bench(&["-m", "64M", "--directory", "/no/such/place", "--", "true"], &["/no/such/place"]);
    bench(&["-m", "64M", "--", "surely-no-such-command"], &["surely-no-such-command"]);
    bench(&["-m", "64M", "--", "/bin/sh", "-c", "echo why >&2; kill -9 $$"], &["without a limit", "signal 9", "why"]);
    expect(uswap().args(["bench", "--backends", "ram", "-m", "64M", "--", "true"]), 125, &["other back ends than ram"]);
}

#[test]
fn command_that_is_not_executable() {
    let directory = Directory::new("noexec");
    let plain = directory.copy("/bin/sh", "plain", 0o644);
    expect_run(&[plain.to_str().unwrap()], 126, &["plain", "not executable"]);
    expect_run(&["/tmp"], 126, &["/tmp", "directory"]);
    let script = directory.path("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    expect_run(&[script.to_str().unwrap()], 126, &["/no/such/interpreter"]);
}

#[test]
fn statically_linked_command() {
    let directory = Directory::new("static");
    // The smallest ELF header that says so: 64-bit x86-64, executable, no program headers.
    let mut elf = [0u8; 120];
    elf[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    elf[16..24].copy_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]);
    elf[32] = 64;
    elf[52..58].copy_from_slice(&[64, 0, 56, 0, 1, 0]);
    elf[64] = 1;
    let path = directory.path("static");
    fs::write(&path, elf).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    expect_run(&[path.to_str().unwrap()], 125, &[path.to_str().unwrap(), "statically linked"]);
    // By way of a script, too.
    let script = directory.path("script");
    fs::write(&script, format!("#!{}\n", path.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    expect_run(&[script.to_str().unwrap()], 125, &["statically linked"]);
}

#[test]
fn setuid_command() {
    if !is_root() {
        eprintln!("skipped: only root can make a file that is setuid for somebody else");
        return;
    }
    let directory = Directory::new("setuid");
    for (mode, name) in [(0o4755, "setuid"), (0o2755, "setgid")] {
        let path = directory.copy("/bin/true", name, 0o755);
        std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        expect_run(&[path.to_str().unwrap()], 125, &[path.to_str().unwrap(), name]);
    }
    // For its own user it is a program like any other.
    let path = directory.copy("/bin/true", "own", 0o4755);
    let output = uswap().args(["run", "-q", "-m", "32M"]).arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn no_permission_for_userfaultfd() {
    let sysctl = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    let open_to_all = fs::metadata("/dev/userfaultfd").is_ok_and(|m| m.mode() & 0o006 != 0);
    if !is_root() || sysctl.trim() != "0" || open_to_all {
        eprintln!("skipped: needs root, to be somebody who may not use userfaultfd");
        return;
    }
    let directory = Directory::new("nobody");
    let copy = directory.copy(env!("CARGO_BIN_EXE_uswap"), "uswap", 0o755);
    let mut command = Command::new(copy);
    command.args(["run", "-m", "32M", "true"]).stdin(Stdio::null()).uid(NOBODY).gid(NOBODY);
    expect(&mut command, 125, &["no permission", "/dev/userfaultfd", "vm.unprivileged_userfaultfd=1", "--device"]);
}

/// What cannot be printed is one line, and no panic.
#[test]
fn standard_output_that_takes_nothing() {
    for word in ["doctor", "--help"] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = uswap().arg(word).stdout(full).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(text, "uswap: cannot write the result: No space left on device\n", "{word}");
        assert_eq!(output.status.code(), Some(125), "{word}");
    }
}

/// With /proc of another pid namespace everything that uswap asks it would be about somebody else.
#[test]
fn proc_of_another_pid_namespace() {
    if !is_root() {
        return eprintln!("skipped: only root makes a pid namespace");
    }
    let binary = env!("CARGO_BIN_EXE_uswap");
    let in_namespace = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", binary]).args(words).stdin(Stdio::null());
        command
    };
    expect(&mut in_namespace(&["run", "-m", "64M", "--", "true"]), 125, &["/proc", "mount -t proc"]);
    let output = in_namespace(&["doctor"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("mount -t proc") && text.ends_with("uswap run cannot work here\n"), "{text}");
}
