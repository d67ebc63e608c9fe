//! Areas that leave, as `swapoff.rs` of the engine empties them.

use uswap_core::{AreaId, Emptying, LoadPlan, Survey};

use super::super::coverage::Happening;
use super::super::group::Group;
use super::super::process::{Process, World};

/// Slots of a window: an area has several.
const WINDOW_SLOTS: usize = 300;
/// Looks at the books in one step.
const LOOKS: u32 = 4;

/// How far a process is with areas that leave.
#[derive(Default)]
pub(in super::super) struct Swapoff {
    /// With the announcement that it is for.
    survey: Option<(Option<u64>, Survey)>,
    /// By area: the announcement since which nothing of it is needed here any more.
    emptied: Vec<Option<u64>>,
}

impl Swapoff {
    /// Whether `area` leaves, and nothing of it is needed here.
    pub fn has_emptied(&self, area: usize, group: &Group) -> bool {
        let leaving = group.areas[area].leaving;
        leaving.is_some() && self.emptied.get(area) == Some(&leaving)
    }
}

/// Lets an area leave, or stay after all.
pub(super) fn change_mind(world: &mut World) {
    if world.group.areas.is_empty() {
        return;
    }
    let area = world.chance.index(world.group.areas.len());
    world.group.change_mind(area);
}

/// The next pages to bring in from an area that leaves.
pub(super) fn plan(process: &mut Process, world: &mut World) -> Option<LoadPlan> {
    let areas = &world.group.areas;
    let is_wanted = |&area: &usize| areas[area].leaving.is_some() && !process.swapoff.has_emptied(area, world.group);
    let area = (0..areas.len()).find(is_wanted)?;
    let (id, announcement) = (AreaId(area as u8), areas[area].leaving);
    // What was found of an area that stayed meanwhile is forgotten.
    let survey = process.swapoff.survey.take().filter(|(of, survey)| *of == announcement && survey.area() == id);
    let mut survey = survey.map(|(_, survey)| survey);
    for _ in 0..LOOKS {
        let before = survey.take().unwrap_or_else(|| Survey::with_window(id, WINDOW_SLOTS));
        let (emptying, after) = process.books.tell(move |core| {
            let mut survey = before.clone();
            (core.empty_area(&mut survey), survey)
        });
        survey = Some(after);
        match emptying {
            Emptying::Ask => {}
            Emptying::Load(plan) => {
                process.swapoff.survey = survey.map(|survey| (announcement, survey));
                world.coverage.note(Happening::SwapoffRead);
                return Some(plan);
            }
            Emptying::Later => break,
            Emptying::Empty => {
                process.swapoff.emptied.resize(world.group.areas.len(), None);
                process.swapoff.emptied[area] = announcement;
                world.coverage.note(Happening::AreaEmptied);
                return None;
            }
        }
    }
    process.swapoff.survey = survey.map(|survey| (announcement, survey));
    None
}
