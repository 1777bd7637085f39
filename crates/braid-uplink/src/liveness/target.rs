//! Probe targets.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The port of DNS.
const DNS_PORT: u16 = 53;
/// The longest host name (RFC 1035 §2.3.4, as text).
const MAX_NAME: usize = 253;

/// A probe target. Written as text: `icmp:1.1.1.1`, `tcp:[2001:db8::1]:443`, `dns:9.9.9.9/example.org`,
/// `http://example.org/generate_204`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// An echo request. Good: its reply.
    Icmp(IpAddr),
    /// A connection, closed at once. Good: it opens, or the target itself refuses it.
    Tcp(SocketAddr),
    /// A DNS query over UDP. Good: an answer to this very query, whether or not the name exists.
    Dns {
        /// The server.
        server: SocketAddr,
        /// The name whose address is queried; empty for the root's name servers.
        name: String,
    },
    /// An HTTP/1.1 request. Good: exactly the expected answer; any other one comes from a captive portal. It
    /// reveals the machine to the host's operator, so no such target is used unless configured.
    Http {
        /// A name or an address.
        host: String,
        /// TCP port.
        port: u16,
        /// Path and query, beginning with `/`.
        path: String,
        /// The expected answer.
        expect: Expect,
    },
}

/// The expected answer of an HTTP target.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Expect {
    /// Status 204 without a body.
    #[default]
    NoContent,
    /// Status 200 with exactly this body.
    Body(String),
}

/// The reason that a text is no target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no target: {why}")]
pub struct TargetError {
    text: String,
    why: &'static str,
}

impl Target {
    /// Returns the same target, expecting this body under status 200. Targets other than HTTP are unchanged.
    #[must_use]
    pub fn expecting(self, body: String) -> Target {
        match self {
            Target::Http {
                host, port, path, ..
            } => Target::Http {
                host,
                port,
                path,
                expect: Expect::Body(body),
            },
            other => other,
        }
    }

    pub(super) fn is_http(&self) -> bool {
        matches!(self, Target::Http { .. })
    }

    /// Returns the target's address; `None` for a name, which may have any.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Target::Icmp(address) => Some(*address),
            Target::Tcp(at) | Target::Dns { server: at, .. } => Some(at.ip()),
            Target::Http { host, .. } => host.parse().ok(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Icmp(address) => write!(f, "icmp:{address}"),
            Target::Tcp(at) => write!(f, "tcp:{at}"),
            Target::Dns { server, name } => {
                match (server.port(), server.ip()) {
                    (DNS_PORT, ip) => write!(f, "dns:{ip}")?,
                    _ => write!(f, "dns:{server}")?,
                }
                match name.as_str() {
                    "" => Ok(()),
                    name => write!(f, "/{name}"),
                }
            }
            Target::Http {
                host, port, path, ..
            } => {
                match host.contains(':') {
                    true => write!(f, "http://[{host}]")?,
                    false => write!(f, "http://{host}")?,
                }
                match port {
                    80 => write!(f, "{path}"),
                    port => write!(f, ":{port}{path}"),
                }
            }
        }
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Target, TargetError> {
        let refuse = |why| TargetError {
            text: text.to_owned(),
            why,
        };
        if let Some(rest) = text.strip_prefix("icmp:") {
            let address = bare(rest).ok_or(refuse("icmp: wants an address"))?;
            return Ok(Target::Icmp(address));
        }
        if let Some(rest) = text.strip_prefix("tcp:") {
            let at = endpoint(rest).ok_or(refuse("tcp: wants address:port, IPv6 in brackets"))?;
            return Ok(Target::Tcp(at));
        }
        if let Some(rest) = text.strip_prefix("dns:") {
            let (server, name) = rest.split_once('/').unwrap_or((rest, ""));
            let on_its_port = bare(server).map(|address| SocketAddr::new(address, DNS_PORT));
            let server = on_its_port.or_else(|| endpoint(server));
            let server = server.ok_or(refuse("dns: wants an address, or address:port"))?;
            let name = name.strip_suffix('.').unwrap_or(name);
            if !name.is_empty() && !is_name(name) {
                return Err(refuse("what is asked for is no host name"));
            }
            let name = name.to_owned();
            return Ok(Target::Dns { server, name });
        }
        if let Some(rest) = text.strip_prefix("http://") {
            return http(rest).map_err(refuse);
        }
        Err(refuse(
            "a target is icmp:ADDRESS, tcp:ADDRESS:PORT, dns:ADDRESS[/NAME] or http://HOST[:PORT]/PATH",
        ))
    }
}

/// Parses an address, in brackets or not.
fn bare(text: &str) -> Option<IpAddr> {
    let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    match inner {
        Some(inner) => inner.parse().ok().map(IpAddr::V6),
        None => text.parse().ok(),
    }
}

/// Parses address and port. A scope is refused: a target that shows that the internet is there is not on the
/// link.
fn endpoint(text: &str) -> Option<SocketAddr> {
    let at: SocketAddr = text.parse().ok()?;
    let scoped = matches!(at, SocketAddr::V6(at) if at.scope_id() != 0);
    (at.port() != 0 && !scoped).then_some(at)
}

fn http(rest: &str) -> Result<Target, &'static str> {
    let (authority, path) = match rest.find('/') {
        Some(slash) => rest.split_at(slash),
        None => (rest, "/"),
    };
    // The path is sent on one line and must not end it.
    if !path.bytes().all(|byte| byte.is_ascii_graphic()) || path.contains('#') {
        return Err("a path has no spaces, no fragment, and nothing but ASCII");
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => {
            let port = port.parse().ok().filter(|port| *port != 0);
            (host, port.ok_or("the port is no number from 1 to 65535")?)
        }
        _ => (authority, 80),
    };
    let host = match bare(host) {
        Some(address) => address.to_string(),
        None if is_name(host) => host.to_ascii_lowercase(),
        None => return Err("the host is neither an address nor a name"),
    };
    Ok(Target::Http {
        host,
        port,
        path: path.to_owned(),
        expect: Expect::NoContent,
    })
}

/// Returns true for a host name in ASCII form without a trailing dot.
fn is_name(name: &str) -> bool {
    let label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len())
            && label.bytes().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= MAX_NAME && name.split('.').all(label)
}

impl Serialize for Target {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Target {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Target, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_written_as_they_are_read() {
        for (text, shown) in [
            ("icmp:1.1.1.1", "icmp:1.1.1.1"),
            ("icmp:[2620:fe::fe]", "icmp:2620:fe::fe"),
            ("tcp:[2001:db8::1]:443", "tcp:[2001:db8::1]:443"),
            ("dns:9.9.9.9", "dns:9.9.9.9"),
            (
                "dns:2620:fe::fe/Example.org.",
                "dns:2620:fe::fe/Example.org",
            ),
            ("dns:[2620:fe::fe]:5353/a.b", "dns:[2620:fe::fe]:5353/a.b"),
            ("http://Example.org", "http://example.org/"),
            ("http://example.org:80/x?y=1", "http://example.org/x?y=1"),
            ("http://[2001:db8::1]:8080/x", "http://[2001:db8::1]:8080/x"),
        ] {
            let target: Target = text.parse().unwrap();
            assert_eq!(target.to_string(), shown);
            assert_eq!(shown.parse(), Ok(target));
        }
    }

    #[test]
    fn what_is_no_target_says_why() {
        for (text, why) in [
            ("1.1.1.1", "a target is icmp:ADDRESS"),
            ("icmp:example.org", "wants an address"),
            ("icmp:fe80::1%2", "wants an address"),
            ("tcp:1.1.1.1", "wants address:port"),
            ("tcp:1.1.1.1:0", "wants address:port"),
            ("tcp:[fe80::1%2]:443", "wants address:port"),
            ("dns:1.1.1.1/-x.org", "no host name"),
            ("dns:resolver.example", "wants an address"),
            ("http://", "neither an address nor a name"),
            ("http://a b/", "neither an address nor a name"),
            ("http://example.org:http/", "the port is no number"),
            ("http://example.org/\r\nX: y", "no spaces"),
            ("https://example.org/", "a target is icmp:ADDRESS"),
        ] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(
                error.contains(why) && error.contains(&format!("{text:?}")),
                "{error}"
            );
        }
    }
}
