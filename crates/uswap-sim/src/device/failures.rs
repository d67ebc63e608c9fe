//! Faults that are injected into I/O, each with its own rate.

use crate::chance::Chance;

/// How often what goes wrong, in parts of [`OF`](Self::OF) transfers of a page.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct FaultRates {
    /// A read ends with an error.
    pub read_fails: u16,
    /// A read gives other bytes than were written, without an error.
    pub read_corrupts: u16,
    /// A write ends with an error and leaves what was there.
    pub write_fails: u16,
    /// A write ends with an error and leaves half of the new content.
    pub write_tears: u16,
    /// A write ends early, with fewer pages than asked for.
    pub write_is_short: u16,
    /// A write reports success and leaves something else.
    pub write_corrupts: u16,
    /// No space is left for a write.
    pub no_space: u16,
    /// A transfer takes much longer than others, which overtake it.
    pub delays: u16,
}

impl FaultRates {
    /// What rates are parts of.
    pub const OF: u16 = 1000;

    /// Nothing goes wrong.
    pub const NONE: FaultRates = FaultRates {
        read_fails: 0,
        read_corrupts: 0,
        write_fails: 0,
        write_tears: 0,
        write_is_short: 0,
        write_corrupts: 0,
        no_space: 0,
        delays: 0,
    };
}

impl FaultRates {
    /// What the rates are called.
    pub const NAMES: [&str; 8] = [
        "read-fails",
        "read-corrupts",
        "write-fails",
        "write-tears",
        "write-is-short",
        "write-corrupts",
        "no-space",
        "delays",
    ];

    /// The rate of that name.
    pub fn of(&mut self, name: &str) -> Option<&mut u16> {
        Some(match name {
            "read-fails" => &mut self.read_fails,
            "read-corrupts" => &mut self.read_corrupts,
            "write-fails" => &mut self.write_fails,
            "write-tears" => &mut self.write_tears,
            "write-is-short" => &mut self.write_is_short,
            "write-corrupts" => &mut self.write_corrupts,
            "no-space" => &mut self.no_space,
            "delays" => &mut self.delays,
            _ => return None,
        })
    }

    /// Whether no more goes wrong than is transferred.
    pub fn add_up(&self) -> bool {
        let reads = [self.read_fails, self.read_corrupts];
        let writes = [self.write_fails, self.write_tears, self.write_is_short, self.write_corrupts, self.no_space];
        let sum = |rates: &[u16]| rates.iter().map(|&rate| u32::from(rate)).sum::<u32>();
        sum(&reads).max(sum(&writes)) <= u32::from(Self::OF)
    }
}

/// What becomes of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadFate {
    /// It gives what is there.
    Fine,
    /// An error.
    Fails,
    /// Other bytes.
    Corrupt,
}

/// What becomes of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteFate {
    /// It is there.
    Fine,
    /// An error; what was there is there.
    Fails,
    /// An error; half of it is there.
    Tears,
    /// This page and those after it were not written.
    Short,
    /// Success is reported, and something else is there.
    Corrupt,
    /// No space.
    NoSpace,
}

impl FaultRates {
    fn pick<T: Copy>(chance: &mut Chance, fates: &[(u16, T)], fine: T) -> T {
        if fates.iter().all(|(rate, _)| *rate == 0) {
            return fine;
        }
        let mut drawn = chance.below(u64::from(Self::OF));
        for &(rate, fate) in fates {
            if drawn < u64::from(rate) {
                return fate;
            }
            drawn -= u64::from(rate);
        }
        fine
    }

    /// The fate of a read of one page.
    pub fn read(&self, chance: &mut Chance) -> ReadFate {
        let fates = [(self.read_fails, ReadFate::Fails), (self.read_corrupts, ReadFate::Corrupt)];
        Self::pick(chance, &fates, ReadFate::Fine)
    }

    /// The fate of a write of one page.
    pub fn write(&self, chance: &mut Chance) -> WriteFate {
        let fates = [
            (self.write_fails, WriteFate::Fails),
            (self.write_tears, WriteFate::Tears),
            (self.write_is_short, WriteFate::Short),
            (self.write_corrupts, WriteFate::Corrupt),
            (self.no_space, WriteFate::NoSpace),
        ];
        Self::pick(chance, &fates, WriteFate::Fine)
    }

    /// Whether a transfer is overtaken by others.
    pub fn delays(&self, chance: &mut Chance) -> bool {
        chance.happens(u64::from(self.delays), u64::from(Self::OF))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each knob is connected: turned up, it and nothing else happens.
    #[test]
    fn every_fault_can_be_turned_on_alone() {
        let all = FaultRates::OF;
        let mut chance = Chance::new(1);
        let none = FaultRates::NONE;
        let write = |rates: FaultRates, chance: &mut Chance| rates.write(chance);
        assert_eq!(FaultRates { read_fails: all, ..none }.read(&mut chance), ReadFate::Fails);
        assert_eq!(FaultRates { read_corrupts: all, ..none }.read(&mut chance), ReadFate::Corrupt);
        assert_eq!(write(FaultRates { write_fails: all, ..none }, &mut chance), WriteFate::Fails);
        assert_eq!(write(FaultRates { write_tears: all, ..none }, &mut chance), WriteFate::Tears);
        assert_eq!(write(FaultRates { write_is_short: all, ..none }, &mut chance), WriteFate::Short);
        assert_eq!(write(FaultRates { write_corrupts: all, ..none }, &mut chance), WriteFate::Corrupt);
        assert_eq!(write(FaultRates { no_space: all, ..none }, &mut chance), WriteFate::NoSpace);
        assert!(FaultRates { delays: all, ..none }.delays(&mut chance));
        assert_eq!((none.read(&mut chance), none.write(&mut chance)), (ReadFate::Fine, WriteFate::Fine));
        assert!(!none.delays(&mut chance));
    }

    #[test]
    fn every_rate_has_a_name_of_its_own() {
        let mut rates = FaultRates::NONE;
        for (rate, name) in FaultRates::NAMES.into_iter().enumerate() {
            *rates.of(name).unwrap() = rate as u16 + 1;
        }
        let mut given: Vec<u16> = FaultRates::NAMES.map(|name| *rates.of(name).unwrap()).to_vec();
        given.dedup();
        assert_eq!((given.len(), rates.of("floods")), (8, None));
        assert!(rates.add_up() && !FaultRates { write_fails: 600, no_space: 401, ..rates }.add_up());
    }

    #[test]
    fn a_rate_is_kept() {
        let rates = FaultRates { read_fails: 100, read_corrupts: 50, ..FaultRates::NONE };
        let mut chance = Chance::new(2);
        let fates: Vec<ReadFate> = (0..100_000).map(|_| rates.read(&mut chance)).collect();
        let count = |wanted| fates.iter().filter(|&&fate| fate == wanted).count();
        assert!((9_500..10_500).contains(&count(ReadFate::Fails)));
        assert!((4_600..5_400).contains(&count(ReadFate::Corrupt)));
    }
}
