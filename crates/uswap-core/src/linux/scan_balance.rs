//! How much reclaim looks at anonymous pages and at pages of files (`get_scan_count`, Linux 6.18).

/// `vm.swappiness` unless set.
pub const SWAPPINESS_DEFAULT: u64 = 60;
/// Only anonymous pages.
pub const SWAPPINESS_MAX: u64 = 200;
/// What a read back counts against a rotation in a list's cost.
const IO_COST: u64 = 32;

/// What reclaim of each kind has cost lately.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ReclaimCost {
    /// Of anonymous pages.
    pub anon: u64,
    /// Of pages of files.
    pub file: u64,
}

impl ReclaimCost {
    /// `io` pages of one kind had to be read back and `rotated` went round their list once more; `lru_pages` is the length
    /// of all lists. Old costs fade: both are halved when they exceed a quarter of that together.
    pub fn note(&mut self, anon: bool, io: u64, rotated: u64, lru_pages: u64) {
        let cost = io * IO_COST + rotated;
        if anon {
            self.anon += cost;
        } else {
            self.file += cost;
        }
        if self.anon + self.file > lru_pages / 4 {
            self.anon /= 2;
            self.file /= 2;
        }
    }
}

/// How the pages that are looked at divide.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScanShares {
    /// Parts that are anonymous.
    pub anon: u64,
    /// Parts that are of files.
    pub file: u64,
}

impl ScanShares {
    /// By cost and `swappiness`, in integer division.
    pub fn proportional(cost: ReclaimCost, swappiness: u64) -> Self {
        let swappiness = swappiness.min(SWAPPINESS_MAX);
        let total = cost.anon + cost.file;
        let parts = |weight: u64, own: u64| weight * (3 * total + 1) / (total + own + 1);
        Self { anon: parts(swappiness, cost.anon), file: parts(SWAPPINESS_MAX - swappiness, cost.file) }
    }
}

/// The rule that applies before any proportion.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ScanSituation {
    /// Swap is left, and the cgroup may use it.
    pub may_swap: bool,
    /// A cgroup is at its limit, not the machine.
    pub cgroup: bool,
    /// `vm.swappiness`, or the cgroup's.
    pub swappiness: u64,
    /// 12 at first, 0 when nothing was found for long.
    pub priority: u32,
    /// There are hardly any pages of files left.
    pub file_is_tiny: bool,
    /// There are plenty of inactive pages of files, and none of them came back lately.
    pub file_is_plenty: bool,
}

/// What reclaim looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScanBalance {
    /// Pages of files only.
    File,
    /// Anonymous pages only.
    Anon,
    /// Both lists by their lengths.
    Equal,
    /// Both by shares.
    Shares(ScanShares),
}

impl ScanBalance {
    /// What to look at.
    pub fn choose(now: &ScanSituation, cost: ReclaimCost) -> Self {
        if !now.may_swap || (now.cgroup && now.swappiness == 0) {
            Self::File
        } else if now.priority == 0 {
            Self::Equal
        } else if now.file_is_tiny {
            Self::Anon
        } else if now.file_is_plenty {
            Self::File
        } else {
            Self::Shares(ScanShares::proportional(cost, now.swappiness))
        }
    }
}

/// Pages of a list of `pages` that one round looks at.
pub fn scan_pages(pages: u64, priority: u32) -> u64 {
    pages >> priority
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(anon: u64, file: u64, swappiness: u64) -> (u64, u64) {
        let shares = ScanShares::proportional(ReclaimCost { anon, file }, swappiness);
        (shares.anon, shares.file)
    }

    #[test]
    fn t5a_scan_shares() {
        assert_eq!(shares(0, 0, 60), (60, 140));
        assert_eq!(shares(1000, 0, 60), (89, 419));
        assert_eq!(shares(0, 1000, 60), (179, 209));
        let (anon, file) = shares(77, 77, 100);
        assert_eq!(anon, file);
        assert_eq!(shares(5, 9, 200).1, 0);
    }

    #[test]
    fn costs_fade() {
        let mut cost = ReclaimCost::default();
        cost.note(true, 2, 3, 4000);
        assert_eq!(cost, ReclaimCost { anon: 67, file: 0 });
        cost.note(false, 0, 934, 4000);
        assert_eq!(cost, ReclaimCost { anon: 33, file: 467 });
    }

    #[test]
    fn rules_come_before_shares() {
        let usual = ScanSituation { may_swap: true, swappiness: 60, priority: 12, ..ScanSituation::default() };
        let choose = |now| ScanBalance::choose(&now, ReclaimCost::default());
        assert_eq!(choose(usual), ScanBalance::Shares(ScanShares { anon: 60, file: 140 }));
        assert_eq!(choose(ScanSituation { may_swap: false, ..usual }), ScanBalance::File);
        assert_eq!(choose(ScanSituation { cgroup: true, swappiness: 0, ..usual }), ScanBalance::File);
        assert_eq!(choose(ScanSituation { priority: 0, file_is_tiny: true, ..usual }), ScanBalance::Equal);
        assert_eq!(choose(ScanSituation { file_is_tiny: true, ..usual }), ScanBalance::Anon);
        assert_eq!(choose(ScanSituation { file_is_plenty: true, ..usual }), ScanBalance::File);
    }

    #[test]
    fn a_round_looks_at_more_when_priority_falls() {
        assert_eq!([12, 6, 0].map(|priority| scan_pages(8192, priority)), [2, 128, 8192]);
    }
}
