//! Demand of long-lived flows, on generated traffic.

use std::time::Duration;

use braid_core::app_limited::{AppLimitedFlows, FlowTotal, LineState};
use braid_core::{Bytes, Time, UplinkId};
use proptest::prelude::*;

const MBIT: f64 = 1e6;
const LINE: UplinkId = UplinkId(1);

/// One line, watched once a second.
struct Watch {
    flows: AppLimitedFlows<u32>,
    totals: Vec<f64>,
    now: Time,
}

impl Watch {
    fn new(flows: usize) -> Watch {
        Watch {
            flows: AppLimitedFlows::default(),
            totals: vec![0.0; flows],
            now: Time::from_nanos(1_000_000_000),
        }
    }

    /// A second in which the flows carry so many Mbit/s.
    fn second(&mut self, rates: &[f64], full: bool) {
        let line = if full {
            LineState::Full
        } else {
            LineState::Room
        };
        self.count(rates, line);
    }

    fn count(&mut self, rates: &[f64], line: LineState) {
        self.now = self.now + Duration::from_secs(1);
        for (total, rate) in self.totals.iter_mut().zip(rates) {
            *total += rate * MBIT / 8.0;
        }
        let total = |(key, bytes): (u32, &f64)| {
            let bytes = Bytes::new(*bytes as u64);
            (
                key,
                FlowTotal {
                    uplink: LINE,
                    bytes,
                },
            )
        };
        let totals: Vec<_> = (0..).zip(&self.totals).map(total).collect();
        self.flows.note(self.now, totals, |_| line);
    }

    fn demand(&self) -> f64 {
        self.flows.demand(LINE).bits_per_sec() as f64 / MBIT
    }
}

/// A segment of some seconds every so many, each at the line's full rate.
fn plays(watch: &mut Watch, line: f64, wanted: f64, segment: usize, seconds: usize) {
    let mut left = 0.0;
    for second in 0..seconds {
        if second % segment == 0 {
            left += wanted * segment as f64;
        }
        let rate = f64::min(line, left);
        left -= rate;
        watch.second(&[rate], rate >= line * 0.75);
    }
}

proptest! {
    #[test]
    fn a_video_wants_what_it_plays(
        line in 2.0..50.0_f64, part in 0.02..0.6_f64, segment in 2..8_usize, buffering in 0..20_usize,
    ) {
        let mut watch = Watch::new(1);
        for _ in 0..buffering {
            watch.second(&[line], true);
        }
        plays(&mut watch, line, part * line, segment, 60);
        let error = watch.demand() / (part * line);
        prop_assert!((0.6..1.5).contains(&error), "{error}");
    }

    #[test]
    fn a_download_that_fills_the_line_wants_nothing_of_its_own(
        line in 2.0..50.0_f64, shares in prop::collection::vec(0.2..1.0_f64, 10..100),
    ) {
        let mut watch = Watch::new(1);
        for share in shares {
            watch.second(&[line * share], true);
            prop_assert_eq!(watch.demand(), 0.0);
        }
    }

    #[test]
    fn a_call_wants_its_rate(line in 2.0..50.0_f64, part in 0.02..0.7_f64) {
        let mut watch = Watch::new(1);
        for _ in 0..20 {
            watch.second(&[line * part], false);
        }
        prop_assert!((watch.demand() / (line * part) - 1.0).abs() < 0.01);
    }
}

#[test]
fn a_crowd_changes_little_for_a_page() {
    let mut watch = Watch::new(1);
    plays(&mut watch, 2.0, 1.0, 4, 60);
    let before = watch.demand();
    for _ in 0..15 {
        watch.second(&[0.1], true);
    }
    assert!(watch.demand() > 0.5 * before, "{}", watch.demand());
    for _ in 0..120 {
        watch.second(&[0.1], true);
    }
    assert!(watch.demand() < 0.1 * before, "{}", watch.demand());
}

/// A download whose sender waits for a timeout now and then.
#[test]
fn a_download_with_gaps_wants_little() {
    let mut watch = Watch::new(1);
    for second in 0..120 {
        let gap = second % 20 == 19;
        watch.second(&[if gap { 0.0 } else { 10.0 }], !gap);
        assert!(watch.demand() < 5.0, "{second} s: {}", watch.demand());
    }
}

/// Every few seconds a line carries nothing, as LTE in a moving car.
#[test]
fn a_line_that_stalls_is_no_pause_of_its_flows() {
    let mut watch = Watch::new(1);
    for second in 0..120 {
        match second % 6 {
            5 => watch.count(&[0.0], LineState::Stalled),
            _ => watch.second(&[10.0], true),
        }
        assert_eq!(watch.demand(), 0.0, "{second} s");
    }
}

/// Somebody counts again at once.
#[test]
fn the_same_totals_again_are_no_pause() {
    let mut watch = Watch::new(1);
    for _ in 0..60 {
        watch.second(&[10.0], true);
        let bytes = Bytes::new(watch.totals[0] as u64);
        let total = FlowTotal {
            uplink: LINE,
            bytes,
        };
        let at = watch.now + Duration::from_millis(200);
        watch.flows.note(at, [(0, total)], |_| LineState::Full);
        assert_eq!(watch.demand(), 0.0);
    }
}

#[test]
fn flows_that_end_want_nothing() {
    let mut watch = Watch::new(3);
    for _ in 0..20 {
        watch.second(&[0.5, 1.0, 2.0], false);
    }
    assert!((watch.demand() - 3.5).abs() < 0.05);
    watch.totals.truncate(1);
    watch.second(&[0.5], false);
    assert!((watch.demand() - 0.5).abs() < 0.05);
}

/// The observer was away, or the flow has another uplink by now.
#[test]
fn a_gap_in_the_counts_is_no_rate() {
    let mut watch = Watch::new(1);
    for _ in 0..20 {
        watch.second(&[1.0], false);
    }
    watch.now = watch.now + Duration::from_secs(60);
    watch.second(&[500.0], false);
    assert!((watch.demand() - 1.0).abs() < 0.01, "{}", watch.demand());
    let moved = FlowTotal {
        uplink: UplinkId(2),
        bytes: Bytes::new(1 << 40),
    };
    watch.now = watch.now + Duration::from_secs(1);
    watch
        .flows
        .note(watch.now, [(0, moved)], |_| LineState::Room);
    assert_eq!(watch.flows.demand(UplinkId(2)).bits_per_sec(), 0);
    assert_eq!(watch.demand(), 0.0);
}
