//! What pagemap shows of memory that a fork has left in common. A process of its own: other tests fork, too.

use uswap_sys::PAGE_SIZE;
use uswap_sys::pagemap::PageMap;

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
