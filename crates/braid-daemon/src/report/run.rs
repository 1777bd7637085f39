//! Programs that run on one uplink (`braid run`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{CgroupPath, OnDown};

/// Body of `POST /v1/runs`: new flows of a control group's processes take one uplink from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// Name of the uplink.
    pub uplink: String,
    /// The control group, by its path below the cgroup2 mount.
    pub group: CgroupPath,
    /// The group's id in the kernel: its directory's inode number.
    pub id: u64,
    /// Process that owns the run. The run ends when it and the group's processes have ended.
    pub pid: u32,
    /// Command line, for people.
    pub command: String,
    /// Action for new flows while the uplink takes none.
    pub on_down: OnDown,
}

/// Answer to `GET /v1/runs`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunsReport {
    /// Every run, the oldest first.
    pub runs: Vec<RunRequest>,
}
