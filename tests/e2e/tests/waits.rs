//! No thread of a program waits for one of uswap's without bound (docs/waits.md).

use std::process::{Command, Stdio};
use std::time::Duration;

use uswap_e2e::{Budget, Launch, Running, TempDir, c_program, name_of, need, script, start};

const MINUTE: Duration = Duration::from_secs(60);

/// Advice about fork, thousands of times, with an engine and without one that reads it.
#[test]
fn advice_for_fork_thousands_of_times() {
    let test = TempDir::new("advice-many");
    let launch = Launch::new(&test, c_program("advice")).arg("many").time_limit(MINUTE);
    let recorded = launch.bare().finish();
    recorded.assert_success();
    let finished = launch.under(&Budget::mib(64)).finish();
    assert_eq!((finished.code(), finished.text()), (0, recorded.text()), "{finished}");
    finished.assert_swapped();
    // Nothing is swapped here until late, and nobody is there to read what is posted.
    let idle = launch.env("USWAP_E2E_SWAPS", "0").under(&Budget::mib(4096)).finish();
    assert_eq!((idle.code(), idle.text()), (0, recorded.text()), "{idle}");
}

/// Memory that is given to children by the program's own advice, and taken by a clone(2) that nobody sees.
#[test]
fn memory_let_go_by_advice_is_not_zeros_in_a_raw_clone() {
    let_go_and_cloned("let-go-and-cloned");
}

/// The same by libc's `syscall`.
#[test]
fn memory_let_go_by_syscall_is_not_zeros_in_a_raw_clone() {
    let_go_and_cloned("let-go-by-syscall");
}

/// The same of memory that is moved right after.
#[test]
fn memory_let_go_and_moved_is_not_zeros_in_a_raw_clone() {
    let_go_and_cloned("let-go-and-moved");
}

/// Advice about forks that comes right after an mremap is about what that has brought.
#[test]
fn memory_that_is_kept_from_children_as_soon_as_it_is_moved() {
    let_go_and_cloned("moved-and-advised");
}

fn let_go_and_cloned(case: &str) {
    let test = TempDir::new(case);
    let launch = Launch::new(&test, c_program("advice"))
        .arg(case)
        // Else the kernel ends the child at once, because the place where it writes its CPU is missing there.
        .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
        .time_limit(MINUTE);
    let finished = launch.under(&Budget::mib(64)).finish();
    finished.assert_success();
    finished.assert_swapped();
}

/// V8 gives advice about fork for each of its pages.
#[test]
fn node_far_below_its_budget_and_far_above_it() {
    let Some(node) = need("node", "nodejs") else { return };
    let test = TempDir::new("node");
    let launch = Launch::new(&test, node).arg(script("heap.js")).time_limit(2 * MINUTE);
    let recorded = launch.bare().finish();
    recorded.assert_success();
    let idle = launch.under(&Budget::mib(4096)).finish();
    assert_eq!((idle.code(), idle.text()), (0, recorded.text()), "{idle}");
    let finished = launch.under(&Budget::mib(100)).finish();
    assert_eq!((finished.code(), finished.text()), (0, recorded.text()), "{finished}");
    finished.assert_swapped();
}

/// Who traces it reads what it writes, and nobody else does: /dev/null does not, and Python's own objects lie elsewhere. So the
/// tracer is the first to touch a page that is out.
const WRITES_ALL_OF_ITS_MEMORY: &str = "
import os
memory = memoryview(bytearray(30000 * 4096))
pages = [memory[i * 4096:(i + 1) * 4096] for i in range(30000)]
for i, page in enumerate(pages):
    page[:] = b'%08d' % i * 512
nowhere = os.open('/dev/null', os.O_WRONLY)
print('filled', flush=True)
while True:
    for page in pages:
        os.write(nowhere, page)
";

const BUILDS_AND_VERIFIES: &str = "
blocks = [bytearray(b'%08d' % i * 512) for i in range(20000)]
print('built', flush=True)
for turn in range(2):
    assert all(block == bytearray(b'%08d' % i * 512) for i, block in enumerate(blocks))
print('verified')
";

fn python(test: &TempDir, script: &str) -> Option<Launch> {
    let python = need("python3", "python3")?;
    Some(Launch::new(test, python).args(["-c", script]).time_limit(2 * MINUTE))
}

/// A disk that never answers, and a handler that is at it for ever.
fn stalled(flag: &str) -> Budget {
    Budget::mib(32)
        .flag("--compressor")
        .flag("none")
        .flag("--fault-injection")
        .flag("hang-read:after=200")
        .flag(format!("--on-stall={flag}"))
}

/// Who begins to trace while the program runs stops the agent's threads as well. That it then waits for ever for one of them is
/// told, and can be ended.
#[test]
fn a_tracer_that_waits_for_whom_it_has_stopped_is_told_of() {
    let Some(strace) = need("strace", "strace") else { return };
    let test = TempDir::new("tracer");
    let Some(launch) = python(&test, WRITES_ALL_OF_ITS_MEMORY) else { return };
    let mut running = launch.under(&Budget::mib(64).flag("--on-stall=kill"));
    running.wait_until("filled", |running| running.stdout_so_far().contains("filled"));
    let program = running.members().into_iter().find(|&pid| name_of(pid).starts_with("python")).expect("the program");
    let mut tracer = Command::new(strace);
    tracer.args(["-f", "-o", "/dev/null", "-p", &program.to_string()]).stderr(Stdio::null());
    let mut tracer = start(&mut tracer).expect("strace starts");
    let finished = running.finish();
    let _ = tracer.kill();
    let _ = tracer.wait();
    assert_eq!(finished.code(), 125, "{finished}");
    for text in ["stalled: process", "who traces it, thread", "(strace)"] {
        assert!(finished.stderr.contains(text), "no '{text}'\n{finished}");
    }
}

#[test]
fn a_stall_is_told_and_ended_on_request() {
    let test = TempDir::new("stall");
    let Some(launch) = python(&test, BUILDS_AND_VERIFIES) else { return };
    let finished = launch.under(&stalled("kill")).finish();
    assert_eq!(finished.code(), 125, "{finished}");
    for text in ["stalled: process", "thread waits for pages", "handle_userfault", "(uswap-fault)", "is at page 0x"] {
        assert!(finished.stderr.contains(text), "no '{text}'\n{finished}");
    }
    assert_eq!(finished.stderr.matches("stalled: process").count(), 1, "told more than once\n{finished}");
}

/// Children that read what they have in common, and wait for the process that brings it in; where it hears of forks, and where they tell
/// of themselves.
#[test]
fn a_stall_of_shared_memory_is_told_and_ended_on_request() {
    let test = TempDir::new("stall-shared");
    let launch = || Launch::new(&test, c_program("lossy_shared")).args(["100", "4"]).time_limit(MINUTE);
    for launch in [launch(), launch().without("-sys_ptrace")] {
        let finished = launch.under(&stalled("kill")).finish();
        assert_eq!(finished.code(), 125, "{finished}");
        for text in
            ["(lossy_shared): 1 thread waits for pages", "handle_userfault", "brings in shared memory", "(uswap-fault)"]
        {
            assert!(finished.stderr.contains(text), "no '{text}'\n{finished}");
        }
        let is_page = |line: &str| {
            let (page, object) = line.split_once(" is at page ")?.1.split_once(" of shared memory ")?;
            Some(page.parse::<u64>().ok()? < 100 << 8 && object.parse::<u64>().is_ok())
        };
        assert!(finished.stderr.lines().any(|line| is_page(line) == Some(true)), "no page is named\n{finished}");
        // Others may be told of before all have ended, each once.
        let told: Vec<&str> = finished.stderr.lines().filter(|line| line.contains("stalled: process ")).collect();
        let processes: std::collections::BTreeSet<Option<&str>> =
            told.iter().map(|line| line.split("stalled: process ").nth(1)?.split(' ').next()).collect();
        assert_eq!(told.len(), processes.len(), "one was told of more than once\n{finished}");
    }
}

/// The process that brings shared memory in is stopped for longer than a stall takes, and goes on.
#[test]
fn a_stopped_shared_memory_server_is_no_stall() {
    let test = TempDir::new("server-stopped");
    let launch = Launch::new(&test, c_program("lossy_shared")).args(["100", "4"]).time_limit(2 * MINUTE);
    let server = |running: &Running| running.members().into_iter().find(|&pid| name_of(pid) == "uswap-shmem");
    let mut running = launch.under(&Budget::mib(32).flag("--on-stall=kill"));
    running.wait_until("there is a server", |running| server(running).is_some());
    let server = server(&running).and_then(|pid| rustix::process::Pid::from_raw(pid as i32)).expect("a pid");
    // Much is swapped out by now, and more is to be.
    std::thread::sleep(Duration::from_millis(300));
    rustix::process::kill_process(server, rustix::process::Signal::STOP).expect("a server that lives");
    std::thread::sleep(Duration::from_secs(13));
    let is_held_up = running.is_running();
    rustix::process::kill_process(server, rustix::process::Signal::CONT).expect("a server that lives");
    let finished = running.finish();
    assert!(is_held_up, "it needed nothing\n{finished}");
    assert_eq!((finished.code(), finished.text().as_str()), (0, "lost 0\n"), "{finished}");
    assert!(!finished.stderr.contains("stalled"), "{finished}");
    finished.assert_swapped();
}

/// One process of two is stopped for longer than a stall takes; the other goes on, nobody raises an alarm, and in the end all
/// is right.
#[test]
fn a_stopped_process_holds_up_nobody_and_is_no_stall() {
    let test = TempDir::new("stopped");
    let script = format!(
        "import os\npid = os.fork()\n{BUILDS_AND_VERIFIES}\nif pid: assert os.waitpid(pid, 0)[1] == 0\nelse: os._exit(0)"
    );
    // One write for each line: two processes share the output.
    let line = "os.write(1, b'built %s %d\\n' % (b'parent' if pid else b'child', os.getpid()))";
    let script =
        script.replace("print('built', flush=True)", line).replace("print('verified')", "os.write(1, b'verified\\n')");
    let Some(launch) = python(&test, &script) else { return };
    let child = |running: &Running| {
        let text = running.stdout_so_far();
        let (pid, _) = text.split_once("built child ")?.1.split_once('\n')?;
        rustix::process::Pid::from_raw(pid.parse().expect("a number"))
    };
    let mut running = launch.under(&Budget::mib(48));
    running.wait_until("the child is built", |running| child(running).is_some());
    let child = child(&running).expect("it is built");
    rustix::process::kill_process(child, rustix::process::Signal::STOP).expect("a child that lives");
    let begun = std::time::Instant::now();
    running.wait_until("the parent has verified", |running| running.stdout_so_far().contains("verified"));
    std::thread::sleep(Duration::from_secs(13).saturating_sub(begun.elapsed()));
    rustix::process::kill_process(child, rustix::process::Signal::CONT).expect("a child that lives");
    let finished = running.finish();
    finished.assert_success();
    assert_eq!(finished.text().matches("verified").count(), 2, "{finished}");
    assert!(!finished.stderr.contains("stalled"), "{finished}");
    finished.assert_swapped();
}

/// A process that is started while the supervisor is stopped forks all the same, and it is said why it is not managed yet.
#[test]
fn a_stopped_supervisor_holds_up_no_fork() {
    let test = TempDir::new("supervisor-stopped");
    let script = format!("echo ready; sleep 1; {} joins-late; echo over", c_program("forks").display());
    let launch = Launch::new(&test, "sh").args(["-c", &script]).time_limit(MINUTE);
    let mut running = launch.under(&Budget::mib(64));
    running.wait_until("the shell is ready", |running| running.stdout_so_far().contains("ready"));
    std::thread::sleep(Duration::from_millis(300));
    let supervisor = rustix::process::Pid::from_raw(running.id() as i32).expect("a pid");
    rustix::process::kill_process(supervisor, rustix::process::Signal::STOP).expect("a supervisor that lives");
    std::thread::sleep(Duration::from_secs(6));
    rustix::process::kill_process(supervisor, rustix::process::Signal::CONT).expect("a supervisor that lives");
    let finished = running.finish();
    assert_eq!(finished.text(), "ready\nforked in time\nok joins-late\nover\n", "{finished}");
    assert!(finished.stderr.contains("its supervisor, which does not answer"), "{finished}");
}
