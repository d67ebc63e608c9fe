//! What a page holds. In the simulator a content is a number, so that a wrong one is seen at once.

/// The content of a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Content(pub u64);

/// Marks what a fault has made of a content.
const GARBAGE: u64 = 1 << 63;
/// Spreads numbers over a hash's 128 bits.
const SPREAD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

impl Content {
    /// A page of zeros.
    pub const ZERO: Content = Content(0);

    /// Its hash; no two contents have the same.
    pub fn hash(self) -> u128 {
        u128::from(self.0).wrapping_mul(SPREAD)
    }

    /// Whether the pool can make it smaller. One in five is incompressible.
    pub fn compresses(self) -> bool {
        !self.0.is_multiple_of(5)
    }

    /// Length of its compressed object.
    pub fn object_len(self) -> u16 {
        (self.0 % 4000 + 50) as u16
    }

    /// What a fault makes of it; `serial` tells apart what happens to it more than once.
    pub fn damaged(self, serial: u64) -> Content {
        Content(GARBAGE | serial << 40 | self.0 & 0xff_ffff_ffff)
    }

    /// Whether a fault has made it.
    pub fn is_garbage(self) -> bool {
        self.0 & GARBAGE != 0
    }
}
