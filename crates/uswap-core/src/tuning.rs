//! How large, how many, how long: the engine's choices that are numbers, each with its unit and its reason.
//!
//! What follows from an observation is a function here; what is the same always is a constant. Choices with a state have a
//! file of their own: budget and watermarks ([`crate::budget`]), the pool's share ([`crate::pool_share`]), compaction, streams
//! ([`crate::readahead`]), the cluster window.

use core::time::Duration;

use crate::fault::MAX_WINDOW;
use crate::units::BLOCK_PAGES;

/// Pages that a round of reclaim moves out, stores and gives back: 128 KiB, so that whoever waits for the gate or the core waits
/// for little, and neighbours still leave in few calls.
pub const ROUND_PAGES: usize = 2 * BLOCK_PAGES;

// When the monitor looks.

/// Pages that a fast program fills in a millisecond: 4 GiB/s, to be there in time even when the machine is busy.
const PAGES_PER_MS: u64 = 1024;
/// Milliseconds: a process that grows by leaps, or another of its group, is seen after that.
const SLEEP_MAX_MS: u64 = 100;
/// Milliseconds after a reclaim that found nothing: what is there to find needs longer than a look.
const FRUITLESS_SLEEP_MS: u64 = 5;
/// How long reclaim goes for the watermark of its start: others may give up memory meanwhile.
pub const GOAL_STAYS: Duration = Duration::from_millis(50);
/// How often the monitor looks whether the supervisor and the program's first thread live.
pub const LOOK_AT_OTHERS_EVERY: Duration = Duration::from_millis(50);
/// After what time an engine that could not start is tried again at first: each time costs a thread and mappings.
pub const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// And at last: twice as long each time.
pub const TRY_AGAIN_WITHIN: Duration = Duration::from_secs(60);
/// How often it looks whether the engine's other threads live: each look opens files.
pub const LOOK_AT_THREADS_EVERY: Duration = Duration::from_millis(500);
/// How often it tells the group what the process has, and does what need not be done at once.
pub const PUBLISH_EVERY: Duration = Duration::from_millis(20);
/// How often all adopted memory is looked at anew, when nothing else is left to reclaim: that takes long.
pub const LOOK_AT_ALL_EVERY: Duration = Duration::from_millis(100);
/// After this time and at most twice as much, scans take in what is found at a place that the program has discarded, if no discard is
/// in the kernel any more: its thread may lose the processor between the report and the dropping of the pages. Of a call that does
/// not come by libc only the time is known.
pub const DISCARD_ENDS: Duration = Duration::from_secs(1);
/// The same where the program uses MADV_FREE, and writes to what is still there without a fault: that counts until it is found.
pub const LAZY_DISCARD_ENDS: Duration = Duration::from_millis(200);
/// A discard that is in the kernel for longer has been left by a jump out of a signal handler.
pub const DISCARD_TAKES_MAX: Duration = Duration::from_secs(30);
/// Pieces of adopted memory that are looked up each time the monitor wakes.
pub const LOOK_UP_STEPS: u32 = 8;
/// But no more of them once they have taken so long: what they have found can leave meanwhile, and reclaim goes on with them.
pub const LOOK_UP_TAKES: Duration = Duration::from_millis(4);
/// What the monitor knows of the budget is asked for again before it reclaims, if it is older than this.
pub const USAGE_IS_OLD: Duration = Duration::from_millis(1);
/// Rounds in which sharing is broken and nothing is moved, before the pages are taken for pinned.
pub const ONLY_BROKEN_MAX: u32 = 8;
/// Rounds that achieve nothing, one after the other, before the monitor takes it that nothing is left to reclaim: the second one
/// looks at everything, and what that finds leaves in the next.
pub const FRUITLESS_ROUNDS: u32 = 3;

/// So many processes, and no more, look each millisecond each.
const MANY_PROCESSES: u64 = 8;
const MANY_SLEEP_MAX_MS: u64 = 4;
/// A monitor of more processes than this rests while nothing happens in its own, but no longer at a time than this.
pub const FEW_PROCESSES: u64 = 4;
/// See above.
pub const REST_MAX: Duration = Duration::from_millis(20);

/// 4 MiB: what an idle process keeps, whoever needs it. Half of it is uswap's own.
pub const IDLE_KEEPS: u64 = 1024;

/// How long the monitor sleeps: no longer than a program may take to fill `headroom` pages, which `processes` share.
pub fn monitor_sleep(headroom: u64, processes: u64, fruitless: bool) -> Duration {
    // No more of them run at a time than there are CPUs, and each look takes one of these.
    let many = (processes / MANY_PROCESSES).clamp(1, MANY_SLEEP_MAX_MS);
    let least = if fruitless { FRUITLESS_SLEEP_MS } else { many };
    Duration::from_millis((headroom / PAGES_PER_MS / processes.max(1)).clamp(least, SLEEP_MAX_MS))
}

// What rests in frames.

/// The part of a budget that rests in the swap cache. It shows which pages are in use, but each hit is a fault that the program
/// would not have taken: measured with 5, 20, 40 and 100.
const CACHED_SHARE: u64 = 20;
/// The part of a budget whose frames are kept free for faults, and in pages the least and the most: a batch of a handler finds
/// its frames, and no more than 4 MiB lie idle.
const FREE_SHARE: u64 = 128;
const FREE_MIN: u64 = 32;
const FREE_MAX: u64 = 1024;
/// Free frames beyond those that are worth a system call.
const TRASH_STEP: u64 = 64;
/// Pages beyond those that rest in the swap cache which the monitor moves out for the writer: four rounds.
const STOCK: u64 = 4 * ROUND_PAGES as u64;

/// Pages that rest in the swap cache, of a budget of `limit` pages and of `frames` frames in all.
pub fn swap_cache_pages(limit: u64, frames: u64) -> u64 {
    (limit / CACHED_SHARE).min(frames / 4 * 3)
}

/// Free frames that are kept.
pub fn free_frames(limit: u64) -> u64 {
    (limit / FREE_SHARE).clamp(FREE_MIN, FREE_MAX)
}

/// Whether frames are given back to the kernel, of which `kept` are to be free and `free` are.
pub fn gives_frames_back(free: u64, kept: u64, urgent: bool) -> bool {
    urgent || free > kept + TRASH_STEP
}

/// Whether a thread that cannot write has moved out enough for the one that can: more would only be missed. `cached` pages are
/// in the swap cache, where `kept` are to rest.
pub fn writer_has_enough(cached: u64, kept: u64) -> bool {
    cached > kept + STOCK
}

// How far ahead.

/// Of a budget, the part that may be ahead of one stream at a time, and the most that pays, in pages: 1 MiB.
const AHEAD_SHARE: u64 = 64;
const AHEAD_MAX: u64 = 256;
/// Threads that read ahead: one reads while the other moves in what it has read.
pub const AHEAD_THREADS: u32 = 2;
/// Stretches that are read together: 256 KiB, one transfer where they lie side by side.
pub const AHEAD_STRETCHES: usize = 4;
/// Pages of them.
pub const AHEAD_PAGES: usize = AHEAD_STRETCHES * MAX_WINDOW;
/// Pages that are read together from an area that leaves: 1 MiB.
pub const SWAPOFF_PAGES: usize = 256;
/// How long a process waits until the shared-memory server knows of what it has mapped, before it takes what the kernel has.
pub const SHARED_KNOWN_WITHIN: Duration = Duration::from_secs(1);
/// How often it looks meanwhile whether it shall wait on.
pub const SHARED_KNOWN_LOOK: Duration = Duration::from_millis(100);
/// When an area that leaves is looked at again, of which nothing could be brought in.
pub const SWAPOFF_PAUSE: Duration = Duration::from_millis(10);

/// Pages of the largest chunk that is read ahead, for a budget of so many.
pub fn ahead_pages(limit: u64) -> u32 {
    (limit / AHEAD_SHARE).min(AHEAD_MAX) as u32
}

// Who waits for the writer, and how long.

/// How long reclaim rests while only the writer has something to do: what a program fills meanwhile at 1 GiB/s is little.
const AWAIT_WRITER: Duration = Duration::from_micros(200);
/// The same past the limit, while the program grows: it never waits for room as long as each piece that it maps is full before
/// it is adopted (a heap that grows by 128 KiB at a time).
const AWAIT_WRITER_IN_GROWTH: Duration = Duration::from_micros(10);
/// How long a fault waits at most while the writer gets on: a slow disk must not let programs grow that never see a fault (a
/// heap grows by memory that is not adopted yet), and whoever waits holds up others.
pub const WRITER_AWAITED: Duration = Duration::from_millis(250);
/// How often it looks meanwhile.
pub const WRITER_LOOK: Duration = Duration::from_micros(200);
/// A write that takes longer is not waited for: the device may hang.
pub const SLOW_WRITE: Duration = Duration::from_millis(100);
/// How long a pool that could not be made smaller is left alone: the areas are full, or what is in it must stay.
pub const POOL_LEFT_ALONE: Duration = Duration::from_millis(20);

/// How long the monitor rests for the writer. `took`: how long its round took, if the program grows past the limit meanwhile;
/// half of a processor is enough for that.
pub fn rest_for_writer(took: Option<Duration>) -> Duration {
    took.map_or(AWAIT_WRITER, |took| took.clamp(AWAIT_WRITER_IN_GROWTH, AWAIT_WRITER))
}

// What a handler does for the budget.

/// Rounds of reclaim of a handler after each fault that it has served: others that it has read wait meanwhile.
pub const ROUNDS_AFTER_FAULT: u32 = 4;
/// How long a handler looks for a moment in which a long list of events can be settled, while others make room for it.
pub const SETTLED_IN_TIME: Duration = Duration::from_millis(10);
/// How often a faulting thread waits for the monitor, 20 us and more each, when it finds nothing to reclaim by itself.
pub const STALL_WAITS: u32 = 100;
/// And for how long at most: where the kernel has swapped much out, to find nothing takes long.
pub const STALL: Duration = Duration::from_millis(50);
/// Rounds without a store after one in which most pages found no place in memory, of a thread that does not write.
pub const ROUNDS_LEFT: u32 = 16;
/// Blocks that the kernel has swapped out which one search for pages to move out passes over.
pub const SWAPPED_BLOCKS_MAX: u32 = 64;
/// Blocks that others have as well, and that are put aside in one round: some milliseconds.
pub const IN_COMMON_BLOCKS_MAX: u32 = 512;
/// How long a write to a block that is in common waits where nothing can be reclaimed at this moment: it gets 32 MiB in a second.
pub const COPY_REST: Duration = Duration::from_millis(2);
/// Pages that others have as well which reclaim copies at a time, so that they can leave: half a megabyte.
pub const COPIED_AT_ONCE: u64 = 128;
/// Pages that others have let go of, or more: what was put aside for their sake is looked at again. 4 MiB.
pub const LET_GO_MIN: u64 = 1024;
/// Pages that the kernel has swapped in, or more: what was put aside as swapped out is looked at again. 1 MiB.
pub const KERNEL_BROUGHT_MIN: u64 = 256;
/// How often blocks that were put aside are looked at again: those that others have where nothing else is left.
pub const LOOK_AT_ASIDE_EVERY: Duration = Duration::from_secs(1);
/// The same, where looking has been in vain several times over, and no process has ended since.
pub const LOOK_AT_ASIDE_AT_LEAST_EVERY: Duration = Duration::from_secs(8);
/// Milliseconds for which faults do not wait for memory after nothing could be stored.
pub const HOPELESS_MS: u64 = 50;

/// How long a handler waits for more messages before it looks whether what was read can be settled: the program may rest, and ask
/// for nothing.
pub const SETTLING: Duration = Duration::from_millis(1);

// What a fork promises.

/// A child that has said hello counts its own memory after this time.
pub const PROMISE_KEPT: Duration = Duration::from_millis(50);
/// A child that has not said hello by then never will.
pub const PROMISE_ENDS: Duration = Duration::from_secs(2);

/// Pages of a child for which nobody has to give way: 4 MiB.
pub const PROMISE_MIN: u64 = 1024;
/// Pages that processes may have in common after forks, and keep, of a budget of `limit` pages: where they let go of one, each has to
/// store it. What they need beside is left to them: `fixed` pages that cannot be swapped or are of compressed pools, and what they
/// work in, all together.
pub fn in_common_max(limit: u64, works_in: u64, fixed: u64) -> u64 {
    limit.saturating_sub(fixed + works_in).min(limit / 8 * 7)
}

/// What a process works in at the least, in pages: an eighth of the budget, or 2 MiB.
pub fn works_in(limit: u64) -> u64 {
    (limit / 8).min(CHILD_WORKS_IN)
}

/// What most processes work in that turn out to work in more than the least, in pages: an eighth of the budget, or 8 MiB.
pub fn mostly_works_in(limit: u64) -> u64 {
    (limit / 8).min(CHILD_NEEDS)
}

/// Pages that a process may leave in common with its first child where it has to make room for it: what may stay with one process
/// more, and two thirds at most. More children may come.
pub fn in_common_at_first(limit: u64, work_in: u64, fixed: u64) -> u64 {
    in_common_max(limit, work_in + works_in(limit), fixed + CHILD_NEEDS).min(limit / 3 * 2)
}

/// 8 MiB: what a child needs in any case, for uswap's tables and threads and to work in.
pub const CHILD_NEEDS: u64 = 2048;

/// Where less room than this is left, in pages, the copies of `in_common` pages have to wait for room each. Until they do, a program
/// copies at the speed of memory: it needs room for all, or for so much of them that the monitor sees it in time on a busy machine.
pub fn room_for_copies(in_common: u64) -> u64 {
    (in_common / 8).max(in_common.min(64 << 8)) + 1024
}

/// Pages that a process which forks needs to get on, beside what cannot be swapped: 2 MiB.
pub const CHILD_WORKS_IN: u64 = 512;

// How long a fork waits.

/// For its process to become smaller, since it last did: its other threads may bring pages back as fast as they leave.
pub const SHRINK_PATIENCE: Duration = Duration::from_millis(250);
/// How often it looks meanwhile whether others have made room.
pub const ROOM_LOOK: Duration = Duration::from_millis(1);
/// For a moment in which no other thread changes the mappings.
pub const READ_PATIENCE: Duration = Duration::from_millis(20);
/// For memory to come to rest that is moved while it is let go to a child.
pub const LIFT_PATIENCE: Duration = Duration::from_millis(20);
/// When memory that the kernel refuses to keep from forks is looked at again.
pub const REFUSED_AGAIN: Duration = Duration::from_secs(1);
/// For a page of the swap cache to be back in the program before a fork. The kernel refuses that only while something is being
/// changed.
pub const PUT_BACK_WITHIN: Duration = Duration::from_secs(10);
/// And so many tries, of some 20 us at least.
pub const PUT_BACK_TRIES: u32 = 1000;
/// The parent, after it has forked, for a moment in which no other thread changes the mappings: its child waits, too, and must
/// know.
pub const STILL_PATIENCE: Duration = Duration::from_millis(100);
/// A child, to be told what other threads did around the fork. Its parent does that before it goes on, unless it is stopped or
/// killed.
pub const TOLD_WITHIN: Duration = Duration::from_secs(10);
/// For room, at first when nobody gives way.
pub const FORK_PATIENCE: Duration = Duration::from_secs(2);
/// The same, at least: each time that it was in vain it is half as long.
pub const FORK_PATIENCE_MIN: Duration = Duration::from_millis(16);
/// For room, in all.
pub const FORK_LONGEST: Duration = Duration::from_secs(10);

// How memory is adopted.

/// Steps in which one piece of memory is followed while it grows.
pub const CHASE_STEPS: u32 = 16;
/// Mappings that are adopted at a time, at most: a quarter of vm.max_map_count, 65530 by default.
pub const ADOPTED_MAX: usize = 16_000;
/// Mappings that one walk adopts: what is populated must be looked up, and pages leave, before it goes on.
pub const FRESH_MAX: usize = 1024;
/// How often what was adopted is verified, when it turns out to be larger each time: who maps that fast is caught up with later.
pub const VERIFY_ROUNDS: u32 = 4;
/// How often a mapping that changes meanwhile is verified: then faults bring it to the books.
pub const VERIFY_TRIES: u32 = 8;
/// Looks at memory that the program is changing, each at half as much as the one before: from what [`ScanReach`](crate::scan_reach::ScanReach)
/// begins with down to a piece that is still for long enough.
pub const CHANGING_LOOKS_MAX: u32 = 8;
/// How often memory is kept from forks again that the program is moving meanwhile: what is left is tried again at the next look.
pub const KEEP_TRIES: u32 = 4;
/// How often each time a look waits for the program to rest: 0.3 ms, and what the scheduler makes of it.
pub const KEEP_PAUSES: u32 = 16;
/// The same when a mapping is adopted. There may be thousands, and what cannot be told is looked at again.
pub const ADOPT_PAUSES: u32 = 1;

// What fails, and is tried again.

/// After a write failed for want of space, the area is tried again this much later: who makes room on a disk takes longer.
pub const NO_SPACE_PAUSE: Duration = Duration::from_millis(100);
/// A shortage that comes back sooner than this is not told again.
pub const SHORTAGE_SAID_AGAIN: Duration = Duration::from_secs(60);
/// Write errors after which an area takes no more pages: that many are no accident. Its pages are still read.
pub const WRITE_ERRORS_MAX: u64 = 64;
/// Reads of a page before it is given up, if what was read is wrong, or nobody waits for it: what a cable or a controller does goes
/// away within these, what a disk has lost does not.
pub const READ_ATTEMPTS: u32 = 4;
/// How long the read of a page that a thread waits for is tried again where the transfer fails: a path that is changed, a link that
/// is reset.
pub const READ_AGAIN_FOR: Duration = Duration::from_secs(2);
/// After that was in vain, no other page of the area is waited for so for this long: of a broken disk thousands may be lost.
pub const READ_AT_ONCE_FOR: Duration = Duration::from_secs(60);

/// How often what others have read of a forked child's memory is dropped again before the child is ended. Once is the rule: it takes
/// microseconds, and who reads in a loop is seldom faster.
pub const UNDO_READS_MAX: u32 = 64;

/// How long to wait before a failed transfer is tried again, after so many attempts beyond [`READ_ATTEMPTS`].
pub fn rest_before_read(attempts: u32) -> Duration {
    Duration::from_millis(1 << attempts.min(7))
}
/// How often a block that does not leave is tried again, each time after 20 us and more: a device that has a frame lets go of
/// it within that time.
pub const TRASH_TRIES: u32 = 500;
/// How long each is tried once only, after one has not left for all that.
pub const TRASH_REST: Duration = Duration::from_millis(100);

// What is weighed.

/// Nanoseconds of a fault beside its handler's work: two threads change places twice, and another page leaves in its stead.
pub const FAULT_OVERHEAD_NS: u64 = 30_000;
/// Nanoseconds of a handler for a page from the pool, and for one from an area, before any was measured: decompression, and a
/// read of an SSD.
pub const FAULT_NS_AT_FIRST: [u64; 2] = [10_000, 100_000];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_monitor_sleeps_less_the_nearer_the_limit_is() {
        let ms = |headroom, processes, fruitless| monitor_sleep(headroom, processes, fruitless).as_millis();
        assert_eq!([ms(0, 1, false), ms(0, 1, true)], [1, 5]);
        assert_eq!([ms(20 * 1024, 1, false), ms(20 * 1024, 4, false), ms(20 * 1024, 0, true)], [20, 5, 20]);
        assert_eq!(ms(u64::MAX, 1, false), 100);
        assert_eq!([ms(0, 15, false), ms(0, 16, false), ms(0, 200, false), ms(0, 200, true)], [1, 2, 4, 5]);
    }

    #[test]
    fn a_twentieth_rests_in_the_swap_cache_if_there_are_frames_for_it() {
        assert_eq!([swap_cache_pages(20_000, 8000), swap_cache_pages(20_000, 400)], [1000, 300]);
    }

    #[test]
    fn free_frames_are_kept_within_bounds() {
        assert_eq!([16 << 8, 1 << 16, 1 << 24].map(free_frames), [32, 512, 1024]);
        assert!(!gives_frames_back(32 + TRASH_STEP, 32, false) && gives_frames_back(33 + TRASH_STEP, 32, false));
        assert!(gives_frames_back(0, 32, true));
    }

    #[test]
    fn a_stream_is_ahead_by_a_64th_of_the_budget() {
        assert_eq!([0, 4096, 1 << 20].map(ahead_pages), [0, 64, 256]);
    }

    #[test]
    fn the_monitor_rests_as_long_as_its_round_took_while_the_program_grows() {
        let us = |took: Option<u64>| rest_for_writer(took.map(Duration::from_micros)).as_micros();
        assert_eq!([us(None), us(Some(1)), us(Some(50)), us(Some(5000))], [200, 10, 50, 200]);
    }
}
