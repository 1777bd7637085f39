//! Segments of inner TCP flows.

use braid_multipath::ack_filter;
use braid_multipath::spurious::DataSegment;
use braid_multipath::window_limit::Syn;
use braid_packet::build::flags::{ACK, ECE, FIN, PSH, RST, SYN};
use braid_packet::{Fragment, Packet, Transport, option_kind, protocol, tcp_options};

use crate::proto::flow::FlowInfo;
use crate::proto::header_compression::TIMESTAMPS;

/// Longest packet that carries no data: a header of IPv6, and one of TCP with all of its options.
pub(super) const MAX_EMPTY_PACKET: usize = 100;

const TCP_HEADER: usize = 20;
/// With other options it tells more: SACK, or those of MPTCP.
const WITH_TIMESTAMPS: usize = TCP_HEADER + 12;
/// Offset of the receive window in the header.
const WINDOW: usize = 14;
const CHECKSUM: usize = 16;

/// A segment of TCP that is not a fragment: the flow of one is not that of its packet.
pub(super) struct TcpSegment<'a> {
    packet: Packet<'a>,
    ports: [u16; 2],
    sequence: u32,
    pub acknowledgement: u32,
    pub flags: u8,
    header: usize,
    is_short: bool,
}

impl<'a> TcpSegment<'a> {
    pub fn parse(bytes: &'a [u8]) -> Option<TcpSegment<'a>> {
        let packet = Packet::parse(bytes).ok()?;
        let Transport::Tcp {
            source,
            dest,
            sequence,
            acknowledgement,
            flags,
            header,
        } = packet.transport
        else {
            return None;
        };
        (packet.ip.fragment == Fragment::Whole).then_some(TcpSegment {
            packet,
            ports: [source, dest],
            sequence,
            acknowledgement,
            flags,
            header,
            is_short: bytes.len() <= MAX_EMPTY_PACKET,
        })
    }

    /// Parses a packet that may be without data; none if it is longer than that.
    pub fn parse_short(bytes: &'a [u8]) -> Option<TcpSegment<'a>> {
        (bytes.len() <= MAX_EMPTY_PACKET)
            .then(|| TcpSegment::parse(bytes))
            .flatten()
    }

    /// Returns the hash of the flow that it acknowledges, which goes the other way.
    pub fn acknowledged_flow(&self) -> u32 {
        let [source, dest] = self.ports;
        let (ip, ports) = (&self.packet.ip, Some([dest, source]));
        FlowInfo::between(ip.dest, ip.source, protocol::TCP, ports).hash()
    }

    /// Returns its kind as an acknowledgement.
    pub fn kind(&self) -> ack_filter::Segment {
        let segment = self.packet.segment();
        if !self.is_short {
            ack_filter::Segment::Other
        } else if self.flags & SYN != 0 {
            ack_filter::Segment::Handshake
        } else if self.flags & (FIN | RST | ECE) != 0 {
            ack_filter::Segment::Signal
        } else if segment.len() > self.header {
            ack_filter::Segment::Other
        } else if self.has_timestamps_at_most() {
            ack_filter::Segment::Ack(self.acknowledgement)
        } else {
            ack_filter::Segment::Signal
        }
    }

    /// Returns its data; none if it has none.
    pub fn data(&self) -> Option<DataSegment> {
        let (start, end) = (self.sequence, self.end());
        (start != end).then_some(DataSegment {
            start,
            end,
            acknowledgement: self.acknowledgement,
            window: self.window(),
            is_plain: self.flags & !(ACK | PSH) == 0 && self.has_timestamps_at_most(),
        })
    }

    /// Returns true if it has no options, or timestamps alone, as Linux writes them.
    fn has_timestamps_at_most(&self) -> bool {
        let options = || &self.packet.segment()[TCP_HEADER..];
        self.header == TCP_HEADER
            || (self.header == WITH_TIMESTAMPS && options().starts_with(&TIMESTAMPS))
    }

    /// Returns the number after its last byte.
    pub fn end(&self) -> u32 {
        let data = self.packet.segment().len().saturating_sub(self.header);
        self.sequence.wrapping_add(data as u32)
    }

    /// Returns its timestamp and the one that it repeats.
    pub fn timestamps(&self) -> Option<[u32; 2]> {
        let (_, _, value) = (self.options()).find(|(kind, ..)| *kind == option_kind::TIMESTAMPS)?;
        let [own, repeated] = [value.get(..4)?, value.get(4..8)?];
        let number = |bytes: &[u8]| bytes.try_into().map(u32::from_be_bytes).ok();
        Some([number(own)?, number(repeated)?])
    }

    pub fn syn(&self) -> Option<Syn> {
        if self.flags & (SYN | RST) != SYN {
            return None;
        }
        let mut syn = Syn {
            answers: self.flags & ACK != 0,
            window_scale: None,
            sack: false,
            opaque: false,
        };
        for (kind, _, value) in self.options() {
            match kind {
                option_kind::WINDOW_SCALE => syn.window_scale = value.first().copied(),
                option_kind::SACK_PERMITTED => syn.sack = true,
                option_kind::MD5 | option_kind::AUTHENTICATION | option_kind::MPTCP => {
                    syn.opaque = true;
                }
                _ => {}
            }
        }
        Some(syn)
    }

    /// Returns the receive window, as it stands in the header.
    pub fn window(&self) -> u16 {
        let segment = self.packet.segment();
        u16::from_be_bytes([segment[WINDOW], segment[WINDOW + 1]])
    }

    /// Returns the offsets of the window and of the checksum in the packet.
    pub fn window_and_checksum_at(&self) -> [usize; 2] {
        [WINDOW, CHECKSUM].map(|at| self.packet.ip.header + at)
    }

    fn options(&self) -> impl Iterator<Item = (u8, usize, &'a [u8])> {
        tcp_options(self.packet.segment().get(..self.header).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_multipath::ack_filter::Segment;
    use braid_packet::build;
    use braid_packet::build::flags::PSH;

    /// A segment without data that acknowledges 1,000.
    fn segment(flags: u8, options: &[u8]) -> Vec<u8> {
        let mut bytes: Vec<u8> = [50_000, 443].map(u16::to_be_bytes).concat();
        bytes.extend([1_u32, 1000].map(u32::to_be_bytes).concat());
        bytes.extend([(5 + options.len() as u8 / 4) << 4, flags, 1, 0, 0, 0, 0, 0]);
        bytes.extend(options);
        let [from, to] = ["10.0.0.1", "192.0.2.1"].map(|text| text.parse().expect("an address"));
        build::packet(from, to, protocol::TCP, bytes, Some(16))
    }

    fn kind_told(packet: &[u8]) -> Option<Segment> {
        let told = TcpSegment::parse_short(packet).map(|segment| segment.kind());
        let kind = TcpSegment::parse(packet).map(|segment| segment.kind());
        assert_eq!(kind, Some(told.unwrap_or(Segment::Other)));
        told
    }

    #[test]
    fn segments_are_told_apart() {
        let times = [&TIMESTAMPS[..], &[0, 0, 0, 7, 0, 0, 0, 9]].concat();
        let sack = [1, 1, 5, 10, 0, 0, 8, 0, 0, 0, 9, 0];
        assert_eq!(kind_told(&segment(SYN, &[])), Some(Segment::Handshake));
        assert_eq!(
            kind_told(&segment(SYN | ACK, &times)),
            Some(Segment::Handshake)
        );
        for options in [&[][..], &times] {
            assert_eq!(kind_told(&segment(ACK, options)), Some(Segment::Ack(1000)));
        }
        assert_eq!(kind_told(&segment(ACK, &sack)), Some(Segment::Signal));
        for flags in [FIN | ACK, RST, ECE | ACK] {
            assert_eq!(kind_told(&segment(flags, &times)), Some(Segment::Signal));
        }
    }

    #[test]
    fn data_is_no_acknowledgement() {
        let ends = ["10.0.0.1", "192.0.2.1"].map(|text| text.parse().expect("an address"));
        let [from, to] = [(ends[0], 50_000), (ends[1], 443)];
        for (length, expected) in [(1, Some(Segment::Other)), (1000, None)] {
            let packet = build::tcp(from, to, PSH | ACK, &vec![0; length]);
            assert_eq!(kind_told(&packet), expected);
        }
        assert!(TcpSegment::parse(&build::udp(from, to, b"")).is_none());
    }

    #[test]
    fn a_segment_ends_after_its_data() {
        let ends = ["10.0.0.1", "192.0.2.1"].map(|text| text.parse().expect("an address"));
        let [from, to] = [(ends[0], 50_000), (ends[1], 443)];
        let end_of = |packet: &[u8]| TcpSegment::parse(packet).map(|segment| segment.end());
        for (sequence, length, end) in [(7, 0, 7), (7, 1_400, 1_407), (u32::MAX, 10, 9)] {
            let packet = build::segment(from, to, [sequence, 1], ACK, &vec![0; length]);
            assert_eq!(end_of(&packet), Some(end));
        }
        assert_eq!(end_of(&build::udp(from, to, b"")), None);
        assert_eq!(end_of(b"no packet"), None);
    }

    #[test]
    fn the_flow_is_that_of_the_opposite_direction() {
        let ends = ["10.0.0.1", "192.0.2.1"].map(|text| text.parse().expect("an address"));
        let data = build::tcp((ends[1], 443), (ends[0], 50_000), ACK, &[0; 1000]);
        let flow = FlowInfo::of(&data).map(|info| info.hash());
        let ack = segment(ACK, &[]);
        let acknowledged = TcpSegment::parse(&ack).map(|ack| ack.acknowledged_flow());
        assert_eq!(acknowledged, flow);
    }
}
