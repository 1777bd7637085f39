//! Probes of QUIC for the largest packet that a path carries (DPLPMTUD, RFC 8899; RFC 9000 §14.3).
//!
//! The bond's device takes packets of 1,500 bytes, and fragments those that no datagram of a link holds. Programs that send such packets
//! without asking work so, but each takes two datagrams, and no repair symbol covers it. QUIC does ask: once in a while it sends one packet
//! that is larger than those before, and keeps to the smaller size if that is not acknowledged. So such a probe is dropped, and the flow's
//! packets are then whole. A sender takes no lost probe for congestion (RFC 8899 §3).
//!
//! A sender has one probe under way at a time. So a large packet is a probe if its flow began with a handshake of QUIC that fits, and
//! since the last large one has sent [`MIN_FITTING`] packets of full size that fit, or no large one for [`MIN_INTERVAL`]. The latter is true of a sender that
//! repeats one lost packet and no other as well, so it counts [`MAX_IN_A_ROW`] times at most. A flow that sends large packets otherwise
//! loses no more from then on.

use std::time::Duration;

use braid_core::Time;

use crate::flow_table::FlowTable;

/// Flows followed at a time, by their hashes.
const FLOWS: usize = 256;

/// A flow keeps its place in the table for this long without a packet of full size. Another one has no probes meanwhile.
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

/// Tells probes from other large packets.
#[derive(Debug)]
pub struct MtuProbes {
    flows: FlowTable<Flow>,
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    /// Time of the last packet of full size.
    seen: Time,
    /// False for one that did not begin with a handshake, or sends large packets without asking.
    asks: bool,
    /// Packets of full size that fitted since the last large one.
    fitting: u32,
    /// Time of the last large one.
    large: Option<Time>,
    in_a_row: u32,
    probes: u32,
}

impl Default for MtuProbes {
    fn default() -> MtuProbes {
        MtuProbes {
            flows: FlowTable::new(FLOWS),
        }
    }
}

impl MtuProbes {
    /// Takes a packet of full size, which fits into a datagram of each link or not. Returns true for a probe. Handshakes have the long
    /// header, and no probe has.
    pub fn handle(&mut self, now: Time, flow: u32, fits: bool, has_long_header: bool) -> bool {
        let is_idle = |of: &Flow| now.since(of.seen) >= IDLE;
        if !self.flows.rival(flow).is_none_or(is_idle) {
            return false;
        }
        let begin = || Flow {
            seen: now,
            asks: fits && has_long_header,
            fitting: 0,
            large: None,
            in_a_row: 0,
            probes: 0,
        };
        let of = self.flows.get_or_insert_with(flow, begin);
        of.seen = now;
        if fits {
            of.fitting = of.fitting.saturating_add(1);
        }
        !fits && !has_long_header && of.is_probe(now)
    }
}

impl Flow {
    /// Takes a large packet.
    fn is_probe(&mut self, now: Time) -> bool {
        let sent_others = std::mem::take(&mut self.fitting) >= MIN_FITTING;
        let last = self.large.replace(now);
        let is_close = last.is_some_and(|last| now.since(last) < MIN_INTERVAL);
        self.in_a_row = if sent_others { 1 } else { self.in_a_row + 1 };
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

    /// Sends packets of a flow, each with its time in ms and its length; the first one is a handshake's. Returns which of them are dropped.
    fn dropped_of(
        probes: &mut MtuProbes,
        flow: u32,
        packets: impl IntoIterator<Item = (u64, usize)>,
    ) -> Vec<usize> {
        let packets = packets.into_iter().enumerate();
        let is_probe = |(index, (ms, bytes)): (usize, (u64, usize))| {
            let now = Time::ZERO + Duration::from_millis(ms);
            let is_full = bytes >= MIN_FULL_BYTES;
            (is_full && probes.handle(now, flow, bytes <= WHOLE, index == 0)).then_some(index)
        };
        packets.filter_map(is_probe).collect()
    }

    fn dropped(packets: impl IntoIterator<Item = (u64, usize)>) -> Vec<usize> {
        dropped_of(&mut MtuProbes::default(), 7, packets)
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
    fn a_flow_that_does_not_begin_as_quic_has_no_probes() {
        let mut probes = MtuProbes::default();
        let dropped = (0..100).filter(|at| {
            let now = Time::ZERO + Duration::from_millis(*at);
            probes.handle(now, 7, at % 10 > 0, false)
        });
        assert_eq!(dropped.count(), 0);
    }

    #[test]
    fn what_fits_is_no_probe() {
        assert_eq!(dropped((0..100).map(|at| (at, WHOLE))), [0; 0]);
    }

    #[test]
    fn a_flow_without_a_place_has_no_probes_and_takes_none() {
        let mut probes = MtuProbes::default();
        let (one, other) = (7, 7 + FLOWS as u32);
        assert_eq!(dropped_of(&mut probes, one, [(0, 1_400); 9]), [0; 0]);
        let asks = [(500, 1_400), (510, 1_480), (600, 1_480)];
        assert_eq!(dropped_of(&mut probes, other, asks), [0; 0]);
        assert!(probes.handle(Time::ZERO + Duration::from_millis(700), one, false, false));
        // Once the first one is idle.
        let later = [(1_700, 1_400), (1_800, 1_480)];
        assert_eq!(dropped_of(&mut probes, other, later), [1]);
    }
}
