//! Shares that follow the load.

use std::time::{Duration, Instant};

use braid_core::slots::SLOTS;
use braid_core::{Rate, UplinkId};
use proptest::prelude::*;

use super::{counts, settings, status, weighted};
use crate::classes::{Classes, Load, UplinkStatus};
use crate::config::Settings;

/// Uplinks under a steady demand: flows last [`LASTING`] on average, so loads follow shares late.
struct Line {
    statuses: Vec<UplinkStatus>,
    /// Mbit/s.
    capacity: Vec<f64>,
    carried: Vec<f64>,
}

const LASTING: f64 = 10.0;
const TICK: Duration = Duration::from_millis(250);

impl Line {
    fn new(statuses: Vec<UplinkStatus>, capacity: Vec<f64>) -> Line {
        let carried = vec![0.0; capacity.len()];
        Line {
            statuses,
            capacity,
            carried,
        }
    }

    /// Offers `demand` Mbit/s for a while; returns how often the table changed.
    fn run(
        &mut self,
        classes: &mut Classes,
        settings: &Settings,
        from: &mut Instant,
        seconds: u32,
        demand: f64,
    ) -> usize {
        let (mut changes, mut before) = (0, Vec::new());
        for _ in 0..seconds * 4 {
            let rate = |mbit: f64| Rate::from_bits_per_sec((mbit * 1e6) as u64);
            for (i, status) in self.statuses.iter_mut().enumerate() {
                status.load = Some(Load {
                    tx: Rate::from_bits_per_sec(0),
                    rx: rate(self.carried[i].min(self.capacity[i])),
                });
                status.capacity = Some(rate(self.capacity[i]));
            }
            let entries = classes.update(*from, settings, &self.statuses);
            if !before.is_empty() && entries[0].v4 != before {
                changes += 1;
            }
            before.clone_from(&entries[0].v4);
            for (i, carried) in self.carried.iter_mut().enumerate() {
                let share = classes.share_of(self.statuses[i].id);
                *carried += (demand * share - *carried) * TICK.as_secs_f64() / LASTING;
            }
            *from += TICK;
        }
        changes
    }
}

const TIERS: &str = "
    [[uplink]]
    name = 'dsl'
    device = 'eth0'
    capacity = '20 Mbit/s'
    overflow = '80 %'
    [[uplink]]
    name = 'lte'
    device = 'wwan0'
    capacity = '30 Mbit/s'
    tier = 2
";

fn two_tiers() -> Line {
    let mut statuses = vec![status(0, "dsl"), status(1, "lte")];
    statuses[1].tier = 2;
    Line::new(statuses, vec![20.0, 30.0])
}

#[test]
fn the_next_tier_carries_what_is_too_much_and_no_more() {
    let (settings, mut line) = (settings(TIERS), two_tiers());
    let (mut classes, mut at) = (Classes::default(), Instant::now());
    line.run(&mut classes, &settings, &mut at, 60, 12.0);
    assert_eq!(counts(&classes, 0), [(0, SLOTS)], "12 of 16 Mbit/s");
    line.run(&mut classes, &settings, &mut at, 180, 32.0);
    let lte = classes.share_of(UplinkId(1));
    assert!((lte - 0.5).abs() < 0.06, "32 − 16 of 32 Mbit/s, not {lte}");
    line.run(&mut classes, &settings, &mut at, 180, 12.0);
    assert_eq!(
        counts(&classes, 0),
        [(0, SLOTS)],
        "it is not needed any more"
    );
}

#[test]
fn least_loaded_evens_out_what_is_uneven() {
    let settings = settings("policy = 'least-loaded'");
    let statuses = vec![status(0, "a"), status(1, "b")];
    let mut line = Line::new(statuses, vec![40.0, 10.0]);
    let (mut classes, mut at) = (Classes::default(), Instant::now());
    line.run(&mut classes, &settings, &mut at, 120, 30.0);
    let used: Vec<f64> = line
        .carried
        .iter()
        .zip(&line.capacity)
        .map(|(l, c)| l / c)
        .collect();
    assert!((used[0] - used[1]).abs() < 0.15, "{used:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn overflow_settles_under_a_steady_load(demand in 1.0f64..80.0) {
        let (settings, mut line) = (settings(TIERS), two_tiers());
        let (mut classes, mut at) = (Classes::default(), Instant::now());
        line.run(&mut classes, &settings, &mut at, 240, demand);
        let changes = line.run(&mut classes, &settings, &mut at, 240, demand);
        prop_assert_eq!(changes, 0);
    }

    #[test]
    fn least_loaded_settles_under_a_steady_load(
        demand in 1.0f64..60.0,
        capacity in prop::collection::vec(5.0f64..50.0, 2..5),
    ) {
        let settings = settings("policy = 'least-loaded'");
        let statuses = (0..).zip(&capacity).map(|(id, _)| weighted(id, 1)).collect();
        let mut line = Line::new(statuses, capacity);
        let (mut classes, mut at) = (Classes::default(), Instant::now());
        line.run(&mut classes, &settings, &mut at, 240, demand);
        let changes = line.run(&mut classes, &settings, &mut at, 240, demand);
        prop_assert!(changes <= 1, "{} changes", changes);
    }
}
