//! The rules by which a bond is not behind the better of its links alone, one by one.

use std::time::Duration;

use braid_multipath::LinkId;
use braid_multipath::schedule::{Adaptive, Class};

use super::{Inner, Radio, mbit, sender};
use crate::alone;
use crate::world::{LinkSpec, START, World, line, quantile};
use braid_emulate::walk::Rates;

fn radio(there: Rates) -> Radio {
    Radio {
        there,
        back: Rates::fixed(10.0),
        from: 0.0,
        delay_ms: 20,
    }
}

/// Returns rates of `mbit` that are zero for `stall` at the beginning of each second from `from` on.
fn stalling(mbit: impl Fn(f64) -> f64, from: f64, stall: f64) -> Rates {
    let mut steps = vec![(0.0, mbit(0.0))];
    for second in 0..60 {
        let at = from + f64::from(second);
        steps.extend([(at, 0.0), (at + stall, mbit(at))]);
    }
    Rates::steps(&steps)
}

/// Runs a flow over some links for `seconds`.
fn run(links: &[Radio], seconds: u64, inner: Inner) -> World {
    let lines: Vec<LinkSpec> = links.iter().map(|radio| radio.line(300)).collect();
    let mut world = World::new(&lines, 1, || Box::new(Adaptive::default()));
    world.add_flow(sender(inner));
    world.run_until(START + Duration::from_secs(seconds));
    world.delivered.resize(seconds as usize * 10, 0);
    world
}

/// A link falls from 100 to 7 Mbit/s for a second, with a second of packets on the way, beside one of 10 Mbit/s. The delay of that is its own
/// queue and no longer route: only flows that wait for it would use a far link, and their windows would have no limit. Packets that the
/// sender takes for lost wait in the queue, and are not queued again.
#[test]
fn a_wide_link_that_falls_costs_no_more_than_the_fall() {
    for inner in [Inner::Cubic, Inner::Bbr] {
        let falls = [(0.0, 100.0), (15.0, 7.0), (16.0, 50.0), (60.0, 50.0)];
        let links = [radio(Rates::steps(&falls)), radio(Rates::fixed(10.0))];
        let lines = links.each_ref().map(|radio| radio.line(300));
        let mut world = World::new(&lines, 1, || Box::new(Adaptive::default()));
        world.add_flow(sender(inner));
        for hundredth in 1_500..1_800 {
            world.run_until(START + Duration::from_millis(hundredth * 10));
            assert_eq!(world.sender(0).bulk_flows(LinkId(0)), None, "{inner:?}");
        }
        let after = mbit(&world.delivered[165..180]);
        let spurious = world.spurious;
        println!("{inner:?}: {after:.1} of 60 Mbit/s, {spurious} segments not queued again");
        assert!(after >= 50.0, "{inner:?}: {after:.1}");
        assert!(spurious > 100, "{inner:?}: {spurious}");
    }
}

/// A link of 1.5 Mbit/s that stalls for 0.3 s each second beside one of 20 Mbit/s that never does.
#[test]
fn a_stalling_link_beside_a_fast_one_costs_a_tenth_at_most() {
    let fast = radio(Rates::fixed(20.0));
    let span = Duration::from_secs(14);
    let alone = alone::run(
        &fast.line(300),
        sender(Inner::Cubic),
        1,
        (START, span),
        false,
    );
    let mut shares = Vec::new();
    let mut pauses = 0;
    for phase in 0..8 {
        let slow = radio(stalling(|_| 1.5, 2.0 + 0.05 * f64::from(phase), 0.3));
        let world = run(&[fast.clone(), slow], 14, Inner::Cubic);
        // The slow link is known to stall by then.
        let shares_of_it = (40..=120).map(|at| {
            let stretch = at..at + 20;
            mbit(&world.delivered[stretch.clone()]) / mbit(&alone.delivered[stretch])
        });
        let mut shares_of_it: Vec<f64> = shares_of_it.collect();
        shares_of_it.sort_by(f64::total_cmp);
        shares.push(shares_of_it[shares_of_it.len() / 10]);
        pauses += (world.delivered[40..140].iter())
            .filter(|bytes| **bytes < 50_000)
            .count();
    }
    println!(
        "a tenth of all two seconds below {shares:.2?}, {pauses} tenths of a second without order"
    );
    // A tunnel's headers take 0.04 of it, and a drop by CoDel the time of the flow's queue. Without copies as soon as they cost
    // little there are 136 tenths.
    assert!(shares.iter().all(|share| *share >= 0.82), "{shares:.2?}");
    assert!(pauses <= 80, "{pauses}");
}

/// CoDel drops nothing at once over a link of which nothing is known yet, and does so once the link
/// is known to be steady.
#[test]
fn a_short_queue_needs_a_link_that_is_known_to_be_steady() {
    let mut world = World::new(&[line(10.0, 20)], 1, || Box::new(Adaptive::default()));
    world.add_stream(1500, Duration::from_micros(1090), Class::Ordered);
    world.run_until(START + Duration::from_millis(1500));
    assert_eq!(world.sender(0).drops(), (0, 0, 0));
    world.run_until(START + Duration::from_secs(16));
    let delays = &world.streams[0].delays;
    let late = quantile(&delays[delays.len() - 1000..], 0.5);
    assert!(late < 250.0, "{late:.0} ms");
}

#[test]
fn a_link_that_stalls_is_filled_when_its_rate_grows() {
    let triples = |at: f64| {
        if (at as u64 / 3).is_multiple_of(2) {
            6.0
        } else {
            18.0
        }
    };
    let link = radio(stalling(triples, 1.5, 0.12));
    let offered = link.there.mean(6.0, 18.0);
    let world = run(&[link], 24, Inner::Cubic);
    let share = mbit(&world.delivered[60..240]) / offered;
    println!("{share:.3}");
    // 0.914 if the window does not grow while the link runs dry.
    assert!(share >= 0.92);
}

/// Two links of 24 Mbit/s that stall and fall to 6 for four of eight seconds. A queue that CoDel shortens then costs the flow, at each drop, the
/// time of the whole queue in order.
#[test]
fn a_flow_loses_nothing_where_rates_fall_to_a_fourth() {
    for inner in [Inner::Cubic, Inner::Bbr] {
        let falls = |phase: f64| {
            move |at: f64| match (at + phase) as u64 / 4 % 2 {
                0 => 24.0,
                _ => 6.0,
            }
        };
        let links = [0.0, 1.5].map(|phase| radio(stalling(falls(phase), 1.5 + phase / 5.0, 0.1)));
        let offered: f64 = links.iter().map(|link| link.there.mean(6.0, 24.0)).sum();
        let world = run(&links, 30, inner);
        let share = mbit(&world.delivered[60..300]) / offered;
        let pauses = (world.delivered[60..300].iter())
            .filter(|bytes| **bytes < 20_000)
            .count();
        let drops = world.sender(0).drops();
        println!("{inner:?}: {share:.3}, {pauses} tenths without order, dropped {drops:?}");
        assert_eq!(drops, (0, 0, 0));
        assert!(share >= 0.85, "{inner:?}: {share}");
        assert!(pauses <= 12, "{inner:?}: {pauses}");
    }
}
