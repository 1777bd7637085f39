//! A set of lanes, one bit each.

use crate::{LANES, LaneId};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LaneSet([u64; LANES / 64]);

impl LaneSet {
    pub(crate) fn insert(&mut self, lane: LaneId) {
        self.0[lane.index() / 64] |= 1 << (lane.index() % 64);
    }

    pub(crate) fn remove(&mut self, lane: LaneId) {
        self.0[lane.index() / 64] &= !(1 << (lane.index() % 64));
    }

    /// Returns the lanes in ascending order.
    pub(crate) fn iter(self) -> impl Iterator<Item = LaneId> {
        self.0.into_iter().enumerate().flat_map(|(index, word)| {
            let first = Some(word).filter(|bits| *bits != 0);
            let rest = |bits: &u64| Some(bits & (bits - 1)).filter(|bits| *bits != 0);
            let each = std::iter::successors(first, rest);
            each.map(move |bits| LaneId((index * 64) as u8 + bits.trailing_zeros() as u8))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_come_in_order_until_they_are_removed() {
        let mut set = LaneSet::default();
        assert_eq!(set.iter().next(), None);
        for lane in [255, 0, 64, 63, 130, 64] {
            set.insert(LaneId(lane));
        }
        let lanes: Vec<u8> = set.iter().map(|lane| lane.0).collect();
        assert_eq!(lanes, [0, 63, 64, 130, 255]);
        for lane in lanes {
            set.remove(LaneId(lane));
        }
        assert_eq!(set, LaneSet::default());
    }
}
