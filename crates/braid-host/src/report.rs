//! Types of the local APIs that all daemons share.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::user_error::UserError;

/// A health problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HealthProblem {
    /// Stable code for programs: `uplink-down`, `flow-table-full`, …
    pub code: String,
    /// The problem and what it means.
    pub text: String,
    /// The fix; empty if only waiting helps.
    pub fix: String,
}

/// Answer to every failed request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorReport {
    /// The error.
    pub error: UserError,
}
