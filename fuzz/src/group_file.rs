//! The memory file of a group: `uswap set` and `uswap swapoff` open what a process shows as one.
//!
//! Input: by how many pages the file is longer or shorter than it should be (one byte), then what is changed in its first
//! page: each byte is exclusive-ored, so that zeros change nothing.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use uswap_engine::group::{
    AREAS_MAX, AreaConfig, CLUSTER_SLOTS, Compressor, Counter, Group, GroupConfig, LatencyKind, PAGE_BYTES,
};

use crate::{Canary, Seed, Target};

/// This target.
pub const TARGET: Target = Target { name: "group_file", run, seeds, words: &[&[0; 4], &[0; 16], &[0; 64]] };

/// Magic, version, and how long the header is.
const FIXED_BYTES: usize = 16;
const VERSION_AT: usize = 8;

fn config() -> GroupConfig {
    let mut config = GroupConfig {
        memory_limit_bytes: 64 << 20,
        zpool_percent: 35,
        accept_threshold_percent: 90,
        compressor: Compressor::Lz4,
        verbosity: 1,
        ..GroupConfig::default()
    };
    let area = AreaConfig {
        present: true,
        slots: 4 * CLUSTER_SLOTS,
        punch_holes: true,
        file: [7, 1],
        ..AreaConfig::default()
    };
    config.areas[0] = area;
    config.areas[1] = AreaConfig { slots: 513, priority: 7, direct: true, file: [7, 2], ..area };
    config
}

/// A file that can be taken for that of a group.
fn file(header: &[u8], file_bytes: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create(c"fuzz", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory files");
    rustix::fs::ftruncate(&fd, file_bytes).expect("a memory file has any size");
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).expect("a memory file can be sealed");
    // A file may be shorter than what is written: then it is longer.
    rustix::io::pwrite(&fd, header, 0).expect("a memory file can be written");
    fd
}

fn length(fd: impl AsFd) -> u64 {
    rustix::fs::fstat(fd).expect("an open file").st_size as u64
}

/// Opens it.
pub fn run(bytes: &[u8], canary: Canary) {
    let (group, made) = Group::create(&config()).expect("there is memory for a group");
    let right = length(&made);
    drop(group);
    let mut header = [0; PAGE_BYTES as usize];
    rustix::io::pread(&made, &mut header, 0).expect("a memory file can be read");
    let Some((&longer, changes)) = bytes.split_first() else { return };
    let unchanged = header;
    header.iter_mut().zip(changes).for_each(|(byte, change)| *byte ^= change);
    let file_bytes = right.saturating_add_signed(i64::from(longer as i8) * PAGE_BYTES as i64);

    let mut believed = header;
    if canary.is_planted() {
        // As if the version were not looked at.
        believed[VERSION_AT..VERSION_AT + 4].copy_from_slice(&unchanged[VERSION_AT..VERSION_AT + 4]);
    }
    let Ok(group) = Group::open(file(&believed, file_bytes)) else { return };
    assert_eq!(header[..FIXED_BYTES], unchanged[..FIXED_BYTES], "it is no group of this version");
    is_as_large_as_it_says(&group, file_bytes);
    is_used(&group);
}

fn is_as_large_as_it_says(group: &Group, file_bytes: u64) {
    let (_same, fd) = Group::create(group.config()).expect("there is memory for a group");
    assert_eq!(length(&fd), file_bytes, "{:?}", group.config());
}

/// Nothing that can be asked of it leads out of the file.
fn is_used(group: &Group) {
    for area in 0..AREAS_MAX {
        let _ = group.swapoff_progress(area);
        assert!(group.clusters_taken(area) <= u64::from(group.config().clusters(area)));
        if let Some(cluster) = group.claim_cluster(area, 5) {
            assert_eq!(group.cluster_owner(area, cluster), Some(5));
            assert_eq!(group.clusters_of(area, 5).next(), Some(cluster));
            assert!(group.release_cluster(area, cluster, 5));
        }
        group.set_leaving(area, true);
        assert!(group.is_leaving(area));
    }
    group.set_limit_bytes(1 << 30);
    assert_eq!(group.limit_pages(), (1 << 30) / PAGE_BYTES);
    for &counter in Counter::ALL {
        let _ = group.count(counter);
    }
    for &kind in LatencyKind::ALL {
        let _ = group.latency(kind).percentile_ns(0.5);
    }
    let _ = (group.usage_pages(), group.resident_pages_at_least(), group.fixed_pages(), group.reapable().count());
    if let Some(index) = group.allot(7) {
        assert!(group.processes().any(|(taken, _)| taken == index));
        let _ = group.heirs_of(index);
        group.retire(index);
        group.reap(index);
        assert!(group.taken().all(|(taken, _)| taken != index));
    }
}

fn seeds() -> Vec<Seed> {
    let with = |at: usize, change: &[u8]| {
        let mut bytes = vec![0; 1 + at + change.len()];
        bytes[1 + at..].copy_from_slice(change);
        bytes
    };
    vec![
        ("unchanged", vec![0; 200]),
        ("longer", vec![1; 1]),
        ("shorter", vec![0xff]),
        ("empty", vec![0x80]),
        ("other_compressor", with(40, &[3])),
        ("other_limit", with(24, &[0xff; 16])),
        ("some_taken", with(560, &[1; 64])),
    ]
}
