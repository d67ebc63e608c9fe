//! Mutations of inputs, from a seed: for where libFuzzer is not.

/// xorshift64*: chance from a seed.
pub struct Chance(u64);

impl Chance {
    /// From a seed; any will do.
    pub fn new(seed: u64) -> Chance {
        Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }
}

/// Numbers at which something changes.
const EDGES: [u64; 14] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    1 << 52,
    u64::MAX >> 1,
    u64::MAX,
];

/// The longest input that a mutation makes.
const BYTES_MAX: usize = 8192;

/// An input that is not far from one of the `corpus`.
pub fn mutation(corpus: &[Vec<u8>], words: &[&[u8]], chance: &mut Chance) -> Vec<u8> {
    let mut bytes = corpus[chance.below(corpus.len())].clone();
    for _ in 0..=chance.below(4) {
        step(&mut bytes, corpus, words, chance);
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

fn step(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[&[u8]], chance: &mut Chance) {
    let len = bytes.len();
    let at = chance.below(len + 1);
    let some = |chance: &mut Chance, most: usize| chance.below(most.min(16) + 1);
    match chance.below(9) {
        0 if at < len => bytes[at] ^= 1 << chance.below(8),
        1 if at < len => bytes[at] = chance.next() as u8,
        2 => {
            let edge = EDGES[chance.below(EDGES.len())].to_le_bytes();
            let width = [1, 2, 4, 8][chance.below(4)].min(len - at);
            bytes[at..at + width].copy_from_slice(&edge[..width]);
        }
        3 => drop(bytes.drain(at..at + some(chance, len - at))),
        4 => bytes.truncate(at),
        5 => {
            // Once more what stands there.
            let again = bytes[at..at + some(chance, len - at)].to_vec();
            bytes.splice(at..at, again);
        }
        6 => {
            let other = &corpus[chance.below(corpus.len())];
            let from = chance.below(other.len() + 1);
            bytes.splice(at..len.min(at + other.len() - from), other[from..].iter().copied());
        }
        7 if !words.is_empty() => {
            let word = words[chance.below(words.len())];
            bytes.splice(at..at, word.iter().copied());
        }
        _ => bytes.insert(at, chance.next() as u8),
    }
}
