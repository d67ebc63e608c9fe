//! Programs that give up root, and what they execute then, are managed like all others.

use std::path::{Path, PathBuf};
use std::time::Duration;

use uswap_e2e::{Budget, Finished, Launch, Running, TempDir, c_program, c_static_program, is_root, need, skip};

const BUDGET_MIB: u64 = 64;
const SETPRIV: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

const PERL: &str =
    "use POSIX; POSIX::close($_) for 3..255; ($), $() = (65534, 65534); ($>, $<) = (65534, 65534); exec @ARGV";

/// The test's directory, and a program in it; `None` without root.
fn program(test: &str, name: &str) -> Option<(TempDir, PathBuf)> {
    if !is_root() {
        skip("it needs root");
        return None;
    }
    let test = TempDir::new(test);
    let program = for_everybody(&test, &c_program(name));
    Some((test, program))
}

/// A copy that everybody may execute.
fn for_everybody(test: &TempDir, program: &Path) -> PathBuf {
    let name = program.file_name().expect("a program").to_str().expect("a plain name");
    let copy = test.subdirectory("work").join(name);
    std::fs::copy(program, &copy).expect("a copy of the program");
    let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&copy, everyone).expect("mode of an own file");
    copy
}

/// Runs it without uswap and under it; returns the latter.
fn compare(launch: &Launch, flags: &[&str]) -> Finished {
    let launch = launch.clone().time_limit(Duration::from_secs(60));
    let recorded = launch.bare().finish();
    assert!(recorded.code() == 0 && recorded.stderr.is_empty(), "wrong without uswap\n{recorded}");
    let budget = flags.iter().fold(Budget::mib(BUDGET_MIB), |budget, flag| budget.flag(flag));
    let finished = launch.under(&budget).finish();
    assert_eq!((finished.code(), finished.text()), (0, recorded.text()), "{finished}");
    finished
}

/// Not a word on standard error: neither from uswap nor from the loader.
fn assert_silent(finished: &Finished) {
    assert_eq!(finished.stderr, "", "{finished}");
}

#[test]
fn all_ways_to_execute_a_program_as_another_user() {
    let Some((test, program)) = program("ways", "users") else { return };
    assert_silent(&compare(&Launch::new(&test, program).arg("all-ways"), &[]));
}

#[test]
fn memory_is_swapped_out_before_and_after_the_user_changes() {
    let Some((test, program)) = program("change", "users") else { return };
    let finished = compare(&Launch::new(&test, program).arg("swapping"), &[]);
    assert_silent(&finished);
    finished.assert_swapped();
}

#[test]
fn failed_exec_as_another_user() {
    let Some((test, program)) = program("failing", "users") else { return };
    compare(&Launch::new(&test, program).arg("failing"), &[]);
}

#[test]
fn programs_that_change_the_user() {
    let (Some(setpriv), Some(su)) = (need("setpriv", "util-linux"), need("su", "util-linux")) else { return };
    let Some((test, program)) = program("setpriv", "memory") else { return };
    let script = format!("{} mprotect", program.display());
    let emptied = format!("exec env -i ${{USWAP_E2E_SWAPS:+USWAP_E2E_SWAPS=1}} {script}");
    let launches = [
        Launch::new(&test, &setpriv).args(SETPRIV).args(["bash", "-c", &format!("{script} && {script}")]),
        // Descriptors are closed, and the environment is made anew.
        Launch::new(&test, "perl").args(["-e", PERL, "sh", "-c", &emptied]),
        Launch::new(&test, su).args(["-s", "/bin/sh", "nobody", "-c", &script]),
        // Root without its capabilities is another user.
        Launch::new(&test, setpriv).args(["--bounding-set=-all", "--inh-caps=-all"]).arg(&program).arg("mprotect"),
    ];
    for launch in launches {
        let finished = compare(&launch, &[]);
        assert_silent(&finished);
        finished.assert_swapped();
    }
}

/// Static programs cannot be wrapped: what they execute finds the agent by a descriptor, of which nothing is to be seen.
#[test]
fn a_static_program_that_changes_the_user() {
    let Some((test, program)) = program("static", "memory") else { return };
    let become_nobody = for_everybody(&test, &c_static_program("become"));
    let script = format!(
        "{0} bash -c 'echo /proc/self/fd/*; {1} mprotect && env -i ${{USWAP_E2E_SWAPS:+USWAP_E2E_SWAPS=1}} {1} mprotect'; \
         {0} /no/such/program 2>&1; PATH=/nowhere:$PWD:/usr/bin:/bin env become.static sh -c 'echo $0'",
        become_nobody.display(),
        program.display()
    );
    let finished = compare(&Launch::new(&test, "bash").args(["-c", &script]), &[]);
    assert_silent(&finished);
    finished.assert_swapped();
}

/// `--stats` and the rest work as ever, and whoever stays behind is served after the command has ended.
#[test]
fn daemon_of_another_user_outlives_the_program() {
    let Some(setpriv) = need("setpriv", "util-linux") else { return };
    let Some((test, program)) = program("daemon", "memory") else { return };
    let script = format!("(sleep 0.5; {} mprotect >result.tmp 2>&1; mv result.tmp result) & exit 3", program.display());
    let launch = Launch::new(&test, setpriv).args(SETPRIV).args(["bash", "-c", &script]);
    let finished = launch.under(&Budget::mib(BUDGET_MIB)).finish();
    assert_eq!(finished.code(), 3, "{finished}");
    let begun = std::time::Instant::now();
    while !launch.work().join("result").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the daemon did not finish\n{finished}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(std::fs::read_to_string(launch.work().join("result")).expect("its output"), "ok mprotect\n");
}

/// A user may end all processes that it owns, the one that keeps the agent for it too.
#[test]
fn the_user_ends_all_its_processes() {
    let (Some(setpriv), Some(pkill)) = (need("setpriv", "util-linux"), need("pkill", "procps")) else { return };
    let Some((test, program)) = program("ends", "memory") else { return };
    let nobody = format!("{} {}", setpriv.display(), SETPRIV.join(" "));
    let pkill = format!("{} -KILL -u 65534 -x uswap-anchor", pkill.display());
    let script = format!("{nobody} true; {pkill}; {nobody} {} mprotect", program.display());
    let launch = Launch::new(&test, "bash").args(["-c", &script]);
    let finished = compare(&launch, &[]);
    assert_silent(&finished);
    finished.assert_swapped();
}

/// An anchor that was killed a moment ago is not taken for one that opens the agent: what runs next is managed each time.
#[test]
fn what_follows_the_end_of_its_users_processes_is_managed() {
    let (Some(setpriv), Some(pgrep)) = (need("setpriv", "util-linux"), need("pgrep", "procps")) else { return };
    let Some((test, _)) = program("ends-again", "users") else { return };
    let script = format!(
        "nobody='{} {}'; for i in $(seq 100); do $nobody true; \
         kill -KILL $({} -P $PPID -u 65534 -x uswap-anchor) 2> /dev/null; \
         $nobody grep -q \"${{USWAP_E2E_SWAPS:+uswap-agent}}\" /proc/self/maps || echo \"unmanaged: $i\"; done",
        setpriv.display(),
        SETPRIV.join(" "),
        pgrep.display()
    );
    assert_silent(&compare(&Launch::new(&test, "bash").args(["-c", &script]), &[]));
}

/// Without /proc there is no path to the agent: the program runs, unmanaged, and one line says so.
#[test]
fn another_root_directory() {
    let Some(chroot) = need("chroot", "coreutils") else { return };
    let Some((test, _)) = program("chroot", "users") else { return };
    let root = test.subdirectory("work/root");
    for place in ["lib", "lib64", "usr", "bin"] {
        let real = Path::new("/").join(place);
        if real.is_symlink() {
            std::os::unix::fs::symlink(std::fs::read_link(&real).expect("a link"), root.join(place)).expect("a link");
        } else if real.exists() {
            std::fs::create_dir(root.join(place)).expect("a directory");
        }
    }
    let script = format!(
        "for d in usr lib lib64 bin; do [ -L /$d ] || [ ! -d /$d ] || mount --bind /$d {0}/$d; done; \
         {1} {0} /bin/sh -c 'echo there; /bin/true'",
        root.display(),
        chroot.display()
    );
    let launch = Launch::new(&test, "unshare").args(["-m", "bash", "-c", &script]);
    let finished = compare(&launch, &[]);
    let lines: Vec<&str> = finished.stderr.lines().collect();
    assert!(matches!(lines[..], [line] if line.starts_with("uswap: ") && line.contains("unmanaged")), "{finished}");
}

/// The supervisor's socket belongs to its network namespace.
#[test]
fn another_network_namespace() {
    let Some((test, program)) = program("network", "users") else { return };
    let finished = compare(&Launch::new(&test, program).arg("network"), &[]);
    assert_silent(&finished);
    finished.assert_swapped();
}

/// What cannot find its supervisor there has not lost it: it runs unmanaged, and is not ended.
#[test]
fn a_child_with_a_network_and_a_proc_of_its_own_lives() {
    let Some((test, program)) = program("own-proc", "users") else { return };
    let finished = compare(&Launch::new(&test, program).arg("own-proc"), &[]);
    assert!(uswap_e2e::bare_only() || finished.stderr.contains("runs unmanaged"), "{finished}");
}

#[test]
fn a_thread_that_is_cancelled_executes_all_the_same() {
    let Some((test, program)) = program("cancelled", "users") else { return };
    assert_silent(&compare(&Launch::new(&test, program).arg("cancelled"), &[]));
}

/// The loader would read from a pipe that it is given, and wait for ever.
#[test]
fn a_path_of_the_agent_that_is_anothers_in_another_pid_namespace() {
    let Some((test, program)) = program("anothers", "users") else { return };
    let finished = compare(&Launch::new(&test, program).arg("anothers-path"), &[]);
    let is_told = |line: &str| line.contains("runs unmanaged: /proc is another one than the supervisor's");
    assert!(finished.stderr.lines().all(is_told), "{finished}");
}

/// Else it would be another process's, sooner or later, and a user's library there would be loaded as root.
#[test]
fn the_path_of_the_agent_stays_uswaps_as_long_as_a_process_has_it() {
    let Some(python) = need("python3", "python3") else { return };
    let Some((test, _)) = program("stays", "users") else { return };
    // One that nobody wraps starts no others by a descriptor of its own.
    let spawn = "import os, sys; a = sys.argv[1:]; print(os.posix_spawn(a[0], a, os.environ))";
    let survivor = c_static_program("crowd");
    let launch = Launch::new(&test, python).args(["-c", spawn]).arg(&survivor).args(["holds", "1", "5000"]);
    let mut running = launch.under(&Budget::mib(BUDGET_MIB));
    let pid = |running: &Running| running.stdout_so_far().trim().parse::<u32>().ok();
    running.wait_until("somebody outlives the program", |running| pid(running).is_some());
    let pid = pid(&running).expect("just looked");
    // Meanwhile the run ends.
    std::thread::sleep(Duration::from_secs(2));
    let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("it lives for five seconds");
    let preload = environment.split(|&byte| byte == 0).find_map(|variable| variable.strip_prefix(b"LD_PRELOAD="));
    if let Some(preload) = preload {
        let path = std::str::from_utf8(preload).expect("a path of uswap's");
        let there = std::fs::read_link(path).expect("the agent");
        assert!(there.to_string_lossy().contains("uswap-agent"), "{path} is {}", there.display());
    }
    running.finish().assert_success();
}

#[test]
fn a_user_in_hundreds_of_groups_has_a_budget() {
    let Some((test, program)) = program("many-groups", "users") else { return };
    let finished = compare(&Launch::new(&test, program).arg("many-groups"), &[]);
    assert_silent(&finished);
    finished.assert_swapped();
}
