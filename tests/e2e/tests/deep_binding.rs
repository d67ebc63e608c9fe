//! Libraries that a program opens with RTLD_DEEPBIND, which find libc's functions before the agent's; and functions that are looked up
//! in libc itself.

use std::time::Duration;

use uswap_e2e::{Budget, Finished, Launch, MIB, TempDir, c_library, c_library_with, c_program, need_charges};

const BUDGET_MIB: u64 = 64;

/// The program, beside its libraries: the last lies where only one of the others looks for it.
fn launch(test: &TempDir, arguments: &[&str]) -> Launch {
    let launch = Launch::new(test, c_program("deep")).args(arguments).time_limit(Duration::from_secs(120));
    let plugin = c_library("deep_plugin");
    let place = plugin.parent().expect("a file in a directory").display();
    let needs = [
        format!("-L{place}"),
        "-l:deep_plugin.so".into(),
        "-Wl,--enable-new-dtags,-rpath,$ORIGIN:$ORIGIN/found".into(),
    ];
    test.subdirectory("work/found");
    for (library, copy) in [
        (&plugin, "deep_plugin.so"),
        (&plugin, "deep_plugin.so.copy"),
        (&plugin, "found/deep_found.so"),
        (&c_library("deep_own"), "deep_own.so"),
        (&c_library_with("deep_caller", &needs), "deep_caller.so"),
    ] {
        std::fs::copy(library, test.join(&format!("work/{copy}"))).expect("a copy of the library");
    }
    launch
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

fn run(case: &str, binding: &str) -> Finished {
    let test = TempDir::new(&format!("deep-{case}-{binding}"));
    let launch = launch(&test, &[case, binding]);
    let finished = says_with_and_without(&launch, &format!("ok {case}\n"));
    finished.assert_swapped();
    finished
}

macro_rules! cases {
    ($($name:ident = $case:literal,)*) => {
        $(#[test]
        fn $name() {
            run($case, "now");
            run($case, "lazy");
        })*
    };
}

cases! {
    a_constructor_maps_shared_memory = "constructor",
    shared_memory_of_a_library_that_another_needs = "needed",
    shared_memory_by_the_address_of_mmap = "address",
    advice_of_a_library = "advice",
    advice_by_a_function_that_was_looked_up_in_libc = "looked-up",
    the_path_of_the_library_that_calls_dlopen_is_looked_at = "runpath",
    a_constructor_opens_another = "nested",
    a_library_keeps_its_own_mmap = "own",
    threads_open_and_close_at_once = "threads",
    what_the_agent_wraps_is_found_in_libc = "names",
}

/// By the kernel's own count. It has 160 MiB, which are adopted a moment after they are filled, on a busy machine a longer one.
#[test]
fn shared_memory_of_a_library_counts_and_is_swapped() {
    if !need_charges() {
        return;
    }
    for binding in ["now", "lazy"] {
        let test = TempDir::new(&format!("deep-shared-{binding}"));
        let launch = launch(&test, &["shared", binding]).charged();
        let finished = says_with_and_without(&launch, "ok shared\n");
        finished.assert_swapped();
        let (peak, limit) = (finished.charges.peak(), 2 * BUDGET_MIB * MIB);
        assert!(peak <= limit, "{} MiB of {BUDGET_MIB}\n{finished}", peak / MIB);
    }
}

/// It looks for the next function each time that it is called.
fn replaces(preload: &str) {
    let test = TempDir::new("deep-replaced");
    drop(launch(&test, &[]));
    let script = format!("LD_PRELOAD={preload} exec {} replaced", c_program("deep").display());
    let launch = Launch::new(&test, "bash").args(["-c", &script]).time_limit(Duration::from_secs(120));
    says_with_and_without(&launch, "ok replaced\n");
}

#[test]
fn a_library_between_the_agent_and_libc_is_not_asked_for_ever() {
    replaces(&format!("$LD_PRELOAD:{}", c_library("deep_first").display()));
}

#[test]
fn a_library_in_front_of_the_agent_is_not_asked_for_ever() {
    replaces(&format!("{}:$LD_PRELOAD", c_library("deep_first").display()));
}
