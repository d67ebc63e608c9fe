//! Checkers: what must hold after every step.

use uswap_core::slots::CLUSTER_SLOTS;
use uswap_core::{EntryId, Location, PageNumber, PageRange, PageState};

use super::group::Group;
use super::mm::{Pte, pages_of};
use super::process::Process;
use super::violation::{Checked, Checker, ensure, violated};
use crate::page_content::Content;

const EVERYTHING: PageRange = PageRange { start: PageNumber(0), pages: 1 << 40 };

/// All checkers, for one process.
pub(super) fn check(process: &Process, group: &Group) -> Checked {
    let found = walk_pages(process, group)?;
    check_unknown_pages(process)?;
    check_emptied(process, group)?;
    check_entries(process, group, &found)?;
    check_counters(process, &found)?;
    check_frames(process)
}

/// What a walk over the page table found.
#[derive(Default)]
struct Found {
    /// Which page has which entry, by the number of the entry.
    references: Vec<Option<PageNumber>>,
    known: u64,
    swapped: u64,
    reading: u64,
    in_frame: u64,
}

fn walk_pages(process: &Process, group: &Group) -> Checked<Found> {
    let entries = process.books.look().swap_table().len() as usize;
    let mut found = Found { references: vec![None; entries], ..Found::default() };
    for (page, state) in process.books.look().pages().known(EVERYTHING) {
        found.known += 1;
        let entry = match state {
            PageState::Swapped { entry } => Some(entry),
            PageState::Resident { clean } => clean,
            PageState::ReadingIn { entry, .. } => entry,
            _ => None,
        };
        match state {
            PageState::Swapped { .. } | PageState::SwappedZero => found.swapped += 1,
            PageState::ReadingIn { .. } => found.reading += 1,
            PageState::InFrame { .. } => found.in_frame += 1,
            _ => {}
        }
        if let Some(entry) = entry
            && let Some(other) = found.references[entry.0 as usize].replace(page)
        {
            return violated(Checker::OneReference, format!("{entry:?} is {other:?}'s and {page:?}'s"));
        }
        check_page(page, state, process, group)?;
    }
    Ok(found)
}

/// Nothing is on an area that leaves and of which nothing was left, nor on its way from there.
fn check_emptied(process: &Process, group: &Group) -> Checked {
    let emptied = |area: usize| process.swapoff.has_emptied(area, group);
    if !(0..group.areas.len()).any(emptied) {
        return Ok(());
    }
    let core = process.books.look();
    for area in (0..group.areas.len()).filter(|&area| emptied(area)) {
        let used = core.slots(uswap_core::AreaId(area as u8)).used();
        ensure(used == 0, Checker::Emptied, || format!("{used} slots of area {area} are in use"))?;
    }
    for (page, state) in core.pages().known(EVERYTHING) {
        let entry = match state {
            PageState::Swapped { entry } | PageState::Resident { clean: Some(entry) } => entry,
            PageState::ReadingIn { entry: Some(entry), .. } => entry,
            _ => continue,
        };
        if let Location::Slot { area, .. } = core.swap_table().location(entry) {
            ensure(!emptied(area.0 as usize), Checker::Emptied, || format!("{page:?} is {state:?}, on {area:?}"))?;
        }
    }
    Ok(())
}

/// Whether the books have been told of all that the program did around `page`.
fn is_current(page: PageNumber, process: &Process) -> bool {
    process.mm.all().contains(page)
        && process.mm.at(page).registered
        && !process.mm.is_changing()
        && !process.truth.is_discarding(PageRange { start: page, pages: 1 })
}

/// Pages that the books know nothing of, and that are not there, are zeros.
fn check_unknown_pages(process: &Process) -> Checked {
    let pages = process.books.look().pages();
    for page in pages_of(process.mm.all()).filter(|&page| is_current(page, process)) {
        let would_be_wrong =
            process.mm.at(page).pte == Pte::Missing && !process.truth.expected(page).contains(&Content::ZERO);
        if would_be_wrong {
            let known = !matches!(pages.get(page), None | Some(PageState::Untouched));
            ensure(known, Checker::Recoverable, || {
                format!("{page:?} would read as zeros, not as {:?}", process.truth.expected(page))
            })?;
        }
    }
    Ok(())
}

/// The page can be had from where the books say it is.
fn check_page(page: PageNumber, state: PageState, process: &Process, group: &Group) -> Checked {
    if !is_current(page, process) {
        return Ok(());
    }
    let pte = process.mm.at(page).pte;
    let right = |content: Content, place: &str| {
        ensure(process.truth.expected(page).contains(&content), Checker::Recoverable, || {
            format!("{page:?} is {content:?} in {place}, not {:?}", process.truth.expected(page))
        })
    };
    match state {
        PageState::Untouched => unreachable!("only known pages are walked"),
        PageState::Resident { .. } => {
            if let Pte::Present { content, .. } = pte {
                return right(content, "memory");
            }
            // The kernel drops what was given up with MADV_FREE, and what a scan saw before a discard dropped it.
            ensure(process.truth.expected(page).contains(&Content::ZERO), Checker::Recoverable, || {
                format!("{page:?} is {state:?} and not there")
            })
        }
        PageState::InFrame { frame } => match (pte, process.mm.frames[frame.0 as usize]) {
            // On its way: it is where it was, or where it goes.
            (Pte::Present { content, .. }, _) => right(content, "memory"),
            (_, Some(content)) => right(content, "its frame"),
            (_, None) => ensure(process.truth.expected(page).contains(&Content::ZERO), Checker::Recoverable, || {
                format!("{page:?} is {state:?}, which has no memory")
            }),
        },
        PageState::Swapped { entry } => check_stored(page, entry, process, group),
        // The load may have installed it already, and the program changed it.
        PageState::ReadingIn { .. } if matches!(pte, Pte::Present { .. }) => Ok(()),
        PageState::ReadingIn { entry: Some(entry), .. } => check_stored(page, entry, process, group),
        PageState::SwappedZero | PageState::ReadingIn { entry: None, .. } => {
            // A page brought in while the books stood still for a fork is newer than they are.
            let newer = matches!(pte, Pte::Present { .. }) || is_on_its_way(page, process);
            if newer { Ok(()) } else { right(Content::ZERO, "nothing") }
        }
        PageState::Poisoned => {
            ensure(process.truth.is_lost(page), Checker::LostForAReason, || format!("{page:?} is poisoned"))
        }
    }
}

/// Whether the page is in a frame that the books have not been told of: a move that runs across swapped pages takes along
/// one that had come in beside them.
fn is_on_its_way(page: PageNumber, process: &Process) -> bool {
    let holds = |content: &Content| process.truth.expected(page).contains(content);
    process.gate > 0 && process.mm.frames.iter().flatten().any(holds)
}

fn check_stored(page: PageNumber, entry: EntryId, process: &Process, group: &Group) -> Checked {
    let table = process.books.look().swap_table();
    let newer = matches!(process.mm.at(page).pte, Pte::Present { .. }) || is_on_its_way(page, process);
    let hash = table.hash(entry);
    ensure(newer || process.truth.allows(page, hash), Checker::Recoverable, || {
        format!("{page:?} has {entry:?}, which is not {:?}", process.truth.expected(page))
    })?;
    check_content(entry, process, group)
}

/// What `entry` names is there, unless a fault was injected into it.
fn check_content(entry: EntryId, process: &Process, group: &Group) -> Checked {
    let table = process.books.look().swap_table();
    let (location, hash, epoch) = (table.location(entry), table.hash(entry), table.epoch_of(entry).0 as usize);
    let found = match location {
        Location::Pool { handle, .. } => {
            let pool = process.ancestors.get(epoch).map_or(process.pool, |&(_, pool)| pool);
            group.pools[pool].get(handle)
        }
        Location::Slot { area, slot } => Some(group.peek(area.0 as usize, slot)),
    };
    let is_right = found.is_some_and(|content| content.hash() == hash || content.is_garbage());
    ensure(is_right, Checker::Recoverable, || format!("{entry:?} at {location:?} is {found:?}"))
}

fn check_entries(process: &Process, group: &Group, found: &Found) -> Checked {
    let core = process.books.look();
    let table = core.swap_table();
    let mut places = Vec::new();
    let (mut own, mut live) = (0, 0);
    for entry in table.iter_in_use() {
        let location = table.location(entry);
        let is_live = table.is_live(entry);
        live += u64::from(is_live);
        if is_live {
            check_content(entry, process, group)?;
        }
        if table.is_foreign(entry) {
            continue;
        }
        own += 1;
        let place = match location {
            Location::Pool { handle, .. } => (u8::MAX, u64::from(handle)),
            Location::Slot { area, slot } => {
                let is_used = core.slots(area).is_used(slot);
                ensure(is_used, Checker::OneOwner, || format!("{entry:?} is in slot {slot}, which is free"))?;
                let cluster = (slot / u64::from(CLUSTER_SLOTS)) as usize;
                let owner = group.areas[area.0 as usize].owners[cluster];
                ensure(owner == Some(process.id), Checker::OneOwner, || {
                    format!("{entry:?} of process {} is in a cluster of {owner:?}", process.id)
                })?;
                (area.0, slot)
            }
        };
        places.push(place);
    }
    places.sort_unstable();
    if let Some(pair) = places.windows(2).find(|pair| pair[0] == pair[1]) {
        return violated(Checker::OneOwner, format!("slot or object {:?} has two entries", pair[0]));
    }
    let mut seen = 0;
    for (number, page) in found.references.iter().enumerate() {
        let Some(page) = page else { continue };
        seen += 1;
        let entry = EntryId(number as u32);
        ensure(table.is_live(entry), Checker::OneReference, || format!("{page:?} has {entry:?}, which is not in use"))?;
    }
    // Clean copies of pages in frames are the only references that cannot be seen from here.
    ensure(live >= seen && live <= seen + found.in_frame, Checker::OneReference, || {
        format!("{live} entries are in use, {seen} pages have one, {} more may", found.in_frame)
    })?;
    let slots: u64 = (0..group.areas.len()).map(|area| core.slots(uswap_core::AreaId(area as u8)).used()).sum();
    let objects = core.pool_objects();
    let (zombies, in_flight) = (table.zombies(), process.slots_in_flight);
    ensure(slots + objects == own + zombies + in_flight, Checker::PlacesAddUp, || {
        format!(
            "{slots} slots and {objects} objects have {own} entries, {zombies} zombies, {in_flight} writes in flight"
        )
    })?;
    // Objects that the books have let go are freed when their thread asks for them.
    let in_pool = group.pools[process.pool].len();
    ensure(in_pool >= objects + process.objects_in_flight, Checker::PlacesAddUp, || {
        format!("the pool has {in_pool} objects, the books have {objects}")
    })
}

/// Once the places that were let go have been released, the pool has what the books have.
pub(super) fn check_pool(process: &Process, group: &Group) -> Checked {
    let in_pool = group.pools[process.pool].len();
    let (objects, in_flight) = (process.books.look().pool_objects(), process.objects_in_flight);
    ensure(in_pool == objects + in_flight, Checker::PlacesAddUp, || {
        format!("the pool has {in_pool} objects, the books have {objects}, and {in_flight} are in flight")
    })
}

fn check_counters(process: &Process, found: &Found) -> Checked {
    let core = process.books.look();
    let counted = |name: &str, says: u64, counts: u64| {
        ensure(says == counts, Checker::Counters, || format!("{name}: the books say {says}, counting gives {counts}"))
    };
    counted("known pages", core.pages().known_pages(), found.known)?;
    counted("swapped pages", core.swapped_pages(), found.swapped)?;
    counted("loads in flight", u64::from(core.loads_in_flight()), u64::from(process.loads_in_flight))?;
    // Condemned loads are in flight and their pages are elsewhere; zero windows are one load of many pages.
    ensure(process.loads_in_flight > 0 || found.reading == 0, Checker::Counters, || {
        format!("{} pages are being read in by nobody", found.reading)
    })
}

/// While no page is being moved, the frames with memory are those that the books count.
fn check_frames(process: &Process) -> Checked {
    let cache = process.books.look().swap_cache();
    if process.gate > 0 {
        return Ok(());
    }
    let populated = process.mm.frames.iter().flatten().count() as u32;
    ensure(cache.populated_frames() == populated, Checker::Frames, || {
        format!("{populated} frames have memory, the books say {}", cache.populated_frames())
    })?;
    let (free, cached) = (cache.free_frames(), cache.cached_frames());
    ensure(free + cached <= populated, Checker::Frames, || {
        format!("{free} free and {cached} cached frames, but {populated} have memory")
    })
}

/// After everything has been unmapped.
pub(super) fn check_nothing_left(process: &Process, group: &Group) -> Checked {
    let core = process.books.look();
    let slots: u64 = (0..group.areas.len()).map(|area| core.slots(uswap_core::AreaId(area as u8)).used()).sum();
    let left = [
        ("known pages", core.pages().known_pages()),
        ("swapped pages", core.swapped_pages()),
        ("entries", core.swap_table().iter_in_use().count() as u64),
        ("cached frames", u64::from(core.swap_cache().cached_frames())),
        ("slots", slots - core.swap_table().zombies().min(slots)),
        ("loads", u64::from(core.loads_in_flight())),
    ];
    for (name, count) in left {
        ensure(count == 0, Checker::NothingLeft, || format!("{count} {name} of process {}", process.id))?;
    }
    Ok(())
}
