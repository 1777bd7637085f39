//! Parses frames as the resequencer receives them: Ethernet, the path's tag, then a TCP segment, or a shim
//! and any packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use braid_multipath::resequence::SegmentKind;
use braid_packet::{Fragment, Packet, Transport};

use crate::shared::{ETH_P_SHIM, SHIM_BYTES};

/// Bytes before the tag: two MAC addresses.
const ADDRESSES: usize = 12;
/// Bytes of the tag with its EtherType.
pub const TAG: usize = 4;
const EVERYTHING_BEFORE_IP: usize = ADDRESSES + TAG + 2;
/// Bytes of the shim, after its EtherType.
const SHIM: usize = SHIM_BYTES as usize;
const VLAN: [u8; 2] = [0x81, 0x00];

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;

/// A frame without tag and shim, as hosts send it.
#[derive(Debug)]
pub struct Frame(pub Vec<u8>);

/// One direction of a TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowKey {
    source: IpAddr,
    dest: IpAddr,
    ports: (u16, u16),
}

/// A stream with its own sequence numbers: one direction of a TCP connection, or a lane of shims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamKey {
    /// Ordered by TCP sequence numbers.
    Flow(FlowKey),
    /// Ordered by shim numbers.
    Lane {
        /// Epoch of the sending edge.
        epoch: u8,
        /// One of 256 lanes, by hash of the flow.
        lane: u8,
    },
}

/// Bytes of a [`StreamKey`] in a frame.
pub const KEY_BYTES: usize = 40;
/// Their first byte for a lane of shims; for connections it is the version of IP.
const LANE_KEY: u8 = 1;

impl StreamKey {
    /// Returns the key as edges tell it to each other: a byte that names the kind, three of zero, two
    /// addresses of 16 bytes, which IPv4 fills with zeros, and the ports; of a lane, epoch and lane after
    /// the first four.
    #[must_use]
    pub fn to_bytes(self) -> [u8; KEY_BYTES] {
        let mut bytes = [0; KEY_BYTES];
        match self {
            StreamKey::Lane { epoch, lane } => {
                bytes[0] = LANE_KEY;
                bytes[4..6].copy_from_slice(&[epoch, lane]);
            }
            StreamKey::Flow(flow) => {
                for (place, address) in [(4, flow.source), (20, flow.dest)] {
                    match address {
                        IpAddr::V4(v4) => bytes[place..place + 4].copy_from_slice(&v4.octets()),
                        IpAddr::V6(v6) => bytes[place..place + 16].copy_from_slice(&v6.octets()),
                    }
                }
                bytes[0] = if flow.source.is_ipv4() { 4 } else { 6 };
                bytes[36..38].copy_from_slice(&flow.ports.0.to_be_bytes());
                bytes[38..40].copy_from_slice(&flow.ports.1.to_be_bytes());
            }
        }
        bytes
    }

    /// Reads a key; none if it is of no kind that is known.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; KEY_BYTES]) -> Option<StreamKey> {
        let [kind, _, _, _, rest @ ..] = bytes;
        let (source, rest) = rest.split_first_chunk::<16>()?;
        let (dest, rest) = rest.split_first_chunk::<16>()?;
        let address = |bytes: &[u8; 16]| match kind {
            4 => {
                let [a, b, c, d, ..] = *bytes;
                Some(IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
            }
            6 => Some(IpAddr::V6(Ipv6Addr::from(*bytes))),
            _ => None,
        };
        if *kind == LANE_KEY {
            let [epoch, lane, ..] = *source;
            return Some(StreamKey::Lane { epoch, lane });
        }
        let [a, b, c, d] = *rest.first_chunk::<4>()?;
        Some(StreamKey::Flow(FlowKey {
            source: address(source)?,
            dest: address(dest)?,
            ports: (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])),
        }))
    }
}

/// Returns the tag of a frame; none if it has none.
#[must_use]
pub fn tag_of(bytes: &[u8]) -> Option<u16> {
    let rest = bytes.get(ADDRESSES..)?.strip_prefix(&VLAN)?;
    Some(u16::from_be_bytes(*rest.first_chunk()?) & 0x0fff)
}

/// Writes another tag into a tagged frame.
pub fn set_tag(bytes: &mut [u8], tag: u16) {
    if let Some(place) = bytes.get_mut(ADDRESSES + 2..ADDRESSES + TAG) {
        place.copy_from_slice(&tag.to_be_bytes());
    }
}

/// A parsed frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParsedFrame {
    /// Tag of its path.
    pub tag: u16,
    /// Offset at which the frame begins, without tag and shim.
    pub start: usize,
    /// Span in its stream; none if it is neither a whole TCP segment nor has a shim.
    pub segment: Option<SequenceSpan>,
}

/// A span of a stream: key, kind, first sequence number, length.
pub type SequenceSpan = (StreamKey, SegmentKind, u32, u32);

/// Parses a tagged frame and moves its MAC addresses over the tag, and over the shim if there is one.
/// Returns none if there is no tag.
pub fn strip_tag(bytes: &mut [u8]) -> Option<ParsedFrame> {
    if bytes.len() < EVERYTHING_BEFORE_IP {
        return None;
    }
    let tag = tag_of(bytes)?;
    let (start, segment) = match shim(bytes) {
        Some((was, segment)) => {
            let start = TAG + SHIM;
            let protocol = start + ADDRESSES;
            bytes[protocol..protocol + 2].copy_from_slice(&was);
            (start, Some(segment))
        }
        None => (TAG, segment(&bytes[EVERYTHING_BEFORE_IP..])),
    };
    bytes.copy_within(..ADDRESSES, start);
    Some(ParsedFrame {
        tag,
        start,
        segment,
    })
}

/// Returns the original EtherType and the span of a frame with a shim (`struct shim`).
fn shim(bytes: &[u8]) -> Option<([u8; 2], SequenceSpan)> {
    let kind = &bytes[EVERYTHING_BEFORE_IP - 2..EVERYTHING_BEFORE_IP];
    if kind != (ETH_P_SHIM as u16).to_be_bytes() {
        return None;
    }
    let words = bytes[EVERYTHING_BEFORE_IP..].first_chunk::<SHIM>()?;
    let [epoch, lane, high, low, number @ ..] = *words;
    let key = StreamKey::Lane { epoch, lane };
    let number = u32::from_be_bytes(number);
    Some(([high, low], (key, SegmentKind::Data, number, 1)))
}

/// Returns the IP packet of a tagged frame.
pub fn packet_after_tag(frame: &[u8]) -> &[u8] {
    frame.get(EVERYTHING_BEFORE_IP..).unwrap_or_default()
}

fn segment(packet: &[u8]) -> Option<SequenceSpan> {
    let packet = Packet::parse(packet).ok()?;
    if packet.ip.fragment != Fragment::Whole {
        return None;
    }
    let Transport::Tcp {
        source,
        dest,
        sequence,
        flags,
        header,
        ..
    } = packet.transport
    else {
        return None;
    };
    let key = FlowKey {
        source: packet.ip.source,
        dest: packet.ip.dest,
        ports: (source, dest),
    };
    let kind = match flags {
        flags if flags & RST != 0 => SegmentKind::Reset,
        flags if flags & SYN != 0 => SegmentKind::Open,
        _ => SegmentKind::Data,
    };
    let bytes = u32::try_from(packet.segment().len() - header).ok()?;
    let length = bytes + u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
    Some((StreamKey::Flow(key), kind, sequence, length))
}

#[cfg(test)]
mod tests {
    use braid_packet::build;
    use proptest::prelude::*;

    use super::*;

    /// A frame as it arrives by a path, and as hosts send it.
    fn frames(tag: u16, shim: Option<[u8; SHIM]>, packet: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let macs = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        let mut came = [macs.as_slice(), &VLAN, &tag.to_be_bytes()].concat();
        if let Some(shim) = shim {
            came.extend((ETH_P_SHIM as u16).to_be_bytes());
            came.extend(shim);
        } else {
            came.extend([0x08, 0x00]);
        }
        came.extend(packet);
        (came, [macs.as_slice(), &[0x08, 0x00], packet].concat())
    }

    fn packet(bytes: &[u8]) -> Vec<u8> {
        let [near, far] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().expect("an address"));
        build::udp((near, 7), (far, 443), bytes)
    }

    #[test]
    fn a_number_of_ours_is_read_and_taken_off() {
        let shim = [9, 200, 0x08, 0x00, 0, 1, 2, 3];
        let (mut came, known) = frames(77, Some(shim), &packet(b"quic"));
        let read = strip_tag(&mut came).expect("a tag");
        let key = StreamKey::Lane {
            epoch: 9,
            lane: 200,
        };
        assert_eq!(
            (read.tag, read.segment),
            (77, Some((key, SegmentKind::Data, 0x0001_0203, 1)))
        );
        assert_eq!(&came[read.start..], known);
    }

    #[test]
    fn what_has_no_numbers_loses_its_tag_alone() {
        let (mut came, known) = frames(77, None, &packet(b"quic"));
        let read = strip_tag(&mut came).expect("a tag");
        assert_eq!(read.segment, None);
        assert_eq!(&came[read.start..], known);
    }

    #[test]
    fn a_stream_is_told_in_bytes_and_of_no_other_kind() {
        let flow = |source: &str, dest: &str| {
            StreamKey::Flow(FlowKey {
                source: source.parse().expect("an address"),
                dest: dest.parse().expect("an address"),
                ports: (0x0102, 443),
            })
        };
        let lane = StreamKey::Lane {
            epoch: 9,
            lane: 200,
        };
        for key in [
            flow("10.0.0.1", "10.0.0.2"),
            flow("fd77::1", "fd77::2"),
            lane,
        ] {
            assert_eq!(StreamKey::from_bytes(&key.to_bytes()), Some(key));
        }
        let mut other = lane.to_bytes();
        other[0] = 2;
        assert_eq!(StreamKey::from_bytes(&other), None);
    }

    #[test]
    fn a_tag_is_read_and_replaced_and_nothing_else() {
        let (mut came, _) = frames(77, None, &packet(b"quic"));
        assert_eq!(tag_of(&came), Some(77));
        set_tag(&mut came, 79);
        assert_eq!(came, frames(79, None, &packet(b"quic")).0);
        for length in 0..16 {
            assert_eq!(tag_of(&came[..length]), None);
        }
        came[12] = 8;
        assert_eq!(tag_of(&came), None);
    }

    #[test]
    fn a_number_that_was_cut_short_is_none() {
        let shim = [9, 200, 0x08, 0x00, 0, 1, 2, 3];
        let (came, _) = frames(77, Some(shim), b"");
        for length in 0..came.len() {
            let mut cut = came[..length].to_vec();
            if let Some(read) = strip_tag(&mut cut) {
                assert_eq!((read.start, read.segment), (TAG, None), "{length}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_within_their_bounds(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), tagged: bool) {
            if tagged && bytes.len() > 14 {
                bytes[12..14].copy_from_slice(&VLAN);
            }
            if let Some(read) = strip_tag(&mut bytes) {
                prop_assert!(read.start <= bytes.len());
            }
        }
    }
}
