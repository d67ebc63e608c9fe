//! Switching: by which rule the scheduler chooses who goes on.

use crate::chance::Chance;

/// A rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switching {
    /// At each step, in so many of 256 cases, anybody who can go on does.
    Random {
        /// Parts of 256.
        parts: u64,
    },
    /// Whoever has the highest priority of those who can goes on. In one of so many steps the one who runs gets the lowest.
    Priorities {
        /// Steps.
        one_in: u64,
    },
}

impl Switching {
    /// The rule of `chance`.
    pub fn draw(chance: &mut Chance) -> Switching {
        match chance.below(6) {
            0 => Switching::Random { parts: 256 },
            1 => Switching::Random { parts: 128 },
            2 => Switching::Random { parts: 32 },
            3 => Switching::Random { parts: 4 },
            _ => Switching::Priorities { one_in: 1 << (4 + chance.below(9)) },
        }
    }
}
