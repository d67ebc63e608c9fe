//! Set of entries, by words of 64: what a fork hands on is copied without a look at each entry.

use alloc::vec::Vec;

use crate::entry::EntryId;

const WORD: u32 = u64::BITS;

/// Some of the entries of a swap table.
#[derive(Clone, Default, Debug)]
pub struct EntrySet {
    /// Bit `n` of word `w` is entry `64 * w + n`.
    words: Vec<u64>,
}

impl EntrySet {
    /// Room for so many more entries.
    pub(crate) fn make_room(&mut self, entries: usize) -> bool {
        self.words.try_reserve(entries.div_ceil(WORD as usize) + 1).is_ok()
    }

    /// From here on `entry` can be in it, and all below.
    pub(crate) fn grow_to(&mut self, entry: EntryId) {
        let words = (entry.0 / WORD) as usize + 1;
        if words > self.words.len() {
            self.words.resize(words, 0);
        }
    }

    /// Adds an entry that can be in it.
    pub(crate) fn insert(&mut self, entry: EntryId) {
        self.words[(entry.0 / WORD) as usize] |= 1 << (entry.0 % WORD);
    }

    /// Takes out an entry that can be in it.
    pub(crate) fn remove(&mut self, entry: EntryId) {
        self.words[(entry.0 / WORD) as usize] &= !(1 << (entry.0 % WORD));
    }

    /// Whether `entry` is in it.
    pub fn contains(&self, entry: EntryId) -> bool {
        self.words.get((entry.0 / WORD) as usize).is_some_and(|word| word >> (entry.0 % WORD) & 1 == 1)
    }

    /// Becomes `other`, in which the same entries can be: takes no memory.
    pub(crate) fn copy_from(&mut self, other: &EntrySet) {
        self.words.copy_from_slice(&other.words);
    }

    /// The set as words: bit `n` of word `w` is entry `64 * w + n`.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = EntryId> + '_ {
        self.words.iter().enumerate().flat_map(|(index, &word)| {
            let mut left = word;
            core::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(EntryId(index as u32 * WORD + bit))
            })
        })
    }
}

impl FromIterator<EntryId> for EntrySet {
    fn from_iter<T: IntoIterator<Item = EntryId>>(entries: T) -> Self {
        let mut set = EntrySet::default();
        for entry in entries {
            set.grow_to(entry);
            set.insert(entry);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_in_order_across_words() {
        let entries = [0, 1, 63, 64, 127, 128, 200].map(EntryId);
        let mut set: EntrySet = entries.into_iter().rev().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), entries);
        assert_eq!(set.words(), [1 | 2 | 1 << 63, 1 | 1 << 63, 1, 1 << 8]);
        set.remove(EntryId(64));
        assert!(!set.contains(EntryId(64)) && set.contains(EntryId(127)) && !set.contains(EntryId(4096)));
    }
}
