//! Programs that run on one uplink (`braid run`).

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /v1/runs`: from now on, new flows of a control group's processes take one uplink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// Name of the uplink.
    pub uplink: String,
    /// The control group's directory, below a cgroup2 mount of the daemon's.
    pub group: PathBuf,
    /// The group's id in the kernel: its directory's inode number.
    pub id: u64,
    /// Process that ends the run. When it and the group's processes are gone, so is the run.
    pub pid: u32,
    /// What is run, for people.
    pub command: String,
    /// What becomes of new flows while the uplink takes none.
    pub when_down: WhenDown,
}

/// What becomes of new flows of a rule whose uplink takes none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WhenDown {
    /// They take the others.
    Others,
    /// They are refused.
    #[default]
    Block,
}

/// Answer to `GET /v1/runs`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunsReport {
    /// Every run, the oldest first.
    pub runs: Vec<RunRequest>,
}
