//! Compression of inner headers.
//!
//! The packets of a flow differ in few bytes of their IP and TCP or UDP headers. So a header is
//! sent to the other end once as a *context*, and packets carry only their difference from it, the
//! idea of ROHC (RFC 5795): 52 bytes of IPv4 and TCP with timestamps become 13 to 17, 72 with IPv6
//! 11 to 15. Decompression restores every bit.
//!
//! Rules, and their reasons:
//! - A packet only refers to a context that the other end has acknowledged, never to another
//!   packet: loss and reordering on or between links cost nothing, and copies and repair symbols of
//!   a packet stay valid at any time.
//! - A packet is compressed once, before it is queued, and decompressed when the other end delivers
//!   it. In between it is opaque: it is fragmented, covered by repair symbols, retransmitted. Its
//!   first two bits distinguish it from an IP packet, whose first four are 4 or 6.
//! - The transport checksum is carried unchanged. It still protects the packet from end to end: if
//!   a decompressed header were ever wrong, the inner receiver would drop the packet.
//! - Contexts belong to a lane, which every DATA frame names. A lane has [`CONTEXTS_PER_LANE`]
//!   slots; the lowest two bits of a context's eight-bit number are its slot. A slot changes its
//!   flow every [`SLOT_IDLE_TIMEOUT`] at most, and keeps the previous context; its numbers repeat
//!   after 64 of them, ten minutes later. Nothing in the tunnel waits that long.
//! - The width of a field never shrinks while a context is in use: sockets batch packets of one
//!   size.
//!
//! ```text
//! 0   00 ee P X W I    ee ECN · P PSH · X flags, W window, I IPv4 id are present
//! 1   context 8
//! TCP:  lengths 2 · 2 · 2 · 2     of sequence, acknowledgement, time stamp, its echo:
//!                                 0, 2, 3 or 4 bytes
//!       [flags 8] [window 16] [id 16] [sequence] [acknowledgement] [time stamp] [echo]
//! UDP:  [id 16]
//! checksum 16 · payload
//! ```
//! Flags, window and id are the packet's own; the four others are differences to the context's,
//! modulo 2³². Absent fields are as in the context; absent flags are ACK, and PSH by `P`.
//!
//! Not compressed: fragments, IP options and extensions, TCP options other than timestamps in
//! Linux's layout, SYN, RST and URG, an IPv4 header whose checksum is wrong.

mod compress;
mod decompress;
#[cfg(test)]
mod tests;

use std::time::Duration;

use braid_packet::{checksum, protocol};

pub use compress::{CompressionSavings, Compressor};
pub use decompress::{ContextOutcome, Decompressor};

/// Contexts of each lane.
pub const CONTEXTS_PER_LANE: usize = 4;

/// Time without packets after which a slot can be given to another flow.
pub const SLOT_IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest header: IPv6, TCP and timestamps.
pub const MAX_HEADER_BYTES: usize = 40 + 32;

/// First bytes of compressed packets are below this; those of IP packets are not.
const COMPRESSED_BELOW: u8 = 0x40;

/// Bits of the first byte.
mod bit {
    pub const ECN: u8 = 0x30;
    pub const ECN_SHIFT: u8 = 4;
    pub const PSH: u8 = 0x08;
    pub const FLAGS: u8 = 0x04;
    pub const WINDOW: u8 = 0x02;
    pub const ID: u8 = 0x01;
}

/// TCP's flags.
mod flag {
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
    pub const URG: u8 = 0x20;
}

/// TCP options of Linux when it sends timestamps and nothing else (RFC 7323 appendix A).
pub(super) const TIMESTAMPS: [u8; 4] = [1, 1, 8, 10];

/// The slot of a context number in its lane.
#[must_use]
pub fn slot_of(number: u8) -> usize {
    usize::from(number) % CONTEXTS_PER_LANE
}

/// Returns true if a packet in the tunnel is compressed.
#[must_use]
pub fn is_compressed(packet: &[u8]) -> bool {
    packet
        .first()
        .is_some_and(|first| *first < COMPRESSED_BELOW)
}

/// Marks a compressed packet with CE. Returns true if the packet can carry the mark.
pub fn mark(packet: &mut [u8]) -> bool {
    match packet.first_mut() {
        Some(first) if *first & bit::ECN != 0 => {
            *first |= bit::ECN;
            true
        }
        _ => false,
    }
}

/// Kinds of headers that a packet has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeaderLayout {
    is_v4: bool,
    is_tcp: bool,
    has_times: bool,
}

impl HeaderLayout {
    /// Determines the layout from the bytes of a header; none if they are of another kind, or
    /// truncated.
    fn of(bytes: &[u8]) -> Option<HeaderLayout> {
        let (is_v4, number) = match bytes.first()? {
            0x45 => (true, *bytes.get(9)?),
            first if first >> 4 == 6 => (false, *bytes.get(6)?),
            _ => return None,
        };
        let layout = |is_tcp, has_times| HeaderLayout {
            is_v4,
            is_tcp,
            has_times,
        };
        let layout = match number {
            protocol::UDP => layout(false, false),
            protocol::TCP => {
                let start = layout(true, false).ip();
                match *bytes.get(start + 12)? {
                    0x50 => layout(true, false),
                    0x80 if bytes.get(start + 20..start + 24)? == TIMESTAMPS => layout(true, true),
                    _ => return None,
                }
            }
            _ => return None,
        };
        (bytes.len() >= layout.len()).then_some(layout)
    }

    /// Length of the IP header, bytes.
    fn ip(self) -> usize {
        if self.is_v4 { 20 } else { 40 }
    }

    /// Length of both headers, bytes.
    fn len(self) -> usize {
        let transport = match (self.is_tcp, self.has_times) {
            (false, _) => 8,
            (true, false) => 20,
            (true, true) => 32,
        };
        self.ip() + transport
    }

    fn checksum(self) -> usize {
        self.ip() + if self.is_tcp { 16 } else { 6 }
    }

    /// Offsets of the counting fields: sequence, acknowledgement, time stamp, its echo.
    fn counters(self) -> [usize; 4] {
        [4, 8, 24, 28].map(|at| self.ip() + at)
    }

    /// Number of counting fields in this layout.
    fn count(self) -> usize {
        match (self.is_tcp, self.has_times) {
            (false, _) => 0,
            (true, false) => 2,
            (true, true) => 4,
        }
    }

    /// The layout of a packet that can be compressed: unfragmented, and without header fields that
    /// would be lost.
    fn of_whole(packet: &[u8]) -> Option<HeaderLayout> {
        let layout = HeaderLayout::of(packet)?;
        let start = layout.ip();
        let length = match layout.is_v4 {
            true => usize::from(read16(packet, 2)),
            false => 40 + usize::from(read16(packet, 4)),
        };
        let is_sound = !layout.is_v4
            || (read16(packet, 6) & 0x3fff == 0
                // One's complement has two zeros; only the one that a checksum computes to is
                // accepted.
                && read16(packet, 10) != 0xffff
                && checksum::sum(&packet[..20]) == 0xffff);
        let is_plain = match layout.is_tcp {
            true => {
                packet[start + 13] & (flag::SYN | flag::RST | flag::URG) == 0
                    && read16(packet, start + 18) == 0
            }
            false => usize::from(read16(packet, start + 4)) == packet.len() - start,
        };
        (length == packet.len() && is_sound && is_plain).then_some(layout)
    }

    /// Returns true if two headers of this layout agree in all fields that are neither carried nor
    /// computed.
    fn is_same_flow(self, a: &[u8], b: &[u8]) -> bool {
        let start = self.ip();
        let same = |from: usize, to: usize| a[from..to] == b[from..to];
        // Ports come first: they distinguish most flows.
        let ip = match self.is_v4 {
            true => {
                same(12, 24) && same(6, 10) && (a[1] ^ b[1]) & !(bit::ECN >> bit::ECN_SHIFT) == 0
            }
            false => same(40, 44) && same(6, 40) && same(2, 4) && (a[1] ^ b[1]) & !bit::ECN == 0,
        };
        // The reserved bits of TCP's offset are zero in every layout.
        ip && a[0] == b[0] && (!self.is_tcp || a[start + 12] == b[start + 12])
    }

    fn ecn(self, packet: &[u8]) -> u8 {
        match self.is_v4 {
            true => packet[1] & 3,
            false => packet[1] >> 4 & 3,
        }
    }
}

/// A header that both ends know.
#[derive(Clone, Copy)]
struct Header {
    layout: HeaderLayout,
    bytes: [u8; MAX_HEADER_BYTES],
}

impl std::fmt::Debug for Header {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.layout.fmt(f)
    }
}

impl Header {
    /// The header of a packet of this layout.
    fn of(layout: HeaderLayout, packet: &[u8]) -> Header {
        let mut bytes = [0; MAX_HEADER_BYTES];
        bytes[..layout.len()].copy_from_slice(&packet[..layout.len()]);
        Header { layout, bytes }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.layout.len()]
    }
}

fn read16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn read32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
