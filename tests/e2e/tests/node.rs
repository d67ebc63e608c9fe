//! Node.js in much less memory than its program builds.

use std::time::Duration;

use uswap_e2e::{Budget, Launch, TempDir, need, script};

#[test]
fn node_builds_400_mb_in_100_mib_and_verifies_it() {
    let Some(node) = need("node", "nodejs") else { return };
    let test = TempDir::new("hoard");
    let launch = Launch::new(&test, node).arg(script("hoard.js")).time_limit(Duration::from_secs(180));
    let recorded = launch.bare().finish();
    recorded.assert_success();
    assert_eq!(recorded.text(), "336 buffers, 400000 objects, 0 wrong\n");
    let finished = launch.under(&Budget::mib(100)).finish();
    assert_eq!((finished.code(), finished.text()), (0, recorded.text()), "{finished}");
    finished.assert_swapped();
}
