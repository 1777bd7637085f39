//! The two ends of a link, and their textual form.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest name of a network device (IFNAMSIZ less its final zero).
const MAX_NAME_BYTES: usize = 15;

/// A direction of the link, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From a to b.
    Up,
    /// From b to a.
    Down,
    /// Both directions.
    #[default]
    Both,
}

/// Location of one end of a link: `NETNS:DEV`, or `-:DEV` for the namespace of the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// A name in `/run/netns`; none for the namespace of the caller.
    pub netns: Option<String>,
    /// Name of the TAP device to create there.
    pub device: String,
}

/// A text that is not an end of a link.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EndpointError {
    /// Wrong form.
    #[error("{0:?} is not an end of a link: write NETNS:DEVICE, or -:DEVICE for this namespace")]
    Form(String),
    /// Not a valid name of a device.
    #[error("{0:?} cannot name a device: 1 to 15 characters without space or slash")]
    Device(String),
    /// Not a valid name of a namespace.
    #[error("{0:?} cannot name a network namespace: it has no slash and does not begin with a dot")]
    Namespace(String),
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Endpoint, EndpointError> {
        let (netns, device) = text
            .rsplit_once(':')
            .ok_or_else(|| EndpointError::Form(text.to_owned()))?;
        let strange = |c: char| c.is_whitespace() || c == '/' || c == '\0' || c == '%';
        if device.is_empty() || device.len() > MAX_NAME_BYTES || device.contains(strange) {
            return Err(EndpointError::Device(device.to_owned()));
        }
        if netns.is_empty() || netns.starts_with('.') || netns.contains(['/', '\0']) {
            return Err(EndpointError::Namespace(netns.to_owned()));
        }
        let netns = (netns != "-").then(|| netns.to_owned());
        Ok(Endpoint {
            netns,
            device: device.to_owned(),
        })
    }
}

impl Endpoint {
    /// Returns the namespace as text, for messages.
    #[must_use]
    pub fn place(&self) -> String {
        match &self.netns {
            Some(name) => format!("network namespace {name:?}"),
            None => "this network namespace".to_owned(),
        }
    }
}

/// A MAC address of a single host: `02:00:00:00:00:01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

/// A text that is not a MAC address for a host.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{0:?} is not a MAC address for a device: write six pairs of hex digits, such as \
     02:00:00:00:00:01, the first pair even and not all of them zero"
)]
pub struct MacError(String);

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Mac, MacError> {
        let refuse = || MacError(text.to_owned());
        let mut mac = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut mac {
            let part = parts
                .next()
                .filter(|part| part.len() == 2)
                .ok_or_else(refuse)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| refuse())?;
        }
        let group = mac[0] & 1 == 1;
        if parts.next().is_some() || group || mac == [0; 6] {
            return Err(refuse());
        }
        Ok(Mac(mac))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_read_and_refused() {
        let end: Endpoint = "home:dsl0".parse().expect("an end");
        assert_eq!(
            (end.netns.as_deref(), end.device.as_str()),
            (Some("home"), "dsl0")
        );
        let here: Endpoint = "-:dsl0".parse().expect("an end");
        assert_eq!(here.netns, None);
        for (text, part) in [
            ("dsl0", "NETNS:DEVICE"),
            ("a:sixteen-chars-xx", "1 to 15 characters"),
            ("a:b c", "1 to 15 characters"),
            ("../a:b", "no slash"),
            (":b", "cannot name a network namespace"),
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn macs_are_read_and_refused() {
        let mac: Mac = "02:00:00:00:0a:01".parse().expect("an address");
        assert_eq!(mac.to_string(), "02:00:00:00:0a:01");
        for text in [
            "",
            "02:00",
            "02:00:00:00:00:0g",
            "01:00:00:00:00:01",
            "00:00:00:00:00:00",
        ] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
    }
}
