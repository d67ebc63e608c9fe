//! A supervisor that has as many descriptors as its hard limit allows.

use std::time::{Duration, Instant};

use uswap_e2e::{Launch, TempDir, bare_only, c_program, member_of, uswap_binary};

/// Of the supervisor, which needs some fifteen before anybody joins. Whether the last one goes to a connection or to something
/// else is another case.
const LIMITS: [u32; 3] = [40, 41, 42];

/// `uswap run` under the limit, by a shell that lowers it.
fn limited(test: &TempDir, limit: u32, command: &str) -> Launch {
    let script = format!("ulimit -n {limit}; exec \"$UNDER_TEST\" run -q -m 64M -- {command}");
    Launch::new(test, "sh")
        .args(["-c", &script])
        .env("UNDER_TEST", uswap_binary().as_os_str())
        .env("CROWD", c_program("crowd"))
        .env("KNOCKS", c_program("knocks"))
        .env("USWAP_E2E_SWAPS", "1")
        .time_limit(Duration::from_secs(90))
}

/// Children of a process that swaps have nothing to go on with before they are answered.
#[test]
fn children_for_whom_there_is_no_descriptor_end_with_a_line() {
    if bare_only() {
        return;
    }
    let test = TempDir::new("few-children");
    for limit in LIMITS {
        let finished = limited(&test, limit, "\"$CROWD\" stay 100 30").bare().finish();
        finished.assert_success();
        let text = finished.text();
        let killed: usize = text.split(' ').next().and_then(|count| count.parse().ok()).expect("a count");
        assert!((1..30).contains(&killed), "{finished}");
        let line = "cannot join its group: the supervisor ran out of descriptors or memory";
        assert_eq!(finished.stderr.matches(line).count(), killed, "{finished}");
    }
}

/// One of these is lost without a word when there is no descriptor for it, and zeros are read later.
#[test]
fn every_userfaultfd_is_kept() {
    if bare_only() {
        return;
    }
    let test = TempDir::new("few-workers");
    let command = "sh -c 'for k in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do \"$CROWD\" holds 24 6000 & done; wait'";
    let mut running = limited(&test, LIMITS[0], command).bare();
    let (mut swapping, mut kept) = (0, 0);
    let begun = Instant::now();
    while running.is_running() && begun.elapsed() < Duration::from_secs(60) {
        swapping = engines_below(running.id()).max(swapping);
        kept = userfaultfds_of(running.id()).max(kept);
        std::thread::sleep(Duration::from_millis(50));
    }
    let finished = running.finish();
    assert!(swapping > 3, "{swapping} swap\n{finished}");
    assert_eq!(kept, swapping, "{finished}");
}

fn userfaultfds_of(pid: u32) -> usize {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    links.filter(|link| link.to_string_lossy().contains("[userfaultfd]")).count()
}

/// Processes that have a thread which serves faults.
fn engines_below(root: u32) -> usize {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != root && member_of(root, *pid) && has_handler(*pid)).count()
}

fn has_handler(pid: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
        .any(|name| name.trim() == "uswap-fault")
}

/// Who stays behind for daemons has no descriptor left either.
#[test]
fn daemons_outlive_a_run_that_has_no_descriptor_left() {
    if bare_only() {
        return;
    }
    let test = TempDir::new("few-daemons");
    let launch = limited(&test, LIMITS[0], "\"$KNOCKS\" here");
    let file = launch.work().join("here");
    let finished = launch.bare().finish();
    finished.assert_success();
    assert!(file.exists(), "the daemon was ended\n{finished}");
}
