//! Flows of QUIC, known by their handshakes, and their probes for the largest packet that a path carries.
//!
//! A flow of QUIC has a window that adapts to drops once in a round trip, as TCP's, so it is treated as a stream: a call to a port of QUIC is
//! not, since it has another handshake.
//!
//! **Probes** (DPLPMTUD, RFC 8899; RFC 9000 §14.3). The bond's device takes packets of 1,500 bytes, and fragments those that no datagram of
//! a link holds. Programs that send such packets without asking work so, but each takes two datagrams, and no repair symbol covers it. QUIC
//! does ask: once in a while it sends one packet that is larger than those before, and keeps to the smaller size if that is not
//! acknowledged. So such a probe is dropped, and the flow's packets are then whole. A sender takes no lost probe for congestion (RFC 8899 §3).
//!
//! A sender has one probe under way at a time. So a large packet is a probe if its flow began with a handshake that fits, and since the last
//! large one has sent [`MIN_FITTING`] packets of full size that fit, or no large one for [`MIN_INTERVAL`]. The latter is true of a sender
//! that repeats one lost packet and no other as well, so it counts [`MAX_IN_A_ROW`] times at most. A flow that sends large packets otherwise
//! loses no more from then on.

use std::time::Duration;

use braid_core::Time;

use crate::flow_table::FlowTable;

/// Flows followed at a time, by their hashes.
const FLOWS: usize = 256;

/// A flow keeps its place in the table for this long without a packet of full size. Another one is not known meanwhile.
const IDLE: Duration = Duration::from_secs(1);

/// Length of a packet of full size, at least: each path of QUIC carries 1,200 bytes (RFC 9000 §14), behind headers of IPv4 and UDP.
pub const MIN_FULL_BYTES: usize = 1_228;

/// Packets of full size between two probes.
const MIN_FITTING: u32 = 4;

/// Time between two probes of a sender that has little to send: less than a round trip over most links.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// Probes in a row with fewer packets of full size between them.
const MAX_IN_A_ROW: u32 = 2;

/// Most packets of a flow that are dropped: a few sizes, each asked for three times.
const MAX_PROBES: u32 = 16;

/// A packet to or from a port of QUIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicPacket {
    /// Length, headers included.
    pub bytes: usize,
    /// True if it is sent whole: a datagram of each link holds it, or routers may fragment it as well.
    pub fits: bool,
    /// True if its header is long, as in a handshake and in no probe.
    pub has_long_header: bool,
    /// True if it is a handshake's of a version that is known.
    pub is_handshake: bool,
}

/// The treatment of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicVerdict {
    /// It is a datagram like any other.
    Unknown,
    /// Its flow is QUIC's.
    Stream,
    /// It is a probe for a size that would be fragmented.
    Probe,
}

/// The flows that are known.
#[derive(Debug)]
pub struct QuicFlows {
    flows: FlowTable<Flow>,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    /// Time of the last packet of full size.
    seen: Time,
    /// True for one that began with a handshake.
    is_quic: bool,
    /// False for one that began with large packets, or sends them without asking.
    asks: bool,
    /// Packets of full size that fitted since the last large one.
    fitting: u32,
    /// Time of the last large one.
    large: Option<Time>,
    in_a_row: u32,
    probes: u32,
}

impl Default for QuicFlows {
    fn default() -> QuicFlows {
        QuicFlows {
            flows: FlowTable::new(FLOWS),
        }
    }
}

impl QuicFlows {
    /// Takes a packet of this flow.
    pub fn handle(&mut self, now: Time, flow: u32, packet: QuicPacket) -> QuicVerdict {
        if packet.bytes >= MIN_FULL_BYTES && self.take_full(now, flow, packet) {
            return QuicVerdict::Probe;
        }
        match self.flows.get(flow).is_some_and(|of| of.is_quic) {
            true => QuicVerdict::Stream,
            false => QuicVerdict::Unknown,
        }
    }

    /// Takes a packet of full size. Returns true for a probe.
    fn take_full(&mut self, now: Time, flow: u32, packet: QuicPacket) -> bool {
        // A handshake takes the place of what is no QUIC.
        let gives_way =
            |of: &Flow| now.since(of.seen) >= IDLE || (packet.is_handshake && !of.is_quic);
        if !self.flows.rival(flow).is_none_or(gives_way) {
            return false;
        }
        let begin = || Flow {
            seen: now,
            is_quic: packet.is_handshake,
            asks: packet.is_handshake && packet.fits,
            fitting: 0,
            large: None,
            in_a_row: 0,
            probes: 0,
        };
        let of = self.flows.get_or_insert_with(flow, begin);
        of.seen = now;
        of.is_quic |= packet.is_handshake;
        if packet.fits {
            of.fitting = of.fitting.saturating_add(1);
        }
        !packet.fits && !packet.has_long_header && of.is_probe(now)
    }
}

impl Flow {
    /// Takes a large packet.
    fn is_probe(&mut self, now: Time) -> bool {
        let sent_others = std::mem::take(&mut self.fitting) >= MIN_FITTING;
        let last = self.large.replace(now);
        let is_close = last.is_some_and(|last| now.since(last) < MIN_INTERVAL);
        self.in_a_row = match sent_others {
            true => 1,
            false => self.in_a_row.saturating_add(1),
        };
        self.asks &= sent_others || (!is_close && self.in_a_row <= MAX_IN_A_ROW);
        self.asks &= self.probes < MAX_PROBES;
        self.probes += u32::from(self.asks);
        self.asks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: usize = 1_434;

    fn packet(bytes: usize, is_handshake: bool) -> QuicPacket {
        QuicPacket {
            bytes,
            fits: bytes <= WHOLE,
            has_long_header: is_handshake,
            is_handshake,
        }
    }

    /// Sends packets of a flow, each with its time in ms and its length; the first one is a handshake's. Returns which of them are dropped.
    fn dropped_of(
        probes: &mut QuicFlows,
        flow: u32,
        packets: impl IntoIterator<Item = (u64, usize)>,
    ) -> Vec<usize> {
        let packets = packets.into_iter().enumerate();
        let is_probe = |(index, (ms, bytes)): (usize, (u64, usize))| {
            let now = Time::ZERO + Duration::from_millis(ms);
            let verdict = probes.handle(now, flow, packet(bytes, index == 0));
            (verdict == QuicVerdict::Probe).then_some(index)
        };
        packets.filter_map(is_probe).collect()
    }

    fn dropped(packets: impl IntoIterator<Item = (u64, usize)>) -> Vec<usize> {
        dropped_of(&mut QuicFlows::default(), 7, packets)
    }

    #[test]
    fn a_single_larger_packet_is_a_probe_each_time() {
        // Three attempts of one size in a download, each a round trip of 5 ms after the one before.
        let packets = (0..300).map(|at| match at % 100 {
            50 => (at / 20, 1_480),
            _ => (at / 20, 1_354),
        });
        assert_eq!(dropped(packets), [50, 150, 250]);
        // Two attempts of a sender that has nothing to send.
        assert_eq!(dropped([(0, 1_228), (20, 1_480), (60, 1_480)]), [1, 2]);
    }

    #[test]
    fn a_sender_that_does_not_ask_loses_one_packet_at_most() {
        let bulk = |at: usize| (at as u64 / 10, 1_480);
        assert_eq!(dropped((0..1_000).map(bulk)), [0; 0]);
        let handshake = [(0, 1_228), (30, 1_228)];
        let download = handshake.into_iter().chain((600..1_600).map(bulk));
        assert_eq!(dropped(download), [2]);
        // Frames of a call, each of three large packets and a small one, with sound between.
        let call = (9..900).map(|at| match at % 9 {
            0..3 => (at / 9 * 33, 1_480),
            3 => (at / 9 * 33, 700),
            other => (at / 9 * 33 + other, 180),
        });
        assert_eq!(dropped(handshake.into_iter().chain(call)), [2]);
    }

    #[test]
    fn a_sender_that_repeats_one_large_packet_gets_it_through_the_third_time() {
        let timeouts = [30, 130, 330, 730].map(|ms| (ms, 1_480));
        let handshake = [(0, 1_228)];
        assert_eq!(dropped(handshake.into_iter().chain(timeouts)), [1, 2]);
        // So does one that sends another packet between.
        let packets = (0..400).map(|at| (at * 20, if at % 2 == 0 { 1_228 } else { 1_480 }));
        assert_eq!(dropped(packets), [1, 3]);
    }

    #[test]
    fn no_flow_loses_more_than_a_few() {
        let packets = (0..400).map(|at| (at * 20, if at % 5 < 4 { 1_228 } else { 1_480 }));
        assert_eq!(dropped(packets).len(), MAX_PROBES as usize);
    }

    #[test]
    fn a_flow_that_does_not_begin_as_quic_is_none() {
        let mut flows = QuicFlows::default();
        for at in 0..100 {
            let now = Time::ZERO + Duration::from_millis(at);
            let bytes = if at % 10 == 0 { 1_480 } else { 1_300 };
            let verdict = flows.handle(now, 7, packet(bytes, false));
            assert_eq!(verdict, QuicVerdict::Unknown);
        }
        // RTP has the first bit, too.
        let rtp = QuicPacket {
            has_long_header: true,
            ..packet(1_300, false)
        };
        assert_eq!(flows.handle(Time::ZERO, 8, rtp), QuicVerdict::Unknown);
    }

    #[test]
    fn a_handshake_takes_the_place_of_what_is_no_quic() {
        let mut flows = QuicFlows::default();
        let (one, other) = (7, 7 + FLOWS as u32);
        flows.handle(Time::ZERO, one, packet(1_300, false));
        let verdict = flows.handle(Time::ZERO, other, packet(1_300, true));
        assert_eq!(verdict, QuicVerdict::Stream);
        // Two that are have their turns.
        let verdict = flows.handle(Time::ZERO, one, packet(1_300, true));
        assert_eq!(verdict, QuicVerdict::Unknown);
        let later = Time::ZERO + IDLE;
        let verdict = flows.handle(later, one, packet(1_300, true));
        assert_eq!(verdict, QuicVerdict::Stream);
    }

    #[test]
    fn all_packets_of_a_flow_that_began_as_quic_are_a_streams() {
        let mut flows = QuicFlows::default();
        for (at, bytes) in [1_228, 60, 1_400, 60].into_iter().enumerate() {
            let verdict = flows.handle(Time::ZERO, 7, packet(bytes, at == 0));
            assert_eq!(verdict, QuicVerdict::Stream);
        }
        assert_eq!(
            flows.handle(Time::ZERO, 8, packet(60, false)),
            QuicVerdict::Unknown
        );
    }

    #[test]
    fn what_fits_is_no_probe() {
        assert_eq!(dropped((0..100).map(|at| (at, WHOLE))), [0; 0]);
    }

    #[test]
    fn a_flow_without_a_place_has_no_probes_and_takes_none() {
        let mut probes = QuicFlows::default();
        let (one, other) = (7, 7 + FLOWS as u32);
        assert_eq!(dropped_of(&mut probes, one, [(0, 1_400); 9]), [0; 0]);
        let asks = [(500, 1_400), (510, 1_480), (600, 1_480)];
        assert_eq!(dropped_of(&mut probes, other, asks), [0; 0]);
        let verdict = probes.handle(
            Time::ZERO + Duration::from_millis(700),
            one,
            packet(1_480, false),
        );
        assert_eq!(verdict, QuicVerdict::Probe);
        // Once the first one is idle.
        let later = [(1_700, 1_400), (1_800, 1_480)];
        assert_eq!(dropped_of(&mut probes, other, later), [1]);
    }
}
