//! What the monitor does for shared memory that can be swapped: it maps it for threads of the program, hands it to the shared-memory
//! server, and where the kernel tells nobody of forks, it follows them for its sake.

use std::sync::atomic::Ordering::Acquire;

use uswap_core::{PAGE_SIZE, PageRange, tuning};
use uswap_system::{Advice, MapShared, Reply, Scope, SharedSwap, Supervisor};

use super::Monitor;
use crate::group::{SHARED_REFUSED, SwappedShared};
use crate::host::Host;
use crate::member::Member;
use crate::staffed::Staffed;

/// Waits until the server answers, or `goes_on` says no. Whether it knows of what it has been handed since its word was `before`.
fn answer<H: Host>(member: &Member<H>, before: u32, goes_on: impl Fn() -> bool) -> Reply {
    let word = &member.slot().called.shared_known;
    loop {
        let answer = word.load(Acquire);
        if answer != before {
            return if (answer ^ before) & SHARED_REFUSED == 0 { Reply::Known } else { Reply::Refused };
        }
        if !goes_on() {
            return Reply::NotYet;
        }
        let _ = H::wait(word, Scope::Shared, before, Some(tuning::SHARED_KNOWN_LOOK));
    }
}

impl<H: Staffed> Monitor<H> {
    /// Has something handed over, and waits for a while until the server knows of it. What has not been answered in time is answered
    /// first: `waits` for it, too, or nothing is handed over.
    fn is_soon_known(&self, hand_over: &dyn Fn(), waits: bool) -> Reply {
        let (begun, mappings, member) = (H::now(), &self.post.shared_mappings, self.member());
        let goes_on = || H::since(begun) < tuning::SHARED_KNOWN_WITHIN;
        if let Some(before) = mappings.unanswered() {
            if answer(member, before, || waits && goes_on()) == Reply::NotYet {
                return Reply::NotYet;
            }
            mappings.is_unanswered(None);
        }
        let before = member.slot().called.shared_known.load(Acquire);
        hand_over();
        let heard = answer(member, before, goes_on);
        if heard == Reply::NotYet {
            mappings.is_unanswered(Some(before));
        }
        heard
    }

    /// For a thread that maps shared memory; and for the server, once there is one.
    pub(super) fn share_memory(&self) {
        let member = self.member();
        let known = |hand_over: &dyn Fn()| self.is_soon_known(hand_over, false);
        // For memory that has a name the kernel has nothing in its place.
        let named_known = |hand_over: &dyn Fn()| self.is_soon_known(hand_over, true);
        let swap = member.group.shared_swap();
        let which = member.group.config().shared;
        self.post.shared_mappings.names_are_swapped(which == SwappedShared::Files);
        let map = |wanted: MapShared| match wanted {
            wanted if wanted.as_named().is_some() && which != SwappedShared::Files => 0,
            wanted if wanted.as_detached().is_some() => H::map_shared(wanted, &member.supervisor, swap, known),
            wanted if wanted.as_changed().is_some() => {
                let may_be_swapped = which != SwappedShared::None && swap != SharedSwap::Off;
                if may_be_swapped { H::map_shared(wanted, &member.supervisor, swap, named_known) } else { 0 }
            }
            // What the kernel has is left alone.
            _ if which == SwappedShared::None => MapShared::NOT_SUPPORTED,
            wanted if wanted.as_named().is_some() => {
                member.group.has_named_memory();
                H::map_shared(wanted, &member.supervisor, swap, named_known)
            }
            MapShared::DIRECT_IO => isize::from(!member.group.begin_direct_io::<H>(tuning::SHARED_KNOWN_WITHIN)),
            wanted => H::map_shared(wanted, &member.supervisor, swap, known),
        };
        self.post.shared_mappings.serve(map, H::unmap_shared);
        self.keep_shared_without_engine();
        if swap != SharedSwap::Off {
            H::share_memory(&member.supervisor, swap, known, |start, len| self.let_others_fork(start, len));
        }
    }

    /// Before a fork, which is followed for the sake of shared memory, too: the child gets it.
    pub(crate) fn let_shared_fork(&self) {
        if H::shared_forks_are_followed() {
            // No fork goes round the hooks meanwhile.
            self.post.fork.lift(true);
            H::let_shared_fork();
        }
    }

    /// After it: nobody else's child does. Whether that is so.
    pub(crate) fn keep_shared_from_forks(&self) -> bool {
        !H::shared_forks_are_followed() || H::keep_shared_from_forks(|start, len| self.let_others_fork(start, len))
    }

    /// The same, where nothing else is to be kept from forks; in each turn until it is so.
    pub(crate) fn keep_shared_without_engine(&self) {
        if self.engine().is_none() && self.post.fork.all_is_lifted() && self.keep_shared_from_forks() {
            self.post.fork.lift(false);
        }
    }

    /// Memory that has come into the place of shared memory was kept from children by mistake; what is adopted is kept from them anyway.
    fn let_others_fork(&self, start: usize, len: usize) {
        let range = PageRange::of_bytes(start, start + len);
        let others = match self.engine() {
            Some(engine) => engine.core().pages().not_adopted(range).collect(),
            None => vec![range],
        };
        for part in others {
            let _ = H::advise(part.start.address(), part.pages as usize * PAGE_SIZE, Advice::DoFork);
        }
    }

    /// In the child of a fork that was followed: the server knows of it before the program goes on, for as long as there is a supervisor.
    pub(crate) fn share_in_child(&self) {
        let member = self.member();
        let known = |hand_over: &dyn Fn()| {
            let before = member.slot().called.shared_known.load(Acquire);
            hand_over();
            answer(member, before, || {
                if member.supervisor.is_gone() {
                    H::kill_self();
                }
                true
            })
        };
        if !H::share_in_child(&member.supervisor, known) {
            H::end(format_args!("it has shared memory that may be swapped out, and cannot tell its server"));
        }
    }
}
