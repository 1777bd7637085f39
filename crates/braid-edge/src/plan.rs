//! Which layer-3 paths are used, and how much each carries: what a controller would say. Pure.
//!
//! A path that does not carry is left out at once, and one that carries again is taken up at once: its
//! [`Watch`] has seen to it that it does not flap. While no path to an edge carries, all are used:
//! probes may be what is lost. Latencies are followed where they have changed enough to matter to who
//! puts in order, once a second at most, since what paths have brought is forgotten then.

use std::collections::BTreeMap;
use std::time::Duration;

use braid_core::slots::{SlotTable, Weights};
use braid_core::{Time, UplinkId};

use crate::shared::SLOT_BYTES;
use crate::table::{Inward, InwardPath, Order, Outward, Table};
use crate::watch::Watch;
use crate::ways::{FarEdge, Way, Ways};

/// A latency that has changed by less, absolutely or by its share, is the same.
const CHANGED: Duration = Duration::from_millis(1);
const CHANGED_SHARE: f64 = 0.1;
const PACE: Duration = Duration::from_secs(1);

/// \[mpsdn\] §III-D leaves T and S to the controller; this is ours (docs/fabric.md).
const ROOM: f64 = 1.25;
const ROOM_MORE: usize = 16;

/// What is to be done from now on.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// As a controller's.
    pub table: Table,
    /// Paths that do not carry.
    pub silent: Vec<String>,
}

/// By tag, so that paths which take turns at being the quicker one are the same paths.
type Latencies = BTreeMap<u16, Option<Duration>>;

/// Watches paths and plans.
#[derive(Debug)]
pub struct Planner {
    ways: Ways,
    watches: BTreeMap<u16, Watch>,
    /// The living paths and their latencies in the last plan.
    planned: Option<Latencies>,
    at: Time,
    /// Whether that plan was not followed.
    refused: bool,
    generation: u64,
}

impl Planner {
    /// Before anything has come back.
    pub fn new(now: Time, ways: Ways) -> Planner {
        let tags = ways.edges.iter().flat_map(|edge| &edge.paths);
        let watches = tags.map(|way| (way.tag, Watch::new(now))).collect();
        Planner {
            ways,
            watches,
            planned: None,
            at: now,
            refused: false,
            generation: 0,
        }
    }

    /// A question goes out by a path.
    pub fn handle_asked(&mut self, now: Time, tag: u16, nonce: u64) {
        if let Some(watch) = self.watches.get_mut(&tag) {
            watch.handle_asked(now, nonce);
        }
    }

    /// An answer came by one.
    pub fn handle_answer(&mut self, now: Time, tag: u16, nonce: u64) {
        if let Some(watch) = self.watches.get_mut(&tag) {
            watch.handle_answer(now, nonce);
        }
    }

    /// Looks who has fallen silent.
    pub fn handle_timeout(&mut self, now: Time) {
        for watch in self.watches.values_mut() {
            watch.handle_timeout(now);
        }
    }

    /// The last plan could not be followed: it is made again, at the pace of all that is not urgent.
    pub fn handle_refused(&mut self) {
        self.refused = true;
    }

    /// Another plan, if it is to be another one; the first time there is one.
    pub fn poll_plan(&mut self, now: Time) -> Option<Plan> {
        let living: Latencies = self
            .ways
            .edges
            .iter()
            .flat_map(|edge| self.living(edge))
            .map(|way| (way.tag, self.latency(way)))
            .collect();
        if let Some(planned) = &self.planned {
            let stands = !self.refused && !have_moved(planned, &living);
            let settled = now.since(self.at) < PACE || stands;
            if planned.keys().eq(living.keys()) && settled {
                return None;
            }
        }
        self.planned = Some(living);
        self.at = now;
        self.refused = false;
        self.generation += 1;
        Some(Plan {
            table: self.table(),
            silent: self.silent(),
        })
    }

    fn carries(&self, way: &Way) -> bool {
        self.watches.get(&way.tag).is_some_and(Watch::carries)
    }

    fn latency(&self, way: &Way) -> Option<Duration> {
        self.watches.get(&way.tag).and_then(Watch::latency)
    }

    /// The paths that are used, the quickest first; those not known yet last.
    fn living<'a>(&self, edge: &'a FarEdge) -> Vec<&'a Way> {
        let mut living: Vec<&Way> = edge.paths.iter().filter(|way| self.carries(way)).collect();
        if living.is_empty() {
            living = edge.paths.iter().collect();
        }
        living.sort_by_key(|way| self.latency(way).unwrap_or(Duration::MAX));
        living
    }

    fn silent(&self) -> Vec<String> {
        let ways = self.ways.edges.iter().flat_map(|edge| &edge.paths);
        ways.filter(|way| !self.carries(way))
            .map(|way| format!("path {} from {} to {}", way.tag, way.here, way.there))
            .collect()
    }

    fn table(&self) -> Table {
        let (mut outward, mut inward) = (Vec::new(), Vec::new());
        for edge in &self.ways.edges {
            let living = self.living(edge);
            outward.push(Outward {
                target: edge.name.clone(),
                hosts: Vec::new(),
                slots: slots(&living),
                shim: false,
                // Nobody tells what else goes by lines that are not ours.
                ceiling_bit_s: 0,
            });
            let threshold_packets = self.threshold(&living);
            let paths = living.iter().map(|way| InwardPath {
                tag: way.tag,
                latency_ms: self
                    .latency(way)
                    .map(|latency| 1000.0 * latency.as_secs_f64()),
            });
            inward.push(Inward {
                source: edge.name.clone(),
                order: match living.len() {
                    1 => Order::Single,
                    _ => Order::Resequence,
                },
                threshold_packets,
                size_packets: 2 * threshold_packets,
                gave_up: living.len() < edge.paths.len(),
                paths: paths.collect(),
            });
        }
        Table::own(self.generation, outward, inward)
    }

    /// What the quicker paths bring while the slowest has brought nothing yet, in full frames.
    fn threshold(&self, living: &[&Way]) -> usize {
        let latency = |way: &&Way| self.latency(way).unwrap_or_default();
        let slowest = living.iter().map(latency).max().unwrap_or_default();
        let early = living.iter().filter_map(|way| {
            let ahead = slowest.saturating_sub(latency(way));
            Some(way.rate?.bytes_in(ahead).get() as f64)
        });
        (ROOM * early.sum::<f64>() / f64::from(SLOT_BYTES)).ceil() as usize + ROOM_MORE
    }
}

/// \[mpsdn\] §III-C: w_j = c_j / Σ c_i.
fn slots(living: &[&Way]) -> Vec<u16> {
    // In kbit/s, so that 4 Tbit/s fit.
    let weight = |way: &Way| {
        let kbit = way.rate.map_or(1, |rate| rate.bits_per_sec() / 1000);
        u32::try_from(kbit).unwrap_or(u32::MAX).max(1)
    };
    let weights = living
        .iter()
        .zip(0..)
        .map(|(way, place)| (UplinkId(place), weight(way)));
    let Ok(weights) = Weights::new(weights) else {
        return Vec::new();
    };
    SlotTable::spread(&weights)
        .as_slice()
        .iter()
        .map(|place| living[place.index()].tag)
        .collect()
}

/// Of the same paths.
fn have_moved(before: &Latencies, now: &Latencies) -> bool {
    before
        .values()
        .zip(now.values())
        .any(|(before, now)| match (before, now) {
            (Some(before), Some(now)) => {
                let by = before.abs_diff(*now);
                by > CHANGED && by.as_secs_f64() > CHANGED_SHARE * before.as_secs_f64()
            }
            _ => before != now,
        })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::watch::INTERVAL;

    const FILE: &str = r#"
        [[edge]]
        name = "b"
        here = "10.1.0.1"
        there = "10.2.0.1"
        [[edge.path]]
        here = "192.0.2.1"
        there = "198.51.100.1"
        rate = "10 Mbit/s"
        [[edge.path]]
        here = "192.0.2.2"
        there = "198.51.100.2"
        rate = "30 Mbit/s"
    "#;
    /// There and back, by path.
    const ROUND_TRIPS: [(u16, Duration); 2] = [
        (2, Duration::from_millis(90)),
        (3, Duration::from_millis(30)),
    ];

    /// Probes paths that answer as they do in [`ROUND_TRIPS`], or not at all, for so many rounds;
    /// returns the last plan made.
    fn play(planner: &mut Planner, from: u32, rounds: u32, answer: &[u16]) -> Option<Plan> {
        let mut last = None;
        for round in from..from + rounds {
            let now = Time::ZERO + INTERVAL * round;
            for (tag, round_trip) in ROUND_TRIPS {
                let nonce = u64::from(round) * 2 + u64::from(tag);
                planner.handle_asked(now, tag, nonce);
                if answer.contains(&tag) {
                    planner.handle_answer(now + round_trip, tag, nonce);
                }
            }
            planner.handle_timeout(now + INTERVAL);
            last = planner.poll_plan(now + INTERVAL).or(last);
        }
        last
    }

    fn shares(plan: &Plan) -> Vec<(u16, usize)> {
        let slots = &plan.table.outward[0].slots;
        let count = |tag| slots.iter().filter(|slot| **slot == tag).count();
        [2, 3].map(|tag| (tag, count(tag))).to_vec()
    }

    #[test]
    fn shares_follow_the_rates_and_order_the_latencies() {
        let ways = Ways::read(Path::new("f"), FILE).expect("a file");
        let mut planner = Planner::new(Time::ZERO, ways);
        let plan = play(&mut planner, 0, 10, &[2, 3]).expect("a plan");
        assert_eq!(shares(&plan), [(2, 256), (3, 768)]);
        let inward = &plan.table.inward[0];
        let latencies: Vec<_> = inward.paths.iter().map(|path| path.latency()).collect();
        assert_eq!(latencies, [15, 45].map(Duration::from_millis));
        // 30 Mbit/s · 30 ms are 112,500 bytes: 74.3 frames, and a quarter more.
        assert_eq!(inward.threshold_packets, 93 + 16);
        assert!(plan.silent.is_empty());
        assert_eq!(planner.poll_plan(Time::ZERO + Duration::from_secs(9)), None);
    }

    #[test]
    fn before_anything_is_known_all_paths_are_used() {
        let ways = Ways::read(Path::new("f"), FILE).expect("a file");
        let mut planner = Planner::new(Time::ZERO, ways);
        let plan = planner.poll_plan(Time::ZERO).expect("the first plan");
        assert_eq!(shares(&plan), [(2, 256), (3, 768)]);
        assert_eq!(plan.silent.len(), 2);
    }

    #[test]
    fn a_plan_that_was_not_followed_is_made_again() {
        let ways = Ways::read(Path::new("f"), FILE).expect("a file");
        let mut planner = Planner::new(Time::ZERO, ways);
        let plan = planner.poll_plan(Time::ZERO).expect("the first plan");
        planner.handle_refused();
        let early = Time::ZERO + PACE / 2;
        assert_eq!(planner.poll_plan(early), None, "not in haste");
        let again = planner.poll_plan(Time::ZERO + PACE).expect("it again");
        assert_eq!(again.table.outward, plan.table.outward);
        assert_eq!(planner.poll_plan(Time::ZERO + PACE * 3), None, "followed");
    }

    #[test]
    fn paths_that_are_about_as_quick_are_not_planned_anew_for_taking_turns() {
        let ways = Ways::read(Path::new("f"), FILE).expect("a file");
        let mut planner = Planner::new(Time::ZERO, ways);
        let mut answered = |round: u32, round_trips: [u64; 2]| {
            let now = Time::ZERO + INTERVAL * round;
            for (tag, us) in [2, 3].into_iter().zip(round_trips) {
                let nonce = u64::from(round) * 2 + u64::from(tag);
                planner.handle_asked(now, tag, nonce);
                planner.handle_answer(now + Duration::from_micros(us), tag, nonce);
            }
            planner.poll_plan(now + INTERVAL)
        };
        let first = answered(0, [30_000, 30_100]).expect("the first plan");
        assert_eq!(first.silent.len(), 0);
        for (round, round_trips) in [[30_000, 29_900], [29_800, 29_900], [29_800, 29_700]]
            .into_iter()
            .enumerate()
        {
            // Also where a plan is due again.
            let round = 1 + 40 * round as u32;
            assert_eq!(answered(round, round_trips), None, "{round_trips:?}");
        }
    }

    #[test]
    fn a_path_that_falls_silent_is_left_and_taken_up_again() {
        let ways = Ways::read(Path::new("f"), FILE).expect("a file");
        let mut planner = Planner::new(Time::ZERO, ways);
        play(&mut planner, 0, 100, &[2, 3]);
        let plan = play(&mut planner, 100, 20, &[2]).expect("another plan");
        assert_eq!(shares(&plan), [(2, 1024), (3, 0)]);
        assert_eq!(plan.silent, ["path 3 from 192.0.2.2 to 198.51.100.2"]);
        assert_eq!(plan.table.inward[0].order, Order::Single);
        let plan = play(&mut planner, 120, 20, &[2, 3]).expect("another plan");
        assert_eq!(shares(&plan), [(2, 256), (3, 768)]);
        // Without any, both are tried.
        let plan = play(&mut planner, 140, 40, &[]).expect("another plan");
        assert_eq!(shares(&plan), [(2, 256), (3, 768)]);
        assert_eq!(plan.silent.len(), 2);
    }
}
