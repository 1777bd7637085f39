//! A whole IP packet: header, transport header, payload.

use crate::error::split;
use crate::ip::{Fragment, Ip, half};
use crate::{Error, checksum};

/// Transport protocols by IANA number.
pub mod protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
}

/// Fields of a transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP (RFC 9293).
    Tcp {
        /// Source port.
        source: u16,
        /// Destination port.
        dest: u16,
        /// Sequence number.
        sequence: u32,
        /// Acknowledgement number.
        acknowledgement: u32,
        /// The flags byte: FIN (1), SYN (2), RST (4), PSH (8), ACK (16), URG (32), ECE, CWR.
        flags: u8,
        /// Bytes of the header with its options.
        header: usize,
    },
    /// UDP (RFC 768).
    Udp {
        /// Source port.
        source: u16,
        /// Destination port.
        dest: u16,
    },
    /// ICMP of either family.
    Icmp {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
        /// Identifier of an echo; other messages have other data there.
        id: u16,
    },
    /// A later fragment, or a protocol that is not parsed here.
    Other,
}

/// A packet and its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The IP header.
    pub ip: Ip,
    /// The transport header.
    pub transport: Transport,
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses a packet that begins with its IP header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let ip = Ip::parse(bytes)?;
        let bytes = &bytes[..ip.length];
        let segment = &bytes[ip.header..];
        let transport = match (ip.fragment, ip.protocol) {
            (Fragment::Later { .. }, _) => Transport::Other,
            (_, protocol::TCP) => tcp(segment)?,
            (_, protocol::UDP) => udp(segment)?,
            (_, protocol::ICMP | protocol::ICMPV6) => icmp(segment)?,
            _ => Transport::Other,
        };
        Ok(Self {
            ip,
            transport,
            bytes,
        })
    }

    /// Returns the transport header and payload.
    pub fn segment(&self) -> &'a [u8] {
        &self.bytes[self.ip.header..]
    }

    /// Returns the offset of the transport checksum from the packet's start; `None` if it has none
    /// here.
    pub fn checksum_offset(&self) -> Option<usize> {
        let offset = match self.transport {
            Transport::Tcp { .. } => 16,
            Transport::Udp { .. } => 6,
            Transport::Icmp { .. } => 2,
            Transport::Other => return None,
        };
        Some(self.ip.header + offset)
    }

    /// Returns the correct transport checksum; `None` for other protocols and for fragments, which
    /// do not hold all of the bytes that it covers.
    pub fn transport_checksum(&self) -> Option<u16> {
        let offset = self.checksum_offset()? - self.ip.header;
        if self.ip.fragment != Fragment::Whole {
            return None;
        }
        let segment = self.segment();
        let field = half(segment, offset);
        // The sum over everything, then without the field.
        let all = match self.ip.protocol {
            protocol::ICMP => checksum::of(segment),
            other => checksum::of_transport(self.ip.source, self.ip.dest, other, segment),
        };
        Some(checksum::replace(all, field, 0))
    }

    /// Returns true if the IPv4 header checksum and the transport checksum are correct. A zero UDP
    /// checksum over IPv4 means "none" and is correct.
    pub fn checksums_hold(&self) -> bool {
        let header = &self.bytes[..self.ip.header];
        if self.ip.source.is_ipv4() && checksum::sum(header) != 0xffff {
            return false;
        }
        let (Some(offset), Some(right)) = (self.checksum_offset(), self.transport_checksum())
        else {
            return true;
        };
        let field = half(self.bytes, offset);
        let none = matches!(self.transport, Transport::Udp { .. }) && field == 0;
        if none {
            self.ip.source.is_ipv4()
        } else {
            checksum::same(field, right)
        }
    }
}

fn tcp(segment: &[u8]) -> Result<Transport, Error> {
    let (tcp, _) = split("tcp", segment, 20)?;
    let header = usize::from(tcp[12] >> 4) * 4;
    if header < 20 || header > segment.len() {
        return Err(Error::Length {
            header: "tcp",
            says: header,
        });
    }
    Ok(Transport::Tcp {
        source: half(tcp, 0),
        dest: half(tcp, 2),
        sequence: u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]),
        acknowledgement: u32::from_be_bytes([tcp[8], tcp[9], tcp[10], tcp[11]]),
        flags: tcp[13],
        header,
    })
}

fn udp(segment: &[u8]) -> Result<Transport, Error> {
    let (udp, _) = split("udp", segment, 8)?;
    let says = usize::from(half(udp, 4));
    if says < 8 {
        return Err(Error::Length {
            header: "udp",
            says,
        });
    }
    Ok(Transport::Udp {
        source: half(udp, 0),
        dest: half(udp, 2),
    })
}

fn icmp(segment: &[u8]) -> Result<Transport, Error> {
    let (icmp, _) = split("icmp", segment, 8)?;
    Ok(Transport::Icmp {
        kind: icmp[0],
        code: icmp[1],
        id: half(icmp, 4),
    })
}
