//! Name servers whose answers are trusted for the addresses of names.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use braid_host::as_text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One or several name servers whose answers to clients are trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum NameServer {
    /// `"system"`: those that this machine uses itself (`resolv.conf`).
    System,
    /// `"any"`: every server that a client asks; a client can then decide what names mean for all others.
    Any,
    /// The server with this address.
    Address(IpAddr),
}

impl fmt::Display for NameServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NameServer::System => f.write_str("system"),
            NameServer::Any => f.write_str("any"),
            NameServer::Address(address) => address.fmt(f),
        }
    }
}

impl FromStr for NameServer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "system" => Ok(NameServer::System),
            "any" => Ok(NameServer::Any),
            _ => match text.parse() {
                Ok(address) => Ok(NameServer::Address(address)),
                Err(_) => Err(format!(
                    "{text:?} is neither an address nor \"system\" nor \"any\""
                )),
            },
        }
    }
}

as_text!(NameServer);

/// The trusted name servers. Default: `["system"]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct NameServers(pub Vec<NameServer>);

impl NameServers {
    /// Returns true if `server` is among them; `system` recognizes the machine's own.
    #[must_use]
    pub fn include(&self, server: IpAddr, system: impl Fn(IpAddr) -> bool) -> bool {
        self.0.iter().any(|one| match one {
            NameServer::System => system(server),
            NameServer::Any => true,
            NameServer::Address(address) => *address == server,
        })
    }
}

impl Default for NameServers {
    fn default() -> NameServers {
        NameServers(vec![NameServer::System])
    }
}
