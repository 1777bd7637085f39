//! Probes of paths, which the other edge's program returns as a reply.
//!
//! Over layer-3 paths they are 16 bytes of UDP, port 27244 to port 27244 (`bpf/route_in.h`). Over tagged
//! paths ([`TaggedRequest`], `bpf/path_probe.h`) the same 16 bytes follow a shim whose protocol is the
//! shim's own, which no packet of a host can become, and reports on paths follow them.

use std::net::IpAddr;
use std::time::Duration;

use braid_core::Prefix;
use braid_packet::{Packet, Transport};

use crate::shared::{
    ETH_P_SHIM, MAX_PATHS, NO_DATA_AGE, PATH_REPORT_BYTES, PROBE_BYTES, PROBE_MAGIC, PROBE_PORT,
    PROBE_REPLY, PROBE_REQUEST, SHIM_BYTES,
};

/// Bytes of a probe.
pub const LENGTH: usize = PROBE_BYTES as usize;
const UDP_HEADER: usize = 8;

/// Paths that one probe asks about.
pub const MAX_REPORTS: usize = MAX_PATHS as usize;
/// Destination and source of probes of tagged paths. No host has these addresses; the first one is also
/// that of the controller's probes.
const TAGGED_MACS: [u8; 12] = *b"\x02BRAID\x06BRAID";
const VLAN: [u8; 2] = [0x81, 0x00];
const SHIM: usize = SHIM_BYTES as usize;
const REPORT: usize = PATH_REPORT_BYTES as usize;
/// Bytes of a probe of a tagged path: addresses, tag, EtherType, shim, probe and reports.
pub const TAGGED_LENGTH: usize = 12 + 4 + 2 + SHIM + LENGTH + MAX_REPORTS * REPORT;

/// Returns a request. An unpredictable `nonce` prevents forged replies from off the path.
#[must_use]
pub fn request(nonce: u64) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[..4].copy_from_slice(&PROBE_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&(PROBE_REQUEST as u16).to_be_bytes());
    bytes[8..].copy_from_slice(&nonce.to_be_bytes());
    bytes
}

/// A probe of a tagged path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaggedRequest {
    /// Tag of the path.
    pub tag: u16,
    /// Tag of the path by which the reply is to come.
    pub return_tag: u16,
    /// Unpredictable; the second half is not 0.
    pub nonce: u64,
    /// Tags of the paths it asks about; 0: none.
    pub asked: [u16; MAX_REPORTS],
}

impl TaggedRequest {
    /// Returns the frame.
    #[must_use]
    pub fn frame(&self) -> [u8; TAGGED_LENGTH] {
        let mut probe = request(self.nonce);
        probe[6..8].copy_from_slice(&self.return_tag.to_be_bytes());
        let ethertype = (ETH_P_SHIM as u16).to_be_bytes();
        let mut frame = [0; TAGGED_LENGTH];
        let mut rest = frame.as_mut_slice();
        let mut put = |bytes: &[u8]| {
            let (here, behind) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            here.copy_from_slice(bytes);
            rest = behind;
        };
        put(&TAGGED_MACS);
        put(&VLAN);
        put(&self.tag.to_be_bytes());
        put(&ethertype);
        // The shim: no epoch, no lane, the protocol, no number.
        put(&[0, 0]);
        put(&ethertype);
        put(&[0; 4]);
        put(&probe);
        for tag in self.asked {
            put(&tag.to_be_bytes());
            put(&[0; REPORT - 2]);
        }
        frame
    }
}

/// The far edge's report on a path to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathReport {
    /// Its tag; 0: no report.
    pub tag: u16,
    /// Time since data came by it, rounded down to ms; none if that was long ago, or never.
    pub data_age: Option<Duration>,
    /// Second half of the nonce of the last probe that came by it; 0: none came.
    pub nonce: u32,
}

/// The reply to a probe of a tagged path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaggedReply {
    /// Tag of the path by which it came.
    pub tag: u16,
    /// Nonce of the probe.
    pub nonce: u64,
    /// Reports on the paths that the probe asked about.
    pub reports: [PathReport; MAX_REPORTS],
}

impl TaggedReply {
    /// Parses a tagged frame; none if it is something else.
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<TaggedReply> {
        let (_macs, rest) = frame.split_first_chunk::<12>()?;
        let rest = rest.strip_prefix(&VLAN)?;
        let (tag, rest) = rest.split_first_chunk::<2>()?;
        let (shim, rest) = rest.split_at_checked(2 + SHIM)?;
        let ethertype = (ETH_P_SHIM as u16).to_be_bytes();
        if shim[..2] != ethertype || shim[4..6] != ethertype {
            return None;
        }
        let nonce = reply_nonce(rest)?;
        let mut reports = [PathReport::default(); MAX_REPORTS];
        let (told, _) = rest.get(LENGTH..)?.as_chunks::<REPORT>();
        if told.len() < MAX_REPORTS {
            return None;
        }
        for (report, [tag_high, tag_low, age_high, age_low, nonce @ ..]) in
            reports.iter_mut().zip(told)
        {
            let age_ms = u16::from_be_bytes([*age_high, *age_low]);
            *report = PathReport {
                tag: u16::from_be_bytes([*tag_high, *tag_low]),
                data_age: (u32::from(age_ms) != NO_DATA_AGE)
                    .then(|| Duration::from_millis(age_ms.into())),
                nonce: u32::from_be_bytes(*nonce),
            };
        }
        let tag = u16::from_be_bytes(*tag) & 0x0fff;
        Some(TaggedReply {
            tag,
            nonce,
            reports,
        })
    }
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
    reply_nonce(packet.segment().get(UDP_HEADER..)?)
}

fn reply_nonce(bytes: &[u8]) -> Option<u64> {
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
    use proptest::prelude::*;

    use super::*;

    const REQUEST: TaggedRequest = TaggedRequest {
        tag: 77,
        return_tag: 78,
        nonce: 0x0123_4567_89ab_cdef,
        asked: [77, 79, 0, 0],
    };

    /// The reply that tells of no arrival.
    fn reply() -> [u8; TAGGED_LENGTH] {
        let mut frame = REQUEST.frame();
        let kind = 18 + SHIM + 5;
        assert_eq!(frame[kind], PROBE_REQUEST as u8);
        frame[kind] = PROBE_REPLY as u8;
        frame
    }

    #[test]
    fn a_reply_over_a_tagged_path_is_read_and_nothing_else() {
        assert_eq!(TaggedReply::parse(&REQUEST.frame()), None, "a question");
        let mut frame = reply();
        let reports = TAGGED_LENGTH - MAX_REPORTS * REPORT;
        frame[reports + 2..reports + 8].copy_from_slice(&[0, 9, 1, 2, 3, 4]);
        frame[reports + REPORT + 2..reports + REPORT + 4].copy_from_slice(&[255, 255]);
        let read = TaggedReply::parse(&frame).expect("a reply");
        assert_eq!((read.tag, read.nonce), (77, REQUEST.nonce));
        let told = PathReport {
            tag: 77,
            data_age: Some(Duration::from_millis(9)),
            nonce: 0x0102_0304,
        };
        let silent = PathReport {
            tag: 79,
            ..PathReport::default()
        };
        assert_eq!(read.reports[..2], [told, silent]);
        for length in 0..frame.len() {
            assert_eq!(TaggedReply::parse(&frame[..length]), None);
        }
        // A packet with a shim of its own.
        frame[18 + 2..18 + 4].copy_from_slice(&[0x08, 0x00]);
        assert_eq!(TaggedReply::parse(&frame), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_within_their_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = TaggedReply::parse(&bytes);
            let mut frame = reply();
            let end = bytes.len().min(frame.len() - 30);
            frame[30..30 + end].copy_from_slice(&bytes[..end]);
            let _ = TaggedReply::parse(&frame);
        }
    }

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
