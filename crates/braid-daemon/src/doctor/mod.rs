//! Checks whether this machine can run Braid (`braid doctor`).
//!
//! [`examine`] gathers facts (`facts`, thin, never fails: an unreadable value is a fact too) and
//! checks them (`checks`, pure). Nothing is changed.

mod checks;
mod environment_facts;
mod facts;
pub mod preflight;
mod targets;

use std::path::Path;

use braid_uplink::Selection;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::Settings;
use crate::uplinks::liveness_rules::liveness_rules;

/// Severity of a finding.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No problem.
    Ok,
    /// Braid runs, but something may not work as expected.
    Warn,
    /// Braid cannot run.
    Fail,
}

/// The outcome of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Stable code for programs: `kernel`, `capabilities`, `uplinks`, …
    pub code: String,
    /// Severity.
    pub level: Level,
    /// The finding and what it means.
    pub text: String,
    /// The command, or else the step, that fixes it; empty if there is nothing to do.
    pub fix: String,
}

/// Checks everything, in the network namespace of the calling thread: prerequisites first.
///
/// Probes the targets too, which takes up to two seconds. Needs a tokio runtime with I/O and
/// time.
pub async fn examine(settings: &Settings, selection: &Selection, run_dir: &Path) -> Vec<Finding> {
    let mut facts = facts::gather(selection).await;
    let uplinks = match &facts.discovery {
        Ok(discovery) => discovery.uplinks.clone(),
        Err(_) => Vec::new(),
    };
    facts.environment = environment_facts::look(&uplinks, run_dir);
    if settings.config.liveness.enabled {
        let with_targets = uplinks.into_iter().map(|uplink| {
            let targets = liveness_rules(settings, &uplink.name).targets;
            (uplink, targets)
        });
        facts.targets = Some(targets::probe_all(&with_targets.collect::<Vec<_>>()).await);
    }
    checks::run(&facts, &settings.all_ports())
}

/// Returns the finding about the edge's programs, which are not part of the daemon, from the kernel's
/// messages about refused ones. None of them keeps Braid from running.
#[must_use]
pub fn edge_programs(refused: &[String]) -> Finding {
    checks::edge_programs(refused)
}

/// The worst level among findings; [`Level::Ok`] for none.
#[must_use]
pub fn worst(findings: &[Finding]) -> Level {
    findings.iter().map(|f| f.level).max().unwrap_or(Level::Ok)
}
