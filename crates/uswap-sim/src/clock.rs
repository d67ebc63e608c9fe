//! Virtual time, in nanoseconds, and what is to happen when.
//!
//! Events of the same time come in the order in which they were put in, so a run depends on nothing but its input.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

struct Scheduled<E> {
    at_ns: u64,
    order: u64,
    event: E,
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Scheduled<E> {}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Scheduled<E> {
    // The heap gives the greatest first: the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at_ns, other.order).cmp(&(self.at_ns, self.order))
    }
}

/// What is to happen, in order of time.
pub struct EventQueue<E> {
    heap: BinaryHeap<Scheduled<E>>,
    order: u64,
    now_ns: u64,
}

impl<E> EventQueue<E> {
    /// Nothing is to happen, and it is time 0.
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), order: 0, now_ns: 0 }
    }

    /// The time of the event that came last.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// `event` happens at `at_ns`.
    ///
    /// # Panics
    /// When that is in the past.
    pub fn at(&mut self, at_ns: u64, event: E) {
        assert!(at_ns >= self.now_ns, "an event at {at_ns} ns, but it is {} ns already", self.now_ns);
        self.heap.push(Scheduled { at_ns, order: self.order, event });
        self.order += 1;
    }

    /// The next event; it becomes its time.
    pub fn pop(&mut self) -> Option<E> {
        let next = self.heap.pop()?;
        self.now_ns = next.at_ns;
        Some(next.event)
    }

    /// When the next event happens.
    pub fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|next| next.at_ns)
    }
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_of_time_and_then_of_putting_in() {
        let mut queue = EventQueue::new();
        for (at, event) in [(30, 'c'), (10, 'a'), (30, 'd'), (20, 'b')] {
            queue.at(at, event);
        }
        assert_eq!(queue.next_ns(), Some(10));
        assert_eq!(std::iter::from_fn(|| queue.pop()).collect::<String>(), "abcd");
        assert_eq!(queue.now_ns(), 30);
    }

    #[test]
    #[should_panic(expected = "already")]
    fn the_past_is_over() {
        let mut queue = EventQueue::new();
        queue.at(10, ());
        queue.pop();
        queue.at(9, ());
    }
}
