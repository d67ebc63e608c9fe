//! A swap file that somebody truncates, overwrites or deletes while it is in use: what is gone is noticed by its checksum and
//! said, and costs those pages only; and who may change a tree that runs.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use uswap_e2e::{
    Budget, Finished, Launch, MIB, TempDir, bare_only, c_program, is_root, need, skip, tool, uswap_binary,
};

const NOBODY: u32 = 65534;

fn lossy(test: &TempDir, rounds: &str) -> Launch {
    Launch::new(test, c_program("lossy")).args(["96", rounds, "catch"]).time_limit(Duration::from_secs(180))
}

fn budget(area: &Path) -> Budget {
    let spec = format!("file:{},size=256M", area.display());
    let budget = Budget::mib(48).flag("--zpool-percent").flag("0").flag("--swap").flag(spec);
    Budget { quiet: false, ..budget }
}

/// Lets `happen` to the file when there is much on it; returns how the program ended.
fn while_in_use(name: &str, happen: impl Fn(&Path)) -> Option<Finished> {
    let test = TempDir::new(name);
    let area = test.join("area");
    let mut running = lossy(&test, "4").under(&budget(&area));
    if bare_only() {
        running.finish().assert_success();
        return None;
    }
    running.wait_until("32 MiB on the area", |_| fs::metadata(&area).is_ok_and(|file| file.blocks() * 512 > 32 * MIB));
    happen(&area);
    let finished = running.finish();
    // The program has checked each word of each page that it could read.
    assert!(!finished.stderr.contains("BAD"), "wrong data\n{finished}");
    finished.assert_success();
    Some(finished)
}

/// Lines of uswap's, without the summary.
fn messages(finished: &Finished) -> Vec<&str> {
    let ours = finished.stderr.lines().filter(|line| line.starts_with("uswap"));
    ours.filter(|line| !line.starts_with("uswap: peak ")).collect()
}

fn lost(finished: &Finished) -> usize {
    let text = finished.text();
    text.trim().strip_prefix("lost ").and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{finished}"))
}

/// Some pages were lost, each was said to be, and nothing else was said.
fn lost_and_said(finished: &Finished) {
    let lost = lost(finished);
    eprintln!("{lost} pages lost");
    assert!((1..96 * 256).contains(&lost), "{finished}");
    let lines = messages(finished);
    assert_eq!(lines.iter().find(|line| !line.contains("is lost")), None, "{finished}");
    assert!(lines.len() >= lost, "{lost} pages lost, {} lines\n{finished}", lines.len());
}

#[test]
fn truncated_swap_file_costs_only_what_was_on_it() {
    let truncate = |area: &Path| File::options().write(true).open(area).and_then(|file| file.set_len(4 * MIB)).unwrap();
    if let Some(finished) = while_in_use("truncated", truncate) {
        lost_and_said(&finished);
    }
}

#[test]
fn overwritten_swap_file_is_noticed_by_its_checksums() {
    let overwrite = |area: &Path| {
        let file = File::options().write(true).open(area).expect("an own file");
        for place in 1..24 {
            file.write_all_at(&vec![0xa5; MIB as usize], place * MIB).expect("space on the disk");
        }
    };
    if let Some(finished) = while_in_use("overwritten", overwrite) {
        lost_and_said(&finished);
        let stats = finished.stats.as_ref().expect("statistics");
        assert!(stats.number("checksum_failures") > 0, "{:#}", stats.json());
    }
}

#[test]
fn deleted_swap_file_costs_nothing() {
    if let Some(finished) = while_in_use("deleted", |area| fs::remove_file(area).unwrap()) {
        assert_eq!((lost(&finished), messages(&finished)), (0, Vec::new()), "{finished}");
        finished.assert_swapped();
    }
}

/// A file system image begins with a blank kilobyte, a partitioned disk image with a megabyte of next to nothing.
#[test]
fn a_file_system_image_is_not_taken_for_blank() {
    let Some(mkfs) = need("mkfs.ext4", "e2fsprogs") else { return };
    if bare_only() {
        return;
    }
    let test = TempDir::new("image");
    let image = test.join("image");
    File::create(&image).and_then(|file| file.set_len(32 * MIB)).expect("space for an image");
    let made = tool(Command::new(mkfs).args(["-q", "-b", "4096"]).arg(&image));
    assert!(made.status.success(), "mkfs.ext4: {}", String::from_utf8_lossy(&made.stderr));
    let before = fs::read(&image).expect("an own file");
    let run = |spec: String| tool(Command::new(uswap_binary()).args(["run", "-m", "32M", "--swap", &spec, "true"]));
    let refused = run(format!("file:{}", image.display()));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(125), "{said}");
    assert!(said.contains("not blank") && said.contains(",overwrite uses it all the same"), "{said}");
    assert!(fs::read(&image).expect("an own file") == before, "the image was changed");
    // A loop device has it open: not even then.
    if is_root() {
        let place = test.subdirectory("mount");
        let mounted = tool(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&place));
        if !mounted.status.success() {
            skip(&format!("mount is refused: {}", String::from_utf8_lossy(&mounted.stderr).trim()));
            return;
        }
        let refused = run(format!("file:{},overwrite", image.display()));
        let unmounted = tool(Command::new("umount").arg(&place));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(unmounted.status.success(), "umount: {}", String::from_utf8_lossy(&unmounted.stderr));
        assert!(refused.status.code() == Some(125) && said.contains("in use"), "{said}");
    }
    assert!(run(format!("file:{},overwrite", image.display())).status.success());
}

/// A copy of uswap that everybody may execute.
fn for_everybody(test: &TempDir) -> PathBuf {
    let copy = test.join("uswap");
    fs::copy(uswap_binary(), &copy).expect("a copy");
    fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("mode of an own file");
    copy
}

#[test]
fn set_and_swapoff_of_another_user_are_refused() {
    if bare_only() {
        return;
    }
    if !is_root() {
        skip("it needs root, to be somebody else");
        return;
    }
    let test = TempDir::new("another-user");
    let binary = for_everybody(&test);
    let launch = Launch::new(&test, c_program("returns")).args(["32", "alone"]);
    let mut running = launch.under(&Budget::mib(24));
    running.wait_until("all is written", |running| running.stdout_so_far().contains("ready"));
    let pid = running.id().to_string();
    // A /proc may hide other users' processes, too: with `hidepid`, in a namespace of its own.
    let hidden =
        r#"mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@""#;
    for arguments in [vec!["set", "-p", &pid, "-m", "1G"], vec!["swapoff", "-p", &pid]] {
        let mut seen = Command::new(&binary);
        seen.args(&arguments).uid(NOBODY).gid(NOBODY);
        let mut unseen = Command::new("unshare");
        unseen.args(["-m", "sh", "-c", hidden, "sh"]).arg(&binary).args(&arguments);
        for command in [&mut seen, &mut unseen] {
            let output = tool(command);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(125), "{command:?}: {said}");
            assert!(said.contains("be its user, or root") && said.lines().count() == 1, "{command:?}: {said}");
        }
    }
    File::create(launch.work().join("stop")).expect("a file in an own directory");
    let finished = running.finish();
    finished.assert_success();
    let stats = finished.stats.as_ref().expect("statistics");
    assert_eq!(stats.number("memory_limit_bytes"), 24 * MIB, "{:#}", stats.json());
}

#[test]
fn programs_run_at_the_smallest_budget() {
    let Some(python) = need("python3", "python3") else { return };
    let test = TempDir::new("floor");
    let text = "n = 300_000\nprint(sum(map(int, [str(i) for i in range(n)])) == n * (n - 1) // 2)";
    let sort = "seq 1 200000 | sort -r | sort -n | tail -n 1";
    for (launch, expected) in [
        (Launch::new(&test, python).args(["-c", text]), "True\n"),
        (Launch::new(&test, "sh").args(["-c", sort]), "200000\n"),
        (Launch::new(&test, c_program("lossy")).args(["32", "3", "die"]), "lost 0\n"),
    ] {
        let finished = launch.time_limit(Duration::from_secs(120)).under(&Budget::mib(16)).finish();
        finished.assert_success();
        assert_eq!((finished.text().as_str(), finished.stderr.as_str()), (expected, ""), "{finished}");
    }
}
