//! Header compression of a tunnel: sending contexts, and converting packets.

use std::collections::VecDeque;

use braid_core::Time;
use braid_multipath::{LaneId, LinkId, MAX_LINKS};

use super::{Datagram, Tunnel};
use crate::proto::frame::{HeaderAck, HeaderContext};
use crate::proto::header_compression::{
    self, CompressionSavings, Compressor, ContextOutcome, Decompressor,
};
use crate::proto::pool::{Buffer, Packet};
use crate::proto::reject::Reject;

/// Acknowledgements waiting to be sent. More are dropped; the other end asks again.
const MAX_QUEUED_ACKS: usize = 64;

/// Length of acknowledgements and contexts after which another packet is begun, bytes.
const CONTROL_PACKET_BYTES: usize = 600;

/// Both directions of a tunnel.
#[derive(Debug, Default)]
pub(super) struct HeaderCompression {
    compressor: Compressor,
    decompressor: Decompressor,
    acks: VecDeque<HeaderAck>,
    header: Vec<u8>,
    /// Packets sent for it: each goes over the next link, since one may be dead.
    packets_sent: usize,
}

impl HeaderCompression {
    fn push_ack(&mut self, ack: HeaderAck) {
        if self.acks.len() < MAX_QUEUED_ACKS && !self.acks.contains(&ack) {
            self.acks.push_back(ack);
        }
    }
}

impl Tunnel {
    /// Savings of header compression in the sending direction.
    #[must_use]
    pub fn saved(&self) -> CompressionSavings {
        self.compression.compressor.saved()
    }

    /// The `n`-th link in use, round robin; none without one.
    pub(super) fn nth_link(&self, n: usize) -> Option<LinkId> {
        let in_use = |id: &LinkId| self.is_in_use(*id);
        let links = || (0..MAX_LINKS as u8).map(LinkId).filter(in_use);
        links().nth(n % links().count().max(1))
    }

    /// Compresses an inner packet for the tunnel, if the other end supports that.
    pub(super) fn compress(&mut self, now: Time, lane: LaneId, packet: &[u8]) -> Buffer {
        let mut buffer = self.send_pool.take(now);
        let can = self.settings.compress && self.peer.headers;
        let compressor = &mut self.compression.compressor;
        if !can || !compressor.compress(now, lane, packet, &mut buffer) {
            buffer.extend_from_slice(packet);
        }
        buffer
    }

    /// Restores a packet from the tunnel; none if its context is unknown.
    pub(super) fn decompress(&mut self, lane: LaneId, packet: Packet) -> Option<Packet> {
        if !header_compression::is_compressed(&packet) {
            return Some(packet);
        }
        let mut buffer = self.receive_pool.take_again();
        let decompressed = self
            .compression
            .decompressor
            .decompress(lane, &packet, &mut buffer);
        let Err(number) = decompressed else {
            return Some(self.receive_pool.lend(buffer));
        };
        self.receive_pool.return_buffer(buffer);
        self.refuse(Reject::Header);
        if let Some(number) = number {
            self.compression.push_ack(HeaderAck {
                lane: lane.0,
                number,
                known: false,
            });
        }
        None
    }

    pub(super) fn handle_header(&mut self, context: &HeaderContext<'_>) {
        match self.compression.decompressor.handle_context(context) {
            ContextOutcome::Known => self.compression.push_ack(HeaderAck {
                lane: context.lane,
                number: context.number,
                known: true,
            }),
            ContextOutcome::Refused => self.refuse(Reject::Header),
        }
    }

    pub(super) fn handle_header_ack(&mut self, ack: HeaderAck) {
        let (lane, number) = (LaneId(ack.lane), ack.number);
        let compressor = &mut self.compression.compressor;
        compressor.handle_ack(lane, number, ack.known);
    }

    pub(super) fn poll_compression(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Datagram> {
        let compression = &mut self.compression;
        if compression.acks.is_empty() && !compression.compressor.has_context() {
            return None;
        }
        let id = self.nth_link(self.compression.packets_sent)?;
        let to = self.remote(id)?;
        let (compression, scratch) = (&mut self.compression, &mut self.scratch);
        compression.packets_sent = compression.packets_sent.wrapping_add(1);
        scratch.clear();
        while let Some(ack) = compression.acks.pop_front() {
            ack.append(scratch);
        }
        while scratch.len() < CONTROL_PACKET_BYTES
            && let Some(context) = compression.compressor.poll_context(&mut compression.header)
        {
            context.append(scratch);
        }
        self.send_scratch(now, id, to, false, out)
    }
}
