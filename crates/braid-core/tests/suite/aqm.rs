//! The queue in front of all links: fairness, CoDel, marking, limits; and the pacer.

use std::time::Duration;

use braid_core::aqm::{Drops, FlowQueue};
use braid_core::pace::Pacer;
use braid_core::{Bytes, Rate, Time};
use proptest::prelude::*;

const FULL: Bytes = Bytes::new(1500);

fn ms(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

fn never(_: &mut u32) -> bool {
    false
}

fn drain(queue: &mut FlowQueue<u32>, now: Time) -> Vec<u32> {
    std::iter::from_fn(|| queue.pop(now, false, never))
        .map(|queued| queued.item)
        .collect()
}

#[test]
fn one_flow_keeps_its_order() {
    let mut queue = FlowQueue::new(100);
    (0..50).for_each(|item| queue.push(ms(0), 7, FULL, item));
    assert_eq!(drain(&mut queue, ms(1)), (0..50).collect::<Vec<_>>());
    assert_eq!((queue.packets(), queue.bytes()), (0, Bytes::new(0)));
}

/// Dropped packets have left: those at the head by CoDel, and those of a full queue.
#[test]
fn the_places_that_wait_are_those_of_the_last_packets() {
    let mut queue = FlowQueue::new(100);
    assert_eq!(queue.places(7), 0..0);
    for item in 0..300 {
        queue.push(ms(0), 7, FULL, item);
        queue.push(ms(0), 8, FULL, item);
    }
    let waiting = |queue: &FlowQueue<u32>| queue.bytes_of(7).1.get() / FULL.get();
    assert_eq!(queue.places(7), 300 - waiting(&queue)..300);
    for at in 0..200 {
        queue.pop(ms(at * 5), true, never);
        assert_eq!(queue.places(7), 300 - waiting(&queue)..300);
    }
    assert!(queue.overflowed() > 0 && queue.dropped() > 0);
    assert_eq!(drain(&mut queue, ms(2_000)).len(), 0);
}

/// A flow with two outlets: staged packets keep their place, and the first loose one goes elsewhere.
#[test]
fn loose_packets_leave_from_behind_the_staged_ones() {
    let mut queue = FlowQueue::new(100);
    (0..6).for_each(|item| queue.push(ms(0), 7, FULL, item));
    let mut staged = Vec::new();
    for _ in 0..2 {
        let len = queue.stage(ms(1), 7, false, never, |item| staged.push(*item));
        assert_eq!(len, Some(FULL));
    }
    let mut taken = Vec::new();
    let mut take = |queue: &mut FlowQueue<u32>| {
        let loose = queue.take_loose(ms(1), 7, false, never);
        taken.extend(loose.map(|queued| queued.item));
    };
    take(&mut queue);
    queue.stage(ms(1), 7, false, never, |item| staged.push(*item));
    take(&mut queue);
    assert_eq!(queue.bytes_of(7), (Bytes::new(4_500), FULL));
    assert_eq!(queue.places(7), 5..6);
    queue.push(ms(1), 7, FULL, 6);
    assert_eq!(queue.places(7), 5..7);
    assert_eq!(drain(&mut queue, ms(2)), [0, 1, 3, 5, 6]);
    assert_eq!((staged, taken), (vec![0, 1, 3], vec![2, 4]));
    assert_eq!((queue.packets(), queue.bytes()), (0, Bytes::new(0)));
    assert_eq!(queue.places(7), 7..7);
    take_nothing(&mut queue);
}

fn take_nothing(queue: &mut FlowQueue<u32>) {
    assert_eq!(queue.stage(ms(3), 7, false, never, |_| {}), None);
    assert_eq!(queue.take_loose(ms(3), 7, false, never), None);
}

/// Staged packets are numbered for the far end, which would wait for a dropped one.
#[test]
fn staged_packets_are_never_dropped() {
    let mut queue = FlowQueue::new(100);
    for item in 0..200 {
        queue.push(ms(0), 7, FULL, item);
        queue.stage(ms(0), 7, true, never, |_| {});
    }
    // A queue of loose packets above the limit, and a standing one that CoDel controls.
    (200..400).for_each(|item| queue.push(ms(0), 7, FULL, item));
    assert!(queue.overflowed() > 0);
    let mut left = Vec::new();
    for at in 0..400 {
        left.extend(queue.pop(ms(at * 5), true, never).map(|queued| queued.item));
    }
    assert_eq!(left[..200], (0..200).collect::<Vec<_>>());
    assert!(queue.dropped() > 0);
}

/// RFC 8290 §4.2: flows take turns by bytes, so small packets are not at a disadvantage.
#[test]
fn flows_have_equal_bytes_whatever_their_packets() {
    let mut queue = FlowQueue::new(10_000);
    (0..1000).for_each(|_| queue.push(ms(0), 1, FULL, 1));
    (0..5000).for_each(|_| queue.push(ms(0), 2, Bytes::new(300), 2));
    let mut bytes = [0u64; 3];
    for _ in 0..1200 {
        let queued = queue.pop(ms(1), false, never).expect("a packet");
        bytes[queued.item as usize] += queued.len.get();
    }
    let ratio = bytes[1] as f64 / bytes[2] as f64;
    assert!((0.95..1.05).contains(&ratio), "{ratio}");
}

/// RFC 8290 §4.2: a flow that sends less than a quantum goes before those that have queues.
#[test]
fn a_sparse_flow_does_not_wait_behind_a_bulk() {
    let mut queue = FlowQueue::new(1000);
    (0..500).for_each(|_| queue.push(ms(0), 1, FULL, 1));
    for round in 0..10 {
        assert_eq!(queue.pop(ms(round), false, never).map(|q| q.item), Some(1));
        queue.push(ms(round), 2, Bytes::new(100), 2);
        let next_two = [0, 1].map(|_| queue.pop(ms(round), false, never).map(|q| q.item));
        assert!(next_two.contains(&Some(2)), "{next_two:?}");
    }
}

/// RFC 8289 §3: nothing happens to a queue that stands for less than an interval.
#[test]
fn a_burst_is_not_dropped_and_a_standing_queue_is() {
    let run = |standing_ms: u64, control| {
        let mut queue = FlowQueue::new(10_000);
        for at in 0..2000u64 {
            queue.push(ms(at), 1, FULL, 0);
            // One in, one out: the queue keeps its earlier length.
            if at >= standing_ms {
                queue.pop(ms(at), control, never);
            }
        }
        queue.dropped()
    };
    assert_eq!(run(15, true), 0);
    assert!(run(60, true) > 5);
    assert_eq!(run(60, false), 0);
}

/// A queue of 400 packets that leaves at one each 2 ms. Returns the times of drops in the first 700 ms.
fn drop_times(drops: Drops) -> Vec<u64> {
    let mut queue = FlowQueue::new(1000);
    (0..400).for_each(|item| queue.push(ms(0), 7, FULL, item));
    queue.set_drops(7, drops);
    let mut times = Vec::new();
    for at in (0..700).step_by(2) {
        let before = queue.dropped();
        queue.pop(ms(at), true, never);
        times.extend((before..queue.dropped()).map(|_| at));
    }
    times
}

/// A sender that answers a drop once in a round trip has only more holes to fill by several in one.
#[test]
fn drops_of_an_adaptive_flow_are_two_queues_apart() {
    let times = drop_times(Drops::Spaced);
    assert!(times.len() >= 2, "{times:?}");
    for pair in times.windows(2) {
        assert!(pair[1] - pair[0] >= 2 * pair[0], "{times:?}");
    }
    assert!(drop_times(Drops::Standard).len() >= 3 * times.len());
    assert!(drop_times(Drops::None).is_empty());
}

/// Returns the packets that CoDel drops of so many flows at 4 Mbit/s, each of which always has so many waiting.
fn dropped(flows: u32, packets: u32) -> u64 {
    let mut queue = FlowQueue::new(10_000);
    (0..flows * packets).for_each(|number| queue.push(ms(0), number % flows, FULL, number));
    for turn in 1..3000 {
        let sent = queue.pop(ms(3 * turn), true, never).unwrap().item;
        queue.push(ms(3 * turn), sent % flows, FULL, sent);
    }
    queue.dropped()
}

/// Flows of a page, whose turns come every 150 ms, keep an initial window each; a flow alone does not.
#[test]
fn a_short_queue_of_one_flow_among_many_is_kept() {
    assert_eq!(dropped(50, 16), 0);
    assert!(dropped(50, 24) > 100);
    assert_eq!(dropped(1, 4), 0);
    assert!(dropped(1, 16) > 5);
}

/// Forty connections that begin at once lose nothing of their initial windows, and the room for them has an end.
#[test]
fn a_queue_has_room_for_the_first_windows_of_many_flows() {
    let mut queue = FlowQueue::new(100);
    (0..400).for_each(|number| queue.push(ms(0), number % 40, FULL, number));
    assert_eq!((queue.overflowed(), queue.packets()), (0, 400));
    (0..8000).for_each(|number| queue.push(ms(0), number % 800, FULL, number));
    assert!(queue.packets() <= 2048);
}

/// RFC 8290 §5.4: a packet that can be marked is marked and sent.
#[test]
fn what_can_be_marked_is_not_dropped() {
    let mut queue = FlowQueue::new(10_000);
    let mut out = Vec::new();
    for at in 0..2000u64 {
        queue.push(ms(at), 1, FULL, 0u32);
        if at >= 60 {
            let mark = |item: &mut u32| {
                *item = 1;
                true
            };
            out.extend(queue.pop(ms(at), true, mark));
        }
    }
    assert_eq!(queue.dropped(), 0);
    let marked = out.iter().filter(|queued| queued.item == 1).count();
    assert_eq!(marked as u64, queue.marked());
    assert!(marked > 5);
    assert_eq!(out.len(), 1940);
}

/// RFC 8290 §4.1: a full queue drops from the longest flow, not the arriving packet.
#[test]
fn a_full_queue_drops_from_the_longest_flow() {
    let mut queue = FlowQueue::new(100);
    (0..90).for_each(|_| queue.push(ms(0), 1, FULL, 1));
    (0..10).for_each(|_| queue.push(ms(0), 2, FULL, 2));
    queue.push(ms(0), 3, FULL, 3);
    let left = drain(&mut queue, ms(1));
    assert_eq!(left.iter().filter(|item| **item == 2).count(), 10);
    assert_eq!(left.iter().filter(|item| **item == 3).count(), 1);
    assert_eq!(queue.overflowed(), 45);
}

proptest! {
    /// Compared with a count: each packet leaves the queue or is counted as dropped, flows keep
    /// their order, and the limit holds.
    #[test]
    fn nothing_is_lost_uncounted(steps in proptest::collection::vec((0u32..5, 40u64..1500, any::<bool>()), 1..500),
                                 limit in 1usize..60) {
        let mut queue = FlowQueue::new(limit);
        let (mut pushed, mut popped) = (0u64, 0u64);
        let mut last = [None; 5];
        for (number, (flow, len, pop)) in steps.into_iter().enumerate() {
            let now = ms(number as u64 * 3);
            queue.push(now, flow, Bytes::new(len), (flow, number));
            pushed += 1;
            prop_assert!(queue.packets() <= limit.max(5 * 16));
            if pop && let Some(queued) = queue.pop(now, true, |_| false) {
                let (flow, number) = queued.item;
                prop_assert!(last[flow as usize] < Some(number));
                last[flow as usize] = Some(number);
                popped += 1;
            }
            let gone = queue.dropped() + queue.overflowed();
            prop_assert_eq!(pushed, popped + gone + queue.packets() as u64);
        }
        while queue.pop(ms(0), false, |_| false).is_some() {}
        prop_assert_eq!((queue.packets(), queue.bytes()), (0, Bytes::new(0)));
    }

    /// However late its timer, the pacer exceeds the rate by no more than two milliseconds' worth.
    #[test]
    fn the_pacer_keeps_the_rate(late in proptest::collection::vec(0u64..4_000, 10..200), mbit in 1u64..500) {
        let rate = Rate::from_bits_per_sec(mbit * 1_000_000);
        let mut pacer = Pacer::default();
        let start = ms(1_000);
        let (mut now, mut sent) = (start, 0u64);
        for late in late {
            now = now.max(pacer.ready()) + Duration::from_micros(late);
            pacer.handle_sent(now, FULL, rate);
            sent += 1500;
            let span = now.since(start) + Duration::from_millis(2);
            prop_assert!(sent <= rate.bytes_in(span).get() + 3 * 1500);
        }
    }
}
