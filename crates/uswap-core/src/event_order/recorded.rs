//! Settlements that random schedules came to, each again: what was read, what the kernel and the books answered, and what was
//! decided. In each some rules are needed: without any one of them it comes to something else.
//!
//! recorded.txt has the first of them by the seed that found a defect in the order of events; of all others it is the
//! smallest in which just those rules are needed.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};

use super::*;
use crate::entry::EntryId;
use crate::swap_cache::FrameId;

#[derive(Default)]
struct Recorded {
    name: String,
    order: EventOrder,
    registered: BTreeMap<(u64, u64), bool>,
    present: BTreeMap<u64, bool>,
    known: BTreeMap<u64, PageState>,
    may_have_gone: BTreeSet<u64>,
    decided: Vec<Event>,
    unclear: Option<PageNumber>,
    needed: Vec<Rule>,
}

impl Mappings for Recorded {
    /// As what was answered then tells. What lies beside all calls nobody asked about then: what ended there might have
    /// grown. What else nobody asked comes to nothing that was decided then.
    fn is_registered(&self, range: PageRange) -> Option<bool> {
        let is_beside = !self.order.log().iter().any(|&event| touched(event).any(|touched| touched.overlaps(range)));
        let answers = || self.registered.iter().filter(|&(_, &is_registered)| is_registered);
        let within = |page| answers().any(|(&(start, pages), _)| page >= start && page < start + pages);
        Some(is_beside || (range.start.0..range.end().0).all(within))
    }

    fn sees_absence(&self) -> bool {
        true
    }

    fn are_by_one_thread(&self) -> bool {
        false
    }

    fn is_present(&self, page: PageNumber) -> Option<bool> {
        Some(self.present.get(&page.0).copied().unwrap_or_default())
    }
}

impl Witness for Recorded {
    fn knows_any(&self, range: PageRange) -> bool {
        !self.known(range).is_empty()
    }

    fn known(&self, range: PageRange) -> Vec<(PageNumber, PageState)> {
        self.known.range(range.start.0..range.end().0).map(|(&page, &state)| (PageNumber(page), state)).collect()
    }

    fn find(&self, range: PageRange, is_so: &dyn Fn(PageNumber, PageState) -> bool) -> Option<PageNumber> {
        self.known(range).into_iter().find(|&(page, state)| is_so(page, state)).map(|(page, _)| page)
    }

    fn may_have_gone(&self, page: PageNumber) -> bool {
        self.may_have_gone.contains(&page.0)
    }
}

/// Where an event takes memory from, and where it brings it.
fn touched(event: Event) -> impl Iterator<Item = PageRange> {
    let to = match event {
        Event::Remapped { from, to, .. } => Some(from.moved_to(to)),
        _ => None,
    };
    [Some(event.range()), to].into_iter().flatten()
}

/// The same events, of which neighbours that touch nothing in common come by their places.
pub(super) fn by_place(mut events: Vec<Event>) -> Vec<Event> {
    let meet = |one: Event, two: Event| touched(one).any(|one| touched(two).any(|two| one.overlaps(two)));
    let mut ordered = Vec::new();
    while !events.is_empty() {
        let is_free = |&index: &usize| !events[..index].iter().any(|&earlier| meet(earlier, events[index]));
        let next = (0..events.len()).filter(is_free).min_by_key(|&index| events[index].range().start);
        ordered.push(events.remove(next.expect("the first is free")));
    }
    ordered
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("'{word}' is no number"))
}

fn range(word: &str) -> PageRange {
    let (start, pages) = word.split_once('+').unwrap_or_else(|| panic!("'{word}' is no range"));
    PageRange { start: PageNumber(number(start)), pages: number(pages) }
}

fn event(words: &[&str]) -> Event {
    match words {
        ["removed", which] => Event::Removed(range(which)),
        ["unmapped", which] => Event::Unmapped(range(which)),
        ["uncopied", which] => Event::Uncopied(range(which)),
        [how @ ("remapped" | "may-stay"), from, to] => {
            Event::Remapped { from: range(from), to: PageNumber(number(to)), may_stay: *how == "may-stay" }
        }
        _ => panic!("{words:?} is no event"),
    }
}

fn rule(name: &str) -> Rule {
    *Rule::ALL.iter().find(|rule| format!("{rule:?}") == name).unwrap_or_else(|| panic!("no rule is called {name}"))
}

impl Recorded {
    fn parse(text: &str) -> Recorded {
        let mut recorded = Recorded::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let entry = || EntryId(number(words[2]) as u32);
            match words[0] {
                "==" => recorded.name = line[3..].to_string(),
                "came" => recorded.order.came(range(words[1])),
                is @ ("registered" | "unregistered") => {
                    let answers = words[1..].iter().map(|word| range(word));
                    recorded.registered.extend(answers.map(|one| ((one.start.0, one.pages), is == "registered")));
                }
                is @ ("present" | "absent") => {
                    recorded.present.extend(words[1..].iter().map(|page| (number(page), is == "present")));
                }
                "may-have-gone" => recorded.may_have_gone.extend(words[1..].iter().map(|page| number(page))),
                is @ ("swapped" | "resident" | "clean" | "in-frame" | "swapped-zero") => {
                    let state = match is {
                        "swapped" => PageState::Swapped { entry: entry() },
                        "resident" => PageState::Resident { clean: None },
                        "clean" => PageState::Resident { clean: Some(entry()) },
                        "in-frame" => PageState::InFrame { frame: FrameId(number(words[2]) as u32) },
                        _ => PageState::SwappedZero,
                    };
                    recorded.known.insert(number(words[1]), state);
                }
                "then" => recorded.decided.push(event(&words[1..])),
                "unclear" => recorded.unclear = Some(PageNumber(number(words[1]))),
                "without" => recorded.needed.extend(words[1..].iter().map(|name| rule(name))),
                _ => recorded.order.read(event(&words)),
            }
        }
        recorded
    }

    fn settled(&self, dropped: Option<Rule>) -> Settlement {
        EventOrder { dropped, ..self.order.clone() }.settle_with(self)
    }
}

fn all() -> Vec<Recorded> {
    include_str!("recorded.txt").split("\n\n").map(Recorded::parse).collect()
}

#[test]
fn what_was_decided_is_decided_again() {
    for recorded in all() {
        let expected = match recorded.unclear {
            Some(page) => Settlement::Unclear(page),
            None => Settlement::Decided(by_place(recorded.decided.clone())),
        };
        let settled = match recorded.settled(None) {
            Settlement::Decided(events) => Settlement::Decided(by_place(events)),
            other => other,
        };
        assert_eq!(settled, expected, "{}: {:?}", recorded.name, recorded.order.log());
    }
}

#[test]
fn each_rule_that_was_needed_is_needed() {
    let mut needed = BTreeSet::new();
    for recorded in all() {
        assert!(!recorded.needed.is_empty());
        for &rule in &recorded.needed {
            needed.insert(format!("{rule:?}"));
            let (with, without) = (recorded.settled(None), recorded.settled(Some(rule)));
            assert_ne!(with, without, "{}: nobody misses {rule:?}: {:?}", recorded.name, recorded.order.log());
        }
    }
    // No random schedule needed what is remembered of memory that came; small ones that are searched for do. And all are of several
    // threads.
    let is_elsewhere = |name: &String| ["Came", "OneThread"].contains(&name.as_str());
    let all: BTreeSet<String> = Rule::ALL.iter().map(|rule| format!("{rule:?}")).filter(|n| !is_elsewhere(n)).collect();
    assert_eq!(needed, all);
    assert_eq!(needed, all);
}
