//! Reading a frame as the resequencer gets it: Ethernet, the path's tag, a TCP segment.

use std::net::IpAddr;

use braid_core::resequence::SegmentKind;
use braid_packet::{Fragment, Packet, Transport};

/// Before the tag: two addresses.
const ADDRESSES: usize = 12;
/// The tag: its EtherType and itself.
pub const TAG: usize = 4;
const EVERYTHING_BEFORE_IP: usize = ADDRESSES + TAG + 2;
const VLAN: [u8; 2] = [0x81, 0x00];

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;

/// A frame that waits, or goes on at once. Its tag has been taken off: it begins at [`TAG`].
#[derive(Debug)]
pub struct Frame(pub Vec<u8>);

impl Frame {
    /// What goes on.
    pub fn bytes(&self) -> &[u8] {
        &self.0[TAG..]
    }
}

/// One direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowKey {
    source: IpAddr,
    dest: IpAddr,
    ports: (u16, u16),
}

/// What a frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// Its path's tag.
    pub tag: u16,
    /// Its place in its connection; none of what is no whole TCP segment.
    pub segment: Option<(FlowKey, SegmentKind, u32, u32)>,
}

/// Reads a tagged frame and moves its addresses over its tag. None if there is no tag.
pub fn take_tag(bytes: &mut [u8]) -> Option<Read> {
    if bytes.len() < EVERYTHING_BEFORE_IP || bytes[ADDRESSES..ADDRESSES + 2] != VLAN {
        return None;
    }
    let tag = u16::from_be_bytes([bytes[ADDRESSES + 2], bytes[ADDRESSES + 3]]) & 0x0fff;
    let segment = segment(&bytes[EVERYTHING_BEFORE_IP..]);
    bytes.copy_within(..ADDRESSES, TAG);
    Some(Read { tag, segment })
}

/// The IP packet in a frame that had a tag.
pub fn without_tag(frame: &[u8]) -> &[u8] {
    frame.get(EVERYTHING_BEFORE_IP..).unwrap_or_default()
}

fn segment(packet: &[u8]) -> Option<(FlowKey, SegmentKind, u32, u32)> {
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
    Some((key, kind, sequence, length))
}
