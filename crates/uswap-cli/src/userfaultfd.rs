//! userfaultfd, without which uswap can do nothing: where it is to be had, and what is said when it is refused.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use uswap_sys::uffd::{Features, Uffd, UffdUnavailable};

use crate::failure::Failure;

/// The device, preferred over the syscall: file permissions are easier to give than capabilities, and container
/// seccomp filters do not see it.
pub const DEVICE: &str = "/dev/userfaultfd";

/// What the agent asks its descriptor for.
pub const NEEDED: Features =
    Features::EVENT_REMAP.with(Features::EVENT_REMOVE).with(Features::EVENT_UNMAP).with(Features::MOVE);

/// How to get permission, in the order of how little it gives away.
pub const HOW_TO_GET_PERMISSION: &str = "as root, 'chmod 666 /dev/userfaultfd' or 'sysctl \
    vm.unprivileged_userfaultfd=1'; in a container, '--device /dev/userfaultfd'";

/// A way to get userfaultfds.
pub struct Source {
    /// The device, unless the syscall is the way.
    pub device: Option<OwnedFd>,
}

/// Opens the device.
pub fn open_device() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(DEVICE)
}

/// Finds the way that works here.
pub fn find() -> Result<Source, Failure> {
    // A security module may refuse one way and allow the other, and anything may have this name.
    if let Ok(device) = open_device()
        && let Ok(features) = Uffd::available(Some(device.as_fd()))
    {
        judge(features)?;
        return Ok(Source { device: Some(device.into()) });
    }
    judge(Uffd::available(None).map_err(|error| explain(as_refusal(error, kernel_has_all())))?)?;
    Ok(Source { device: None })
}

/// A container's filter may say of calls that it refuses that there are none (ENOSYS).
fn as_refusal(unavailable: UffdUnavailable, kernel_has_all: bool) -> UffdUnavailable {
    match unavailable {
        UffdUnavailable::NotSupported(Features::NONE) if kernel_has_all => UffdUnavailable::NoPermission,
        other => other,
    }
}

/// Whether this is Linux 6.8 or later.
fn kernel_has_all() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6u32, 8u32)
}

fn judge(features: Features) -> Result<(), Failure> {
    let missing = NEEDED.without(features);
    if missing.is_empty() { Ok(()) } else { Err(explain(UffdUnavailable::NotSupported(missing))) }
}

fn explain(unavailable: UffdUnavailable) -> Failure {
    match unavailable {
        UffdUnavailable::NoPermission => {
            Failure::ours(format!("no permission to use userfaultfd: {HOW_TO_GET_PERMISSION}"))
        }
        UffdUnavailable::NotSupported(_) => {
            let release = rustix::system::uname().release().to_string_lossy().into_owned();
            Failure::ours(format!("{unavailable}: Linux 6.8 or later is needed, this is {release}"))
        }
        other => Failure::ours(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_move_is_refused_with_the_version_that_has_it() {
        let text = judge(NEEDED.without(Features::MOVE)).unwrap_err().to_string();
        assert!(text.contains("MOVE") && text.contains("6.8"), "{text}");
        assert!(judge(NEEDED).is_ok());
    }

    #[test]
    fn a_call_that_a_filter_denies_to_exist_is_refused() {
        let denied = || UffdUnavailable::NotSupported(Features::NONE);
        assert!(matches!(as_refusal(denied(), true), UffdUnavailable::NoPermission));
        assert!(matches!(as_refusal(denied(), false), UffdUnavailable::NotSupported(_)));
        assert!(kernel_has_all() || Uffd::available(None).is_err());
    }

    #[test]
    fn without_permission_the_ways_to_get_it_are_said() {
        let text = explain(UffdUnavailable::NoPermission).to_string();
        for way in ["/dev/userfaultfd", "vm.unprivileged_userfaultfd=1", "--device"] {
            assert!(text.contains(way), "{text}");
        }
    }
}
