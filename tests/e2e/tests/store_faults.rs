//! A store that fails: the program gets its data, or SIGBUS on exactly the lost page and one line that says so.
//! Never a wrong byte.
//!
//! `lossy` keeps twice its budget of memory that does not compress, without a compressed pool, so that everything
//! goes to the area; it checks each word of it in each round. The failures are injected (`--fault-injection`), and
//! at the end real: a file system without space, which comes back later.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use uswap_e2e::{
    Budget, Finished, Launch, MIB, Random, TempDir, bare_only, c_program, is_root, need, repeat, skip, tool,
};

const SIGBUS: i32 = 128 + 7;
const BUDGET_MIB: u64 = 48;

fn budget() -> Budget {
    let budget = Budget::mib(BUDGET_MIB).flag("--zpool-percent").flag("0");
    Budget { quiet: false, ..budget }
}

fn lossy(test: &TempDir, rounds: &str, reaction: &str) -> Launch {
    Launch::new(test, c_program("lossy")).args(["96", rounds, reaction]).time_limit(Duration::from_secs(180))
}

/// Lines that uswap itself has written, without the summary at the end.
fn messages(stderr: &str) -> Vec<&str> {
    let ours = stderr.lines().filter(|line| line.starts_with("uswap"));
    ours.filter(|line| !line.starts_with("uswap: peak ")).collect()
}

/// Pages that the program says it lost.
fn lost(finished: &Finished) -> u64 {
    finished.assert_success();
    let text = finished.text();
    let number = text.trim().strip_prefix("lost ").and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("the program did not say how much it lost\n{finished}"))
}

fn run_with(plan: &str, rounds: &str, reaction: &str) -> Finished {
    let test = TempDir::new("faults");
    let finished = lossy(&test, rounds, reaction).under(&budget().flag("--fault-injection").flag(plan)).finish();
    assert!(!finished.stderr.contains("BAD"), "wrong data under {plan}\n{finished}");
    finished
}

/// Reads fail now and then. Trying again may help; what stays lost is answered by SIGBUS and one line.
fn survives_or_says_so(plan: &str, counter: &str) {
    let finished = run_with(plan, "3", "die");
    if let Some(stats) = &finished.stats {
        assert!(stats.counter(counter) > 0, "{plan} did nothing\n{:#}", stats.json());
    }
    match finished.code() {
        0 => assert_eq!(messages(&finished.stderr), Vec::<&str>::new(), "{finished}"),
        SIGBUS => assert!(!messages(&finished.stderr).is_empty(), "SIGBUS without a word\n{finished}"),
        _ => panic!("{plan}: neither the right data nor SIGBUS\n{finished}"),
    }
}

/// A link that is reset, a path that is changed: all reads fail for a moment, one after the other.
#[test]
fn a_store_that_cannot_be_read_for_a_moment_loses_nothing() {
    let test = TempDir::new("moment");
    // Pages in a random order: most are read alone, for a thread that waits.
    let launch = Launch::new(&test, c_program("returns")).args(["96", "alone"]).time_limit(Duration::from_secs(120));
    let budget =
        budget().flag("--compressor").flag("none").flag("--fault-injection").flag("eio-read:after=300,until=320");
    for _ in 0..repeat() {
        let mut running = launch.under(&budget);
        running.wait_until("all is written", |running| running.stdout_so_far().contains("ready"));
        std::thread::sleep(Duration::from_secs(1));
        File::create(launch.work().join("stop")).expect("a file in an own directory");
        let finished = running.finish();
        assert_eq!((finished.code(), messages(&finished.stderr)), (0, Vec::new()), "{finished}");
        if let Some(stats) = &finished.stats {
            assert!(stats.counter("read_errors") >= 10, "no read has failed\n{:#}", stats.json());
        }
        std::fs::remove_file(launch.work().join("stop")).expect("made above");
    }
}

/// From some moment on no read succeeds. Without a handler the program dies of it; with one it loses exactly the
/// pages that uswap names, one line each, and no others.
fn loses_pages(plan: &str, counter: &str) {
    for _ in 0..repeat().div_ceil(2) {
        let died = run_with(plan, "3", "die");
        if bare_only() {
            return;
        }
        assert_eq!(died.code(), SIGBUS, "{plan}\n{died}");
        let caught = run_with(plan, "3", "catch");
        let lost = lost(&caught);
        let counted = caught.stats.as_ref().map_or(0, |stats| stats.counter(counter));
        eprintln!("{plan}: {lost} pages lost, {counter} {counted}");
        assert!(lost > 0 && counted > 0, "{plan} did nothing\n{caught}");
        for (finished, at_least) in [(&died, 1), (&caught, lost as usize)] {
            let lines = messages(&finished.stderr);
            let other = lines.iter().find(|line| !line.contains("is lost"));
            assert_eq!(other, None, "one line for each lost page, and no other\n{finished}");
            assert!(lines.len() >= at_least, "{lost} pages lost, {} lines\n{finished}", lines.len());
        }
    }
}

/// Nothing is lost, whatever the writes do.
fn loses_nothing(plan: &str, counter: &str) -> Finished {
    let finished = run_with(plan, "4", "catch");
    if !bare_only() {
        assert_eq!(lost(&finished), 0, "{plan}: a failed write must lose nothing\n{finished}");
        let stats = finished.stats.as_ref().expect("statistics");
        assert!(stats.counter(counter) > 0, "{plan} did nothing\n{:#}", stats.json());
        assert_eq!(stats.number("checksum_failures"), 0, "{:#}", stats.json());
    }
    finished
}

#[test]
fn without_faults_nothing_is_lost() {
    let test = TempDir::new("no-faults");
    let finished = lossy(&test, "3", "catch").under(&budget()).finish();
    assert_eq!(lost(&finished), 0, "{finished}");
    finished.assert_swapped();
    assert_eq!(messages(&finished.stderr), Vec::<&str>::new());
    if let Some(stats) = &finished.stats {
        assert!(stats.counter("pswpout") > 1000, "it did not go to the area: {:#}", stats.json());
    }
}

/// Faults of several threads are read from the area together; one that fails is read again, and none of the others suffers.
#[test]
fn threads_whose_reads_fail_now_and_then() {
    for (plan, counter) in
        [("eio-read:every=23,after=30", "read_errors"), ("flip-bit:every=23,after=30", "checksum_failures")]
    {
        let test = TempDir::new("threads-faults");
        let launch = Launch::new(&test, c_program("threads")).arg("threads").time_limit(Duration::from_secs(180));
        let finished = launch.under(&budget().flag("--fault-injection").flag(plan)).finish();
        finished.assert_success();
        assert_eq!(finished.text(), launch.bare().finish().text(), "{plan}\n{finished}");
        if let Some(stats) = &finished.stats {
            assert!(stats.counter(counter) > 0, "{plan} did nothing\n{:#}", stats.json());
            assert_eq!(stats.counter("poisoned_pages"), 0, "{:#}", stats.json());
        }
    }
}

#[test]
fn failed_reads_now_and_then() {
    survives_or_says_so("eio-read:every=7,after=30", "read_errors");
}

#[test]
fn short_reads_now_and_then() {
    survives_or_says_so("short-read:every=7,after=30", "read_errors");
}

#[test]
fn flipped_bits_now_and_then() {
    survives_or_says_so("flip-bit:every=7,after=30,seed=3", "checksum_failures");
}

#[test]
fn all_reads_fail() {
    loses_pages("eio-read:every=1,after=300", "read_errors");
}

#[test]
fn all_reads_are_short() {
    loses_pages("short-read:every=1,after=300", "read_errors");
}

#[test]
fn all_reads_have_a_flipped_bit() {
    loses_pages("flip-bit:every=1,after=300,seed=4", "checksum_failures");
}

#[test]
fn failed_writes_now_and_then() {
    loses_nothing("eio-write:every=7", "write_errors");
}

#[test]
fn failed_writes_for_a_while() {
    loses_nothing("eio-write:every=1,after=20,until=60", "write_errors");
}

#[test]
fn short_writes() {
    loses_nothing("short-write:every=5", "write_errors");
}

/// What cannot be written stays in memory; the budget cannot be kept then, and uswap says so, but not each time.
#[test]
fn all_writes_fail() {
    let finished = loses_nothing("eio-write:every=1,after=5", "write_errors");
    if !bare_only() {
        let lines = messages(&finished.stderr).len();
        assert!((1..=2).contains(&lines), "one warning, and one when the area is given up\n{finished}");
    }
}

#[test]
fn no_space_for_a_while() {
    let finished = loses_nothing("enospc:every=1,after=20,until=60", "no_space");
    if !bare_only() {
        assert_eq!(messages(&finished.stderr).len(), 1, "one warning\n{finished}");
    }
}

#[test]
fn never_any_space() {
    let finished = loses_nothing("enospc:every=1", "no_space");
    if !bare_only() {
        assert_eq!(messages(&finished.stderr).len(), 1, "one warning, not one per write\n{finished}");
    }
}

// --- a file system that really is full ---

/// Unmounts on drop.
struct Mount<'a> {
    place: &'a Path,
}

impl Mount<'_> {
    fn new<'a>(place: &'a Path, arguments: &[&str]) -> Option<Mount<'a>> {
        let done = tool(Command::new("mount").args(arguments).arg(place));
        if !done.status.success() {
            skip(&format!("mount is refused: {}", String::from_utf8_lossy(&done.stderr).trim()));
            return None;
        }
        let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(place, everyone).expect("mode of an own directory");
        Some(Mount { place })
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        for _ in 0..50 {
            if tool(Command::new("umount").arg(self.place)).status.success() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        eprintln!("cannot unmount {}", self.place.display());
    }
}

/// Messages of ours, but for the one before the start that says that a tmpfs is in RAM.
fn said_while_running(stderr: &str) -> usize {
    messages(stderr).iter().filter(|line| !line.contains("it is in RAM")).count()
}

/// A file system of 256 MiB with 16 MiB left. Space comes back while the program runs.
fn full_file_system(test: &TempDir, place: &Path, flags: impl Fn(Budget) -> Budget) {
    let filler = place.join("filler");
    let bytes = 240 * MIB;
    let mut file = File::create(&filler).expect("a writable file system");
    let mut random = Random::new(1);
    let block: Vec<u8> = (0..MIB / 8).flat_map(|_| random.word().to_le_bytes()).collect();
    for _ in 0..bytes / MIB {
        // The last ones may find no space, which is the purpose.
        if std::io::Write::write_all(&mut file, &block).is_err() {
            break;
        }
    }
    file.sync_all().expect("a written file");
    drop(file);
    let program = lossy(test, "24", "catch").env("USWAP_SWAP_DIR", place);
    let mut running = program.under(&flags(budget()));
    let begun = Instant::now();
    if !bare_only() {
        running.wait_until("a warning that the file system is full", |running| {
            said_while_running(&running.stderr_so_far()) > 0
        });
    }
    std::thread::sleep(Duration::from_millis(300));
    std::fs::remove_file(&filler).expect("an own file");
    let freed = begun.elapsed();
    let finished = running.finish();
    assert_eq!(lost(&finished), 0, "a full file system must lose nothing\n{finished}");
    if bare_only() {
        return;
    }
    assert_eq!(said_while_running(&finished.stderr), 1, "it warns once\n{finished}");
    let allowed = BUDGET_MIB * MIB + 16 * MIB;
    let after: Vec<u64> =
        finished.samples.list.iter().filter(|sample| sample.at > freed).map(|sample| sample.resident()).collect();
    let last = &after[after.len() / 2..];
    assert!(
        last.iter().any(|&resident| resident > MIB && resident <= allowed),
        "space came back, but memory did not go down: {:?} MiB\n{finished}",
        last.iter().map(|resident| resident / MIB).collect::<Vec<_>>()
    );
}

#[test]
fn full_tmpfs_that_gets_space_again() {
    if !is_root() {
        skip("mounting needs root");
        return;
    }
    let test = TempDir::new("tmpfs");
    let place = test.subdirectory("mount");
    let Some(_mount) = Mount::new(&place, &["-t", "tmpfs", "-o", "size=256m", "uswap-e2e"]) else {
        return;
    };
    let spec = format!("file:{},size=256M", place.join("area").display());
    full_file_system(&test, &place, |budget| budget.flag("--swap").flag(&spec));
}

#[test]
fn full_ext4_that_gets_space_again() {
    if !is_root() {
        skip("mounting needs root");
        return;
    }
    let Some(mkfs) = need("mkfs.ext4", "e2fsprogs") else {
        return;
    };
    let test = TempDir::new("ext4");
    let image = test.join("image");
    File::create(&image).and_then(|file| file.set_len(288 * MIB)).expect("space for an image");
    let made = tool(Command::new(mkfs).args(["-q", "-m", "0"]).arg(&image));
    assert!(made.status.success(), "mkfs.ext4: {}", String::from_utf8_lossy(&made.stderr));
    let place = test.subdirectory("mount");
    let image = image.to_str().expect("a plain path");
    let Some(_mount) = Mount::new(&place, &["-o", "loop", image]) else {
        return;
    };
    full_file_system(&test, &place, |budget| budget);
}
