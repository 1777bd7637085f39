//! Checks whether this machine can run Braid, and what stands in its way (`braid doctor`).
//!
//! [`examine`] gathers facts (`facts`, thin, never fails: what cannot be read is a fact too) and
//! judges them (`judge`, pure). Nothing is changed.

mod facts;
mod judge;

use std::ops::RangeInclusive;

use braid_uplink::Selection;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How bad a finding is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Braid runs, but something may not behave as expected.
    Warn,
    /// Braid cannot run.
    Fail,
}

/// The outcome of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Stable word for programs: `kernel`, `capabilities`, `uplinks`, …
    pub code: String,
    /// How bad it is.
    pub level: Level,
    /// What was found and what it means.
    pub text: String,
    /// The command, or else the step, that mends it; empty if nothing is to be done.
    pub fix: String,
}

/// Checks everything, in the network namespace of the calling thread: prerequisites first.
///
/// `ports` are those that address translation hands out. Needs a tokio runtime with I/O.
pub async fn examine(selection: &Selection, ports: &[RangeInclusive<u16>]) -> Vec<Finding> {
    judge::judge(&facts::gather(selection).await, ports)
}

/// The worst level among findings; [`Level::Ok`] for none.
#[must_use]
pub fn worst(findings: &[Finding]) -> Level {
    findings.iter().map(|f| f.level).max().unwrap_or(Level::Ok)
}
