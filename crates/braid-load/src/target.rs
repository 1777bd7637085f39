//! Destinations of a load: every address on every port, in turn.
//!
//! Several destinations keep a client from running out of ports: a source port can be reused for
//! another destination while the old connection is still in TIME_WAIT.

use clap::Args;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

/// Destinations of a load.
#[derive(Debug, Clone, Args)]
pub(crate) struct Targets {
    /// Address of the server; repeat it for several
    #[arg(long = "to", required = true, value_name = "ADDRESS")]
    addresses: Vec<IpAddr>,
    /// Ports of the server, "7000" or "7000-7015"
    #[arg(long, default_value = "7000-7015", value_parser = parse_ports, value_name = "PORTS")]
    ports: RangeInclusive<u16>,
}

impl Targets {
    /// Returns all destinations; neighbours in the list differ in address first.
    pub(crate) fn all(&self) -> Vec<SocketAddr> {
        let on_port = |port| {
            self.addresses
                .iter()
                .map(move |&a| SocketAddr::new(a, port))
        };
        self.ports.clone().flat_map(on_port).collect()
    }

    /// Returns the first address on the first port, where the server serves datagrams.
    pub(crate) fn datagram(&self) -> SocketAddr {
        SocketAddr::new(self.addresses[0], *self.ports.start())
    }
}

/// Parses "7000" or "7000-7015".
pub(crate) fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |t: &str| t.parse::<u16>().map_err(|e| format!("port \"{t}\": {e}"));
    let (first, last) = (port(first)?, port(last)?);
    if first == 0 || first > last {
        return Err(format!(
            "\"{text}\" is not a range of ports, such as \"7000-7015\""
        ));
    }
    Ok(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports() {
        assert_eq!(parse_ports("7000"), Ok(7000..=7000));
        assert_eq!(parse_ports("7000-7015"), Ok(7000..=7015));
        for wrong in ["", "0", "7015-7000", "70000", "7000-", "a-b"] {
            assert!(parse_ports(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_address_on_every_port() {
        let targets = Targets {
            addresses: vec!["192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()],
            ports: 7..=8,
        };
        let text: Vec<String> = targets.all().iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            ["192.0.2.1:7", "192.0.2.2:7", "192.0.2.1:8", "192.0.2.2:8"]
        );
        assert_eq!(targets.datagram().to_string(), "192.0.2.1:7");
    }
}
