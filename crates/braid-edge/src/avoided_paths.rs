//! Decides which paths to another edge flows avoid that keep to one path. Pure.
//!
//! Such a flow has the path of its hash ([`crate::table`]), and cannot use another one meanwhile, so a path that loses
//! packets holds it up for as long as it lasts. It moves to another path while one is known that loses less.
//! Losses of a queue say nothing about a path: where flows fill it, they would fill any.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use braid_core::Time;

use crate::pair_repair::LOSS_WINDOW;
use crate::path_loss::RecentLoss;

/// Losses at different times that show a path to lose packets.
const MIN_LOSSES: usize = 3;
/// Least part of a path's bytes that are lost, as its inverse.
const MIN_LOSS: u64 = 2_000;
/// Times that the path must lose as often as another one.
const MIN_EXCESS_FACTOR: usize = 4;
/// Time for which a path is avoided; doubled each time that it turns out to lose packets still, up to
/// [`MAX_HOLD`].
const HOLD: Duration = Duration::from_secs(30);
const MAX_HOLD: Duration = Duration::from_secs(960);

/// The avoided ones among the paths to one other edge.
#[derive(Debug, Default)]
pub struct AvoidedPaths {
    paths: BTreeMap<u16, State>,
}

#[derive(Debug, Default)]
struct State {
    /// Losses until the last look, and true if the queue was short then.
    events: u64,
    was_clear: bool,
    /// Looks since the one before which the path lost packets while its queue was short.
    losses: VecDeque<Time>,
    /// The last time for which it is avoided, or was.
    hold: Option<(Time, Duration)>,
}

impl State {
    fn is_avoided(&self, now: Time) -> bool {
        self.hold
            .is_some_and(|(since, hold)| now.since(since) < hold)
    }
}

impl AvoidedPaths {
    /// Takes in what each path lost lately, and whether its queue is too short to lose packets.
    pub fn handle_losses(
        &mut self,
        now: Time,
        losses: &BTreeMap<u16, RecentLoss>,
        is_clear: impl Fn(u16) -> bool,
    ) {
        self.paths.retain(|tag, _| losses.contains_key(tag));
        for (tag, loss) in losses {
            let state = self.paths.entry(*tag).or_default();
            let (has_lost, is_clear) = (loss.events != state.events, is_clear(*tag));
            if has_lost && is_clear && state.was_clear {
                state.losses.push_back(now);
            }
            (state.events, state.was_clear) = (loss.events, is_clear);
            let is_old = |at: &Time| now.since(*at) > LOSS_WINDOW;
            while state.losses.front().is_some_and(is_old) {
                state.losses.pop_front();
            }
        }
        for (tag, loss) in losses {
            let better = |(other, state): (&u16, &State)| {
                let count = MIN_EXCESS_FACTOR * state.losses.len();
                other != tag && !state.is_avoided(now) && count <= self.paths[tag].losses.len()
            };
            let (state, has_better) = (&self.paths[tag], self.paths.iter().any(better));
            let loses = state.losses.len() >= MIN_LOSSES && MIN_LOSS * loss.lost >= loss.sent;
            if !loses || !has_better || state.is_avoided(now) {
                continue;
            }
            // Soon after the last time it is the same trouble.
            let longer = state
                .hold
                .filter(|(since, hold)| now.since(*since) < 3 * *hold);
            let hold = longer.map_or(HOLD, |(_, hold)| (2 * hold).min(MAX_HOLD));
            if let Some(state) = self.paths.get_mut(tag) {
                state.hold = Some((now, hold));
                state.losses.clear();
            }
        }
    }

    /// Returns the tags of the paths that are avoided.
    pub fn avoided(&self, now: Time) -> impl Iterator<Item = u16> + '_ {
        let avoided = self.paths.iter();
        let avoided = avoided.filter(move |(_, state)| state.is_avoided(now));
        avoided.map(|(tag, _)| *tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Paths {
        avoided: AvoidedPaths,
        now: Time,
        losses: BTreeMap<u16, RecentLoss>,
        clear: bool,
    }

    impl Paths {
        fn new() -> Paths {
            let mut paths = Paths {
                avoided: AvoidedPaths::default(),
                now: Time::ZERO + Duration::from_secs(100),
                losses: (2..5).map(|tag| (tag, RecentLoss::default())).collect(),
                clear: true,
            };
            assert!(!paths.lose(&[]));
            paths
        }

        /// Loses a packet by some paths, and looks half a second later; returns true if others are avoided then.
        fn lose(&mut self, tags: &[u16]) -> bool {
            let before = self.avoided();
            self.now = self.now + Duration::from_millis(500);
            for (tag, loss) in &mut self.losses {
                loss.sent = 1_000_000;
                loss.lost = loss.lost * 15 / 16;
                if tags.contains(tag) {
                    (loss.lost, loss.events) = (loss.lost + 1_500, loss.events + 1);
                }
            }
            let clear = self.clear;
            self.avoided
                .handle_losses(self.now, &self.losses, |_| clear);
            self.avoided() != before
        }

        fn avoided(&self) -> Vec<u16> {
            self.avoided.avoided(self.now).collect()
        }

        /// Loses packets by these paths until others are avoided; returns the seconds that it took.
        fn lose_until_changed(&mut self, tags: &[u16], most: u64) -> Option<u64> {
            let began = self.now;
            let looks = 2 * most;
            let changed = (0..looks).any(|_| self.lose(tags));
            changed.then(|| self.now.since(began).as_secs())
        }
    }

    #[test]
    fn a_path_that_loses_packets_is_avoided_longer_each_time() {
        let mut paths = Paths::new();
        assert_eq!(paths.lose_until_changed(&[3], 10), Some(1));
        assert_eq!(paths.avoided(), [3]);
        assert_eq!(paths.lose_until_changed(&[], 100), Some(30));
        assert!(paths.avoided().is_empty());
        for hold in [60, 120, 240, 480, 960, 960] {
            assert_eq!(paths.lose_until_changed(&[3], 10), Some(1));
            assert_eq!(paths.lose_until_changed(&[], 2_000), Some(hold));
        }
        // It was in order for long enough.
        assert_eq!(paths.lose_until_changed(&[], 2_000), None);
        assert_eq!(paths.lose_until_changed(&[3], 10), Some(1));
        assert_eq!(paths.lose_until_changed(&[], 100), Some(30));
    }

    #[test]
    fn few_losses_and_those_of_all_paths_move_nothing() {
        let mut paths = Paths::new();
        assert_eq!(paths.lose_until_changed(&[2, 3, 4], 100), None);
        let mut paths = Paths::new();
        for _ in 0..20 {
            assert!(!paths.lose(&[3]));
            assert_eq!(paths.lose_until_changed(&[], 6), None);
        }
        // Of the last one there is no better one.
        let mut paths = Paths::new();
        assert_eq!(paths.lose_until_changed(&[2, 3], 10), Some(1));
        assert_eq!(paths.avoided(), [2, 3]);
        assert_eq!(paths.lose_until_changed(&[4], 20), None);
    }

    #[test]
    fn losses_of_a_queue_move_nothing() {
        let mut paths = Paths::new();
        paths.clear = false;
        assert_eq!(paths.lose_until_changed(&[3], 100), None);
        // It was long at the last look.
        for _ in 0..20 {
            paths.clear = !paths.clear;
            assert!(!paths.lose(&[3]));
        }
        paths.clear = true;
        assert_eq!(paths.lose_until_changed(&[3], 10), Some(2));
    }

    #[test]
    fn a_path_that_is_withdrawn_is_forgotten() {
        let mut paths = Paths::new();
        paths.lose_until_changed(&[3], 10);
        let lost = paths.losses.remove(&3);
        assert!(paths.lose(&[]));
        assert!(paths.avoided().is_empty());
        paths.losses.extend(lost.map(|lost| (3, lost)));
        assert!(!paths.lose(&[]));
    }
}
