//! TCP segments that acknowledge flows.

use braid_multipath::ack_filter::Segment;
use braid_packet::build::flags::{ECE, FIN, RST, SYN};
use braid_packet::{Fragment, Packet, Transport, protocol};

use crate::proto::flow::FlowInfo;
use crate::proto::header_compression::TIMESTAMPS;

/// Longest packet that carries no data: a header of IPv6, and one of TCP with all of its options.
pub(super) const MAX_EMPTY_PACKET: usize = 100;

const TCP_HEADER: usize = 20;
/// With other options it tells more: SACK, or those of MPTCP.
const WITH_TIMESTAMPS: usize = TCP_HEADER + 12;

/// Returns the hash of the flow that a packet acknowledges, which goes the other way, and its kind; none for other packets, and for
/// those with data.
pub(super) fn of(packet: &[u8]) -> Option<(u32, Segment)> {
    let packet = short_tcp(packet)?;
    let Transport::Tcp { source, dest, .. } = packet.transport else {
        return None;
    };
    let ports = Some([dest, source]);
    let flow = FlowInfo::between(packet.ip.dest, packet.ip.source, protocol::TCP, ports);
    Some((flow.hash(), kind(&packet)?))
}

/// Returns the kind of a segment of TCP, as an acknowledgement.
pub(super) fn kind_of(packet: &[u8]) -> Segment {
    let short = short_tcp(packet);
    short
        .and_then(|packet| kind(&packet))
        .unwrap_or(Segment::Other)
}

fn short_tcp(packet: &[u8]) -> Option<Packet<'_>> {
    if packet.len() > MAX_EMPTY_PACKET {
        return None;
    }
    // The flow of a fragment is not that of its packet.
    let packet = Packet::parse(packet).ok()?;
    (packet.ip.fragment == Fragment::Whole).then_some(packet)
}

fn kind(packet: &Packet<'_>) -> Option<Segment> {
    let Transport::Tcp {
        acknowledgement,
        flags,
        header,
        ..
    } = packet.transport
    else {
        return None;
    };
    let segment = packet.segment();
    let options = segment.get(TCP_HEADER..header)?;
    let is_plain =
        header == TCP_HEADER || (header == WITH_TIMESTAMPS && options.starts_with(&TIMESTAMPS));
    Some(if flags & SYN != 0 {
        Segment::Handshake
    } else if flags & (FIN | RST | ECE) != 0 {
        Segment::Signal
    } else if segment.len() > header {
        Segment::Other
    } else if is_plain {
        Segment::Ack(acknowledgement)
    } else {
        Segment::Signal
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_packet::build;
    use braid_packet::build::flags::{ACK, PSH};

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
        let told = of(packet).map(|(_, kind)| kind);
        assert_eq!(kind_of(packet), told.unwrap_or(Segment::Other));
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
        assert_eq!(of(&build::udp(from, to, b"")), None);
    }

    #[test]
    fn the_flow_is_that_of_the_opposite_direction() {
        let ends = ["10.0.0.1", "192.0.2.1"].map(|text| text.parse().expect("an address"));
        let data = build::tcp((ends[1], 443), (ends[0], 50_000), ACK, &[0; 1000]);
        let flow = FlowInfo::of(&data).map(|info| info.hash());
        assert_eq!(of(&segment(ACK, &[])).map(|(flow, _)| flow), flow);
    }
}
