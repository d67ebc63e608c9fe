//! Job control on a real terminal: keys, stops and continuing go as they do without uswap (`programs/terminal.py`).

use std::time::Duration;

use uswap_e2e::{Launch, TempDir, bare_only, need, script, uswap_binary};

fn goes_as_without_uswap(case: &str) {
    let (Some(python), Some(_), Some(_)) = (need("python3", "python3"), need("bash", "bash"), need("top", "procps"))
    else {
        return;
    };
    if bare_only() {
        return;
    }
    let test = TempDir::new(case);
    let launch = Launch::new(&test, python)
        .arg(script("terminal.py"))
        .arg(uswap_binary())
        .arg(case)
        .time_limit(Duration::from_secs(240));
    let finished = launch.bare().finish();
    assert_eq!((finished.code(), finished.text()), (0, format!("{case}: ok\n")), "{finished}");
}

macro_rules! cases {
    ($($test:ident,)*) => {
        $(#[test] fn $test() { goes_as_without_uswap(stringify!($test)); })*
    };
}

cases! {
    top_which_stops_itself,
    cat,
    top_below_a_shell,
    timeout_outside,
    timeout_outside_runs_out,
    ctrl_c,
    ctrl_backslash,
    ctrl_c_is_handled,
    ctrl_c_with_timeout_inside,
    the_window_changes_its_size,
    output_in_the_background_with_tostop,
    input_in_the_background,
    background_and_foreground,
    a_pipeline,
    a_shell_with_job_control_inside,
    jobs_by_kill,
    closed_while_it_runs,
    closed_while_it_is_stopped,
    the_leader_of_a_session,
    a_program_that_stops_itself_by_sigstop,
    suspend_of_a_shell,
}
