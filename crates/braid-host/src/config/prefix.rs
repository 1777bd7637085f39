//! Networks as a configuration writes them.

use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::as_text;

/// A network, `"192.0.2.0/24"`, or one address.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Prefix(braid_core::Prefix);

impl Deref for Prefix {
    type Target = braid_core::Prefix;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address
            .parse()
            .map_err(|_| format!("{address:?} is not an IP address"))?;
        let all = braid_core::Prefix::from(address).length();
        let length = match length {
            None => all,
            Some(digits) => digits
                .parse()
                .ok()
                .filter(|length| *length <= all)
                .ok_or_else(|| format!("a prefix has 0 to {all} bits, not {digits:?}"))?,
        };
        match braid_core::Prefix::new(address, length) {
            Some(prefix) if prefix.address() == address => Ok(Prefix(prefix)),
            network => {
                let first = network.map_or(address, |network| network.address());
                Err(format!(
                    "bits are set after the first {length}: {first}/{length}?"
                ))
            }
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

as_text!(Prefix);
