//! The process's share of the budget: what it has, what all have, and what follows for this one.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use uswap_core::budget::{Claim, Precedence, Room, Usage};
use uswap_core::defects::{Sabotage, is_on};
use uswap_core::floor::{self, Floor};
use uswap_core::works_in::WorksIn;
use uswap_core::{PAGE_SIZE, tuning};

use super::Monitor;
use super::births::Births;
use super::precedence::Judgement;
use crate::engine::Engine;
use crate::group::{Family, Group, Holder, Wants};
use crate::host::Host;
use crate::in_common::Scarcity;
use crate::last_told::LastTold;
use crate::member::Member;
use crate::scale::{Growth, Scale};
use crate::staffed::Staffed;

/// What the share follows from, beside what is looked at each time.
pub(super) struct Share<H: Host> {
    pub scale: Scale<H>,
    claim: Claim,
    own: Own,
    pub precedence: Judgement,
    pub growth: Growth,
    started: Instant,
    pub births: Births,
    pub in_common: Kept,
    aside: Aside,
    /// How many forks had begun when adopted memory was protected.
    protected_at: Option<u32>,
}

/// What the process gets of its own: what it keeps in any case, and what it works in beside what is in common.
#[derive(Default)]
struct Own {
    floor: Floor,
    works_in: WorksIn,
}

/// What reclaim puts aside, and when it is looked at again.
struct Aside {
    /// What the process had in common with children at the last such look.
    had_in_common: u64,
    /// What is met of that is put aside. `None` of a forked process that has not looked: its core does as its parent's did.
    puts_in_common: Option<bool>,
    /// The most that the kernel has had swapped out since the last look at that.
    kernel_swapped: u64,
    looked: Instant,
}

/// Private pages that processes of the group have in common after a fork: nobody can give them back alone.
#[derive(Clone, Copy, Default)]
pub(super) struct Kept {
    /// In all of them.
    pub all: u64,
    /// Those that this process counts, now and when its children last looked.
    pub mine: u64,
    mine_when_looked: u64,
    /// Those that this process leaves out, and that its parent has in common with the child that has most.
    left_out: u64,
    of_parent: u64,
    /// So many may stay, and what each process has alone goes before. More than that leaves too little to work in: then they go as early.
    pub most: u64,
    /// So many leave each process enough to get on. More than that who has them lets go at once; until they are so few they count before
    /// anything is shared out, for to let go of one takes as many copies as there are processes that have it.
    bearable: u64,
    /// What all processes work in.
    pub work_in: u64,
    /// Pages of all processes that cannot be swapped, and those of this one.
    pub fixed: u64,
    pub fixed_mine: u64,
}

/// What all processes of the group have and want, in pages.
#[derive(Default)]
struct All {
    total: u64,
    /// Those that use memory, or to whom some is promised.
    processes: u64,
    /// Claimed by others than this process.
    claims: u64,
    /// Cannot be swapped.
    fixed: u64,
    pools: u64,
    in_common: u64,
    work_in: u64,
}

impl All {
    /// As the process with the index `mine` sees it.
    fn of(group: &Group, family: &Family, mine: u32, limit: u64) -> All {
        let mut all = All::default();
        for (index, slot) in group.processes() {
            let Wants { promised_pages, works_in_pages, claimed_pages, .. } = &slot.wants;
            if index != mine {
                all.claims += claimed_pages.load(Relaxed);
            }
            all.fixed += family.fixed_pages(group, index, slot);
            all.in_common += family.in_common(group, index, slot);
            all.pools += slot.pool.bytes.load(Relaxed) / PAGE_SIZE as u64;
            let uses = family.usage_pages(group, index, slot);
            for (pages, works_in) in [(uses, works_in_pages.load(Relaxed)), (promised_pages.load(Relaxed), 0)] {
                all.total += pages;
                all.processes += u64::from(pages > 0);
                all.work_in += if pages > 0 { works_in.max(tuning::works_in(limit)) } else { 0 };
            }
        }
        all
    }
}

impl Kept {
    /// What concerns the process that is `member` alone.
    fn by<H: Host>(member: &Member<H>, family: &Family) -> Kept {
        let (group, index, slot) = (member.group, member.index, member.slot());
        let of_parent = |parent: Holder| family.in_common_with_one(parent.index);
        Kept {
            mine: family.in_common(group, index, slot),
            mine_when_looked: family.in_common_when_looked(index),
            left_out: family.leaves_out(group, slot),
            of_parent: group.living_parent(slot).map_or(0, of_parent),
            fixed_mine: family.fixed_pages(group, index, slot),
            ..Kept::default()
        }
    }

    /// With what concerns all.
    fn of_all(self, all: &All, limit: u64) -> Kept {
        let All { fixed, pools, in_common, work_in, .. } = *all;
        // As long as all fits, nobody has to let anything go.
        let fits = all.total <= limit - limit / 16;
        let leaves = |work_in| if fits { in_common } else { tuning::in_common_max(limit, work_in, fixed + pools) };
        let bearable = leaves(all.processes * tuning::works_in(limit));
        Kept { all: in_common, most: leaves(work_in), bearable, work_in, fixed, ..self }
    }

    /// What is left to share out, without them.
    fn leave_out(&self, usage: &mut Usage) {
        let all = self.all.min(self.bearable).min(usage.total);
        let mine = (self.mine * all).checked_div(self.all).unwrap_or(0).min(usage.mine);
        // A child's own to let go, though it does not count it.
        let beyond = if self.mine == 0 { self.beyond(self.bearable) } else { 0 };
        (usage.limit, usage.total, usage.mine) =
            (usage.limit - all, usage.total - all + beyond, usage.mine - mine + beyond);
    }

    /// What a process has of its parent beyond its part of so many that may stay in all.
    fn beyond(&self, may_stay: u64) -> u64 {
        if self.all <= may_stay { 0 } else { self.left_out.saturating_sub(self.of_parent * may_stay / self.all) }
    }

    /// Whether what this process has of them may stay, and goes last. A child without children of its own that has no more of its parent
    /// than may stay in all lets go of none, for that would free nothing: who has more does. Where nobody counts them for others, as
    /// after the end of a parent, to let them go frees what they count.
    fn may_stay(&self) -> bool {
        let has_some = self.mine > 0 || self.left_out > 0;
        let has_least = self.mine == 0 && self.beyond(self.most) == 0;
        has_some && (self.all <= self.most || has_least)
    }
}

impl<H: Host> Share<H> {
    pub fn new(told: &LastTold, member: &Member<H>) -> io::Result<Self> {
        Ok(Share {
            scale: Scale::new(told, member)?,
            claim: Claim::default(),
            own: Own::default(),
            precedence: Judgement::default(),
            growth: Growth::default(),
            started: H::now(),
            births: Births::new::<H>(),
            in_common: Kept::default(),
            aside: Aside { had_in_common: 0, puts_in_common: None, kernel_swapped: 0, looked: H::now() },
            protected_at: None,
        })
    }

    /// The program's first thread has ended.
    pub fn main_has_ended(&self) -> bool {
        self.scale.main_has_ended()
    }
}

impl<H: Staffed> Monitor<H> {
    /// This process's use of the group's memory.
    pub(crate) fn usage(&mut self) -> Usage {
        let usage = self.look_at_usage();
        let usage = if self.look_at_what_is_in_common(&usage) { self.look_at_usage() } else { usage };
        self.look_at_what_the_kernel_swapped();
        usage
    }

    fn look_at_usage(&mut self) -> Usage {
        let group = self.member().group;
        let slot = self.member().slot();
        let mine_index = self.member().index;
        self.share.scale.weigh(group, slot, &self.post.last_told, self.engine());
        self.end_promise();
        let family = group.family();
        self.tell_what_is_to_come(&family);
        let mine = family.usage_pages(group, mine_index, slot);
        let limit = group.limit_of_living_pages();
        let all = All::of(group, &family, mine_index, limit);
        // Seen here at every moment that counts; the supervisor looks only now and then.
        group.note_resident_bytes(group.resident_pages_at_least() * PAGE_SIZE as u64);
        let now_ms = H::since(self.share.started).as_millis() as u64;
        let room = Room { unseen: self.share.growth.unseen(), gap_min: group.config().gap_min_pages.into() };
        // Where what cannot be swapped fills the budget, to give way makes none.
        let makes_room = all.fixed < limit / 2;
        let mut usage = Usage {
            limit,
            total: all.total,
            mine,
            processes: all.processes,
            precedence: if makes_room { self.precedence(mine, now_ms) } else { Precedence::default() },
            claims: all.claims,
            held_at: None,
            room,
            siblings: if family.has(group, mine_index, slot) { all.processes } else { 1 },
            least: 0,
        };
        self.share.in_common = Kept::by(self.member(), &family).of_all(&all, limit);
        self.share.in_common.leave_out(&mut usage);
        self.tell_what_it_works_in(&usage, limit, now_ms);
        usage.least = self.least(&usage, all.fixed, now_ms);
        let claimed = self.share.claim.update(&usage, now_ms);
        usage.held_at = self.share.claim.held_at(&usage, now_ms);
        self.member().slot().wants.claimed_pages.store(claimed, Relaxed);
        usage
    }

    /// What reclaim has put aside because the kernel had swapped it out comes in without anybody's knowledge.
    fn look_at_what_the_kernel_swapped(&mut self) {
        let Some(engine) = self.engine() else { return };
        let swapped = self.member().slot().resident.kernel_swapped_pages.load(Relaxed);
        let Aside { kernel_swapped, looked, .. } = &mut self.share.aside;
        *kernel_swapped = swapped.max(*kernel_swapped);
        let is_old = *kernel_swapped > 0 && H::since(*looked) > tuning::LOOK_AT_ASIDE_EVERY;
        if is_old || swapped + tuning::KERNEL_BROUGHT_MIN <= *kernel_swapped {
            engine.core().take_back_aside();
            (*kernel_swapped, *looked) = (swapped, H::now());
        }
    }

    /// Pages that could be copied at any moment, because others have them as well, and those that would be too many. Whether this process
    /// has looked anew which it leaves out.
    fn look_at_what_is_in_common(&mut self, usage: &Usage) -> bool {
        // What a child has is not registered before its engine goes on.
        let Some(engine) =
            self.engine().filter(|engine| engine.forking.phase.is_running() || is_on(Sabotage::ProtectedUnregistered))
        else {
            return false;
        };
        let slot = self.member().slot();
        let group = self.member().group;
        let room = usage.limit.saturating_sub(usage.total);
        // Or what it counts too much would have it give way, for others count so, too.
        let is_short = usage.mine > usage.watermarks().start();
        let mut has_looked = false;
        if room < usage.limit / 8 || is_short {
            let is_pressing = room < usage.limit / 32 || is_short;
            let fork = &self.post.fork;
            let scarcity =
                Scarcity { has_forked: fork.has_forked(), is_pressing, is_newborn: fork.child_is_waited_for() };
            has_looked = self.share.scale.in_common.look_in_time(group, slot, engine, scarcity);
        }
        // Where its children have let go of some, what it put aside may be its own.
        let left = self.share.in_common.mine_when_looked;
        if left + tuning::LET_GO_MIN < self.share.aside.had_in_common {
            engine.core().take_back_aside();
        }
        if left + tuning::LET_GO_MIN < self.share.aside.had_in_common || left > self.share.aside.had_in_common {
            self.share.aside.had_in_common = left;
        }
        let Kept { mine, left_out, .. } = self.share.in_common;
        let puts_aside = self.share.in_common.may_stay();
        if self.share.aside.puts_in_common.replace(puts_aside) != Some(puts_aside) {
            engine.core().put_aside(puts_aside);
        }
        self.protect_for_copies(engine, left_out.max(mine), room);
        has_looked
    }

    /// Before a fork: what the process will have in common with its child it copies as soon as the fork is over, before the child has told
    /// that it has any.
    pub(crate) fn protect_for_child(&mut self, engine: &Engine<H>) {
        let (group, has) = (self.member().group, self.member().slot().resident.anon_pages.load(Relaxed));
        self.protect_for_copies(engine, has, group.limit_of_living_pages().saturating_sub(group.usage_pages()));
    }

    /// Where there is no room for all copies of so many pages, adopted memory is protected, once for each fork.
    fn protect_for_copies(&mut self, engine: &Engine<H>, in_common: u64, room: u64) {
        let forks = self.member().slot().forks_begun();
        if in_common > 0 && self.share.protected_at != Some(forks) && room < tuning::room_for_copies(in_common) {
            self.share.protected_at = engine.protect_adopted().then_some(forks);
        }
    }

    /// Pages of this process that cannot be swapped, when it last looked.
    pub(crate) fn fixed_pages(&self) -> u64 {
        self.share.in_common.fixed_mine
    }

    /// Whether what processes have in common after forks may stay. What a child has that has just been forked is not counted yet: it may
    /// let it go at once, by execve.
    pub(crate) fn in_common_may_stay(&self) -> bool {
        let Kept { mine, .. } = self.share.in_common;
        self.share.in_common.may_stay() || mine == 0 && self.share.births.promises()
    }

    /// Pages of all processes that cannot be swapped, when this one last looked.
    pub(crate) fn fixed_of_all(&self) -> u64 {
        self.share.in_common.fixed
    }

    /// What all processes work in, beside what they have in common.
    pub(crate) fn all_work_in(&self) -> u64 {
        self.share.in_common.work_in
    }

    /// Private pages that all processes have in common after forks, and keep.
    pub(crate) fn in_common_of_all(&self) -> u64 {
        self.share.in_common.all
    }

    /// Pages that come back before more have left than the process would get, of its part of what is in common, would be there with that.
    fn tell_what_it_works_in(&mut self, usage: &Usage, limit: u64, now_ms: u64) {
        let in_common = self.share.in_common.all;
        let Some(engine) = self.engine().filter(|_| in_common > 0) else { return };
        let own = usage.mine.saturating_sub(self.fixed_pages() + engine.content.pool_pages());
        let share = in_common / usage.processes.max(1);
        let returns = || engine.core().returns(own.min(share));
        let works_in = self.share.own.works_in.update(limit, usage.processes, now_ms, returns);
        self.member().slot().wants.works_in_pages.store(works_in, Relaxed);
    }

    /// What this process keeps in any case, because `fixed` pages of all processes cannot be swapped; 0 if nothing.
    fn least(&mut self, usage: &Usage, fixed: u64, now_ms: u64) -> u64 {
        let Some(engine) = self.engine() else { return 0 };
        let (own, slot) = (self.fixed_pages(), self.member().slot());
        let came_back = self.came_back();
        let evidence = floor::Evidence {
            // What is in common can leave, if need be.
            limit: self.member().group.limit_of_living_pages(),
            processes: usage.processes,
            fixed_of_all: fixed,
            swappable: usage.mine.saturating_sub(own),
            came_back,
        };
        self.share.own.floor.update(&evidence, now_ms);
        let kept = self.share.own.floor.pages();
        slot.wants.floor_pages.store(kept, Relaxed);
        if kept == 0 { 0 } else { own + engine.content.pool_pages() + kept }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A parent has 800 pages in common with one child, and that one 300 or 700 with it.
    #[test]
    fn who_has_no_more_in_common_than_may_stay_lets_go_of_none() {
        let parent = Kept { all: 800, mine: 800, most: 600, ..Kept::default() };
        assert!(!parent.may_stay());
        let child = Kept { all: 800, of_parent: 800, most: 600, left_out: 300, ..Kept::default() };
        assert!(child.may_stay(), "the others have more");
        assert!(!Kept { left_out: 700, ..child }.may_stay());
        assert!(Kept { left_out: 700, most: 800, ..child }.may_stay(), "all may stay");
        assert!(!Kept { of_parent: 0, ..child }.may_stay(), "nobody counts for it");
        assert!(!Kept { most: 600, ..Kept::default() }.may_stay(), "nobody counts any");
    }

    /// Beside another family that has as much.
    #[test]
    fn each_family_keeps_its_part() {
        let child = Kept { all: 1600, of_parent: 800, most: 800, left_out: 400, ..Kept::default() };
        assert!(child.may_stay() && !Kept { left_out: 401, ..child }.may_stay());
    }

    /// Of 1000 pages, of which 700 are in common.
    fn shared_out(kept: Kept, mine: u64) -> (u64, u64, u64) {
        let mut usage = Usage { limit: 1000, total: 1000, mine, processes: 4, siblings: 4, ..Usage::default() };
        kept.leave_out(&mut usage);
        (usage.limit, usage.total, usage.mine)
    }

    #[test]
    fn what_is_in_common_counts_before_anything_is_shared_out_as_long_as_all_can_get_on() {
        let kept = Kept { all: 700, most: 200, bearable: 800, ..Kept::default() };
        let parent = shared_out(Kept { mine: 700, ..kept }, 750);
        assert_eq!(parent, (300, 300, 50));
        let child = shared_out(Kept { left_out: 700, of_parent: 700, ..kept }, 80);
        assert_eq!(child, (300, 300, 80));
    }

    /// Nobody but a child can let go of what its parent has no more.
    #[test]
    fn what_is_beyond_that_is_the_childs_to_let_go() {
        let kept = Kept { all: 700, most: 200, bearable: 500, ..Kept::default() };
        let parent = shared_out(Kept { mine: 700, ..kept }, 750);
        assert_eq!(parent, (500, 500, 250));
        let child = shared_out(Kept { left_out: 600, of_parent: 700, ..kept }, 80);
        assert_eq!(child, (500, 600, 180));
        let child = shared_out(Kept { left_out: 400, of_parent: 700, ..kept }, 80);
        assert_eq!(child.2, 80, "the others have more");
    }
}
