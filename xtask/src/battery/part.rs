//! In what memory, and beside what, a program of the battery runs.

use std::fmt;

/// One way to run each program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Without uswap: the measure of what must come out, of time and of memory.
    Alone,
    /// Under uswap, with four times what it needs.
    Far,
    /// Under uswap, in so many hundredths of its peak.
    Share(u64),
    /// Without uswap, in a memory cgroup of so many hundredths of its peak, with a swap file.
    Kernel(u64),
    /// Under uswap at a half of its peak, in a memory cgroup that makes the kernel reclaim as well.
    Beside(Swap),
}

/// What the kernel swaps to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swap {
    /// A file.
    File,
    /// A zram device.
    Zram,
}

/// A half of the peak, for runs beside the kernel's swap.
const BESIDE: u64 = 50;

impl Part {
    /// In the order of the table.
    pub const ALL: [Part; 10] = [
        Part::Alone,
        Part::Far,
        Part::Share(75),
        Part::Share(50),
        Part::Share(33),
        Part::Kernel(75),
        Part::Kernel(50),
        Part::Kernel(33),
        Part::Beside(Swap::Zram),
        Part::Beside(Swap::File),
    ];

    /// The parts that a word of the command line names: one of them, or `uswap`, `kernel`, `beside`.
    pub fn named(word: &str) -> Result<Vec<Part>, String> {
        let chosen = Part::ALL.into_iter().filter(|part| {
            part.to_string() == word
                || match part {
                    Part::Alone => false,
                    Part::Far | Part::Share(_) => word == "uswap",
                    Part::Kernel(_) => word == "kernel",
                    Part::Beside(_) => word == "beside",
                }
        });
        let chosen: Vec<Part> = chosen.collect();
        if chosen.is_empty() {
            let names: Vec<String> = Part::ALL.iter().map(Part::to_string).collect();
            return Err(format!("no part '{word}': there are {}, and uswap, kernel, beside", names.join(" ")));
        }
        Ok(chosen)
    }

    /// The budget of `uswap run`, for a program with this peak.
    pub fn budget_bytes(self, peak_bytes: u64) -> Option<u64> {
        match self {
            Part::Alone | Part::Kernel(_) => None,
            Part::Far => Some(4 * peak_bytes.max(64 << 20)),
            // uswap takes no budget below 16 MiB.
            Part::Share(hundredths) => Some((peak_bytes * hundredths / 100).max(16 << 20)),
            Part::Beside(_) => Some((peak_bytes * BESIDE / 100).max(16 << 20)),
        }
    }

    /// The limit of the memory cgroup around it.
    pub fn cgroup_bytes(self, peak_bytes: u64) -> Option<u64> {
        match self {
            Part::Alone | Part::Far | Part::Share(_) => None,
            Part::Kernel(hundredths) => Some((peak_bytes * hundredths / 100).max(16 << 20)),
            // Less than the budget: the kernel reclaims what uswap believes to have.
            Part::Beside(_) => self.budget_bytes(peak_bytes).map(|budget| budget * 4 / 5),
        }
    }

    /// What the kernel swaps to meanwhile.
    pub fn swap(self) -> Option<Swap> {
        match self {
            Part::Alone | Part::Far | Part::Share(_) => None,
            Part::Kernel(_) => Some(Swap::File),
            Part::Beside(swap) => Some(swap),
        }
    }

    /// The part that tells how long this one may take.
    pub fn measured_by(self) -> Option<Part> {
        match self {
            Part::Alone | Part::Kernel(_) => None,
            Part::Far => Some(Part::Alone),
            Part::Share(hundredths) => Some(Part::Kernel(hundredths)),
            Part::Beside(_) => Some(Part::Kernel(BESIDE)),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Alone => f.write_str("alone"),
            Part::Far => f.write_str("far"),
            Part::Share(hundredths) => write!(f, "{hundredths}"),
            Part::Kernel(hundredths) => write!(f, "kernel-{hundredths}"),
            Part::Beside(Swap::Zram) => f.write_str("beside-zram"),
            Part::Beside(Swap::File) => f.write_str("beside-file"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Part, Swap};

    #[test]
    fn a_group_of_parts_has_a_name() {
        assert_eq!(Part::named("kernel").unwrap(), [Part::Kernel(75), Part::Kernel(50), Part::Kernel(33)]);
        assert_eq!(Part::named("50").unwrap(), [Part::Share(50)]);
        assert!(Part::named("52").unwrap_err().contains("beside-zram"));
    }

    #[test]
    fn beside_the_kernel_the_cgroup_is_smaller_than_the_budget() {
        let part = Part::Beside(Swap::Zram);
        assert_eq!(part.budget_bytes(200 << 20), Some(100 << 20));
        assert_eq!(part.cgroup_bytes(200 << 20), Some(80 << 20));
    }
}
