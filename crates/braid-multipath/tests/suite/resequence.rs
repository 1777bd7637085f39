//! Reorder buffers: the end of a wait, the counters, and that no packet is lost, duplicated or
//! stuck.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use braid_core::Time;
use braid_multipath::resequence::{
    DeliveryOrder, Limits, PacketMeta, Reordering, Resequencer, TimeoutResequencer,
};
use braid_multipath::{LaneId, LaneSeq, LinkId, Stamp};
use proptest::prelude::*;

const A: LinkId = LinkId(0);
const B: LinkId = LinkId(1);
const HOLD: Duration = Duration::from_millis(30);

fn ms(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

fn tag(seq: u64, stamp: u64, link: LinkId) -> PacketMeta {
    PacketMeta {
        lane: LaneId(7),
        seq: LaneSeq(seq),
        stamp: Stamp(stamp),
        link,
        order: DeliveryOrder::InOrder,
        is_ahead: false,
    }
}

/// A resequencer of packets named by their number.
struct Bench(Resequencer<u64>);

impl Bench {
    fn new() -> Bench {
        Bench(Resequencer::new(Limits::default()))
    }

    /// A packet stamped with its own number.
    fn packet(&mut self, now: u64, seq: u64, link: LinkId) -> Vec<u64> {
        self.0
            .handle_packet(ms(now), tag(seq, seq, link), HOLD, seq);
        self.out()
    }

    fn out(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.0.poll_delivery())
            .map(|delivery| delivery.item)
            .collect()
    }
}

#[test]
fn a_packet_in_order_is_not_touched() {
    let mut bench = Bench::new();
    for seq in 0..1000 {
        assert_eq!(bench.packet(seq, seq, A), [seq]);
    }
    assert_eq!(bench.0.counters().in_order, 1000);
    assert_eq!(bench.0.poll_timeout(), None);
    assert_eq!(bench.0.occupied(), 0);
}

#[test]
fn a_missing_packet_that_arrives_lets_all_behind_it_go() {
    let mut bench = Bench::new();
    bench.packet(0, 0, A);
    assert!(bench.packet(1, 2, A).is_empty());
    assert!(bench.packet(2, 3, A).is_empty());
    assert_eq!(bench.packet(3, 1, B), [1, 2, 3]);
    assert_eq!(bench.0.counters().held, 2);
}

#[test]
fn a_packet_behind_a_gap_that_is_not_waited_for_counts_as_in_order() {
    let mut bench = Bench::new();
    bench.packet(0, 0, A);
    (bench.0).handle_packet(ms(1), tag(2, 2, A), Duration::ZERO, 2);
    assert_eq!(bench.out(), [2]);
    let counters = bench.0.counters();
    assert_eq!((counters.in_order, counters.held), (2, 0));
}

#[test]
fn a_gap_that_every_link_has_passed_is_not_waited_for() {
    let mut bench = Bench::new();
    bench.packet(0, 0, A);
    bench.packet(1, 2, A);
    // The slowest link has reached the packet behind the gap, but may not have passed it.
    bench.0.handle_progress(ms(2), |_| Stamp(2), Some(B));
    assert!(bench.out().is_empty());
    bench.0.handle_progress(ms(3), |_| Stamp(3), Some(B));
    assert_eq!(bench.out(), [2]);
    assert_eq!(bench.0.counters().known_lost, 1);
}

/// A far link brings packets before others that are below them and still to be sent. Those are lost
/// only if the near links have passed a packet above them that they brought themselves.
#[test]
fn a_packet_from_a_far_link_shows_no_loss_below_it() {
    let mut bench = Bench::new();
    bench.packet(0, 0, A);
    let ahead = PacketMeta {
        is_ahead: true,
        ..tag(5, 1, B)
    };
    (bench.0).handle_packet(ms(1), ahead, Duration::from_millis(500), 5);
    bench.0.handle_progress(ms(3), |_| Stamp(100), Some(A));
    assert!(bench.out().is_empty());
    (bench.0).handle_packet(ms(110), tag(1, 110, A), HOLD, 1);
    assert_eq!(bench.out(), [1]);
    (bench.0).handle_packet(ms(120), tag(3, 120, A), HOLD, 3);
    assert!(bench.out().is_empty());
    bench.0.handle_progress(ms(121), |_| Stamp(120), Some(A));
    assert!(bench.out().is_empty());
    bench.0.handle_progress(ms(122), |_| Stamp(121), Some(A));
    assert_eq!(bench.out(), [3], "2 is lost, 4 may still be sent");
    (bench.0).handle_packet(ms(130), tag(4, 130, A), HOLD, 4);
    assert_eq!(bench.out(), [4, 5]);
    assert_eq!(bench.0.counters().known_lost, 1);
}

#[test]
fn a_gap_known_lost_waits_for_the_copy_and_no_longer() {
    let mut bench = Bench::new();
    bench.0.set_recovery_delay(Duration::from_millis(10));
    bench.packet(0, 0, A);
    bench.packet(1, 2, A);
    bench.0.handle_progress(ms(3), |_| Stamp(9), None);
    assert!(bench.out().is_empty());
    assert_eq!(bench.0.poll_timeout(), Some(ms(13)));
    // A repeated notice does not move the deadline.
    bench.0.handle_progress(ms(8), |_| Stamp(20), None);
    assert_eq!(bench.0.poll_timeout(), Some(ms(13)));
    bench.0.handle_timeout(ms(12));
    assert!(bench.out().is_empty());
    bench.0.handle_timeout(ms(13));
    assert_eq!(bench.out(), [2]);
}

#[test]
fn a_deadline_is_fixed_at_first_sight_and_never_moved_back() {
    let mut bench = Bench::new();
    bench.packet(0, 0, A);
    bench.packet(1, 2, A);
    for later in 3..30 {
        assert!(bench.packet(later, later, A).is_empty());
        assert_eq!(bench.0.poll_timeout(), Some(ms(31)));
    }
    bench.0.handle_timeout(ms(31));
    assert_eq!(bench.out(), (2..30).collect::<Vec<_>>());
    assert_eq!(bench.0.counters().expired[0], 1);
}

#[test]
fn the_link_that_is_behind_is_named_for_what_expired() {
    let mut bench = Bench::new();
    bench.packet(0, 0, A);
    bench.packet(1, 2, A);
    bench.0.handle_progress(ms(2), |_| Stamp(0), Some(B));
    bench.0.handle_timeout(ms(31));
    assert_eq!(bench.0.counters().expired[B.index()], 1);
}

#[test]
fn each_gap_has_its_own_time() {
    let mut bench = Bench::new();
    bench.packet(0, 0, A);
    bench.packet(1, 2, A);
    bench.packet(11, 4, A);
    bench.0.handle_timeout(ms(31));
    assert_eq!(bench.out(), [2]);
    assert_eq!(bench.0.poll_timeout(), Some(ms(41)));
}

#[test]
fn late_packets_go_on_and_second_ones_do_not() {
    let mut bench = Bench::new();
    bench.packet(0, 0, A);
    bench.packet(1, 2, A);
    bench.0.handle_timeout(ms(31));
    bench.out();
    assert_eq!(bench.packet(40, 1, B), [1]);
    assert!(bench.packet(41, 1, A).is_empty());
    assert!(bench.packet(42, 2, B).is_empty());
    let counters = bench.0.counters();
    assert_eq!((counters.late[B.index()], counters.all_late()), (1, 1));
    assert_eq!(counters.duplicates[A.index()], 1);
    assert_eq!(counters.duplicates[B.index()], 1);
}

#[test]
fn what_wants_no_order_does_not_wait_and_is_not_waited_for() {
    let mut bench = Bench::new();
    bench.packet(0, 0, A);
    let mut ahead = tag(2, 2, A);
    ahead.order = DeliveryOrder::Immediate;
    bench.0.handle_packet(ms(1), ahead, HOLD, 2);
    assert_eq!(bench.out(), [2]);
    assert!(bench.packet(2, 3, A).is_empty());
    assert_eq!(bench.packet(3, 1, B), [1, 3]);
    bench.0.handle_packet(ms(4), ahead, HOLD, 2);
    assert!(bench.out().is_empty());
}

#[test]
fn a_flush_shows_losses_at_the_end_of_a_burst() {
    let mut bench = Bench::new();
    bench.packet(0, 0, A);
    bench
        .0
        .handle_flush(ms(1), LaneId(7), LaneSeq(2), Stamp(2), HOLD);
    assert_eq!(bench.0.poll_timeout(), Some(ms(31)));
    assert_eq!(bench.packet(2, 1, A), [1]);
    bench.0.handle_timeout(ms(31));
    assert_eq!(bench.0.counters().given_up(), 1);
    assert_eq!(bench.packet(32, 3, A), [3]);
}

/// A packet of a few bytes can leave out thousands of numbers, and one after the other of them.
#[test]
fn an_end_that_leaves_out_most_numbers_is_not_waited_for() {
    let mut bench = Bench::new();
    let mut last = 0;
    for _ in 0..100 {
        last += 8_000;
        bench.packet(0, last, A);
    }
    assert_eq!(bench.0.occupied(), 0);
    let flush = |bench: &mut Bench, highest| {
        (bench.0).handle_flush(ms(0), LaneId(7), LaneSeq(highest), Stamp(0), HOLD);
        bench.0.occupied()
    };
    assert_eq!(flush(&mut bench, last + 8_000), 0);
    // Once packets come as they should, there is time for those that are missing.
    for _ in 0..2_100 {
        last += 1;
        assert_eq!(bench.packet(0, last, A), [last]);
    }
    assert!(bench.packet(0, last + 8_000, A).is_empty());
    assert_eq!(bench.0.occupied(), 8_000);
}

#[test]
fn a_lane_that_jumps_goes_on() {
    let mut bench = Bench::new();
    bench.packet(0, 0, A);
    assert!(bench.packet(1, 1_000_000, A).is_empty());
    assert!(bench.0.occupied() <= Limits::default().lane);
    bench.0.handle_timeout(ms(31));
    assert_eq!(bench.out(), [1_000_000]);
    assert_eq!(bench.0.occupied(), 0);
    assert_eq!(bench.packet(32, 999_999, A), [999_999]);
}

/// Packets of three lanes over two FIFO links of unequal delay, some lost.
#[derive(Debug, Clone)]
struct Sent {
    lane: u8,
    link: u8,
    lost: bool,
    twice: bool,
    gap: u64,
}

fn any_sent() -> impl Strategy<Value = Vec<Sent>> {
    let one = (0u8..3, 0u8..2, 0u8..10, 0u8..20, 0u64..1500);
    proptest::collection::vec(one, 1..400).prop_map(|all| {
        all.into_iter()
            .map(|(lane, link, lost, twice, gap)| Sent {
                lane,
                link,
                lost: lost == 0,
                twice: twice == 0,
                gap,
            })
            .collect()
    })
}

proptest! {
    /// Each arrival is delivered once, in order unless late, within the hold, with or without
    /// progress; and nothing stays behind.
    #[test]
    fn all_that_arrives_goes_on_once_and_in_time(sent in any_sent(), slow in 0u64..60_000,
                                                 progress in any::<bool>()) {
        let mut seqs = [0u64; 3];
        let mut stamp = 0;
        // (arrival µs, order of sending) → packet; one delay per link, so links stay FIFOs.
        let mut arriving = BTreeMap::new();
        for (order, packet) in sent.iter().enumerate() {
            stamp += packet.gap;
            let seq = seqs[usize::from(packet.lane)];
            seqs[usize::from(packet.lane)] += 1;
            let at = stamp + 5_000 + u64::from(packet.link) * slow;
            let tag = PacketMeta {
                lane: LaneId(packet.lane),
                seq: LaneSeq(seq),
                stamp: Stamp(stamp),
                link: LinkId(packet.link),
                order: DeliveryOrder::InOrder,
                is_ahead: false,
            };
            if !packet.lost {
                arriving.insert((at, order), tag);
                if packet.twice {
                    arriving.insert((at + 1, order), tag);
                }
            }
        }
        let mut reseq = Resequencer::new(Limits::default());
        let mut settled = [0u64; 2];
        let mut delivered: Vec<Vec<u64>> = vec![Vec::new(); 3];
        let mut came: BTreeMap<(u8, u64), u64> = BTreeMap::new();
        let mut late = 0;
        let end = arriving.keys().last().map_or(0, |(at, _)| at + 1_000_000);
        let last = [((end, usize::MAX), None)];
        let events = arriving.iter().map(|(&k, t)| (k, Some(*t))).chain(last);
        for ((at, _), tag) in events {
            let now = Time::from_nanos(at * 1_000);
            while let Some(due) = reseq.poll_timeout().filter(|due| *due <= now) {
                reseq.handle_timeout(due);
                drain(&mut reseq, due, &mut delivered, &came)?;
            }
            if let Some(tag) = tag {
                came.entry((tag.lane.0, tag.seq.0)).or_insert(at);
                reseq.handle_packet(now, tag, HOLD, at);
                settled[tag.link.index()] = tag.stamp.0;
                if progress {
                    let passed = settled[0].min(settled[1]);
                    reseq.handle_progress(now, |_| Stamp(passed), None);
                }
            }
            drain(&mut reseq, now, &mut delivered, &came)?;
            late = reseq.counters().all_late();
        }
        prop_assert_eq!(reseq.occupied(), 0);
        prop_assert_eq!(reseq.poll_timeout(), None);
        let count: usize = delivered.iter().map(Vec::len).sum();
        prop_assert_eq!(count, came.len());
        for seqs in &delivered {
            let unique: BTreeSet<_> = seqs.iter().collect();
            prop_assert_eq!(unique.len(), seqs.len());
            let descents = seqs.windows(2).filter(|pair| pair[0] > pair[1]).count();
            prop_assert!(descents as u64 <= late);
        }
        // The slow link's skew is below the hold: no packet is given up that would have arrived.
        if slow < 30_000 {
            prop_assert_eq!(late, 0);
        }
    }

    /// However wild the numbers, memory stays within its limits and every number is delivered at
    /// most once.
    #[test]
    fn memory_is_bounded(packets in proptest::collection::vec((0u8..4, 0u64..3000), 1..600)) {
        let limits = Limits { lane: 64, all: 128 };
        let mut reseq = Resequencer::new(limits);
        let mut seen = BTreeSet::new();
        for (index, (lane, seq)) in packets.into_iter().enumerate() {
            let tag = PacketMeta {
                lane: LaneId(lane),
                seq: LaneSeq(seq),
                stamp: Stamp(index as u64),
                link: A,
                order: DeliveryOrder::InOrder,
                is_ahead: false,
            };
            reseq.handle_packet(ms(index as u64), tag, HOLD, ());
            prop_assert!(reseq.occupied() <= limits.all);
            while let Some(delivery) = reseq.poll_delivery() {
                prop_assert!(seen.insert((delivery.lane, delivery.seq)));
            }
        }
    }
}

fn drain(
    reseq: &mut Resequencer<u64>,
    now: Time,
    delivered: &mut [Vec<u64>],
    came: &BTreeMap<(u8, u64), u64>,
) -> Result<(), TestCaseError> {
    while let Some(delivery) = reseq.poll_delivery() {
        delivered[delivery.lane.index()].push(delivery.seq.0);
        let at = came[&(delivery.lane.0, delivery.seq.0)];
        let held = now.since(Time::from_nanos(at * 1_000));
        prop_assert!(held <= HOLD, "held for {held:?}");
    }
    Ok(())
}

// [l3b] §4.3.

const TIMEOUT: Duration = Duration::from_millis(50);

fn paper() -> TimeoutResequencer<()> {
    TimeoutResequencer::new(TIMEOUT, 1000)
}

fn take(reseq: &mut TimeoutResequencer<()>) -> Vec<u64> {
    std::iter::from_fn(|| reseq.poll_delivery())
        .map(|(seq, ())| seq)
        .collect()
}

/// [l3b] §4.3: "If the sequence number is the next expected number in a flow (last accepted + 1) or
/// the first one of a new flow, the packet is forwarded directly".
#[test]
fn paper_the_expected_one_is_forwarded_directly() {
    let mut reseq = paper();
    reseq.handle_packet(ms(0), 17, ());
    reseq.handle_packet(ms(1), 18, ());
    assert_eq!(take(&mut reseq), [17, 18]);
}

/// [l3b] §4.3: "If a packet with a larger sequence number than expected arrives, it is timestamped
/// and buffered"; then "the next packet in the queue checked, until the queue is empty or no match
/// was found".
#[test]
fn paper_what_is_buffered_follows_what_was_missing() {
    let mut reseq = paper();
    for (now, seq) in [(0, 0), (1, 3), (2, 2), (3, 5)] {
        reseq.handle_packet(ms(now), seq, ());
    }
    assert_eq!(take(&mut reseq), [0]);
    reseq.handle_packet(ms(4), 1, ());
    assert_eq!(take(&mut reseq), [1, 2, 3]);
}

/// [l3b] §4.3: "Packets with a sequence number lower than last accepted are discarded".
#[test]
fn paper_late_packets_are_discarded() {
    let mut reseq = paper();
    for (now, seq) in [(0, 0), (1, 2), (60, 3), (61, 1)] {
        reseq.handle_packet(ms(now), seq, ());
    }
    assert_eq!(take(&mut reseq), [0, 2, 3]);
    assert_eq!((reseq.discarded(), reseq.skipped()), (1, 1));
}

/// [l3b] §4.3: "If the difference is larger than \[the time-out\], we assume that the packet we are
/// waiting for is lost and forward the first packet in the queue … This mechanism automatically
/// detects multiple missing packets whenever the loss occurred in a bulk."
#[test]
fn paper_a_bulk_of_lost_packets_is_given_up_at_once() {
    let mut reseq = paper();
    reseq.handle_packet(ms(0), 0, ());
    reseq.handle_packet(ms(1), 9, ());
    reseq.handle_packet(ms(2), 10, ());
    reseq.handle_timeout(ms(50));
    assert_eq!(take(&mut reseq), [0]);
    reseq.handle_timeout(ms(51));
    assert_eq!(take(&mut reseq), [9, 10]);
    assert_eq!(reseq.skipped(), 8);
}

fn timed() -> Bench {
    let mut bench = Bench::new();
    bench.0.set_reordering(Reordering::FixedTimeout(TIMEOUT));
    bench
}

#[test]
fn paper_on_lanes_waits_for_its_time_out_whatever_is_known_and_drops_what_is_late() {
    let mut bench = timed();
    assert_eq!(bench.packet(0, 0, A), [0]);
    assert!(bench.packet(1, 2, A).is_empty());
    // Every link is past the gap, and the sender has said how far it has come: neither ends the
    // wait.
    bench.0.handle_progress(ms(2), |_| Stamp(9), Some(B));
    bench
        .0
        .handle_flush(ms(2), LaneId(7), LaneSeq(4), Stamp(9), HOLD);
    assert!(bench.out().is_empty());
    assert_eq!(bench.0.poll_timeout(), Some(ms(51)));
    // Another lane does not wait for this one.
    let other = PacketMeta {
        lane: LaneId(8),
        ..tag(5, 5, A)
    };
    bench.0.handle_packet(ms(3), other, HOLD, 5);
    assert_eq!(bench.out(), [5]);
    bench.0.handle_timeout(ms(50));
    assert_eq!((bench.out(), bench.0.occupied()), (vec![], 1));
    bench.0.handle_timeout(ms(51));
    assert_eq!((bench.out(), bench.0.occupied()), (vec![2], 0));
    assert!(bench.packet(60, 1, B).is_empty());
    let counters = bench.0.counters();
    assert_eq!((counters.in_order, counters.held), (2, 1));
    assert_eq!(counters.too_old[B.index()], 1);
    assert_eq!(
        counters.expired[B.index()],
        1,
        "nobody had come past it but B"
    );
}

#[test]
fn paper_on_lanes_knows_no_classes() {
    let mut bench = timed();
    bench.packet(0, 0, A);
    let unordered = PacketMeta {
        order: DeliveryOrder::Immediate,
        ..tag(2, 2, A)
    };
    bench.0.handle_packet(ms(1), unordered, HOLD, 2);
    assert!(bench.out().is_empty());
    assert_eq!(bench.packet(2, 1, A), [1, 2]);
}

#[test]
fn paper_on_lanes_holds_no_more_than_it_may() {
    let limits = Limits { lane: 8, all: 10 };
    let mut bench = Bench(Resequencer::new(limits));
    bench.0.set_reordering(Reordering::FixedTimeout(TIMEOUT));
    for lane in 0..4 {
        for seq in [0, 2, 4, 6, 8, 10] {
            let lane = LaneId(lane);
            bench.0.handle_packet(
                ms(0),
                PacketMeta {
                    lane,
                    ..tag(seq, seq, A)
                },
                HOLD,
                seq,
            );
            assert!(bench.0.occupied() <= limits.all, "{}", bench.0.occupied());
        }
    }
    assert_eq!(bench.0.occupied(), limits.all);
}

#[test]
fn a_change_of_rules_lets_go_what_is_held_and_each_lane_goes_on_from_where_it_is() {
    let mut bench = Bench::new();
    bench.packet(0, 0, A);
    assert!(bench.packet(1, 2, A).is_empty());
    bench.0.set_reordering(Reordering::FixedTimeout(TIMEOUT));
    assert_eq!(bench.packet(2, 3, A), [2, 3]);
    assert!(bench.packet(3, 7, A).is_empty());
    bench.0.set_reordering(Reordering::Adaptive);
    assert_eq!(bench.packet(4, 8, A), [7, 8]);
    assert_eq!((bench.0.occupied(), bench.0.poll_timeout()), (0, None));
    assert_eq!(bench.packet(5, 9, A), [9]);
    assert!(bench.packet(6, 11, A).is_empty());
    assert_eq!(bench.packet(7, 10, A), [10, 11]);
}
