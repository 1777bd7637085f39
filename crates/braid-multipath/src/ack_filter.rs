//! Fewer acknowledgements for TCP flows (*ACK filtering*, RFC 3449 §5.2.1): only the newest of each interval passes. Windows of Linux grow
//! by what is acknowledged, not by acknowledgements (RFC 9438 §4.2); other senders count a few segments for each (RFC 3465 §2.3).
//!
//! **At the end that sends the flow**, for one that is still looking for its rate ([`AckFilter::for_new_flows`]): HyStart (RFC 9406), the end of
//! slow start in CUBIC, takes a round trip that has grown for a full link. Over two links it also grows when the longer one comes into
//! use, so a flow would stop at a part of what the links carry, and need seconds to find the rest. HyStart wants eight samples in a
//! round trip, and each acknowledgement is one. So until the links are full, those pass by which another part of what was in flight as a
//! round trip began is acknowledged ([`Spacing::steps`]), the last of it, and any that comes a quarter of a round trip after the one before:
//! a quarter of the links' round trip, of which the flow's own has more over links that jitter, and in a queue that is to be as long as a
//! far link's extra delay. While links that jitter begin, and beside a far link, none passes for its time alone once three have passed
//! in the flow's own. An acknowledgement with data, or of nothing new, is not counted.
//! A round trip takes no longer by that: the last of a small window, on which the rest of a short flow waits, passes at once. Linux also
//! takes a train of acknowledgements for a full link, 2 ms apart at most, that lasts for half a round trip; there are so few parts that they
//! cannot last as long. A flow whose links are full, or that lost something, is left alone from then on.
//!
//! **At the end that receives the flow**, for one that has received much ([`AckFilter::for_bulk_flows`]): each acknowledgement is a datagram of
//! its own, and those of a fast download fill links that are slow upwards; then they are late, and the reports beside them too.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::Time;

use crate::flow_table::FlowTable;
use crate::sequence::is_above;

/// Flows that are filtered at a time, by their hashes. Each flow has a place at the end that receives it, those with little traffic too.
const NEW_FLOWS: usize = 64;
const BULK_FLOWS: usize = 256;

/// A flow that has received this much is bulk.
const BULK_BYTES: u64 = 1_000_000;

/// An acknowledgement of as much more than the last one that passed does not wait: 16 segments.
const MAX_STEP: u64 = 24_000;

/// A bulk flow is left alone for this long after a signal: a sender tells by the first acknowledgement of what it sent again if that was
/// needed (RFC 3522).
const RECOVERY: Duration = Duration::from_secs(1);

/// While a link that jitters begins, and beside a far one, none of a new flow's acknowledgements passes for its time alone once so many of
/// its round trip have. With those that end one of five parts HyStart has no ninth one, however much longer than the links' the round trip
/// is.
const MAX_TIMED: u32 = 3;

/// But one that none follows passes after so many intervals.
const LONG_WAIT: u32 = 6;

/// A bulk flow keeps its place for this long without an acknowledgement.
const IDLE: Duration = Duration::from_secs(1);

/// The acknowledgements of a flow that pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spacing {
    /// The longest wait of one after the last that passed.
    pub interval: Duration,
    /// Equal parts of what is in flight as a round trip of a new flow begins; one passes after each of them. Zero for none.
    pub steps: u32,
    /// True if few pass for their time alone: a link that jitters begins, or one is far or may turn out to be.
    pub few: bool,
}

/// A segment of TCP, as far as the filter tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// It has SYN: a flow begins.
    Handshake,
    /// Nothing but an acknowledgement of everything below this number.
    Ack(u32),
    /// It tells of loss, of congestion, or of the flow's end: SACK, ECE, FIN, RST.
    Signal,
    /// Any other, such as one with data.
    Other,
}

/// The flows that are filtered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// From the handshake to the first signal.
    New,
    /// From [`BULK_BYTES`] on.
    Bulk,
}

#[derive(Debug)]
struct Flow<T> {
    /// The highest number acknowledged, and the bytes acknowledged up to it.
    acked: Option<u32>,
    bytes: u64,
    /// Time when an acknowledgement last passed, and the bytes that it acknowledged.
    passed: Time,
    passed_bytes: u64,
    /// Time of the last signal.
    signalled: Option<Time>,
    /// The number after the newest byte that the flow sent.
    sent: Option<u32>,
    /// Of a new flow: its present round trip.
    round: Option<Round>,
    /// The newest acknowledgement, and the time until which it waits for a newer one.
    held: Option<(Time, T)>,
}

/// A flow's round trip: as long as what was in flight as it began is being acknowledged.
#[derive(Clone, Copy, Debug)]
struct Round {
    end: u32,
    /// Bytes of a step.
    step: u64,
    /// Acknowledgements that have passed in it.
    passed: u32,
}

/// Passes the acknowledgements of one direction at one end of a bond.
#[derive(Debug)]
pub struct AckFilter<T> {
    scope: Scope,
    flows: FlowTable<Flow<T>>,
    /// No acknowledgement waits for less long.
    due: Option<Time>,
    passing: VecDeque<T>,
}

impl<T> AckFilter<T> {
    /// Returns a filter of flows that this end sends. Another flow with the same place takes the place of the one before.
    #[must_use]
    pub fn for_new_flows() -> AckFilter<T> {
        AckFilter::new(Scope::New, NEW_FLOWS)
    }

    /// Returns a filter of flows that this end receives. Another flow with the same place is left alone until the one before is idle.
    #[must_use]
    pub fn for_bulk_flows() -> AckFilter<T> {
        AckFilter::new(Scope::Bulk, BULK_FLOWS)
    }

    fn new(scope: Scope, places: usize) -> AckFilter<T> {
        AckFilter {
            scope,
            flows: FlowTable::new(places),
            due: None,
            passing: VecDeque::new(),
        }
    }

    /// Notes that a flow sends everything below this number.
    pub fn handle_sent(&mut self, flow: u32, end: u32) {
        if let Some(of) = self.flows.get_mut(flow)
            && of.sent.is_none_or(|sent| is_above(end, sent))
        {
            of.sent = Some(end);
        }
    }

    /// Returns true for a flow that has a place.
    #[must_use]
    pub fn follows(&self, flow: u32) -> bool {
        self.flows.get(flow).is_some()
    }

    /// Takes a segment that acknowledges this flow. `spacing` is none if none waits, and if a new
    /// flow is to be left alone from now on.
    pub fn handle(
        &mut self,
        now: Time,
        flow: u32,
        segment: Segment,
        spacing: Option<Spacing>,
        item: T,
    ) {
        match self.judge(now, flow, segment, spacing) {
            Some(until) => self.hold(flow, until, item),
            None => self.passing.push_back(item),
        }
    }

    /// The same for an item that is made only if it has to wait. Returns true if it does not: it is then the caller's to pass on, after all
    /// that [`AckFilter::poll`] returns.
    pub fn passes(
        &mut self,
        now: Time,
        flow: u32,
        segment: Segment,
        spacing: Option<Spacing>,
        item: impl FnOnce() -> T,
    ) -> bool {
        let until = self.judge(now, flow, segment, spacing);
        if let Some(until) = until {
            self.hold(flow, until, item());
        }
        until.is_none()
    }

    /// Returns the time until which a segment waits for a newer one; none if it passes now.
    fn judge(
        &mut self,
        now: Time,
        flow: u32,
        segment: Segment,
        spacing: Option<Spacing>,
    ) -> Option<Time> {
        let begins = segment == Segment::Handshake;
        let takes = match self.scope {
            Scope::New => begins,
            Scope::Bulk => {
                let is_idle = |of: &Flow<T>| now.since(of.passed) >= IDLE;
                let is_new = matches!(segment, Segment::Ack(_)) && !self.follows(flow);
                (begins || is_new) && self.flows.rival(flow).is_none_or(is_idle)
            }
        };
        if takes {
            let before = self.flows.insert(flow, Flow::new(now));
            self.passing.extend(before.and_then(Flow::into_held));
        }
        let ends = spacing.is_none() || segment == Segment::Signal;
        if self.scope == Scope::New && ends && !begins {
            let ended = self.flows.remove(flow);
            self.passing.extend(ended.and_then(Flow::into_held));
        }
        let of = self.flows.get_mut(flow)?;
        if segment == Segment::Signal {
            of.signalled = Some(now);
        }
        if !of.advance(segment) {
            // The sender has to see each that opens its window, or is told twice.
            self.passing.extend(of.held.take().map(|(_, held)| held));
            return None;
        }
        // This one covers the one that is still held.
        of.held = None;
        let recovers = of.signalled.is_some_and(|at| now.since(at) < RECOVERY);
        let waits = self.scope == Scope::New || (of.bytes >= BULK_BYTES && !recovers);
        let far = self.scope == Scope::Bulk && of.bytes - of.passed_bytes >= MAX_STEP;
        let spacing = spacing.filter(|_| waits);
        let steps = self.scope == Scope::New && spacing.is_some_and(|s| of.ends_step(s.steps));
        let many = spacing.is_some_and(|s| s.few)
            && of.round.is_some_and(|round| round.passed >= MAX_TIMED);
        let interval = spacing.map_or(Duration::ZERO, |spacing| spacing.interval);
        let until = of.passed + interval * if many { LONG_WAIT } else { 1 };
        if far || steps || until <= now {
            of.pass(now);
            return None;
        }
        Some(until)
    }

    /// Keeps an item of a flow that has a place.
    fn hold(&mut self, flow: u32, until: Time, item: T) {
        if let Some(of) = self.flows.get_mut(flow) {
            of.held = Some((until, item));
            self.due = Some(self.due.map_or(until, |due| due.min(until)));
        }
    }

    /// Returns the next item that passes.
    pub fn poll(&mut self) -> Option<T> {
        self.passing.pop_front()
    }

    /// Returns the time at which [`AckFilter::handle_timeout`] is due. It may be too early.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.due
    }

    /// Lets pass the acknowledgements whose time has come.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        self.due = None;
        for of in self.flows.values_mut() {
            if let Some((_, held)) = of.held.take_if(|(at, _)| *at <= now) {
                of.pass(now);
                self.passing.push_back(held);
            }
            let due = self
                .due
                .into_iter()
                .chain(of.held.as_ref().map(|(at, _)| *at));
            self.due = due.min();
        }
    }
}

impl<T> Flow<T> {
    fn new(now: Time) -> Flow<T> {
        Flow {
            acked: None,
            bytes: 0,
            passed: now,
            passed_bytes: 0,
            signalled: None,
            sent: None,
            round: None,
            held: None,
        }
    }

    /// Returns true for an acknowledgement of more than before.
    fn advance(&mut self, segment: Segment) -> bool {
        let Segment::Ack(number) = segment else {
            return false;
        };
        let more = self.acked.map_or(0, |acked| number.wrapping_sub(acked));
        let advances = self.acked.is_none_or(|acked| is_above(number, acked));
        if advances {
            self.acked = Some(number);
            self.bytes += u64::from(more);
        }
        advances
    }

    /// Returns true if the newest acknowledgement ends a step of a round trip, or the round trip: the flow has nothing more to wait for.
    fn ends_step(&mut self, steps: u32) -> bool {
        let (Some(acked), Some(sent)) = (self.acked, self.sent) else {
            return false;
        };
        let round = *self.round.get_or_insert_with(|| Round {
            end: sent,
            step: u64::from(
                sent.wrapping_sub(acked)
                    .checked_div(steps)
                    .unwrap_or(u32::MAX),
            ),
            passed: 0,
        });
        let ends = !is_above(round.end, acked);
        if ends {
            self.round = None;
        }
        ends || self.bytes - self.passed_bytes >= round.step
    }

    /// Notes that the newest acknowledgement passes.
    fn pass(&mut self, now: Time) {
        self.passed = now;
        self.passed_bytes = self.bytes;
        if let Some(round) = &mut self.round {
            round.passed += 1;
        }
    }

    fn into_held(self) -> Option<T> {
        self.held.map(|(_, held)| held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACING: Option<Spacing> = Some(Spacing {
        interval: Duration::from_millis(4),
        steps: 5,
        few: true,
    });

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    /// The numbers that pass, each with the time at which it does.
    struct Passed {
        filter: AckFilter<u32>,
        seen: Vec<(u64, u32)>,
    }

    impl Passed {
        fn new() -> Passed {
            let mut passed = Passed {
                filter: AckFilter::for_new_flows(),
                seen: Vec::new(),
            };
            passed.take(0, 7, Segment::Handshake, SPACING);
            passed.seen.clear();
            passed
        }

        fn take(&mut self, ms: u64, flow: u32, segment: Segment, spacing: Option<Spacing>) {
            while let Some(due) = self.filter.poll_timeout().filter(|due| *due <= at(ms)) {
                self.filter.handle_timeout(due);
                self.note(due.as_nanos() / 1_000_000);
            }
            let item = match segment {
                Segment::Ack(number) => number,
                _ => 0,
            };
            self.filter.handle(at(ms), flow, segment, spacing, item);
            self.note(ms);
        }

        fn note(&mut self, ms: u64) {
            while let Some(item) = self.filter.poll() {
                self.seen.push((ms, item));
            }
        }

        fn acks(&mut self, acks: &[(u64, u32)]) {
            for (ms, number) in acks {
                self.ack(*ms, *number);
            }
        }

        fn ack(&mut self, ms: u64, number: u32) {
            self.take(ms, 7, Segment::Ack(number), SPACING);
        }
    }

    #[test]
    fn the_newest_of_an_interval_passes() {
        let mut passed = Passed::new();
        passed.acks(&[(10, 1), (11, 2), (12, 3), (13, 4), (16, 5), (40, 6)]);
        assert_eq!(passed.seen, [(10, 1), (14, 4), (18, 5), (40, 6)]);
        passed.filter.handle_timeout(at(40));
        assert_eq!(passed.filter.poll_timeout(), None);
    }

    /// None of it takes as long as the interval.
    #[test]
    fn a_round_trip_passes_in_fifths_and_its_end_at_once() {
        let mut passed = Passed::new();
        passed.filter.handle_sent(7, 110);
        passed.acks(&[(10, 10), (10, 20), (10, 29), (11, 30), (11, 49), (11, 75)]);
        passed.acks(&[(11, 94), (12, 95), (12, 109), (12, 110)]);
        assert_eq!(
            passed.seen,
            [(10, 10), (11, 30), (11, 75), (12, 95), (12, 110)]
        );
        passed.seen.clear();
        passed.filter.handle_sent(7, 300);
        passed.filter.handle_sent(7, 200);
        passed.acks(&[(13, 125), (13, 144), (13, 145), (14, 146), (21, 147)]);
        assert_eq!(passed.seen, [(13, 145), (17, 146), (21, 147)]);
    }

    /// Over links that jitter a flow's round trip is many times as long as theirs. One acknowledgement in an interval would be 24 in it.
    #[test]
    fn a_long_round_trip_passes_no_more_than_a_short_one() {
        let mut passed = Passed::new();
        passed.filter.handle_sent(7, 1_010);
        for ms in 0..=100 {
            passed.ack(10 + ms, 10 + 10 * ms as u32);
        }
        let times: Vec<_> = passed.seen.iter().map(|(ms, _)| *ms).collect();
        assert_eq!(times, [10, 14, 18, 37, 57, 77, 97, 110]);
        // The last of a flow that stands still does not wait for ever.
        passed.filter.handle_sent(7, 2_010);
        passed.acks(&[(111, 1_011), (115, 1_012), (119, 1_013), (123, 1_014)]);
        passed.seen.clear();
        passed.ack(200, 1_015);
        assert_eq!(passed.seen[0], (146, 1_014));
    }

    #[test]
    fn a_window_of_few_packets_passes_as_it_comes() {
        let mut passed = Passed::new();
        let iss = u32::MAX - 5_000;
        passed.ack(10, iss);
        passed.filter.handle_sent(7, iss.wrapping_add(15_000));
        let acks = [3_000, 6_000, 9_000, 12_000, 15_000].map(|more| (11, iss.wrapping_add(more)));
        passed.acks(&acks);
        assert_eq!(passed.seen[1..], acks);
    }

    #[test]
    fn a_flow_has_a_place_from_its_handshake_on() {
        let mut filter = AckFilter::for_new_flows();
        let other = 7 + NEW_FLOWS as u32;
        filter.handle_sent(7, 100);
        assert!(!filter.follows(7));
        filter.handle(at(0), 7, Segment::Handshake, SPACING, 0);
        filter.handle_sent(other, 100);
        assert!(filter.follows(7) && !filter.follows(other) && !filter.follows(8));
        assert_eq!(filter.flows.get(7).and_then(|of| of.sent), None);
    }

    #[test]
    fn numbers_go_round() {
        let mut passed = Passed::new();
        passed.acks(&[(10, u32::MAX - 1), (11, u32::MAX), (12, 3)]);
        passed.take(20, 7, Segment::Other, SPACING);
        assert_eq!(passed.seen, [(10, u32::MAX - 1), (14, 3), (20, 0)]);
    }

    #[test]
    fn nothing_else_waits_and_order_is_kept() {
        for segment in [Segment::Signal, Segment::Other, Segment::Ack(2)] {
            let mut passed = Passed::new();
            passed.ack(10, 1);
            passed.ack(11, 2);
            passed.take(12, 7, segment, SPACING);
            let again = if segment == Segment::Ack(2) { 2 } else { 0 };
            assert_eq!(passed.seen, [(10, 1), (12, 2), (12, again)]);
        }
    }

    #[test]
    fn a_flow_is_left_alone_once_its_links_are_full_or_it_lost_something() {
        for (segment, spacing) in [(Segment::Signal, SPACING), (Segment::Ack(3), None)] {
            let mut passed = Passed::new();
            passed.ack(10, 1);
            passed.ack(11, 2);
            passed.take(12, 7, segment, spacing);
            passed.seen.clear();
            passed.ack(13, 4);
            passed.ack(13, 5);
            assert_eq!(passed.seen, [(13, 4), (13, 5)]);
        }
    }

    #[test]
    fn flows_that_began_before_are_left_alone_and_others_with_the_same_place_replaced() {
        let mut passed = Passed::new();
        let other = 7 + NEW_FLOWS as u32;
        for number in 1..=2 {
            passed.take(10, other, Segment::Ack(number), SPACING);
        }
        passed.ack(10, 1);
        passed.ack(11, 2);
        passed.take(12, other, Segment::Handshake, SPACING);
        assert_eq!(passed.seen, [(10, 1), (10, 2), (10, 1), (12, 2), (12, 0)]);
        passed.ack(12, 3);
        passed.ack(12, 4);
        assert_eq!(passed.seen[5..], [(12, 3), (12, 4)]);
    }

    /// A filter of bulk flows, and a flow that has just become one.
    fn bulk() -> Passed {
        let mut passed = Passed {
            filter: AckFilter::for_bulk_flows(),
            seen: Vec::new(),
        };
        passed.acks(&[(0, 0), (1, 400_000), (2, 999_999)]);
        assert_eq!(passed.seen, [(0, 0), (1, 400_000), (2, 999_999)]);
        passed.seen.clear();
        passed
    }

    #[test]
    fn a_flow_that_has_received_much_is_bulk() {
        let mut passed = bulk();
        passed.acks(&[
            (3, 1_000_000),
            (4, 1_000_001),
            (5, 1_000_002),
            (30, 1_000_003),
        ]);
        assert_eq!(passed.seen, [(6, 1_000_002), (30, 1_000_003)]);
    }

    #[test]
    fn no_acknowledgement_of_a_bulk_flow_stays_behind() {
        for segment in [Segment::Other, Segment::Ack(1_000_001)] {
            let mut passed = bulk();
            passed.ack(3, 1_000_001);
            passed.take(4, 7, segment, SPACING);
            assert_eq!(passed.seen.len(), 2);
            assert_eq!(passed.seen[0], (4, 1_000_001));
            passed.ack(5, 1_000_002);
            assert_eq!(passed.seen.len(), 2);
        }
    }

    #[test]
    fn a_bulk_flow_that_lost_something_is_left_alone_for_a_second() {
        let mut passed = bulk();
        passed.ack(3, 1_000_001);
        passed.take(4, 7, Segment::Signal, SPACING);
        assert_eq!(passed.seen, [(4, 1_000_001), (4, 0)]);
        passed.seen.clear();
        passed.acks(&[
            (5, 1_000_002),
            (6, 1_000_003),
            (1_003, 1_000_004),
            (1_004, 1_000_005),
        ]);
        assert_eq!(
            passed.seen,
            [(5, 1_000_002), (6, 1_000_003), (1_003, 1_000_004)]
        );
    }

    #[test]
    fn a_bulk_flow_without_an_interval_is_left_alone_for_that_time() {
        let mut passed = bulk();
        passed.ack(3, 1_000_001);
        passed.take(4, 7, Segment::Ack(1_000_002), None);
        passed.ack(5, 1_000_003);
        assert_eq!(passed.seen, [(4, 1_000_002)]);
        passed.ack(9, 1_000_004);
        assert_eq!(passed.seen, [(4, 1_000_002), (8, 1_000_003)]);
    }

    #[test]
    fn a_bulk_flow_keeps_its_place_until_it_is_idle() {
        let mut passed = bulk();
        let other = 7 + BULK_FLOWS as u32;
        passed.take(3, other, Segment::Handshake, SPACING);
        passed.ack(4, 1_000_001);
        assert_eq!(passed.seen, [(3, 0)]);
        passed.take(2_000, other, Segment::Ack(1), SPACING);
        passed.ack(2_001, 1_000_002);
        passed.ack(2_002, 1_000_003);
        assert_eq!(
            passed.seen[1..],
            [
                (6, 1_000_001),
                (2_000, 1),
                (2_001, 1_000_002),
                (2_002, 1_000_003)
            ]
        );
    }

    #[test]
    fn an_item_is_made_only_if_it_waits() {
        let mut filter = AckFilter::for_bulk_flows();
        let acks = [0, 1_000_000, 1_000_001, 1_000_002].map(Segment::Ack);
        let passes = acks.map(|ack| filter.passes(at(5), 7, ack, SPACING, || ack));
        assert_eq!(passes, [true, true, false, false]);
        assert_eq!(filter.poll(), None);
        assert!(filter.passes(at(6), 7, Segment::Other, SPACING, || unreachable!()));
        assert_eq!(filter.poll(), Some(acks[3]));
    }

    #[test]
    fn no_acknowledgement_of_many_segments_waits() {
        let mut passed = bulk();
        passed.acks(&[
            (3, 1_010_000),
            (4, 1_023_998),
            (5, 1_023_999),
            (5, 1_024_000),
        ]);
        assert_eq!(passed.seen, [(5, 1_023_999)]);
    }
}
