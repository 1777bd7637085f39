//! Decides which paths to another edge flows avoid that keep to one path. Pure.
//!
//! Such a flow has the path of its hash ([`crate::table`]), and cannot use another one meanwhile, so a path that loses
//! packets holds it up for as long as it lasts. It moves to another path while one is known that loses less.
//!
//! - **Losses are remembered**: a path that is avoided carries little, which tells nothing of it. It loses what it lost
//!   last until its time is over; then flows try it again. So the worse one of two paths that lose packets is tried
//!   ever more seldom, and two that lose alike are both used.
//! - **The other paths have room** for what the lossy one carries of these flows, each for its part by rate, as they may
//!   take any. All other flows give way. If one is filled later, the flows go back.
//! - **Losses of a queue say nothing** about a path: where flows fill it, they would fill any.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use braid_core::Time;

use crate::pair_repair::LOSS_WINDOW;
use crate::path_loss::RecentLoss;

/// Losses at different times that show a path to lose packets.
const MIN_LOSSES: usize = 3;
/// Lost bytes are told in parts of this many of those that were sent.
const SCALE: u64 = 1_000_000;
/// Least part of a path's bytes that are lost: 0.05 %.
const MIN_LOSS: u64 = 500;
/// Times that the path must lose as much as another one.
const MIN_EXCESS_FACTOR: u64 = 4;
/// The same for a path that is avoided already.
const MIN_LASTING_FACTOR: u64 = 2;
/// Part of a path's rate that flows which keep to it may have when others join them, in quarters: more join later.
const ROOM_QUARTERS: u64 = 3;
/// Part from which on they fill it, in parts of 16.
const FULL_SIXTEENTHS: u64 = 15;
/// First time for which losses are remembered, or a path is not avoided; doubled each time that the same happens soon
/// again, up to [`MAX_TIME`].
const FIRST_TIME: Duration = Duration::from_secs(30);
const MAX_TIME: Duration = Duration::from_secs(960);

/// A path as it is now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathNow {
    /// Its losses of late.
    pub loss: RecentLoss,
    /// True if its queue is too short to lose packets.
    pub is_clear: bool,
    /// Its capacity, bit/s; 0: unknown.
    pub rate_bit_s: u64,
    /// Its present load by flows that keep to one path, bit/s.
    pub kept_bit_s: u64,
}

impl PathNow {
    fn has_room(&self, more_bit_s: u64) -> bool {
        self.rate_bit_s == 0
            || 4 * (self.kept_bit_s + more_bit_s) <= ROOM_QUARTERS * self.rate_bit_s
    }

    fn is_full(&self) -> bool {
        self.rate_bit_s > 0 && 16 * self.kept_bit_s >= FULL_SIXTEENTHS * self.rate_bit_s
    }
}

/// A time that is longer each time.
#[derive(Debug, Clone, Copy)]
struct Spell {
    since: Time,
    length: Duration,
}

impl Spell {
    fn lasts(&self, now: Time) -> bool {
        now.since(self.since) < self.length
    }

    /// Returns the one that follows.
    fn next(before: Option<Spell>, now: Time) -> Spell {
        // Long after the last one it is another trouble.
        let recent = before.filter(|spell| now.since(spell.since) < 3 * spell.length);
        let length = recent.map_or(FIRST_TIME, |spell| (2 * spell.length).min(MAX_TIME));
        Spell { since: now, length }
    }
}

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
    /// Its lost part when it lost packets last, and the time for which that is remembered.
    known: Option<(u64, Spell)>,
    /// The last time for which it is not avoided, since the others had no room.
    rest: Option<Spell>,
    is_avoided: bool,
}

impl State {
    /// Returns the part that the path loses as far as is known.
    fn ratio(&self, now: Time) -> u64 {
        let known = self.known.filter(|(_, spell)| spell.lasts(now));
        known.map_or(0, |(ratio, _)| ratio)
    }

    fn handle_loss(&mut self, now: Time, path: &PathNow) {
        let loss = path.loss;
        let has_lost = loss.events != self.events && path.is_clear && self.was_clear;
        (self.events, self.was_clear) = (loss.events, path.is_clear);
        let is_old = |at: &Time| now.since(*at) > LOSS_WINDOW;
        while self.losses.front().is_some_and(is_old) {
            self.losses.pop_front();
        }
        if !has_lost {
            return;
        }
        self.losses.push_back(now);
        let ratio = loss.lost_bytes * SCALE / loss.sent.max(1);
        if self.losses.len() < MIN_LOSSES || ratio < MIN_LOSS {
            return;
        }
        let spell = match self.known.map(|(_, spell)| spell) {
            Some(spell) if spell.lasts(now) => Spell {
                since: now,
                ..spell
            },
            before => Spell::next(before, now),
        };
        self.known = Some((ratio, spell));
    }
}

impl AvoidedPaths {
    /// Takes in the paths as they are now.
    pub fn handle_paths(&mut self, now: Time, paths: &BTreeMap<u16, PathNow>) {
        self.paths.retain(|tag, _| paths.contains_key(tag));
        for (tag, path) in paths {
            let state = self.paths.entry(*tag).or_default();
            state.handle_loss(now, path);
        }
        let mut paths = paths.clone();
        // The better ones first, so that it is known whether flows avoid these.
        let mut order: Vec<(u64, u16)> = Vec::new();
        for (tag, state) in &mut self.paths {
            match state.ratio(now) {
                0 => state.is_avoided = false,
                ratio => order.push((ratio, *tag)),
            }
        }
        order.sort_unstable();
        for (ratio, tag) in order {
            let was_avoided = self.paths[&tag].is_avoided;
            let (moved, factor) = match was_avoided {
                true => (0, MIN_LASTING_FACTOR),
                false => (paths[&tag].kept_bit_s, MIN_EXCESS_FACTOR),
            };
            // Its flows take any of these, about by their rates.
            let is_taken = |other: &u16| *other != tag && !self.paths[other].is_avoided;
            let others: Vec<u16> = paths.keys().copied().filter(is_taken).collect();
            let rate: u64 = others.iter().map(|other| paths[other].rate_bit_s).sum();
            let part = |path: &PathNow| {
                let part = u128::from(moved) * u128::from(path.rate_bit_s);
                u64::try_from(part.checked_div(rate.into()).unwrap_or(0)).unwrap_or(moved)
            };
            let has_room = others.iter().all(|other| match was_avoided {
                true => !paths[other].is_full(),
                false => paths[other].has_room(part(&paths[other])),
            });
            let is_better = |other: &u16| factor * self.paths[other].ratio(now) <= ratio;
            let has_better = others.iter().any(is_better);
            let Some(state) = self.paths.get_mut(&tag) else {
                continue;
            };
            if was_avoided && has_better && !has_room {
                state.rest = Some(Spell::next(state.rest, now));
            }
            let rests = state.rest.is_some_and(|spell| spell.lasts(now));
            state.is_avoided = has_better && has_room && !rests;
            for other in others.iter().filter(|_| state.is_avoided) {
                if let Some(path) = paths.get_mut(other) {
                    path.kept_bit_s += part(path);
                }
            }
        }
    }

    /// Returns the tags of the paths that are avoided.
    pub fn avoided(&self) -> impl Iterator<Item = u16> + '_ {
        let avoided = self.paths.iter().filter(|(_, state)| state.is_avoided);
        avoided.map(|(tag, _)| *tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: u64 = 1_000_000;

    struct Paths {
        avoided: AvoidedPaths,
        now: Time,
        paths: BTreeMap<u16, PathNow>,
    }

    impl Paths {
        fn new() -> Paths {
            let path = PathNow {
                is_clear: true,
                ..PathNow::default()
            };
            let mut paths = Paths {
                avoided: AvoidedPaths::default(),
                now: Time::ZERO + Duration::from_secs(100),
                paths: (2..5).map(|tag| (tag, path)).collect(),
            };
            assert!(!paths.lose(&[]));
            paths
        }

        /// Loses 0.1 % by some paths, and looks half a second later; returns true if others are avoided then.
        fn lose(&mut self, tags: &[u16]) -> bool {
            for (tag, path) in &mut self.paths {
                let lost = if tags.contains(tag) { 1_000 } else { 0 };
                path.loss.sent = 1_000_000;
                path.loss.lost_bytes = lost;
                path.loss.events += u64::from(lost > 0);
            }
            self.look()
        }

        fn look(&mut self) -> bool {
            let before = self.avoided();
            self.now = self.now + Duration::from_millis(500);
            self.avoided.handle_paths(self.now, &self.paths);
            self.avoided() != before
        }

        fn avoided(&self) -> Vec<u16> {
            self.avoided.avoided().collect()
        }

        /// Loses packets by these paths until others are avoided; returns the seconds that it took.
        fn lose_until_changed(&mut self, tags: &[u16], most: u64) -> Option<u64> {
            let began = self.now;
            let looks = 2 * most;
            let changed = (0..looks).any(|_| self.lose(tags));
            changed.then(|| self.now.since(began).as_secs())
        }

        fn set_clear(&mut self, is_clear: bool) {
            for path in self.paths.values_mut() {
                path.is_clear = is_clear;
            }
        }

        /// Has flows that have a path by their hash, each Mbit/s, use the paths, each of which loses a part of them, for a
        /// time. Returns the seconds for which each path carried most of them.
        fn carry(
            &mut self,
            flows: &[(u16, u64)],
            parts: &[(u16, u64)],
            secs: u64,
        ) -> BTreeMap<u16, u64> {
            let mut halves: BTreeMap<u16, u64> = BTreeMap::new();
            let mut uneven: BTreeMap<u16, u64> = BTreeMap::new();
            for _ in 0..2 * secs {
                let avoided = self.avoided();
                let others = self.paths.keys().filter(|tag| !avoided.contains(tag));
                let other = others.copied().next_back();
                for path in self.paths.values_mut() {
                    path.kept_bit_s = 0;
                }
                for (tag, mbit) in flows {
                    let own = if avoided.contains(tag) {
                        other.unwrap_or(*tag)
                    } else {
                        *tag
                    };
                    if let Some(path) = self.paths.get_mut(&own) {
                        path.kept_bit_s += mbit * MBIT;
                    }
                }
                let most = self.paths.iter().max_by_key(|(_, path)| path.kept_bit_s);
                *halves.entry(most.map_or(0, |(tag, _)| *tag)).or_default() += 1;
                for (tag, path) in &mut self.paths {
                    let part = parts.iter().find(|(lossy, _)| lossy == tag);
                    let loss = &mut path.loss;
                    let sent = path.kept_bit_s / 8 / 2;
                    let packets = sent / 1_500;
                    // Evenly, of 10,000 packets so many.
                    let owed = uneven.entry(*tag).or_default();
                    *owed += packets * part.map_or(0, |(_, part)| *part);
                    let lost = *owed / 10_000;
                    *owed %= 10_000;
                    loss.sent = loss.sent * 15 / 16 + sent;
                    loss.lost_bytes = loss.lost_bytes * 15 / 16 + 1_500 * lost;
                    loss.events += u64::from(lost > 0);
                }
                self.look();
            }
            halves
                .into_iter()
                .map(|(tag, halves)| (tag, halves / 2))
                .collect()
        }

        fn set_rates(&mut self, rates: &[(u16, u64)]) {
            self.paths
                .retain(|tag, _| rates.iter().any(|(other, _)| other == tag));
            for (tag, rate) in rates {
                if let Some(path) = self.paths.get_mut(tag) {
                    path.rate_bit_s = rate * MBIT;
                }
            }
        }
    }

    #[test]
    fn a_path_that_loses_packets_is_avoided_longer_each_time() {
        let mut paths = Paths::new();
        assert_eq!(paths.lose_until_changed(&[3], 10), Some(1));
        assert_eq!(paths.avoided(), [3]);
        assert_eq!(paths.lose_until_changed(&[], 100), Some(30));
        assert!(paths.avoided().is_empty());
        for time in [60, 120, 240, 480, 960, 960] {
            assert_eq!(paths.lose_until_changed(&[3], 10), Some(1));
            assert_eq!(paths.lose_until_changed(&[], 2_000), Some(time));
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
        assert_eq!(paths.lose_until_changed(&[4], 1), None);
    }

    #[test]
    fn losses_of_a_queue_move_nothing() {
        let mut paths = Paths::new();
        paths.set_clear(false);
        assert_eq!(paths.lose_until_changed(&[3], 100), None);
        // It was long at the last look.
        for look in 0..20 {
            paths.set_clear(look % 2 == 0);
            assert!(!paths.lose(&[3]));
        }
        paths.set_clear(true);
        assert_eq!(paths.lose_until_changed(&[3], 10), Some(2));
    }

    #[test]
    fn a_path_that_is_withdrawn_is_forgotten() {
        let mut paths = Paths::new();
        paths.lose_until_changed(&[3], 10);
        let withdrawn = paths.paths.remove(&3);
        assert!(paths.lose(&[]));
        assert!(paths.avoided().is_empty());
        paths.paths.extend(withdrawn.map(|path| (3, path)));
        assert!(!paths.lose(&[]));
    }

    #[test]
    fn flows_take_the_better_of_two_paths_that_lose_packets() {
        // Of 10,000 packets; the flow's own path is the better one, or the worse one.
        for (own, parts) in [(2, [(2, 20), (3, 200)]), (3, [(2, 20), (3, 200)])] {
            let mut paths = Paths::new();
            paths.set_rates(&[(2, 10), (3, 10)]);
            let spent = paths.carry(&[(own, 2)], &parts, 7_200);
            let worse = spent.get(&3).copied().unwrap_or_default();
            assert!(worse < 120, "{own}: {spent:?}");
        }
    }

    #[test]
    fn flows_do_not_move_between_paths_that_lose_alike() {
        let mut paths = Paths::new();
        paths.set_rates(&[(2, 10), (3, 10)]);
        let spent = paths.carry(&[(2, 2)], &[(2, 100), (3, 100)], 7_200);
        assert!(
            spent.get(&3).copied().unwrap_or_default() < 120,
            "{spent:?}"
        );
        let spent = paths.carry(&[(2, 2), (3, 1)], &[(2, 100), (3, 100)], 600);
        assert!(
            spent.get(&2).copied().unwrap_or_default() > 590,
            "{spent:?}"
        );
    }

    #[test]
    fn flows_move_only_where_there_is_room() {
        for (rate, loads, moves) in [
            (10, [6, 0], true),
            (10, [8, 0], false),
            (50, [20, 20], false),
        ] {
            let mut paths = Paths::new();
            paths.set_rates(&[(2, 100), (3, rate)]);
            let flows = [(2, loads[0]), (3, loads[1])];
            paths.carry(&flows, &[(2, 100)], 20);
            assert_eq!(paths.avoided() == [2], moves, "{rate} {loads:?}");
        }
        // Both of two paths do not move to one that has room for one of them.
        let mut paths = Paths::new();
        paths.set_rates(&[(2, 10), (3, 10), (4, 10)]);
        paths.carry(&[(2, 5), (3, 5)], &[(2, 100), (3, 100)], 20);
        assert_eq!(paths.avoided().len(), 1);
    }

    #[test]
    fn flows_leave_a_path_that_they_fill() {
        let mut paths = Paths::new();
        paths.set_rates(&[(2, 100), (3, 10)]);
        let lossy = [(2, 100)];
        paths.carry(&[(2, 2)], &lossy, 20);
        assert_eq!(paths.avoided(), [2]);
        paths.carry(&[(2, 20)], &lossy, 2);
        assert!(paths.avoided().is_empty());
        // With less it is tried again, but not at once.
        let spent = paths.carry(&[(2, 2)], &lossy, 28);
        assert_eq!(spent.get(&3), None);
        paths.carry(&[(2, 2)], &lossy, 5);
        assert_eq!(paths.avoided(), [2]);
    }
}
