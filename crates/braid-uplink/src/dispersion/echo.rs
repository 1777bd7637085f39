//! Echo requests of any size (RFC 792, RFC 4443 §4).

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::IpAddr;

use braid_packet::{Packet, Transport, checksum};
use socket2::Socket;

use super::bind;
use crate::probe::{Egress, open_icmp};
use crate::transfer::TransferError;
use crate::transfer::connection::incompressible;

/// Smallest request, IP header included.
pub(super) const LEAST_SIZE: u32 = 100;
/// Bytes of an ICMP header.
const HEADER: usize = 8;

/// A socket that sends echo requests with an identifier of its own. Replies are seen elsewhere.
pub(super) struct EchoSocket {
    socket: Socket,
    is_v6: bool,
    id: u16,
    payload: Vec<u8>,
}

impl EchoSocket {
    pub fn open(egress: &Egress, target: IpAddr) -> Result<EchoSocket, TransferError> {
        Ok(EchoSocket {
            socket: open_icmp(egress, target).map_err(|source| bind(egress, source))?,
            is_v6: target.is_ipv6(),
            id: RandomState::new().hash_one(target) as u16,
            payload: incompressible().to_vec(),
        })
    }

    /// Sends a request of this size, IP header included.
    pub fn send(&self, sequence: u16, size: u32) -> io::Result<()> {
        let (kind, ip_header) = if self.is_v6 { (128, 40) } else { (8, 20) };
        let length = (size as usize).saturating_sub(ip_header + HEADER);
        let mut message = vec![kind, 0, 0, 0];
        message.extend(self.id.to_be_bytes());
        message.extend(sequence.to_be_bytes());
        message.extend(self.payload.iter().take(length));
        if !self.is_v6 {
            // The kernel fills it in for IPv6.
            let sum = checksum::of(&message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        self.socket.send(&message).map(|_| ())
    }

    /// Returns sequence number and size of a packet that is a reply.
    pub fn reply(&self, packet: &Packet<'_>) -> Option<(u16, u64)> {
        let Transport::Icmp { kind, id, .. } = packet.transport else {
            return None;
        };
        let is_reply = kind == if self.is_v6 { 129 } else { 0 };
        let sequence = packet.segment().get(6..HEADER)?;
        (is_reply && id == self.id).then(|| {
            (
                u16::from_be_bytes([sequence[0], sequence[1]]),
                packet.ip.length as u64,
            )
        })
    }
}
