//! Fewer acknowledgements for a TCP flow that is still looking for its rate.
//!
//! HyStart (RFC 9406), the end of slow start in CUBIC, takes a round trip that has grown for a full link. Over two links it also grows
//! when the longer one comes into use, so a flow would stop at a part of what the links carry, and need seconds to find the rest.
//! HyStart wants eight samples in a round trip, and each acknowledgement is one. So until the links are full, only the newest
//! acknowledgement of each interval passes (*ACK filtering*, RFC 3449 §5.2.1), with intervals of a quarter of the round trip. Windows
//! grow by what is acknowledged, not by acknowledgements (RFC 3465, RFC 9438 §4.2). A flow whose links are full, or that lost
//! something, is left alone from then on.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::Time;

/// Flows that are filtered at a time. A flow takes the place of another one with the same place.
const FLOWS: usize = 64;

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

#[derive(Debug)]
struct Flow<T> {
    key: u32,
    /// The highest number acknowledged.
    acked: Option<u32>,
    /// Time when an acknowledgement last passed.
    passed: Time,
    /// The newest acknowledgement, and the time until which it waits for a newer one.
    held: Option<(Time, T)>,
}

/// Passes the acknowledgements that one end of a bond has got for the flows that it sends.
#[derive(Debug)]
pub struct AckFilter<T> {
    /// Empty before the first flow.
    flows: Vec<Option<Flow<T>>>,
    /// No acknowledgement waits for less long.
    due: Option<Time>,
    passing: VecDeque<T>,
}

impl<T> Default for AckFilter<T> {
    fn default() -> Self {
        AckFilter {
            flows: Vec::new(),
            due: None,
            passing: VecDeque::new(),
        }
    }
}

impl<T> AckFilter<T> {
    /// Takes a segment that acknowledges this flow. `interval` is the least time between two acknowledgements; none if the flow
    /// is to be left alone from now on.
    pub fn handle(
        &mut self,
        now: Time,
        flow: u32,
        segment: Segment,
        interval: Option<Duration>,
        item: T,
    ) {
        if segment == Segment::Handshake {
            self.flows.resize_with(FLOWS, || None);
            let of = Flow {
                key: flow,
                acked: None,
                passed: now,
                held: None,
            };
            let before = self.flows[flow as usize % FLOWS].replace(of);
            self.passing.extend(before.and_then(Flow::into_held));
            self.passing.push_back(item);
            return;
        }
        let place = self.flows.get_mut(flow as usize % FLOWS);
        let Some(place) = place.filter(|place| place.as_ref().is_some_and(|of| of.key == flow))
        else {
            self.passing.push_back(item);
            return;
        };
        let interval = interval.filter(|_| segment != Segment::Signal);
        let (Some(of), Some(interval)) = (place.as_mut(), interval) else {
            self.passing.extend(place.take().and_then(Flow::into_held));
            self.passing.push_back(item);
            return;
        };
        if !of.advance(segment) {
            // The sender has to see each that opens its window, or is told twice.
            self.passing.extend(of.held.take().map(|(_, held)| held));
            self.passing.push_back(item);
            return;
        }
        // This one covers the one that is still held.
        of.held = None;
        let at = of.passed + interval;
        if at <= now {
            of.passed = now;
            self.passing.push_back(item);
        } else {
            of.held = Some((at, item));
            self.due = Some(self.due.map_or(at, |due| due.min(at)));
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
        for of in self.flows.iter_mut().flatten() {
            if let Some((_, held)) = of.held.take_if(|(at, _)| *at <= now) {
                of.passed = now;
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
    /// Returns true for an acknowledgement of more than before.
    fn advance(&mut self, segment: Segment) -> bool {
        let Segment::Ack(number) = segment else {
            return false;
        };
        let is_more = |acked: u32| number.wrapping_sub(acked).cast_signed() > 0;
        let advances = self.acked.is_none_or(is_more);
        if advances {
            self.acked = Some(number);
        }
        advances
    }

    fn into_held(self) -> Option<T> {
        self.held.map(|(_, held)| held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Option<Duration> = Some(Duration::from_millis(4));

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
                filter: AckFilter::default(),
                seen: Vec::new(),
            };
            passed.take(0, 7, Segment::Handshake, INTERVAL);
            passed.seen.clear();
            passed
        }

        fn take(&mut self, ms: u64, flow: u32, segment: Segment, interval: Option<Duration>) {
            while let Some(due) = self.filter.poll_timeout().filter(|due| *due <= at(ms)) {
                self.filter.handle_timeout(due);
                self.note(due.as_nanos() / 1_000_000);
            }
            let item = match segment {
                Segment::Ack(number) => number,
                _ => 0,
            };
            self.filter.handle(at(ms), flow, segment, interval, item);
            self.note(ms);
        }

        fn note(&mut self, ms: u64) {
            while let Some(item) = self.filter.poll() {
                self.seen.push((ms, item));
            }
        }

        fn ack(&mut self, ms: u64, number: u32) {
            self.take(ms, 7, Segment::Ack(number), INTERVAL);
        }
    }

    #[test]
    fn the_newest_of_an_interval_passes() {
        let mut passed = Passed::new();
        for (ms, number) in [(10, 1), (11, 2), (12, 3), (13, 4), (16, 5), (40, 6)] {
            passed.ack(ms, number);
        }
        assert_eq!(passed.seen, [(10, 1), (14, 4), (18, 5), (40, 6)]);
        passed.filter.handle_timeout(at(40));
        assert_eq!(passed.filter.poll_timeout(), None);
    }

    #[test]
    fn numbers_go_round() {
        let mut passed = Passed::new();
        for (ms, number) in [(10, u32::MAX - 1), (11, u32::MAX), (12, 3)] {
            passed.ack(ms, number);
        }
        passed.take(20, 7, Segment::Other, INTERVAL);
        assert_eq!(passed.seen, [(10, u32::MAX - 1), (14, 3), (20, 0)]);
    }

    #[test]
    fn nothing_else_waits_and_order_is_kept() {
        for segment in [Segment::Signal, Segment::Other, Segment::Ack(2)] {
            let mut passed = Passed::new();
            passed.ack(10, 1);
            passed.ack(11, 2);
            passed.take(12, 7, segment, INTERVAL);
            let again = if segment == Segment::Ack(2) { 2 } else { 0 };
            assert_eq!(passed.seen, [(10, 1), (12, 2), (12, again)]);
        }
    }

    #[test]
    fn a_flow_is_left_alone_once_its_links_are_full_or_it_lost_something() {
        for (segment, interval) in [(Segment::Signal, INTERVAL), (Segment::Ack(3), None)] {
            let mut passed = Passed::new();
            passed.ack(10, 1);
            passed.ack(11, 2);
            passed.take(12, 7, segment, interval);
            passed.seen.clear();
            passed.ack(13, 4);
            passed.ack(13, 5);
            assert_eq!(passed.seen, [(13, 4), (13, 5)]);
        }
    }

    #[test]
    fn flows_that_began_before_are_left_alone_and_others_with_the_same_place_replaced() {
        let mut passed = Passed::new();
        let other = 7 + FLOWS as u32;
        for number in 1..=2 {
            passed.take(10, other, Segment::Ack(number), INTERVAL);
        }
        passed.ack(10, 1);
        passed.ack(11, 2);
        passed.take(12, other, Segment::Handshake, INTERVAL);
        assert_eq!(passed.seen, [(10, 1), (10, 2), (10, 1), (12, 2), (12, 0)]);
        passed.ack(12, 3);
        passed.ack(12, 4);
        assert_eq!(passed.seen[5..], [(12, 3), (12, 4)]);
    }
}
