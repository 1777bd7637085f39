//! Coalescing of inner packets into super-packets, like the kernel's GRO.
//!
//! A packet joins the super-packet of its flow if segmentation by the kernel would restore it
//! exactly: the same headers except for counting fields, the same size except for the last. Packets
//! of one flow leave in the order in which they came. A super-packet is written when the next
//! packet of its flow cannot join, and at the latest at the end of the input batch, so nothing
//! waits.
//!
//! A packet that joins must have a valid checksum, since the kernel trusts that of a super-packet.
//! Other packets pass unchanged, for the kernel to judge.

use std::io::IoSlice;

use super::{
    GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VNET_HEADER, VnetHeader, add, read16, read32,
    set_ip_length, tcp, udp, write16,
};
use crate::io::tun::OffloadSupport;
use braid_packet::{checksum, protocol};

/// Flows that are coalesced at a time; with more in a batch, each has few packets in it.
const MAX_FLOWS: usize = 16;

/// Segments of a super-packet: as many as the kernel's GRO joins.
const MAX_SEGMENTS: usize = 64;

/// Longest headers: IPv6 and TCP with all options.
const MAX_HEADER_BYTES: usize = 40 + 60;

/// Properties of a packet that decide about joining.
#[derive(Clone, Copy, Debug)]
struct SegmentInfo {
    is_v4: bool,
    is_tcp: bool,
    /// Length of the IP header, and of all headers.
    ip: usize,
    headers: usize,
    payload: usize,
    /// A super-packet may begin with it.
    joins: bool,
    /// No packet may follow it in its super-packet.
    ends: bool,
}

#[derive(Debug)]
struct SuperPacket<P> {
    info: SegmentInfo,
    packets: Vec<P>,
    payload: usize,
    closed: bool,
}

/// Coalesces packets of up to [`MAX_FLOWS`] flows.
#[derive(Debug)]
pub(in crate::io) struct Coalescer<P> {
    offload_support: OffloadSupport,
    super_packets: Vec<SuperPacket<P>>,
    /// Empty lists, kept for their memory.
    spare: Vec<Vec<P>>,
}

impl<P: AsRef<[u8]>> Coalescer<P> {
    pub fn new(offload_support: OffloadSupport) -> Self {
        Coalescer {
            offload_support,
            super_packets: Vec::with_capacity(MAX_FLOWS),
            spare: Vec::with_capacity(MAX_FLOWS),
        }
    }

    /// Handles a packet; writes whatever cannot wait.
    pub fn push(&mut self, packet: P, write: &mut dyn FnMut(&[IoSlice<'_>])) {
        let bytes = packet.as_ref();
        let Some(info) = SegmentInfo::of(bytes, self.offload_support) else {
            write(&alone(bytes));
            return;
        };
        let same = |super_packet: &SuperPacket<P>| super_packet.is_same_flow(&info, bytes);
        if let Some(index) = self.super_packets.iter().position(same) {
            if self.super_packets[index].accepts(&info, bytes) {
                self.super_packets[index].take(&info, packet);
                return;
            }
            self.flush_one(index, write);
        }
        if !info.joins {
            write(&alone(packet.as_ref()));
            return;
        }
        if self.super_packets.len() == MAX_FLOWS {
            self.flush_one(0, write);
        }
        let mut packets = self.spare.pop().unwrap_or_default();
        packets.push(packet);
        self.super_packets.push(SuperPacket {
            info,
            packets,
            payload: info.payload,
            closed: info.ends,
        });
    }

    /// Writes everything that waits.
    pub fn flush(&mut self, write: &mut dyn FnMut(&[IoSlice<'_>])) {
        while !self.super_packets.is_empty() {
            self.flush_one(0, write);
        }
    }

    fn flush_one(&mut self, index: usize, write: &mut dyn FnMut(&[IoSlice<'_>])) {
        let mut super_packet = self.super_packets.remove(index);
        super_packet.write(write);
        super_packet.packets.clear();
        self.spare.push(super_packet.packets);
    }
}

fn alone(packet: &[u8]) -> [IoSlice<'_>; 2] {
    [IoSlice::new(&[0; VNET_HEADER]), IoSlice::new(packet)]
}

impl SegmentInfo {
    /// None if the packet belongs to no flow, or could not be coalesced anyway.
    fn of(packet: &[u8], offload_support: OffloadSupport) -> Option<SegmentInfo> {
        let (is_v4, protocol, ip, length) = match packet.first()? >> 4 {
            4 if packet.len() >= 20 => {
                let header = usize::from(packet[0] & 15) * 4;
                let is_whole = read16(packet, 6) & 0x3fff == 0;
                let length = usize::from(read16(packet, 2));
                (header == 20 && is_whole).then_some((true, packet[9], header, length))?
            }
            6 if packet.len() >= 40 => {
                let length = 40 + usize::from(read16(packet, 4));
                (false, packet[6], 40, length)
            }
            _ => return None,
        };
        if length != packet.len() {
            return None;
        }
        let info = |is_tcp, headers: usize| SegmentInfo {
            is_v4,
            is_tcp,
            ip,
            headers,
            payload: length - headers,
            joins: false,
            ends: false,
        };
        match protocol {
            protocol::TCP if offload_support.tcp && length >= ip + tcp::HEADER => {
                let header = usize::from(packet[ip + 12] >> 4) * 4;
                let headers = ip + header;
                if header < tcp::HEADER || length < headers {
                    return None;
                }
                let flags = packet[ip + tcp::FLAGS];
                let plain = flags & !(tcp::PSH | tcp::ECE) == tcp::ACK;
                let info = info(true, headers);
                Some(SegmentInfo {
                    joins: plain && info.payload > 0,
                    ends: flags & tcp::PSH != 0,
                    ..info
                })
            }
            protocol::UDP if offload_support.udp && length >= ip + udp::HEADER => {
                let info = info(false, ip + udp::HEADER);
                let has_sum = read16(packet, ip + udp::CHECKSUM) != 0;
                let agrees = usize::from(read16(packet, ip + udp::LENGTH)) == length - ip;
                Some(SegmentInfo {
                    joins: has_sum && agrees && info.payload > 0,
                    ..info
                })
            }
            _ => None,
        }
    }
}

impl<P: AsRef<[u8]>> SuperPacket<P> {
    fn first(&self) -> &[u8] {
        self.packets[0].as_ref()
    }

    fn is_same_flow(&self, info: &SegmentInfo, packet: &[u8]) -> bool {
        let own = &self.info;
        if own.is_tcp != info.is_tcp || own.is_v4 != info.is_v4 {
            return false;
        }
        // Addresses and ports are adjacent if there are no options.
        let ends = if own.is_v4 { 12..24 } else { 8..44 };
        self.first()[ends.clone()] == packet[ends]
    }

    /// Returns true if segmentation by the kernel would restore this packet as the next segment.
    fn accepts(&self, info: &SegmentInfo, packet: &[u8]) -> bool {
        let own = &self.info;
        let fits = info.joins
            && !self.closed
            && self.packets.len() < MAX_SEGMENTS
            && info.headers == own.headers
            && info.payload <= own.payload
            && own.headers + self.payload + info.payload <= usize::from(u16::MAX);
        if !fits {
            return false;
        }
        let first = self.first();
        let count = self.packets.len() as u16;
        let same_ip = if own.is_v4 {
            let unfragmentable = read16(first, 6) & 0x4000 != 0;
            let counted = read16(packet, 4) == read16(first, 4).wrapping_add(count);
            first[..2] == packet[..2]
                && first[6..10] == packet[6..10]
                && (unfragmentable || counted)
        } else {
            first[..4] == packet[..4] && first[6..8] == packet[6..8]
        };
        let ip = own.ip;
        let same_transport = !own.is_tcp || {
            let next = read32(first, ip + tcp::SEQ).wrapping_add(self.payload as u32);
            let flags = (first[ip + tcp::FLAGS] ^ packet[ip + tcp::FLAGS]) & !tcp::PSH;
            read32(packet, ip + tcp::SEQ) == next
                && first[ip + 8..ip + 13] == packet[ip + 8..ip + 13]
                && flags == 0
                && first[ip + 14..ip + 16] == packet[ip + 14..ip + 16]
                && first[ip + 18..own.headers] == packet[ip + 18..own.headers]
        };
        let is_first_right = || count > 1 || is_right(first, own);
        same_ip && same_transport && is_right(packet, info) && is_first_right()
    }

    fn take(&mut self, info: &SegmentInfo, packet: P) {
        self.payload += info.payload;
        self.closed = info.ends || info.payload < self.info.payload;
        self.packets.push(packet);
    }

    fn write(&self, write: &mut dyn FnMut(&[IoSlice<'_>])) {
        let SegmentInfo {
            ip,
            headers,
            is_tcp,
            is_v4,
            ..
        } = self.info;
        let [.., last] = self.packets.as_slice() else {
            return;
        };
        if self.packets.len() == 1 {
            return write(&alone(last.as_ref()));
        }
        let mut buffer = [0; MAX_HEADER_BYTES];
        let header = &mut buffer[..headers];
        header.copy_from_slice(&self.first()[..headers]);
        set_ip_length(header, headers + self.payload);
        let length = headers - ip + self.payload;
        let offset = if is_tcp {
            let flags = last.as_ref()[ip + tcp::FLAGS];
            header[ip + tcp::FLAGS] |= flags & tcp::PSH;
            tcp::CHECKSUM
        } else {
            write16(header, ip + udp::LENGTH, length as u16);
            udp::CHECKSUM
        };
        let sum = add(&[pseudo(header, is_tcp), length as u16]);
        write16(header, ip + offset, sum);
        let gso_type = match (is_tcp, is_v4) {
            (true, true) => GSO_TCPV4,
            (true, false) => GSO_TCPV6,
            (false, _) => GSO_UDP_L4,
        };
        let vnet = VnetHeader {
            flags: NEEDS_CSUM,
            gso_type,
            hdr_len: headers as u16,
            gso_size: self.info.payload as u16,
            csum_start: ip as u16,
            csum_offset: offset as u16,
        };
        let vnet = vnet.to_bytes();
        let mut parts = [IoSlice::new(&[]); MAX_SEGMENTS + 2];
        parts[0] = IoSlice::new(&vnet);
        parts[1] = IoSlice::new(header);
        for (part, packet) in parts[2..].iter_mut().zip(&self.packets) {
            *part = IoSlice::new(&packet.as_ref()[headers..]);
        }
        write(&parts[..self.packets.len() + 2]);
    }
}

/// The pseudo-header's sum without the length.
fn pseudo(packet: &[u8], is_tcp: bool) -> u16 {
    let addresses = match packet[0] >> 4 {
        4 => &packet[12..20],
        _ => &packet[8..40],
    };
    let protocol = if is_tcp { protocol::TCP } else { protocol::UDP };
    add(&[checksum::sum(addresses), protocol.into()])
}

/// Returns true if a packet's checksums hold.
fn is_right(packet: &[u8], info: &SegmentInfo) -> bool {
    let segment = &packet[info.ip..];
    let sum = add(&[
        pseudo(packet, info.is_tcp),
        segment.len() as u16,
        checksum::sum(segment),
    ]);
    let is_header_right = !info.is_v4 || checksum::sum(&packet[..info.ip]) == 0xffff;
    sum == 0xffff && is_header_right
}
