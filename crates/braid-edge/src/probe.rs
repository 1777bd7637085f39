//! Probes of layer-3 paths: 16 bytes over UDP, port 27244 to port 27244, which the other edge's program
//! (`bpf/route_in.h`) returns as a reply.

use std::net::IpAddr;

use braid_core::Prefix;
use braid_packet::{Packet, Transport};

use crate::shared::{PROBE_MAGIC, PROBE_PORT, PROBE_REPLY, PROBE_REQUEST};

/// Bytes of a probe.
pub const LENGTH: usize = 16;
const UDP_HEADER: usize = 8;

/// Returns a request. An unpredictable `nonce` prevents forged replies from off the path.
#[must_use]
pub fn request(nonce: u64) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[..4].copy_from_slice(&PROBE_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&(PROBE_REQUEST as u16).to_be_bytes());
    bytes[8..].copy_from_slice(&nonce.to_be_bytes());
    bytes
}

/// Returns the nonce of a reply in an IP packet; none if it is something else.
#[must_use]
pub fn parse_reply(packet: &[u8]) -> Option<u64> {
    let packet = Packet::parse(packet).ok()?;
    let ports = (PROBE_PORT as u16, PROBE_PORT as u16);
    match packet.transport {
        Transport::Udp { source, dest } if (source, dest) == ports => {}
        _ => return None,
    }
    let bytes = packet.segment().get(UDP_HEADER..)?;
    let (magic, rest) = bytes.split_first_chunk::<4>()?;
    let (kind, rest) = rest.split_first_chunk::<2>()?;
    let nonce = rest.get(2..)?.first_chunk::<8>()?;
    let ours =
        *magic == PROBE_MAGIC.to_be_bytes() && u32::from(u16::from_be_bytes(*kind)) == PROBE_REPLY;
    ours.then(|| u64::from_be_bytes(*nonce))
}

/// Returns the address of a path's prefix that probes use: the first host, or the only address.
#[must_use]
pub fn probe_address(prefix: Prefix) -> IpAddr {
    match prefix.address() {
        IpAddr::V4(v4) if prefix.length() <= 30 => IpAddr::V4((u32::from(v4) + 1).into()),
        IpAddr::V6(v6) if prefix.length() <= 126 => IpAddr::V6((u128::from(v6) + 1).into()),
        only => only,
    }
}

#[cfg(test)]
mod tests {
    use braid_packet::build;

    use super::*;

    #[test]
    fn an_answer_is_known_and_nothing_else() {
        let ends = |port: u16| {
            let [near, far] = ["192.0.2.1", "198.51.100.1"].map(|text| text.parse().expect("one"));
            ((near, port), (far, port))
        };
        let port = PROBE_PORT as u16;
        let (from, to) = ends(port);
        let mut said = request(0x0123_4567_89ab_cdef);
        assert_eq!(
            parse_reply(&build::udp(from, to, &said)),
            None,
            "a question"
        );
        said[5] = PROBE_REPLY as u8;
        let packet = build::udp(from, to, &said);
        assert_eq!(parse_reply(&packet), Some(0x0123_4567_89ab_cdef));
        let (from, to) = ends(53);
        assert_eq!(
            parse_reply(&build::udp(from, to, &said)),
            None,
            "another port"
        );
        for length in 0..packet.len() {
            assert_eq!(parse_reply(&packet[..length]), None);
        }
    }

    #[test]
    fn probes_go_to_the_first_host() {
        for (prefix, length, first) in [
            ("192.0.2.0", 24, "192.0.2.1"),
            ("192.0.2.7", 32, "192.0.2.7"),
            ("2001:db8::", 64, "2001:db8::1"),
            ("2001:db8::9", 128, "2001:db8::9"),
        ] {
            let prefix = Prefix::new(prefix.parse().expect("an address"), length);
            assert_eq!(probe_address(prefix.expect("a prefix")).to_string(), first);
        }
    }
}
