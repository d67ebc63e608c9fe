//! A row: what was published, and what the simulation gives.

/// A number before and after a change.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pair {
    /// Before.
    pub before: f64,
    /// After.
    pub after: f64,
}

impl Pair {
    /// After, in parts of before.
    pub fn ratio(self) -> f64 {
        self.after / self.before
    }
}

/// How a row's result came about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A constant was fitted on it: that it agrees shows nothing.
    Fitted,
    /// Its number before the change is an input: only what the change makes of it is predicted.
    Change,
    /// Nothing was fitted on it.
    Predicted,
}

impl Kind {
    /// All, what shows most first.
    pub const ALL: [Self; 3] = [Self::Predicted, Self::Change, Self::Fitted];

    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fitted => "fitted",
            Self::Change => "change predicted",
            Self::Predicted => "predicted",
        }
    }
}

/// A change that counts as none where the thread tells nothing of its runs: half a percent.
pub const NOISE: f64 = 0.005;

/// One line of the result.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The row's number, by which `uswap sim paper` and its notes name it.
    pub number: u32,
    /// What was measured.
    pub test: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// As published; none where the thread gives no number.
    pub published: Option<Pair>,
    /// As simulated.
    pub simulated: Option<Pair>,
    /// A change of less than this part counts as none: how far published runs lie apart.
    pub noise: f64,
    /// Ours, in the same unit, where ours is something else than an era's.
    pub ours: Option<f64>,
    /// How it came about.
    pub kind: Kind,
    /// What else is to be said.
    pub note: String,
}

impl Row {
    /// Simulated ratio in parts of the published one.
    pub fn agreement(&self) -> Option<f64> {
        Some(self.simulated?.ratio() / self.published?.ratio())
    }

    /// Whether the change goes the published way. A published change within the [noise](Self::noise) counts as none, and so
    /// must the simulated one.
    pub fn direction_is_right(&self) -> Option<bool> {
        let (simulated, published) = (self.simulated?.ratio() - 1.0, self.published?.ratio() - 1.0);
        Some(match published.abs() < self.noise {
            true => simulated.abs() < self.noise,
            false => simulated.signum() == published.signum() && simulated != 0.0,
        })
    }
}
