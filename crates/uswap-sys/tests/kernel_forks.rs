//! What pagemap shows of memory that a fork has left in common, and what children get of shared memory. A process of its own: other tests
//! fork, too.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use uswap_sys::PAGE_SIZE;
use uswap_sys::pagemap::PageMap;
use uswap_sys::shared_file::{NAME_IN_MAPS, SharedFile};
use uswap_sys::shared_forks;

const PAGES: usize = 4096;

#[test]
fn what_a_child_has_as_well_is_counted_near_and_far_apart() {
    let Ok(pagemap) = PageMap::open_self() else {
        println!("skipped: no pagemap");
        return;
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    let start = unsafe {
        libc::mmap(std::ptr::null_mut(), PAGES * PAGE_SIZE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::madvise(start, PAGES * PAGE_SIZE, libc::MADV_NOHUGEPAGE) }, 0);
    let write = |page: usize| {
        // SAFETY: inside the mapping, which is ours.
        unsafe { start.cast::<u8>().add(page * PAGE_SIZE).write_volatile(1) };
    };
    let filled: Vec<usize> = (0..600).step_by(3).chain(1000..1700).chain([2500, 4095]).collect();
    filled.iter().copied().for_each(write);
    // SAFETY: as above. The zero page, beside what is counted.
    unsafe { start.cast::<u8>().add(PAGE_SIZE).read_volatile() };
    let in_common = || pagemap.in_common(start.addr(), start.addr() + PAGES * PAGE_SIZE).unwrap();
    assert_eq!(in_common(), 0);
    // SAFETY: the child waits for a signal, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            libc::pause();
            libc::_exit(0)
        };
    }
    let all = in_common();
    // One that was not there before, and three that were.
    [3, 4, 1200, 4095].into_iter().for_each(write);
    let rest = in_common();
    // SAFETY: our own child, which has not been waited for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert_eq!((all, rest), (filled.len() as u64, filled.len() as u64 - 3));
    assert_eq!(in_common(), 0);
}

/// Whether children get it, of each mapping of shared memory that can be swapped.
fn goes_to_children() -> Vec<bool> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let name = str::from_utf8(NAME_IN_MAPS).unwrap();
    let mut lines = smaps.lines();
    let mut all = Vec::new();
    while lines.by_ref().any(|line| line.ends_with(name)) {
        let flags = lines.by_ref().find(|line| line.starts_with("VmFlags:")).unwrap();
        all.push(!flags.split(' ').any(|flag| flag == "dc"));
    }
    all
}

#[test]
fn shared_memory_that_has_moved_without_a_pause_goes_to_children_and_is_kept_from_them() {
    // Nothing else is so small that it is mapped where this has just been moved away.
    const LEN: usize = PAGE_SIZE;
    let file = SharedFile::new(LEN).unwrap();
    let map = |fd: Option<i32>| {
        let (protection, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let flags = if fd.is_some() { shared } else { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE };
        let len = if fd.is_some() { LEN } else { 2 * LEN };
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd.unwrap_or(-1), 0) };
        assert_ne!(start, libc::MAP_FAILED);
        start.expose_provenance()
    };
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file.as_fd());
    let (still, moving, places) = (map(Some(fd)), map(Some(fd)), map(None));
    let (begins, ends, mut seen) = (AtomicBool::new(false), AtomicBool::new(false), [0; 2]);
    let mut wrong = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let at = |start| std::ptr::with_exposed_provenance_mut::<libc::c_void>(start);
            let mut from = moving;
            for turn in 0.. {
                let to = places + turn % 2 * LEN;
                // SAFETY: to a place that is ours, of which nothing is used.
                let moved =
                    unsafe { libc::mremap(at(from), LEN, LEN, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, at(to)) };
                assert_ne!(moved, libc::MAP_FAILED);
                from = to;
                begins.store(true, Relaxed);
                if ends.load(Relaxed) {
                    break;
                }
            }
        });
        while !begins.load(Relaxed) {
            std::thread::yield_now();
        }
        let begun = Instant::now();
        while seen[0] < 10 && begun.elapsed() < Duration::from_secs(2) {
            let is_kept = shared_forks::begin(|_, _| {});
            // One that moves just now may not be shown.
            wrong += u32::from(is_kept && goes_to_children().contains(&true));
            shared_forks::let_fork();
            seen[usize::from(is_kept)] += 1;
        }
        ends.store(true, Relaxed);
    });
    println!("not kept, kept: {seen:?}, beside one at {still:x}");
    assert_eq!(wrong, 0, "it was said to be kept from children, and went to them");
    assert!(shared_forks::are_followed());
    shared_forks::let_fork();
    assert_eq!(goes_to_children(), [true; 2]);
    assert!(shared_forks::begin(|_, _| {}));
    assert_eq!(goes_to_children(), [false; 2]);
}
