//! Transparent huge pages, which the kernel makes of memory by itself.

use std::time::Duration;

use uswap_e2e::{Budget, Launch, Settings, TempDir, bare_only, c_program, repeat};

/// A child's memory has no userfaultfd until its engine has registered it: holes of it, where pages are swapped out, must not be filled
/// with zeros meanwhile.
#[test]
fn children_have_their_pages_while_the_kernel_makes_huge_ones() {
    let Some(_khugepaged) = Settings::hurried_khugepaged() else { return };
    let test = TempDir::new("huge-pages");
    let launch = Launch::new(&test, c_program("huge")).time_limit(Duration::from_secs(180));
    for _ in 0..repeat() {
        let finished = if bare_only() { launch.bare() } else { launch.under(&Budget::mib(28)) }.finish();
        finished.assert_success();
        assert_eq!(finished.text(), "ok\n", "{finished}");
        if !bare_only() {
            finished.assert_swapped();
        }
    }
}
