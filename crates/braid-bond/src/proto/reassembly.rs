//! Reassembly of fragmented packets.
//!
//! A fragment names its offset, so the fragments of a packet and of its copy complete each other
//! although another link may have cut the copy elsewhere.
//!
//! Memory is bounded: [`MAX_PENDING_PACKETS`] packets of at most [`MAX_PACKET_BYTES`] bytes are
//! reassembled at a time; a new one evicts the oldest. The resequencer waits for missing packets,
//! not this module.

use std::collections::VecDeque;

use super::frame::Fragment;
use super::pool::{Buffer, BufferPool, Packet};
use braid_core::Time;

/// Packets under reassembly at a time.
pub const MAX_PENDING_PACKETS: usize = 64;

/// Largest packet, bytes.
pub const MAX_PACKET_BYTES: usize = 65_535;

/// Pieces in which a packet may come; a sender that cuts finer gets nothing through.
const MAX_PIECES: usize = 256;

/// Consecutive bytes of a packet.
#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Offset in the packet of its first byte, and after its last.
    from: usize,
    to: usize,
    /// Their place among the received bytes.
    at: usize,
}

#[derive(Debug)]
struct Pending {
    lane: u8,
    number: u64,
    /// Received bytes, each once, in the order in which they came: a fragment costs no more than it
    /// brings, wherever it belongs.
    bytes: Buffer,
    /// By offset, disjoint.
    pieces: Vec<Piece>,
    /// Length of the packet, once its last fragment has come.
    length: Option<usize>,
}

/// Packets of which some fragments have come.
#[derive(Debug, Default)]
pub struct Reassembler {
    pending: VecDeque<Pending>,
    /// Lists of pieces for reuse.
    spare: Vec<Vec<Piece>>,
    abandoned: u64,
}

impl Reassembler {
    /// Handles a fragment of packet `place.1` of lane `place.0`; returns the packet once it is
    /// complete. A fragment that contradicts earlier ones is dropped.
    pub fn handle_fragment(
        &mut self,
        now: Time,
        place: (u8, u64),
        fragment: Fragment,
        content: &[u8],
        pool: &mut BufferPool,
    ) -> Option<Packet> {
        let at = self.find_or_begin(now, place, pool);
        let pending = &mut self.pending[at];
        pending.put(fragment, content);
        if !pending.is_complete() {
            return None;
        }
        let whole = self.pending.remove(at)?;
        let packet = whole.packet(now, pool);
        self.spare.push(whole.pieces);
        let packet = match packet {
            Some(packet) => {
                pool.return_buffer(whole.bytes);
                packet
            }
            None => whole.bytes,
        };
        Some(pool.lend(packet))
    }

    fn find_or_begin(
        &mut self,
        now: Time,
        (lane, number): (u8, u64),
        pool: &mut BufferPool,
    ) -> usize {
        let known = self
            .pending
            .iter()
            .position(|pending| (pending.lane, pending.number) == (lane, number));
        if let Some(at) = known {
            return at;
        }
        if self.pending.len() == MAX_PENDING_PACKETS
            && let Some(given_up) = self.pending.pop_front()
        {
            self.spare.push(given_up.pieces);
            pool.return_buffer(given_up.bytes);
            self.abandoned += 1;
        }
        let bytes = pool.take(now);
        let mut pieces = self.spare.pop().unwrap_or_default();
        pieces.clear();
        self.pending.push_back(Pending {
            lane,
            number,
            bytes,
            pieces,
            length: None,
        });
        self.pending.len() - 1
    }

    /// Packets evicted by newer ones.
    #[must_use]
    pub fn abandoned(&self) -> u64 {
        self.abandoned
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pending.iter().map(|pending| pending.bytes.len()).sum()
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.pending.clear();
    }
}

impl Pending {
    fn put(&mut self, fragment: Fragment, content: &[u8]) {
        let from = usize::from(fragment.offset);
        let to = from + content.len();
        let end = self.pieces.last().map_or(0, |last| last.to);
        let most = self.length.unwrap_or(MAX_PACKET_BYTES);
        let shortens = fragment.last && (to < end || self.length.is_some_and(|l| l != to));
        if content.is_empty() || to > most || shortens {
            return;
        }
        if fragment.last {
            self.length = Some(to);
        }
        // Copies may be cut elsewhere, so it may fill several gaps.
        let (mut next, mut index) = (from, self.pieces.partition_point(|piece| piece.to <= from));
        while next < to && self.pieces.len() < MAX_PIECES {
            let behind = self.pieces.get(index).copied();
            let until = behind.map_or(to, |behind| behind.from.min(to));
            if next < until {
                let at = self.bytes.len();
                self.bytes
                    .extend_from_slice(&content[next - from..until - from]);
                let (from, to) = (next, until);
                self.pieces.insert(index, Piece { from, to, at });
                index += 1;
            }
            next = behind.map_or(to, |behind| behind.to);
            index += 1;
        }
    }

    fn is_complete(&self) -> bool {
        self.length == Some(self.bytes.len())
    }

    /// Returns the bytes in order; none if they came so.
    fn packet(&self, now: Time, pool: &mut BufferPool) -> Option<Buffer> {
        if self.pieces.iter().all(|piece| piece.at == piece.from) {
            return None;
        }
        let mut packet = pool.take(now);
        for &Piece { from, to, at } in &self.pieces {
            packet.extend_from_slice(&self.bytes[at..at + to - from]);
        }
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Time = Time::ZERO;

    fn fragment(offset: usize, last: bool) -> Fragment {
        Fragment {
            offset: offset as u16,
            last,
        }
    }

    /// A packet whose bytes depend on their offsets.
    fn packet(number: u64, size: usize) -> Vec<u8> {
        (0..size).map(|at| (at as u64 * 7 + number) as u8).collect()
    }

    /// Packet, start, and share of the rest.
    fn cuts() -> impl Strategy<Value = Vec<(usize, f64, f64)>> {
        prop::collection::vec((0usize..20, 0.0..1.0, 0.0..1.0), 1..400)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn parts_cut_anywhere_and_in_any_order_make_the_packet_they_are_of(
            sizes in prop::collection::vec(1usize..3000, 1..20),
            cuts in cuts(),
        ) {
            let (mut reassembler, mut pool) = (Reassembler::default(), BufferPool::default());
            let mut missing: Vec<Vec<bool>> = sizes.iter().map(|size| vec![true; *size]).collect();
            let mut has_last = vec![false; sizes.len()];
            for (number, from, share) in cuts {
                let number = number % sizes.len();
                let size = sizes[number];
                let from = (from * size as f64) as usize;
                let to = from + 1 + (share * (size - from - 1) as f64).round() as usize;
                if missing[number].is_empty() {
                    continue;
                }
                missing[number][from..to].fill(false);
                has_last[number] |= to == size;
                let whole = packet(number as u64, size);
                let made = reassembler.handle_fragment(NOW, (7, number as u64), fragment(from, to == size), &whole[from..to], &mut pool);
                let complete = has_last[number] && !missing[number].contains(&true);
                prop_assert_eq!(made.is_some(), complete);
                if let Some(made) = made {
                    prop_assert_eq!(&*made, whole.as_slice());
                    missing[number].clear();
                }
            }
            prop_assert_eq!(reassembler.abandoned(), 0);
        }

        #[test]
        fn memory_is_bounded_whatever_comes(
            received in prop::collection::vec((any::<u8>(), 0u64..100, 0usize..65_536, any::<bool>(), 1usize..2000), 0..2000),
        ) {
            let (mut reassembler, mut pool) = (Reassembler::default(), BufferPool::default());
            for (lane, number, offset, last, size) in received {
                let made = reassembler.handle_fragment(NOW, (lane, number), fragment(offset, last), &vec![0; size], &mut pool);
                prop_assert!(made.is_none_or(|made| made.len() <= MAX_PACKET_BYTES));
                prop_assert!(reassembler.pending.len() <= MAX_PENDING_PACKETS);
                prop_assert!(reassembler.bytes() <= MAX_PENDING_PACKETS * MAX_PACKET_BYTES);
                prop_assert!(reassembler.pending.iter().all(|pending| pending.pieces.len() <= MAX_PIECES));
            }
        }
    }

    /// It cost as much as the packet up to there: a datagram of such fragments cost a millisecond.
    #[test]
    fn a_fragment_costs_no_more_than_it_brings() {
        let (mut reassembler, mut pool) = (Reassembler::default(), BufferPool::default());
        for number in 0..32 {
            let made = reassembler.handle_fragment(
                NOW,
                (0, number),
                fragment(65_534, true),
                b"x",
                &mut pool,
            );
            assert_eq!(made, None);
        }
        assert_eq!(reassembler.bytes(), 32);
        for _ in 0..1_000 {
            reassembler.handle_fragment(NOW, (0, 7), fragment(100, false), &[0; 1_400], &mut pool);
        }
        assert_eq!(reassembler.bytes(), 32 + 1_400, "copies bring nothing");
    }

    #[test]
    fn parts_that_contradict_each_other_are_dropped() {
        let (mut reassembler, mut pool) = (Reassembler::default(), BufferPool::default());
        let mut take = |fragment, content: &[u8]| {
            reassembler.handle_fragment(NOW, (0, 0), fragment, content, &mut pool)
        };
        assert_eq!(take(fragment(2, false), b"c"), None);
        assert_eq!(take(fragment(1, true), b"x"), None, "there is more");
        assert_eq!(take(fragment(3, true), b"d"), None);
        assert_eq!(take(fragment(4, false), b"x"), None, "after the last");
        assert_eq!(take(fragment(0, false), b"a"), None);
        let made = take(fragment(1, false), b"b");
        assert_eq!(made.as_deref(), Some(b"abcd".as_slice()));
    }
}
