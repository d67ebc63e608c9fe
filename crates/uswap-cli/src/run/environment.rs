//! The environment of the program: the agent in front of what was preloaded before.
//!
//! A service manager names the process that it has started by its pid: sockets and watchdogs are that one's alone. They are
//! the program's, so it gets its own pid there, which it does not have yet.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use uswap_engine::protocol::{AgentFile, SOCKET_VARIABLE, Secret, TOKEN_VARIABLE};
use uswap_sys::launch::Environment;

const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
/// Systemd's, with the pid of whom it means.
const PID_VARIABLES: [&str; 3] = ["LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"];
/// It means the same process as LISTEN_PID, by a number that cannot be known before that process is there.
const LISTEN_PIDFD_VARIABLE: &str = "LISTEN_PIDFDID";

/// What the program gets.
pub fn for_program(
    inherited: impl Iterator<Item = (OsString, OsString)>,
    agent: &str,
    socket: &str,
    secret: &Secret,
) -> Environment {
    let own_pid = std::process::id().to_string();
    let inherited: Vec<(OsString, OsString)> = inherited.collect();
    let is_ours = |name: &OsStr, value: &OsStr| PID_VARIABLES.iter().any(|known| name == *known) && value == &*own_pid;
    let listens = inherited.iter().any(|(name, value)| name == "LISTEN_PID" && is_ours(name, value));
    let mut with_own_pid = Vec::new();
    let mut preload = agent.as_bytes().to_vec();
    let mut strings = Vec::new();
    for (name, value) in inherited {
        if name == PRELOAD_VARIABLE {
            // ld.so takes colons and blanks alike.
            for entry in value.as_bytes().split(|b| matches!(b, b':' | b' ')) {
                // That of an outer `uswap run` is left out: the inner group is a group of its own.
                if !entry.is_empty() && !AgentFile::is_path(entry) {
                    preload.push(b':');
                    preload.extend_from_slice(entry);
                }
            }
        } else if is_ours(&name, &value) {
            with_own_pid.push(CString::new(name.into_vec()).expect("an environment has no null bytes"));
        } else if name != SOCKET_VARIABLE && name != TOKEN_VARIABLE && !(listens && name == LISTEN_PIDFD_VARIABLE) {
            strings.push(assignment(&name, value.as_bytes()));
        }
    }
    strings.push(assignment(OsStr::new(PRELOAD_VARIABLE), &preload));
    strings.push(assignment(OsStr::new(SOCKET_VARIABLE), socket.as_bytes()));
    strings.push(assignment(OsStr::new(TOKEN_VARIABLE), &secret.to_hex()));
    Environment { variables: strings, with_own_pid }
}

fn assignment(name: &OsStr, value: &[u8]) -> CString {
    let mut string = name.to_os_string().into_vec();
    string.push(b'=');
    string.extend_from_slice(value);
    CString::new(string).expect("an environment has no null bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(inherited: &[(&str, &str)]) -> Vec<String> {
        let inherited = inherited.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let strings = for_program(inherited, "/proc/9/fd/4", "name", &Secret::of([0xab; 32]));
        assert!(strings.with_own_pid.is_empty());
        strings.variables.into_iter().map(|s| s.into_string().unwrap()).collect()
    }

    #[test]
    fn the_agent_is_in_front_of_other_libraries() {
        let got = environment(&[("A", "b=c"), ("LD_PRELOAD", "libx.so /y.so"), ("Z", "")]);
        let token = format!("USWAP_TOKEN={}", "ab".repeat(32));
        let preload = "LD_PRELOAD=/proc/9/fd/4:libx.so:/y.so";
        assert_eq!(got, ["A=b=c", "Z=", preload, "USWAP_SOCKET=name", &token]);
    }

    #[test]
    fn what_a_service_manager_means_for_us_is_the_programs() {
        let us = std::process::id().to_string();
        let variables = [("LISTEN_PIDFDID", "77"), ("LISTEN_PID", &us), ("WATCHDOG_PID", &us), ("X_PID", &us)];
        let inherited = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let got = for_program(inherited, "/proc/9/fd/4", "name", &Secret::of([0xab; 32]));
        assert_eq!(got.with_own_pid, [c"LISTEN_PID", c"WATCHDOG_PID"].map(CString::from));
        assert_eq!(got.variables.len(), 4);
        assert_eq!(got.variables[0].to_str().unwrap(), format!("X_PID={us}"));
        // Another's stay as they are.
        assert_eq!(environment(&[("LISTEN_PIDFDID", "77"), ("LISTEN_PID", "0")]).len(), 5);
    }

    #[test]
    fn a_nested_run_drops_the_outer_agent() {
        let outer = [("LD_PRELOAD", "/proc/1/fd/7:libx.so"), ("USWAP_SOCKET", "outer"), ("USWAP_TOKEN", "00")];
        let got = environment(&outer);
        assert_eq!(got.len(), 3);
        assert_eq!(got[0], "LD_PRELOAD=/proc/9/fd/4:libx.so");
        assert_eq!(got[1], "USWAP_SOCKET=name");
    }
}
