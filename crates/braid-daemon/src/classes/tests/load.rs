//! Shares that follow the load.

use std::time::{Duration, Instant};

use braid_core::slots::SLOTS;
use braid_core::{Rate, UplinkId};
use proptest::prelude::*;

use super::{counts, settings, status, weighted};
use crate::classes::{Classes, Load, UplinkStatus, share_of};
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
                    measured: None,
                    at_least: Rate::from_bits_per_sec(0),
                    stall: None,
                });
                status.capacity = Some(rate(self.capacity[i]));
            }
            let entries = classes.update(*from, settings, &self.statuses);
            if !before.is_empty() && entries[0].v4 != before {
                changes += 1;
            }
            before.clone_from(&entries[0].v4);
            for (i, carried) in self.carried.iter_mut().enumerate() {
                let share = share_of(classes.entries(), self.statuses[i].id);
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
    let lte = share_of(classes.entries(), UplinkId(1));
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

/// Loads of two uplinks, of which these capacities were measured, in Mbit/s.
fn measured(statuses: &mut [UplinkStatus], capacities: [Option<u64>; 2]) {
    for (status, capacity) in statuses.iter_mut().zip(capacities) {
        let rate = |mbit: u64| Rate::from_bits_per_sec(mbit * 1_000_000);
        let load = Load {
            tx: rate(0),
            rx: rate(20),
            measured: capacity.map(rate),
            at_least: Rate::from_bits_per_sec(0),
            stall: None,
        };
        status.load = Some(load);
    }
}

/// [host] §6.2: "the weights are updated every second, based on the bandwidth data of the different links".
/// Here nobody gives that data.
#[test]
fn weights_of_wrr_follow_measured_capacities() {
    let settings = settings("policy = 'wrr'");
    let mut statuses = vec![weighted(0, 1), weighted(1, 1)];
    let (mut classes, mut now) = (Classes::default(), Instant::now());
    let mut share = |capacities, seconds: u64| {
        measured(&mut statuses, capacities);
        now += Duration::from_secs(seconds);
        classes.update(now, &settings, &statuses);
        (share_of(classes.entries(), UplinkId(0)) * 100.0).round() as u32
    };
    assert_eq!(share([None, None], 0), 50, "nothing is known");
    assert_eq!(share([Some(60), None], 2), 50, "the other may be as fast");
    assert_eq!(share([Some(60), Some(20)], 2), 75);
    assert_eq!(share([Some(20), Some(60)], 2), 25);
    assert_eq!(
        share([Some(21), Some(60)], 2),
        25,
        "no step of a few percent"
    );
}

/// A line that stalls gets no new flow from that moment on, and its share back as soon as it carries something.
#[test]
fn an_uplink_that_stalls_loses_its_share_at_once() {
    let settings = settings("policy = 'wrr'");
    let mut statuses = vec![weighted(0, 1), weighted(1, 1)];
    let (mut classes, mut now) = (Classes::default(), Instant::now());
    let mut share = |stall: Option<u64>| {
        measured(&mut statuses, [Some(60), Some(20)]);
        let load = statuses[0].load.as_mut().unwrap();
        load.stall = stall.map(Rate::from_bits_per_sec);
        now += Duration::from_millis(200);
        classes.update(now, &settings, &statuses);
        let capacity = classes.headroom(UplinkId(0)).unwrap().capacity;
        (
            (share_of(classes.entries(), UplinkId(0)) * 100.0).round() as u32,
            capacity,
        )
    };
    let rate = Rate::from_bits_per_sec;
    assert_eq!(share(None), (75, rate(60_000_000)));
    assert_eq!(share(Some(64_000)), (0, rate(64_000)));
    assert_eq!(share(None), (75, rate(60_000_000)));
}

#[test]
fn weights_that_the_user_gave_stay() {
    let text = "policy = 'wrr'\n[[uplink]]\ndevice = 'a'\nweight = 1\n[[uplink]]\ndevice = 'b'\nweight = 1";
    let settings = settings(text);
    let mut statuses = vec![weighted(0, 1), weighted(1, 1)];
    measured(&mut statuses, [Some(90), Some(10)]);
    let mut classes = Classes::default();
    classes.update(Instant::now(), &settings, &statuses);
    assert_eq!(share_of(classes.entries(), UplinkId(0)), 0.5);
}

#[test]
fn a_configured_capacity_is_a_ceiling() {
    let rate = |mbit: u64| Rate::from_bits_per_sec(mbit * 1_000_000);
    let mut status = weighted(0, 1);
    let mut room = |configured, measured| {
        status.load = Some(Load {
            tx: rate(0),
            rx: rate(0),
            measured: Some(rate(measured)),
            at_least: Rate::from_bits_per_sec(0),
            stall: None,
        });
        status.capacity = Some(rate(configured));
        let mut classes = Classes::default();
        let settings = settings("policy = 'fastest'");
        classes.update(Instant::now(), &settings, std::slice::from_ref(&status));
        classes.headroom(UplinkId(0)).unwrap().capacity
    };
    assert_eq!(room(20, 90), rate(20));
    assert_eq!(room(20, 5), rate(5));
}
