//! TCP reordered by its own numbers, by [`Streams`] and by \[mpsdn\] Algorithm 1, over FIFO paths
//! in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use braid_core::Time;
use braid_multipath::resequence::{
    Algorithm1, Algorithm1Settings, Missing, PathId, Segment, SegmentKind, StreamLimits, Streams,
};
use proptest::prelude::*;

const NOTHING: [u32; 0] = [];

const SIZE: u32 = 1448;
/// More than any queue of these paths adds, less than the shortest wait.
const MOST_HOLD: Duration = Duration::from_millis(400);

fn at(micros: u64) -> Time {
    Time::from_nanos(1000 * micros)
}

fn data(seq: u32, path: u8) -> Segment {
    Segment {
        kind: SegmentKind::Data,
        seq,
        length: SIZE,
        path: Some(PathId(path)),
    }
}

fn open(seq: u32) -> Segment {
    Segment {
        kind: SegmentKind::Open,
        seq,
        length: 1,
        path: Some(PathId(0)),
    }
}

fn ours(latencies_ms: &[u64]) -> Streams<u8, u32> {
    let mut streams = Streams::new(Time::ZERO, StreamLimits::default());
    let latencies: Vec<_> = latencies_ms
        .iter()
        .map(|ms| Duration::from_millis(*ms))
        .collect();
    streams.set_paths(Time::ZERO, &latencies);
    streams
}

fn drained(streams: &mut Streams<u8, u32>) -> Vec<u32> {
    std::iter::from_fn(|| streams.poll_delivery()).collect()
}

#[test]
fn what_overtakes_waits_for_what_it_overtook() {
    let mut streams = ours(&[10, 30]);
    streams.handle_segment(at(0), 1, open(99), 0);
    streams.handle_segment(at(10), 1, data(100 + SIZE, 0), 2);
    assert_eq!(drained(&mut streams), [0]);
    streams.handle_segment(at(20_000), 1, data(100, 1), 1);
    assert_eq!(drained(&mut streams), [1, 2]);
    assert_eq!(streams.poll_timeout(), None);
    // In order: the segment that opened the stream and the one that filled the gap.
    let counters = streams.counters();
    assert_eq!((counters.in_order, counters.held), (2, 1));
}

#[test]
fn a_gap_that_every_path_has_passed_is_not_waited_for() {
    let mut streams = ours(&[10, 30]);
    streams.handle_segment(at(0), 1, data(0, 0), 0);
    streams.handle_segment(at(10), 1, data(2 * SIZE, 0), 2);
    assert_eq!(drained(&mut streams), [0]);
    // Path 1 delivers a segment behind the gap: the missing one was lost.
    streams.handle_segment(at(20), 1, data(3 * SIZE, 1), 3);
    assert_eq!(drained(&mut streams), [2, 3]);
    assert_eq!(streams.counters().known_lost, 1);
}

/// A gap of paths 0 and 1 that both have passed, while copies take 50 ms.
fn asked() -> Streams<u8, u32> {
    let mut streams = ours(&[10, 30]);
    streams.set_repair(Some(Duration::from_millis(50)));
    for (number, path) in [(0, 0), (2, 0), (3, 1)] {
        streams.handle_segment(
            at(10 * u64::from(number)),
            1,
            data(number * SIZE, path),
            number,
        );
    }
    streams
}

#[test]
fn a_gap_that_copies_may_fill_is_asked_for_once_and_waited_for() {
    let mut streams = asked();
    let missing = Missing {
        key: 1,
        seq: SIZE,
        length: SIZE,
    };
    assert_eq!(streams.poll_missing(), Some(missing));
    assert_eq!(streams.poll_timeout(), Some(at(50_030)));
    streams.handle_segment(at(40), 1, data(4 * SIZE, 0), 4);
    assert_eq!(streams.poll_missing(), None);
    assert_eq!(drained(&mut streams), [0]);
    // It comes by a path that has brought later ones, and counts as none that the host sent again.
    streams.handle_segment(at(40_000), 1, data(SIZE, 0), 1);
    assert_eq!(drained(&mut streams), [1, 2, 3, 4]);
    assert_eq!(streams.poll_timeout(), None);
    let counters = streams.counters();
    assert_eq!(
        (counters.asked, counters.repaired, counters.retransmitted),
        (1, 1, 0)
    );
    assert_eq!((counters.known_lost, counters.expired), (0, 0));
}

#[test]
fn a_gap_that_no_copy_fills_is_given_up_when_one_should_have_come() {
    let mut streams = asked();
    streams.handle_timeout(at(50_029));
    assert_eq!(drained(&mut streams), [0]);
    streams.handle_timeout(at(50_030));
    assert_eq!(drained(&mut streams), [2, 3]);
    let counters = streams.counters();
    assert_eq!((counters.known_lost, counters.repaired), (1, 0));
    // One that comes too late is passed on.
    streams.handle_segment(at(60_000), 1, data(SIZE, 0), 1);
    streams.handle_timeout(at(700_000));
    assert_eq!(drained(&mut streams), [1]);
    // Nobody keeps copies any more.
    streams.set_repair(None);
    streams.handle_segment(at(700_000), 1, data(5 * SIZE, 0), 5);
    streams.handle_segment(at(700_001), 1, data(6 * SIZE, 1), 6);
    assert_eq!(drained(&mut streams), [5, 6]);
    assert_eq!(streams.counters().asked, 1);
}

#[test]
fn each_gap_is_asked_for_as_soon_as_it_is_known_lost() {
    let mut streams = asked();
    assert!(streams.poll_missing().is_some());
    // Three are missing behind 3, and of them the middle one was late.
    for (number, path) in [(7, 0), (8, 1)] {
        streams.handle_segment(at(100), 1, data(number * SIZE, path), number);
    }
    let missing = streams.poll_missing().expect("the second gap");
    assert_eq!((missing.seq, missing.length), (4 * SIZE, 3 * SIZE));
    // Copies in another order than the packets'.
    for (number, path) in [(5, 1), (1, 0), (4, 0), (6, 0)] {
        streams.handle_segment(at(20_000), 1, data(number * SIZE, path), number);
    }
    assert_eq!(streams.poll_missing(), None);
    assert_eq!(drained(&mut streams), (0..9).collect::<Vec<_>>());
    assert_eq!(streams.counters().repaired, 4);
    assert_eq!(streams.poll_timeout(), None);
}

/// A host may leave out every second number: a request for each would be more bytes than it sends.
#[test]
fn few_of_many_gaps_are_asked_for() {
    let mut streams = ours(&[10, 30]);
    streams.set_repair(Some(Duration::from_millis(50)));
    let mut asked = 0;
    for number in 0..1_000 {
        let path = u8::try_from(number % 2).unwrap();
        streams.handle_segment(
            at(u64::from(number)),
            1,
            data(2 * number * SIZE, path),
            number,
        );
        asked += std::iter::from_fn(|| streams.poll_missing()).count();
    }
    assert!((50..=16 + 1_000 / 25).contains(&asked), "{asked}");
}

#[test]
fn a_gap_has_one_deadline_that_later_packets_do_not_move() {
    let mut streams = ours(&[10, 30]);
    streams.handle_segment(at(0), 1, data(0, 0), 0);
    streams.handle_segment(at(10), 1, data(2 * SIZE, 0), 2);
    let due = streams.poll_timeout().expect("a deadline");
    for number in 3..50 {
        streams.handle_segment(
            at(10 + u64::from(number)),
            1,
            data(number * SIZE, 0),
            number,
        );
        assert_eq!(streams.poll_timeout(), Some(due));
    }
    assert_eq!(drained(&mut streams), [0]);
    streams.handle_timeout(due);
    assert_eq!(drained(&mut streams), (2..50).collect::<Vec<_>>());
    assert_eq!(streams.counters().expired, 1);
}

/// RFC 8985 §6.2: segments sent before one that has arrived soon count as lost, so a retransmission
/// must not overtake them.
#[test]
fn what_is_sent_again_waits_for_no_gap_but_for_what_was_sent_before_it() {
    let mut streams = ours(&[10, 30]);
    streams.handle_segment(at(0), 1, data(0, 0), 0);
    streams.handle_segment(at(1), 1, data(2 * SIZE, 0), 2);
    streams.handle_segment(at(2), 1, data(4 * SIZE, 0), 4);
    // Below an earlier number of path 0, so sent after it: the slower path may still deliver older
    // ones.
    streams.handle_segment(at(3), 1, data(3 * SIZE, 0), 3);
    assert_eq!(drained(&mut streams), [0]);
    assert_eq!(streams.poll_timeout(), Some(at(20_003)));
    streams.handle_timeout(at(20_003));
    assert_eq!(drained(&mut streams), [3]);
    // On the slowest path nothing older can be in flight, except in a longer queue.
    streams.handle_segment(at(20_004), 1, data(SIZE, 1), 1);
    assert_eq!(drained(&mut streams), [1, 2, 4]);
    assert_eq!(streams.counters().retransmitted, 1);
    assert_eq!(streams.held(), 0);
}

/// Sends 50 segments in 500 ms over path 0 alone; returns the number and time of the next.
fn over_one_path(streams: &mut Streams<u8, u32>) -> (u32, u64) {
    for number in 0..50 {
        streams.handle_segment(
            at(10_000 * u64::from(number)),
            1,
            data(number * SIZE, 0),
            number,
        );
    }
    assert_eq!(drained(streams), (0..50).collect::<Vec<_>>());
    (50, 500_000)
}

#[test]
fn a_loss_on_the_only_path_in_use_is_shown_soon() {
    let mut streams = ours(&[10, 30]);
    let (next, now) = over_one_path(&mut streams);
    streams.handle_segment(at(now), 1, data((next + 1) * SIZE, 0), next + 1);
    assert_eq!(drained(&mut streams), NOTHING);
    // Path 1 is 20 ms slower; the sender may have taken it up with the missing segment.
    let due = streams.poll_timeout().expect("a deadline");
    assert!(due > at(now + 20_000), "{due:?}");
    assert!(due <= at(now + 40_000), "{due:?}");
    streams.handle_timeout(due);
    assert_eq!(drained(&mut streams), [next + 1]);
    // The retransmission overtakes nothing.
    streams.handle_segment(at(now + 60_000), 1, data(next * SIZE, 0), next);
    assert_eq!(drained(&mut streams), [next]);
}

#[test]
fn a_retransmission_by_an_idle_path_is_no_long_queue() {
    let mut streams = ours(&[10, 10]);
    let (lost, now) = over_one_path(&mut streams);
    streams.handle_segment(at(now), 1, data((lost + 1) * SIZE, 0), lost + 1);
    streams.handle_timeout(at(now + 50_000));
    streams.handle_segment(at(now + 100_000), 1, data(lost * SIZE, 1), lost);
    assert_eq!(drained(&mut streams), [lost + 1, lost]);
    // The next loss is shown as soon as the first one.
    let (next, now) = (lost + 3, now + 400_000);
    streams.handle_segment(at(now), 1, data(next * SIZE, 0), next);
    let due = streams.poll_timeout().expect("a deadline");
    assert!(due <= at(now + 20_000), "{due:?}");
}

#[test]
fn a_path_that_is_taken_up_again_is_waited_for() {
    let mut streams = ours(&[10, 30]);
    let (next, now) = over_one_path(&mut streams);
    streams.handle_segment(at(now), 1, data((next + 1) * SIZE, 0), next + 1);
    streams.handle_segment(at(now + 20_000), 1, data(next * SIZE, 1), next);
    assert_eq!(drained(&mut streams), [next, next + 1]);
    // Now both are in use, and queues may be longer.
    streams.handle_segment(at(now + 21_000), 1, data((next + 3) * SIZE, 0), next + 3);
    let due = streams.poll_timeout().expect("a deadline");
    assert!(due > at(now + 100_000), "{due:?}");
}

/// Later segments that arrive before a retransmission make its sender take that for lost, too.
#[test]
fn what_is_sent_again_goes_on_once_every_path_has_brought_what_was_sent_later() {
    let mut streams = ours(&[10, 30]);
    let mut take = |micros, number, path| {
        streams.handle_segment(at(micros), 1, data(number * SIZE, path), number);
        drained(&mut streams)
    };
    assert_eq!(take(0, 0, 0), [0]);
    assert_eq!(take(1, 1, 1), [1]);
    assert_eq!(take(2, 3, 0), NOTHING);
    assert_eq!(take(3, 5, 0), NOTHING);
    // Sent again after 5.
    assert_eq!(take(4, 2, 0), NOTHING);
    // Sent before 5: known lost is 2, and what was sent before its retransmission may still come.
    assert_eq!(take(1_000, 4, 1), [3, 4, 5]);
    assert_eq!(take(1_001, 6, 1), [2, 6]);
    // A later retransmission shows it as well.
    assert_eq!(take(1_002, 9, 0), NOTHING);
    assert_eq!(take(1_003, 7, 0), NOTHING);
    assert_eq!(take(1_004, 10, 1), [7, 9, 10]);
    assert_eq!(take(1_005, 11, 0), [11]);
    assert_eq!(take(1_006, 8, 0), NOTHING);
    // The slowest path's own retransmissions wait for nothing.
    assert_eq!(take(1_007, 10, 1), [8, 10]);
}

#[test]
fn paths_that_change_say_nothing_of_what_earlier_ones_brought() {
    let mut streams = ours(&[10, 30]);
    streams.handle_segment(at(0), 1, data(0, 0), 0);
    streams.handle_segment(at(1), 1, data(3 * SIZE, 1), 3);
    streams.set_paths(at(1), &[Duration::from_millis(10); 2]);
    streams.handle_segment(at(2), 1, data(2 * SIZE, 0), 2);
    streams.handle_segment(at(3), 1, data(4 * SIZE, 1), 4);
    // Both new paths have passed the gap; segments sent on the old ones may still be in flight.
    assert_eq!(drained(&mut streams), [0]);
    let late = Segment {
        path: None,
        ..data(SIZE, 0)
    };
    streams.handle_segment(at(40_000), 1, late, 1);
    assert_eq!(drained(&mut streams), [1, 2, 3, 4]);
    // Later they may not.
    streams.handle_segment(at(500_000), 1, data(6 * SIZE, 0), 6);
    streams.handle_segment(at(500_001), 1, data(7 * SIZE, 1), 7);
    assert_eq!(drained(&mut streams), [6, 7]);
}

#[test]
fn what_a_dead_path_has_not_brought_is_not_waited_for() {
    let mut streams = ours(&[10, 30]);
    streams.handle_segment(at(0), 1, data(0, 0), 0);
    streams.handle_segment(at(1), 1, data(2 * SIZE, 1), 2);
    streams.set_paths(at(2), &[Duration::from_millis(30)]);
    streams.handle_segment(at(3), 1, data(3 * SIZE, 0), 3);
    assert_eq!(drained(&mut streams), [0]);
    streams.give_up_earlier(at(4));
    streams.handle_segment(at(5), 1, data(4 * SIZE, 0), 4);
    assert_eq!(drained(&mut streams), [2, 3, 4]);
    assert_eq!(streams.counters().known_lost, 1);
    assert_eq!(streams.poll_timeout(), None);
}

#[test]
fn on_a_single_path_what_is_sent_again_goes_on_once_earlier_paths_are_empty() {
    let mut streams = ours(&[10, 30]);
    // A wait of 80 ms is remembered as a queue's possible delay.
    streams.handle_segment(at(0), 1, data(0, 0), 0);
    streams.handle_segment(at(1), 1, data(2 * SIZE, 0), 2);
    streams.handle_segment(at(100_000), 1, data(SIZE, 1), 1);
    streams.set_paths(at(100_000), &[Duration::from_millis(10)]);
    streams.handle_segment(at(100_001), 1, data(4 * SIZE, 0), 4);
    streams.handle_segment(at(100_002), 1, data(3 * SIZE, 0), 3);
    assert_eq!(drained(&mut streams), [0, 1, 2]);
    streams.handle_timeout(at(600_000));
    assert_eq!(drained(&mut streams), [3, 4]);
    streams.handle_segment(at(600_001), 1, data(6 * SIZE, 0), 6);
    streams.handle_segment(at(600_002), 1, data(5 * SIZE, 0), 5);
    assert_eq!(drained(&mut streams), [6, 5]);
}

#[test]
fn a_reset_lets_everything_go_and_a_syn_begins_anew() {
    let mut streams = ours(&[10, 30]);
    streams.handle_segment(at(0), 1, data(0, 0), 0);
    streams.handle_segment(at(1), 1, data(2 * SIZE, 0), 2);
    let reset = Segment {
        kind: SegmentKind::Reset,
        ..data(3 * SIZE, 0)
    };
    streams.handle_segment(at(2), 1, reset, 9);
    assert_eq!(drained(&mut streams), [0, 2, 9]);
    assert_eq!((streams.held(), streams.streams()), (0, 0));
    streams.handle_segment(at(3), 1, open(5_000_000), 10);
    streams.handle_segment(at(4), 1, data(5_000_001, 1), 11);
    streams.handle_segment(at(5), 1, open(77), 12);
    streams.handle_segment(at(6), 1, data(78, 1), 13);
    assert_eq!(drained(&mut streams), [10, 11, 12, 13]);
}

#[test]
fn numbers_wrap() {
    let mut streams = ours(&[10, 30]);
    let first = u32::MAX - SIZE / 2;
    streams.handle_segment(at(0), 1, open(first.wrapping_sub(1)), 0);
    streams.handle_segment(at(1), 1, data(first.wrapping_add(SIZE), 0), 2);
    streams.handle_segment(at(2), 1, data(first, 1), 1);
    assert_eq!(drained(&mut streams), [0, 1, 2]);
}

#[test]
fn a_connection_that_holds_too_much_goes_on() {
    let limits = StreamLimits {
        stream: 10,
        all: 1000,
        streams: 2,
    };
    let mut streams = Streams::new(Time::ZERO, limits);
    streams.set_paths(Time::ZERO, &[Duration::ZERO; 2]);
    streams.handle_segment(at(0), 1, data(0, 0), 0);
    for number in 2..13 {
        streams.handle_segment(at(1), 1, data(number * SIZE, 0), number);
    }
    assert_eq!(streams.counters().forced, 1);
    assert_eq!(drained(&mut streams).len(), 12);
    // A third connection passes as it arrives.
    streams.handle_segment(at(2), 2, data(0, 0), 20);
    streams.handle_segment(at(2), 3, data(5 * SIZE, 0), 35);
    streams.handle_segment(at(2), 3, data(0, 0), 30);
    assert_eq!(drained(&mut streams), [20, 35, 30]);
    assert_eq!(streams.counters().untracked, 2);
}

/// A segment as sent: its path, true if it is lost there, and the time since the one before it.
type Sending = (u8, bool, u64);

fn sendings() -> impl Strategy<Value = (Vec<Sending>, [u64; 3], u32, bool)> {
    let segment = (0u8..3, prop::bool::weighted(0.03), 50u64..2000);
    let latencies = [1_000u64..60_000, 1_000u64..60_000, 1_000u64..60_000];
    (
        prop::collection::vec(segment, 1..300),
        latencies,
        any::<u32>(),
        any::<bool>(),
    )
}

/// Returns the segments by arrival: each path is a FIFO with its latency.
fn arrivals(segments: &[Sending], latencies: [u64; 3], lossy: bool) -> Vec<(u64, u32, u8)> {
    let mut now = 0;
    let mut found = Vec::new();
    for (number, &(path, lost, pause)) in segments.iter().enumerate() {
        now += pause;
        if !(lost && lossy) {
            found.push((now + latencies[usize::from(path)], number as u32, path));
        }
    }
    found.sort_unstable();
    found
}

proptest! {
    /// Every segment is delivered once; first transmissions in order; nothing waits beyond its
    /// deadline; nothing that was not lost is given up.
    #[test]
    fn paths_that_are_fifos_are_put_in_order((segments, latencies, first, lossy) in sendings()) {
        let mut streams = ours(&latencies.map(|micros| micros / 1000));
        let arrivals = arrivals(&segments, latencies, lossy);
        streams.handle_segment(at(0), 1, open(first.wrapping_sub(1)), u32::MAX);
        prop_assert_eq!(drained(&mut streams), [u32::MAX]);
        let mut out = vec![];
        let mut came: BTreeMap<u32, u64> = BTreeMap::new();
        let take = |streams: &mut Streams<u8, u32>, now: u64, came: &BTreeMap<u32, u64>| {
            let items = drained(streams);
            for item in &items {
                let waited = came.get(item).map_or(0, |then| now - then);
                assert!(Duration::from_micros(waited) <= MOST_HOLD, "{item} waited {waited} us");
            }
            items
        };
        for (when, number, path) in arrivals {
            while let Some(due) = streams.poll_timeout().filter(|due| *due < at(when)) {
                streams.handle_timeout(due);
                out.extend(take(&mut streams, due.as_nanos() / 1000, &came));
            }
            came.insert(number, when);
            let seq = first.wrapping_add(number.wrapping_mul(SIZE));
            streams.handle_segment(at(when), 1, data(seq, path), number);
            out.extend(take(&mut streams, when, &came));
        }
        while let Some(due) = streams.poll_timeout() {
            streams.handle_timeout(due);
            out.extend(take(&mut streams, due.as_nanos() / 1000, &came));
        }
        prop_assert!(out.is_sorted(), "{out:?}");
        prop_assert_eq!(out.iter().copied().collect::<BTreeSet<_>>().len(), came.len());
        prop_assert_eq!(out.len(), came.len());
        prop_assert_eq!(streams.held(), 0);
        if came.len() == segments.len() {
            let counters = streams.counters();
            prop_assert_eq!(counters.known_lost + counters.expired + counters.forced, 0);
        }
        prop_assert_eq!(streams.counters().late, 0);
    }

    /// Any segments, in any order and any number of times, are delivered exactly as often, and
    /// holds never exceed the bound.
    #[test]
    fn nothing_is_lost_or_made_up(
        segments in prop::collection::vec((0u32..40, 0u8..4, 0u8..2, 0u8..20, 0u64..30_000), 1..400),
        paper in any::<bool>(),
    ) {
        let limits = StreamLimits { stream: 16, all: 24, streams: 3 };
        let mut streams = Streams::new(Time::ZERO, limits);
        streams.set_paths(Time::ZERO, &[Duration::from_millis(1), Duration::from_millis(20)]);
        let settings = Algorithm1Settings { size: 16, threshold: 8, loss_recovery: 20 };
        let mut flows = Algorithm1::new(settings);
        let (mut now, mut out) = (0, vec![]);
        for (number, (seq, key, path, kind, pause)) in segments.iter().enumerate() {
            now += pause;
            let kind = match kind {
                0 => SegmentKind::Reset,
                1 => SegmentKind::Open,
                _ => SegmentKind::Data,
            };
            let path = Some(PathId(*path)).filter(|_| *path < 2);
            let segment = Segment { kind, seq: seq * SIZE, length: SIZE, path };
            if paper {
                flows.handle_segment(*key, segment, number);
                out.extend(std::iter::from_fn(|| flows.poll_delivery()));
            } else {
                streams.handle_timeout(at(now));
                streams.handle_segment(at(now), *key, segment, number);
                out.extend(std::iter::from_fn(|| streams.poll_delivery()));
                prop_assert!(streams.held() <= limits.all);
            }
        }
        if paper {
            prop_assert_eq!(out.len() + flows.held(), segments.len());
        } else {
            while let Some(due) = streams.poll_timeout() {
                streams.handle_timeout(due);
                out.extend(std::iter::from_fn(|| streams.poll_delivery()));
            }
            prop_assert_eq!(out.len(), segments.len());
        }
        prop_assert_eq!(out.iter().collect::<BTreeSet<_>>().len(), out.len());
    }
}

fn paper(size: usize, threshold: usize) -> Algorithm1<u8, u32> {
    Algorithm1::new(Algorithm1Settings {
        size,
        threshold,
        loss_recovery: 20,
    })
}

fn passed(flows: &mut Algorithm1<u8, u32>, number: u32) -> Vec<u32> {
    flows.handle_segment(1, data(1 + number * SIZE, 0), number);
    std::iter::from_fn(|| flows.poll_delivery()).collect()
}

/// \[mpsdn\] §III-D: "maintaining a record of the next expected sequence number for each flow, in a
/// similar fashion as TCP, and only forwards packets if the sequence numbers match".
#[test]
fn algorithm_1_forwards_what_is_expected_and_what_was_stored_behind_it() {
    let mut flows = paper(36, 18);
    flows.handle_segment(1, open(0), 99);
    assert_eq!(flows.poll_delivery(), Some(99));
    assert_eq!(passed(&mut flows, 0), [0]);
    assert_eq!(passed(&mut flows, 2), NOTHING);
    assert_eq!(passed(&mut flows, 3), NOTHING);
    assert_eq!(passed(&mut flows, 1), [1, 2, 3]);
    // "immediately forward duplicates"
    assert_eq!(passed(&mut flows, 2), [2]);
    let counters = flows.counters();
    let counted = (counters.in_order, counters.held, counters.late);
    assert_eq!(counted, (3, 2, 1), "99, 0 and 1; 2 and 3; 2 again");
}

/// "If the number of packets buffered for a flow exceeds its threshold, the buffer releases them all
/// in order, ignoring gaps", and then "to forward packets with lower sequence numbers in their order
/// of arrival … until the new expected value is reached".
#[test]
fn algorithm_1_releases_all_beyond_t_and_then_passes_lrf_segments_as_they_come() {
    let mut flows = paper(36, 3);
    flows.handle_segment(1, open(0), 99);
    flows.poll_delivery();
    for number in [4, 2, 3, 5] {
        assert_eq!(passed(&mut flows, number), NOTHING);
    }
    assert_eq!(passed(&mut flows, 6), [2, 3, 4, 5, 6]);
    // expected = 6 + 20
    for number in [9, 7, 25, 1] {
        assert_eq!(passed(&mut flows, number), [number]);
    }
    assert_eq!(passed(&mut flows, 27), NOTHING);
    assert_eq!(passed(&mut flows, 26), [26, 27]);
}

/// The last branch: with `S` stored, "send the packet with the lowest sequence number".
#[test]
fn algorithm_1_sends_the_lowest_when_the_buffer_is_full() {
    let mut flows = paper(2, 10);
    flows.handle_segment(1, open(0), 99);
    flows.poll_delivery();
    assert_eq!(passed(&mut flows, 3), NOTHING);
    assert_eq!(passed(&mut flows, 5), NOTHING);
    assert_eq!(passed(&mut flows, 4), [3]);
    assert_eq!(passed(&mut flows, 2), [2]);
}
