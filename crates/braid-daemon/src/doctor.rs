//! Checks whether this machine can run Braid, and what stands in its way (`braid doctor`).
//!
//! [`examine`] gathers facts (`facts`, thin, never fails: what cannot be read is a fact too) and
//! judges them (`judge`, pure). Nothing is changed.

mod checks;
mod environment;
mod facts;
mod targets;

use std::path::Path;

use braid_uplink::Selection;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::liveness_rules::liveness_rules;
use crate::settings::Settings;

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
/// Asks the probes' targets too, which takes up to two seconds. Needs a tokio runtime with I/O and
/// time.
pub async fn examine(settings: &Settings, selection: &Selection, run_dir: &Path) -> Vec<Finding> {
    let mut facts = facts::gather(selection).await;
    let uplinks = match &facts.discovery {
        Ok(discovery) => discovery.uplinks.clone(),
        Err(_) => Vec::new(),
    };
    facts.environment = environment::look(&uplinks, run_dir);
    if settings.config.liveness.enabled {
        let with_targets = uplinks.into_iter().map(|uplink| {
            let targets = liveness_rules(settings, &uplink.name).targets;
            (uplink, targets)
        });
        facts.targets = Some(targets::probe_all(&with_targets.collect::<Vec<_>>()).await);
    }
    checks::run(&facts, &settings.all_ports())
}

/// What to say of the programs of an edge, which is no part of the daemon: what the kernel said where it
/// refused them. None of it keeps Braid from running.
#[must_use]
pub fn edge_programs(refused: &[String]) -> Finding {
    checks::edge_programs(refused)
}

/// The worst level among findings; [`Level::Ok`] for none.
#[must_use]
pub fn worst(findings: &[Finding]) -> Level {
    findings.iter().map(|f| f.level).max().unwrap_or(Level::Ok)
}
