//! Reports of the page for browsers.

use std::net::IpAddr;

use braid_host::config::HostName;
use braid_host::web::Role;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Body of `POST /v1/web/token`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// Rights of the sessions that the token opens.
    pub role: Role,
    /// True to replace the token, which ends its sessions.
    #[serde(default)]
    pub new: bool,
}

/// Answer to `POST /v1/web/token`, and output of `braid web token --json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenReport {
    /// Rights of the sessions that the token opens.
    pub role: Role,
    /// The token.
    pub token: String,
    /// Addresses of the page; empty if `[web]` has no `listen`.
    pub urls: Vec<String>,
    /// SHA-256 of the certificate that is served, to compare with the browser's; none without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_sha256: Option<String>,
}

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
