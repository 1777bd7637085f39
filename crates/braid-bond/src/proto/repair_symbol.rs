//! Repair symbols for forward error correction: encoded for PARITY frames, decoded to recover
//! missing packets.
//!
//! A symbol is a weighted sum over the packets' lengths, two bytes each, and their bytes, the
//! shorter ones padded with zeros. `braid_multipath::fec` decides the weights.

use braid_core::Time;
use braid_multipath::fec::{Group, Rebuild, field};

use super::pool::{BufferPool, Packet};

/// Weighted sum of a few inner packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairSymbol {
    /// Sum of the lengths.
    pub lengths: u16,
    /// Sum of the bytes; as long as the longest packet.
    pub content: Packet,
}

/// Writes the sum of `packets`, which are `group`, into `content`, which is cleared first; returns
/// the sum of their lengths.
pub fn encode(group: &Group, packets: &[Packet], content: &mut Vec<u8>) -> u16 {
    let longest = packets.iter().map(|packet| packet.len()).max();
    content.clear();
    content.resize(longest.unwrap_or(0), 0);
    let mut lengths = [0; 2];
    // From the last to the first: each step multiplies everything before it (Horner).
    for packet in packets.iter().rev() {
        field::scale_by_power(content, group.power);
        field::add_scaled(content, 1, packet);
        field::scale_by_power(&mut lengths, group.power);
        field::add_scaled(&mut lengths, 1, &length(packet));
    }
    u16::from_be_bytes(lengths)
}

/// Returns the bytes that [`decode`] sums up.
pub fn cost(rebuild: &Rebuild<Packet, RepairSymbol>) -> usize {
    let symbols = rebuild.symbols.iter().map(|(_, sum)| sum.content.len());
    let packets = rebuild.packets.iter().map(|(_, packet)| packet.len());
    symbols.chain(packets).sum()
}

/// Recovers the missing packet; none if the symbols do not match the packets.
pub fn decode(
    now: Time,
    rebuild: &Rebuild<Packet, RepairSymbol>,
    pool: &mut BufferPool,
) -> Option<Packet> {
    let sums = || rebuild.symbols.iter();
    let longest = sums().map(|(_, sum)| sum.content.len()).max()?;
    let fits = |(_, packet): &(u8, Packet)| packet.len() <= longest;
    if !rebuild.packets.iter().all(fits) {
        return None;
    }
    let mut lengths = [0; 2];
    let mut bytes = pool.take(now);
    bytes.resize(longest, 0);
    for (factor, sum) in sums() {
        field::add_scaled(&mut bytes, *factor, &sum.content);
        field::add_scaled(&mut lengths, *factor, &sum.lengths.to_be_bytes());
    }
    for (factor, packet) in &rebuild.packets {
        field::add_scaled(&mut bytes, *factor, packet);
        field::add_scaled(&mut lengths, *factor, &length(packet));
    }
    let length = usize::from(u16::from_be_bytes(lengths));
    let is_sound = (1..=longest).contains(&length) && bytes[length..].iter().all(|byte| *byte == 0);
    if !is_sound {
        pool.return_buffer(bytes);
        return None;
    }
    bytes.truncate(length);
    Some(pool.lend(bytes))
}

/// Packets covered by a symbol fit into a datagram.
fn length(packet: &Packet) -> [u8; 2] {
    (packet.len() as u16).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use braid_multipath::fec::{Decoder, Encoder, FecRate};
    use braid_multipath::{LaneId, LaneSeq, LinkId, Stamp};
    use proptest::prelude::*;

    use super::*;

    const LANE: LaneId = LaneId(9);

    fn packet(seq: u64, length: usize) -> Packet {
        let byte = |at: usize| (seq as u8).wrapping_mul(31).wrapping_add(at as u8 ^ 0xa5);
        Packet::from((0..length).map(byte).collect::<Vec<u8>>())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn recovered_packets_equal_the_sent_ones(
            lengths in prop::collection::vec(1usize..1500, 20..120),
            lost in prop::collection::btree_set(0usize..120, 0..12),
            spacing in 4usize..32,
        ) {
            let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
            let (mut pool, mut items, mut content) = (BufferPool::default(), Vec::new(), Vec::new());
            let rate = FecRate { spacing, pause: Duration::from_millis(3) };
            let now = Time::ZERO;
            let sent: Vec<Packet> = lengths
                .iter()
                .enumerate()
                .map(|(seq, length)| packet(seq as u64, *length))
                .collect();
            // The first symbol makes the receiver keep packets.
            let group = Group { lane: LANE, first: LaneSeq(1 << 40), count: 2, power: 0 };
            let none = RepairSymbol { lengths: 0, content: packet(0, 1) };
            decoder.handle_symbol(now, group, (LinkId(0), Stamp(0)), now, none);
            let mut rebuilt = BTreeSet::new();
            for (seq, packet) in sent.iter().enumerate() {
                let place = (LANE, LaneSeq(seq as u64));
                encoder.handle_sent(now, place, packet.clone(), rate);
                if !lost.contains(&seq) {
                    decoder.handle_packet(place.0, place.1, packet);
                }
                if let Some(group) = encoder.poll(now, &mut items) {
                    let lengths = encode(&group, &items, &mut content);
                    let content = pool.packet(now, &content);
                    let sum = RepairSymbol { lengths, content };
                    decoder.handle_symbol(now, group, (LinkId(0), Stamp(1)), now, sum);
                }
                while let Some(recipe) = decoder.poll_rebuild() {
                    let made = decode(now, &recipe, &mut pool).expect("sums are right");
                    let seq = recipe.seq.0 as usize;
                    prop_assert_eq!(&made, &sent[seq]);
                    prop_assert!(lost.contains(&seq) && rebuilt.insert(seq));
                    decoder.handle_packet(recipe.lane, recipe.seq, &made);
                }
            }
            // The next symbol always recovers a single lost packet.
            let last = sent.len() / spacing * spacing;
            let alone = |seq: &&usize| {
                **seq < last && lost.iter().all(|other| other == *seq || other.abs_diff(**seq) > 4 * spacing)
            };
            prop_assert!(lost.iter().filter(alone).all(|seq| rebuilt.contains(seq)));
        }
    }

    #[test]
    fn sums_of_something_else_give_nothing() {
        let (now, mut pool) = (Time::ZERO, BufferPool::default());
        let sum = |lengths, content| Rebuild {
            lane: LANE,
            seq: LaneSeq(0),
            link: LinkId(0),
            stamp: Stamp(0),
            symbols: vec![(1, RepairSymbol { lengths, content })],
            packets: vec![(1, packet(3, 20))],
        };
        assert_eq!(
            decode(now, &sum(7, packet(1, 10)), &mut pool),
            None,
            "shorter than a packet"
        );
        assert_eq!(
            decode(now, &sum(20 ^ 31, packet(1, 30)), &mut pool),
            None,
            "longer than it is"
        );
        assert_eq!(
            decode(now, &sum(20, packet(1, 30)), &mut pool),
            None,
            "empty"
        );
        assert_eq!(
            decode(now, &sum(20 ^ 10, packet(1, 30)), &mut pool),
            None,
            "not only zeros behind"
        );
    }
}
