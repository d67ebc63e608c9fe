//! The two ends of swapoff(2): an area leaves service, and is gone or back once its pages have been dealt with.
//!
//! Its pages are brought in between the two. Source: Linux 6.18.

use core::fmt;

use super::errno::Errno;
use super::swap_areas::SwapAreas;

/// Why swapoff(2) does not even begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CannotSwapoff {
    /// The path cannot be opened.
    CannotOpen(Errno),
    /// The caller may not.
    NotPermitted,
    /// It is no area in service.
    NotAnArea,
    /// Memory would not hold its pages.
    NoMemory {
        /// Pages of the area.
        pages: u64,
        /// Pages that memory has room for.
        room_pages: u64,
    },
}

impl CannotSwapoff {
    /// What swapoff(2) answers.
    pub fn errno(self) -> Errno {
        match self {
            Self::CannotOpen(errno) => errno,
            Self::NotPermitted => Errno::EPERM,
            Self::NotAnArea => Errno::EINVAL,
            Self::NoMemory { .. } => Errno::ENOMEM,
        }
    }
}

impl fmt::Display for CannotSwapoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CannotOpen(errno) => write!(f, "it cannot be opened: {errno}"),
            Self::NotPermitted => f.write_str("swapoff needs CAP_SYS_ADMIN: run it as root"),
            Self::NotAnArea => f.write_str("it is no swap area in service"),
            Self::NoMemory { pages, room_pages } => {
                write!(f, "the area has {pages} pages and memory has room for {room_pages}: free some first")
            }
        }
    }
}

impl SwapAreas {
    /// Takes an area out of service, so that its pages can be brought in: no slot of it is handed out any more. The caller
    /// ends this with [`swapoff_finish`](Self::swapoff_finish) or [`swapoff_failed`](Self::swapoff_failed).
    ///
    /// # Errors
    /// The first check that fails. Nothing has changed then.
    pub fn swapoff_begin(
        &mut self,
        target: Result<u64, Errno>,
        privileged: bool,
        room_pages: u64,
    ) -> Result<u8, CannotSwapoff> {
        if !privileged {
            return Err(CannotSwapoff::NotPermitted);
        }
        let id = target.map_err(CannotSwapoff::CannotOpen)?;
        let number = self.find(id).ok_or(CannotSwapoff::NotAnArea)?;
        let area = self.area_mut(number);
        let pages = area.usable_slots();
        if !area.write_ok {
            return Err(CannotSwapoff::NotAnArea);
        }
        if pages > room_pages {
            return Err(CannotSwapoff::NoMemory { pages, room_pages });
        }
        area.write_ok = false;
        area.listed = false;
        let priority = area.priority;
        self.order.remove(number);
        if priority < 0 {
            self.order.automatic_gone(priority);
            for listed in self.areas.iter_mut().flatten().filter(|listed| listed.area.priority < priority) {
                listed.area.priority += 1;
            }
        }
        self.totals.total -= pages;
        self.totals.free -= pages as i64;
        Ok(number)
    }

    /// swapoff did not get through: the area is put back with its old priority. What was brought in stays in.
    ///
    /// # Panics
    /// When the area is in service.
    pub fn swapoff_failed(&mut self, number: u8) {
        assert!(!self.area(number).write_ok, "area {number} is in service");
        self.put_into_service(number);
    }

    /// The area is empty: it goes, and its number is free.
    ///
    /// # Panics
    /// When it is in service, or a slot of it is in use: a page would be lost.
    pub fn swapoff_finish(&mut self, number: u8) {
        let area = self.area(number);
        assert!(!area.write_ok, "area {number} is in service");
        assert!(area.in_use() == 0, "area {number} still has {} slots in use", area.in_use());
        self.areas[number as usize] = None;
        for cpu in &mut self.cpus {
            for position in &mut cpu.positions {
                if position.is_some_and(|position| position.area == number) {
                    *position = None;
                }
            }
        }
    }
}
