//! Forward error correction: repair symbols that replace lost packets, compared with arithmetic on
//! numbers.

use std::collections::BTreeSet;
use std::time::Duration;

use braid_core::{Bytes, Rate, Time};
use braid_multipath::fec::{Decoder, Encoder, FecController, FecRate, Group, field, spacing};
use braid_multipath::{LaneId, LaneSeq, LinkId, Stamp};
use proptest::prelude::*;

const LANE: LaneId = LaneId(3);
const LINK: LinkId = LinkId(1);

fn ms(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

fn rate(spacing: usize) -> FecRate {
    let pause = Duration::from_millis(3);
    FecRate { spacing, pause }
}

/// Content of a packet. A sum of different ones never equals one of them by accident.
fn content(seq: u64) -> [u8; 8] {
    (seq + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

fn combined<'a>(terms: impl Iterator<Item = (u8, &'a [u8; 8])>) -> [u8; 8] {
    let mut sum = [0; 8];
    terms.for_each(|(factor, item)| field::add_scaled(&mut sum, factor, item));
    sum
}

fn symbol_of(group: &Group, items: &[[u8; 8]]) -> [u8; 8] {
    let factor = |index: usize| group.factor(LaneSeq(group.first.0 + index as u64));
    let factors = (0..items.len()).map(|index| factor(index).expect("covered"));
    combined(factors.zip(items))
}

fn group(first: u64, count: u8, power: u8) -> Group {
    Group {
        lane: LANE,
        first: LaneSeq(first),
        count,
        power,
    }
}

/// Rebuilds and handles everything that can be rebuilt.
fn rebuild(decoder: &mut Decoder<[u8; 8], [u8; 8]>) -> Vec<u64> {
    let mut out = Vec::new();
    while let Some(recipe) = decoder.poll_rebuild() {
        let symbols = recipe.symbols.iter().map(|(factor, item)| (*factor, item));
        let others = recipe.packets.iter().map(|(factor, item)| (*factor, item));
        let item = combined(symbols.chain(others));
        assert_eq!(item, content(recipe.seq.0), "{recipe:?}");
        decoder.handle_packet(recipe.lane, recipe.seq, &item);
        out.push(recipe.seq.0);
        decoder.give_back(recipe);
    }
    out
}

#[test]
fn symbols_are_as_close_as_the_loss_requires() {
    assert_eq!(spacing(0.0), None);
    assert_eq!(spacing(0.001), None);
    assert_eq!(spacing(0.002), Some(32));
    assert_eq!(spacing(0.033), Some(10));
    assert_eq!(spacing(0.3), Some(4));
}

#[test]
fn a_symbol_is_due_after_enough_packets_or_a_pause() {
    let (mut encoder, mut items) = (Encoder::default(), Vec::new());
    for seq in 0..4 {
        assert_eq!(encoder.poll(ms(0), &mut items), None);
        encoder.handle_sent(ms(0), (LANE, LaneSeq(seq)), seq, rate(4));
    }
    assert_eq!(encoder.poll(ms(0), &mut items), Some(group(0, 4, 1)));
    assert_eq!(items, [0, 1, 2, 3]);
    assert_eq!(encoder.poll(ms(0), &mut items), None);
    encoder.handle_sent(ms(1), (LANE, LaneSeq(4)), 4, rate(4));
    encoder.handle_sent(ms(2), (LANE, LaneSeq(5)), 5, rate(4));
    assert_eq!(encoder.poll_timeout(), Some(ms(5)));
    assert_eq!(encoder.poll(ms(4), &mut items), None);
    assert_eq!(encoder.poll(ms(5), &mut items), Some(group(0, 6, 2)));
    // A symbol over one packet would be a copy of it.
    encoder.handle_sent(ms(6), (LANE, LaneSeq(6)), 6, rate(4));
    assert_eq!(encoder.poll(ms(20), &mut items), None);
    // Nothing is kept of an idle lane, nor across a packet that no symbol may cover.
    assert_eq!(encoder.poll_timeout(), Some(ms(506)));
    assert_eq!(encoder.poll(ms(506), &mut items), None);
    assert_eq!(encoder.poll_timeout(), None);
    for seq in [7, 8, 10, 11, 12, 13] {
        encoder.handle_sent(ms(507), (LANE, LaneSeq(seq)), seq, rate(4));
    }
    assert_eq!(encoder.poll(ms(507), &mut items), Some(group(10, 4, 3)));
}

#[test]
fn a_window_is_four_times_as_long_as_the_spacing_of_symbols() {
    let (mut encoder, mut items) = (Encoder::default(), Vec::new());
    let mut groups = Vec::new();
    for seq in 0..30 {
        encoder.handle_sent(ms(0), (LANE, LaneSeq(seq)), seq, rate(5));
        groups.extend(encoder.poll(ms(0), &mut items));
    }
    let expected = [
        (0, 5, 1),
        (0, 10, 2),
        (0, 15, 3),
        (0, 20, 0),
        (5, 20, 1),
        (10, 20, 2),
    ];
    assert_eq!(
        groups,
        expected.map(|(first, count, power)| group(first, count, power))
    );
}

#[test]
fn a_symbol_is_not_used_before_its_packets_must_have_arrived() {
    let mut decoder = Decoder::default();
    let items: Vec<_> = (0..4).map(content).collect();
    let group = group(0, 4, 1);
    decoder.handle_symbol(
        ms(0),
        group,
        (LINK, Stamp(9)),
        ms(4),
        symbol_of(&group, &items),
    );
    for seq in [0, 1, 3] {
        decoder.handle_packet(LANE, LaneSeq(seq), &content(seq));
        decoder.handle_progress(Stamp(8));
        decoder.handle_timeout(ms(3));
        assert!(rebuild(&mut decoder).is_empty());
    }
    assert_eq!(decoder.poll_timeout(), Some(ms(4)));
    let mut passed = decoder.clone();
    passed.handle_progress(Stamp(9));
    assert_eq!(rebuild(&mut passed), [2]);
    decoder.handle_timeout(ms(4));
    assert_eq!(rebuild(&mut decoder), [2]);
    assert_eq!(
        decoder.symbol_interval(),
        Some(Duration::from_micros(4_375))
    );
    decoder.handle_timeout(ms(1_000));
    assert_eq!(
        decoder.symbol_interval(),
        None,
        "of a lane without symbols nothing is kept"
    );
}

#[test]
fn as_many_packets_are_rebuilt_as_there_are_symbols_over_them() {
    for lost in [
        vec![30],
        vec![30, 31],
        vec![28, 33, 34],
        vec![21, 25, 30, 39],
    ] {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        let (mut items, mut back) = (Vec::new(), Vec::new());
        for seq in 0..200 {
            encoder.handle_sent(ms(0), (LANE, LaneSeq(seq)), content(seq), rate(20));
            if !lost.contains(&seq) {
                decoder.handle_packet(LANE, LaneSeq(seq), &content(seq));
            }
            if let Some(group) = encoder.poll(ms(0), &mut items) {
                decoder.handle_symbol(
                    ms(0),
                    group,
                    (LINK, Stamp(0)),
                    ms(0),
                    symbol_of(&group, &items),
                );
            }
            let more = rebuild(&mut decoder);
            if !more.is_empty() {
                let symbols = lost.len() as u64;
                assert_eq!(
                    seq,
                    39 + 20 * (symbols - 1),
                    "with symbol_of {symbols} after the loss"
                );
            }
            back.extend(more);
        }
        assert_eq!(back, lost);
    }
}

/// Found by a seed of the property below: older symbols that could not be solved took all the room.
#[test]
fn a_packet_alone_in_its_window_is_rebuilt_whatever_else_is_missing() {
    let lost: Vec<u64> = [42..49, 65..66, 98..100, 101..107, 140..141]
        .into_iter()
        .flatten()
        .collect();
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    let (mut items, mut back) = (Vec::new(), Vec::new());
    decoder.handle_symbol(ms(0), group(1 << 40, 2, 0), (LINK, Stamp(0)), ms(0), [0; 8]);
    for seq in 0..200 {
        encoder.handle_sent(ms(0), (LANE, LaneSeq(seq)), content(seq), rate(14));
        if !lost.contains(&seq) {
            decoder.handle_packet(LANE, LaneSeq(seq), &content(seq));
        }
        if let Some(group) = encoder.poll(ms(0), &mut items) {
            decoder.handle_symbol(
                ms(0),
                group,
                (LINK, Stamp(0)),
                ms(0),
                symbol_of(&group, &items),
            );
        }
        back.extend(rebuild(&mut decoder));
    }
    assert!(back.contains(&140), "{back:?}");
}

#[test]
fn young_lanes_get_symbols_from_spare_capacity() {
    let mut controller = FecController::default();
    let full = Bytes::new(1_500);
    let rate = Rate::from_bits_per_sec(100_000_000);
    let spacing = |rate: Option<FecRate>| rate.map(|rate| rate.spacing);
    // The links' loss is not known yet.
    controller.handle_report(0.0, false, rate);
    assert_eq!(spacing(controller.handle_sent(ms(0), LANE, full)), Some(4));
    // They do not lose.
    controller.handle_report(0.0, true, rate);
    assert_eq!(controller.handle_sent(ms(1), LANE, full), None);
    // They do lose: 12 Mbit/s leave enough to spare, 120 do not, and a lane grows old.
    controller.handle_report(0.02, true, rate);
    assert_eq!(spacing(controller.handle_sent(ms(2), LANE, full)), Some(4));
    for tenth in 0..1_000 {
        let now = Time::from_nanos(ms(2).as_nanos() + tenth * 100_000);
        controller.handle_sent(now, LANE, full);
    }
    assert_eq!(
        spacing(controller.handle_sent(ms(102), LANE, full)),
        Some(16)
    );
    for at in 0..5_000 {
        controller.handle_sent(ms(110 + at), LANE, full);
    }
    assert_eq!(
        spacing(controller.handle_sent(ms(5_110), LANE, full)),
        Some(16)
    );
    assert_eq!(
        spacing(controller.handle_sent(ms(6_110), LANE, full)),
        Some(4),
        "after a rest"
    );
}

proptest! {
    /// Whatever is lost and in whatever order the rest arrives, rebuilt packets equal the sent
    /// ones, and packets alone in their windows are always rebuilt.
    #[test]
    fn what_is_rebuilt_is_what_was_sent(
        size in 4usize..24,
        lost in proptest::collection::btree_set(0u64..200, 0..40),
        late in 0usize..6,
    ) {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        // A first symbol makes the receiver keep packets.
        decoder.handle_symbol(ms(0), group(1 << 40, 2, 0), (LINK, Stamp(0)), ms(0), [0; 8]);
        let (mut here, mut groups, mut items) = (BTreeSet::new(), Vec::new(), Vec::new());
        let mut under_way = std::collections::VecDeque::new();
        for seq in 0..200u64 {
            encoder.handle_sent(ms(0), (LANE, LaneSeq(seq)), content(seq), rate(size));
            if !lost.contains(&seq) {
                under_way.push_back(seq);
            }
            if let Some(group) = encoder.poll(ms(0), &mut items) {
                groups.push(group);
                decoder.handle_symbol(ms(0), group, (LINK, Stamp(seq)), ms(0), symbol_of(&group, &items));
            }
            // Packets arrive `late` behind the symbols.
            while under_way.len() > if seq == 199 { 0 } else { late } {
                let seq = under_way.pop_front().expect("not empty");
                decoder.handle_packet(LANE, LaneSeq(seq), &content(seq));
                here.insert(seq);
            }
            here.extend(rebuild(&mut decoder));
        }
        for group in groups {
            let numbers = group.first.0..group.end();
            if numbers.clone().filter(|seq| lost.contains(seq)).count() <= 1 {
                prop_assert!(numbers.clone().all(|seq| here.contains(&seq)), "{group:?}");
            }
        }
    }
}
