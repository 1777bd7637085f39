//! Matchers of a packet's IP header: protocol and DSCP.

use std::fmt;
use std::str::FromStr;

use braid_host::as_text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::matcher::IpVersion;

/// A transport protocol by name or IANA number. `icmp` means ICMP for IPv4 and ICMPv6 for IPv6.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct IpProtocol(u8);

impl IpProtocol {
    /// Protocols with a name (IANA protocol numbers).
    const NAMED: [(&'static str, u8); 7] = [
        ("tcp", 6),
        ("udp", 17),
        ("icmp", 1),
        ("gre", 47),
        ("esp", 50),
        ("sctp", 132),
        ("ipip", 4),
    ];

    /// TCP.
    pub const TCP: IpProtocol = IpProtocol(6);
    /// UDP.
    pub const UDP: IpProtocol = IpProtocol(17);
    /// ICMP of either IP version.
    pub const ICMP: IpProtocol = IpProtocol(1);
    const ICMPV6: u8 = 58;

    /// Returns its number in packets of an IP version.
    #[must_use]
    pub fn number(self, version: IpVersion) -> u8 {
        match (self, version) {
            (IpProtocol::ICMP, IpVersion::Ipv6) => IpProtocol::ICMPV6,
            (IpProtocol(number), _) => number,
        }
    }

    /// Returns its number if it is the same in both IP versions.
    #[must_use]
    pub fn one_number(self) -> Option<u8> {
        (self != IpProtocol::ICMP).then_some(self.0)
    }

    /// Returns true if its packets have ports.
    #[must_use]
    pub fn has_ports(self) -> bool {
        matches!(self.0, 6 | 17)
    }
}

impl FromStr for IpProtocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::NAMED.iter().find(|(name, _)| *name == text);
        match (named, text.parse::<u8>()) {
            (Some((_, number)), _) => Ok(IpProtocol(*number)),
            (None, Ok(Self::ICMPV6)) => Ok(IpProtocol::ICMP),
            (None, Ok(number)) => Ok(IpProtocol(number)),
            (None, Err(_)) => Err(format!("no protocol is called {text:?}")),
        }
    }
}

impl fmt::Display for IpProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::NAMED.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => f.write_str(name),
            None => self.0.fmt(f),
        }
    }
}

as_text!(IpProtocol);

/// A differentiated-services code point by name or number, 0 to 63: `"ef"`, `"af41"`, `"cs1"`,
/// `"46"`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Dscp(u8);

impl Dscp {
    const EF: u8 = 46;

    /// Returns its number, 0 to 63.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }
}

impl FromStr for Dscp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(number) = text.parse::<u8>() {
            let beyond = || format!("{number} is beyond 63");
            return (number < 64).then_some(Dscp(number)).ok_or_else(beyond);
        }
        let digit = |c: u8, most: u8| c.checked_sub(b'0').filter(|d| *d <= most);
        let number = match text.as_bytes() {
            b"ef" => Some(Self::EF),
            // RFC 2474 §4.2.2.1: class selectors.
            [b'c', b's', class] => digit(*class, 7).map(|class| class * 8),
            // RFC 2597 §6: class 1 to 4, drop precedence 1 to 3.
            [b'a', b'f', class, drop] => match (digit(*class, 4), digit(*drop, 3)) {
                (Some(class @ 1..), Some(drop @ 1..)) => Some(class * 8 + drop * 2),
                _ => None,
            },
            _ => None,
        };
        number
            .map(Dscp)
            .ok_or_else(|| format!("no code point is called {text:?}"))
    }
}

impl fmt::Display for Dscp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (class, rest) = (self.0 / 8, self.0 % 8);
        match (class, rest) {
            _ if self.0 == Self::EF => f.write_str("ef"),
            (_, 0) => write!(f, "cs{class}"),
            (1..=4, 2 | 4 | 6) => write!(f, "af{class}{}", rest / 2),
            _ => self.0.fmt(f),
        }
    }
}

as_text!(Dscp);
