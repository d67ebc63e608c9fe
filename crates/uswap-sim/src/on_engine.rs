//! Places of a trace for the engine on the model of Linux (`uswap_model::replay`), which is one more way to be compared.

use std::collections::BTreeMap;

use uswap_core::{LEAF_PAGES, PageNumber};

/// Places as close together as they can be so that what lay in one leaf of the page table still does: the model has a record for
/// each page between the first and the last.
pub(crate) struct Dense {
    leaves: BTreeMap<u64, u64>,
}

impl Dense {
    pub fn of(places: impl Iterator<Item = PageNumber>) -> Dense {
        let mut leaves: BTreeMap<u64, u64> = places.map(|place| (place.0 / LEAF_PAGES as u64, 0)).collect();
        leaves.values_mut().enumerate().for_each(|(index, place)| *place = index as u64);
        Dense { leaves }
    }

    pub fn place(&self, place: PageNumber) -> u64 {
        let leaf = LEAF_PAGES as u64;
        self.leaves[&(place.0 / leaf)] * leaf + place.0 % leaf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_one_leaf_stays_side_by_side() {
        let leaf = LEAF_PAGES as u64;
        let dense = Dense::of([5, 6, 900 * leaf + 1, 40 * leaf].map(PageNumber).into_iter());
        assert_eq!(
            [5, 6, 40 * leaf, 900 * leaf + 1].map(|page| dense.place(PageNumber(page))),
            [5, 6, leaf, 2 * leaf + 1]
        );
    }
}
