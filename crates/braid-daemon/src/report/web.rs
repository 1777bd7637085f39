//! Reports that only the page for browsers asks for.

use std::net::IpAddr;

use braid_host::config::HostName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Query of `GET /v1/lookup`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LookupQuestion {
    /// Name to look up.
    pub name: HostName,
}

/// Answer to `GET /v1/lookup`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LookupReport {
    /// The name.
    pub name: HostName,
    /// Its addresses by the machine's own resolver.
    pub addresses: Vec<IpAddr>,
}
