//! What `uswap run` owes to the program and to whoever started it: the status, the signals, the descriptors and
//! the environment are as they would be without it.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Whether this machine can run anything under uswap; `doctor` knows.
fn can_run() -> bool {
    let output = Command::new(env!("CARGO_BIN_EXE_uswap")).arg("doctor").output().unwrap();
    if !output.status.success() {
        eprintln!("skipped: {}", String::from_utf8_lossy(&output.stdout));
    }
    output.status.success()
}

fn uswap(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uswap"));
    command.args(["run", "-m", "64M"]).args(arguments).stdin(Stdio::null());
    command
}

fn shell(script: &str) -> Output {
    uswap(&["-q", "--", "sh", "-c", script]).output().unwrap()
}

/// A path of this process's own, of which nothing is left when the test is over, however it ends.
struct Temporary(PathBuf);

fn temporary(name: &str) -> Temporary {
    let path = Temporary(std::env::temp_dir().join(format!("uswap-run-{name}-{}", std::process::id())));
    path.remove();
    path
}

impl Temporary {
    fn remove(&self) {
        let _ = fs::remove_file(&self.0).or_else(|_| fs::remove_dir_all(&self.0));
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        self.remove();
    }
}

impl Deref for Temporary {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Temporary {
    fn as_ref(&self) -> &Path {
        self
    }
}

impl AsRef<OsStr> for Temporary {
    fn as_ref(&self) -> &OsStr {
        self.0.as_os_str()
    }
}

/// Waits for a process to end, and fails the test when it hangs.
fn end_of(child: &mut Child) -> std::process::ExitStatus {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("it hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn line_from(child: &mut Child) -> String {
    let mut line = Vec::new();
    let stdout = child.stdout.as_mut().unwrap();
    let mut byte = [0];
    while stdout.read(&mut byte).unwrap() == 1 && byte[0] != b'\n' {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

#[test]
fn the_exit_status_passes_through() {
    if !can_run() {
        return;
    }
    for status in [0, 1, 7, 125, 255] {
        assert_eq!(shell(&format!("exit {status}")).status.code(), Some(status));
    }
    assert_eq!(shell("kill -TERM $$").status.signal(), Some(15));
    let by_segv = shell("kill -SEGV $$").status;
    assert_eq!((by_segv.signal(), by_segv.core_dumped()), (Some(11), false));
}

#[test]
fn the_summary_is_one_line_unless_quiet() {
    if !can_run() {
        return;
    }
    let output = uswap(&["--", "echo", "hello"]).output().unwrap();
    assert_eq!(output.stdout, b"hello\n");
    let summary = String::from_utf8(output.stderr).unwrap();
    assert!(summary.starts_with("uswap: ") && summary.lines().count() == 1, "{summary}");
    assert!(summary.contains("64 MiB"), "{summary}");
    assert!(shell("true").stderr.is_empty());
}

#[test]
fn signals_are_forwarded_once() {
    if !can_run() {
        return;
    }
    let script = "trap 'echo usr1' USR1; trap 'echo term; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = uswap(&["-q", "--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(line_from(&mut child), "ready");
    let send = |signal: &str| {
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    };
    send("-USR1");
    std::thread::sleep(Duration::from_millis(300));
    send("-TERM");
    assert_eq!(end_of(&mut child).code(), Some(9));
    let mut said = String::new();
    child.stdout.unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "usr1\nterm\n");
}

#[test]
fn the_program_sees_the_same_descriptors_and_signals() {
    if !can_run() {
        return;
    }
    // The mask and the ignored signals, and the descriptors; ls itself opens the directory as the next one.
    let script = "grep -E '^Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd; ulimit -n; ulimit -Hn";
    for before in ["", "trap '' HUP PIPE CHLD XFSZ; ", "exec 0<&-; ", "exec 7</dev/null; "] {
        let uswap = env!("CARGO_BIN_EXE_uswap");
        let quoted = script.replace('\'', "'\\''");
        let run = |command: String| Command::new("sh").args(["-c", &command]).output().unwrap();
        let with = run(format!("{before}{uswap} run -q -m 64M -- sh -c '{quoted}'"));
        let without = run(format!("{before}sh -c '{quoted}'"));
        let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text(&with), text(&without), "after '{before}': {}", String::from_utf8_lossy(&with.stderr));
    }
}

#[test]
fn pipes_end_when_the_program_closes_them() {
    if !can_run() {
        return;
    }
    let script = "echo first; exec >&-; sleep 5";
    let mut child = uswap(&["-q", "--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "first\n");
    assert!(started.elapsed() < Duration::from_secs(4), "uswap held the pipe open");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_tree_dies_with_its_supervisor() {
    if !can_run() {
        return;
    }
    // A moment for the second program to get its agent.
    let script = "sleep 60 & sleep 0.5; echo $$ $!; wait";
    let mut child = uswap(&["-q", "--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let pids = line_from(&mut child);
    child.kill().unwrap();
    child.wait().unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    for pid in pids.split(' ') {
        let lives = || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            !stat.is_empty() && !stat.contains(") Z ")
        };
        while lives() {
            assert!(Instant::now() < until, "{pid} still lives");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_daemon_outlives_the_run_and_is_still_served() {
    if !can_run() {
        return;
    }
    let mark = temporary("daemon");
    // The daemon starts programs after `uswap run` has ended: they must get their agent.
    let script = format!(
        "(exec </dev/null >/dev/null 2>&1; sleep 1; sh -c 'echo $LD_PRELOAD; grep -c uswap-agent /proc/self/maps' \
         > {0}.new 2>&1; mv {0}.new {0}) & exit 4",
        mark.display()
    );
    let started = Instant::now();
    let mut child = uswap(&["--", "sh", "-c", &script]).stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(end_of(&mut child).code(), Some(4));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(started.elapsed() < Duration::from_millis(900), "standard error was held open");
    assert_eq!(said.lines().count(), 1, "{said}");
    let until = Instant::now() + Duration::from_secs(10);
    while !mark.exists() {
        assert!(Instant::now() < until, "the daemon did not live");
        std::thread::sleep(Duration::from_millis(20));
    }
    let said = fs::read_to_string(&mark).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("/proc/") && lines[1] != "0", "{said}");
}

#[test]
fn a_nested_run_has_a_group_of_its_own() {
    if !can_run() {
        return;
    }
    let inner = format!("{} run -m 32M -- sh -c 'echo $LD_PRELOAD; exit 6'", env!("CARGO_BIN_EXE_uswap"));
    let output = shell(&inner);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(said.contains("32 MiB"), "{said}");
    let preloaded = String::from_utf8(output.stdout).unwrap();
    assert_eq!(preloaded.matches("/proc/").count(), 1, "{preloaded}");
}

#[test]
fn statistics_have_the_keys_that_stay() {
    if !can_run() {
        return;
    }
    let file = temporary("stats.json");
    fs::write(&file, "x".repeat(100_000)).unwrap();
    let status = uswap(&["-q", "--stats", file.to_str().unwrap(), "--", "sh", "-c", "exit 3"]).status().unwrap();
    assert_eq!(status.code(), Some(3));
    let stats: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(stats["memory_limit_bytes"], 64 << 20);
    assert_eq!(stats["exit_status"], 3);
    assert!(stats["wall_seconds"].as_f64().unwrap() < 30.0);
    assert!(stats["vmstat"]["pswpin"].is_u64() && stats["areas"].is_array());
}

#[test]
fn a_named_swap_file_is_used_and_kept() {
    if !can_run() {
        return;
    }
    let file = temporary("area");
    let spec = format!("file:{},size=8M,prio=3", file.display());
    for _ in 0..2 {
        let output = uswap(&["--swap", &spec, "--", "true"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata = fs::metadata(&file).unwrap();
    assert_eq!((metadata.len(), metadata.mode() & 0o777), (8 << 20, 0o600));
}

#[test]
fn no_zombies_are_left_in_the_tree() {
    if !can_run() {
        return;
    }
    // Orphans become children of the supervisor, which must collect them while the program goes on.
    let script = "for i in 1 2 3 4 5; do (sh -c 'sleep 0.1 & exit') & done; sleep 1; \
                  ps -o stat= --ppid $PPID | grep -c Z";
    let mut child = uswap(&["-q", "--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(line_from(&mut child), "0");
    end_of(&mut child);
}

#[test]
fn standard_input_reaches_the_program() {
    if !can_run() {
        return;
    }
    let mut child = uswap(&["-q", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through\n").unwrap();
    assert_eq!(line_from(&mut child), "through");
    assert!(end_of(&mut child).success());
}

/// A pipe, and both of its ends.
fn pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    std::io::pipe().unwrap()
}

#[test]
fn a_standard_error_without_a_reader_harms_nobody() {
    if !can_run() {
        return;
    }
    let (reader, writer) = pipe();
    drop(reader);
    let mut child = uswap(&["-v", "--", "sh", "-c", "sleep 0.3; exit 5"]).stderr(writer).spawn().unwrap();
    assert_eq!(end_of(&mut child).code(), Some(5));
}

#[test]
fn a_standard_error_that_nobody_reads_holds_up_nobody() {
    if !can_run() {
        return;
    }
    let (reader, mut writer) = pipe();
    let size = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
    writer.write_all(&vec![b'x'; size]).unwrap();
    let mut child = uswap(&["--", "sh", "-c", "exit 5"]).stderr(writer.try_clone().unwrap()).spawn().unwrap();
    assert_eq!(end_of(&mut child).code(), Some(5));
    drop(reader);
}

#[test]
fn a_line_that_has_no_room_comes_when_there_is_some() {
    if !can_run() {
        return;
    }
    let (mut reader, mut writer) = pipe();
    let size = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
    writer.write_all(&vec![b'x'; size]).unwrap();
    let mut child = uswap(&["--", "sh", "-c", "exit 5"]).stderr(writer).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(end_of(&mut child).code(), Some(5));
    let said = text.trim_start_matches('x');
    assert!(said.starts_with("uswap: ") && said.lines().count() == 1, "{said}");
}

#[test]
fn an_alarm_from_before_the_start_reaches_the_program() {
    if !can_run() {
        return;
    }
    let uswap = env!("CARGO_BIN_EXE_uswap");
    let words = ["-e", "alarm 1; exec @ARGV", uswap, "run", "-q", "-m", "64M", "--", "sleep", "20"];
    let status = Command::new("perl").args(words).status().unwrap();
    assert_eq!(status.signal(), Some(14));
}

#[test]
fn real_time_signals_reach_the_program() {
    if !can_run() {
        return;
    }
    let script = "trap 'exit 9' RTMIN+3; echo ready; while :; do sleep 0.05; done";
    let mut child = uswap(&["-q", "--", "bash", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(line_from(&mut child), "ready");
    let kill = format!("kill -s RTMIN+3 {}", child.id());
    assert!(Command::new("bash").args(["-c", &kill]).status().unwrap().success());
    assert_eq!(end_of(&mut child).code(), Some(9));
}

#[test]
fn a_program_that_is_stopped_and_continued_alone_is_waited_for() {
    use std::os::unix::process::CommandExt;
    if !can_run() {
        return;
    }
    // In a group of its own, as in the background of a shell.
    let mut command = uswap(&["-q", "--", "sh", "-c", "echo $$; exec sleep 1"]);
    let mut child = command.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
    let program = line_from(&mut child);
    for signal in ["-TSTP", "-CONT"] {
        std::thread::sleep(Duration::from_millis(200));
        assert!(Command::new("kill").args([signal, &program]).status().unwrap().success());
    }
    assert_eq!(end_of(&mut child).code(), Some(0));
}

#[test]
fn a_limit_on_the_size_of_files_is_said() {
    if !can_run() {
        return;
    }
    let file = temporary("limited");
    fs::File::create(&file).unwrap().set_len(2 << 20).unwrap();
    let run = |before: &str| {
        let (uswap, file) = (env!("CARGO_BIN_EXE_uswap"), file.display());
        let command = format!("{before} {uswap} run -q -m 64M --swap file:{file} -- true");
        Command::new("sh").args(["-c", &command]).output().unwrap()
    };
    assert!(run("").status.success());
    // Blocks of 512 bytes, or of 1024 where sh is bash: either way less than the file, which has that length already.
    let limited = run("ulimit -f 1500;");
    let text = String::from_utf8(limited.stderr).unwrap();
    assert_eq!(limited.status.code(), Some(125), "{text}");
    assert!(text.contains("ulimit -f") && text.lines().count() == 1, "{text}");
}

#[test]
fn silent_connections_of_other_users_are_closed() {
    // A hundred connections by another user, to the abstract name that is its argument; how many are closed by and by.
    const KNOCK: &str = r#"
        use Socket;
        my @open;
        $> = 65534;
        for (1 .. 100) {
            socket(my $socket, AF_UNIX, 5, 0) or die;
            connect($socket, pack("S a*", AF_UNIX, "\0" . $ARGV[0])) or die "connect: $!";
            push @open, $socket;
        }
        for my $wait (1, 6) {
            sleep $wait;
            my $closed = 0;
            for my $socket (@open) {
                my $got = recv($socket, my $bytes, 1, MSG_DONTWAIT | MSG_PEEK);
                $closed++ if defined $got && $bytes eq "";
            }
            print "$closed\n";
        }
    "#;
    if !can_run() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can be another user");
    }
    let mut child =
        uswap(&["-q", "--", "sh", "-c", "echo $USWAP_SOCKET; exec sleep 60"]).stdout(Stdio::piped()).spawn().unwrap();
    let socket = line_from(&mut child);
    let knocked = Command::new("perl").args(["-e", KNOCK, &socket]).output().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(String::from_utf8_lossy(&knocked.stdout), "36\n100\n", "{}", String::from_utf8_lossy(&knocked.stderr));
}

#[test]
fn a_uswap_that_may_not_be_read_works() {
    use std::os::unix::fs::PermissionsExt;
    if !can_run() {
        return;
    }
    let file = temporary("unreadable");
    fs::copy(env!("CARGO_BIN_EXE_uswap"), &file).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o111)).unwrap();
    // Root reads everything, unless it has lost the right to, which the shell has, and setpriv not yet.
    let words: &[&str] = match rustix::process::geteuid().is_root() {
        true => &["setpriv", "--bounding-set=-dac_override,-dac_read_search,-sys_ptrace", "--inh-caps=-all"],
        false => &["env"],
    };
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(["sh", "-c", "exec \"$0\" \"$@\""]).arg(&file);
    let program = ["run", "-q", "-m", "64M", "--", "grep", "-c", "uswap-agent", "/proc/self/maps"];
    let output = command.args(program).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

/// What stops a service signals all of its processes, and those that are killed are replaced.
#[test]
fn the_agent_can_be_loaded_whatever_happens_to_its_anchor() {
    if !can_run() {
        return;
    }
    for signal in ["TERM", "HUP", "KILL"] {
        let script = format!(
            "until anchor=$(pgrep -P $PPID uswap-anchor); do sleep 0.01; done; kill -{signal} $anchor; sleep 0.2; grep -c uswap-agent /proc/self/maps && exit 3"
        );
        let output = shell(&script);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(3) && said.is_empty(), "{signal}: {said}");
    }
}

/// An anchor that was killed, but does not get to run, may end between a program's look at it and its execution.
#[test]
fn what_is_executed_while_the_killed_anchor_ends_is_managed() {
    const SCRIPT: &str = r#"
        until anchor=$(pgrep -P $PPID uswap-anchor); do sleep 0.01; done
        # The anchor's CPU is taken, for less than a second, by who goes first, and has been executed before the anchor is killed.
        taskset -pc 0 $anchor > /dev/null
        begun=$(mktemp -u)
        taskset -c 0 chrt -f 1 sh -c ': > "$0"; i=0; while [ $i -lt 600000 ]; do i=$((i + 1)); done' "$begun" &
        until [ -e "$begun" ]; do sleep 0.01; done
        kill -KILL $anchor
        while [ -e /proc/$anchor/fd/3 ] && kill -0 $! 2> /dev/null; do /bin/true; done
        for i in 1 2 3 4 5; do /bin/true; done
        wait
        rm "$begun"
        exit 3
    "#;
    if !can_run() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can have a process go first");
    }
    for _ in 0..12 {
        let output = shell(SCRIPT);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(3) && said.is_empty(), "{said}");
    }
}

#[test]
fn a_closed_terminal_ends_a_program_that_was_started_by_the_leader_of_its_session() {
    // A terminal with the command as the leader of its session, which is closed when the command has said a line.
    const TERMINAL: &str = r#"
        use POSIX ();
        open(my $terminal, "+<", "/dev/ptmx") or die "ptmx: $!";
        my ($unlock, $number) = (pack("i", 0), pack("i", 0));
        ioctl($terminal, 0x40045431, $unlock) && ioctl($terminal, 0x80045430, $number) or die "ioctl: $!";
        my $child = fork();
        if (!$child) {
            # Who runs the tests may have had it ignored (nohup).
            $SIG{HUP} = "DEFAULT";
            POSIX::setsid();
            # The first terminal that a leader opens becomes its session's.
            open(STDIN, "+<", "/dev/pts/" . unpack("i", $number)) or die "pts: $!";
            open(STDOUT, ">&", STDIN);
            close($terminal);
            exec(@ARGV);
        }
        my $line = <$terminal>;
        close($terminal);
        $SIG{ALRM} = sub { print "it lives on\n"; kill("KILL", $child); exit };
        alarm(10);
        waitpid($child, 0);
        print "signal ", $? & 127, " after $line";
    "#;
    if !can_run() {
        return;
    }
    let uswap = env!("CARGO_BIN_EXE_uswap");
    let script = "echo ready; while :; do sleep 0.05; done";
    let words = ["-e", TERMINAL, uswap, "run", "-q", "-m", "64M", "--", "sh", "-c", script];
    let output = Command::new("perl").args(words).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "signal 1 after ready\r\n");
}

/// In namespaces of its own, where nobody else's programs are concerned.
#[test]
fn a_file_that_binfmt_misc_knows_is_run_by_its_interpreter() {
    use std::os::unix::fs::PermissionsExt;
    const REGISTERED: &str = r#"
        mkdir "$1/misc" && mount -t binfmt_misc none "$1/misc" &&
            echo ':uswap-test:M::USWAPMZ::/bin/echo:' > "$1/misc/register" && "$1/program" > "$1/direct" || exit 77
        shift
        exec "$@"
    "#;
    if !can_run() {
        return;
    }
    let directory = temporary("binfmt");
    fs::create_dir(&directory).unwrap();
    let program = directory.join("program");
    fs::write(&program, "USWAPMZ\necho by the shell\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    // A container's own /proc may be read-only, and then no namespace of users can be set up.
    let mut command = Command::new("unshare");
    command.args([
        "-m",
        "sh",
        "-c",
        "mount -t proc proc /proc && exec unshare -Urm sh -c \"$0\" sh \"$@\"",
        REGISTERED,
    ]);
    command
        .arg(&directory)
        .args([env!("CARGO_BIN_EXE_uswap"), "run", "-q", "-m", "64M", "--"])
        .arg(&program)
        .arg("word");
    let output = command.output().unwrap();
    let could_register = directory.join("direct").exists();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !could_register {
        return eprintln!("skipped: no binfmt_misc of its own: {errors}");
    }
    assert_eq!(said, format!("{} word\n", program.display()), "{errors}");
}

#[test]
fn a_session_that_is_led_from_outside_of_the_pid_namespace() {
    if !can_run() {
        return;
    }
    // Where init sets up no session either, the kernel says session 0, and group 0 beside it.
    let mut command = Command::new("unshare");
    command.args(["-pf", "--mount-proc", env!("CARGO_BIN_EXE_uswap"), "run", "-q", "-m", "64M", "--"]);
    let output = command.args(["sh", "-c", "cut -d' ' -f5,6 /proc/$$/stat; kill -9 $$"]).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if errors.contains("unshare failed") {
        return eprintln!("skipped: no pid namespace of its own: {errors}");
    }
    assert_eq!((said.as_ref(), output.status.code()), ("0 0\n", Some(137)), "{errors}");
}

#[test]
fn a_limit_on_descriptors_that_is_lowered_meanwhile_ends_nothing() {
    if !can_run() {
        return;
    }
    let mut child =
        uswap(&["-q", "--", "sh", "-c", "echo ready; sleep 1; exit 7"]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(line_from(&mut child), "ready");
    // Fewer than `uswap run` waits for.
    let lowered = Command::new("prlimit").args(["--pid", &child.id().to_string(), "--nofile=4:4"]).status().unwrap();
    assert!(lowered.success());
    assert_eq!(end_of(&mut child).code(), Some(7));
}

#[test]
fn the_directory_where_it_is_started_is_not_kept_in_use() {
    if !can_run() {
        return;
    }
    let directory = temporary("mount");
    fs::create_dir(&directory).unwrap();
    let script = r#"
        mount -t tmpfs none "$0" && cd "$0" || exit 77
        exec "$1" run -q -m 64M -- sh -c 'cd / && umount "$0" && echo gone' "$0"
    "#;
    let mut command = Command::new("unshare");
    let output =
        command.args(["-m", "sh", "-c", script]).arg(&directory).arg(env!("CARGO_BIN_EXE_uswap")).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || errors.contains("unshare failed") {
        return eprintln!("skipped: no mounts of its own: {errors}");
    }
    assert_eq!(String::from_utf8_lossy(&output.stdout), "gone\n", "{errors}");
}

#[test]
fn a_program_that_begins_a_pid_namespace() {
    if !can_run() {
        return;
    }
    let mut command = Command::new("unshare");
    command.args(["-p", env!("CARGO_BIN_EXE_uswap"), "run", "-q", "-m", "64M", "--"]);
    let output = command.args(["sh", "-c", "echo there"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("unshare failed") {
        return eprintln!("skipped: no pid namespace of its own: {errors}");
    }
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), b"there\n".as_slice()), "{errors}");
}

#[test]
fn a_text_without_an_interpreter_is_read_by_the_shell() {
    use std::os::unix::fs::PermissionsExt;
    if !can_run() {
        return;
    }
    let file = temporary("text");
    fs::write(&file, "echo \"$1\"; exit 4\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let output = uswap(&["-q", "--", file.to_str().unwrap(), "word"]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(4), b"word\n".as_slice()));
}

#[test]
fn sockets_and_watchdogs_of_a_service_are_the_programs() {
    if !can_run() {
        return;
    }
    let script = "exec env LISTEN_PIDFDID=1 LISTEN_PID=$$ WATCHDOG_PID=$$ SYSTEMD_EXEC_PID=$$ \
                  \"$0\" run -q -m 64M -- sh -c 'echo $(($$ - LISTEN_PID)) $(($$ - WATCHDOG_PID)) $(($$ - SYSTEMD_EXEC_PID)); \
                  test -z \"$LISTEN_PIDFDID\"'";
    let output = Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_uswap")]).output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0 0 0\n");
}

#[test]
fn signals_that_somebody_sends_for_the_kernel_reach_the_program() {
    if !can_run() {
        return;
    }
    let names = ["ABRT", "XCPU", "STKFLT", "SYS"];
    let traps: String = names.iter().map(|name| format!("trap 'echo {name}' {name}; ")).collect();
    let script = format!("{traps} trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done");
    let mut child = uswap(&["-q", "--", "bash", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(line_from(&mut child), "ready");
    for name in names {
        let kill = format!("kill -s {name} {}", child.id());
        assert!(Command::new("bash").args(["-c", &kill]).status().unwrap().success());
        assert_eq!(line_from(&mut child), name);
    }
    let term = Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(term.success());
    assert_eq!(end_of(&mut child).code(), Some(9));
}

#[test]
fn a_limit_on_cpu_time_is_the_programs_alone() {
    if !can_run() {
        return;
    }
    // The supervisor has raised its own a moment after the start.
    let script = "ulimit -St; sleep 0.5; sed -n 's/^Max cpu time *//p' /proc/$PPID/limits";
    let command = format!(
        "ulimit -St 50; {} run -q -m 64M -- sh -c '{}'",
        env!("CARGO_BIN_EXE_uswap"),
        script.replace('\'', "'\\''")
    );
    let output = Command::new("bash").args(["-c", &command]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<&str> = said.split_whitespace().collect();
    assert!(words.len() >= 3 && words[0] == "50" && words[1] == words[2], "{said}");
}

#[test]
fn a_file_cannot_be_for_statistics_and_for_swap() {
    if !can_run() {
        return;
    }
    let (file, link) = (temporary("both"), temporary("both-link"));
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let refused = |stats: &Path| {
        let spec = format!("file:{},size=8M", file.display());
        let output = uswap(&["--stats", stats.to_str().unwrap(), "--swap", &spec, "--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(125));
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            format!("uswap: '{}' is both --stats and --swap\n", stats.display())
        );
    };
    for it in [&file, &link] {
        refused(it);
        assert!(!file.exists(), "a refused run has made it");
    }
    fs::write(&file, "").unwrap();
    refused(&file);
    refused(&link);
    assert_eq!(fs::metadata(&file).unwrap().len(), 0);
}

/// Numbers at random places of 120 MiB, added up.
const SCATTERED: &str = r#"
    my $held = pack("V*", map { $_ * 40503 % 65521 } 0 .. 0x3ffff) x 120;
    my ($sum, $at) = (0, 1);
    for (1 .. 10000) {
        $at = ($at * 1103515245 + 12345) % (30 << 20);
        $sum = ($sum * 31 + unpack("V", substr($held, $at * 4, 4))) % 1000003;
    }
    print "$sum\n";
"#;

#[test]
fn a_program_has_the_same_result_with_each_policy_and_the_statistics_name_it() {
    if !can_run() {
        return;
    }
    let expected = Command::new("perl").args(["-e", SCATTERED]).output().unwrap().stdout;
    let reclaim = uswap_core::ReclaimPolicy::ALL.map(|policy| ["--reclaim", policy.name()]);
    let readahead = uswap_core::ReadaheadPolicy::ALL.map(|policy| ["--readahead", policy.name()]);
    for [flag, name] in reclaim.into_iter().chain(readahead) {
        let stats = temporary(&format!("stats-of-{name}"));
        let flags = ["-q", "--zpool-percent", "5", flag, name, "--stats", stats.to_str().unwrap(), "--"];
        let output = uswap(&flags).args(["perl", "-e", SCATTERED]).output().unwrap();
        assert_eq!((output.status.code(), &output.stdout), (Some(0), &expected), "{flag} {name}: {output:?}");
        let stats: serde_json::Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
        assert_eq!(stats[&flag[2..]], name, "{stats}");
        assert!(stats["vmstat"]["pswpin"].as_u64().unwrap() > 1000, "{stats}");
    }
}

/// 96 MiB that do not compress, of which the budget holds 64.
const HOLDER: &str = r#"
    open(my $random, "<", "/dev/urandom") or die;
    my $held = "";
    while (length($held) < 96 << 20) { sysread($random, $held, 1 << 20, length($held)) or die }
    $| = 1;
    print "ready\n";
    sleep(60);
"#;

#[test]
fn swapoff_tells_of_each_area_what_has_become_of_it() {
    if !can_run() {
        return;
    }
    let (empty, used) = (temporary("area-0"), temporary("area-1"));
    let specs =
        [(&empty, 1), (&used, 5)].map(|(file, priority)| format!("file:{},size=128M,prio={priority}", file.display()));
    let flags = ["-q", "--compressor", "none", "--zpool-percent", "0", "--swap", &specs[0], "--swap", &specs[1]];
    let mut child = uswap(&flags).args(["--", "perl", "-e", HOLDER]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(line_from(&mut child), "ready");
    let pid = child.id().to_string();
    let swapoff = |areas: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uswap"));
        command.args(["swapoff", "-p", &pid, areas]).stderr(Stdio::piped()).spawn().unwrap()
    };

    let said = |output: Output| (output.status.code(), String::from_utf8(output.stderr).unwrap());
    let (status, text) = said(swapoff("-a").wait_with_output().unwrap());
    assert_eq!(status, Some(125), "{text}");
    assert!(text.starts_with("uswap: swap area 1 stays in use, with ") && text.lines().count() == 1, "{text}");
    assert!(text.contains("uswap set -m") && text.ends_with("; swap area 0 stays out of use, being empty\n"), "{text}");

    let waiting = swapoff("1");
    std::thread::sleep(Duration::from_millis(300));
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    assert_eq!(end_of(&mut child).signal(), Some(15));
    let (status, text) = said(waiting.wait_with_output().unwrap());
    assert_eq!((status, text), (Some(125), format!("uswap: process {pid} has ended before swap area 1 was emptied\n")));
}
