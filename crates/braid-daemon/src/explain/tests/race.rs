//! Flows that are raced, or placed by the path cache.

use std::time::Duration;

use braid_balance::{CachedPath, PathCacheEntry};
use braid_core::forecast::UplinkLoad;
use braid_core::{Rate, UplinkId};

use super::{Scene, ask, explanation, scene, told};
use crate::config::DatapathKind;
use crate::report::ReservationReport;
use crate::uplinks::uplink_forecasts::Reservation;

/// Returns a path cache entry for dsl and lte, with round trips in ms and ages in s.
fn path(ways: &[(u8, u64, u64)]) -> Option<PathCacheEntry> {
    let way = |(uplink, rtt, age): &(u8, u64, u64)| CachedPath {
        uplink: UplinkId(*uplink),
        rtt: (*rtt > 0).then(|| Duration::from_millis(*rtt)),
        tried: false,
        age: Duration::from_secs(*age),
        packets: 0,
        lost: 0,
        valid: true,
    };
    Some(PathCacheEntry {
        prefix: [203, 0, 113, 0].into(),
        bits: 24,
        paths: ways.iter().map(way).collect(),
    })
}

/// Uplinks with a capacity and spare capacity, in Mbit/s.
fn loads(rooms: [(u32, u32); 2]) -> Vec<UplinkLoad> {
    let load = |(capacity, spare): (u32, u32)| UplinkLoad {
        capacity: capacity * 125,
        spare: spare * 125,
        busy: u32::from(spare < capacity),
        opened: 0,
        loss_ppm: 0,
        load_loss_ppm: 0,
        last_opened: 0,
    };
    rooms.map(load).to_vec()
}

/// Returns the race steps and the outcome.
fn race(scene: &Scene, protocol: u8, destination: &str) -> String {
    let mut question = ask(destination);
    question.protocol = protocol;
    let text = told(scene, &question);
    let kept = |line: &&str| ["Race:", "Slot:", "=>"].iter().any(|s| line.starts_with(s));
    text.lines().filter(kept).collect::<Vec<_>>().join("\n")
}

const SERVER: &str = "203.0.113.5:443";

#[test]
fn what_nobody_knows_is_raced() {
    let mut scene = scene("policy = 'race'");
    let all = "Race: raced on dsl, lte, at most 8 /s towards 203.0.113.0/24: its round trip by \
               dsl, lte is not known\n=> Raced - [dsl, lte]";
    assert_eq!(race(&scene, 6, SERVER), all);
    // One path is valid; the other is stale, of another epoch, or silent.
    let half = all.replace("by dsl, lte is", "by lte is");
    for lte in [(1, 50, 121), (1, 0, 1)] {
        scene.path = path(&[(0, 20, 1), lte]);
        assert_eq!(race(&scene, 6, SERVER), half);
    }
    scene.path = path(&[(0, 20, 1), (1, 10, 1)]);
    scene.path.as_mut().unwrap().paths[1].valid = false;
    assert_eq!(race(&scene, 6, SERVER), half);
}

#[test]
fn what_is_known_of_all_is_not_raced() {
    let mut scene = scene("policy = 'race'\n[race]\ncache_ttl = '10 s'\nexplore_one_in = 100");
    scene.path = path(&[(0, 30, 10), (1, 20, 1)]);
    assert_eq!(
        race(&scene, 6, SERVER),
        "Race: remembered: lte 20.0 ms, dsl 30.0 ms; one in 100 such connections is raced anew\n\
         => Uplink lte [lte 1.00]"
    );
    scene.settings.config.race.explore_one_in = 0;
    let text = race(&scene, 6, SERVER);
    assert!(
        text.starts_with("Race: remembered: lte 20.0 ms, dsl 30.0 ms\n"),
        "{text}"
    );
    // Among equals the lowest id, as in the datapath.
    scene.path = path(&[(0, 20, 1), (1, 20, 1)]);
    assert!(race(&scene, 6, SERVER).ends_with("=> Uplink dsl [dsl 1.00]"));
}

#[test]
fn what_cannot_be_raced_goes_by_what_is_known_or_by_the_slots() {
    let mut scene = scene("policy = 'race'");
    let server = "203.0.113.5:5000";
    assert_eq!(
        race(&scene, 17, server),
        "Race: not raced: only TCP is, and no path to 203.0.113.0/24 is known\n\
         Slot: the next of 1024 slots\n=> Shared - [dsl 0.50, lte 0.50]"
    );
    for private in [
        "10.1.2.3:80",
        "100.64.0.1:80",
        "100.127.0.1:80",
        "172.16.0.1:80",
    ] {
        let text = race(&scene, 6, private);
        assert!(
            text.starts_with("Race: not raced: the destination is private"),
            "{text}"
        );
    }
    assert!(race(&scene, 6, "100.128.0.1:80").ends_with("=> Raced - [dsl, lte]"));
    scene.path = path(&[(1, 50, 1)]);
    assert_eq!(
        race(&scene, 17, server),
        "Race: not raced: only TCP is\nRace: remembered: lte 50.0 ms\n=> Uplink lte [lte 1.00]"
    );
}

#[test]
fn quic_tries_what_is_not_known() {
    let mut scene = scene("policy = 'race'");
    let tries = |uplink| {
        format!(
            "Race: not raced: only TCP is; a QUIC connection tries {uplink}, whose round trip to \
             203.0.113.0/24 is not known\n=> Uplink {uplink} [{uplink} 1.00]"
        )
    };
    assert_eq!(race(&scene, 17, SERVER), tries("dsl"));
    scene.path = path(&[(0, 20, 1)]);
    assert_eq!(race(&scene, 17, SERVER), tries("lte"));
    // Not one that another connection tries, which says nothing to TCP.
    scene.path = path(&[(0, 20, 1), (1, 0, 1)]);
    scene.path.as_mut().unwrap().paths[1].tried = true;
    assert!(race(&scene, 17, SERVER).ends_with("=> Uplink dsl [dsl 1.00]"));
    assert!(race(&scene, 6, SERVER).ends_with("=> Raced - [dsl, lte]"));
    scene.settings.config.datapath.kind = DatapathKind::OpenFlow;
    scene.path = path(&[(0, 20, 1)]);
    assert!(race(&scene, 17, SERVER).ends_with("=> Uplink dsl [dsl 1.00]"));
}

#[test]
fn one_uplink_alone_runs_no_race() {
    let mut scene = scene("policy = 'race'");
    let text = race(&scene, 6, "[2a00::5]:443");
    assert_eq!(
        text,
        "Race: fewer than two uplinks could race: it is not raced\n\
         Slot: the next of 1024 slots\n=> Uplink dsl [dsl 1.00]"
    );
    scene.statuses.iter_mut().for_each(|s| s.metered = true);
    let text = race(&scene, 6, SERVER);
    assert!(
        text.starts_with("Race: nothing is raced now: metered"),
        "{text}"
    );
}

#[test]
fn the_fastest_is_not_always_the_nearest() {
    let mut scene = scene("policy = 'fastest'");
    scene.loads = loads([(20, 20), (20, 20)]);
    scene.path = path(&[(0, 20, 1), (1, 40, 1)]);
    assert_eq!(
        race(&scene, 6, SERVER),
        "Race: predicted: dsl 160 ms for 100 kB and 520 ms for 1 MB, lte 280 ms for 100 kB and \
         640 ms for 1 MB; one in 16 such connections is raced anew\n=> Uplink dsl [dsl 1.00]"
    );
    scene.loads = loads([(20, 0), (20, 20)]);
    assert!(race(&scene, 6, SERVER).ends_with("=> Uplink lte [lte 1.00]"));
    scene.loads = loads([(20, 20), (20, 20)]);
    let dsl = &mut scene.path.as_mut().unwrap().paths[0];
    (dsl.packets, dsl.lost) = (10_000, 300);
    assert!(race(&scene, 6, SERVER).ends_with("=> Uplink lte [lte 1.00]"));
}

#[test]
fn equal_uplinks_take_turns() {
    let mut scene = scene("policy = 'fastest'");
    scene.loads = loads([(20, 20), (20, 20)]);
    scene.path = path(&[(0, 20, 1), (1, 21, 1)]);
    for (last, next) in [("dsl", "lte"), ("lte", "dsl")] {
        scene.loads[0].last_opened = if last == "dsl" { 2 } else { 1 };
        scene.loads[1].last_opened = if last == "lte" { 2 } else { 1 };
        let outcome = format!("=> Uplink {next} [{next} 1.00]");
        assert!(race(&scene, 6, SERVER).ends_with(&outcome), "after {last}");
    }
}

#[test]
fn a_full_uplink_is_left_out_of_the_race() {
    let mut scene = scene("policy = 'fastest'");
    scene.loads = loads([(100, 100), (20, 0)]);
    assert_eq!(
        race(&scene, 6, SERVER),
        "Race: only dsl is worth while; full or reserved, silent or losing too much: lte\n=> Uplink dsl [dsl 1.00]"
    );
    // The same for a lossy uplink; then only the others need a cached path.
    scene.loads = loads([(20, 20), (20, 20)]);
    scene.loads[1].loss_ppm = 30_000;
    assert!(race(&scene, 6, SERVER).starts_with("Race: only dsl is worth while; full"));
    scene.path = path(&[(0, 20, 1)]);
    assert!(
        race(&scene, 6, SERVER)
            .starts_with("Race: predicted: dsl 160 ms for 100 kB and 520 ms for 1 MB;")
    );
    scene.path = None;
    // Without data they are equal.
    scene.loads.clear();
    assert!(race(&scene, 6, SERVER).ends_with("=> Raced - [dsl, lte]"));
}

#[test]
fn capacity_that_is_left_to_a_video_is_named() {
    let rate = |mbit: u64| Rate::from_bits_per_sec(mbit * 1_000_000);
    let reservation = |wanted, reserved| {
        Some(Reservation {
            wanted: rate(wanted),
            reserved: rate(reserved),
            capacity: rate(20),
        })
    };
    let mut scene = scene("policy = 'fastest'");
    scene.loads = loads([(15, 15), (20, 20)]);
    scene.path = path(&[(0, 20, 1), (1, 40, 1)]);
    scene.reservations = vec![reservation(5, 5)];
    let text = race(&scene, 6, SERVER);
    let first = text.lines().next();
    assert_eq!(
        first,
        Some("Race: left to videos, calls and the like: dsl 5.00 of 20.0 Mbit/s"),
        "{text}"
    );
    let expected = ReservationReport {
        uplink: "dsl".into(),
        wanted_bit_s: 5_000_000,
        reserved_bit_s: 5_000_000,
        capacity_bit_s: 20_000_000,
    };
    assert_eq!(explanation(&scene, &ask(SERVER)).reservations, [expected]);
    // More than the line can leave to them, on both lines; also where a race is to be run.
    scene.reservations = vec![reservation(40, 15); 2];
    scene.path = None;
    let text = race(&scene, 6, SERVER);
    let both = "Race: left to videos, calls and the like: dsl 15.00 of 20.0 Mbit/s (they want 40.00), \
                lte 15.00 of 20.0 Mbit/s (they want 40.00)\nRace: raced on dsl, lte";
    assert!(text.starts_with(both), "{text}");
    // Round trips alone decide under `race`.
    scene.settings = super::settings("policy = 'race'");
    assert!(race(&scene, 6, SERVER).starts_with("Race: raced on dsl, lte"));
    assert_eq!(explanation(&scene, &ask(SERVER)).reservations, []);
}
