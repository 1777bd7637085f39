//! Segmentation and coalescing of super-packets: many segments of a flow under one header.
//!
//! [`segment`](segment::segment) splits the kernel's super-packets in place; [`Coalescer`] makes
//! super-packets of consecutive inner packets. Both are pure: bytes in, bytes out.

mod coalesce;
mod segment;
#[cfg(test)]
mod tests;

pub(super) use coalesce::Coalescer;
pub(super) use segment::segment;

/// Bytes of the header before each packet of a TUN device with IFF_VNET_HDR.
pub(super) const VNET_HEADER: usize = 10;

/// The checksum from `csum_start` to the end is still to be computed.
const NEEDS_CSUM: u8 = 1;

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// Added to the others: only the first segment has CWR.
const GSO_ECN: u8 = 0x80;

/// Header of a super-packet, `struct virtio_net_hdr`, in the machine's byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct VnetHeader {
    flags: u8,
    gso_type: u8,
    /// Length of all headers; a hint that is sometimes wrong, and ignored.
    hdr_len: u16,
    /// Payload of each segment but the last.
    gso_size: u16,
    csum_start: u16,
    /// From `csum_start`.
    csum_offset: u16,
}

impl VnetHeader {
    pub fn parse(bytes: &[u8; VNET_HEADER]) -> Self {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        VnetHeader {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        }
    }

    pub fn to_bytes(self) -> [u8; VNET_HEADER] {
        let mut bytes = [0; VNET_HEADER];
        bytes[..2].copy_from_slice(&[self.flags, self.gso_type]);
        let words = [
            self.hdr_len,
            self.gso_size,
            self.csum_start,
            self.csum_offset,
        ];
        for (bytes, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

mod tcp {
    pub const SEQ: usize = 4;
    pub const FLAGS: usize = 13;
    pub const CHECKSUM: usize = 16;
    /// Least length of the header.
    pub const HEADER: usize = 20;

    pub const FIN: u8 = 0x01;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
    pub const ECE: u8 = 0x40;
    pub const CWR: u8 = 0x80;
}

mod udp {
    pub const LENGTH: usize = 4;
    pub const CHECKSUM: usize = 6;
    pub const HEADER: usize = 8;
}

fn read16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn write16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn read32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn write32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// One's complement sum.
fn add(sums: &[u16]) -> u16 {
    let sum: u32 = sums.iter().map(|sum| u32::from(*sum)).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Writes the length of an IP packet into its header, and updates the checksum.
fn set_ip_length(packet: &mut [u8], length: usize) {
    if packet[0] >> 4 == 4 {
        let header = usize::from(packet[0] & 15) * 4;
        write16(packet, 2, length as u16);
        write16(packet, 10, 0);
        let sum = braid_packet::checksum::of(&packet[..header]);
        write16(packet, 10, sum);
    } else {
        write16(packet, 4, (length - 40) as u16);
    }
}
