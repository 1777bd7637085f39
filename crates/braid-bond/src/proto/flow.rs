//! The flow of an inner packet, and its default treatment class.

use std::net::IpAddr;

use braid_core::ShortHash;
use braid_multipath::schedule::Class;
use braid_packet::{Fragment, Ip, protocol};

/// Expedited Forwarding (RFC 3246): voice.
const DSCP_EF: u8 = 46;

/// UDP port of DNS: one small query, one small reply.
const DNS_PORT: u16 = 53;

/// QUIC: it detects loss by packet order, as TCP does (RFC 9002 §6.1.1), and its small packets
/// acknowledge large ones.
const QUIC_PORT: u16 = 443;

/// A UDP packet up to this size, headers included, belongs to a call, a game or a query: voice of
/// 64 kbit/s every 20 ms takes 200 bytes; bulk traffic has larger packets.
const MAX_SMALL_PACKET_BYTES: usize = 320;

/// Header fields of an inner packet that identify its flow and its class. They are parsed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowInfo {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub dest: IpAddr,
    /// IANA number of the transport protocol.
    pub protocol: u8,
    /// Differentiated services code point, 0 to 63.
    pub dscp: u8,
    /// Source and destination ports of TCP and UDP; none for fragments.
    pub ports: Option<[u16; 2]>,
    /// Length of the packet, bytes.
    length: usize,
}

impl FlowInfo {
    /// The flow with these ends, without packets; ports as in [`FlowInfo::ports`].
    #[must_use]
    pub fn between(
        source: IpAddr,
        dest: IpAddr,
        protocol: u8,
        ports: Option<[u16; 2]>,
    ) -> FlowInfo {
        FlowInfo {
            source,
            dest,
            protocol,
            dscp: 0,
            ports,
            length: 0,
        }
    }

    /// Parses a packet; none if it is not an IP packet, or truncated.
    #[must_use]
    pub fn of(packet: &[u8]) -> Option<FlowInfo> {
        let ip = Ip::parse(packet).ok()?;
        let traffic_class = match ip.source.is_ipv4() {
            true => packet[1],
            false => packet[0] << 4 | packet[1] >> 4,
        };
        let has_ports =
            matches!(ip.protocol, protocol::TCP | protocol::UDP) && ip.fragment == Fragment::Whole;
        let transport = packet.get(ip.header..).filter(|_| has_ports);
        let ports = transport.and_then(<[u8]>::first_chunk);
        Some(FlowInfo {
            source: ip.source,
            dest: ip.dest,
            protocol: ip.protocol,
            dscp: traffic_class >> 2,
            ports: ports.map(|[a, b, c, d]| [[*a, *b], [*c, *d]].map(u16::from_be_bytes)),
            length: packet.len(),
        })
    }

    /// Returns true for a packet to or from QUIC's port.
    #[must_use]
    pub fn has_quic_port(&self) -> bool {
        self.has_udp_port(QUIC_PORT)
    }

    /// Returns true for a UDP packet to or from this port.
    fn has_udp_port(&self, port: u16) -> bool {
        self.udp_ports().is_some_and(|ports| ports.contains(&port))
    }

    fn udp_ports(&self) -> Option<[u16; 2]> {
        self.ports.filter(|_| self.protocol == protocol::UDP)
    }

    /// A hash of the flow's addresses, protocol and ports. Fragments hash without ports, so that
    /// those of a packet stay together. Flows of one hash share a queue, and their acknowledgements take turns in the filter: who finds
    /// collisions can slow down flows of his own bond, and no others.
    #[must_use]
    pub fn hash(&self) -> u32 {
        let mut hash = ShortHash::default();
        for address in [self.source, self.dest] {
            match address {
                IpAddr::V4(address) => hash.write(&address.octets()),
                IpAddr::V6(address) => hash.write(&address.octets()),
            }
        }
        hash.write(&[self.protocol]);
        for port in self.ports.into_iter().flatten() {
            hash.write(&port.to_be_bytes());
        }
        hash.finish()
    }

    /// The class where no rule applies: small packets that wait for a reply, and voice by its DSCP,
    /// are not held for order.
    #[must_use]
    pub fn class(&self) -> Class {
        let is_dns = self.has_udp_port(DNS_PORT);
        let is_small = self.udp_ports().is_some()
            && self.length <= MAX_SMALL_PACKET_BYTES
            && !self.has_quic_port();
        let is_icmp = matches!(self.protocol, protocol::ICMP | protocol::ICMPV6);
        if self.dscp == DSCP_EF || is_dns || is_small || is_icmp {
            Class::Unordered
        } else {
            Class::Ordered
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use braid_packet::build;

    fn end(address: &str, port: u16) -> build::End {
        (address.parse().expect("an address"), port)
    }

    fn hash(packet: &[u8]) -> u32 {
        FlowInfo::of(packet).map_or(0, |seen| seen.hash())
    }

    fn class(packet: &[u8]) -> Class {
        FlowInfo::of(packet).map_or(Class::Ordered, |seen| seen.class())
    }

    #[test]
    fn flows_are_told_apart_and_their_packets_kept_together() {
        let dest = end("192.0.2.1", 443);
        let flows: BTreeSet<_> = (0..1000)
            .map(|port| hash(&build::tcp(end("10.0.0.1", port), dest, 0, b"")) % 256)
            .collect();
        assert!(flows.len() > 240, "{} lanes of 256", flows.len());
        let (a, b) = (end("10.0.0.1", 1), end("2001:db8::1", 1));
        let v6 = end("2001:db8::2", 443);
        assert_eq!(
            hash(&build::udp(a, dest, b"a")),
            hash(&build::udp(a, dest, b"other"))
        );
        assert_eq!(
            hash(&build::udp(b, v6, b"a")),
            hash(&build::udp(b, v6, b"other"))
        );
        assert_eq!((hash(&[]), hash(&[0x45; 3])), (0, 0));
    }

    #[test]
    fn questions_and_voice_do_not_wait() {
        let (a, b) = (end("10.0.0.1", 1000), end("192.0.2.1", 53));
        assert_eq!(class(&build::udp(a, b, b"?")), Class::Unordered);
        assert_eq!(class(&build::udp(b, a, b"!")), Class::Unordered);
        assert_eq!(class(&build::tcp(a, b, 0, b"")), Class::Ordered);
        let ping = build::icmp(a.0, b.0, 8, 0, 1, b"");
        assert_eq!(class(&ping), Class::Unordered);
        let call = |port, size| build::udp(a, end("192.0.2.1", port), &vec![0; size]);
        assert_eq!(
            class(&call(4000, 172)),
            Class::Unordered,
            "voice of 64 kbit/s"
        );
        assert_eq!(class(&call(443, 172)), Class::Ordered, "QUIC_PORT");
        let mut video = call(4000, 1200);
        assert_eq!(class(&video), Class::Ordered);
        video[1] = 46 << 2;
        assert_eq!(class(&video), Class::Unordered, "marked");
        assert_eq!(class(&[0x60, 0xb8, 0]), Class::Ordered);
    }
}
