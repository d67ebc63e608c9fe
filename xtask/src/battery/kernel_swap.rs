//! The kernel's own swap, on for one run.
//!
//! It is machine-wide, so it must go off however we end. A guardian does that: a shell that waits for the end of its
//! standard input, which comes when we close it, and also when we are killed.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::part::Swap;

const SIZE: &str = "4G";

/// Swap that is on until this is dropped.
pub struct KernelSwap {
    guardian: Child,
}

impl KernelSwap {
    /// Turns swap on; `directory` is where a file would lie.
    pub fn on(swap: Swap, directory: &Path) -> Result<KernelSwap, String> {
        if std::fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1) {
            return Err("this part sets up the kernel's swap by itself: turn off what is on (swapoff -a)".to_owned());
        }
        let file = directory.join("kernel-swap");
        let off = r#"trap "" INT TERM HUP; cat >/dev/null; swapoff "$0"; "#;
        let (on, off) = match swap {
            Swap::File => (
                format!(
                    r#"rm -f "$0" && fallocate -l {SIZE} "$0" && chmod 600 "$0" && mkswap "$0" >/dev/null && echo "$0""#
                ),
                format!(r#"{off}rm -f "$0""#),
            ),
            Swap::Zram => (
                format!(
                    r#"{{ [ -e /sys/class/zram-control ] || modprobe zram; }} && n=$(cat /sys/class/zram-control/hot_add) &&
                    echo {SIZE} >/sys/block/zram$n/disksize && mkswap /dev/zram$n >/dev/null && echo /dev/zram$n"#
                ),
                format!(
                    r#"{off}n=${{0#/dev/zram}}; echo 1 >/sys/block/zram$n/reset; echo $n >/sys/class/zram-control/hot_remove"#
                ),
            ),
        };
        let made = Command::new("/bin/sh").arg("-c").arg(on).arg(&file).output();
        let made = made.map_err(|error| format!("/bin/sh: {error}"))?;
        if !made.status.success() {
            return Err(format!("cannot make {swap:?} to swap to: {}", String::from_utf8_lossy(&made.stderr).trim()));
        }
        let device = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        let guardian = Command::new("/bin/sh").arg("-c").arg(off).arg(&device).stdin(Stdio::piped()).spawn();
        let guard = KernelSwap { guardian: guardian.map_err(|error| format!("/bin/sh: {error}"))? };
        let on = Command::new("swapon").arg(&device).output().map_err(|error| format!("swapon: {error}"))?;
        if on.status.success() {
            Ok(guard)
        } else {
            Err(format!("swapon {device}: {}", String::from_utf8_lossy(&on.stderr).trim()))
        }
    }
}

impl Drop for KernelSwap {
    fn drop(&mut self) {
        drop(self.guardian.stdin.take());
        if let Err(error) = self.guardian.wait() {
            eprintln!("xtask: swapoff: {error}");
        }
    }
}

/// Pages that the kernel has swapped out since the machine was started.
pub fn pages_out() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("pswpout "));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}
