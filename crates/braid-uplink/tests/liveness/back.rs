//! Uplinks that come back: how, how soon, and how often.

use std::sync::Arc;
use std::time::Duration;

use braid_uplink::liveness::{Cause, Rules, Target, Verdict};

use crate::sim::{MS, SECOND, Sim, id, watched};

const MINUTE: Duration = Duration::from_secs(60);

fn returns(sim: &Sim) -> usize {
    let back = |from: Verdict, to: Verdict| !from.takes_new_flows() && to.takes_new_flows();
    sim.changes.iter().filter(|c| back(c.from, c.to)).count()
}

#[test]
fn the_first_return_takes_about_a_second() {
    for seed in 0..50 {
        let mut sim = Sim::new(seed, 1, &Rules::default());
        sim.line(0).traffic = Some(25 * MS);
        sim.run(5 * SECOND);
        sim.line(0).dead(true);
        sim.run(10 * SECOND);
        assert_eq!(sim.verdict(0), Verdict::Dead);
        sim.line(0).dead(false);
        let after = sim
            .wait(MINUTE, |sim| sim.verdict(0) == Verdict::Up)
            .unwrap();
        assert!(
            (SECOND..1500 * MS).contains(&after),
            "seed {seed}: {after:?}"
        );
        let change = sim.changes.last().unwrap();
        assert_eq!(change.evidence.cause, Cause::Answers);
        assert!(change.evidence.answers >= 5);
    }
}

#[test]
fn an_uplink_that_flaps_is_admitted_less_and_less() {
    let mut sim = Sim::new(1, 2, &Rules::default());
    sim.line(0).traffic = Some(25 * MS);
    sim.run(5 * SECOND);
    // Five seconds dead, five alive, for ten minutes: sixty chances to come back.
    for _ in 0..60 {
        sim.line(0).dead(true);
        sim.run(5 * SECOND);
        sim.line(0).dead(false);
        sim.run(5 * SECOND);
    }
    let admitted = returns(&sim);
    println!("admitted {admitted} of 60");
    assert!(admitted <= 8, "{admitted}:\n{}", sim.story());
    // And when it is well again, it returns within its wait of a minute at most.
    let after = sim.wait(2 * MINUTE, |sim| sim.verdict(0) == Verdict::Up);
    assert!(after.is_some_and(|after| after <= 70 * SECOND), "{after:?}");
}

#[test]
fn a_lossy_line_gets_through_a_long_wait() {
    let mut sim = Sim::new(1, 1, &Rules::default());
    sim.run(5 * SECOND);
    for _ in 0..8 {
        sim.line(0).dead(true);
        sim.run(3 * SECOND);
        sim.line(0).dead(false);
        sim.wait(2 * MINUTE, |sim| sim.verdict(0) == Verdict::Up);
    }
    sim.line(0).dead(true);
    sim.run(3 * SECOND);
    sim.line(0).dead(false);
    sim.line(0).loss = 0.03;
    let after = sim.wait(5 * MINUTE, |sim| sim.verdict(0) != Verdict::Dead);
    assert!(after.is_some_and(|after| after > 20 * SECOND), "{after:?}");
}

/// A round trip that jumps from 20 to 900 ms, until the uplink is called dead for it.
fn die_of_delay(sim: &mut Sim) {
    sim.line(0).rtt = 900 * MS;
    let after = sim.wait(10 * SECOND, |sim| sim.verdict(0) == Verdict::Dead);
    assert!(after.is_some(), "the jump did not show:\n{}", sim.story());
}

/// Waits until the uplink is up again; returns the time that took, and the cause.
fn up_again(sim: &mut Sim) -> (Duration, Cause) {
    let after = sim.wait(MINUTE, |sim| sim.verdict(0) == Verdict::Up);
    let after = after.expect("up again within a minute");
    (after, sim.changes.last().unwrap().evidence.cause)
}

#[test]
fn a_death_that_was_taken_back_counts_for_the_next() {
    for seed in 0..20 {
        let mut sim = Sim::new(seed, 1, &Rules::default());
        sim.line(0).traffic = Some(25 * MS);
        sim.run(5 * SECOND);
        die_of_delay(&mut sim);
        let (after, cause) = up_again(&mut sim);
        assert_eq!(cause, Cause::Late, "seed {seed}:\n{}", sim.story());
        assert!(after < SECOND, "seed {seed}: {after:?}");
        sim.line(0).rtt = 20 * MS;
        sim.run(30 * SECOND);
        sim.line(0).dead(true);
        sim.wait(10 * SECOND, |sim| sim.verdict(0) == Verdict::Dead);
        sim.line(0).dead(false);
        let (after, _) = up_again(&mut sim);
        // One second for a first death, nearly two for a second half a minute later.
        assert!(after > 1700 * MS, "seed {seed}: {after:?}");
    }
}

#[test]
fn only_the_first_death_for_long_is_taken_back() {
    for seed in 0..20 {
        let mut sim = Sim::new(seed, 1, &Rules::default());
        sim.line(0).traffic = Some(25 * MS);
        sim.run(5 * SECOND);
        die_of_delay(&mut sim);
        assert_eq!(up_again(&mut sim).1, Cause::Late, "seed {seed}");
        sim.line(0).rtt = 20 * MS;
        sim.run(30 * SECOND);
        die_of_delay(&mut sim);
        let (after, cause) = up_again(&mut sim);
        assert_eq!(cause, Cause::Answers, "seed {seed}:\n{}", sim.story());
        assert!(after > 1700 * MS, "seed {seed}: {after:?}");
    }
}

#[test]
fn a_device_that_returns_proves_itself_by_three_answers() {
    let mut sim = Sim::new(1, 1, &Rules::default());
    sim.run(5 * SECOND);
    let mut away = watched(&Rules::default());
    away.usable = false;
    sim.monitor.set_uplinks(sim.now, &[(id(0), away)]);
    sim.run(SECOND);
    sim.monitor
        .set_uplinks(sim.now, &[(id(0), watched(&Rules::default()))]);
    sim.drain();
    assert_eq!(sim.verdict(0), Verdict::Dead, "it has to prove itself");
    let after = sim
        .wait(MINUTE, |sim| sim.verdict(0) == Verdict::Up)
        .unwrap();
    assert!(after < 500 * MS, "{after:?}");
}

#[test]
fn a_device_that_returns_is_up_at_once_where_nobody_can_be_asked() {
    let rules = Rules {
        targets: Vec::new(),
        ..Rules::default()
    };
    let mut sim = Sim::new(1, 1, &rules);
    let mut device = watched(&rules);
    for usable in [false, true] {
        sim.run(SECOND);
        device.usable = usable;
        sim.monitor.set_uplinks(sim.now, &[(id(0), device.clone())]);
        sim.drain();
        assert_eq!(sim.verdict(0), Verdict::Up);
    }
    assert!(sim.changes.is_empty(), "{}", sim.story());
    // The second time within minutes it has to wait.
    for usable in [false, true] {
        device.usable = usable;
        sim.monitor.set_uplinks(sim.now, &[(id(0), device.clone())]);
        sim.drain();
    }
    assert_eq!(sim.verdict(0), Verdict::Dead);
    let after = sim.wait(MINUTE, |sim| sim.verdict(0) == Verdict::Up);
    assert!(after.is_some_and(|after| after <= 2 * SECOND), "{after:?}");
}

#[test]
fn a_device_that_comes_and_goes_waits_longer_each_time() {
    let mut sim = Sim::new(1, 1, &Rules::default());
    sim.run(5 * SECOND);
    let here = watched(&Rules::default());
    let mut away = here.clone();
    away.usable = false;
    let mut waits = Vec::new();
    for _ in 0..5 {
        sim.monitor.set_uplinks(sim.now, &[(id(0), away.clone())]);
        sim.run(100 * MS);
        sim.monitor.set_uplinks(sim.now, &[(id(0), here.clone())]);
        sim.drain();
        let wait = sim.wait(2 * MINUTE, |sim| sim.verdict(0) == Verdict::Up);
        waits.push(wait.unwrap().as_millis());
    }
    assert!(waits.is_sorted() && waits[4] > 10_000, "{waits:?}");
}

/// A hub that was restarted again and again kept the bond's flows waiting for up to a minute each time.
#[test]
fn a_self_reported_uplink_returns_at_once_however_often() {
    let mut sim = Sim::new(1, 1, &Rules::default());
    let mut bond = watched(&Rules::default());
    bond.self_reported = true;
    sim.monitor.set_uplinks(sim.now, &[(id(0), bond.clone())]);
    sim.run(5 * SECOND);
    for _ in 0..5 {
        for usable in [false, true] {
            bond.usable = usable;
            sim.monitor.set_uplinks(sim.now, &[(id(0), bond.clone())]);
            sim.run(100 * MS);
            assert_eq!(sim.verdict(0), Verdict::Up, "{}", sim.story());
        }
    }
    assert!(sim.changes.is_empty(), "{}", sim.story());
    // Nothing gets through it although it reports itself up: that is found, and holds until it is back anew.
    (sim.line(0).dead_out, sim.line(0).dead_in) = (true, true);
    let after = sim.wait(MINUTE, |sim| sim.verdict(0) == Verdict::Dead);
    assert!(after.is_some(), "{}", sim.story());
    (sim.line(0).dead_out, sim.line(0).dead_in) = (false, false);
    for usable in [false, true] {
        bond.usable = usable;
        sim.monitor.set_uplinks(sim.now, &[(id(0), bond.clone())]);
        sim.drain();
    }
    assert_eq!(sim.verdict(0), Verdict::Up, "{}", sim.story());
}

/// A flood of small datagrams through the bond: what its device drops never gets to the hub, probes among it.
#[test]
fn a_machine_that_does_not_keep_up_kills_no_uplink() {
    let mut sim = Sim::new(1, 1, &Rules::default());
    sim.run(5 * SECOND);
    let line = sim.line(0);
    (line.traffic, line.one_way) = (Some(MS), true);
    (line.local_drops, line.dead_out) = (true, true);
    sim.run(MINUTE);
    let died = sim.changes.iter().any(|change| change.to == Verdict::Dead);
    assert!(!died, "{}", sim.story());
    // It keeps up again, and now the silence is the line's.
    sim.line(0).local_drops = false;
    let after = sim.wait(MINUTE, |sim| sim.verdict(0) == Verdict::Dead);
    assert!(
        after.is_some_and(|after| after < 3 * SECOND),
        "{after:?} {}",
        sim.story()
    );
}

#[test]
fn without_any_target_that_answers_traffic_decides_and_a_trial_brings_it_back() {
    let rules = Rules {
        targets: Vec::new(),
        ..Rules::default()
    };
    let mut sim = Sim::new(1, 1, &rules);
    sim.line(0).traffic = Some(25 * MS);
    sim.run(5 * SECOND);
    sim.line(0).dead(true);
    let after = sim
        .wait(MINUTE, |sim| sim.verdict(0) == Verdict::Dead)
        .unwrap();
    assert!((1500 * MS..1700 * MS).contains(&after), "{after:?}");
    assert_eq!(sim.changes.last().unwrap().evidence.cause, Cause::Traffic);
    sim.run(2 * MINUTE);
    let trials = returns(&sim);
    assert!((3..=5).contains(&trials), "{trials}:\n{}", sim.story());
    sim.line(0).dead(false);
    let after = sim
        .wait(2 * MINUTE, |sim| sim.verdict(0) == Verdict::Up)
        .unwrap();
    assert!(after <= MINUTE, "{after:?}");
    let deaths = sim.deaths();
    sim.run(2 * MINUTE);
    assert_eq!(sim.deaths(), deaths, "{}", sim.story());
}

#[test]
fn unanswered_one_way_traffic_without_targets_kills_nothing() {
    let rules = Rules {
        targets: Vec::new(),
        ..Rules::default()
    };
    let mut sim = Sim::new(1, 1, &rules);
    sim.run(MINUTE);
    assert_eq!(
        sim.monitor.poll_timeout(),
        None,
        "there is nothing to wait for"
    );
    assert_eq!(sim.deaths(), 0);
}

#[test]
fn a_captive_portal_is_named_and_left_when_it_lets_through() {
    let http: Target = "http://example.org/generate_204".parse().unwrap();
    let mut rules = Rules::default();
    rules.targets.push(Arc::new(http));
    for traffic in [None, Some(25 * MS)] {
        let mut sim = Sim::new(1, 1, &rules);
        sim.line(0).traffic = traffic;
        sim.run(5 * SECOND);
        sim.line(0).portal = true;
        let after = sim.wait(MINUTE, |sim| sim.verdict(0) == Verdict::Portal);
        assert!(
            after.is_some_and(|after| after < 12 * SECOND),
            "{}",
            sim.story()
        );
        let text = sim.changes.last().unwrap().evidence.to_string();
        assert!(text.contains("status 302 instead of 204"), "{text}");
        let told = sim.changes.len();
        sim.run(MINUTE);
        assert_eq!(sim.changes.len(), told, "{}", sim.story());
        sim.line(0).portal = false;
        let after = sim.wait(MINUTE, |sim| sim.verdict(0) == Verdict::Up);
        assert!(
            after.is_some_and(|after| after < 20 * SECOND),
            "{}",
            sim.story()
        );
    }
}

#[test]
fn a_portal_that_falls_silent_is_dead() {
    let http: Target = "http://example.org/generate_204".parse().unwrap();
    let mut rules = Rules::default();
    rules.targets.push(Arc::new(http));
    let mut sim = Sim::new(1, 1, &rules);
    sim.line(0).portal = true;
    let after = sim.wait(MINUTE, |sim| sim.verdict(0) == Verdict::Portal);
    assert!(after.is_some(), "{}", sim.story());
    sim.line(0).dead(true);
    let after = sim.wait(MINUTE, |sim| sim.verdict(0) == Verdict::Dead);
    assert!(
        after.is_some_and(|after| after < 20 * SECOND),
        "{}",
        sim.story()
    );
}

/// Whoever finds an uplink dead because of a bad target takes that target away.
#[test]
fn an_uplink_whose_targets_are_taken_away_is_tried() {
    let http: Target = "http://example.org/generate_204".parse().unwrap();
    let mut rules = Rules::default();
    rules.targets.push(Arc::new(http));
    let none = Rules {
        targets: Vec::new(),
        ..Rules::default()
    };
    for (verdict, left) in [(Verdict::Dead, &none), (Verdict::Portal, &Rules::default())] {
        let mut sim = Sim::new(1, 1, &rules);
        sim.run(5 * SECOND);
        match verdict {
            Verdict::Portal => sim.line(0).portal = true,
            _ => sim.line(0).dead(true),
        }
        let after = sim.wait(MINUTE, |sim| sim.verdict(0) == verdict);
        assert!(after.is_some(), "{}", sim.story());
        sim.monitor.set_uplinks(sim.now, &[(id(0), watched(left))]);
        sim.drain();
        let after = sim.wait(MINUTE, |sim| sim.verdict(0) == Verdict::Up);
        assert!(after.is_some(), "{}", sim.story());
        assert_eq!(sim.changes.last().unwrap().evidence.cause, Cause::Trial);
    }
}
