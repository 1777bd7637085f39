//! Receive windows of inner TCP flows, as far as this end lowers them ([`WindowLimits`](braid_multipath::window_limit::WindowLimits)).

use braid_core::Time;
use braid_multipath::window_limit::{Acknowledgement, WindowLimit};
use braid_packet::build::flags::{ACK, RST, SYN};
use braid_packet::checksum;

use super::Tunnel;
use super::segment::{MAX_EMPTY_PACKET, TcpSegment};
use crate::proto::pool::Packet;

impl Tunnel {
    /// Notes a segment of a flow that this end sends. Returns true if the flow keeps to a limit of its window.
    pub(super) fn note_sent(&mut self, now: Time, flow: u32, segment: &TcpSegment<'_>) -> bool {
        let limits = &mut self.window_limits;
        if let Some(syn) = segment.syn() {
            limits.handle_syn(now, flow, true, syn);
            self.spurious_filter.forget(flow);
            return false;
        }
        let end = segment.end();
        self.ack_filter.handle_sent(flow, end);
        let timestamps = (limits.limits(flow)).then(|| segment.timestamps());
        let repeated = timestamps.flatten().map(|[_, repeated]| repeated);
        limits.handle_sent(now, flow, end, repeated);
        limits.keeps(now, flow)
    }

    /// Lowers the receive window in a packet that is handed over, if the flow that it acknowledges is to send less.
    pub(super) fn limit_window(&mut self, now: Time, packet: Packet) -> Packet {
        let Some(([at, checksum_at], window)) = self.lowered_window(now, &packet) else {
            return packet;
        };
        self.lowered_windows += 1;
        let mut buffer = self.receive_pool.take_again();
        buffer.extend_from_slice(&packet);
        checksum::replace_word(&mut buffer, at, window, checksum_at);
        self.receive_pool.lend(buffer)
    }

    /// Returns a lower window that a packet is to have, with the offsets of window and checksum; none if it is to stay as it is.
    fn lowered_window(&mut self, now: Time, packet: &[u8]) -> Option<([usize; 2], u16)> {
        let is_short = packet.len() <= MAX_EMPTY_PACKET;
        if !self.window_limits.may_limit(is_short) {
            return None;
        }
        let segment = TcpSegment::parse(packet)?;
        let flow = segment.acknowledged_flow();
        if segment.flags & (ACK | SYN | RST) != ACK || !self.window_limits.follows(flow) {
            return None;
        }
        let ack = Acknowledgement {
            number: segment.acknowledgement,
            timestamp: segment.timestamps().map(|[own, _]| own),
        };
        let (queued, room) = (self.sender.queued(flow), self.sender.queue_room(now));
        let limit = (self.window_limits).handle_ack(now, flow, ack, queued, room)?;
        let window = window_of(limit, ack.number)?;
        (window < segment.window()).then(|| (segment.window_and_checksum_at(), window))
    }
}

/// Returns the window that ends at a limit, as an acknowledgement of `number` says it; none for one that is longer than a window can be.
/// It is never zero: that a sender would take for a receiver that has stopped.
fn window_of(limit: WindowLimit, number: u32) -> Option<u16> {
    let more = limit.end.wrapping_sub(number);
    let window = more.div_ceil(1 << limit.scale).max(1);
    (more.cast_signed() >= 0).then(|| u16::try_from(window).ok())?
}
