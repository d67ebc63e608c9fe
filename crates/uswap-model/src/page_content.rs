//! Content of a page: a number in the model, 4096 real bytes wherever the engine reads it.

use uswap_system::PAGE_SIZE;

/// Words of 8 bytes in a page.
const WORDS: usize = PAGE_SIZE / 8;

/// What is in a page. Each number but 0 stands for other bytes, some easy to compress and some not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Content(pub u64);

/// Marks bytes that are the content of no page that anybody wrote.
const GARBAGE: u64 = 1 << 63;

impl Content {
    /// Zeros.
    pub const ZERO: Content = Content(0);

    /// Bytes that nobody wrote as a page.
    pub const UNKNOWN: Content = Content(GARBAGE);

    /// Whether these are bytes that nobody wrote as a page.
    pub fn is_garbage(self) -> bool {
        self.0 & GARBAGE != 0
    }

    fn word(self, index: usize) -> u64 {
        let id = self.0;
        let noise = || {
            let mixed = (id << 20 ^ index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ mixed >> 32
        };
        match id % 4 {
            _ if index == 0 || id == 0 => id,
            // Repeats itself: next to nothing when compressed.
            0 => id,
            // Noise: cannot be compressed.
            1 => noise(),
            // Half of each.
            2 if index < WORDS / 2 => noise(),
            2 => id,
            // Mostly zeros.
            _ => {
                if index % 100 == 7 {
                    id
                } else {
                    0
                }
            }
        }
    }

    /// Its bytes.
    pub fn bytes(self) -> [u8; PAGE_SIZE] {
        let mut page = [0; PAGE_SIZE];
        if self != Content::ZERO {
            for (index, word) in page.chunks_exact_mut(8).enumerate() {
                word.copy_from_slice(&self.word(index).to_le_bytes());
            }
        }
        page
    }

    /// The content with these bytes; [`UNKNOWN`](Self::UNKNOWN) when there is none.
    pub fn of_bytes(page: &[u8; PAGE_SIZE]) -> Content {
        let mut words = page.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
        let content = Content(words.next().expect("a page has words"));
        let is_right = !content.is_garbage() && words.enumerate().all(|(index, word)| word == content.word(index + 1));
        if is_right { content } else { Content::UNKNOWN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_content_has_its_bytes() {
        for id in 0..40 {
            let mut bytes = Content(id).bytes();
            assert_eq!(Content::of_bytes(&bytes), Content(id));
            bytes[3000] ^= 1;
            assert_eq!(Content::of_bytes(&bytes), Content::UNKNOWN);
        }
        assert_eq!(Content::ZERO.bytes(), [0; PAGE_SIZE]);
    }
}
