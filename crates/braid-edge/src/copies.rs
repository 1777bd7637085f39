//! Copies of packets sent by paths that lose some, until the other edge would have missed them. Pure.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use braid_core::Time;

use crate::frame::{StreamKey, set_tag};
use crate::pair_repair::CopiedPath;
use crate::probe::MissingRequest;

/// Time for which a copy is kept: the other edge asks for it a round trip and the paths' difference later.
const LIFETIME: Duration = Duration::from_secs(1);
/// Bytes of all copies. The oldest make room.
const MAX_BYTES: usize = 8 << 20;
/// Number of all copies.
const MAX_COPIES: usize = 1 << 15;
/// Part of the bytes sent by a path that may be sent again, as its inverse. More is lost where a queue is
/// full, which the sender has to learn of.
const REPEATED_SHARE: usize = 50;
/// Frames of the largest size that may be sent again at once.
const MAX_REPEATED: usize = 4;
/// Packets that one request brings: of longer gaps a burst was lost.
const MAX_PACKETS: usize = 8;

/// Position of a copy: its stream and its first number.
type Place = (StreamKey, u32);

/// A copy of a packet.
#[derive(Debug, PartialEq, Eq)]
pub struct PacketCopy {
    /// Tag of the path that it took.
    pub tag: u16,
    /// Numbers that it takes.
    pub length: u32,
    /// The frame, with tag, and with its shim if it has one.
    pub frame: Vec<u8>,
}

/// Copies, by what the other edge asks for.
#[derive(Debug, Default)]
pub struct Copies {
    copies: BTreeMap<Place, (Time, PacketCopy)>,
    /// By age; of a packet that was sent twice, the first entry is stale.
    order: VecDeque<(Time, Place)>,
    bytes: usize,
    /// Bytes that may be sent again, by the path that lost them.
    budgets: BTreeMap<u16, Budget>,
}

/// The part of a path's bytes that may be sent again.
#[derive(Debug, Default)]
struct Budget {
    bytes: usize,
    /// Of a frame.
    largest: usize,
}

impl Copies {
    /// Keeps a copy of a packet that takes numbers of a stream from `seq` on.
    pub fn keep(&mut self, now: Time, key: StreamKey, seq: u32, copy: PacketCopy) {
        let size = copy.frame.len();
        let budget = self.budgets.entry(copy.tag).or_default();
        budget.largest = budget.largest.max(size);
        budget.bytes = (budget.bytes + size / REPEATED_SHARE).min(MAX_REPEATED * budget.largest);
        self.bytes += size;
        self.order.push_back((now, (key, seq)));
        if let Some((_, before)) = self.copies.insert((key, seq), (now, copy)) {
            self.bytes -= before.frame.len();
        }
        while let Some((at, place)) = self.order.front().copied()
            && (now.since(at) > LIFETIME || self.bytes > MAX_BYTES || self.order.len() > MAX_COPIES)
        {
            self.order.pop_front();
            if self.copies.get(&place).is_some_and(|(kept, _)| *kept == at) {
                self.remove(place);
            }
        }
    }

    /// Takes the copies that another edge asks for, in their order, as far as there are any, few, and each once:
    /// of paths that were offered with the request's token, and whose queue is short. They have the tag of the
    /// path by which they are sent again.
    pub fn take(
        &mut self,
        now: Time,
        request: &MissingRequest,
        paths: &BTreeMap<u16, CopiedPath>,
    ) -> Vec<PacketCopy> {
        let MissingRequest { token, missing } = *request;
        let (mut taken, mut done) = (Vec::new(), 0_u32);
        while done < missing.length && taken.len() < MAX_PACKETS {
            let place = (missing.key, missing.seq.wrapping_add(done));
            let Some((at, copy)) = self.copies.get(&place) else {
                break;
            };
            let path = paths.get(&copy.tag);
            let Some(path) = path.filter(|path| path.token == token && path.is_clear) else {
                break;
            };
            let budget = self.budgets.entry(copy.tag).or_default();
            let size = copy.frame.len();
            if now.since(*at) > LIFETIME || budget.bytes < size || copy.length == 0 {
                break;
            }
            budget.bytes -= size;
            done = done.saturating_add(copy.length);
            if let Some(mut copy) = self.remove(place) {
                set_tag(&mut copy.frame, path.by);
                taken.push(copy);
            }
        }
        taken
    }

    fn remove(&mut self, place: Place) -> Option<PacketCopy> {
        let (_, copy) = self.copies.remove(&place)?;
        self.bytes -= copy.frame.len();
        Some(copy)
    }

    /// Forgets all copies.
    pub fn clear(&mut self) {
        *self = Copies::default();
    }
}

#[cfg(test)]
mod tests {
    use braid_multipath::resequence::Missing;

    use super::*;

    const KEY: StreamKey = StreamKey::Lane { epoch: 1, lane: 2 };
    const SIZE: usize = 1500;

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    /// A store with so many copies, one for each ms, of ten numbers each.
    fn filled(count: u32) -> Copies {
        let mut copies = Copies::default();
        for number in 0..count {
            copies.keep(at(number.into()), KEY, 10 * number, copy(2, number));
        }
        copies
    }

    fn copy(tag: u16, number: u32) -> PacketCopy {
        let mut frame = vec![0; SIZE];
        frame[..4].copy_from_slice(&number.to_be_bytes());
        PacketCopy {
            tag,
            length: 10,
            frame,
        }
    }

    const TOKEN: u64 = 77;

    fn missing(seq: u32, length: u32) -> MissingRequest {
        let missing = Missing {
            key: KEY,
            seq,
            length,
        };
        MissingRequest {
            token: TOKEN,
            missing,
        }
    }

    /// This path, of which copies are kept.
    fn path(tag: u16) -> BTreeMap<u16, CopiedPath> {
        let path = CopiedPath {
            by: 9,
            token: TOKEN,
            is_clear: true,
        };
        BTreeMap::from([(tag, path)])
    }

    /// The same copy as it is sent again.
    fn repeated(tag: u16, number: u32) -> PacketCopy {
        let mut copy = copy(tag, number);
        set_tag(&mut copy.frame, 9);
        copy
    }

    #[test]
    fn what_is_missing_is_given_once_and_in_order() {
        let mut copies = filled(500);
        let taken = copies.take(at(500), &missing(4000, 20), &path(2));
        assert_eq!(taken, [repeated(2, 400), repeated(2, 401)]);
        assert!(
            copies
                .take(at(500), &missing(4000, 20), &path(2))
                .is_empty()
        );
        // It begins where no packet does, or in another stream.
        assert!(
            copies
                .take(at(500), &missing(4105, 10), &path(2))
                .is_empty()
        );
        let mut other = missing(4100, 10);
        other.missing.key = StreamKey::Lane { epoch: 1, lane: 3 };
        assert!(copies.take(at(500), &other, &path(2)).is_empty());
    }

    #[test]
    fn numbers_wrap() {
        let mut copies = filled(500);
        copies.keep(at(500), KEY, u32::MAX - 4, copy(2, 7));
        copies.keep(at(500), KEY, 5, copy(2, 8));
        let taken = copies.take(at(501), &missing(u32::MAX - 4, 20), &path(2));
        assert_eq!(taken, [repeated(2, 7), repeated(2, 8)]);
    }

    #[test]
    fn what_a_crowded_path_lost_or_a_stranger_asks_for_is_not_given() {
        let mut copies = filled(500);
        let mut crowded = path(2);
        crowded.values_mut().for_each(|path| path.is_clear = false);
        let mut forged = missing(4000, 10);
        forged.token += 1;
        for (request, paths) in [
            (missing(4000, 10), path(3)),
            (missing(4000, 10), crowded),
            (forged, path(2)),
        ] {
            assert!(copies.take(at(500), &request, &paths).is_empty());
        }
        assert_eq!(copies.take(at(500), &missing(4000, 10), &path(2)).len(), 1);
    }

    #[test]
    fn no_more_than_a_fiftieth_is_given() {
        let mut copies = Copies::default();
        let mut given = 0;
        for number in 0..5000 {
            copies.keep(at(number.into()), KEY, 10 * number, copy(2, number));
            given += copies
                .take(at(number.into()), &missing(10 * number, 10), &path(2))
                .len();
        }
        assert_eq!(given, 5000 / REPEATED_SHARE);
        // A burst is not given as a whole either.
        assert_eq!(
            filled(500)
                .take(at(500), &missing(4000, 500), &path(2))
                .len(),
            4
        );
    }

    #[test]
    fn jumbo_frames_are_given_too() {
        let mut copies = Copies::default();
        for number in 0..100 {
            let mut jumbo = copy(2, number);
            jumbo.frame.resize(9_018, 0);
            copies.keep(at(number.into()), KEY, 10 * number, jumbo);
        }
        let taken = copies.take(at(100), &missing(500, 10), &path(2));
        assert_eq!(taken.len(), 1);
    }

    #[test]
    fn copies_are_kept_for_a_moment_and_within_bounds() {
        let mut copies = filled(2000);
        assert_eq!(copies.copies.len(), 1001);
        assert!(
            copies
                .take(at(2500), &missing(13_000, 10), &path(2))
                .is_empty()
        );
        for number in 0..20_000 {
            copies.keep(at(2000), KEY, 10 * number, copy(2, number));
            assert!(copies.bytes <= MAX_BYTES);
        }
        let bytes: usize = copies.copies.values().map(|(_, it)| it.frame.len()).sum();
        assert_eq!(copies.bytes, bytes);
        assert_eq!(bytes / SIZE, MAX_BYTES / SIZE);
        // Small ones, and one that a host sends again and again.
        for number in 0..2 * MAX_COPIES as u32 {
            let mut small = copy(2, number);
            small.frame.truncate(60);
            copies.keep(at(2000), KEY, 10 * (number / 2), small);
            assert!(copies.order.len() <= MAX_COPIES && copies.copies.len() <= MAX_COPIES);
        }
    }

    #[test]
    fn a_packet_that_the_host_sent_again_is_kept_from_then_on() {
        let mut copies = filled(1);
        copies.keep(at(900), KEY, 0, copy(3, 1));
        for number in 1..200 {
            copies.keep(at(1100), KEY, 10 * number, copy(3, number));
        }
        assert_eq!(
            copies.take(at(1101), &missing(0, 10), &path(3)),
            [repeated(3, 1)]
        );
    }
}
