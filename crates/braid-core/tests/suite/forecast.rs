//! Predicted times compared with the formulas in floating point.

use std::time::Duration;

use braid_core::Rate;
use braid_core::forecast::{
    DEFAULT_CAPACITY_KB_S, MAX_RATE_KB_S, MIN_LOSS_PPM, PathStats, UplinkLoad, in_turn,
    kilobytes_per_sec, ppm,
};
use proptest::prelude::*;

fn line(capacity_mbit: u64) -> UplinkLoad {
    let capacity = kilobytes_per_sec(Rate::from_bits_per_sec(capacity_mbit * 1_000_000));
    UplinkLoad {
        capacity,
        spare: capacity,
        busy: 0,
        opened: 0,
        loss_ppm: 0,
        load_loss_ppm: 0,
        last_opened: 0,
    }
}

fn path(rtt_ms: u64, packets: u32, lost: u32) -> PathStats {
    PathStats {
        rtt: Duration::from_millis(rtt_ms),
        packets,
        lost,
    }
}

/// [ofrp] §2.1: "the mean rate of a TCP connection is determined on the packet loss ratio and RTT
/// of a path". Mathis et al., eq. (3), by hand: 1460 · √1.5 / (0.1 s · √0.01) = 178.8 kB/s, so
/// 1 MB takes 0.6 s of rounds and 5.59 s.
#[test]
fn a_lossy_path_goes_at_the_rate_of_mathis() {
    let found = line(100).predict(&path(100, 999_500, 10_000));
    assert_eq!(found.loss_ppm, 10_000);
    assert_eq!(found.mathis, 178);
    assert_eq!(found.time, Duration::from_micros(600_000 + 5_617_977));
}

#[test]
fn a_clean_path_goes_at_what_the_line_has() {
    let found = line(20).predict(&path(20, 0, 0));
    assert_eq!(
        (found.headroom, u64::from(found.loss_ppm)),
        (2500, MIN_LOSS_PPM)
    );
    assert_eq!(found.time, Duration::from_millis(120 + 400));
}

/// Cases that round-trip times alone get wrong: the nearer uplink is full, or loses.
#[test]
fn a_full_or_lossy_line_loses_against_a_longer_way() {
    let near = line(50);
    let far = line(50).predict(&path(40, 0, 0));
    assert!(near.predict(&path(20, 0, 0)).time < far.time);
    let full = UplinkLoad {
        spare: 0,
        busy: 3,
        ..near
    };
    assert!(full.predict(&path(20, 0, 0)).time > far.time);
    let lossy = UplinkLoad {
        loss_ppm: ppm(0.02),
        ..near
    };
    assert!(lossy.predict(&path(20, 0, 0)).time > far.time);
    assert!(near.predict(&path(20, 2_000, 40)).time > far.time);
}

/// The rest is what the path loses and the uplink does not.
#[test]
fn losses_of_an_uplinks_own_load_are_not_the_paths() {
    let loaded = UplinkLoad {
        load_loss_ppm: ppm(0.02),
        ..line(50)
    };
    let loss = |lost| loaded.predict(&path(20, 2_000, lost)).loss_ppm;
    assert_eq!(loss(0), loss(40), "what all packets had to expect");
    assert_eq!(loss(65), 10_000, "25 of 2,500");
}

#[test]
fn flows_of_one_moment_do_not_all_follow_the_same_figures() {
    let mut lines = [line(50), line(40)];
    let ways = [path(20, 0, 0), path(20, 0, 0)];
    for _ in 0..90 {
        let times = [0, 1].map(|i| lines[i].predict(&ways[i]).time);
        let best = usize::from(times[1] < times[0]);
        lines[best].opened += 1;
    }
    assert_eq!(lines.map(|line| line.opened), [50, 40]);
}

/// A difference of a sixteenth counts as none; of equals, the one that was given a flow first is next.
#[test]
fn equal_uplinks_take_turns() {
    assert_eq!(in_turn(&[]), None);
    assert_eq!(in_turn(&[(1600, 8), (1700, 7), (1600, 9)]), Some(1));
    assert_eq!(in_turn(&[(1600, 8), (1701, 7), (1600, 9)]), Some(0));
    assert_eq!(in_turn(&[(1700, 0), (1600, 0)]), Some(0));
}

/// Opens flows one after the other where they score best; returns the number on each line.
fn place(flows: u32, mut lines: [UplinkLoad; 2], ways: [PathStats; 2]) -> [u32; 2] {
    for _ in 0..flows {
        let scores = [0, 1].map(|i| lines[i].predict(&ways[i]).score());
        lines[usize::from(scores[1] < scores[0])].opened += 1;
    }
    lines.map(|line| line.opened)
}

/// The demonstration's page of 42 connections over 20 Mbit/s at 30 ms and 30 Mbit/s at 80 ms. It loads
/// fastest with 19 to 23 of them on the nearer line: in proportion to the rates, 17, the farther one
/// ends last. Ten downloads need both lines.
#[test]
fn a_page_spreads_over_lines_of_unlike_rates_and_downloads_use_both() {
    let ways = [path(30, 0, 0), path(80, 0, 0)];
    for lines in [[line(20), line(30)], [line(0), line(0)]] {
        let [near, _] = place(42, lines, ways);
        assert!((19..=23).contains(&near), "{near} of 42");
        let [near, _] = place(10, lines, ways);
        assert!((4..=7).contains(&near), "{near} of 10");
    }
    let [slow, _] = place(42, [line(2), line(100)], ways);
    assert!(slow <= 5, "{slow} of 42 on the slow line");
}

#[test]
fn odd_rates_and_fractions_become_the_nearest_sensible_ones() {
    assert_eq!(
        kilobytes_per_sec(Rate::from_bits_per_sec(u64::MAX)),
        MAX_RATE_KB_S
    );
    assert_eq!(kilobytes_per_sec(Rate::from_bits_per_sec(7_999)), 0);
    assert_eq!([ppm(f64::NAN), ppm(-1.0), ppm(2.0)], [0, 0, 1_000_000]);
    assert_eq!(ppm(0.0123456), 12_346);
    let unknown = line(0).predict(&path(0, 0, 0));
    assert_eq!(
        unknown.headroom, DEFAULT_CAPACITY_KB_S,
        "nothing is known of it"
    );
    let full = UplinkLoad {
        capacity: 1,
        spare: 0,
        busy: 5,
        ..line(0)
    };
    let found = full.predict(&path(0, 0, 0));
    assert_eq!(found.headroom, 1, "never a division by zero");
}

proptest! {
    #[test]
    fn whole_numbers_stay_near_the_formulas(
        (capacity, spare, busy, opened) in (1..MAX_RATE_KB_S, 0..MAX_RATE_KB_S, 0..1000u32, 0..1000u32),
        (base, load) in (0..=1_000_000u32, 0..=1_000_000u32),
        (rtt, packets, lost) in (0..5_000_000u64, any::<u32>(), any::<u32>()),
    ) {
        let line = UplinkLoad { capacity, spare, busy, opened, loss_ppm: base, load_loss_ppm: load, last_opened: 0 };
        let way = PathStats { rtt: Duration::from_micros(rtt), packets, lost };
        let found = line.predict(&way);
        let queue = 1 + u64::from(busy > 0 && spare < capacity / 4);
        let rtt = (rtt.clamp(100, 2_000_000) * queue).min(2_000_000) as f64 / 1e6;
        let own = (f64::from(lost) - f64::from(packets) * f64::from(load) / 1e6).max(0.0);
        let loss = (own + f64::from(base) / 1e6 * 500.0) / (f64::from(packets) + 500.0);
        let loss = loss.clamp(1e-5, 1.0);
        prop_assert!((f64::from(found.loss_ppm) / 1e6 - loss).abs() <= 1.1e-6);
        let mathis = 1460.0 * 1.5f64.sqrt() / (rtt * (f64::from(found.loss_ppm) / 1e6).sqrt()) / 1e3;
        prop_assert!((f64::from(found.mathis) - mathis).abs() <= mathis * 0.001 + 1.0);
        let rate = f64::from(found.mathis.min(found.headroom).max(1));
        let time = 6.0 * rtt + 1e3 / rate;
        prop_assert!((found.time.as_secs_f64() - time).abs() <= 2e-6);
        let short_time = 6.0 * rtt + 100.0 / rate;
        prop_assert!((found.short_time.as_secs_f64() - short_time).abs() <= 2e-6);
    }

    #[test]
    fn more_of_anything_bad_never_makes_it_faster(
        (capacity, spare, busy, opened) in (1..100_000u32, 0..100_000u32, 0..50u32, 0..50u32),
        (base, load) in (0..=1_000_000u32, 0..=1_000_000u32),
        (rtt, packets, lost) in (0..3_000u64, 0..100_000u32, 0..10_000u32),
    ) {
        let line = UplinkLoad { capacity, spare, busy, opened, loss_ppm: base, load_loss_ppm: load, last_opened: 0 };
        let way = path(rtt, packets, lost);
        let (time, score) = (line.predict(&way).time, line.predict(&way).score());
        let worse = [
            line.predict(&path(rtt + 1, packets, lost)),
            line.predict(&path(rtt, packets, lost + 1)),
            UplinkLoad { busy: busy + 1, ..line }.predict(&way),
            UplinkLoad { opened: opened + 1, ..line }.predict(&way),
            UplinkLoad { spare: spare / 2, ..line }.predict(&way),
            UplinkLoad { capacity: (capacity / 2).max(1), spare: 0, ..line }.predict(&way),
            UplinkLoad { loss_ppm: (base + 1).min(1_000_000), ..line }.predict(&way),
            UplinkLoad { load_loss_ppm: load.saturating_sub(1), ..line }.predict(&way),
        ];
        for worse in worse {
            prop_assert!(worse.time >= time, "{worse:?}");
            prop_assert!(worse.score() >= score, "{worse:?}");
        }
    }
}
