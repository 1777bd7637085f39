//! Matchers of a packet's endpoints: port and user ranges, link-layer addresses. Each is a
//! type that parses the user's text and displays it again.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use braid_host::as_text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// IP version.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum IpVersion {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

impl IpVersion {
    /// The accepted keywords.
    pub(super) const NAMES: [&'static str; 2] = ["ipv4", "ipv6"];

    /// Returns the version of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> IpVersion {
        match address {
            IpAddr::V4(_) => IpVersion::Ipv4,
            IpAddr::V6(_) => IpVersion::Ipv6,
        }
    }
}

impl fmt::Display for IpVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IpVersion::Ipv4 => "ipv4",
            IpVersion::Ipv6 => "ipv6",
        })
    }
}

impl FromStr for IpVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "ipv4" => Ok(IpVersion::Ipv4),
            "ipv6" => Ok(IpVersion::Ipv6),
            _ => Err(format!("no IP version is called {text:?}")),
        }
    }
}

/// One number or a range of them, `"443"` or `"8000-8100"`.
macro_rules! number_range {
    ($(#[$doc:meta])* $name:ident, $number:ty, $least:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        #[derive(Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = "String", into = "String")]
        #[schemars(with = "String")]
        pub struct $name(RangeInclusive<$number>);

        impl $name {
            /// Returns the range, lowest to highest.
            #[must_use]
            pub fn range(&self) -> RangeInclusive<$number> {
                self.0.clone()
            }

            /// Returns true if it contains all of another.
            #[must_use]
            pub fn covers(&self, other: &Self) -> bool {
                self.0.contains(other.0.start()) && self.0.contains(other.0.end())
            }

            /// Returns true if the two overlap.
            #[must_use]
            pub fn meets(&self, other: &Self) -> bool {
                self.0.start() <= other.0.end() && other.0.start() <= self.0.end()
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let number = |text: &str| {
                    let text = text.trim();
                    text.parse::<$number>()
                        .ok()
                        .filter(|number| ($least..=<$number>::MAX).contains(number))
                        .ok_or_else(|| format!("{text:?} is no {}", $what))
                };
                let (low, high) = match text.split_once('-') {
                    Some((low, high)) => (number(low)?, number(high)?),
                    None => (number(text)?, number(text)?),
                };
                if low > high {
                    return Err(format!("the range is empty: {low} is above {high}"));
                }
                Ok(Self(low..=high))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0.start() == self.0.end() {
                    true => self.0.start().fmt(f),
                    false => write!(f, "{}-{}", self.0.start(), self.0.end()),
                }
            }
        }

        as_text!($name);
    };
}

number_range!(
    /// A port or a range of ports, `"443"` or `"8000-8100"`.
    PortRange, u16, 1, "port number"
);
number_range!(
    /// A user id or a range of them, `"1000"` or `"1000-1999"`.
    UidRange, u32, 0, "user id"
);

/// A link-layer address, `"02:00:5e:10:00:01"`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Mac(pub [u8; 6]);

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2);
            *byte = part
                .and_then(|part| u8::from_str_radix(part, 16).ok())
                .ok_or("not six pairs of hexadecimal digits")?;
        }
        if parts.next().is_some() {
            return Err("not six pairs of hexadecimal digits".to_owned());
        }
        if bytes[0] & 1 != 0 || bytes == [0; 6] {
            return Err("not the address of one device".to_owned());
        }
        Ok(Mac(bytes))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

as_text!(Mac);
