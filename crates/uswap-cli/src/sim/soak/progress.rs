//! How far a soak has come, in a file, so that it can go on where it was stopped.

use std::path::Path;

use uswap_sim::input::InputError;

/// The seeds of one shard: `first + index`, for each `index` below `seeds` that leaves `shard` when divided by `shards`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The first seed.
    pub first: u64,
    /// How many, in all shards.
    pub seeds: u64,
    /// Which shard this is, counted from 0.
    pub shard: u64,
    /// How many there are.
    pub shards: u64,
}

impl Plan {
    /// The seeds of this shard, from `done` on.
    pub fn from(self, done: u64) -> impl Iterator<Item = u64> {
        (0..self.seeds)
            .skip(self.shard as usize)
            .step_by(self.shards as usize)
            .skip(done as usize)
            .map(move |index| self.first + index)
    }

    fn header(self) -> String {
        format!("uswap soak {} seeds from {}, shard {} of {}", self.seeds, self.first, self.shard + 1, self.shards)
    }

    /// What the file says when `done` seeds are done.
    pub fn record(self, done: u64) -> String {
        format!("{}\n{done} done\n", self.header())
    }

    /// Reads how many seeds are done; 0 when there is no file yet.
    pub fn done(self, path: &Path) -> Result<u64, InputError> {
        let name = path.display().to_string();
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(InputError::of(&name, error.to_string())),
        };
        let mut lines = text.lines();
        if lines.next() != Some(self.header().as_str()) {
            return Err(InputError::at(&name, 1, "it is of another soak; give another file, or remove it"));
        }
        lines
            .next()
            .and_then(|line| line.strip_suffix(" done"))
            .and_then(|count| count.parse().ok())
            .ok_or_else(|| InputError::at(&name, 2, "it does not say how many seeds are done; remove it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_share_the_seeds_out() {
        let plan = |shard| Plan { first: 100, seeds: 10, shard, shards: 3 };
        let mut all: Vec<u64> = (0..3).flat_map(|shard| plan(shard).from(0)).collect();
        all.sort_unstable();
        assert_eq!(all, (100..110).collect::<Vec<_>>());
        assert_eq!(plan(0).from(2).collect::<Vec<_>>(), [106, 109]);
    }

    #[test]
    fn progress_is_read_back_and_that_of_another_soak_refused() {
        let path = std::env::temp_dir().join(format!("uswap-sim-progress-{}", std::process::id()));
        let plan = Plan { first: 0, seeds: 10, shard: 0, shards: 1 };
        let _ = std::fs::remove_file(&path);
        assert_eq!(plan.done(&path), Ok(0));
        std::fs::write(&path, plan.record(7)).unwrap();
        assert_eq!(plan.done(&path), Ok(7));
        let error = Plan { seeds: 11, ..plan }.done(&path).unwrap_err();
        assert_eq!(error.line, Some(1));
        std::fs::write(&path, format!("{}\nmany\n", plan.header())).unwrap();
        assert_eq!(plan.done(&path).unwrap_err().line, Some(2));
        std::fs::remove_file(&path).unwrap();
    }
}
