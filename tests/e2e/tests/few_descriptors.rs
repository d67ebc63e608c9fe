//! A supervisor that has as many descriptors as its hard limit allows.

use std::time::Duration;

use uswap_e2e::{Launch, TempDir, bare_only, c_program, uswap_binary};

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
