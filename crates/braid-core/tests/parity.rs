//! Sums that stand in for lost packets, against XOR over numbers.

use std::collections::BTreeSet;

use braid_core::parity::{Decoder, Encoder, Group, group_size};
use braid_core::{LaneId, LaneSeq, LinkId, Stamp, Time};
use proptest::prelude::*;

const LANE: LaneId = LaneId(3);
const LINK: LinkId = LinkId(1);

fn ms(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

/// The content of a packet; XOR of different ones is never one of them by accident.
fn content(seq: u64) -> u64 {
    (seq + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn xor(items: &[u64]) -> u64 {
    items.iter().fold(0, |sum, item| sum ^ item)
}

/// Everything that can be rebuilt, rebuilt and handled.
fn rebuild(decoder: &mut Decoder<u64>) -> Vec<(u64, u64)> {
    let mut out = Vec::new();
    while let Some(rebuild) = decoder.poll_rebuild() {
        let item = xor(&rebuild.others) ^ rebuild.sum;
        out.push((rebuild.seq.0, item));
        decoder.handle_packet(rebuild.lane, rebuild.seq, &item);
    }
    out
}

#[test]
fn groups_follow_the_loss() {
    assert_eq!(group_size(0.0), None);
    assert_eq!(group_size(0.001), None);
    assert_eq!(group_size(0.01), Some(20));
    assert_eq!(group_size(0.025), Some(8));
    assert_eq!(group_size(0.3), Some(4));
}

#[test]
fn a_group_is_summed_when_it_is_full_or_pauses() {
    let mut encoder = Encoder::default();
    for seq in 0..4 {
        assert_eq!(encoder.poll(ms(0)), None);
        encoder.handle_sent(ms(0), LANE, LaneSeq(seq), &seq, 4);
    }
    let group = |first, count| Group {
        lane: LANE,
        first: LaneSeq(first),
        count,
    };
    assert_eq!(encoder.poll(ms(0)), Some((group(0, 4), vec![0, 1, 2, 3])));
    encoder.handle_sent(ms(1), LANE, LaneSeq(4), &4, 4);
    encoder.handle_sent(ms(2), LANE, LaneSeq(5), &5, 4);
    assert_eq!(encoder.poll_timeout(), Some(ms(5)));
    assert_eq!(encoder.poll(ms(4)), None);
    assert_eq!(encoder.poll(ms(5)), Some((group(4, 2), vec![4, 5])));
    // One alone is not worth a sum, which would be a copy.
    encoder.handle_sent(ms(6), LANE, LaneSeq(6), &6, 4);
    assert_eq!(encoder.poll(ms(20)), None);
    assert_eq!(encoder.poll_timeout(), None);
}

#[test]
fn a_sum_that_overtakes_its_packets_waits_for_them() {
    let mut decoder = Decoder::default();
    let items: Vec<u64> = (0..4).map(content).collect();
    let group = Group {
        lane: LANE,
        first: LaneSeq(0),
        count: 4,
    };
    decoder.handle_sum(group, LINK, Stamp(9), xor(&items));
    for seq in [0, 3] {
        decoder.handle_packet(LANE, LaneSeq(seq), &content(seq));
        assert!(rebuild(&mut decoder).is_empty());
    }
    decoder.handle_packet(LANE, LaneSeq(1), &content(1));
    assert_eq!(rebuild(&mut decoder), [(2, content(2))]);
}

proptest! {
    /// Whatever is lost and in whatever order the rest comes: what is rebuilt is what was sent, and
    /// a group that lost one packet and not its sum is always whole again.
    #[test]
    fn what_is_rebuilt_is_what_was_sent(size in 4usize..24, lost in proptest::collection::btree_set(0u64..120, 0..20),
                                        late in 0usize..6) {
        let mut encoder = Encoder::default();
        let mut decoder = Decoder::default();
        // A first sum makes the receiver keep packets.
        let none = Group { lane: LANE, first: LaneSeq(1_000_000), count: 2 };
        decoder.handle_sum(none, LINK, Stamp(0), 0);
        let mut here = BTreeSet::new();
        let mut groups = Vec::new();
        let mut under_way = std::collections::VecDeque::new();
        for seq in 0..120u64 {
            encoder.handle_sent(ms(0), LANE, LaneSeq(seq), &content(seq), size);
            if !lost.contains(&seq) {
                under_way.push_back(seq);
            }
            if let Some((group, items)) = encoder.poll(ms(0)) {
                groups.push(group);
                decoder.handle_sum(group, LINK, Stamp(seq), xor(&items));
            }
            // Packets come `late` behind the sums.
            while under_way.len() > if seq == 119 { 0 } else { late } {
                let seq = under_way.pop_front().expect("not empty");
                decoder.handle_packet(LANE, LaneSeq(seq), &content(seq));
                here.insert(seq);
            }
            for (seq, item) in rebuild(&mut decoder) {
                prop_assert_eq!(item, content(seq));
                here.insert(seq);
            }
        }
        for group in groups {
            let numbers = group.first.0..group.first.0 + u64::from(group.count);
            if numbers.clone().filter(|seq| lost.contains(seq)).count() <= 1 {
                prop_assert!(numbers.clone().all(|seq| here.contains(&seq)), "{group:?}");
            }
        }
    }
}
