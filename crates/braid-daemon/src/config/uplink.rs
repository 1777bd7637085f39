//! `[[uplink]]`: settings of one uplink.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::str::FromStr;

use braid_core::{Rate, Share};
use braid_host::as_text;
use braid_host::config::Quota;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::target::Target;

/// Default tier.
pub const FIRST_TIER: u8 = 1;

fn first_tier() -> u8 {
    FIRST_TIER
}

/// A configured uplink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UplinkConfig {
    /// Name of the uplink; the device's name if not given.
    pub name: String,
    /// The network device, for example `eth0`.
    pub device: String,
    /// Relative share of new flows; only the proportion matters. None: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<NonZeroU32>,
    /// Capacity of the uplink; another way to give the weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub capacity: Option<Rate>,
    /// IPv4 gateway, instead of the one in the routing table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway4: Option<Ipv4Addr>,
    /// IPv6 gateway, instead of the one in the routing table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway6: Option<Ipv6Addr>,
    /// Source ports for flows whose own port is taken.
    #[serde(default)]
    pub ports: Ports,
    /// Preference: of the uplinks that are up, only those of the lowest tier take flows.
    #[serde(default = "first_tier")]
    pub tier: u8,
    /// Traffic costs money: probe less often, and race only if `[race]` allows it.
    #[serde(default)]
    pub metered: bool,
    /// Load, as a share of its capacity, at which the next tier takes flows too; none: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub overflow: Option<Share>,
    /// Volume per day or month. Beyond that it carries only flows that no other uplink can take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// Probe targets for this uplink, instead of those in `[liveness]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Target>,
}

/// A range of source ports, written `"16384-32767"`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Ports(RangeInclusive<u16>);

impl Ports {
    /// Lowest port allowed in a range: those below belong to services.
    pub const MIN_PORT: u16 = 1024;

    /// Returns the ports, lowest to highest.
    #[must_use]
    pub fn range(&self) -> RangeInclusive<u16> {
        self.0.clone()
    }
}

impl Default for Ports {
    /// Below Linux' own ephemeral range (32768–60999), so that local sockets and mappings do not
    /// compete for ports.
    fn default() -> Self {
        Self(16_384..=32_767)
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0.start(), self.0.end())
    }
}

as_text!(Ports);

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (low, high) = text.split_once('-').ok_or("not a range of ports")?;
        let port = |text: &str| {
            let text = text.trim();
            text.parse::<u16>()
                .map_err(|_| format!("{text:?} is no port number"))
        };
        let (low, high) = (port(low)?, port(high)?);
        if low > high {
            return Err(format!("the range is empty: {low} is above {high}"));
        }
        if low < Self::MIN_PORT {
            return Err(format!(
                "{low} is below {}, where services listen",
                Self::MIN_PORT
            ));
        }
        Ok(Self(low..=high))
    }
}
