//! Selectors of routing rules.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use netlink_packet_route::rule::{RuleAttribute, RuleMessage, RulePortRange, RuleUidRange};

/// The packets that a routing rule matches, by all fields that the kernel supports and Braid uses. A field that
/// is not set matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// Packets received on the device of this name.
    pub incoming: Option<String>,
    /// Packets from this network.
    pub from: Option<(IpAddr, u8)>,
    /// Packets to this network.
    pub to: Option<(IpAddr, u8)>,
    /// IANA number of the transport protocol.
    pub protocol: Option<u8>,
    /// Source port.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// Destination port.
    pub ports: Option<RangeInclusive<u16>>,
    /// Owner of the local socket.
    pub users: Option<RangeInclusive<u32>>,
}

impl Selector {
    /// Returns a selector of packets from one address.
    #[must_use]
    pub fn from_address(address: IpAddr) -> Selector {
        let length = if address.is_ipv4() { 32 } else { 128 };
        Selector {
            from: Some((address, length)),
            ..Selector::default()
        }
    }

    /// Returns a selector of packets to one network.
    pub(super) fn to_network(network: (IpAddr, u8)) -> Selector {
        Selector {
            to: Some(network),
            ..Selector::default()
        }
    }

    /// Writes it into a message.
    pub(super) fn put(&self, message: &mut RuleMessage) {
        let attributes = &mut message.attributes;
        attributes.extend(self.incoming.clone().map(RuleAttribute::Iifname));
        if let Some((network, length)) = self.from {
            attributes.push(RuleAttribute::Source(network));
            message.header.src_len = length;
        }
        if let Some((network, length)) = self.to {
            attributes.push(RuleAttribute::Destination(network));
            message.header.dst_len = length;
        }
        attributes.extend(
            self.protocol
                .map(|number| RuleAttribute::IpProtocol(number.into())),
        );
        let ports = |ports: &RangeInclusive<u16>| RulePortRange {
            start: *ports.start(),
            end: *ports.end(),
        };
        let source = self.source_ports.as_ref().map(ports);
        attributes.extend(source.map(RuleAttribute::SourcePortRange));
        attributes.extend(
            self.ports
                .as_ref()
                .map(ports)
                .map(RuleAttribute::DestinationPortRange),
        );
        attributes.extend(self.users.as_ref().map(|users| {
            RuleAttribute::UidRange(RuleUidRange {
                start: *users.start(),
                end: *users.end(),
            })
        }));
    }

    /// Reads it out of a message.
    pub(super) fn of(message: &RuleMessage) -> Selector {
        let mut selector = Selector::default();
        for attribute in &message.attributes {
            match attribute {
                RuleAttribute::Iifname(device) => selector.incoming = Some(device.clone()),
                RuleAttribute::Source(ip) => selector.from = Some((*ip, message.header.src_len)),
                RuleAttribute::Destination(ip) => selector.to = Some((*ip, message.header.dst_len)),
                RuleAttribute::IpProtocol(protocol) => selector.protocol = Some((*protocol).into()),
                RuleAttribute::SourcePortRange(ports) => {
                    selector.source_ports = Some(ports.start..=ports.end);
                }
                RuleAttribute::DestinationPortRange(ports) => {
                    selector.ports = Some(ports.start..=ports.end);
                }
                // The kernel reports the range of all users if none was set.
                RuleAttribute::UidRange(users) if (users.start, users.end) != (0, u32::MAX) => {
                    selector.users = Some(users.start..=users.end);
                }
                _ => {}
            }
        }
        selector
    }
}

/// Displays it in `ip rule`'s words, each with a space in front.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(device) = &self.incoming {
            write!(f, " iif {device}")?;
        }
        for (word, network) in [("from", self.from), ("to", self.to)] {
            match network {
                Some((IpAddr::V4(ip), 32)) => write!(f, " {word} {ip}")?,
                Some((IpAddr::V6(ip), 128)) => write!(f, " {word} {ip}")?,
                Some((ip, length)) => write!(f, " {word} {ip}/{length}")?,
                None => {}
            }
        }
        if let Some(protocol) = self.protocol {
            write!(f, " ipproto {protocol}")?;
        }
        for (word, ports) in [("sport", &self.source_ports), ("dport", &self.ports)] {
            match ports {
                Some(ports) if ports.start() == ports.end() => {
                    write!(f, " {word} {}", ports.start())?
                }
                Some(ports) => write!(f, " {word} {}-{}", ports.start(), ports.end())?,
                None => {}
            }
        }
        if let Some(users) = &self.users {
            write!(f, " uidrange {}-{}", users.start(), users.end())?;
        }
        Ok(())
    }
}
