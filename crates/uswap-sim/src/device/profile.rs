//! What a device can do: built-in profiles, and those of the user, both in TOML.

use serde::Deserialize;

use crate::device::latency::Latency;
use crate::input::{InputError, from_toml, line_of};

/// The built-in profiles.
const BUILT_IN: &str = include_str!("profiles.toml");
/// Where they are, for a message that nobody should ever see.
const BUILT_IN_NAME: &str = "built-in profiles";

/// A device.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What it is called on the command line.
    pub name: String,
    /// What it stands for, and where its numbers are from.
    #[serde(default)]
    pub about: String,
    /// Of a read of one page that waits for nothing.
    pub read_latency: Latency,
    /// Of a write of one page that waits for nothing.
    pub write_latency: Latency,
    /// What each page adds to the latency of its request, in microseconds; other requests go on meanwhile.
    #[serde(default)]
    pub page_transfer_us: f64,
    /// Requests that are worked on at a time.
    pub queue_depth: u32,
    /// Most requests that are begun in a second; none: no limit.
    pub iops: Option<f64>,
    /// Most that all requests together transfer, in MiB/s; none: no limit.
    pub bandwidth_mib_s: Option<f64>,
    /// Most pages that requests for neighbouring slots, submitted together, become one request for.
    pub merge_pages: u32,
    /// The submitter itself does the work (SYNCHRONOUS_IO): RAM disks.
    #[serde(default)]
    pub synchronous: bool,
    /// A page must not change while it is written.
    #[serde(default)]
    pub stable_writes: bool,
    /// A request that begins where the last one ended has no latency but its transfer.
    #[serde(default)]
    pub rotational: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    device: Vec<toml::Spanned<Profile>>,
}

impl Profile {
    /// The built-in profiles.
    pub fn built_in() -> Vec<Profile> {
        Self::parse(BUILT_IN_NAME, BUILT_IN).expect("the built-in profiles are well-formed")
    }

    /// The built-in profile `name`.
    pub fn named(name: &str) -> Option<Profile> {
        Self::built_in().into_iter().find(|profile| profile.name == name)
    }

    /// Reads the profiles of a TOML document with `[[device]]` tables.
    pub fn parse(file: &str, text: &str) -> Result<Vec<Profile>, InputError> {
        let document: Document = from_toml(file, text)?;
        if document.device.is_empty() {
            return Err(InputError::of(file, "no [[device]] in it"));
        }
        let mut profiles: Vec<Profile> = Vec::new();
        for spanned in document.device {
            let line = line_of(text, spanned.span().start);
            let profile = spanned.into_inner();
            if let Some(problem) = profile.problem() {
                return Err(InputError::at(file, line, format!("device '{}': {problem}", profile.name)));
            }
            if profiles.iter().any(|other| other.name == profile.name) {
                return Err(InputError::at(file, line, format!("device '{}' is there twice", profile.name)));
            }
            profiles.push(profile);
        }
        Ok(profiles)
    }

    /// What makes it impossible.
    fn problem(&self) -> Option<String> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        if self.name.is_empty() {
            return Some("it has no name".into());
        }
        if let Some(problem) = self.read_latency.problem() {
            return Some(format!("read_latency: {problem}"));
        }
        if let Some(problem) = self.write_latency.problem() {
            return Some(format!("write_latency: {problem}"));
        }
        if !(0.0..=1e6).contains(&self.page_transfer_us) {
            return Some("page_transfer_us must be from 0 to 1000000".into());
        }
        if self.queue_depth == 0 || self.queue_depth > 65536 {
            return Some("queue_depth must be from 1 to 65536".into());
        }
        if self.merge_pages == 0 || self.merge_pages > 65536 {
            return Some("merge_pages must be from 1 (no merging) to 65536".into());
        }
        if self.iops.is_some_and(|iops| !positive(iops)) {
            return Some("iops must be more than 0; leave it out for no limit".into());
        }
        if self.bandwidth_mib_s.is_some_and(|bandwidth| !positive(bandwidth)) {
            return Some("bandwidth_mib_s must be more than 0; leave it out for no limit".into());
        }
        if self.synchronous && self.rotational {
            return Some("a rotational device cannot be synchronous".into());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "
[[device]]
name = \"x\"
read_latency = { fixed_us = 10 }
write_latency = { fixed_us = 10.5 }
queue_depth = 4
merge_pages = 8
";

    #[test]
    fn the_built_in_profiles_are_there() {
        let names: Vec<String> = Profile::built_in().into_iter().map(|profile| profile.name).collect();
        assert_eq!(names, ["nvme", "virtio", "zram", "brd", "hdd"]);
        assert!(Profile::named("zram").unwrap().synchronous);
        assert_eq!(Profile::named("floppy"), None);
    }

    #[test]
    fn a_profile_of_the_user_is_read() {
        let profile = Profile::parse("d.toml", GOOD).unwrap().remove(0);
        assert_eq!((profile.read_latency, profile.iops), (Latency::FixedUs(10.0), None));
    }

    #[track_caller]
    fn refused(text: &str, line: usize, part: &str) {
        let error = Profile::parse("d.toml", text).unwrap_err();
        assert_eq!(error.line, Some(line), "{error}");
        assert!(error.to_string().contains(part) && !error.to_string().contains('\n'), "{error}");
    }

    #[test]
    fn an_impossible_profile_is_refused_with_its_line() {
        refused(&GOOD.replace("queue_depth = 4", "queue_depth = 0"), 2, "queue_depth must be");
        refused(&GOOD.replace("fixed_us = 10.5", "fixed_us = -3.0"), 2, "write_latency: fixed_us must be");
        refused(&format!("{GOOD}iops = 0\n"), 2, "iops must be");
        refused(&format!("{GOOD}colour = 3\n"), 8, "colour");
        refused(&format!("{GOOD}{GOOD}"), 9, "'x' is there twice");
        refused("[[device]\n", 1, "");
        assert!(Profile::parse("d.toml", "device = []").unwrap_err().to_string().contains("no [[device]]"));
    }
}
