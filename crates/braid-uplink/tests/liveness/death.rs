//! Lines that fall silent, and how fast that is found.

use std::time::Duration;

use braid_uplink::liveness::{Cause, Rules, Verdict};

use crate::sim::{MS, SECOND, Sim};

/// From the beginning of a silence to the verdict, over many seeds, sorted.
fn deaths(seeds: u64, rtt: Duration, traffic: Option<Duration>) -> Vec<Duration> {
    deaths_under(seeds, rtt, traffic, false)
}

fn deaths_under(
    seeds: u64,
    rtt: Duration,
    traffic: Option<Duration>,
    download: bool,
) -> Vec<Duration> {
    let mut found = Vec::new();
    for seed in 0..seeds {
        let mut sim = Sim::new(seed, 2, &Rules::default());
        sim.line(0).rtt = rtt;
        sim.line(0).traffic = traffic;
        sim.line(0).download = download;
        let settle = 5 * SECOND + sim.chance(SECOND);
        sim.run(settle);
        assert_eq!(sim.changes.len(), 0, "seed {seed}:\n{}", sim.story());
        sim.line(0).dead(true);
        let after = sim.wait(10 * SECOND, |sim| sim.verdict(0) == Verdict::Dead);
        found.push(after.unwrap_or_else(|| panic!("seed {seed}: not found")));
        assert_eq!(sim.verdict(1), Verdict::Up);
    }
    found.sort();
    let (median, last) = (found[found.len() / 2], found[found.len() - 1]);
    println!("rtt {rtt:?}, traffic {traffic:?}: median {median:?}, longest {last:?}");
    found
}

#[test]
fn a_black_hole_is_found_within_400_ms_where_some_traffic_is() {
    for (rtt, longest) in [(20, 400), (50, 400), (150, 680)] {
        // A new connection every 25 ms: some packet is always just on its way.
        let found = deaths(200, rtt * MS, Some(25 * MS));
        assert!(
            *found.last().unwrap() <= longest * MS,
            "{rtt} ms: {found:?}"
        );
    }
}

#[test]
fn a_black_hole_is_found_as_fast_under_a_download_that_sends_nothing() {
    for rtt in [20, 50] {
        let found = deaths_under(200, rtt * MS, Some(MS), true);
        assert!(*found.last().unwrap() <= 500 * MS, "{rtt} ms: {found:?}");
    }
}

#[test]
fn a_black_hole_is_found_as_fast_under_a_download_that_has_just_begun() {
    // Some packets for a while, or many at once, as after a pause.
    for (seed, pause, lasts) in
        (0..200).map(|seed| [(seed, 5, 300), (seed, 1, 100)][seed as usize % 2])
    {
        let mut sim = Sim::new(seed, 2, &Rules::default());
        let settle = 5 * SECOND + sim.chance(SECOND);
        sim.run(settle);
        (sim.line(0).traffic, sim.line(0).download) = (Some(pause * MS), true);
        sim.run(lasts * MS);
        sim.line(0).dead(true);
        let after = sim.wait(10 * SECOND, |sim| sim.verdict(0) == Verdict::Dead);
        assert!(after.unwrap() <= 500 * MS, "seed {seed}: {after:?}");
    }
}

#[test]
fn a_black_hole_is_found_by_probes_alone_where_there_is_no_traffic() {
    for rtt in [20, 150] {
        let found = deaths(100, rtt * MS, None);
        assert!(*found.last().unwrap() <= 2500 * MS, "{rtt} ms: {found:?}");
    }
}

#[test]
fn a_line_that_is_only_broken_one_way_is_found() {
    for outwards in [true, false] {
        let mut sim = Sim::new(1, 1, &Rules::default());
        sim.line(0).traffic = Some(25 * MS);
        sim.run(5 * SECOND);
        sim.line(0).dead_out = outwards;
        sim.line(0).dead_in = !outwards;
        let after = sim.wait(10 * SECOND, |sim| sim.verdict(0) == Verdict::Dead);
        assert!(after.unwrap() <= 400 * MS, "{after:?}");
    }
}

#[test]
fn the_evidence_says_what_was_missing() {
    let mut sim = Sim::new(7, 1, &Rules::default());
    sim.line(0).traffic = Some(25 * MS);
    sim.run(5 * SECOND);
    sim.line(0).dead(true);
    sim.run(SECOND);
    let look = sim.monitor.snapshot(crate::sim::id(0)).unwrap();
    let evidence = look.evidence;
    assert_eq!(
        (look.verdict, evidence.cause),
        (Verdict::Dead, Cause::Silence)
    );
    assert!(evidence.sent >= 4 && evidence.received == 0 && evidence.probes >= 6);
    let text = evidence.to_string();
    assert!(text.contains("packets out, 0 back in"), "{text}");
    assert!(text.contains("probes answered"), "{text}");
}
