//! Probe targets.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use braid_host::as_text;
use braid_host::config::HostName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A probe target: `"icmp:1.1.1.1"`, `"tcp:192.0.2.1:443"`, `"dns:9.9.9.9"`,
/// `"dns:9.9.9.9/example.com"`, `"http://192.0.2.1/generate_204"`.
///
/// A target is an address, never a host name: the lookup would have to use the very uplink that is
/// under suspicion.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum Target {
    /// An ICMP echo.
    Icmp(IpAddr),
    /// A TCP handshake; a refusal is an answer too.
    Tcp(SocketAddr),
    /// A DNS query for a name's address; any well-formed answer counts. Without a name: the
    /// name servers of the root.
    Dns(IpAddr, Option<HostName>),
    /// `GET` of a page over HTTP; see [`HttpTarget`].
    Http(HttpTarget),
}

/// A page fetched over HTTP without TLS, which a captive portal would replace.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct HttpTarget {
    /// Address and port of the server.
    pub server: SocketAddr,
    /// Path and query, beginning with a slash.
    pub path: String,
}

impl Target {
    /// Fix for an invalid target.
    pub(super) const FIX: &'static str = "write \"icmp:ADDRESS\", \"tcp:ADDRESS:PORT\", \
         \"dns:ADDRESS\", \"dns:ADDRESS/NAME\" or \"http://ADDRESS/PATH\"";

    /// Returns the address to probe.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        match self {
            Target::Icmp(address) | Target::Dns(address, _) => *address,
            Target::Tcp(server) => server.ip(),
            Target::Http(page) => page.server.ip(),
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, rest) = text.split_once(':').ok_or("no kind of probe in front")?;
        let target = match kind {
            "icmp" => Target::Icmp(address(rest)?),
            "tcp" => Target::Tcp(server(rest, None)?),
            "dns" => match rest.split_once('/') {
                Some((server, name)) => Target::Dns(address(server)?, Some(name.parse()?)),
                None => Target::Dns(address(rest)?, None),
            },
            "http" => Target::Http(text.parse()?),
            "https" => return Err("over TLS a portal cannot answer: use http".to_owned()),
            _ => return Err(format!("no kind of probe is called {kind:?}")),
        };
        one_machine(target.address())?;
        Ok(target)
    }
}

impl FromStr for HttpTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rest = text.strip_prefix("http://").ok_or("not http://")?;
        let (host, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, "/"),
        };
        let plain = |c: char| c.is_ascii_graphic() && c != '#';
        if !path.chars().all(plain) {
            return Err("the path has a character that no request has".to_owned());
        }
        let server = server(host, Some(80))?;
        one_machine(server.ip())?;
        Ok(HttpTarget {
            server,
            path: path.to_owned(),
        })
    }
}

fn address(text: &str) -> Result<IpAddr, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not an IP address"))
}

/// Parses `ADDRESS:PORT`, or `ADDRESS` if there is a default port; IPv6 addresses in brackets.
fn server(text: &str, usual: Option<u16>) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    if let Some(port) = usual
        && let Ok(address) = bare.unwrap_or(text).parse::<IpAddr>()
        && address.is_ipv6() == bare.is_some()
    {
        return Ok(SocketAddr::new(address, port));
    }
    match text.parse::<SocketAddr>() {
        Ok(server) if server.port() != 0 => Ok(server),
        Ok(_) => Err("port 0 is nobody's".to_owned()),
        Err(_) if usual.is_some() => Err(format!(
            "{text:?} is not an IP address (IPv6 in brackets), with or without a port"
        )),
        Err(_) => Err(format!(
            "{text:?} is not ADDRESS:PORT (IPv6 addresses in brackets)"
        )),
    }
}

fn one_machine(address: IpAddr) -> Result<(), String> {
    let broadcast = address == IpAddr::from([255, 255, 255, 255]);
    let nobody = address.is_unspecified() || address.is_multicast() || address.is_loopback();
    match nobody || broadcast {
        true => Err(format!("{address} is not a machine elsewhere")),
        false => Ok(()),
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Icmp(address) => write!(f, "icmp:{address}"),
            Target::Tcp(server) => write!(f, "tcp:{server}"),
            Target::Dns(server, None) => write!(f, "dns:{server}"),
            Target::Dns(server, Some(name)) => write!(f, "dns:{server}/{name}"),
            Target::Http(page) => page.fmt(f),
        }
    }
}

impl fmt::Display for HttpTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (server, path) = (self.server, &self.path);
        match server {
            SocketAddr::V4(v4) if v4.port() == 80 => write!(f, "http://{}{path}", v4.ip()),
            SocketAddr::V6(v6) if v6.port() == 80 => write!(f, "http://[{}]{path}", v6.ip()),
            _ => write!(f, "http://{server}{path}"),
        }
    }
}

as_text!(Target);

as_text!(HttpTarget);
