//! Priorities of areas, and the order in which allocations try them, for each NUMA node.
//!
//! A user gives 0 to 32767. Without one an area gets the next below all automatic ones: -2 the first, then -3 and so on.
//! An automatic area whose disk belongs to a node is tried on that node as if its priority were -1. Areas of equal priority
//! take turns: whoever is tried goes behind its equals. Source: Linux 6.18.

use alloc::vec::Vec;

/// swapon(2)'s flag that says that the low 15 bits are a priority.
pub const FLAG_PREFER: u32 = 0x8000;
const PRIORITY_MASK: u32 = 0x7fff;

/// Priority of an automatic area on its own node.
const PROMOTED: i32 = -1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Listed {
    area: u8,
    priority: i32,
}

/// Areas that allocations may try.
pub struct AreaOrder {
    /// By node: the highest priority first.
    nodes: Vec<Vec<Listed>>,
    /// The lowest automatic priority given.
    least: i32,
}

impl AreaOrder {
    /// No areas, on a machine of `nodes` nodes (at least one).
    pub fn new(nodes: usize) -> Self {
        Self { nodes: alloc::vec![Vec::new(); nodes.max(1)], least: PROMOTED }
    }

    /// The priority of an area that swapon(2) is called with these flags for.
    pub fn priority_of(&mut self, flags: u32) -> i32 {
        if flags & FLAG_PREFER != 0 {
            return (flags & PRIORITY_MASK) as i32;
        }
        self.least -= 1;
        self.least
    }

    /// Lets allocations try an area; it goes behind its equals.
    pub fn insert(&mut self, area: u8, priority: i32, node: Option<usize>) {
        for (number, list) in self.nodes.iter_mut().enumerate() {
            let priority = if priority < 0 && node == Some(number) { PROMOTED } else { priority };
            let place = list.partition_point(|listed| listed.priority >= priority);
            list.insert(place, Listed { area, priority });
        }
    }

    /// Lets no allocation try an area any more.
    pub fn remove(&mut self, area: u8) {
        for list in &mut self.nodes {
            list.retain(|listed| listed.area != area);
        }
    }

    /// The area that comes `nth` on a node.
    pub fn nth(&self, node: usize, nth: usize) -> Option<u8> {
        self.nodes[node].get(nth).map(|listed| listed.area)
    }

    /// Areas in the order in which an allocation on `node` tries them.
    pub fn areas(&self, node: usize) -> impl Iterator<Item = u8> {
        self.nodes[node].iter().map(|listed| listed.area)
    }

    /// The area is being tried on this node: its equals come first next time.
    pub fn rotate(&mut self, node: usize, area: u8) {
        let list = &mut self.nodes[node];
        let Some(at) = list.iter().position(|listed| listed.area == area) else { return };
        let listed = list.remove(at);
        let place = list.partition_point(|other| other.priority >= listed.priority);
        list.insert(place, listed);
    }

    /// An automatic area has gone: every automatic one below it moves up by one, in the lists too. The caller does the
    /// same to the priorities that it keeps.
    pub fn automatic_gone(&mut self, gone: i32) {
        self.least += 1;
        for list in &mut self.nodes {
            for listed in list.iter_mut().filter(|listed| listed.priority < gone) {
                listed.priority += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(list: &AreaOrder, node: usize) -> Vec<u8> {
        list.areas(node).collect()
    }

    #[test]
    fn automatic_priorities_go_down_from_minus_two() {
        let mut list = AreaOrder::new(1);
        assert_eq!(list.priority_of(0), -2);
        assert_eq!(list.priority_of(FLAG_PREFER | 7), 7);
        assert_eq!(list.priority_of(FLAG_PREFER), 0);
        assert_eq!(list.priority_of(FLAG_PREFER | 32767), 32767);
        assert_eq!(list.priority_of(0), -3);
    }

    #[test]
    fn higher_priorities_come_first_and_equals_take_turns() {
        let mut list = AreaOrder::new(1);
        for (area, priority) in [(0, -2), (1, 5), (2, 5), (3, 9), (4, -3)] {
            list.insert(area, priority, None);
        }
        assert_eq!(order(&list, 0), [3, 1, 2, 0, 4]);
        list.rotate(0, 1);
        assert_eq!(order(&list, 0), [3, 2, 1, 0, 4]);
        list.rotate(0, 3);
        list.rotate(0, 0);
        assert_eq!(order(&list, 0), [3, 2, 1, 0, 4], "without an equal nothing moves");
        list.remove(2);
        assert_eq!((order(&list, 0), list.nth(0, 1)), (alloc::vec![3, 1, 0, 4], Some(1)));
    }

    #[test]
    fn an_automatic_area_is_promoted_on_the_node_of_its_disk() {
        let mut list = AreaOrder::new(2);
        list.insert(0, -2, Some(0));
        list.insert(1, -3, Some(1));
        list.insert(2, 0, Some(0));
        assert_eq!(order(&list, 0), [2, 0, 1]);
        assert_eq!(order(&list, 1), [2, 1, 0]);
    }

    #[test]
    fn automatic_areas_below_one_that_goes_move_up() {
        let mut list = AreaOrder::new(1);
        for area in 0..3 {
            let priority = list.priority_of(0);
            list.insert(area, priority, None);
        }
        list.remove(1);
        list.automatic_gone(-3);
        assert_eq!(list.priority_of(0), -4, "the third has become -3");
        list.insert(1, -3, None);
        assert_eq!(order(&list, 0), [0, 2, 1]);
    }
}
