//! Probes of paths, which the other edge's program returns as a reply.
//!
//! Over layer-3 paths they are 16 bytes of UDP, port 27244 to port 27244 (`bpf/route_in.h`). Over tagged
//! paths ([`TaggedRequest`], `bpf/path_probe.h`) the same 16 bytes follow a shim whose protocol is the
//! shim's own, which no packet of a host can become. Reports on paths, an [`Offer`] of copies and packet counts
//! follow them. [`MissingRequest`], which asks for copies, is such a frame as well, without counts.

use std::iter;
use std::net::IpAddr;
use std::time::Duration;

use braid_core::Prefix;
use braid_multipath::resequence::Missing;
use braid_packet::{Packet, Transport};

use crate::frame::{KEY_BYTES, StreamKey};
use crate::shared::{
    ETH_P_SHIM, MAX_PATHS, NO_DATA_AGE, OFFER_BYTES, PATH_COUNT_BYTES, PATH_REPORT_BYTES,
    PROBE_BYTES, PROBE_MAGIC, PROBE_MISSING, PROBE_PORT, PROBE_REPLY, PROBE_REQUEST, SHIM_BYTES,
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
const COUNT: usize = PATH_COUNT_BYTES as usize;
/// Bytes that all frames of tagged paths have: addresses, tag, EtherType, shim, probe, reports and offer.
pub const TAGGED_LENGTH: usize =
    12 + 4 + 2 + SHIM + LENGTH + MAX_REPORTS * REPORT + OFFER_BYTES as usize;
/// Bytes of a [`TaggedRequest`], and of its reply.
pub const TAGGED_REQUEST_LENGTH: usize = TAGGED_LENGTH + MAX_REPORTS * COUNT;

/// Returns a request. An unpredictable `nonce` prevents forged replies from off the path.
#[must_use]
pub fn request(nonce: u64) -> [u8; LENGTH] {
    of_kind(PROBE_REQUEST, nonce)
}

fn of_kind(kind: u32, nonce: u64) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[..4].copy_from_slice(&PROBE_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&(kind as u16).to_be_bytes());
    bytes[8..].copy_from_slice(&nonce.to_be_bytes());
    bytes
}

/// Returns a frame of a tagged path with such bytes, and the tags of the paths that it asks about.
fn tagged(tag: u16, probe: &[u8; LENGTH], asked: &[u16; MAX_REPORTS]) -> [u8; TAGGED_LENGTH] {
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
    put(&tag.to_be_bytes());
    put(&ethertype);
    // The shim: no epoch, no lane, the protocol, no number.
    put(&[0, 0]);
    put(&ethertype);
    put(&[0; 4]);
    put(probe);
    for tag in asked {
        put(&tag.to_be_bytes());
        put(&[0; REPORT - 2]);
    }
    frame
}

/// Splits a frame of a tagged path into its tag, its 16 bytes, and what follows; none if it is something
/// else.
fn split_tagged(frame: &[u8]) -> Option<(u16, &[u8; LENGTH], &[u8])> {
    let (_macs, rest) = frame.split_first_chunk::<12>()?;
    let rest = rest.strip_prefix(&VLAN)?;
    let (tag, rest) = rest.split_first_chunk::<2>()?;
    let (shim, rest) = rest.split_at_checked(2 + SHIM)?;
    let ethertype = (ETH_P_SHIM as u16).to_be_bytes();
    if shim[..2] != ethertype || shim[4..6] != ethertype {
        return None;
    }
    let (probe, rest) = rest.split_first_chunk::<LENGTH>()?;
    Some((u16::from_be_bytes(*tag) & 0x0fff, probe, rest))
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
    pub fn frame(&self) -> [u8; TAGGED_REQUEST_LENGTH] {
        let mut probe = request(self.nonce);
        probe[6..8].copy_from_slice(&self.return_tag.to_be_bytes());
        let mut frame = [0; TAGGED_REQUEST_LENGTH];
        frame[..TAGGED_LENGTH].copy_from_slice(&tagged(self.tag, &probe, &self.asked));
        frame
    }
}

/// Part of an edge's replies while it keeps copies of packets to the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Time that a copy takes from the request on.
    pub wait: Duration,
    /// Proves that whoever asks has seen this. Unpredictable.
    pub token: u64,
}

impl Offer {
    /// Returns the bytes in a reply (`struct offer`).
    #[must_use]
    pub fn to_bytes(self) -> [u8; OFFER_BYTES as usize] {
        let wait_us = u32::try_from(self.wait.as_micros()).unwrap_or(u32::MAX);
        let mut bytes = [0; OFFER_BYTES as usize];
        bytes[..4].copy_from_slice(&wait_us.to_be_bytes());
        bytes[4..].copy_from_slice(&self.token.to_be_bytes());
        bytes
    }

    /// Reads them; none if no copies are kept.
    fn from_bytes(bytes: [u8; OFFER_BYTES as usize]) -> Option<Offer> {
        let [a, b, c, d, token @ ..] = bytes;
        let wait_us = u32::from_be_bytes([a, b, c, d]);
        (wait_us > 0).then_some(Offer {
            wait: Duration::from_micros(wait_us.into()),
            token: u64::from_be_bytes(token),
        })
    }
}

/// Asks another edge for copies of what was lost. Behind what each frame of a tagged path has, there are
/// the stream, the first number, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingRequest {
    /// That of the other edge's [`Offer`].
    pub token: u64,
    /// Numbers that are missing.
    pub missing: Missing<StreamKey>,
}

impl MissingRequest {
    /// Returns the frame for a path.
    #[must_use]
    pub fn frame(&self, tag: u16) -> Vec<u8> {
        let probe = of_kind(PROBE_MISSING, self.token);
        let mut frame = tagged(tag, &probe, &[0; MAX_REPORTS]).to_vec();
        frame.extend(self.missing.key.to_bytes());
        frame.extend(self.missing.seq.to_be_bytes());
        frame.extend(self.missing.length.to_be_bytes());
        frame
    }

    /// Parses a tagged frame; none if it is something else.
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<MissingRequest> {
        let (_, probe, _) = split_tagged(frame)?;
        let token = nonce_of(probe, PROBE_MISSING)?;
        let rest = frame.get(TAGGED_LENGTH..)?;
        let (key, rest) = rest.split_first_chunk::<KEY_BYTES>()?;
        let (seq, rest) = rest.split_first_chunk::<4>()?;
        let missing = Missing {
            key: StreamKey::from_bytes(key)?,
            seq: u32::from_be_bytes(*seq),
            length: u32::from_be_bytes(*rest.first_chunk()?),
        };
        Some(MissingRequest { token, missing })
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
    /// Packets that had come before that probe, modulo 2^32; none if that is not told.
    pub packets: Option<u32>,
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
    /// Offer of copies; none if the far edge keeps none.
    pub offer: Option<Offer>,
}

impl TaggedReply {
    /// Parses a tagged frame; none if it is something else.
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<TaggedReply> {
        let (tag, probe, rest) = split_tagged(frame)?;
        let nonce = nonce_of(probe, PROBE_REPLY)?;
        let mut reports = [PathReport::default(); MAX_REPORTS];
        let (told, rest) = rest.split_at_checked(MAX_REPORTS * REPORT)?;
        let (told, _) = told.as_chunks::<REPORT>();
        let (offer, counts) = rest.split_first_chunk()?;
        // One more than came. An edge of an earlier version leaves them as they are, 0, or has no room for them.
        let counts = counts.as_chunks::<COUNT>().0.iter().copied();
        let counts = counts.map(u32::from_be_bytes).chain(iter::repeat(0));
        for ((report, [tag_high, tag_low, age_high, age_low, nonce @ ..]), packets) in
            reports.iter_mut().zip(told).zip(counts)
        {
            let age_ms = u16::from_be_bytes([*age_high, *age_low]);
            *report = PathReport {
                tag: u16::from_be_bytes([*tag_high, *tag_low]),
                data_age: (u32::from(age_ms) != NO_DATA_AGE)
                    .then(|| Duration::from_millis(age_ms.into())),
                nonce: u32::from_be_bytes(*nonce),
                packets: packets.checked_sub(1),
            };
        }
        Some(TaggedReply {
            tag,
            nonce,
            reports,
            offer: Offer::from_bytes(*offer),
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
    nonce_of(packet.segment().get(UDP_HEADER..)?, PROBE_REPLY)
}

/// Returns the nonce of a probe; none if it is of another kind.
fn nonce_of(bytes: &[u8], wanted: u32) -> Option<u64> {
    let (magic, rest) = bytes.split_first_chunk::<4>()?;
    let (kind, rest) = rest.split_first_chunk::<2>()?;
    let nonce = rest.get(2..)?.first_chunk::<8>()?;
    let ours =
        *magic == PROBE_MAGIC.to_be_bytes() && u32::from(u16::from_be_bytes(*kind)) == wanted;
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
    fn reply() -> [u8; TAGGED_REQUEST_LENGTH] {
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
        let offer_at = TAGGED_LENGTH - OFFER_BYTES as usize;
        let reports = offer_at - MAX_REPORTS * REPORT;
        frame[reports + 2..reports + 8].copy_from_slice(&[0, 9, 1, 2, 3, 4]);
        frame[reports + REPORT + 2..reports + REPORT + 4].copy_from_slice(&[255, 255]);
        let read = TaggedReply::parse(&frame).expect("a reply");
        assert_eq!((read.tag, read.nonce), (77, REQUEST.nonce));
        let told = PathReport {
            tag: 77,
            data_age: Some(Duration::from_millis(9)),
            nonce: 0x0102_0304,
            packets: None,
        };
        let silent = PathReport {
            tag: 79,
            ..PathReport::default()
        };
        assert_eq!(read.reports[..2], [told, silent]);
        assert_eq!(read.offer, None);
        let offer = Offer {
            wait: Duration::from_millis(60),
            token: u64::MAX - 1,
        };
        frame[offer_at..TAGGED_LENGTH].copy_from_slice(&offer.to_bytes());
        let read = TaggedReply::parse(&frame).expect("a reply");
        assert_eq!(read.offer, Some(offer));
        frame[TAGGED_LENGTH + 3] = 7;
        frame[TAGGED_LENGTH + COUNT] = 1;
        let counted = TaggedReply::parse(&frame).expect("a reply");
        let counts = counted.reports.map(|report| report.packets);
        assert_eq!(counts, [Some(6), Some((1 << 24) - 1), None, None]);
        for length in 0..TAGGED_LENGTH {
            assert_eq!(TaggedReply::parse(&frame[..length]), None);
        }
        // Of an edge that does not count, whose frames end there.
        assert_eq!(TaggedReply::parse(&frame[..TAGGED_LENGTH]), Some(read));
        // A packet with a shim of its own.
        frame[18 + 2..18 + 4].copy_from_slice(&[0x08, 0x00]);
        assert_eq!(TaggedReply::parse(&frame), None);
    }

    #[test]
    fn a_request_for_copies_is_read_and_nothing_else() {
        let request = MissingRequest {
            token: 0x0123_4567_89ab_cdef,
            missing: Missing {
                key: StreamKey::Lane {
                    epoch: 9,
                    lane: 200,
                },
                seq: u32::MAX,
                length: 3,
            },
        };
        let frame = request.frame(78);
        assert_eq!(MissingRequest::parse(&frame), Some(request));
        assert_eq!(TaggedReply::parse(&frame), None);
        for length in 0..frame.len() {
            assert_eq!(MissingRequest::parse(&frame[..length]), None);
        }
        assert_eq!(
            MissingRequest::parse(&[&reply()[..TAGGED_LENGTH], &[4; 48]].concat()),
            None
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_within_their_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = TaggedReply::parse(&bytes);
            let mut frame = reply();
            let end = bytes.len().min(frame.len() - 30);
            frame[30..30 + end].copy_from_slice(&bytes[..end]);
            let _ = TaggedReply::parse(&frame);
            frame[18 + SHIM + 5] = PROBE_MISSING as u8;
            let _ = MissingRequest::parse(&[&frame[..TAGGED_LENGTH], &bytes].concat());
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
