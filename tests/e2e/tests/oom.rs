//! No memory, no addresses, no threads for uswap itself: the program goes on, or it is said why not.

use std::process::Command;
use std::time::Duration;

use uswap_e2e::{Budget, Finished, Launch, Random, TempDir, bare_only, c_program, need, script, seed, sized, tool};

/// The failures that `uswap-sys/src/test_hook.rs` has.
const FAILURES: &str = "USWAP_TEST_AGENT";
const TOLD: &str = "uswap: test: no more";

fn limits(test: &TempDir, mib: u32, rounds: u32, children: u32) -> Launch {
    Launch::new(test, c_program("limits"))
        .args([mib, rounds, children].map(|number| number.to_string()))
        .time_limit(Duration::from_secs(60))
}

fn is_good(finished: &Finished) -> bool {
    finished.code() == 0 && finished.text().ends_with("good\n") && !finished.stderr.contains("BAD")
}

/// The only line that a process ended by its agent may leave, and must.
fn says_why(finished: &Finished, name: &str) -> bool {
    finished
        .stderr
        .lines()
        .any(|line| line.starts_with("uswap: process ") && line.contains(&format!("({name}) is ended: ")))
}

#[test]
fn an_agent_that_ends_its_program_says_why_and_uswap_fails() {
    if bare_only() {
        return;
    }
    let test = TempDir::new("last-words");
    for (failure, why) in [("panic=50", "internal error: panicked at"), ("memory=50", "no memory for its own books")] {
        // With -q, as all tests here.
        let finished = limits(&test, 48, 2, 0).env(FAILURES, failure).under(&Budget::mib(24)).finish();
        assert!(says_why(&finished, "limits") && finished.stderr.contains(why), "{failure}\n{finished}");
        assert_eq!(finished.code(), 125, "{failure}\n{finished}");
        // Not the program that was started, but a child of it.
        let script = format!("{} 48 2 0; echo status $?", c_program("limits").display());
        let shell = Launch::new(&test, "sh").args(["-c", &script]).env(FAILURES, failure);
        let finished = shell.under(&Budget::mib(24)).finish();
        assert!(says_why(&finished, "limits") && finished.stderr.contains(why), "{failure}\n{finished}");
        assert!(finished.code() == 0 && finished.text().contains("status 137"), "{failure}\n{finished}");
    }
}

/// Runs with the Nth failing, for all N in a full run and a sample otherwise; returns how often something failed.
fn refuse_each(what: &str, children: u32, most: u32, sample: u32) -> u32 {
    let test = TempDir::new("refused");
    let seed = seed();
    eprintln!("{what}: USWAP_E2E_SEED={seed}");
    let mut random = Random::new(seed);
    let (mut failed, mut tried) = (0, 0);
    let parts = sized(sample, most).min(most);
    for part in 0..parts {
        // One of each part, so that some are among the first, which always come.
        let (begin, end) = (part * most / parts, (part + 1) * most / parts);
        let number = begin + 1 + random.below(u64::from(end - begin)) as u32;
        tried += 1;
        let failure = format!("{what}={number}");
        let finished = limits(&test, 40, 1, children).env(FAILURES, &failure).under(&Budget::mib(24)).finish();
        failed += u32::from(finished.stderr.contains(TOLD));
        // A child whose memory is partly swapped out needs an engine. Without one it is ended, and it is said.
        let ended = finished.text().matches("child 137").count();
        let alive = finished.text().matches("child 0").count();
        // A fork needs memory that is shared with the child, or the child would lack what is swapped out: it fails then.
        let refused = finished.text().matches("child none").count();
        assert!(
            is_good(&finished) && ended + alive + refused == children as usize,
            "{failure} (seed {seed})\n{finished}"
        );
        assert!(ended == 0 || says_why(&finished, "limits"), "{failure} (seed {seed})\n{finished}");
    }
    eprintln!("{what}: {tried} runs, in {failed} of them something was refused");
    failed
}

#[test]
fn a_program_survives_each_mapping_that_its_agent_does_not_get() {
    if !bare_only() {
        assert!(refuse_each("maps-fail-at", 1, 80, 12) > 0);
    }
}

#[test]
fn a_program_survives_when_its_agent_gets_no_more_mappings() {
    if !bare_only() {
        assert!(refuse_each("maps-fail-from", 0, 60, 10) > 0);
    }
}

#[test]
fn a_fork_without_memory_is_followed_or_fails() {
    if !bare_only() {
        assert!(refuse_each("maps-fail-from", 1, 80, 10) > 0);
    }
}

#[test]
fn a_program_survives_when_its_agent_gets_no_more_threads() {
    if !bare_only() {
        assert!(refuse_each("threads-fail-from", 1, 8, 8) > 0);
    }
}

/// `ulimit` of the shell that starts the program, for each of its values.
fn under_limits(limit: &str, values: &[u32], command: &str) {
    let test = TempDir::new("ulimit");
    for value in values {
        let script = format!("ulimit {limit} {value} && exec {command}");
        let shell = Launch::new(&test, "sh").args(["-c", &script]).time_limit(Duration::from_secs(90));
        let finished = shell.under(&Budget::mib(64)).finish();
        assert!(is_good(&finished), "ulimit {limit} {value}\n{finished}");
    }
}

#[test]
fn a_program_that_uses_all_of_its_addresses_lives() {
    let program = format!("{} 250 2 1", c_program("limits").display());
    under_limits("-v", sized(&[250_000, 400_000], &[200_000, 250_000, 300_000, 400_000, 500_000, 600_000]), &program);
    under_limits("-d", sized(&[200_000], &[60_000, 100_000, 200_000, 300_000, 400_000]), &program);
}

#[test]
fn python_lives_where_addresses_are_scarce() {
    let Some(python) = need("python3", "python3") else { return };
    let program = format!("{} {}", python.display(), script("scarce.py").display());
    under_limits("-v", sized(&[400_000], &[200_000, 250_000, 300_000, 400_000, 500_000, 600_000, 800_000]), &program);
}

#[test]
fn nothing_waits_for_ever_for_a_supervisor_that_was_stopped() {
    let test = TempDir::new("stopped");
    let program = c_program("limits");
    let script = format!("for i in 1 2 3; do {0} 40 2 2 || exit 1; /bin/true; done; echo good", program.display());
    let mut running =
        Launch::new(&test, "sh").args(["-c", &script]).time_limit(Duration::from_secs(90)).under(&Budget::mib(24));
    let supervisor = running.id().to_string();
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(150));
        if !running.is_running() {
            break;
        }
        tool(Command::new("kill").args(["-STOP", &supervisor]));
        std::thread::sleep(Duration::from_millis(700));
        tool(Command::new("kill").args(["-CONT", &supervisor]));
    }
    let finished = running.finish();
    assert!(is_good(&finished), "{finished}");
}
