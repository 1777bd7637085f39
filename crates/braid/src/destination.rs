//! Parsers for the arguments of `braid explain`.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use braid_daemon::config::Dscp;

/// The far end of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The host.
    pub host: Host,
    /// The port, if one was given.
    pub port: Option<u16>,
}

/// An address, or a name to look up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// An address.
    Address(IpAddr),
    /// A name.
    Name(String),
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(Endpoint { address, port }) = text.parse() {
            let host = Host::Address(address);
            return Ok(Destination { host, port });
        }
        if let Some((_, rest)) = text.split_once("://") {
            let host = rest.split('/').next().unwrap_or_default();
            return Err(format!(
                "this is a URL: write its host, like {host}, with :PORT or without"
            ));
        }
        let (name, port) = match text.rsplit_once(':') {
            None => (text, None),
            Some((name, port)) => (name, Some(parse_port(port)?)),
        };
        if !is_name(name) {
            return Err("write an address or a name, with :PORT or without".to_owned());
        }
        let host = Host::Name(name.to_owned());
        Ok(Destination { host, port })
    }
}

/// An address, optionally with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The address.
    pub address: IpAddr,
    /// The port, if one was given.
    pub port: Option<u16>,
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
        if let Ok(address) = bare.unwrap_or(text).parse() {
            return Ok(Endpoint {
                address,
                port: None,
            });
        }
        let both: SocketAddr = text.parse().map_err(
            |_| "write an address, with :PORT or without (IPv6 with a port: [2001:db8::1]:443)",
        )?;
        Ok(Endpoint {
            address: both.ip(),
            port: Some(both.port()),
        })
    }
}

/// A transport protocol by its name or IANA number.
pub fn parse_protocol(text: &str) -> Result<u8, String> {
    Ok(match text {
        "icmp" => 1,
        "tcp" => 6,
        "udp" => 17,
        "gre" => 47,
        "esp" => 50,
        "icmpv6" => 58,
        "sctp" => 132,
        number => number.parse().map_err(|_| {
            "write tcp, udp, icmp, icmpv6, gre, esp, sctp, or a number from 0 to 255".to_owned()
        })?,
    })
}

/// A user's number.
pub fn parse_uid(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no number of a user: `id -u NAME` prints it"))
}

/// A differentiated-services code point by name or number, as in a rule.
pub fn parse_dscp(text: &str) -> Result<u8, String> {
    let dscp: Result<Dscp, String> = text.parse();
    dscp.map(Dscp::number).map_err(|why| {
        format!("{why}: write a number from 0 to 63, or a name like ef, af41 or cs1")
    })
}

fn parse_port(text: &str) -> Result<u16, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no port: write a number from 0 to 65535"))
}

fn is_name(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && part
                .chars()
                .all(|c| c.is_alphanumeric() || c == '-' || c == '_')
    };
    text.strip_suffix('.')
        .unwrap_or(text)
        .split('.')
        .all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_with_and_without_ports() {
        let address = |text: &str| Host::Address(text.parse().unwrap());
        let name = |text: &str| Host::Name(text.to_owned());
        for (text, host, port) in [
            ("198.51.100.1", address("198.51.100.1"), None),
            ("198.51.100.1:443", address("198.51.100.1"), Some(443)),
            ("2001:db8::1", address("2001:db8::1"), None),
            ("[2001:db8::1]", address("2001:db8::1"), None),
            ("[2001:db8::1]:53", address("2001:db8::1"), Some(53)),
            ("example.org", name("example.org"), None),
            ("example.org.:80", name("example.org."), Some(80)),
        ] {
            let expected = Destination { host, port };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for bad in [
            "",
            ":80",
            "a:b",
            "http://example.org",
            "a..b",
            "[::1]:99999",
        ] {
            assert!(bad.parse::<Destination>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_url_is_answered_with_its_host() {
        let why = "https://example.org/a".parse::<Destination>().unwrap_err();
        assert!(why.contains("write its host, like example.org,"), "{why}");
    }

    #[test]
    fn code_points_are_written_as_in_a_rule() {
        for (text, number) in [("ef", 46), ("af41", 34), ("0", 0), ("63", 63)] {
            assert_eq!(parse_dscp(text), Ok(number), "{text}");
        }
        for bad in ["64", "voice", ""] {
            let why = parse_dscp(bad).unwrap_err();
            assert!(why.contains("write a number from 0 to 63"), "{why}");
        }
    }

    #[test]
    fn users_are_numbers() {
        assert_eq!(parse_uid("1000"), Ok(1000));
        assert!(parse_uid("root").unwrap_err().contains("id -u"));
    }

    #[test]
    fn protocols_have_names_and_numbers() {
        assert_eq!(parse_protocol("udp"), Ok(17));
        assert_eq!(parse_protocol("89"), Ok(89));
        assert!(parse_protocol("quic").is_err());
    }
}
