//! Sysctls that Braid changes, and what they were before.

use serde::{Deserialize, Serialize};

/// What sysctls were before Braid changed them. Keep it on disk *before* applying the plan that it
/// came with, and hand it in again with the next plan and with the removal, also in another process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// In the order in which they were changed; each key at most once.
    pub sysctls: Vec<SavedSysctl>,
}

/// One changed sysctl.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSysctl {
    /// Slash-separated path below `/proc/sys`, for example `net/ipv4/conf/eth0/rp_filter` (device
    /// names may contain dots).
    pub key: String,
    /// The value found.
    pub before: String,
    /// The value set. Removal leaves a sysctl alone that someone else has changed since.
    pub ours: String,
}
