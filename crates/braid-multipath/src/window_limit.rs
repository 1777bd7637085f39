//! Limits to the windows of TCP flows that this end sends, in place of drops.
//!
//! A flow's window grows until something stops it. Without a bond that is a full queue, with one CoDel: both drop, and until what was
//! dropped has been sent again, behind all of the queue, the flow has nothing in order. Over links whose rates fall to a fourth within a
//! second that takes seconds. But this end sees the acknowledgements of the flows that it sends, and a receive window in each of them:
//! how much more the receiver takes. A flow with a queue gets a smaller one, so that its sender stops by itself, and loses nothing.
//!
//! The limit is a number of the flow's own sequence: everything that has left its queue, what the queue is to hold, and what the sender
//! can send until the next acknowledgement reaches it. So it needs no round trip of the links, holds still while they stall, and does not
//! move back: a window that was once granted stays so (RFC 9293 §3.8.6 warns against shrinking it).
//!
//! - A limit begins once a flow's queue is longer than [`QueueRoom`] permits, and ends when it has had none for [`MAX_EMPTY`]: a flow that
//!   something else slows down has the receiver's window.
//! - The round trip from here to the sender is measured by the timestamps in what passes, at first and without timestamps by the handshake.
//! - A queue that runs empty gets a fourth of what the links could have sent meanwhile on top, and loses a fourth of what is acknowledged
//!   while it is longer than it is to be: a sender may be further away than its handshake said.
//! - CoDel drops nothing of a flow that keeps to its limit ([`WindowLimits::keeps`]), and treats all others as before.
//! - Flows whose handshake was not seen have none, nor have those without SACK (a duplicate acknowledgement with another window is none,
//!   RFC 5681 §2), those with MPTCP (its windows count otherwise, RFC 8684 §3.3.1), and signed ones.

use std::time::Duration;

use braid_core::{Bytes, Rate, Time};

use crate::estimate::RecentMin;
use crate::flow_table::FlowTable;
use crate::sequence::is_above;

/// Flows followed at a time, by their hashes.
const FLOWS: usize = 256;

/// A queue is to hold so much, however slow the links are: four segments.
const MIN_ROOM: u64 = 6_000;

/// A limit ends when the flow has had no queue for this long.
const MAX_EMPTY: Duration = Duration::from_secs(2);

/// A sender hears of its first limit late: all that it was permitted before arrives within two of its round trips and this.
const FIRST_SPAN: Duration = Duration::from_millis(100);

/// Flows share the room as long as they were acknowledged in this time.
const SHARE_SPAN: Duration = Duration::from_secs(1);

/// Part of what the links could have sent that a queue which runs empty gets on top, and of what is acknowledged that it loses.
const STEP: u64 = 4;

/// Most that it gets at an acknowledgement, and in all, as times of the links: a flow that pauses is not limited by its window, and what
/// it gets may come all at once.
const MAX_PAUSE: Duration = Duration::from_millis(100);
const MAX_EXTRA: Duration = Duration::from_millis(200);

/// No longer round trip of a sender is believed.
const MAX_ROUND_TRIP: Duration = Duration::from_secs(1);

/// Its round trip is the least of this time, ms: a program may have had nothing to send.
const ROUND_TRIP_MS: u64 = 2_000;

/// Room in the queues of all flows with limits together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRoom {
    /// Rate at which they are sent.
    pub rate: Rate,
    /// Time for which packets are to wait.
    pub span: Duration,
    /// True if a limit may begin: the links are known, and full.
    pub may_begin: bool,
}

/// The SYN of one end of a flow, as far as limits need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syn {
    /// True for the answer to a SYN.
    pub answers: bool,
    /// Bits by which its windows are to be shifted, if it says so (RFC 7323 §2).
    pub window_scale: Option<u8>,
    /// True if it offers SACK.
    pub sack: bool,
    /// True if windows of the flow are not to be changed: MPTCP, or signed segments.
    pub opaque: bool,
}

/// The part of an acknowledgement that its flow's sender answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    /// Everything below this number has arrived.
    pub number: u32,
    /// Its timestamp (RFC 7323 §3), which the sender repeats.
    pub timestamp: Option<u32>,
}

/// A limit to what a flow sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowLimit {
    /// The number below which it may send.
    pub end: u32,
    /// Bits by which its windows are shifted.
    pub scale: u8,
}

#[derive(Debug)]
struct Flow {
    /// The SYN that this end sent, and the one of the far end.
    syns: [Option<Syn>; 2],
    /// When the far end's SYN was handed over, until it is answered; and the time until then.
    asked: Option<Time>,
    first_round_trip: Duration,
    /// The number after the newest byte sent, and after the newest one acknowledged.
    sent: Option<u32>,
    acked: Option<u32>,
    acked_at: Time,
    /// Time of the last acknowledgement, also of nothing new.
    seen_at: Time,
    limit: Option<Box<Limit>>,
}

#[derive(Debug)]
struct Limit {
    end: u32,
    begun: Time,
    /// When the flow last had a queue.
    queued_at: Time,
    /// Bytes on top.
    extra: u64,
    round_trips: RecentMin<Duration, ROUND_TRIP_MS>,
    /// A timestamp that the sender is to repeat, and when it passed.
    stamp: Option<(u32, Time)>,
}

/// The flows of one end.
#[derive(Debug)]
pub struct WindowLimits {
    flows: FlowTable<Flow>,
    /// Flows with a limit that were acknowledged of late.
    shares: u64,
    /// When they were counted; none if limits have begun or ended since.
    counted: Option<Time>,
}

impl Default for WindowLimits {
    fn default() -> WindowLimits {
        WindowLimits {
            flows: FlowTable::new(FLOWS),
            shares: 0,
            counted: None,
        }
    }
}

impl WindowLimits {
    /// Notes a SYN of a flow: that of its sender, or one that is handed over to it.
    pub fn handle_syn(&mut self, now: Time, flow: u32, is_sent: bool, syn: Syn) {
        let busy = |of: &Flow| of.limit.is_some() && now.since(of.acked_at) < SHARE_SPAN;
        if self.flows.rival(flow).is_some_and(busy) {
            return;
        }
        let goes_on = |of: &Flow| syn.answers && of.sent.is_none();
        if !self.flows.get(flow).is_some_and(goes_on) {
            self.flows.remove(flow);
        }
        let of = (self.flows).get_or_insert_with(flow, || Flow::new(now));
        of.syns[usize::from(!is_sent)] = Some(syn);
        match is_sent {
            true => of.handle_answer(now),
            false => of.asked = Some(now),
        }
    }

    /// Notes that a flow has sent everything below a number, with a repeated timestamp.
    pub fn handle_sent(&mut self, now: Time, flow: u32, end: u32, repeated: Option<u32>) {
        let Some(of) = self.flows.get_mut(flow) else {
            return;
        };
        of.handle_answer(now);
        if of.sent.is_none_or(|sent| is_above(end, sent)) {
            of.sent = Some(end);
        }
        if let (Some(limit), Some(repeated)) = (&mut of.limit, repeated) {
            limit.handle_repeated(now, repeated);
        }
    }

    /// Returns true if a packet may need a limit: a short one if there are flows, others only if some have limits.
    #[must_use]
    pub fn may_limit(&self, is_short: bool) -> bool {
        self.shares > 0 || (is_short && !self.flows.is_unused())
    }

    /// Returns true for a flow that may get a limit.
    #[must_use]
    pub fn follows(&self, flow: u32) -> bool {
        self.flows.get(flow).is_some_and(Flow::may_have_limit)
    }

    /// Returns true for a flow that has a limit.
    #[must_use]
    pub fn limits(&self, flow: u32) -> bool {
        self.flows.get(flow).is_some_and(|of| of.limit.is_some())
    }

    /// Returns true for a flow that has a limit and has kept to it.
    #[must_use]
    pub fn keeps(&self, now: Time, flow: u32) -> bool {
        let keeps = |of: &Flow| {
            let first = of.first_round_trip * 2 + FIRST_SPAN;
            (of.limit.as_ref()).is_some_and(|limit| {
                // A window is a multiple of what its shift leaves.
                let end = limit.end.wrapping_add((1 << of.scale()) - 1);
                let above = of.sent.is_some_and(|sent| is_above(sent, end));
                !above || now.since(limit.begun) < first
            })
        };
        self.flows.get(flow).is_some_and(keeps)
    }

    /// Takes an acknowledgement on its way to a flow's sender, while `queued` of the flow wait. Returns the flow's limit, if it has one.
    /// Without `room` it has none.
    pub fn handle_ack(
        &mut self,
        now: Time,
        flow: u32,
        ack: Acknowledgement,
        queued: Bytes,
        room: Option<QueueRoom>,
    ) -> Option<WindowLimit> {
        self.count(now);
        let of = self.flows.get_mut(flow).filter(|of| of.may_have_limit())?;
        let since = now.since(of.seen_at);
        let more = of.handle_ack(now, ack.number);
        let (Some(room), Some(sent)) = (room, of.sent) else {
            of.limit = None;
            self.counted = None;
            return None;
        };
        let is_new = of.limit.is_none();
        let shares = (self.shares + u64::from(is_new)).max(1);
        let in_queue = (room.rate.bytes_in(room.span).get() / shares).max(MIN_ROOM);
        let is_long = queued.get() > in_queue;
        if is_new && is_long && room.may_begin {
            of.limit = Some(Box::new(Limit {
                end: sent,
                begun: now,
                queued_at: now,
                extra: 0,
                round_trips: RecentMin::default(),
                stamp: None,
            }));
            self.counted = None;
        }
        let left = sent.wrapping_sub(queued.get() as u32);
        let limit = of.limit.as_mut()?;
        limit.handle_stamp(now, ack.timestamp);
        let round_trip = limit.round_trips.min(now).unwrap_or(of.first_round_trip);
        let on_the_way = room.rate.bytes_in(round_trip).get() / shares;
        if queued.get() > 0 {
            limit.queued_at = now;
        }
        if now.since(limit.queued_at) > MAX_EMPTY {
            of.limit = None;
            self.counted = None;
            return None;
        }
        limit.extra = match (queued.get(), is_long) {
            (0, _) => {
                let bytes_in = |span| room.rate.bytes_in(span).get() / shares;
                let more = bytes_in(since.min(MAX_PAUSE)) / STEP;
                (limit.extra + more).min(bytes_in(MAX_EXTRA))
            }
            (_, true) => limit.extra.saturating_sub(more / STEP),
            _ => limit.extra,
        };
        let end = left.wrapping_add((in_queue + on_the_way + limit.extra) as u32);
        if is_above(end, limit.end) {
            limit.end = end;
        }
        let end = limit.end;
        let scale = of.scale();
        Some(WindowLimit { end, scale })
    }

    /// Counts the flows that share the room, every tenth of a second.
    fn count(&mut self, now: Time) {
        if (self.counted).is_none_or(|counted| now.since(counted) >= SHARE_SPAN / 10) {
            let shares = |of: &&Flow| of.limit.is_some() && now.since(of.acked_at) < SHARE_SPAN;
            self.shares = self.flows.values().filter(shares).count() as u64;
            self.counted = Some(now);
        }
    }
}

impl Limit {
    /// Notes the timestamp of an acknowledgement, unless an earlier one may still be repeated.
    fn handle_stamp(&mut self, now: Time, timestamp: Option<u32>) {
        let waits = |(_, at): &(u32, Time)| now.since(*at) <= MAX_ROUND_TRIP;
        if let Some(timestamp) = timestamp.filter(|_| !self.stamp.as_ref().is_some_and(waits)) {
            self.stamp = Some((timestamp, now));
        }
    }

    fn handle_repeated(&mut self, now: Time, repeated: u32) {
        let answered = |(timestamp, _): &mut (u32, Time)| !is_above(*timestamp, repeated);
        if let Some((_, at)) = self.stamp.take_if(answered) {
            let round_trip = now.since(at);
            if round_trip <= MAX_ROUND_TRIP {
                self.round_trips.handle_value(now, round_trip);
            }
        }
    }
}

impl Flow {
    fn new(now: Time) -> Flow {
        Flow {
            syns: [None; 2],
            asked: None,
            first_round_trip: Duration::ZERO,
            sent: None,
            acked: None,
            acked_at: now,
            seen_at: now,
            limit: None,
        }
    }

    fn may_have_limit(&self) -> bool {
        let syns = self.syns.iter().flatten();
        self.syns.iter().all(Option::is_some) && syns.clone().all(|syn| syn.sack && !syn.opaque)
    }

    /// Returns the bits by which windows of acknowledgements are shifted: both ends must name theirs.
    fn scale(&self) -> u8 {
        let [own, far] = self.syns.map(|syn| syn.and_then(|syn| syn.window_scale));
        own.and(far).unwrap_or(0).min(14)
    }

    /// Notes that the sender has sent something: an answer to a SYN, if one was handed over.
    fn handle_answer(&mut self, now: Time) {
        if let Some(asked) = self.asked.take() {
            self.first_round_trip = now.since(asked).min(MAX_ROUND_TRIP);
        }
    }

    /// Returns the bytes acknowledged for the first time.
    fn handle_ack(&mut self, now: Time, number: u32) -> u64 {
        self.seen_at = now;
        let advances = self.acked.is_none_or(|acked| is_above(number, acked));
        let before = self.acked.filter(|_| advances).unwrap_or(number);
        let more = number.wrapping_sub(before);
        if advances {
            self.acked = Some(number);
            self.acked_at = now;
        }
        u64::from(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYN: Syn = Syn {
        answers: false,
        window_scale: Some(7),
        sack: true,
        opaque: false,
    };

    /// 10 Mbit/s, 62,500 bytes in 50 ms.
    const ROOM: QueueRoom = QueueRoom {
        rate: Rate::from_bits_per_sec(10_000_000),
        span: Duration::from_millis(50),
        may_begin: true,
    };

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    /// A flow from this end, whose sender is so many milliseconds away; it begins at 100 ms.
    fn begun(flow: u32, away_ms: u64) -> WindowLimits {
        let mut limits = WindowLimits::default();
        begin(&mut limits, flow, away_ms, [SYN; 2]);
        limits
    }

    fn begin(limits: &mut WindowLimits, flow: u32, away_ms: u64, [far, own]: [Syn; 2]) {
        limits.handle_syn(at(100 - away_ms), flow, false, far);
        let own = Syn {
            answers: true,
            ..own
        };
        limits.handle_syn(at(100), flow, true, own);
    }

    fn ack(number: u32) -> Acknowledgement {
        Acknowledgement {
            number,
            timestamp: None,
        }
    }

    /// The end of a flow's limit after an acknowledgement while so many bytes wait.
    fn end(limits: &mut WindowLimits, ms: u64, flow: u32, number: u32, queued: u64) -> Option<u32> {
        let limit = limits.handle_ack(at(ms), flow, ack(number), Bytes::new(queued), Some(ROOM));
        limit.map(|limit| limit.end)
    }

    #[test]
    fn a_flow_with_a_long_queue_may_send_what_the_queue_is_to_hold() {
        let mut limits = begun(7, 8);
        limits.handle_sent(at(110), 7, 200_000, None);
        assert_eq!(end(&mut limits, 120, 7, 50_000, 62_500), None);
        assert_eq!(end(&mut limits, 130, 7, 60_000, 62_501), Some(210_000 - 1));
        assert_eq!(
            limits.handle_ack(at(131), 7, ack(60_000), Bytes::new(0), None),
            None
        );
        let room = QueueRoom {
            may_begin: false,
            ..ROOM
        };
        assert_eq!(
            limits.handle_ack(at(132), 7, ack(60_000), Bytes::new(90_000), Some(room)),
            None
        );
        // The sender's round trip, 8 ms, is 10,000 bytes.
        let limit = limits.handle_ack(at(133), 7, ack(60_000), Bytes::new(90_000), Some(ROOM));
        let expected = WindowLimit {
            end: 200_000,
            scale: 7,
        };
        assert_eq!(limit, Some(expected), "what was sent was permitted");
        assert_eq!(
            end(&mut limits, 140, 7, 100_000, 20_000),
            Some(180_000 + 72_500)
        );
    }

    #[test]
    fn a_limit_does_not_move_back() {
        let mut limits = begun(7, 0);
        limits.handle_sent(at(110), 7, 200_000, None);
        assert_eq!(end(&mut limits, 120, 7, 90_000, 70_000), Some(200_000));
        assert_eq!(end(&mut limits, 130, 7, 130_000, 30_000), Some(232_500));
        let slow = QueueRoom {
            rate: Rate::from_bits_per_sec(1_000_000),
            ..ROOM
        };
        let limit = limits.handle_ack(at(140), 7, ack(140_000), Bytes::new(25_000), Some(slow));
        assert_eq!(limit.map(|limit| limit.end), Some(232_500));
        assert_eq!(end(&mut limits, 150, 7, 135_000, 70_000), Some(232_500));
    }

    #[test]
    fn numbers_go_round() {
        let mut limits = begun(7, 0);
        let start = u32::MAX - 100_000;
        limits.handle_sent(at(110), 7, start.wrapping_add(200_000), None);
        let number = start.wrapping_add(90_000);
        let limit = end(&mut limits, 120, 7, number, 100_000);
        assert_eq!(limit, Some(start.wrapping_add(200_000)));
        limits.handle_sent(at(121), 7, start, None);
        let number = start.wrapping_add(180_000);
        let limit = end(&mut limits, 130, 7, number, 10_000);
        assert_eq!(limit, Some(start.wrapping_add(252_500)));
    }

    #[test]
    fn a_flow_without_a_queue_for_two_seconds_has_no_limit() {
        let mut limits = begun(7, 0);
        limits.handle_sent(at(110), 7, 200_000, None);
        assert!(end(&mut limits, 120, 7, 1_000, 70_000).is_some());
        for (ms, queued) in [(1_000, 0), (1_100, 1), (3_100, 0)] {
            assert!(end(&mut limits, ms, 7, 1_000, queued).is_some(), "{ms}");
        }
        assert_eq!(end(&mut limits, 3_101, 7, 1_000, 0), None);
        assert!(!limits.limits(7) && limits.follows(7));
    }

    #[test]
    fn flows_that_cannot_have_one_have_none() {
        let scale = |window_scale| Syn {
            window_scale,
            ..SYN
        };
        let without_sack = Syn { sack: false, ..SYN };
        let opaque = Syn {
            opaque: true,
            ..SYN
        };
        for (pair, expected) in [
            ([SYN; 2], Some(7)),
            ([scale(Some(3)), SYN], Some(3)),
            ([scale(None), SYN], Some(0)),
            ([SYN, scale(None)], Some(0)),
            ([SYN, without_sack], None),
            ([without_sack, SYN], None),
            ([opaque, SYN], None),
            ([SYN, opaque], None),
        ] {
            let mut limits = WindowLimits::default();
            begin(&mut limits, 7, 0, pair);
            limits.handle_sent(at(110), 7, 200_000, None);
            let limit = limits.handle_ack(at(120), 7, ack(0), Bytes::new(70_000), Some(ROOM));
            assert_eq!(limit.map(|limit| limit.scale), expected, "{pair:?}");
        }
        let mut limits = WindowLimits::default();
        limits.handle_syn(at(0), 7, false, SYN);
        limits.handle_sent(at(110), 7, 200_000, None);
        assert_eq!(end(&mut limits, 120, 7, 0, 70_000), None, "one SYN alone");
        assert_eq!(end(&mut limits, 120, 8, 0, 70_000), None, "another flow");
    }

    #[test]
    fn the_next_connection_of_the_same_ports_is_another_flow() {
        let mut limits = begun(7, 0);
        limits.handle_sent(at(110), 7, 3_000_000_000, None);
        assert!(end(&mut limits, 120, 7, 2_999_000_000, 70_000).is_some());
        limits.handle_syn(at(200), 7, false, SYN);
        assert!(!limits.follows(7) && !limits.limits(7));
        let own = Syn {
            answers: true,
            ..SYN
        };
        limits.handle_syn(at(201), 7, true, own);
        limits.handle_sent(at(210), 7, 100_000, None);
        assert_eq!(end(&mut limits, 220, 7, 10_000, 70_000), Some(100_000));
        // An answer to a SYN that was not seen tells nothing of the other end.
        limits.handle_syn(at(300), 7, true, own);
        assert!(!limits.follows(7));
    }

    #[test]
    fn flows_with_limits_share_the_room_and_keep_their_places() {
        let mut limits = begun(7, 0);
        begin(&mut limits, 8, 0, [SYN; 2]);
        for flow in [7, 8] {
            limits.handle_sent(at(110), flow, 200_000, None);
            assert_eq!(end(&mut limits, 120, flow, 0, 70_000), Some(200_000));
        }
        let limit = end(&mut limits, 300, 7, 10, 1);
        assert_eq!(limit, Some(200_000 - 1 + 62_500 / 2));
        let other = 7 + FLOWS as u32;
        limits.handle_syn(at(310), other, false, SYN);
        assert!(limits.limits(7), "one with a limit keeps its place");
        limits.handle_syn(at(1_310), other, false, SYN);
        assert!(!limits.limits(7));
    }

    #[test]
    fn one_that_sends_more_does_not_keep_its_limit() {
        let mut limits = begun(7, 10);
        limits.handle_sent(at(110), 7, 200_000, None);
        assert!(!limits.keeps(at(115), 7));
        assert_eq!(end(&mut limits, 120, 7, 0, 120_000), Some(200_000));
        limits.handle_sent(at(130), 7, 250_000, None);
        assert!(limits.keeps(at(239), 7), "it may not have heard of it");
        assert!(!limits.keeps(at(240), 7));
        assert_eq!(end(&mut limits, 250, 7, 90_000, 50_000), Some(275_000));
        assert!(limits.keeps(at(250), 7));
        // A window that is shifted by 7 can be 127 bytes longer.
        limits.handle_sent(at(260), 7, 275_127, None);
        assert!(limits.keeps(at(260), 7));
        limits.handle_sent(at(261), 7, 275_128, None);
        assert!(!limits.keeps(at(261), 7));
    }

    /// A sender that was 8 ms away is 40 ms away, and 20 ms are the program's.
    #[test]
    fn a_senders_round_trip_is_the_least_by_which_timestamps_are_repeated() {
        let mut limits = begun(7, 8);
        limits.handle_sent(at(110), 7, 200_000, None);
        let mut acknowledge = |ms: u64, sent: &[(u64, u32)]| {
            let ack = Acknowledgement {
                timestamp: Some(ms as u32),
                ..ack(1_000)
            };
            let limit = limits.handle_ack(at(ms), 7, ack, Bytes::new(62_501), Some(ROOM));
            for (sent_ms, repeated) in sent {
                limits.handle_sent(at(*sent_ms), 7, 200_000, Some(*repeated));
            }
            limit.map(|limit| limit.end)
        };
        let at_rest = 200_000 - 1 + 8 * 1_250;
        assert_eq!(acknowledge(120, &[(130, 110), (180, 120)]), Some(at_rest));
        let later = |ms: u32| Some(200_000 - 1 + ms * 1_250);
        assert_eq!(acknowledge(200, &[(230, 199), (240, 201)]), later(60));
        // It does not move back.
        assert_eq!(acknowledge(300, &[]), later(60));
        assert_eq!(
            acknowledge(1_200, &[(1_201, 1_200)]),
            later(60),
            "still awaited"
        );
        assert_eq!(
            limits
                .flows
                .get(7)
                .and_then(|of| of.limit.as_ref())
                .and_then(|limit| limit.round_trips.min(at(1_300))),
            Some(Duration::from_millis(40))
        );
    }

    /// Runs a sender whose acknowledgements and data take `away_ms` between this end and it, there and back, over 10 Mbit/s for so many
    /// seconds. Returns the bytes of the last one, and the longest queue in it in bytes.
    fn run(away_ms: u64, seconds: u64) -> (u64, u64) {
        let mut limits = begun(7, 10);
        let (mut sent, mut arrived, mut left) = (0, 0, 0_u64);
        let mut on_the_way = std::collections::VecDeque::from([(0, 0_u64)]);
        let mut result = (0, 0);
        for ms in 110..110 + seconds * 1_000 {
            // Windows and data in flight between this end and the sender.
            while on_the_way.front().is_some_and(|(due, _)| *due <= ms) {
                let (_, end) = on_the_way.pop_front().expect("one is due");
                arrived = arrived.max(end);
            }
            limits.handle_sent(at(ms), 7, arrived as u32, None);
            let sends = (arrived - left).min(1_250);
            left += sends;
            let queued = arrived - left;
            let limit = end(&mut limits, ms, 7, left as u32, queued);
            sent = sent.max(limit.map_or(left + 1_000_000, u64::from));
            on_the_way.push_back((ms + away_ms, sent));
            if ms >= 110 + (seconds - 1) * 1_000 {
                result = (result.0 + sends, result.1.max(queued));
            }
        }
        result
    }

    #[test]
    fn a_sender_that_is_further_away_than_its_handshake_said_fills_the_links() {
        for (away_ms, seconds) in [(10, 2), (40, 2), (200, 5)] {
            let (bytes, queue) = run(away_ms, seconds);
            println!("{away_ms} ms: {bytes} bytes, queue {queue}");
            assert!(bytes >= 1_200_000, "{away_ms} ms: {bytes}");
            assert!(queue <= 150_000, "{away_ms} ms: {queue}");
        }
    }
}
