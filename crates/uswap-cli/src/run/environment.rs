//! The environment of the program: the agent in front of what was preloaded before.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use uswap_engine::protocol::{AgentFile, SOCKET_VARIABLE, TOKEN_VARIABLE, Token};

const PRELOAD_VARIABLE: &str = "LD_PRELOAD";

/// What the program gets, as `NAME=value` strings.
pub fn for_program(
    inherited: impl Iterator<Item = (OsString, OsString)>,
    agent: &str,
    socket: &str,
    token: &Token,
) -> Vec<CString> {
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
        } else if name != SOCKET_VARIABLE && name != TOKEN_VARIABLE {
            strings.push(assignment(&name, value.as_bytes()));
        }
    }
    strings.push(assignment(OsStr::new(PRELOAD_VARIABLE), &preload));
    strings.push(assignment(OsStr::new(SOCKET_VARIABLE), socket.as_bytes()));
    strings.push(assignment(OsStr::new(TOKEN_VARIABLE), &token.to_hex()));
    strings
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
        let strings = for_program(inherited, "/proc/9/fd/4", "name", &Token([0xab; 16]));
        strings.into_iter().map(|s| s.into_string().unwrap()).collect()
    }

    #[test]
    fn the_agent_is_in_front_of_other_libraries() {
        let got = environment(&[("A", "b=c"), ("LD_PRELOAD", "libx.so /y.so"), ("Z", "")]);
        let token = format!("USWAP_TOKEN={}", "ab".repeat(16));
        let preload = "LD_PRELOAD=/proc/9/fd/4:libx.so:/y.so";
        assert_eq!(got, ["A=b=c", "Z=", preload, "USWAP_SOCKET=name", &token]);
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
