//! What those who have ended leave behind: slots, clusters, and swapped pages that others still read.

use rustix::fs::{FallocateFlags, FileType, Stat};
use uswap_engine::group::{AREAS_MAX, CLUSTER_SLOTS, Group, PAGE_BYTES};

use super::super::processes::parents_of_all_processes;
use super::Supervisor;
use crate::swap_area::OpenArea;

impl Supervisor {
    /// Nobody reads zeros where those who have ended had swapped out.
    pub(super) fn look_after_the_ended(&mut self) {
        if self.tree.kept.is_empty() {
            return;
        }
        let mut kept = std::mem::take(&mut self.tree.kept);
        let may_wait = |pid: u32| !self.is_anchor(pid) && !self.tree.members.iter().any(|member| member.pid == pid);
        kept.look(parents_of_all_processes, may_wait);
        self.tree.kept = kept;
    }

    /// A program image is gone: its counts go to the totals, its clusters to whoever needs some, unless children
    /// still read them.
    pub(super) fn retire(&mut self, index: u32) {
        self.seen.peaks.sample(&self.shared.group);
        self.shared.group.retire(index);
        self.tree.lost_forks.begins_anew(index);
        self.sweep();
    }

    /// What those who have ended own of areas that are to become empty is given back as soon as their children have left it.
    pub(super) fn settle_what_is_left_behind(&self) {
        let group = &self.shared.group;
        for (number, area) in self
            .shared
            .areas
            .iter()
            .enumerate()
            .filter(|&(number, _)| group.is_leaving(number) && !group.is_off(number))
        {
            let left_behind: Vec<u32> = group.left_behind(number).collect();
            for index in left_behind {
                settle(group, number, area, index);
                group.release_all_on(number, index);
            }
        }
    }

    pub(super) fn sweep(&self) {
        let group = &self.shared.group;
        loop {
            let reapable: Vec<u32> = group.reapable().collect();
            if reapable.is_empty() {
                return;
            }
            for index in reapable {
                for (number, area) in self.shared.areas.iter().enumerate().take(AREAS_MAX) {
                    settle(group, number, area, index);
                }
                group.reap(index);
            }
        }
    }
}

/// Gives the space of a dead process's clusters back to the file system, and waits for writes that it had started:
/// a late one must not land in the pages of the next owner. The kernel does both in one: fallocate(2) waits for
/// direct I/O under way. On a block device it does not, and would write the zeros one by one, which takes minutes.
fn settle(group: &Group, number: usize, area: &OpenArea, process: u32) {
    if group.is_off(number) {
        // Somebody was told that nothing of ours is there.
        return;
    }
    let is_file = |stat: Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !rustix::fs::fstat(&area.fd).is_ok_and(is_file) {
        return;
    }
    let mode = match area.config.punch_holes {
        true => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        // The blocks have to stay, their content may go.
        false => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
    };
    let cluster_bytes = CLUSTER_SLOTS * PAGE_BYTES;
    let end_of_area = area.config.slots * PAGE_BYTES;
    let mut run: Option<(u64, u64)> = None;
    let free = |(start, end): (u64, u64)| {
        // Page 0 is the header.
        let start = start.max(PAGE_BYTES);
        let end = end.min(end_of_area);
        if start < end {
            // Where the file system cannot, the blocks are simply written over later.
            let _ = rustix::fs::fallocate(&area.fd, mode, start, end - start);
        }
    };
    for cluster in group.clusters_of(number, process) {
        let start = u64::from(cluster) * cluster_bytes;
        run = match run {
            Some((first, end)) if end == start => Some((first, start + cluster_bytes)),
            before => {
                before.into_iter().for_each(free);
                Some((start, start + cluster_bytes))
            }
        };
    }
    run.into_iter().for_each(free);
}
