//! Receive windows of inner TCP flows, as far as this end lowers them ([`WindowLimits`](braid_multipath::window_limit::WindowLimits)).

use braid_core::Time;
use braid_multipath::window_limit::{Acknowledgement, Syn, WindowLimit};
use braid_packet::build::flags::{ACK, RST, SYN};
use braid_packet::{Fragment, Packet, Transport, checksum, option_kind, protocol, tcp_options};

use super::Tunnel;
use crate::proto::flow::FlowInfo;
use crate::proto::pool;

/// Offsets in a TCP header.
const WINDOW: usize = 14;
const CHECKSUM: usize = 16;

/// A segment of TCP that is not a fragment.
struct Segment<'a> {
    packet: Packet<'a>,
    ports: [u16; 2],
    sequence: u32,
    acknowledgement: u32,
    flags: u8,
    header: usize,
}

impl<'a> Segment<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Segment<'a>> {
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
        (packet.ip.fragment == Fragment::Whole).then_some(Segment {
            packet,
            ports: [source, dest],
            sequence,
            acknowledgement,
            flags,
            header,
        })
    }

    /// Returns the hash of the flow that it acknowledges.
    fn answered_flow(&self) -> u32 {
        let [source, dest] = self.ports;
        let (ip, ports) = (&self.packet.ip, Some([dest, source]));
        FlowInfo::between(ip.dest, ip.source, protocol::TCP, ports).hash()
    }

    /// Returns the number after its last byte.
    fn end(&self) -> Option<u32> {
        let data = self.packet.segment().len().checked_sub(self.header)?;
        Some(self.sequence.wrapping_add(data as u32))
    }

    fn options(&self) -> impl Iterator<Item = (u8, usize, &'a [u8])> {
        tcp_options(self.packet.segment().get(..self.header).unwrap_or_default())
    }

    /// Returns its timestamp and the one that it repeats.
    fn timestamps(&self) -> Option<[u32; 2]> {
        let (_, _, value) = (self.options()).find(|(kind, ..)| *kind == option_kind::TIMESTAMPS)?;
        let [own, repeated] = [value.get(..4)?, value.get(4..8)?];
        let number = |bytes: &[u8]| bytes.try_into().map(u32::from_be_bytes).ok();
        Some([number(own)?, number(repeated)?])
    }

    fn syn(&self) -> Option<Syn> {
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
        (self.flags & (SYN | RST) == SYN).then_some(syn)
    }
}

impl Tunnel {
    /// Notes a segment of a flow that this end sends. Returns true if the flow keeps to a limit of its window.
    pub(super) fn note_sent_segment(&mut self, now: Time, flow: u32, packet: &[u8]) -> bool {
        let Some(segment) = Segment::parse(packet) else {
            return false;
        };
        let limits = &mut self.window_limits;
        if let Some(syn) = segment.syn() {
            limits.handle_syn(now, flow, true, syn);
            return false;
        }
        if let Some(end) = segment.end() {
            self.ack_filter.handle_sent(flow, end);
            let timestamps = (limits.limits(flow))
                .then(|| segment.timestamps())
                .flatten();
            let repeated = timestamps.map(|[_, repeated]| repeated);
            limits.handle_sent(now, flow, end, repeated);
        }
        limits.keeps(now, flow)
    }

    /// Notes the SYN of a flow that goes the other way than this packet.
    pub(super) fn note_delivered_syn(&mut self, now: Time, packet: &[u8]) {
        if let Some(segment) = Segment::parse(packet)
            && let Some(syn) = segment.syn()
        {
            let flow = segment.answered_flow();
            self.window_limits.handle_syn(now, flow, false, syn);
        }
    }

    /// Lowers the receive window in a packet that is handed over, if the flow that it acknowledges is to send less.
    pub(super) fn limit_window(&mut self, now: Time, packet: pool::Packet) -> pool::Packet {
        let lowered = self.lowered_window(now, &packet);
        let Some((at, before, window)) = lowered else {
            return packet;
        };
        self.lowered_windows += 1;
        let mut buffer = self.receive_pool.take_again();
        buffer.extend_from_slice(&packet);
        let sum = at + CHECKSUM - WINDOW;
        let checksum = checksum::replace(word(&buffer, sum), before, window);
        buffer[at..at + 2].copy_from_slice(&window.to_be_bytes());
        buffer[sum..sum + 2].copy_from_slice(&checksum.to_be_bytes());
        self.receive_pool.lend(buffer)
    }

    /// Returns where a packet has its window, the window, and a lower one that it is to have; none if it is to stay as it is.
    fn lowered_window(&mut self, now: Time, packet: &[u8]) -> Option<(usize, u16, u16)> {
        if !self
            .window_limits
            .may_limit(packet.len() <= super::acknowledgement::MAX_EMPTY_PACKET)
        {
            return None;
        }
        let segment = Segment::parse(packet)?;
        if segment.flags & (ACK | SYN | RST) != ACK {
            return None;
        }
        let (flow, number) = (segment.answered_flow(), segment.acknowledgement);
        if !self.window_limits.follows(flow) {
            return None;
        }
        let (queued, room) = (self.sender.queued(flow), self.sender.queue_room(now));
        let timestamp = segment.timestamps().map(|[own, _]| own);
        let ack = Acknowledgement { number, timestamp };
        let limit = (self.window_limits).handle_ack(now, flow, ack, queued, room)?;
        let at = segment.packet.ip.header + WINDOW;
        let before = word(packet, at);
        let window = window_of(limit, number)?;
        (window < before).then_some((at, before, window))
    }
}

/// Returns the window that ends at a limit, as an acknowledgement of `number` says it; none for one that is longer than a window can be.
/// It is never zero: that a sender would take for a receiver that has stopped.
fn window_of(limit: WindowLimit, number: u32) -> Option<u16> {
    let more = limit.end.wrapping_sub(number);
    let window = more.div_ceil(1 << limit.scale).max(1);
    (more.cast_signed() >= 0).then(|| u16::try_from(window).ok())?
}

fn word(packet: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([packet[at], packet[at + 1]])
}
