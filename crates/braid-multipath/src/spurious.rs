//! Retransmissions of TCP that nobody needs: the original still waits in the queue of this end.
//!
//! A sender takes a segment for lost when later ones have arrived (RACK, RFC 8985), or when nothing has for a time-out. A link that falls to a
//! thirtieth of its rate, and is then overtaken by another one, gives it both reasons, and it sends all again that it has sent: Linux, too,
//! once a first retransmission and its late original are taken for each other. Behind a queue of two seconds that is two seconds in which
//! links carry data that have arrived already. The original in the queue is not lost, so its retransmission is dropped. Linux does so for
//! data that wait in its own host ("TCPSpuriousRtxHostQueues"). If the queue drops the original after that, the sender sends it again later.
//!
//! Every so often one of a flow's segments is a *checkpoint*: its number, and its place in the queue. A flow's new data enter the queue in
//! order, so while the checkpoint waits, all data from its number on do. Data that are missing between two segments were never here, and no
//! checkpoint before them counts. Data that have left the queue are queued again once, and not a third time while they wait.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use braid_core::Time;

use crate::flow_table::FlowTable;
use crate::sequence::is_above;

/// Flows followed at a time, by their hashes.
const FLOWS: usize = 256;

/// Places from one checkpoint of a flow to the next, and most checkpoints of one.
const CHECKPOINT_INTERVAL: u64 = 16;
const MAX_CHECKPOINTS: usize = 512;

/// Most segments of all flows that wait for the second time and are known.
const MAX_AGAIN: usize = 4_096;

/// A flow keeps its place for this long without data.
const IDLE: Duration = Duration::from_secs(1);

/// A segment with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSegment {
    /// Number of its first byte.
    pub start: u32,
    /// Number after its last byte.
    pub end: u32,
    /// Everything of the other direction below this number has arrived.
    pub acknowledgement: u32,
    /// Its receive window, as it is written.
    pub window: u16,
    /// True if it has no flags but those of data and no options but timestamps: others say more, and are never dropped.
    pub is_plain: bool,
}

#[derive(Debug)]
struct Flow {
    /// The number after the newest byte, the newest acknowledgement, and the last window.
    sent: u32,
    acknowledged: u32,
    window: u16,
    at: Time,
    /// Numbers and places, in order.
    checkpoints: VecDeque<(u32, u64)>,
}

/// Finds retransmissions that are not needed, among what one end sends.
#[derive(Debug)]
pub struct SpuriousFilter {
    flows: FlowTable<Flow>,
    /// Segments that wait, or waited, for the second time by their flows and the numbers of their first bytes: those after their last ones,
    /// and their places.
    again: BTreeMap<(u32, u32), (u32, u64)>,
}

impl Default for SpuriousFilter {
    fn default() -> SpuriousFilter {
        SpuriousFilter {
            flows: FlowTable::new(FLOWS),
            again: BTreeMap::new(),
        }
    }
}

impl SpuriousFilter {
    /// Returns true for a segment with nothing but data that wait in its flow's queue, for the first time or again. `places` are those of that
    /// queue, [`Sender::places`](crate::bond::Sender::places).
    pub fn is_spurious(
        &mut self,
        flow: u32,
        segment: DataSegment,
        places: impl FnOnce() -> Option<Range<u64>>,
    ) -> bool {
        let Some(of) = self.flows.get_mut(flow).filter(|of| {
            let is_new = is_above(segment.end, of.sent);
            let tells_more =
                is_above(segment.acknowledgement, of.acknowledged) || segment.window != of.window;
            !is_new && !tells_more && segment.is_plain
        }) else {
            return false;
        };
        let Some(places) = places() else {
            return false;
        };
        of.forget_passed(places.start);
        let waits = of.checkpoints.front().copied();
        let waits_again = self.again.get(&(flow, segment.start));
        waits.is_some_and(|(number, _)| !is_above(number, segment.start))
            || waits_again
                .is_some_and(|(end, place)| *place >= places.start && !is_above(segment.end, *end))
    }

    /// Notes a segment that was sent, with the places in its flow's queue up to its own; none if it does not wait there.
    pub fn handle_sent(
        &mut self,
        now: Time,
        flow: u32,
        segment: DataSegment,
        places: Option<Range<u64>>,
    ) {
        if (self.flows.rival(flow)).is_some_and(|of| now.since(of.at) < IDLE) {
            return;
        }
        let of = self.flows.get_or_insert_with(flow, || Flow {
            sent: segment.start,
            acknowledged: segment.acknowledgement,
            window: segment.window,
            at: now,
            checkpoints: VecDeque::new(),
        });
        if of.handle_sent(now, segment, places.clone()) {
            self.handle_sent_again(flow, segment, places);
        }
    }

    fn handle_sent_again(&mut self, flow: u32, segment: DataSegment, places: Option<Range<u64>>) {
        let key = (flow, segment.start);
        let Some(places) = places else {
            self.again.remove(&key);
            return;
        };
        if self.again.len() == MAX_AGAIN && !self.again.contains_key(&key) {
            (self.again).retain(|(of, _), (_, place)| *of == flow && *place >= places.start);
            // Else they would be looked through for each of the next ones.
            if self.again.len() > MAX_AGAIN / 2 {
                self.again.clear();
            }
        }
        let place = places.end.saturating_sub(1);
        self.again.insert(key, (segment.end, place));
    }

    /// Forgets a flow, as another one begins.
    pub fn forget(&mut self, flow: u32) {
        self.flows.remove(flow);
    }
}

impl Flow {
    /// Returns true if the segment has no new data.
    fn handle_sent(&mut self, now: Time, segment: DataSegment, places: Option<Range<u64>>) -> bool {
        (self.at, self.window) = (now, segment.window);
        if is_above(segment.acknowledgement, self.acknowledged) {
            self.acknowledged = segment.acknowledgement;
        }
        if !is_above(segment.end, self.sent) {
            return true;
        }
        let has_gap = is_above(segment.start, self.sent);
        let is_next = has_gap || segment.start == self.sent;
        self.sent = segment.end;
        let Some(places) = places else {
            self.checkpoints.clear();
            return false;
        };
        if has_gap {
            self.checkpoints.clear();
        }
        self.forget_passed(places.start);
        let place = places.end.saturating_sub(1);
        let is_due = |(_, last): &(u32, u64)| place >= last + CHECKPOINT_INTERVAL;
        if is_next && self.checkpoints.back().is_none_or(is_due) {
            if self.checkpoints.len() == MAX_CHECKPOINTS {
                self.checkpoints.pop_front();
            }
            self.checkpoints.push_back((segment.start, place));
        }
        false
    }

    /// Forgets checkpoints that wait no more.
    fn forget_passed(&mut self, first: u64) {
        while self
            .checkpoints
            .front()
            .is_some_and(|(_, place)| *place < first)
        {
            self.checkpoints.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: u32 = 7;
    const LEN: u32 = 1_000;

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    /// The segment of so many that follow one another.
    fn segment(index: u32) -> DataSegment {
        DataSegment {
            start: index.wrapping_mul(LEN),
            end: (index + 1).wrapping_mul(LEN),
            acknowledgement: 0,
            window: 500,
            is_plain: true,
        }
    }

    /// Sends segments that take the places from the first one's number on, while none has left.
    fn send(filter: &mut SpuriousFilter, segments: Range<u32>) {
        for index in segments {
            let places = Some(0..u64::from(index) + 1);
            filter.handle_sent(at(0), FLOW, segment(index), places);
        }
    }

    /// True if a segment is spurious while the places from `first` on wait.
    fn is_spurious(filter: &mut SpuriousFilter, index: u32, first: u64) -> bool {
        filter.is_spurious(FLOW, segment(index), || Some(first..1_000))
    }

    fn filter(segments: Range<u32>) -> SpuriousFilter {
        let mut filter = SpuriousFilter::default();
        send(&mut filter, segments);
        filter
    }

    #[test]
    fn data_that_wait_are_not_sent_again_and_data_that_have_left_are() {
        let mut filter = filter(0..100);
        assert!(is_spurious(&mut filter, 0, 0));
        assert!(is_spurious(&mut filter, 99, 0));
        // New data are never spurious.
        assert!(!is_spurious(&mut filter, 100, 0));
        // 50 have left.
        assert!((0..50).all(|index| !is_spurious(&mut filter, index, 50)));
        // One of the checkpoints comes next.
        assert!((50 + 16..100).all(|index| is_spurious(&mut filter, index, 50)));
        assert!((0..100).all(|index| !is_spurious(&mut filter, index, 100)));
    }

    #[test]
    fn part_of_a_segment_that_waits_is_spurious_and_what_goes_beyond_it_is_not() {
        let mut filter = filter(0..10);
        let part = DataSegment {
            start: 2_500,
            end: 2_700,
            ..segment(2)
        };
        assert!(filter.is_spurious(FLOW, part, || Some(0..10)));
        let beyond = DataSegment {
            end: 10_001,
            ..segment(9)
        };
        assert!(!filter.is_spurious(FLOW, beyond, || Some(0..10)));
    }

    #[test]
    fn data_that_were_never_here_pass() {
        let mut filter = filter(0..10);
        // Between the ninth and the twentieth something was lost before it came here.
        filter.handle_sent(at(0), FLOW, segment(20), Some(0..11));
        assert!((0..20).all(|index| !is_spurious(&mut filter, index, 0)));
        assert!(is_spurious(&mut filter, 20, 0));
    }

    #[test]
    fn data_that_passed_the_queue_pass_again() {
        let mut filter = filter(0..10);
        filter.handle_sent(at(0), FLOW, segment(10), None);
        send(&mut filter, 11..12);
        assert!((0..11).all(|index| !is_spurious(&mut filter, index, 0)));
        assert!(is_spurious(&mut filter, 11, 0));
    }

    #[test]
    fn a_segment_that_says_more_than_its_data_passes() {
        let mut filter = filter(0..10);
        let says = |acknowledgement, is_plain| DataSegment {
            acknowledgement,
            is_plain,
            ..segment(5)
        };
        assert!(filter.is_spurious(FLOW, says(0, true), || Some(0..10)));
        assert!(!filter.is_spurious(FLOW, says(1, true), || Some(0..10)));
        assert!(!filter.is_spurious(FLOW, says(0, false), || Some(0..10)));
        let reopened = DataSegment {
            window: 501,
            ..segment(5)
        };
        assert!(!filter.is_spurious(FLOW, reopened, || Some(0..10)));
        assert!(!filter.is_spurious(FLOW, says(0, true), || None));
        assert!(!filter.is_spurious(FLOW + 1, says(0, true), || Some(0..10)));
    }

    #[test]
    fn data_that_have_left_are_queued_again_once() {
        let mut filter = filter(0..100);
        for (index, place) in (0..50).zip(100..) {
            assert!(!is_spurious(&mut filter, index, 50));
            filter.handle_sent(at(0), FLOW, segment(index), Some(50..place + 1));
        }
        assert!((0..50).all(|index| is_spurious(&mut filter, index, 100)));
        let beyond = DataSegment {
            end: 2_001,
            ..segment(1)
        };
        assert!(!filter.is_spurious(FLOW, beyond, || Some(100..150)));
        // Half of them have left again, and one went past the queue.
        assert!((0..25).all(|index| !is_spurious(&mut filter, index, 125)));
        assert!((25..50).all(|index| is_spurious(&mut filter, index, 125)));
        filter.handle_sent(at(0), FLOW, segment(30), None);
        assert!(!is_spurious(&mut filter, 30, 125));
    }

    #[test]
    fn numbers_go_round() {
        let mut filter = SpuriousFilter::default();
        let first = u32::MAX / LEN - 5;
        for (place, index) in (first..first + 20).enumerate() {
            filter.handle_sent(at(0), FLOW, segment(index), Some(0..place as u64 + 1));
        }
        assert!(is_spurious(&mut filter, first, 0));
        assert!(is_spurious(&mut filter, first + 19, 0));
        assert!(!is_spurious(&mut filter, first + 20, 0));
    }

    #[test]
    fn a_flow_that_begins_anew_is_another_one_and_does_not_take_the_place_of_one_that_sends() {
        let mut filter = filter(0..10);
        let other = FLOW + FLOWS as u32;
        filter.handle_sent(at(999), other, segment(0), Some(0..1));
        assert!(is_spurious(&mut filter, 5, 0));
        filter.handle_sent(at(1_000), other, segment(0), Some(0..1));
        assert!(!is_spurious(&mut filter, 5, 0));
        assert!(filter.is_spurious(other, segment(0), || Some(0..1)));
        filter.forget(other);
        assert!(!filter.is_spurious(other, segment(0), || Some(0..1)));
    }

    #[test]
    fn a_queue_without_end_needs_no_more_memory() {
        let mut filter = filter(0..MAX_CHECKPOINTS as u32 * 32);
        let checkpoints = &filter.flows.get(FLOW).expect("the flow").checkpoints;
        assert_eq!(checkpoints.len(), MAX_CHECKPOINTS);
        let again = |filter: &mut SpuriousFilter, indices: Range<u32>, places: Range<u64>| {
            for index in indices {
                filter.handle_sent(at(0), FLOW, segment(index), Some(places.clone()));
            }
            filter.again.len()
        };
        let most = MAX_AGAIN as u32;
        assert_eq!(again(&mut filter, 0..most, 0..1_000), MAX_AGAIN);
        // Those that have left make room, and then all do.
        assert_eq!(again(&mut filter, most..most + 10, 1_000..2_000), 10);
        assert_eq!(again(&mut filter, 0..most, 1_000..2_000), 10);
        // The last ones count.
        let last = MAX_CHECKPOINTS as u32 * 16;
        assert!(!is_spurious(&mut filter, last - 1, 0));
        assert!(is_spurious(&mut filter, last, 0));
    }
}
