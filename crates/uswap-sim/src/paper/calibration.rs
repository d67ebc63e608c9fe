//! The numbers that were worked out from published results, `calibration.toml`, each with its source and the rows that it
//! was worked out from.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::row::Kind;
use crate::input::from_toml;

const TABLE: &str = include_str!("calibration.toml");

/// One number.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// Its value, in the unit that its name ends with.
    pub value: f64,
    /// Where it is from.
    pub source: String,
    /// Rows that it was fitted on.
    pub fitted_on: Vec<u32>,
    /// Rows whose number before the change it was worked out from.
    #[serde(default)]
    pub before_of: Vec<u32>,
}

/// All of them.
pub struct Calibration(BTreeMap<String, Constant>);

impl Calibration {
    /// The table.
    pub fn table() -> Self {
        Self(from_toml("calibration.toml", TABLE).expect("the built-in table is well-formed"))
    }

    /// The value of `name`.
    ///
    /// # Panics
    /// When there is none: a name is written in this crate only.
    pub fn get(&self, name: &str) -> f64 {
        self.0.get(name).unwrap_or_else(|| panic!("no constant {name}")).value
    }

    /// What the result of `row` is worth, as far as constants tell.
    pub fn kind(&self, row: u32) -> Kind {
        let any = |rows: fn(&Constant) -> &[u32]| self.0.values().any(|constant| rows(constant).contains(&row));
        match () {
            () if any(|constant| &constant.fitted_on) => Kind::Fitted,
            () if any(|constant| &constant.before_of) => Kind::Change,
            () => Kind::Predicted,
        }
    }

    /// All, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Constant)> {
        self.0.iter()
    }
}
