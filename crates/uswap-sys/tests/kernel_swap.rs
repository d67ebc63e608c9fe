//! Pages that the kernel has swapped out by itself: what it shows of them, and what userfaultfd does with them. The facts that
//! the engine's `presence` is built on.
//!
//! Where no kernel swap is on, root turns a zram device on for the time of the tests. Each test says why when it is skipped.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::ptr::with_exposed_provenance_mut as at;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::mm::{Advice, MapFlags, ProtFlags};
use uswap_sys::PAGE_SIZE as P;
use uswap_sys::pagemap::{PageMap, PopulatedRange};
use uswap_sys::swapped_moves;
use uswap_sys::uffd::{Features, Holes, Progress, Stop, Uffd, UffdUnavailable, Wake};

/// Kernel swap that is on as long as a test has one of these. It is turned on and off with the lock held: a device that is about
/// to go must not be taken for one that stays.
struct Swap;

struct SwapOn {
    users: usize,
    /// Ours, where the machine has none.
    device: Option<Zram>,
}

static SWAP: Mutex<SwapOn> = Mutex::new(SwapOn { users: 0, device: None });

impl Swap {
    fn on() -> Result<Swap, String> {
        let mut on = SWAP.lock().unwrap_or_else(PoisonError::into_inner);
        let is_off = std::fs::read_to_string("/proc/swaps").unwrap_or_default().lines().count() <= 1;
        if on.users == 0 && is_off {
            on.device = Some(Zram::on()?);
        }
        on.users += 1;
        Ok(Swap)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        let mut on = SWAP.lock().unwrap_or_else(PoisonError::into_inner);
        on.users -= 1;
        if on.users == 0 {
            on.device = None;
        }
    }
}

/// A zram device with swap on it.
struct Zram {
    number: String,
}

impl Zram {
    fn on() -> Result<Zram, String> {
        let number = std::fs::read_to_string("/sys/class/zram-control/hot_add")
            .map_err(|error| format!("kernel swap is off, and there is no zram: {error}"))?;
        let number = number.trim().to_owned();
        let zram = Zram { number: number.clone() };
        std::fs::write(format!("/sys/block/zram{number}/disksize"), "256M").map_err(|error| error.to_string())?;
        for program in ["mkswap", "swapon"] {
            let output = Command::new(program).arg(format!("/dev/zram{number}")).output();
            let output = output.map_err(|error| format!("{program}: {error}"))?;
            if !output.status.success() {
                return Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr)));
            }
        }
        Ok(zram)
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let Zram { number } = self;
        let _ = Command::new("swapoff").arg(format!("/dev/zram{number}")).output();
        let _ = std::fs::write(format!("/sys/block/zram{number}/reset"), "1");
        let _ = std::fs::write("/sys/class/zram-control/hot_remove", &*number);
    }
}

/// Kernel swap and a descriptor, or the end of the test.
macro_rules! swap_and_uffd_or_skip {
    ($features:expr) => {{
        let uffd = match open($features) {
            Ok(uffd) => uffd,
            Err(why @ (UffdUnavailable::NoPermission | UffdUnavailable::NotSupported(_))) => {
                println!("skipped: {why}");
                return;
            }
            Err(why) => panic!("{why}"),
        };
        match Swap::on() {
            Ok(swap) => (swap, uffd, PageMap::open_self().unwrap()),
            Err(why) => {
                println!("skipped: {why}");
                return;
            }
        }
    }};
}

fn open(features: Features) -> Result<Uffd, UffdUnavailable> {
    match File::open("/dev/userfaultfd") {
        Ok(device) => Uffd::new(Some(device.as_fd()), features),
        Err(_) => Uffd::new(None, features),
    }
}

/// Pages that a processor has filled last are on no list of the kernel's yet, and cannot be swapped out; madvise(2) sees to that
/// for the processor it runs on.
fn stay_on_this_processor() {
    // SAFETY: plain calls on a set of our own.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

/// Fresh anonymous memory, of small pages, for a thread that fills it and has it swapped out.
fn pages(count: usize) -> usize {
    stay_on_this_processor();
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel picks an address that nothing uses.
    let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), count * P, prot, MapFlags::PRIVATE) }.unwrap();
    // SAFETY: mapped above; the advice changes no content.
    let _ = unsafe { rustix::mm::madvise(base, count * P, Advice::LinuxNoHugepage) };
    base.expose_provenance()
}

/// Memory registered with a descriptor.
fn registered(uffd: &Uffd, count: usize) -> usize {
    let start = pages(count);
    uffd.register(start, count * P).unwrap();
    start
}

/// Such that it does not compress to nothing: zram keeps pages of one word as no page at all.
fn fill(page: usize, value: u64) {
    for word in 0..(P / 8) as u64 {
        // SAFETY: the tests write to their own pages only.
        unsafe { at::<u64>(page + word as usize * 8).write_volatile(value ^ (word << 32 | word)) };
    }
}

fn is_filled(page: usize, value: u64) -> bool {
    // SAFETY: the tests read their own pages only.
    (0..(P / 8) as u64)
        .all(|word| unsafe { at::<u64>(page + word as usize * 8).read_volatile() } == value ^ (word << 32 | word))
}

fn page_out(start: usize, count: usize) {
    // SAFETY: the advice changes no content.
    let _ = unsafe { rustix::mm::madvise(at(start), count * P, Advice::LinuxPageOut) };
}

/// Pages out until the kernel has swapped all of it out: what is in use by another at that moment stays.
fn surely_page_out(pagemap: &PageMap, start: usize, count: usize) {
    let begun = Instant::now();
    while kernel_swapped(pagemap, start, count) < count {
        assert!(begun.elapsed() < Duration::from_secs(20), "the kernel does not page out");
        page_out(start, count);
    }
}

fn scan(pagemap: &PageMap, start: usize, count: usize) -> Vec<PopulatedRange> {
    let mut ranges = vec![PopulatedRange::default(); count];
    let (filled, end) = pagemap.populated(start, start + count * P, &mut ranges).unwrap();
    assert_eq!(end, start + count * P);
    ranges.truncate(filled);
    ranges
}

fn populated(pagemap: &PageMap, start: usize, count: usize) -> usize {
    scan(pagemap, start, count).iter().map(|range| (range.end - range.start) / P).sum()
}

fn kernel_swapped(pagemap: &PageMap, start: usize, count: usize) -> usize {
    scan(pagemap, start, count).iter().filter(|r| r.kernel_swapped()).map(|range| (range.end - range.start) / P).sum()
}

fn stopped(stop: Stop) -> Progress {
    Progress { bytes: 0, stop: Some(stop) }
}

static ZEROS: [u8; P] = [0; P];

#[test]
fn what_the_kernel_has_swapped_out_is_populated() {
    let (_swap, uffd, pagemap) = swap_and_uffd_or_skip!(Features::POISON);
    let start = registered(&uffd, 8);
    for page in [1, 2, 5] {
        assert!(uffd.copy(start + page * P, ZEROS.as_ptr(), P, Wake::Wake).is_complete());
        fill(start + page * P, page as u64);
    }
    surely_page_out(&pagemap, start + P, 2);
    surely_page_out(&pagemap, start + 5 * P, 1);
    let seen: Vec<_> = scan(&pagemap, start, 8).iter().map(|r| ((r.start - start) / P, (r.end - start) / P)).collect();
    assert_eq!(seen, [(1, 3), (5, 6)]);
    // Nothing takes its place.
    assert_eq!(uffd.copy(start + P, ZEROS.as_ptr(), P, Wake::Wake), stopped(Stop::AlreadyThere));
    assert_eq!(uffd.zeropage(start + P, P, Wake::Wake), stopped(Stop::AlreadyThere));
    assert_eq!(uffd.poison(start + P, P), stopped(Stop::AlreadyThere));
    // A touch is the kernel's to answer: nobody serves messages here.
    assert!([1, 2, 5].iter().all(|&page| is_filled(start + page * P, page as u64)));
    assert!(!PageMap::by_mincore().is_exact());
}

#[test]
fn a_page_that_the_kernel_has_swapped_out_moves_as_it_is() {
    let (_swap, uffd, pagemap) = swap_and_uffd_or_skip!(Features::MOVE);
    let (source, target) = (pages(32), registered(&uffd, 32));
    for page in 0..32 {
        fill(source + page * P, 7 * page as u64);
    }
    surely_page_out(&pagemap, source, 32);
    let mut done = 0;
    while done < 32 {
        let progress =
            uffd.move_pages(target + done * P, source + done * P, (32 - done) * P, Holes::Refuse, Wake::Wake);
        // Busy: it is still being written, and its memory is there.
        assert!(matches!(progress.stop, None | Some(Stop::Busy)), "{progress:?}");
        done += progress.bytes / P;
    }
    assert_eq!((populated(&pagemap, source, 32), populated(&pagemap, target, 32)), (0, 32));
    assert!((0..32).all(|page| is_filled(target + page * P, 7 * page as u64)));
}

#[test]
fn markers_are_told_apart_or_cannot_be_moved() {
    let (_swap, uffd, pagemap) = swap_and_uffd_or_skip!(Features::MOVE | Features::POISON);
    let (poisoned, target) = (registered(&uffd, 1), registered(&uffd, 1));
    assert!(uffd.poison(poisoned, P).is_complete());
    // It shows as what the kernel has swapped out would.
    assert_eq!(kernel_swapped(&pagemap, poisoned, 1), 1);
    assert_eq!(uffd.move_pages(target, poisoned, P, Holes::Allow, Wake::Wake), stopped(Stop::Fault));
    assert_eq!(uffd.move_pages(target, poisoned, P, Holes::Refuse, Wake::Wake), stopped(Stop::Fault));
    assert_eq!(populated(&pagemap, target, 1), 0);

    const MADV_GUARD_INSTALL: i32 = 102;
    let guarded = pages(2);
    // SAFETY: our own page, without content.
    if unsafe { libc::madvise(at(guarded), P, MADV_GUARD_INSTALL) } != 0 {
        return println!("no guards before Linux 6.13");
    }
    assert_eq!(uffd.move_pages(target, guarded, P, Holes::Allow, Wake::Wake), stopped(Stop::Fault));
    // Since Linux 6.15; before, it shows as poison does.
    let mut release = [0; 2];
    let uname = rustix::system::uname();
    for (number, text) in release.iter_mut().zip(uname.release().to_string_lossy().split('.')) {
        *number = text.parse().unwrap_or(0);
    }
    assert_eq!(populated(&pagemap, guarded, 2), usize::from(release < [6, 15]));
}

#[test]
fn while_the_kernel_swaps_out_a_page_is_where_it_is_populated() {
    let (_swap, _, _) = swap_and_uffd_or_skip!(Features::MOVE);
    let device = File::open("/dev/userfaultfd").ok();
    let tried = swapped_moves::try_for(device.as_ref().map(AsFd::as_fd), Duration::from_secs(2)).unwrap();
    println!("{tried:?}");
    assert!(tried.wrong == 0 && tried.swapped > 0, "{tried:?}");
}
