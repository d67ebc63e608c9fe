//! swapoff: everything leaves an area while the program works, nothing is lost, and where there is nowhere to put it the
//! area stays in use.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use uswap_e2e::{Budget, Finished, Launch, Running, TempDir, bare_only, c_program, repeat, start, tool, uswap_binary};

const MEMORY_MIB: u64 = 96;

fn launch(test: &TempDir, who: &str) -> Launch {
    Launch::new(test, c_program("returns")).arg(MEMORY_MIB.to_string()).arg(who).time_limit(Duration::from_secs(180))
}

/// A third of the memory, and nothing compressed.
fn budget() -> Budget {
    Budget::mib(MEMORY_MIB / 3).flag("--zpool-percent").flag("0").flag("--compressor").flag("none")
}

fn area(file: &Path, priority: u32) -> String {
    format!("file:{},size=256M,prio={priority}", file.display())
}

fn uswap(arguments: &[&str]) -> Output {
    tool(Command::new(uswap_binary()).args(arguments))
}

#[track_caller]
fn succeeds(arguments: &[&str]) {
    let output = uswap(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
}

/// Starts the program and waits until it has written all of its memory.
fn ready(launch: &Launch, budget: &Budget) -> Running {
    let mut running = launch.under(budget);
    running.wait_until("all is written", |running| running.stdout_so_far().contains("ready"));
    running
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Lets the program come to its end, which checks all of its memory.
fn stop(launch: &Launch, running: Running) -> Finished {
    File::create(launch.work().join("stop")).expect("a file in an own directory");
    let finished = running.finish();
    finished.assert_success();
    assert_eq!(finished.text(), "ready\nok\n", "{finished}");
    fs::remove_file(launch.work().join("stop")).expect("made above");
    finished
}

/// Bytes of the file that take space on the disk.
fn allocated(file: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(&fs::metadata(file).expect("an own file")) * 512
}

#[test]
fn what_is_on_an_area_goes_to_another_while_the_program_works() {
    let test = TempDir::new("swapoff-other");
    let launch = launch(&test, "alone");
    let (first, second) = (test.join("first"), test.join("second"));
    let budget = budget().flag("--swap").flag(area(&first, 5)).flag("--swap").flag(area(&second, 1));
    for _ in 0..repeat() {
        let mut running = ready(&launch, &budget);
        if bare_only() {
            stop(&launch, running);
            continue;
        }
        running.wait_until("30 MiB on the first area", |_| allocated(&first) > 30 << 20);
        assert!(allocated(&second) < 4 << 20, "{} on the second area", allocated(&second));
        let pid = running.id().to_string();
        succeeds(&["swapoff", "--pid", &pid, first.to_str().expect("a plain path")]);
        assert!(allocated(&first) < 1 << 20, "{} are left on the first area", allocated(&first));
        assert!(allocated(&second) > 30 << 20, "{} on the second area", allocated(&second));
        let finished = stop(&launch, running);
        assert!(allocated(&first) < 1 << 20, "{} came back to the first area\n{finished}", allocated(&first));
        for file in [&first, &second] {
            fs::remove_file(file).expect("an own file");
        }
    }
}

/// Who was told that an area is off may have put data of his own there.
#[test]
fn an_area_that_is_off_stays_off_when_that_is_asked_for_again() {
    if bare_only() {
        return;
    }
    let test = TempDir::new("swapoff-again");
    let launch = launch(&test, "alone");
    let (first, second) = (test.join("first"), test.join("second"));
    let budget = budget().flag("--swap").flag(area(&first, 5)).flag("--swap").flag(area(&second, 1));
    let running = ready(&launch, &budget);
    let pid = running.id().to_string();
    succeeds(&["swapoff", "--pid", &pid, "0"]);
    // A process that cannot answer.
    signal(&running, rustix::process::Signal::STOP);
    let again = uswap(&["swapoff", "--pid", &pid, "0"]);
    signal(&running, rustix::process::Signal::CONT);
    assert!(again.status.success(), "{}", stderr(&again));
    std::thread::sleep(Duration::from_millis(500));
    let finished = stop(&launch, running);
    assert!(allocated(&first) < 1 << 20, "{} on the first area\n{finished}", allocated(&first));
}

/// What a process owned that has ended is not given back to the disk once its area is off: the user's data may be there by then.
#[test]
fn a_file_is_its_users_once_its_area_is_off() {
    if bare_only() {
        return;
    }
    let test = TempDir::new("swapoff-heir");
    let launch = launch(&test, "heir");
    let (first, second) = (test.join("first"), test.join("second"));
    let budget = budget().flag("--swap").flag(area(&first, 5)).flag("--swap").flag(area(&second, 1));
    let mut running = ready(&launch, &budget);
    running.wait_until("30 MiB on the first area", |_| allocated(&first) > 30 << 20);
    succeeds(&["swapoff", "--pid", &running.id().to_string(), "0"]);
    assert!(allocated(&first) < 1 << 20, "{} are left on the first area", allocated(&first));
    let data = vec![0x5a; 128 << 20];
    let mut file = File::options().write(true).open(&first).expect("an own file");
    file.write_all(&data).and_then(|()| file.sync_all()).expect("room on the disk");
    let finished = stop(&launch, running);
    let mut found = vec![0; data.len()];
    File::open(&first).and_then(|mut file| file.read_exact(&mut found)).expect("an own file");
    assert!(found == data, "{} bytes differ\n{finished}", found.iter().zip(&data).filter(|(a, b)| a != b).count());
}

/// What a child still has there of a parent that has ended is on no process's account.
#[test]
fn an_area_with_what_a_dead_parent_left_is_not_said_to_be_empty() {
    if bare_only() {
        return;
    }
    let test = TempDir::new("swapoff-inherited");
    let launch = launch(&test, "heir-and-more");
    let (first, second) = (test.join("first"), test.join("second"));
    let small = format!("file:{},size=40M,prio=5", first.display());
    let budget = budget().flag("--swap").flag(small).flag("--swap").flag(area(&second, 1));
    let running = ready(&launch, &budget);
    let pid = running.id().to_string();
    let output = uswap(&["swapoff", "--pid", &pid, "--all"]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains(" in use, with ") && said.lines().count() == 1, "{said}");
    if said.contains("swap area 0 stays out of use") {
        overwrite(&first);
    }
    succeeds(&["set", "--pid", &pid, "--memory", "256M"]);
    succeeds(&["swapoff", "--pid", &pid, "--all"]);
    overwrite(&first);
    overwrite(&second);
    stop(&launch, running);
}

/// As its user may who has been told that it is out of use.
fn overwrite(file: &Path) {
    let length = fs::metadata(file).expect("an own file").len() as usize;
    let written = File::options().write(true).open(file).and_then(|mut file| file.write_all(&vec![7; length]));
    written.expect("room on the disk");
}

/// Of several areas the empty ones are off, and are not taken back by another try that fails.
#[test]
fn an_area_that_was_said_to_be_empty_stays_off() {
    if bare_only() {
        return;
    }
    let test = TempDir::new("swapoff-partly");
    let launch = launch(&test, "alone");
    let (first, second) = (test.join("first"), test.join("second"));
    let small = format!("file:{},size=40M,prio=5", first.display());
    let budget = budget().flag("--swap").flag(small).flag("--swap").flag(area(&second, 1));
    let running = ready(&launch, &budget);
    let pid = running.id().to_string();
    let sleep = launch.work().join("sleep");
    File::create(&sleep).expect("a file in an own directory");
    succeeds(&["set", "--pid", &pid, "--memory", "80M"]);
    let output = uswap(&["swapoff", "--pid", &pid, "--all"]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("swap area 1 stays in use") && said.contains("swap area 0 stays out of use"), "{said}");
    signal(&running, rustix::process::Signal::STOP);
    succeeds(&["swapoff", "--pid", &pid, "0"]);
    let output = uswap(&["swapoff", "--pid", &pid, "--all"]);
    signal(&running, rustix::process::Signal::CONT);
    let said = stderr(&output);
    assert!(said.contains("swap area 1 stays in use") && said.contains("swap area 0 stays out of use"), "{said}");
    succeeds(&["set", "--pid", &pid, "--memory", "32M"]);
    fs::remove_file(&sleep).expect("made above");
    std::thread::sleep(Duration::from_secs(1));
    let finished = stop(&launch, running);
    assert!(allocated(&first) < 1 << 20, "{} on the first area\n{finished}", allocated(&first));
}

fn signal(running: &Running, signal: rustix::process::Signal) {
    for member in running.members() {
        let member = rustix::process::Pid::from_raw(member as i32).expect("a process");
        rustix::process::kill_process(member, signal).expect("an own process");
    }
}

/// All of it fits: the budget is raised first.
fn comes_back(who: &str, budget_mib: u64) {
    let test = TempDir::new(&format!("swapoff-{who}"));
    let launch = launch(&test, who);
    for _ in 0..repeat() {
        let running = ready(&launch, &budget());
        if bare_only() {
            stop(&launch, running);
            continue;
        }
        let pid = running.id().to_string();
        succeeds(&["set", "--pid", &pid, "--memory", &format!("{budget_mib}M")]);
        let sleep = launch.work().join("sleep");
        if who == "pieces" {
            // Nothing comes in because the program asks for it.
            File::create(&sleep).expect("a file in an own directory");
        }
        succeeds(&["swapoff", "-p", &pid]);
        let _ = fs::remove_file(&sleep);
        // It stays off.
        let finished = stop(&launch, running);
        let stats = finished.stats.as_ref().expect("the program has ended by itself");
        assert_eq!(stats.number("memory_limit_bytes"), budget_mib << 20, "{:#}", stats.json());
        assert_eq!(stats.counter("checksum_failures"), 0, "{:#}", stats.json());
    }
}

#[test]
fn all_comes_back_when_there_is_room() {
    comes_back("alone", 256);
}

#[test]
fn a_family_has_all_of_it_back() {
    comes_back("family", 512);
}

/// Pages that come in with one call, as neighbours do, may be of several mappings.
#[test]
fn memory_of_many_mappings_comes_back() {
    comes_back("pieces", 256);
}

/// What fails now and then is read again; nothing is lost, and nothing wrong is handed over.
#[test]
fn all_comes_back_from_a_store_that_fails_now_and_then() {
    let test = TempDir::new("swapoff-faults");
    let launch = launch(&test, "alone");
    for plan in ["eio-read:every=50", "flip-bit:every=40", "short-read:every=30"] {
        let running = ready(&launch, &budget().flag("--fault-injection").flag(plan));
        if !bare_only() {
            let pid = running.id().to_string();
            succeeds(&["set", "-p", &pid, "-m", "256M"]);
            succeeds(&["swapoff", "-p", &pid]);
        }
        stop(&launch, running);
    }
}

#[test]
fn an_area_stays_where_there_is_no_room() {
    let test = TempDir::new("swapoff-no-room");
    let launch = launch(&test, "alone");
    let running = ready(&launch, &budget());
    if bare_only() {
        stop(&launch, running);
        return;
    }
    // Or the program itself would go beyond its budget to go on.
    File::create(launch.work().join("sleep")).expect("a file in an own directory");
    let pid = running.id().to_string();
    let begun = Instant::now();
    let output = uswap(&["swapoff", "--pid", &pid, "0"]);
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("stays in use") && said.contains("uswap set -m") && said.lines().count() == 1, "{said}");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    fs::remove_file(launch.work().join("sleep")).expect("made above");
    // It takes pages again: the program works in its budget.
    std::thread::sleep(Duration::from_secs(1));
    let finished = stop(&launch, running);
    finished.assert_swapped();
}

#[test]
fn an_interrupted_swapoff_loses_nothing() {
    let test = TempDir::new("swapoff-interrupted");
    let launch = launch(&test, "alone");
    let running = ready(&launch, &budget());
    if !bare_only() {
        let pid = running.id().to_string();
        for _ in 0..5 {
            let mut command = Command::new(uswap_binary());
            command.args(["swapoff", "--pid", &pid]).stderr(std::process::Stdio::piped());
            let mut child = start(&mut command).expect("the command is there");
            std::thread::sleep(Duration::from_millis(150));
            let target = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(target, rustix::process::Signal::INT).expect("an own child");
            let status = child.wait().expect("an own child");
            assert_eq!(status.code(), Some(125));
        }
    }
    stop(&launch, running);
}

#[test]
fn wrong_input_is_one_line() {
    if bare_only() {
        return;
    }
    let test = TempDir::new("swapoff-wrong");
    let launch = launch(&test, "alone");
    let running = ready(&launch, &budget());
    let pid = running.id().to_string();
    let own = std::process::id().to_string();
    for (arguments, says) in [
        (vec!["swapoff", "--pid", "4000000"], "there is no process 4000000"),
        (vec!["swapoff", "--pid", &own], "is no 'uswap run'"),
        (vec!["swapoff", "--pid", &pid, "/nowhere"], "is no swap area"),
        (vec!["swapoff", "--pid", &pid, "7"], "is no swap area"),
        (vec!["set", "--pid", &pid, "-m", "1M"], "below the minimum of 16 MiB"),
        (vec!["set", "--pid", &own, "-m", "1G"], "is no 'uswap run'"),
    ] {
        let output = uswap(&arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {said}");
        assert!(said.contains(says) && said.lines().count() == 1, "{arguments:?}: {said}");
    }
    stop(&launch, running);
}
