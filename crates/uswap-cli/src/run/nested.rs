//! A run inside of another one: its memory counts in the budget around it, and its own budget is never more than that leaves.
//!
//! The inner supervisor is itself a process of the outer tree, with a slot there once its agent has said hello. In that slot it
//! tells what its tree uses, so that the others of the outer tree give way as to any process of theirs; and it takes what they
//! leave, or the fair share of one process, for the limit of its own tree, where that is less than what its user asked for.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use uswap_engine::group::{Group, PAGE_BYTES};
use uswap_engine::protocol::{AgentFile, SOCKET_VARIABLE};

use super::options::MEMORY_BYTES_MIN;
use super::processes::parent_of;
use crate::control::group_file;
use crate::failure::say;

/// How often the outer group is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long our own agent may take to say hello to the outer supervisor. A few milliseconds, mostly.
const PATIENCE: Duration = Duration::from_secs(2);
/// Ancestors that are looked at.
const ANCESTORS_MAX: usize = 64;

/// What this run has to do with one around it.
pub struct Nested {
    outer: Option<Outer>,
    wanted_bytes: u64,
    /// The limit that was last set here. Another one was set by the user.
    set_bytes: u64,
    next_look: Instant,
}

struct Outer {
    group: Group,
    /// Our own slot there, and who we were when it was found.
    slot: Option<(u32, u32)>,
    since: Instant,
}

/// Whether the environment is that of a program under uswap.
fn is_inside_another_run() -> bool {
    let is_agent = |preload: &OsStr| preload.as_bytes().split(|b| matches!(b, b':' | b' ')).any(AgentFile::is_path);
    std::env::var_os(SOCKET_VARIABLE).is_some()
        && std::env::var_os("LD_PRELOAD").is_some_and(|preload| is_agent(&preload))
}

/// The group of the next supervisor among our ancestors.
fn group_around_us() -> Option<Group> {
    let mut pid = std::os::unix::process::parent_id();
    for _ in 0..ANCESTORS_MAX {
        if let Ok(Some(path)) = group_file(pid) {
            return Group::open(OpenOptions::new().read(true).write(true).open(path).ok()?).ok();
        }
        pid = parent_of(pid).filter(|pid| *pid > 1)?;
    }
    None
}

fn not_counted(quiet: bool) {
    if !quiet {
        say("warning: the budget of the 'uswap run' around this one does not count what runs here");
    }
}

impl Nested {
    /// Looks for a run around this one, whose budget `ours` has, before a program of ours runs: what that fills meanwhile would be
    /// beyond the budget around us.
    pub fn find(ours: &Group, quiet: bool) -> Nested {
        let outer = is_inside_another_run().then(group_around_us);
        if matches!(outer, Some(None)) {
            not_counted(quiet);
        }
        Nested::within(outer.flatten(), ours)
    }

    fn within(outer: Option<Group>, ours: &Group) -> Nested {
        let wanted_bytes = ours.limit_bytes();
        let outer = outer.map(|group| Outer { group, slot: None, since: Instant::now() });
        let mut nested = Nested { outer, wanted_bytes, set_bytes: wanted_bytes, next_look: Instant::now() };
        nested.take_limit(ours);
        nested
    }

    /// Tells the outer group what `ours` uses, and takes its limit from there.
    pub fn update(&mut self, ours: &Group, quiet: bool) {
        let now = Instant::now();
        if self.outer.is_none() || now < self.next_look {
            return;
        }
        self.next_look = now + LOOK_EVERY;
        if ours.limit_bytes() != self.set_bytes {
            self.wanted_bytes = ours.limit_bytes();
            self.set_bytes = self.wanted_bytes;
        }
        let outer = self.outer.as_mut().expect("looked at above");
        match outer.own_slot() {
            Some(slot) => outer.group.process(slot).resident.nested_pages.store(ours.usage_pages(), Relaxed),
            None if outer.since.elapsed() > PATIENCE => {
                not_counted(quiet);
                self.outer = None;
                ours.set_limit_bytes(self.wanted_bytes);
                return;
            }
            None => {}
        }
        self.take_limit(ours);
    }

    fn take_limit(&mut self, ours: &Group) {
        let Some(outer) = &self.outer else { return };
        let bytes = self.wanted_bytes.min(outer.room_bytes().max(MEMORY_BYTES_MIN));
        // Every change calls all processes: small ones are not worth that.
        let worth = bytes.abs_diff(self.set_bytes) > self.set_bytes / 64;
        if worth || (bytes == self.wanted_bytes && self.set_bytes != bytes) {
            self.set_bytes = bytes;
            ours.set_limit_bytes(bytes);
        }
    }
}

impl Outer {
    /// What the others of the outer tree leave to ours, or the fair share of one process. As long as we have no slot there, we are
    /// one more than there are.
    fn room_bytes(&self) -> u64 {
        let usage = |slot| self.group.usage_pages_of(slot);
        let nested = |slot| self.group.process(slot).resident.nested_pages.load(Relaxed);
        let (ours, nested) = self.slot.map_or((0, 0), |(slot, _)| (usage(slot), nested(slot)));
        let users = self.group.processes().filter(|(_, slot)| slot.resident_pages() > 0).count() as u64;
        let users = users + u64::from(self.slot.is_none_or(|(slot, _)| self.group.process(slot).resident_pages() == 0));
        let limit = self.group.limit_pages();
        let others = self.group.usage_pages().saturating_sub(nested);
        let share = (limit / users.max(1)).saturating_sub(ours.saturating_sub(nested));
        limit.saturating_sub(others).max(share) * PAGE_BYTES
    }

    /// The slot of this process. The process that stays behind for daemons is another one.
    fn own_slot(&mut self) -> Option<u32> {
        let me = std::process::id();
        if let Some((slot, pid)) = self.slot
            && pid == me
        {
            return Some(slot);
        }
        if self.slot.take().is_some() {
            self.since = Instant::now();
        }
        let found =
            self.group.processes().find(|(_, slot)| slot.life.pid.load(Relaxed) == me).map(|(index, _)| index)?;
        self.slot = Some((found, me));
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uswap_engine::group::GroupConfig;

    const MIB: u64 = 1 << 20;

    fn group(mib: u64) -> Group {
        Group::create(&GroupConfig { memory_limit_bytes: mib * MIB, ..GroupConfig::default() }).unwrap().0
    }

    fn update(nested: &mut Nested, ours: &Group) -> (u64, u64) {
        nested.next_look = Instant::now();
        nested.update(ours, true);
        let outer = &nested.outer.as_ref().unwrap().group;
        (ours.limit_bytes() / MIB, outer.usage_pages() * PAGE_BYTES / MIB)
    }

    #[test]
    fn the_inner_tree_counts_in_the_outer_one_and_gets_what_is_left() {
        let (outer, ours) = (group(100), group(80));
        let slot = |group: &Group, pid, mib: u64| {
            let index = group.allot(pid).unwrap();
            group.process(index).running();
            group.process(index).resident.anon_pages.store(mib << 8, Relaxed);
            index
        };
        slot(&outer, std::process::id(), 1);
        let other = slot(&outer, 4_000_000, 10);
        slot(&ours, 4_000_001, 30);
        let mut nested = Nested::within(Some(outer), &ours);
        assert_eq!(update(&mut nested, &ours), (80, 41));
        let usage = |nested: &Nested, mib: u64| {
            nested.outer.as_ref().unwrap().group.process(other).resident.anon_pages.store(mib << 8, Relaxed);
        };
        usage(&nested, 39);
        assert_eq!(update(&mut nested, &ours), (60, 70));
        // Not less than the fair share, whatever the others have.
        usage(&nested, 90);
        assert_eq!(update(&mut nested, &ours).0, 49);
        // The user's wish holds, up and down.
        ours.set_limit_bytes(40 * MIB);
        assert_eq!(update(&mut nested, &ours).0, 40);
        ours.set_limit_bytes(200 * MIB);
        usage(&nested, 0);
        assert_eq!(update(&mut nested, &ours).0, 99);
    }

    /// The program starts at once, and fills its memory faster than we get a slot.
    #[test]
    fn the_limit_is_that_of_the_outer_tree_from_the_start() {
        let (outer, ours) = (group(100), group(1000));
        let other = outer.allot(4_000_000).unwrap();
        outer.process(other).running();
        outer.process(other).resident.anon_pages.store(30 << 8, Relaxed);
        Nested::within(Some(outer), &ours);
        assert_eq!(ours.limit_bytes() / MIB, 70);
    }

    #[test]
    fn nobody_around_changes_nothing() {
        let ours = group(80);
        Nested::within(None, &ours).update(&ours, true);
        assert_eq!(ours.limit_bytes(), 80 * MIB);
    }
}
