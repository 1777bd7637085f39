//! Plans layer-3 paths as a controller would: chooses the paths in use and their shares. Pure.
//!
//! A path that is down is left out at once, and one that is up again is used at once: its
//! [`PathMonitor`] prevents flapping. While all paths to an edge are down, all are used: perhaps only
//! probes are lost. Changed latencies lead to a new plan if they matter to the resequencer, once a
//! second at most, since the resequencer then forgets what each path has delivered.

use std::collections::BTreeMap;
use std::time::Duration;

use braid_core::slots::{SlotTable, Weights};
use braid_core::{Time, UplinkId};

use crate::l3_paths::{L3Path, L3Paths, RemoteEdge};
use crate::path_monitor::PathMonitor;
use crate::shared::SLOT_BYTES;
use crate::table::{DeliveryOrder, Egress, Ingress, IngressPath, Table};

/// Changes of a latency that are smaller, absolutely or relatively, are ignored.
const MIN_LATENCY_CHANGE: Duration = Duration::from_millis(1);
const MIN_LATENCY_CHANGE_RATIO: f64 = 0.1;
/// Shortest time between two plans, unless a path went up or down.
const REPLAN_INTERVAL: Duration = Duration::from_secs(1);

/// Slack of the reorder buffer. \[mpsdn\] §III-D leaves T and S to the controller; docs/fabric-core.md has
/// ours.
const BUFFER_HEADROOM: f64 = 1.25;
const BUFFER_SLACK_PACKETS: usize = 16;

/// A plan for all layer-3 paths.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The table, as a controller would make it.
    pub table: Table,
    /// Descriptions of paths that are down.
    pub silent_paths: Vec<String>,
}

/// Latencies by tag, so that two paths that swap their order are still the same paths.
type Latencies = BTreeMap<u16, Option<Duration>>;

/// Monitors layer-3 paths and plans.
#[derive(Debug)]
pub struct Planner {
    l3_paths: L3Paths,
    monitors: BTreeMap<u16, PathMonitor>,
    /// Paths in use and their latencies in the last plan.
    planned: Option<Latencies>,
    at: Time,
    /// True if that plan could not be applied.
    rejected: bool,
    generation: u64,
}

impl Planner {
    /// Creates a planner before any reply.
    pub fn new(now: Time, l3_paths: L3Paths) -> Planner {
        let tags = l3_paths.edges.iter().flat_map(|edge| &edge.paths);
        let monitors = tags.map(|path| (path.tag, PathMonitor::new(now))).collect();
        Planner {
            l3_paths,
            monitors,
            planned: None,
            at: now,
            rejected: false,
            generation: 0,
        }
    }

    /// Records a probe that is being sent.
    pub fn handle_probe_sent(&mut self, now: Time, tag: u16, nonce: u64) {
        if let Some(monitor) = self.monitors.get_mut(&tag) {
            monitor.handle_probe_sent(now, nonce);
        }
    }

    /// Takes in a reply.
    pub fn handle_reply(&mut self, now: Time, tag: u16, nonce: u64) {
        if let Some(monitor) = self.monitors.get_mut(&tag) {
            monitor.handle_reply(now, nonce);
        }
    }

    /// Declares paths down whose replies are overdue.
    pub fn handle_timeout(&mut self, now: Time) {
        for monitor in self.monitors.values_mut() {
            monitor.handle_timeout(now);
        }
    }

    /// Records that the last plan could not be applied: it is made again after [`REPLAN_INTERVAL`].
    pub fn handle_plan_rejected(&mut self) {
        self.rejected = true;
    }

    /// Returns a plan if it differs from the last one; the first call always returns one.
    pub fn poll_plan(&mut self, now: Time) -> Option<Plan> {
        let usable: Latencies = self
            .l3_paths
            .edges
            .iter()
            .flat_map(|edge| self.usable(edge))
            .map(|path| (path.tag, self.latency(path)))
            .collect();
        if let Some(planned) = &self.planned {
            let stands = !self.rejected && !have_moved(planned, &usable);
            let settled = now.since(self.at) < REPLAN_INTERVAL || stands;
            if planned.keys().eq(usable.keys()) && settled {
                return None;
            }
        }
        self.planned = Some(usable);
        self.at = now;
        self.rejected = false;
        self.generation += 1;
        Some(Plan {
            table: self.table(),
            silent_paths: self.silent_paths(),
        })
    }

    fn is_up(&self, path: &L3Path) -> bool {
        self.monitors.get(&path.tag).is_some_and(PathMonitor::is_up)
    }

    fn latency(&self, path: &L3Path) -> Option<Duration> {
        self.monitors.get(&path.tag).and_then(PathMonitor::latency)
    }

    /// Returns the paths in use by latency; those with unknown latency last.
    fn usable<'a>(&self, edge: &'a RemoteEdge) -> Vec<&'a L3Path> {
        let mut usable: Vec<&L3Path> = edge.paths.iter().filter(|path| self.is_up(path)).collect();
        if usable.is_empty() {
            usable = edge.paths.iter().collect();
        }
        usable.sort_by_key(|path| self.latency(path).unwrap_or(Duration::MAX));
        usable
    }

    fn silent_paths(&self) -> Vec<String> {
        let l3_paths = self.l3_paths.edges.iter().flat_map(|edge| &edge.paths);
        l3_paths
            .filter(|path| !self.is_up(path))
            .map(|path| format!("path {} from {} to {}", path.tag, path.local, path.remote))
            .collect()
    }

    fn table(&self) -> Table {
        let (mut egress, mut ingress) = (Vec::new(), Vec::new());
        for edge in &self.l3_paths.edges {
            let usable = self.usable(edge);
            egress.push(Egress {
                target: edge.name.clone(),
                hosts: Vec::new(),
                slots: slots(&usable),
                shim: false,
                // Other traffic on foreign lines is unknown.
                max_rate_bit_s: 0,
                paths: Vec::new(),
            });
            let threshold_packets = self.threshold(&usable);
            let paths = usable.iter().map(|path| IngressPath {
                tag: path.tag,
                latency_ms: self
                    .latency(path)
                    .map(|latency| 1000.0 * latency.as_secs_f64()),
            });
            ingress.push(Ingress {
                source: edge.name.clone(),
                order: match usable.len() {
                    1 => DeliveryOrder::Single,
                    _ => DeliveryOrder::Resequence,
                },
                threshold_packets,
                size_packets: 2 * threshold_packets,
                path_withdrawn: usable.len() < edge.paths.len(),
                paths: paths.collect(),
            });
        }
        Table::own(self.generation, egress, ingress)
    }

    /// Returns T: full frames that the quicker paths deliver before the slowest delivers its first.
    fn threshold(&self, usable: &[&L3Path]) -> usize {
        let latency = |path: &&L3Path| self.latency(path).unwrap_or_default();
        let slowest = usable.iter().map(latency).max().unwrap_or_default();
        let early = usable.iter().filter_map(|path| {
            let ahead = slowest.saturating_sub(latency(path));
            Some(path.rate?.bytes_in(ahead).get() as f64)
        });
        (BUFFER_HEADROOM * early.sum::<f64>() / f64::from(SLOT_BYTES)).ceil() as usize
            + BUFFER_SLACK_PACKETS
    }
}

/// Makes a slot table by \[mpsdn\] §III-C: w_j = c_j / Σ c_i.
fn slots(usable: &[&L3Path]) -> Vec<u16> {
    // In kbit/s, so that 4 Tbit/s fit.
    let weight = |path: &L3Path| {
        let kbit = path.rate.map_or(1, |rate| rate.bits_per_sec() / 1000);
        u32::try_from(kbit).unwrap_or(u32::MAX).max(1)
    };
    let weights = usable
        .iter()
        .zip(0..)
        .map(|(path, place)| (UplinkId(place), weight(path)));
    let Ok(weights) = Weights::new(weights) else {
        return Vec::new();
    };
    SlotTable::spread(&weights)
        .as_slice()
        .iter()
        .map(|place| usable[place.index()].tag)
        .collect()
}

/// Returns true if latencies of the same paths have changed notably.
fn have_moved(before: &Latencies, now: &Latencies) -> bool {
    before
        .values()
        .zip(now.values())
        .any(|(before, now)| match (before, now) {
            (Some(before), Some(now)) => {
                let by = before.abs_diff(*now);
                by > MIN_LATENCY_CHANGE
                    && by.as_secs_f64() > MIN_LATENCY_CHANGE_RATIO * before.as_secs_f64()
            }
            _ => before != now,
        })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::path_monitor::PROBE_INTERVAL;

    const FILE: &str = r#"
        [[edge]]
        name = "b"
        local = "10.1.0.1"
        remote = "10.2.0.1"
        [[edge.path]]
        local = "192.0.2.1"
        remote = "198.51.100.1"
        rate = "10 Mbit/s"
        [[edge.path]]
        local = "192.0.2.2"
        remote = "198.51.100.2"
        rate = "30 Mbit/s"
    "#;
    /// Round-trip times, by tag.
    const ROUND_TRIPS: [(u16, Duration); 2] = [
        (2, Duration::from_millis(90)),
        (3, Duration::from_millis(30)),
    ];

    /// Probes for `rounds` rounds; paths in `answer` reply after [`ROUND_TRIPS`], the others never.
    /// Returns the last plan.
    fn play(planner: &mut Planner, from: u32, rounds: u32, answer: &[u16]) -> Option<Plan> {
        let mut last = None;
        for round in from..from + rounds {
            let now = Time::ZERO + PROBE_INTERVAL * round;
            for (tag, round_trip) in ROUND_TRIPS {
                let nonce = u64::from(round) * 2 + u64::from(tag);
                planner.handle_probe_sent(now, tag, nonce);
                if answer.contains(&tag) {
                    planner.handle_reply(now + round_trip, tag, nonce);
                }
            }
            planner.handle_timeout(now + PROBE_INTERVAL);
            last = planner.poll_plan(now + PROBE_INTERVAL).or(last);
        }
        last
    }

    fn shares(plan: &Plan) -> Vec<(u16, usize)> {
        let slots = &plan.table.egress[0].slots;
        let count = |tag| slots.iter().filter(|slot| **slot == tag).count();
        [2, 3].map(|tag| (tag, count(tag))).to_vec()
    }

    #[test]
    fn shares_follow_the_rates_and_order_the_latencies() {
        let l3_paths = L3Paths::read(Path::new("f"), FILE).expect("a file");
        let mut planner = Planner::new(Time::ZERO, l3_paths);
        let plan = play(&mut planner, 0, 10, &[2, 3]).expect("a plan");
        assert_eq!(shares(&plan), [(2, 256), (3, 768)]);
        let ingress = &plan.table.ingress[0];
        let latencies: Vec<_> = ingress.paths.iter().map(|path| path.latency()).collect();
        assert_eq!(latencies, [15, 45].map(Duration::from_millis));
        // 30 Mbit/s · 30 ms are 112,500 bytes: 74.3 frames, and a quarter more.
        assert_eq!(ingress.threshold_packets, 93 + 16);
        assert!(plan.silent_paths.is_empty());
        assert_eq!(planner.poll_plan(Time::ZERO + Duration::from_secs(9)), None);
    }

    #[test]
    fn before_anything_is_known_all_paths_are_used() {
        let l3_paths = L3Paths::read(Path::new("f"), FILE).expect("a file");
        let mut planner = Planner::new(Time::ZERO, l3_paths);
        let plan = planner.poll_plan(Time::ZERO).expect("the first plan");
        assert_eq!(shares(&plan), [(2, 256), (3, 768)]);
        assert_eq!(plan.silent_paths.len(), 2);
    }

    #[test]
    fn a_plan_that_was_not_followed_is_made_again() {
        let l3_paths = L3Paths::read(Path::new("f"), FILE).expect("a file");
        let mut planner = Planner::new(Time::ZERO, l3_paths);
        let plan = planner.poll_plan(Time::ZERO).expect("the first plan");
        planner.handle_plan_rejected();
        let early = Time::ZERO + REPLAN_INTERVAL / 2;
        assert_eq!(planner.poll_plan(early), None, "not in haste");
        let again = planner
            .poll_plan(Time::ZERO + REPLAN_INTERVAL)
            .expect("it again");
        assert_eq!(again.table.egress, plan.table.egress);
        assert_eq!(
            planner.poll_plan(Time::ZERO + REPLAN_INTERVAL * 3),
            None,
            "followed"
        );
    }

    #[test]
    fn paths_that_are_about_as_quick_are_not_planned_anew_for_taking_turns() {
        let l3_paths = L3Paths::read(Path::new("f"), FILE).expect("a file");
        let mut planner = Planner::new(Time::ZERO, l3_paths);
        let mut answered = |round: u32, round_trips: [u64; 2]| {
            let now = Time::ZERO + PROBE_INTERVAL * round;
            for (tag, us) in [2, 3].into_iter().zip(round_trips) {
                let nonce = u64::from(round) * 2 + u64::from(tag);
                planner.handle_probe_sent(now, tag, nonce);
                planner.handle_reply(now + Duration::from_micros(us), tag, nonce);
            }
            planner.poll_plan(now + PROBE_INTERVAL)
        };
        let first = answered(0, [30_000, 30_100]).expect("the first plan");
        assert_eq!(first.silent_paths.len(), 0);
        for (round, round_trips) in [[30_000, 29_900], [29_800, 29_900], [29_800, 29_700]]
            .into_iter()
            .enumerate()
        {
            // Also once another plan may be made.
            let round = 1 + 40 * round as u32;
            assert_eq!(answered(round, round_trips), None, "{round_trips:?}");
        }
    }

    #[test]
    fn a_path_that_falls_silent_is_left_and_taken_up_again() {
        let l3_paths = L3Paths::read(Path::new("f"), FILE).expect("a file");
        let mut planner = Planner::new(Time::ZERO, l3_paths);
        play(&mut planner, 0, 100, &[2, 3]);
        let plan = play(&mut planner, 100, 20, &[2]).expect("another plan");
        assert_eq!(shares(&plan), [(2, 1024), (3, 0)]);
        assert_eq!(plan.silent_paths, ["path 3 from 192.0.2.2 to 198.51.100.2"]);
        assert_eq!(plan.table.ingress[0].order, DeliveryOrder::Single);
        let plan = play(&mut planner, 120, 20, &[2, 3]).expect("another plan");
        assert_eq!(shares(&plan), [(2, 256), (3, 768)]);
        // If both are down, both are used.
        let plan = play(&mut planner, 140, 40, &[]).expect("another plan");
        assert_eq!(shares(&plan), [(2, 256), (3, 768)]);
        assert_eq!(plan.silent_paths.len(), 2);
    }
}
