//! Decides of which paths to another edge copies are kept, and tells what follows from that. Pure.
//!
//! A path qualifies that loses some packets, not many, and several times as many as another one: losses that
//! all paths have alike tell the sender to slow down, and are hidden from nobody. Those of a full queue are
//! neither; the queue is looked at when something is missing
//! ([`PairMonitor::is_clear`](crate::pair_monitor::PairMonitor::is_clear)).

use std::collections::BTreeMap;
use std::time::Duration;

use braid_core::Time;

use crate::probe::Offer;

/// Least and greatest part of a path's bytes that are lost, in parts of [`SCALE`]: 0.05 % to 3 %.
const MIN_LOSS: u64 = 5;
const MAX_LOSS: u64 = 300;
const SCALE: u64 = 10_000;
/// Bytes lost within the window, of one packet for each loss: three of full size. Another path must have
/// carried so much that it would have lost as many, too.
const MIN_LOST_BYTES: u64 = 4_000;
/// Times that the path must lose as much as another one.
const MIN_EXCESS_FACTOR: u64 = 4;
/// Time after the last loss for which copies are kept.
const MEMORY: Duration = Duration::from_secs(15);
/// Time for which a path that lost too much is not taken up again: its losses would be forgiven, and packets take
/// it, each time that its share falls below the limit.
const REST: Duration = Duration::from_secs(60);
/// Window of [`PathLoss`], `LOSS_WINDOW_NS` of `bpf/arrival.h`.
pub const LOSS_WINDOW: Duration = Duration::from_secs(8);

/// Recent bytes of a path, as `bpf/arrival.h` counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathLoss {
    /// Sent.
    pub sent: u64,
    /// Of one packet for each loss that the host made good.
    pub lost: u64,
    /// Packets that were lost and sent again by another path, since the beginning.
    pub repeated: u64,
}

impl PathLoss {
    fn ratio(self) -> u64 {
        self.lost * SCALE / self.sent.max(1)
    }

    /// Returns true if the path carried less than half of this rate.
    #[must_use]
    pub fn is_light(self, rate_bit_s: u64) -> bool {
        2 * 8 * self.sent / LOSS_WINDOW.as_secs() < rate_bit_s
    }
}

/// A path of which copies are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopiedPath {
    /// Tag of the path by which they are sent again.
    pub by: u16,
    /// That of the offer to the other edge.
    pub token: u64,
    /// True if the path's queue is short now.
    pub is_clear: bool,
}

/// Another edge that keeps copies of what it sends here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskedEdge {
    /// Its offer.
    pub offer: Offer,
    /// Tags of the paths by which requests are sent.
    pub by: Vec<u16>,
}

/// The state of repair, for those who carry it out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Paths of which copies are kept.
    pub copied: BTreeMap<u16, CopiedPath>,
    /// Offers of them, by tag of the path that a reply takes.
    pub offers: BTreeMap<u16, Offer>,
    /// Other edges that may be asked, by name.
    pub asked: BTreeMap<String, AskedEdge>,
}

/// Paths to one other edge that lose some packets.
#[derive(Debug, Default)]
pub struct PairRepair {
    /// Time of the last loss by tag, and how many had been repaired then.
    losing: BTreeMap<u16, (Time, u64)>,
    /// Time at which a path lost too much, by tag.
    resting: BTreeMap<u16, Time>,
}

impl PairRepair {
    /// Takes in the paths as they are now.
    pub fn handle_paths(&mut self, now: Time, paths: &BTreeMap<u16, PathLoss>) {
        self.resting
            .retain(|tag, since| paths.contains_key(tag) && now.since(*since) < REST);
        self.losing.retain(|tag, (seen, repeated)| {
            let Some(loss) = paths.get(tag) else {
                return false;
            };
            if loss.ratio() > MAX_LOSS {
                self.resting.insert(*tag, now);
                return false;
            }
            // Hosts do not send again packets that were repaired, so the program sees no loss.
            if loss.repeated != *repeated {
                (*seen, *repeated) = (now, loss.repeated);
            }
            now.since(*seen) < MEMORY
        });
        for (tag, loss) in paths {
            let ratio = loss.ratio();
            let is_better = |(other, better): (&u16, &PathLoss)| {
                // Losses of a path that are repaired are not seen.
                other != tag
                    && !self.losing.contains_key(other)
                    && ratio * better.sent >= MIN_LOST_BYTES * SCALE
                    && ratio >= MIN_EXCESS_FACTOR * better.ratio()
            };
            let is_losing = (MIN_LOSS..=MAX_LOSS).contains(&ratio) && loss.lost >= MIN_LOST_BYTES;
            if is_losing && !self.resting.contains_key(tag) && paths.iter().any(is_better) {
                self.losing.insert(*tag, (now, loss.repeated));
            }
        }
    }

    /// Returns true if nothing is known of any path.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.losing.is_empty() && self.resting.is_empty()
    }

    /// Returns the paths that lose some packets.
    pub fn losing(&self) -> impl Iterator<Item = u16> + '_ {
        self.losing.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Time {
        Time::ZERO + Duration::from_secs(s)
    }

    /// Paths 2, 3, … of which each lost so many of 10 MB, in bytes.
    fn paths(lost: &[u64]) -> BTreeMap<u16, PathLoss> {
        let path = |lost: &u64| PathLoss {
            sent: 10_000_000,
            lost: *lost,
            repeated: 0,
        };
        (2..).zip(lost.iter().map(path)).collect()
    }

    fn losing_of(paths: &BTreeMap<u16, PathLoss>) -> Vec<u16> {
        let mut repair = PairRepair::default();
        repair.handle_paths(at(100), paths);
        repair.losing().collect()
    }

    fn losing(lost: &[u64]) -> Vec<u16> {
        losing_of(&paths(lost))
    }

    #[test]
    fn a_path_that_loses_some_more_than_another_qualifies() {
        assert_eq!(losing(&[0, 50_000]), [3]);
        assert_eq!(losing(&[0, 50_000, 100_000]), [3, 4]);
        assert_eq!(losing(&[10_000, 50_000]), [3]);
    }

    #[test]
    fn a_path_that_loses_nearly_none_or_many_or_what_all_lose_does_not() {
        assert!(losing(&[0, 0]).is_empty());
        assert!(losing(&[0, 4_500]).is_empty());
        assert!(losing(&[0, 400_000]).is_empty());
        assert!(losing(&[20_000, 50_000]).is_empty());
        assert!(losing(&[50_000]).is_empty(), "nothing could repair it");
        let mut few = paths(&[0, 3_000]);
        few.values_mut().for_each(|loss| loss.sent = 100_000);
        assert!(losing_of(&few).is_empty());
    }

    #[test]
    fn a_path_that_carries_next_to_nothing_is_no_better() {
        let mut idle = paths(&[0, 50_000]);
        for (sent, count) in [(0, 0), (799_999, 0), (800_000, 1)] {
            idle.get_mut(&2).expect("a path").sent = sent;
            assert_eq!(losing_of(&idle).len(), count, "{sent}");
        }
    }

    #[test]
    fn a_path_is_light_that_carries_less_than_half_of_its_rate() {
        let loss = paths(&[0])[&2];
        // 10 MB in 8 s are 10 Mbit/s.
        for (rate, is_light) in [(0, false), (20_000_000, false), (20_000_001, true)] {
            assert_eq!(loss.is_light(rate), is_light);
        }
    }

    #[test]
    fn copies_are_kept_as_long_as_something_is_repaired() {
        let mut repair = PairRepair::default();
        repair.handle_paths(at(100), &paths(&[0, 50_000]));
        let mut repaired = paths(&[0, 0]);
        for (s, repeated, count) in [
            (110, 1, 1),
            (114, 1, 1),
            (124, 1, 1),
            (125, 1, 0),
            (126, 2, 0),
        ] {
            repaired.get_mut(&3).expect("a path").repeated = repeated;
            repair.handle_paths(at(s), &repaired);
            assert_eq!(repair.losing().count(), count, "{s}");
        }
        // Where one path's losses are repaired, those of the other are those of all.
        repair.handle_paths(at(157), &paths(&[0, 50_000]));
        repair.handle_paths(at(158), &paths(&[50_000, 0]));
        assert_eq!(repair.losing().collect::<Vec<u16>>(), [3]);
        // A path that has gone, and one that loses too much.
        repair.handle_paths(at(160), &paths(&[0, 50_000]));
        repair.handle_paths(at(161), &paths(&[0, 500_000]));
        assert_eq!(repair.losing().count(), 0);
        repair.handle_paths(at(162), &paths(&[0]));
        repair.handle_paths(at(163), &paths(&[0, 50_000]));
        assert_eq!(repair.losing().count(), 1, "another one with its tag");
        repair.handle_paths(at(164), &paths(&[0]));
        assert!(repair.is_idle());
    }

    #[test]
    fn a_path_that_lost_too_much_rests() {
        let mut repair = PairRepair::default();
        repair.handle_paths(at(100), &paths(&[0, 50_000]));
        repair.handle_paths(at(101), &paths(&[0, 310_000]));
        for (s, count) in [(102, 0), (130, 0), (160, 0), (161, 1), (162, 1)] {
            repair.handle_paths(at(s), &paths(&[0, 290_000]));
            assert_eq!(repair.losing().count(), count, "{s}");
            assert!(!repair.is_idle());
        }
    }
}
