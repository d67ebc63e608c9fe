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
    if let Ok(device) = open_device() {
        match Uffd::available(Some(device.as_fd())) {
            Ok(features) => {
                judge(features)?;
                return Ok(Source { device: Some(device.into()) });
            }
            // A security module may refuse one way and allow the other.
            Err(UffdUnavailable::NoPermission) => {}
            Err(other) => return Err(explain(other)),
        }
    }
    judge(Uffd::available(None).map_err(explain)?)?;
    Ok(Source { device: None })
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
    fn without_permission_the_ways_to_get_it_are_said() {
        let text = explain(UffdUnavailable::NoPermission).to_string();
        for way in ["/dev/userfaultfd", "vm.unprivileged_userfaultfd=1", "--device"] {
            assert!(text.contains(way), "{text}");
        }
    }
}
