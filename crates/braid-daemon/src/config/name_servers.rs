//! Whose answers tell the addresses of names.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A name server that clients may ask and be believed, or several of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum NameServer {
    /// `"system"`: those that this machine asks itself (`resolv.conf`).
    System,
    /// `"any"`: whoever a client asks, so that a client decides what names mean to all others.
    Any,
    /// The one of this address.
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

impl TryFrom<String> for NameServer {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<NameServer> for String {
    fn from(server: NameServer) -> String {
        server.to_string()
    }
}

/// All of them. Without a word from the user: `["system"]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct NameServers(pub Vec<NameServer>);

impl NameServers {
    /// Whether `server` is among them; `system` are the machine's own.
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
