//! What a program may do must go on working when its memory is swapped out.
//!
//! Each case of the C programs checks itself, and makes sure (mincore) that the memory in question really is out when
//! it matters; here its output and status under uswap are compared with those of a run without.

use std::process::Command;
use std::time::{Duration, Instant};

use uswap_e2e::{
    Budget, Finished, Launch, Running, TempDir, bare_only, c_library, c_program, kill_process, name_of, need, repeat,
    tool, uswap_binary,
};

const BUDGET_MIB: u64 = 64;

fn case(program: &str, name: &str) {
    let test = TempDir::new(name);
    let launch = Launch::new(&test, c_program(program)).arg(name).time_limit(Duration::from_secs(60));
    for (case, library) in [("dlopen", "plugin"), ("constructor-waits", "waits")] {
        if name == case {
            let copy = test.join(&format!("work/{library}.so"));
            std::fs::copy(c_library(library), copy).expect("a copy of the library");
        }
    }
    let recorded = launch.bare().finish();
    assert!(!recorded.stderr.contains("BAD"), "wrong without uswap\n{recorded}");
    for run in 1..=repeat().div_ceil(2) {
        let finished = launch.under(&Budget::mib(BUDGET_MIB)).finish();
        assert!(!finished.stderr.contains("BAD"), "run {run}\n{finished}");
        assert_eq!(finished.code(), recorded.code(), "status of run {run}\n{finished}");
        assert_eq!(finished.text(), recorded.text(), "output of run {run}\n{finished}");
        finished.assert_swapped();
    }
}

/// Ends well and prints `text`, without uswap and under it. Returns the second run.
#[track_caller]
fn says_with_and_without(launch: &Launch, text: &str) -> Finished {
    let recorded = launch.bare().finish();
    assert_eq!((recorded.code(), recorded.text().as_str()), (0, text), "{recorded}");
    let finished = launch.under(&Budget::mib(BUDGET_MIB)).finish();
    assert_eq!((finished.code(), finished.text().as_str()), (0, text), "{finished}");
    finished
}

macro_rules! cases {
    ($program:literal: $($(#[$attribute:meta])? $test:ident = $name:literal,)*) => {
        $(#[test] $(#[$attribute])? fn $test() { case($program, $name); })*
    };
}

cases! { "memory":
    mprotect_of_swapped_memory = "mprotect",
    code_written_swapped_and_called = "code",
    memory_that_is_executable = "executable",
    mlock_brings_in_and_keeps = "mlock",
    mlockall_locks_the_program_alone = "mlockall",
    guards_stay_and_take_content_away = "guards",
    guards_that_are_refused_in_part = "guards-in-part",
    advice_for_a_process_by_itself = "process-advice",
    pages_that_were_given_to_pipes = "vmsplice",
    mremap_grows_shrinks_and_moves = "mremap",
    a_mapping_that_is_refused_over_swapped_memory = "refused-mapping",
    mremap_onto_swapped_memory = "mremap-over",
    mremap_into_the_hole_that_another_thread_leaves = "mremap-holes",
    mremap_of_a_mapping_that_is_mostly_untouched = "mremap-large",
    mremap_of_pieces_by_one_thread_on_one_cpu = "mremap-pieces",
    mremap_between_signals = "mremap-signals",
    mremap_of_mappings_that_are_just_being_adopted = "mremap-own",
    many_small_mappings_and_a_large_one = "many-mappings",
    memory_given_up_before_it_was_adopted = "free-early",
    memory_given_up_that_the_kernel_drops_where_uswap_has_it = "free-dropped",
    nothing_appears_in_a_hole_of_the_program = "hole",
    mremap_dontunmap = "mremap-dontunmap",
    munmap_and_brk = "munmap",
    madvise_dontneed_and_free = "madvise",
    page_tables_that_go_while_their_pages_are_filled = "madvise-tables",
    madvise_dontfork_and_wipeonfork = "madvise-fork",
    madvise_dontfork_and_a_mapping_that_grows = "madvise-fork-grown",
    madvise_dontfork_of_memory_that_is_gone = "madvise-fork-gone",
    madvise_dontfork_of_memory_that_is_gone_before_it_is_managed = "madvise-fork-gone-soon",
    a_child_has_what_a_mapping_grew_by = "fork-grown",
    large_bss_and_data = "bss",
    thread_stacks = "stacks",
    the_main_stack_grows = "main-stack",
    shared_mappings = "shared",
    system_calls_on_swapped_buffers = "io",
    direct_io_on_swapped_buffers = "direct",
    resource_limits = "limits",
    file_size_limit = "limit-fsize",
    the_heap_of_glibc = "heap",
}

cases! { "remaps":
    one_mremap_over_several_mappings = "several",
    one_mremap_over_several_mappings_that_stay = "several-dontunmap",
    mremaps_over_several_mappings_that_are_refused_or_stay_in_place = "several-in-place",
    faults_are_served_while_threads_never_stop_moving_memory = "restless",
    faults_are_served_while_one_thread_never_stops_moving_memory = "restless-alone",
    a_shared_segment_takes_the_place_of_swapped_memory = "attached-over",
    one_thread_calls_faster_than_it_is_reported = "by-one-thread",
    memory_that_children_are_to_have_grows = "advised-and-grown",
}

cases! { "sockets":
    pages_that_were_given_to_sockets_by_send = "send",
    pages_that_were_given_to_sockets_by_sendto = "sendto",
    pages_that_were_given_to_sockets_by_sendmsg = "sendmsg",
    pages_that_were_given_to_sockets_by_sendmmsg = "sendmmsg",
}

cases! { "processes":
    fork_and_rewrite = "fork",
    orphan_reads_what_its_parent_swapped_out = "fork-orphan",
    discard_and_move_right_after_a_fork = "fork-then-discard",
    many_children_at_once = "fork-many",
    forks_while_a_small_process_becomes_large = "fork-growing",
    three_generations = "fork-generations",
    fork_round_libc_fails_loudly = "raw-fork",
    a_child_that_went_round_libc_forks = "raw-fork-forks",
    a_fork_round_libc_by_a_forked_child_fails_loudly = "raw-fork-of-child",
    daemon = "daemon",
    exec_of_itself = "exec",
    exec_from_a_thread = "exec-from-thread",
    failed_exec = "exec-failed",
    exec_and_clone_of_what_cannot_be_read = "exec-unreadable",
    exec_in_a_crash_handler_on_a_small_stack = "exec-small-stack",
    exec_with_an_empty_environment = "exec-empty-environment",
    spawn_vfork_system_and_popen = "spawn",
    descriptor_numbers = "descriptors",
    a_process_that_may_open_nothing_any_more = "no-descriptors",
    closing_all_descriptors = "close-everything",
    end_of_file_on_pipes = "end-of-file",
    setuid_in_a_multi_threaded_program = "setuid",
    process_that_cannot_be_dumped = "undumpable",
    chdir_chroot_and_umask = "directories",
    end_by_sigterm = "end-term",
    end_by_sigkill = "end-kill",
    end_by_raised_sigsegv = "end-segv",
    end_by_sigint = "end-int",
    end_by_sigusr1 = "end-usr1",
    end_by_a_real_fault = "end-fault",
    end_by_abort = "end-abort",
    end_by_underscore_exit = "end-_exit",
    end_by_exit_group = "end-exit_group",
    end_by_exit_with_handlers = "end-exit",
    end_by_exit_in_a_thread = "end-thread",
    end_of_main_by_pthread_exit = "end-pthread_exit",
    end_of_each_thread_alone = "end-alone",
    end_by_return = "end-return",
}

cases! { "threads":
    threads_at_random = "threads",
    threads_on_the_same_pages = "same-page",
    mutexes_and_conditions_in_swapped_memory = "synchronisation",
    pthread_cancel_and_short_threads = "cancel",
    fork_while_other_threads_allocate = "fork-threads",
    fork_from_a_thread = "fork-from-thread",
    atfork_handlers_of_the_program = "fork-handlers",
    more_atfork_handlers_than_libc_has_room_for = "many-fork-handlers",
    threads_of_atfork_handlers_get_signals = "fork-handler-threads",
    sigsegv_handler_as_write_barrier = "write-barrier",
    swapped_alternate_signal_stack = "alternate-stack",
    timer_signals = "timers",
    blocked_signals_stay_pending = "blocked-signals",
    jumping_out_of_handlers = "jumping",
    dlopen_and_dlclose = "dlopen",
    a_constructor_that_waits_for_a_thread = "constructor-waits",
}

cases! { "hostile":
    a_program_that_counts_its_threads_is_alone = "alone",
    two_hundred_threads = "threads-200",
    threads_end_on_swapped_stacks = "exit-storm",
    threads_are_cancelled_while_they_read = "cancel-storm",
    signals_by_the_millisecond = "signal-storm",
    vfork_and_exec_from_four_threads = "vfork-storm",
    double_fork = "double-fork",
    a_tree_of_forks = "fork-bomb",
    a_traced_child = "traced",
    pages_writable_or_executable_in_turn = "write-or-execute",
    a_personality_that_implies_exec = "implied-exec",
    a_userfaultfd_of_the_program = "own-userfaultfd",
    a_userfaultfd_of_the_program_where_adopted_memory_was = "own-userfaultfd-in-place",
    io_uring_with_registered_buffers = "ring-with-buffers",
    kernel_aio = "aio",
    a_mapping_that_grows_down = "grows-down",
    a_sparse_tebibyte = "sparse",
    parts_of_a_reservation = "reservation",
    huge_pages_and_collapse = "huge",
    mergeable_memory = "mergeable",
    populate_by_madvise = "populate",
    private_copies_of_a_sealed_file = "sealed",
    the_break_moves = "break",
    memory_at_large_alignment = "aligned",
    system_calls_whose_arguments_are_out = "system-calls",
    semaphores_and_messages = "sysv",
    robust_mutexes_that_lend_priority = "robust",
    memory_barriers_of_all_threads = "barriers",
    a_thread_with_its_own_files = "namespaces",
}

/// As systemd's TimerSlackNSec has it, for one.
#[test]
fn timers_that_may_be_late() {
    let test = TempDir::new("late-timers");
    let launch = Launch::new(&test, c_program("memory")).arg("mprotect").time_limit(Duration::from_secs(60));
    // This thread's, and of all that it starts.
    let half_a_second = std::num::NonZeroU64::new(500_000_000);
    rustix::thread::set_current_timer_slack(half_a_second).expect("a number of nanoseconds");
    let finished = says_with_and_without(&launch, "ok mprotect\n");
    finished.assert_swapped();
    let peak = finished.stats.as_ref().map_or(0, |stats| stats.number("peak_resident_bytes"));
    // It fills 96 in one go.
    assert!(peak < (BUDGET_MIB + 24) << 20, "{} MiB of {BUDGET_MIB}\n{finished}", peak >> 20);
}

#[test]
fn what_is_sent_with_a_signal_reaches_the_program() {
    let Some(kill) = need("kill", "procps") else { return };
    let test = TempDir::new("values-of-signals");
    let launch = Launch::new(&test, c_program("hostile")).arg("values-of-signals").time_limit(Duration::from_secs(60));
    for mut running in [launch.bare(), launch.under(&Budget::mib(BUDGET_MIB))] {
        running.wait_until("it waits for signals", |running| running.stdout_so_far().contains("ready"));
        let pid = running.id().to_string();
        let send = |arguments: &[&str]| {
            let output = tool(Command::new(&kill).args(arguments).arg(&pid));
            assert!(output.status.success(), "kill {arguments:?}");
        };
        send(&["-s", "USR1", "-q", "77"]);
        running.wait_until("the first has come", |running| running.stdout_so_far().contains("77"));
        send(&["-s", "RTMIN+2", "-q", "78"]);
        running.wait_until("the second has come", |running| running.stdout_so_far().contains("78"));
        send(&["-s", "USR1"]);
        let finished = running.finish();
        let said = "ready\nUSR1 queued 77\nRT queued 78\nUSR1 sent 0\nok values-of-signals\n";
        assert_eq!(finished.text(), said, "{finished}");
    }
}

/// Whatever runs in a forked child before the agent's own handler finds its memory: libc, which goes through all threads,
/// and handlers of libraries that were there first.
#[test]
fn fork_handlers_of_a_library_that_was_first() {
    let test = TempDir::new("early");
    let launch = Launch::new(&test, c_program("processes"))
        .arg("fork")
        .env("LD_PRELOAD", c_library("early"))
        .time_limit(Duration::from_secs(60));
    says_with_and_without(&launch, "ok fork\n").assert_swapped();
}

/// Its constructor gives advice before the agent's has run.
#[test]
fn advice_of_a_library_that_was_first() {
    let test = TempDir::new("early-advice");
    let launch = Launch::new(&test, c_program("memory"))
        .arg("wiped-early")
        .env("LD_PRELOAD", c_library("early"))
        .time_limit(Duration::from_secs(60));
    says_with_and_without(&launch, "ok wiped-early\n").assert_swapped();
}

/// For a thread that is ending the kernel takes no userfault: what it writes then must be in memory.
#[test]
fn a_thread_ends_that_was_cold() {
    let test = TempDir::new("cold");
    let launch = Launch::new(&test, c_program("threads"))
        .arg("end-while-cold")
        .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
        .time_limit(Duration::from_secs(60));
    says_with_and_without(&launch, "ok end-while-cold\n").assert_swapped();
}

/// A program that preloads a library of its own puts it in front of the agent. What it then starts with an empty
/// environment is managed, and does not get that library.
#[test]
fn a_library_in_front_of_the_agent() {
    let test = TempDir::new("front");
    let script = format!(
        "LD_PRELOAD={}:$LD_PRELOAD env env -i ${{USWAP_E2E_SWAPS:+USWAP_E2E_SWAPS=1}} {} mprotect",
        c_library("early").display(),
        c_program("memory").display()
    );
    let launch = Launch::new(&test, "bash").args(["-c", &script]).time_limit(Duration::from_secs(60));
    says_with_and_without(&launch, "ok mprotect\n").assert_swapped();
}

/// A program that has closed its standard error, and opened a file, may have its data there. The agent has something to say: the
/// LD_PRELOAD is too long for it.
#[test]
fn a_file_that_has_the_number_of_standard_error_is_left_alone() {
    let test = TempDir::new("two");
    let script = "printf data > file; exec 2<>file; LD_PRELOAD=$(printf 'libc.so.6:%.0s' {1..220}) /bin/true; cat file";
    let launch = Launch::new(&test, "bash").args(["-c", script]).time_limit(Duration::from_secs(60));
    says_with_and_without(&launch, "data");
}

/// Nor does the program get a signal for what the agent has to say, where nobody reads its standard error any more.
#[test]
fn a_standard_error_without_a_reader_ends_nobody() {
    let test = TempDir::new("no-reader");
    let script = "exec 2> >(:); sleep 0.3; LD_PRELOAD=$(printf 'libc.so.6:%.0s' {1..220}) /bin/true; echo $?";
    let launch = Launch::new(&test, "bash").args(["-c", script]).time_limit(Duration::from_secs(60));
    says_with_and_without(&launch, "0\n");
}

/// A process that may have so few descriptors cannot be managed; one line says so, and it goes on.
#[test]
fn five_descriptors() {
    let test = TempDir::new("five");
    let script = "ulimit -n 5; (sleep 0.05; echo inner); sleep 0.05; echo $?";
    let launch = Launch::new(&test, "bash").args(["-c", script]).time_limit(Duration::from_secs(60));
    let finished = says_with_and_without(&launch, "inner\n0\n");
    assert!(finished.stderr.contains("too few descriptors"), "{finished}");
}

/// Sanitizers have their own memset and clock_gettime, which look into memory that may be swapped out: no handler may call
/// them.
#[test]
fn functions_of_libc_that_a_library_replaces() {
    let test = TempDir::new("shadow");
    let launch = Launch::new(&test, c_program("memory"))
        .arg("mprotect")
        .env("LD_PRELOAD", c_library("shadow"))
        .time_limit(Duration::from_secs(60));
    says_with_and_without(&launch, "ok mprotect\n").assert_swapped();
}

/// Valgrind lets one thread run at a time, and must not wait for a handler. What runs on it is not managed, and one line
/// says so.
#[test]
fn a_program_on_valgrind() {
    let Some(valgrind) = need("valgrind", "valgrind") else { return };
    let test = TempDir::new("valgrind");
    let launch = Launch::new(&test, valgrind)
        .args(["-q", "--error-exitcode=9"])
        .arg(c_program("memory"))
        .arg("valgrind")
        .time_limit(Duration::from_secs(60));
    let recorded = launch.bare().finish();
    assert_eq!((recorded.code(), recorded.text().as_str()), (0, "ok valgrind\n"), "{recorded}");
    let finished = launch.under(&Budget::mib(BUDGET_MIB)).finish();
    assert_eq!((finished.code(), finished.text().as_str()), (0, "ok valgrind\n"), "{finished}");
    assert!(finished.stderr.contains("runs on valgrind"), "{finished}");
}

/// strace stops each thread at each system call, and waits for the memory that it reads then: not for who is stopped by it. Its
/// children, and what they fork, are traced as well.
#[test]
fn a_program_that_strace_follows() {
    let Some(strace) = need("strace", "strace") else { return };
    let test = TempDir::new("strace");
    for (program, name) in [("memory", "io"), ("memory", "fork-grown")] {
        let launch = Launch::new(&test, &strace)
            .args(["-f", "-o", "/dev/null"])
            .arg(c_program(program))
            .arg(name)
            .time_limit(Duration::from_secs(60));
        says_with_and_without(&launch, &format!("ok {name}\n")).assert_swapped();
    }
}

/// `setlock FILE uswap run PROGRAM`: the lock is the process's, which is `uswap run` by then.
#[test]
fn a_lock_that_uswap_run_is_started_with_is_kept() {
    let (Some(python), false) = (need("python3", "python3"), bare_only()) else { return };
    let test = TempDir::new("locked");
    let script = "import fcntl, os, sys\nfile = open('lock', 'w')\nfcntl.lockf(file, fcntl.LOCK_EX)\n\
                  os.set_inheritable(file.fileno(), True)\nos.execv(sys.argv[1], sys.argv[1:])";
    let inner = "import fcntl\ntry: fcntl.lockf(open('lock', 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n\
                 except OSError: print('locked')";
    let launch = Launch::new(&test, &python)
        .args(["-c", script])
        .arg(uswap_binary())
        .args(["run", "-q", "-m", "64M", "--"])
        .arg(&python)
        .args(["-c", inner]);
    let finished = launch.bare().finish();
    assert_eq!((finished.code(), finished.text().as_str()), (0, "locked\n"), "{finished}");
}

/// The loader as a program: it loads what its first argument names.
#[test]
fn the_loader_as_a_program() {
    let test = TempDir::new("loader");
    let loader = "/lib64/ld-linux-x86-64.so.2";
    let launch = Launch::new(&test, loader).arg(c_program("memory")).arg("mprotect");
    let finished = launch.under(&Budget::mib(BUDGET_MIB)).finish();
    assert_eq!((finished.code(), finished.text().as_str()), (0, "ok mprotect\n"), "{finished}");
    finished.assert_swapped();
}

/// `uswap run` passes on the signals that it is sent.
#[test]
fn signals_to_the_supervisor_reach_the_program() {
    let test = TempDir::new("signals");
    for signal in ["TERM", "HUP", "INT", "USR1", "QUIT"] {
        // Not a shell: bash ignores a SIGINT that comes while it waits for a command, if that ends by itself.
        let script = format!(
            "$| = 1; $SIG{{{signal}}} = sub {{ print \"got {signal}\\n\"; exit 42 }}; print \"ready\\n\"; select(undef, undef, undef, 0.02) while 1"
        );
        let launch = Launch::new(&test, "perl").args(["-e", &script]).time_limit(Duration::from_secs(20));
        let mut running = launch.under(&Budget::mib(BUDGET_MIB));
        running.wait_until("the program is ready", |running| running.stdout_so_far() == "ready\n");
        let sent = tool(Command::new("kill").arg(format!("-{signal}")).arg(running.id().to_string()));
        assert!(sent.status.success() && running.id() > 1, "kill -{signal}");
        let begun = Instant::now();
        while running.is_running() && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let finished = running.finish();
        assert_eq!(finished.code(), 42, "SIG{signal}\n{finished}");
        assert_eq!(finished.text(), format!("ready\ngot {signal}\n"));
    }
}

/// Standard input comes through, in a pipeline of several programs.
#[test]
fn pipelines() {
    let test = TempDir::new("pipeline");
    let input = test.join("input");
    let text: String = (0..200_000).map(|number| format!("{}\n", number * 7919 % 1_000_003)).collect();
    std::fs::write(&input, text).expect("space for the input");
    let launch = Launch::new(&test, "bash")
        .args(["-c", "set -o pipefail; sort -n | uniq | tac | tee copy | tail -n 1 && wc -l <copy && exit 7"])
        .stdin(&input);
    let recorded = launch.bare().finish();
    assert_eq!(recorded.text(), "0\n200000\n");
    let finished = launch.under(&Budget::mib(BUDGET_MIB)).finish();
    assert_eq!(finished.text(), recorded.text(), "{finished}");
    assert_eq!(finished.code(), 7, "{finished}");
}

/// What has grown into a place that was unmapped just before is moved away at once: growth is not reported, and the reports are
/// those of the old memory's being moved. It is never taken for that. As nothing of that is in memory, nothing tells where there
/// are other threads, and the process ends and says so; or what was unmapped had been settled before the next call, and all is
/// well.
#[test]
fn what_the_reports_cannot_tell_ends_with_a_line() {
    let test = TempDir::new("unclear");
    let launch =
        Launch::new(&test, c_program("remaps")).arg("grown-and-moved-beside").time_limit(Duration::from_secs(120));
    assert_eq!(launch.bare().finish().text(), "ok grown-and-moved-beside\n");
    let mut ends = 0;
    for _ in 0..4 {
        let finished = launch.under(&Budget::mib(BUDGET_MIB)).finish();
        assert!(!finished.stderr.contains("BAD"), "{finished}");
        match finished.code() {
            0 => assert_eq!(finished.text(), "ok grown-and-moved-beside\n", "{finished}"),
            code => {
                assert_eq!(code, 125, "{finished}");
                let line = "the kernel's reports do not tell which of it is at 0x";
                assert_eq!(finished.stderr.matches(line).count(), 1, "{finished}");
                ends += 1;
            }
        }
    }
    assert!(ends > 0, "it is never seen to end so, and was not tested");
}

/// The calls of a program of one thread are in the order of its reports, which tells that.
#[test]
fn what_one_thread_has_grown_and_moves_is_told() {
    let test = TempDir::new("told");
    let launch = Launch::new(&test, c_program("remaps")).arg("grown-and-moved").time_limit(Duration::from_secs(120));
    for _ in 0..2 {
        let finished = launch.under(&Budget::mib(BUDGET_MIB)).finish();
        assert_eq!((finished.code(), finished.text().as_str()), (0, "ok grown-and-moved\n"), "{finished}");
        finished.assert_swapped();
    }
}

/// A stopped program goes on where it was.
#[test]
fn stop_and_continue() {
    let test = TempDir::new("stop");
    let launch = Launch::new(&test, c_program("memory")).arg("mremap").time_limit(Duration::from_secs(60));
    let running = launch.under(&Budget::mib(BUDGET_MIB));
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(60));
        for signal in ["-STOP", "-CONT"] {
            for pid in running.members() {
                tool(Command::new("kill").arg(signal).arg(pid.to_string()));
            }
            std::thread::sleep(Duration::from_millis(60));
        }
    }
    let finished = running.finish();
    finished.assert_success();
    assert_eq!(finished.text(), "ok mremap\n");
}

/// A daemon that outlives the command's program keeps its memory.
#[test]
fn daemon_that_outlives_the_program() {
    let test = TempDir::new("outlive");
    let script = format!(
        "(exec {} fork >done.tmp 2>&1; true) & disown; ({} mprotect >result.tmp 2>&1; mv result.tmp result) & exit 3",
        c_program("processes").display(),
        c_program("memory").display()
    );
    let launch = Launch::new(&test, "bash").args(["-c", &script]);
    let finished = launch.under(&Budget::mib(BUDGET_MIB)).finish();
    assert_eq!(finished.code(), 3, "{finished}");
    let begun = Instant::now();
    while !launch.work().join("result").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the daemon did not finish\n{finished}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(std::fs::read_to_string(launch.work().join("result")).expect("its output"), "ok mprotect\n");
    assert_eq!(std::fs::read_to_string(launch.work().join("done.tmp")).expect("its output"), "ok fork\n");
}

/// Killed from outside, `uswap run` reports what killed the program.
#[test]
fn program_killed_from_outside() {
    let test = TempDir::new("killed");
    let launch = Launch::new(&test, "sleep").arg("60").time_limit(Duration::from_secs(30));
    let mut running = launch.under(&Budget::mib(BUDGET_MIB));
    let program = |running: &Running| running.members().into_iter().find(|&pid| name_of(pid) == "sleep");
    running.wait_until("the program has been started", |running| program(running).is_some());
    kill_process(program(&running).expect("it has been started"));
    let finished = running.finish();
    assert_eq!(finished.code(), 128 + 9, "{finished}");
}
