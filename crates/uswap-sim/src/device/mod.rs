//! A device in virtual time: when does what was submitted end?
//!
//! Requests wait for three things: a place in the queue, the limit on requests in a second, and the transfer of what was
//! begun before. Each then takes its latency. A device that is synchronous has one queue place for each submitter, since
//! the submitter does the work.

pub mod failures;
mod latency;
mod profile;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub use latency::Latency;
pub use profile::Profile;

use crate::chance::Chance;

/// Bytes of a page, as a number to reckon with.
const PAGE_BYTES: f64 = uswap_core::PAGE_SIZE as f64;

/// Which way the data go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

/// Slots side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The first slot.
    pub slot: u64,
    /// How many pages.
    pub pages: u32,
}

impl Request {
    /// The slot behind the last one.
    pub fn end(self) -> u64 {
        self.slot + u64::from(self.pages)
    }
}

/// What a device has done.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct DeviceCounts {
    /// Requests, after merging.
    pub requests: u64,
    /// Pages read.
    pub pages_read: u64,
    /// Pages written.
    pub pages_written: u64,
    /// Requests that began where the one before had ended.
    pub sequential: u64,
}

/// A device at work.
pub struct Device {
    profile: Profile,
    chance: Chance,
    /// When each place of the queue is free, earliest first; places that were never used are not in it.
    busy_until: BinaryHeap<Reverse<u64>>,
    next_begin_ns: u64,
    /// When the transfers begun so far are over.
    transferred_ns: u64,
    /// Where the last request ended.
    head: u64,
    counts: DeviceCounts,
}

impl Device {
    /// An idle device.
    pub fn new(profile: Profile, chance: Chance) -> Self {
        Self {
            profile,
            chance,
            busy_until: BinaryHeap::new(),
            next_begin_ns: 0,
            transferred_ns: 0,
            head: u64::MAX,
            counts: DeviceCounts::default(),
        }
    }

    /// What it is.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// What it has done.
    pub fn counts(&self) -> DeviceCounts {
        self.counts
    }

    /// Submits `requests` together at `now_ns`: neighbours among them, in the order given, become one. Tells when each of
    /// what they became ends, in order.
    pub fn submit(&mut self, now_ns: u64, direction: Direction, requests: &[Request]) -> Vec<(Request, u64)> {
        let mut at_ns = now_ns;
        merged(requests, self.profile.merge_pages)
            .map(|request| {
                let end_ns = self.submit_one(at_ns, direction, request);
                // Whoever does the work itself does one thing after the other.
                if self.profile.synchronous {
                    at_ns = end_ns;
                }
                (request, end_ns)
            })
            .collect()
    }

    /// Submits one request at `now_ns`; tells when it ends.
    pub fn submit_one(&mut self, now_ns: u64, direction: Direction, request: Request) -> u64 {
        // Whoever does the work itself waits for nobody.
        let begin_ns = match self.profile.synchronous {
            true => now_ns,
            false => now_ns.max(self.take_place_ns()).max(self.next_begin_ns),
        };
        if let Some(iops) = self.profile.iops {
            self.next_begin_ns = begin_ns + (1e9 / iops) as u64;
        }
        let sequential = self.head == request.slot;
        self.head = request.end();
        let latency_ns = match direction {
            _ if sequential && self.profile.rotational => 0,
            Direction::Read => self.profile.read_latency.draw_ns(&mut self.chance),
            Direction::Write => self.profile.write_latency.draw_ns(&mut self.chance),
        };
        // A synchronous device works through its pages one by one.
        let latency_ns = if self.profile.synchronous { latency_ns * u64::from(request.pages) } else { latency_ns };
        let page_ns = (self.profile.page_transfer_us * 1000.0) as u64 * u64::from(request.pages);
        let mut end_ns = begin_ns + latency_ns + page_ns;
        if let Some(bandwidth) = self.profile.bandwidth_mib_s {
            let bytes = PAGE_BYTES * f64::from(request.pages);
            let transfer_ns = (bytes / (bandwidth * 1_048_576.0) * 1e9) as u64;
            self.transferred_ns = self.transferred_ns.max(begin_ns) + transfer_ns;
            end_ns = end_ns.max(self.transferred_ns);
        }
        if !self.profile.synchronous {
            self.busy_until.push(Reverse(end_ns));
        }
        self.count(direction, request, sequential);
        end_ns
    }

    /// Takes the place of the queue that is free first; tells since when it is.
    fn take_place_ns(&mut self) -> u64 {
        match self.busy_until.len() >= self.profile.queue_depth as usize {
            true => self.busy_until.pop().map_or(0, |Reverse(free_ns)| free_ns),
            false => 0,
        }
    }

    fn count(&mut self, direction: Direction, request: Request, sequential: bool) {
        self.counts.requests += 1;
        self.counts.sequential += u64::from(sequential);
        match direction {
            Direction::Read => self.counts.pages_read += u64::from(request.pages),
            Direction::Write => self.counts.pages_written += u64::from(request.pages),
        }
    }
}

/// Neighbouring requests as one, up to `most` pages.
fn merged(requests: &[Request], most: u32) -> impl Iterator<Item = Request> + '_ {
    let mut rest = requests;
    std::iter::from_fn(move || {
        let (first, behind) = rest.split_first()?;
        let mut request = *first;
        rest = behind;
        while let Some((next, behind)) = rest.split_first()
            && next.slot == request.end()
            && request.pages + next.pages <= most
        {
            request.pages += next.pages;
            rest = behind;
        }
        Some(request)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(change: impl FnOnce(&mut Profile)) -> Device {
        let mut profile = Profile {
            name: "test".into(),
            about: String::new(),
            read_latency: Latency::FixedUs(100.0),
            write_latency: Latency::FixedUs(50.0),
            page_transfer_us: 0.0,
            queue_depth: 64,
            iops: None,
            bandwidth_mib_s: None,
            merge_pages: 128,
            synchronous: false,
            stable_writes: false,
            rotational: false,
        };
        change(&mut profile);
        Device::new(profile, Chance::new(1))
    }

    fn pages(slots: &[u64]) -> Vec<Request> {
        slots.iter().map(|&slot| Request { slot, pages: 1 }).collect()
    }

    fn last_end(device: &mut Device, slots: &[u64]) -> u64 {
        device.submit(0, Direction::Read, &pages(slots)).last().unwrap().1
    }

    #[test]
    fn requests_in_the_queue_overlap_and_others_wait() {
        assert_eq!(last_end(&mut device(|_| ()), &[1, 3, 5, 7]), 100_000);
        assert_eq!(last_end(&mut device(|profile| profile.queue_depth = 2), &[1, 3, 5, 7]), 200_000);
        assert_eq!(device(|_| ()).submit(7, Direction::Write, &pages(&[9]))[0].1, 50_007);
    }

    #[test]
    fn neighbours_merge_up_to_the_limit() {
        let mut device = device(|profile| profile.merge_pages = 2);
        let ends = device.submit(0, Direction::Read, &pages(&[1, 2, 3, 9]));
        assert_eq!(
            ends.iter().map(|(request, _)| (request.slot, request.pages)).collect::<Vec<_>>(),
            [(1, 2), (3, 1), (9, 1)]
        );
        assert_eq!(device.counts(), DeviceCounts { requests: 3, pages_read: 4, pages_written: 0, sequential: 1 });
    }

    #[test]
    fn the_limit_on_requests_spaces_them() {
        // 10,000 a second: one begins every 100 us.
        assert_eq!(last_end(&mut device(|profile| profile.iops = Some(10_000.0)), &[1, 3, 5]), 300_000);
    }

    #[test]
    fn bandwidth_bounds_large_requests() {
        let mut device = device(|profile| profile.bandwidth_mib_s = Some(1.0));
        assert_eq!(device.submit_one(0, Direction::Read, Request { slot: 0, pages: 256 }), 1_000_000_000);
        assert_eq!(device.submit_one(0, Direction::Read, Request { slot: 900, pages: 256 }), 2_000_000_000);
    }

    #[test]
    fn a_synchronous_device_does_not_make_others_wait() {
        let mut device = device(|profile| (profile.synchronous, profile.queue_depth) = (true, 1));
        let submit = |device: &mut Device, pages| device.submit_one(0, Direction::Read, Request { slot: 5, pages });
        assert_eq!((submit(&mut device, 1), submit(&mut device, 3)), (100_000, 300_000));
    }

    #[test]
    fn a_disk_that_goes_on_where_it_was_does_not_seek() {
        let mut device = device(|profile| (profile.rotational, profile.page_transfer_us) = (true, 10.0));
        assert_eq!(device.submit_one(0, Direction::Read, Request { slot: 5, pages: 1 }), 110_000);
        assert_eq!(device.submit_one(110_000, Direction::Read, Request { slot: 6, pages: 1 }), 120_000);
    }
}
