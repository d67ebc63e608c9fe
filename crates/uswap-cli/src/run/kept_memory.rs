//! Memory that outlives its process. A child of vfork that has not executed its program yet, or one made by clone with
//! CLONE_VM, has its memory in common with the process that made it, and the agent's threads end with that one.
//!
//! Nobody can bring pages in there any more. So the userfaultfds are kept as long as the memory is in use: what is missing must
//! not read as zeros. Who asks for it is ended, with a line that says why. Who needs nothing of it, as most children of vfork,
//! never notices.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use uswap_sys::PAGE_SIZE;
use uswap_sys::maps::{self, MapsOf};
use uswap_sys::uffd::{Message, RawMessage, Uffd};

use super::processes::{descends_from_us, read_proc};
use crate::failure::say;

/// The memory of processes that have ended.
#[derive(Default)]
pub struct KeptMemory(Vec<Memory>);

struct Memory {
    /// Whose it was.
    of: u32,
    uffds: Vec<Uffd>,
    /// It was said that somebody waits whom we cannot find.
    told: bool,
}

/// Of process `pid`, which was killed and runs no more: what is missing of its memory reads as zeros from here on, to whoever waits for it
/// from outside.
pub fn let_go_of_memory(pid: u32, uffds: &[OwnedFd]) {
    let mut text = Vec::new();
    if maps::read_maps(MapsOf::Pid(pid), &mut text).is_err() {
        return;
    }
    for uffd in uffds.iter().filter_map(|fd| Some(Uffd::received(fd.try_clone().ok()?))) {
        for vma in maps::vmas(&text) {
            let _ = uffd.unregister(vma.start, vma.end - vma.start);
        }
    }
}

impl KeptMemory {
    /// Process `of` has ended, or executed a program. What nobody uses any more is let go at once.
    pub fn keep(&mut self, of: u32, uffds: Vec<OwnedFd>) {
        let uffds: Vec<Uffd> = uffds.into_iter().map(Uffd::received).filter(Uffd::has_memory).collect();
        if uffds.is_empty() {
            return;
        }
        // What the ended threads have read and not answered is asked again.
        uffds.iter().for_each(Uffd::wake_all);
        self.0.push(Memory { of, uffds, told: false });
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends who waits for a page, and lets go what nobody uses any more. `processes` are all that can be seen, with their
    /// parents; a process that `may_wait` denies has memory of its own.
    pub fn look(&mut self, processes: impl Fn() -> Vec<(u32, u32)>, may_wait: impl Fn(u32) -> bool) {
        for memory in &mut self.0 {
            let asked_for = memory.asked_for();
            let Some(address) = asked_for.first() else { continue };
            if memory.end_who_waits(*address, &processes(), &may_wait) {
                // Others ask again.
                memory.uffds.iter().for_each(Uffd::wake_all);
            } else if !std::mem::replace(&mut memory.told, true) {
                say(format_args!(
                    "somebody has memory in common with process {}, which has ended, and waits for ever for a page that was \
                     swapped out",
                    memory.of
                ));
            }
        }
        self.0.retain(|memory| memory.uffds.iter().any(Uffd::has_memory));
    }
}

impl Memory {
    /// Pages that somebody waits for. Events need nobody's answer, only to be read.
    fn asked_for(&self) -> Vec<usize> {
        let mut messages = [RawMessage::default(); 16];
        let mut addresses = Vec::new();
        for uffd in &self.uffds {
            while let Ok(count @ 1..) = uffd.read(&mut messages) {
                addresses.extend(messages[..count].iter().filter_map(|message| match message.decode() {
                    // It is there.
                    Message::Fault { addr, protected: true, .. } => {
                        let _ = uffd.protect(addr / PAGE_SIZE * PAGE_SIZE, PAGE_SIZE, false);
                        None
                    }
                    Message::Fault { addr, .. } => Some(addr),
                    _ => None,
                }));
            }
        }
        addresses
    }

    /// Whether there was somebody to end.
    fn end_who_waits(&self, address: usize, processes: &[(u32, u32)], may_wait: &impl Fn(u32) -> bool) -> bool {
        let mut is_found = false;
        let parents: HashMap<u32, u32> = processes.iter().copied().collect();
        for (pid, _) in processes.iter().filter(|(pid, _)| may_wait(*pid) && descends_from_us(*pid, &parents)) {
            // Held before it is looked at: the pid cannot become another's.
            let Some(process) = Pid::from_raw(*pid as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
            else {
                continue;
            };
            if read_proc(format!("/proc/{pid}/smaps")).is_ok_and(|smaps| is_registered(&smaps, address))
                && pidfd_send_signal(&process, Signal::KILL).is_ok()
            {
                is_found = true;
                say(format_args!(
                    "process {pid} is ended: it had its memory in common with process {}, which has ended, and asked for a \
                     page that was swapped out",
                    self.of
                ));
            }
        }
        is_found
    }
}

/// Whether a process has memory that is registered with a userfaultfd for missing pages.
pub fn has_managed_memory(pid: u32) -> bool {
    let flags = |line: &str| line.strip_prefix("VmFlags:").is_some_and(is_managed);
    read_proc(format!("/proc/{pid}/smaps")).is_ok_and(|smaps| smaps.lines().any(flags))
}

fn is_managed(flags: &str) -> bool {
    flags.split_whitespace().any(|flag| flag == "um")
}

/// Whether /proc/PID/smaps says that the mapping at this address is registered with a userfaultfd for missing pages.
fn is_registered(smaps: &str, address: usize) -> bool {
    let mut is_inside = false;
    for line in smaps.lines() {
        let bounds = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let bounds = bounds.and_then(|(start, end)| {
            Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
        });
        if let Some(bounds) = bounds {
            is_inside = bounds.contains(&address);
        } else if is_inside && let Some(flags) = line.strip_prefix("VmFlags:") {
            return is_managed(flags);
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registered_mapping_is_known_by_its_flag() {
        let smaps = "1000-3000 rw-p 00000000 00:00 0 \nRss: 4 kB\nVmFlags: rd wr mr mw me ac\n\
                     3000-5000 rw-p 00000000 00:00 0  [heap]\nRss: 4 kB\nVmFlags: rd wr mr mw me um dc ac\n";
        assert!(!is_registered(smaps, 0x2fff) && is_registered(smaps, 0x3000) && is_registered(smaps, 0x4fff));
        assert!(!is_registered(smaps, 0x5000) && !is_registered("", 0));
    }
}
