//! Lines that work, however badly, and what must not fool the lookout.

use std::sync::Arc;
use std::time::Duration;

use braid_uplink::liveness::{Cause, Rules, Target, Verdict};

use crate::sim::{MS, SECOND, Scatter, Sim, id, watched};

const MINUTE: Duration = Duration::from_secs(60);

fn target(text: &str) -> Target {
    text.parse().unwrap()
}

/// 10 % loss and 300 ms of jitter, each way.
fn spoil(sim: &mut Sim, seed: u64) {
    let scatters = [
        Scatter::Above,
        Scatter::Uniform,
        Scatter::Normal,
        Scatter::Pareto,
    ];
    let traffics = [None, Some(25 * MS), Some(250 * MS), Some(3 * SECOND)];
    let line = sim.line(0);
    line.rtt = 40 * MS;
    line.loss = 0.1;
    line.jitter = 300 * MS;
    line.scatter = scatters[seed as usize % 4];
    line.download = !(seed / 32).is_multiple_of(2);
    line.traffic = traffics[seed as usize / 4 % 4];
    // In order, a packet that takes six seconds holds up all others: a dead line, while it lasts.
    line.in_order = (seed / 16).is_multiple_of(2) && line.scatter != Scatter::Pareto;
}

#[test]
fn loss_and_jitter_never_kill() {
    for seed in 0..320 {
        let mut sim = Sim::new(seed, 1, &Rules::default());
        spoil(&mut sim, seed);
        sim.run(5 * MINUTE);
        assert_eq!(sim.deaths(), 0, "seed {seed}:\n{}", sim.story());
    }
}

#[test]
fn a_good_line_that_turns_bad_is_taken_for_dead_for_a_moment_at_most() {
    let (mut short, mut long) = (0, 0);
    for seed in 0..320 {
        let mut sim = Sim::new(seed, 1, &Rules::default());
        let settle = 10 * SECOND + sim.chance(SECOND);
        sim.run(settle);
        spoil(&mut sim, seed);
        while sim
            .wait(MINUTE, |sim| sim.verdict(0) == Verdict::Dead)
            .is_some()
        {
            let back = sim.wait(MINUTE, |sim| sim.verdict(0) != Verdict::Dead);
            match back.unwrap() {
                back if back <= SECOND => short += 1,
                back if back <= 5 * SECOND => long += 1,
                back => panic!("seed {seed}: {back:?}\n{}", sim.story()),
            }
            assert!(short + long < 320, "seed {seed}:\n{}", sim.story());
        }
    }
    println!("taken for dead {short} times of 320 for a moment, {long} times for seconds");
    assert!(
        long * 10 <= short,
        "{short} for a moment, {long} for seconds"
    );
}

#[test]
fn traffic_that_nobody_answers_kills_nothing_and_costs_five_probes_a_second() {
    let mut sim = Sim::new(1, 1, &Rules::default());
    sim.run(10 * SECOND);
    let before = sim.line(0).probes;
    sim.line(0).one_way = true;
    sim.line(0).traffic = Some(20 * MS);
    sim.run(MINUTE);
    assert_eq!(sim.deaths(), 0, "{}", sim.story());
    let probes = sim.line(0).probes - before;
    assert!((200..400).contains(&probes), "{probes} probes in a minute");
    // And it is still found when the line dies while nobody answers.
    sim.line(0).dead(true);
    let after = sim.wait(10 * SECOND, |sim| sim.verdict(0) == Verdict::Dead);
    assert!(after.is_some_and(|after| after < SECOND), "{after:?}");
}

#[test]
fn a_download_that_is_over_costs_a_few_probes_once() {
    let mut sim = Sim::new(1, 1, &Rules::default());
    sim.run(10 * SECOND);
    sim.line(0).download = true;
    sim.line(0).traffic = Some(MS);
    sim.run(5 * SECOND);
    let before = sim.line(0).probes;
    sim.line(0).traffic = None;
    sim.run(10 * SECOND);
    let probes = sim.line(0).probes - before;
    assert!((10..22).contains(&probes), "{probes} probes in 10 s");
    assert_eq!(sim.deaths(), 0, "{}", sim.story());
}

#[test]
fn a_quiet_line_costs_a_probe_a_second_and_a_metered_one_a_tenth_of_that() {
    for (metered, most) in [(false, 70), (true, 8)] {
        let rules = Rules {
            metered,
            ..Rules::default()
        };
        let mut sim = Sim::new(1, 1, &rules);
        sim.run(MINUTE);
        let before = sim.line(0).probes;
        sim.run(MINUTE);
        let probes = sim.line(0).probes - before;
        assert!(
            probes <= most,
            "metered {metered}: {probes} probes in a minute"
        );
    }
}

#[test]
fn a_target_that_is_out_of_service_changes_nothing() {
    let mut sim = Sim::new(1, 2, &Rules::default());
    sim.run(10 * SECOND);
    for index in [0, 1] {
        sim.line(index).silent = [target("icmp:1.1.1.1"), target("icmp:2620:fe::fe")].into();
    }
    sim.run(5 * MINUTE);
    assert!(sim.changes.is_empty(), "{}", sim.story());
}

#[test]
fn targets_that_fall_silent_everywhere_kill_nothing_while_traffic_passes() {
    let mut sim = Sim::new(1, 2, &Rules::default());
    sim.line(0).traffic = Some(25 * MS);
    sim.line(1).traffic = Some(100 * MS);
    sim.run(10 * SECOND);
    for index in [0, 1] {
        let rules = Rules::default();
        sim.line(index).silent = rules.targets.iter().map(|t| Target::clone(t)).collect();
    }
    sim.run(5 * MINUTE);
    assert_eq!(sim.deaths(), 0, "{}", sim.story());
}

#[test]
fn targets_that_never_answered_anywhere_say_nothing() {
    let rules = Rules {
        targets: vec![Arc::new(target("icmp:192.0.2.1"))],
        ..Rules::default()
    };
    let mut sim = Sim::new(1, 2, &rules);
    for index in [0, 1] {
        sim.line(index).silent = [target("icmp:192.0.2.1")].into();
    }
    sim.run(MINUTE);
    assert!(sim.changes.is_empty(), "{}", sim.story());
}

#[test]
fn a_target_that_answers_only_on_another_uplink_is_evidence() {
    let mut sim = Sim::new(1, 2, &Rules::default());
    sim.line(1).dead(true);
    let after = sim.wait(MINUTE, |sim| sim.verdict(1) == Verdict::Dead);
    assert!(after.is_some_and(|after| after < 5 * SECOND), "{after:?}");
    assert_eq!(sim.verdict(0), Verdict::Up);
}

#[test]
fn need_asks_for_more_than_one_target() {
    let rules = Rules {
        quorum: 2,
        ..Rules::default()
    };
    let mut sim = Sim::new(1, 1, &rules);
    sim.run(5 * SECOND);
    let mut all = rules.targets.iter().map(|t| Target::clone(t));
    let last = all.next();
    sim.line(0).silent = all.collect();
    assert!(last.is_some());
    let after = sim.wait(MINUTE, |sim| sim.verdict(0) == Verdict::Dead);
    assert!(after.is_some_and(|after| after < 10 * SECOND), "{after:?}");
}

#[test]
fn a_lossy_line_is_degraded_until_it_is_better() {
    let mut sim = Sim::new(3, 1, &Rules::default());
    sim.run(10 * SECOND);
    sim.line(0).loss = 0.3;
    let after = sim.wait(2 * MINUTE, |sim| sim.verdict(0) == Verdict::Degraded);
    assert!(after.is_some(), "{}", sim.story());
    assert_eq!(sim.changes.last().unwrap().evidence.cause, Cause::Loss);
    sim.line(0).loss = 0.0;
    let after = sim.wait(MINUTE, |sim| sim.verdict(0) == Verdict::Up);
    assert!(after.is_some(), "{}", sim.story());
    assert_eq!(sim.deaths(), 0, "{}", sim.story());
}

#[test]
fn a_slow_line_is_degraded_and_not_dead() {
    let mut sim = Sim::new(3, 1, &Rules::default());
    sim.line(0).rtt = 1300 * MS;
    sim.line(0).traffic = Some(100 * MS);
    let after = sim.wait(MINUTE, |sim| sim.verdict(0) == Verdict::Degraded);
    assert!(after.is_some(), "{}", sim.story());
    sim.run(MINUTE);
    assert_eq!(sim.deaths(), 0, "{}", sim.story());
    sim.line(0).rtt = 100 * MS;
    let after = sim.wait(MINUTE, |sim| sim.verdict(0) == Verdict::Up);
    assert!(after.is_some(), "{}", sim.story());
}

#[test]
fn a_family_that_fails_alone_is_named_and_kills_nothing() {
    let mut sim = Sim::new(1, 1, &Rules::default());
    sim.line(0).traffic = Some(100 * MS);
    sim.run(10 * SECOND);
    let v6 = |t: &Target| t.address().is_some_and(|a| a.is_ipv6());
    let all = Rules::default().targets;
    sim.line(0).silent = all.iter().map(|t| Target::clone(t)).filter(v6).collect();
    let works = |sim: &Sim| sim.monitor.snapshot(id(0)).unwrap().families.v6;
    let after = sim.wait(MINUTE, |sim| !works(sim));
    assert!(after.is_some_and(|after| after < 10 * SECOND), "{after:?}");
    let change = sim.changes.last().unwrap();
    assert_eq!((change.from, change.to), (Verdict::Up, Verdict::Up));
    assert!(change.families.v4 && change.evidence.to_string().contains("IPv6 is silent"));
    sim.line(0).silent.clear();
    assert!(sim.wait(MINUTE, works).is_some(), "{}", sim.story());
}

#[test]
fn a_machine_that_slept_or_stalled_blames_no_line() {
    for stall in [150 * MS, 300 * MS, 900 * MS, 3 * SECOND, 3600 * SECOND] {
        for seed in 0..20 {
            let mut sim = Sim::new(seed, 1, &Rules::default());
            sim.line(0).traffic = Some(25 * MS);
            let settle = 5 * SECOND + sim.chance(SECOND);
            sim.run(settle);
            sim.stalled = sim.now + stall;
            // A sleeping machine sends nothing either.
            sim.line(0).dead(stall > SECOND);
            sim.run(stall);
            sim.line(0).dead(false);
            sim.run(5 * SECOND);
            assert_eq!(sim.deaths(), 0, "{stall:?}, seed {seed}:\n{}", sim.story());
        }
    }
}

/// Answers may wait to be read when a daemon that was held up wakes, so nothing dies at once then.
#[test]
fn a_machine_that_wakes_late_gives_a_silent_line_a_moment_more() {
    for seed in 0..20 {
        let mut sim = Sim::new(seed, 2, &Rules::default());
        sim.line(0).traffic = Some(25 * MS);
        let settle = 5 * SECOND + sim.chance(SECOND);
        sim.run(settle);
        sim.line(0).dead(true);
        // The burst is under way, and would be proof long before the daemon looks again.
        sim.run(200 * MS);
        assert_eq!(sim.deaths(), 0, "seed {seed}:\n{}", sim.story());
        sim.stalled = sim.now + 800 * MS;
        sim.run(800 * MS);
        let after = sim.wait(SECOND, |sim| sim.deaths() == 1);
        let after = after.unwrap_or_else(|| panic!("seed {seed}: not found"));
        assert!(after >= 100 * MS, "seed {seed}: {after:?}\n{}", sim.story());
    }
}

#[test]
fn an_unusable_uplink_is_not_probed() {
    let mut sim = Sim::new(1, 1, &Rules::default());
    sim.run(5 * SECOND);
    let mut away = watched(&Rules::default());
    away.usable = false;
    sim.monitor.set_uplinks(sim.now, &[(id(0), away)]);
    let before = sim.line(0).probes;
    sim.run(MINUTE);
    assert_eq!(sim.line(0).probes, before);
    assert!(sim.changes.is_empty(), "{}", sim.story());
}
