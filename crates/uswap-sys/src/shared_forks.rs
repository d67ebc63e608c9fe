//! Shared memory that is swapped, and forks, where the kernel reports no forks (that takes CAP_SYS_PTRACE).
//!
//! The child of a fork would have mappings of which nobody knows: where pages have left, it would read zeros, and fill them in for
//! everybody. So what can be swapped carries MADV_DONTFORK, but for the moment in which a fork is followed, and the child of such a one
//! says what it has before anything of the program runs in it. The child of a fork that nobody follows does not have the memory at all.

#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mm::Advice;

use crate::maps::{self, MapsOf};
use crate::shared_file::NAME_IN_MAPS;

/// How often it is looked whether mappings have moved meanwhile.
const LOOKS: u32 = 100;

/// The process whose shared memory is kept from forks, or whose child this is; 0: none.
static KEPT_IN: AtomicU32 = AtomicU32::new(0);
/// What the program itself keeps from its children.
static KEPT_BY_PROGRAM: Mutex<Vec<Range>> = Mutex::new(Vec::new());

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    start: usize,
    end: usize,
}

impl Range {
    fn overlaps(&self, other: Range) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// What of it is not in `cut`.
    fn without(self, cut: Range) -> impl Iterator<Item = Range> {
        let before = Range { start: self.start, end: self.end.min(cut.start) };
        let behind = Range { start: self.start.max(cut.end), end: self.end };
        [before, behind].into_iter().filter(|part| part.start < part.end)
    }
}

fn kept_by_program() -> MutexGuard<'static, Vec<Range>> {
    KEPT_BY_PROGRAM.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn process_id() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}

/// Whether forks are to be followed for shared memory; in a forked child, whether they were in its parent.
pub fn are_followed() -> bool {
    KEPT_IN.load(Acquire) != 0
}

/// All mappings of this process that can be swapped.
fn mappings() -> io::Result<Vec<Range>> {
    let mut text = Vec::new();
    maps::read_maps(MapsOf::SelfProcess, &mut text)?;
    let shared = maps::vmas(&text).filter(|vma| vma.shared && vma.name == NAME_IN_MAPS);
    Ok(shared.map(|vma| Range { start: vma.start, end: vma.end }).collect())
}

/// Whether this process has any.
pub(crate) fn has_any() -> bool {
    mappings().is_ok_and(|mappings| !mappings.is_empty())
}

/// What the program keeps from its children, as the kernel has it: nothing is kept by us yet.
fn kept_by_the_kernel(mappings: &[Range]) -> io::Result<Vec<Range>> {
    let smaps = std::fs::read_to_string("/proc/thread-self/smaps")?;
    let (mut at, mut kept) = (None, Vec::new());
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let is_kept = flags.split_ascii_whitespace().any(|flag| flag == "dc");
            kept.extend(at.take().filter(|range| is_kept && mappings.contains(range)));
        } else if line.as_bytes().first().is_some_and(|first| !first.is_ascii_uppercase()) {
            let (start, end) = line.split(' ').next().and_then(|range| range.split_once('-')).unwrap_or_default();
            let number = |text| usize::from_str_radix(text, 16).ok();
            at = number(start).zip(number(end)).map(|(start, end)| Range { start, end });
        }
    }
    Ok(kept)
}

/// Whether all of them were there.
fn advise_ranges(ranges: &[Range], advice: Advice) -> bool {
    let mut were_there = true;
    for range in ranges {
        // SAFETY: the advice changes no content. What is not mapped any more is passed over by the kernel; for what may have been mapped in
        // its place meanwhile, see `keep`.
        were_there &= unsafe { rustix::mm::madvise(range.start as *mut _, range.end - range.start, advice) }.is_ok();
    }
    were_there
}

/// Gives this advice for all mappings, but for what is in `cuts`. Whether that is so: they may move while they are looked for. Where one was
/// and is not any more is told to `gone`.
fn advise_all(advice: Advice, cuts: &[Range], mut gone: impl FnMut(Range)) -> bool {
    let (mut before, mut were_there) = (Vec::new(), true);
    for look in 0..=LOOKS {
        let Ok(now) = mappings() else { return false };
        // What moves to and fro may have been away in between.
        if now == before && were_there {
            return true;
        }
        before.into_iter().filter(|range| !now.contains(range)).for_each(&mut gone);
        if look < LOOKS {
            let cut = |parts: Vec<Range>, &cut: &Range| parts.iter().flat_map(|part| part.without(cut)).collect();
            were_there = advise_ranges(&cuts.iter().fold(now.clone(), cut), advice);
        }
        before = now;
    }
    false
}

/// No child gets shared memory from here on. Whether that is so. What else has come into the places of mappings that move may have been kept
/// from children by mistake, and is told to `others`.
pub fn keep(mut others: impl FnMut(usize, usize)) -> bool {
    advise_all(Advice::LinuxDontFork, &[], |range| others(range.start, range.end - range.start))
}

/// Before shared memory of this process can be swapped: from here on it is kept from children, and forks are followed. Whether all of it is
/// kept: where not, it may be tried again, and the child of a fork that is followed gets what moves no more.
pub fn begin(others: impl FnMut(usize, usize)) -> bool {
    let kept_in = KEPT_IN.load(Acquire);
    if kept_in != process_id() {
        // What a parent's program has kept from it a child does not have.
        let kept =
            if kept_in == 0 { mappings().and_then(|mappings| kept_by_the_kernel(&mappings)) } else { Ok(Vec::new()) };
        let Ok(kept) = kept else { return false };
        *kept_by_program() = kept;
        KEPT_IN.store(process_id(), Release);
    }
    keep(others)
}

/// In a forked child: whether nobody knows of its shared memory yet.
pub fn is_unknown() -> bool {
    are_followed() && KEPT_IN.load(Acquire) != process_id()
}

/// A new mapping, of which the program has not heard yet.
pub fn keep_new(start: usize, len: usize) {
    let new = Range { start, end: start + len };
    let mut kept = kept_by_program();
    *kept = kept.iter().flat_map(|range| range.without(new)).collect();
    advise_ranges(&[new], Advice::LinuxDontFork);
}

/// The child of the fork that comes gets what the program does not keep from it, and what moves no more.
pub fn let_fork() {
    advise_all(Advice::LinuxDoFork, &kept_by_program(), |_| ());
}

/// The program's MADV_DONTFORK or MADV_DOFORK. Whether that was about shared memory that can be swapped: then it has been noted, and given
/// for what else is there.
pub fn advise(start: usize, len: usize, keeps: bool) -> bool {
    let Some(end) = len.checked_next_multiple_of(crate::PAGE_SIZE).and_then(|len| start.checked_add(len)) else {
        return false;
    };
    let all = Range { start, end };
    let shared: Vec<Range> = mappings().unwrap_or_default().into_iter().filter(|range| range.overlaps(all)).collect();
    if shared.is_empty() {
        return false;
    }
    let mut others = vec![all];
    let mut kept = kept_by_program();
    for range in shared {
        let part = Range { start: range.start.max(start), end: range.end.min(end) };
        others = others.iter().flat_map(|other| other.without(part)).collect();
        *kept = kept.iter().flat_map(|range| range.without(part)).collect();
        if keeps {
            kept.push(part);
        }
    }
    let advice = if keeps { Advice::LinuxDontFork } else { Advice::LinuxDoFork };
    advise_ranges(&others, advice);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_out_of_a_range_leaves_its_ends() {
        let range = |start, end| Range { start, end };
        let without = |cut| range(10, 20).without(cut).collect::<Vec<_>>();
        assert_eq!(without(range(12, 15)), [range(10, 12), range(15, 20)]);
        assert_eq!(without(range(0, 15)), [range(15, 20)]);
        assert_eq!(without(range(10, 20)), []);
        assert_eq!(without(range(20, 30)), [range(10, 20)]);
    }
}
