//! Stalls on generated intervals: lines that carry next to nothing while flows wait, and lines of which nobody wants more.

use std::time::Duration;

use braid_core::capacity::{StallInterval, StallMonitor};
use braid_core::{Bytes, Rate, Time};
use proptest::prelude::*;

const INTERVAL: Duration = Duration::from_millis(200);
const MBIT: u64 = 1_000_000;

/// A line of a known capacity, and its monitor.
struct Line {
    monitor: StallMonitor,
    capacity: u64,
    now: Time,
}

impl Line {
    fn new(capacity: u64) -> Line {
        Line {
            monitor: StallMonitor::default(),
            capacity,
            now: Time::from_nanos(1_000_000_000),
        }
    }

    fn interval(&mut self, packets: u64, size: u64, repeats: u64, queue: bool) -> bool {
        self.now = self.now + INTERVAL;
        self.monitor.note(&StallInterval {
            end: self.now,
            span: INTERVAL,
            carried: Bytes::new(packets * size),
            rx_packets: packets,
            rx: Bytes::new(packets * size),
            repeats,
            queue,
            capacity: Some(Rate::from_bits_per_sec(self.capacity)),
        })
    }

    /// Runs full for a number of intervals.
    fn full(&mut self, intervals: u32) {
        let packets = self.capacity / 8 / 5 / 1500;
        for _ in 0..intervals {
            self.interval(packets, 1500, 0, true);
        }
    }

    /// Runs at a part of its capacity, without a queue.
    fn part(&mut self, intervals: u32, part: u64) {
        let packets = (self.capacity / 8 / 5 / 1500 / part).max(1);
        for _ in 0..intervals {
            self.interval(packets, 1500, 0, false);
        }
    }

    /// Stalls for a number of intervals. Requests are sent again after 0.2, 0.6, 1.4, 3.0 … s.
    fn silent(&mut self, intervals: u64, requests: u64) {
        let backs_off = [1, 3, 7, 15, 31, 63];
        for interval in 0..intervals {
            let repeats = requests * u64::from(backs_off.contains(&interval));
            self.interval(0, 0, repeats, false);
        }
    }

    fn stalls(&self) -> bool {
        self.monitor.rate().is_some()
    }
}

/// WiFi behind a wall: requests and acknowledgements are sent again, and nothing comes.
#[test]
fn a_line_on_which_flows_wait_in_vain_is_slow_within_a_second() {
    for capacity in [2, 20, 100] {
        let mut line = Line::new(capacity * MBIT);
        line.full(10);
        line.silent(4, 3);
        assert!(line.stalls(), "{capacity} Mbit/s");
        // It is still slow while its senders back off, and no longer as soon as bytes come.
        line.silent(10, 3);
        assert!(line.stalls());
        line.interval(100, 1500, 0, false);
        assert_eq!(line.monitor.carried(), None);
    }
}

/// One packet in 240 ms: what a queue drips at 50 kbit/s.
#[test]
fn a_full_line_whose_queue_drips_is_slow_within_a_second() {
    let mut line = Line::new(12 * MBIT);
    line.full(10);
    for interval in 0..25 {
        line.interval(u64::from(interval % 6 != 0), 1500, 0, true);
        assert_eq!(line.stalls(), interval >= 3, "{interval}");
    }
    assert_eq!(line.monitor.rate(), Some(Rate::from_bits_per_sec(64_000)));
    line.full(1);
    assert_eq!(line.monitor.carried(), None);
}

#[test]
fn transfers_that_end_are_no_stall() {
    // All at once; with the last losses of one repaired in slow start; with a call that goes on.
    let ends: [&[(u64, u64)]; 3] = [
        &[(0, 0), (0, 0), (0, 0)],
        &[(0, 0), (1, 1500), (6, 1500), (0, 0)],
        &[(10, 200), (10, 200), (10, 200), (10, 200), (10, 200)],
    ];
    for end in ends {
        let mut line = Line::new(20 * MBIT);
        line.full(10);
        for (packets, size) in end {
            line.interval(*packets, *size, 0, true);
            assert!(!line.stalls(), "{end:?}");
        }
    }
}

/// A page that filled a line's queue: each connection's last segment is sent again before its acknowledgement has come
/// through that queue.
#[test]
fn what_is_sent_again_while_a_line_flows_is_no_sign_of_a_stall() {
    let mut line = Line::new(20 * MBIT);
    for _ in 0..5 {
        line.interval(300, 1500, 6, true);
    }
    for _ in 0..10 {
        line.interval(0, 0, 0, false);
        assert!(!line.stalls());
    }
}

/// A slow line's all is little, and no stall.
#[test]
fn a_slow_line_that_is_full_does_not_stall() {
    let mut line = Line::new(300_000);
    for _ in 0..50 {
        line.interval(5, 1500, 1, true);
        assert!(!line.stalls());
    }
}

/// A single flow that nobody answers has its segments sent again ever more seldom; a server is dead, and not the line.
#[test]
fn one_server_that_is_silent_does_not_make_a_line_slow() {
    let mut line = Line::new(20 * MBIT);
    line.part(10, 50);
    for interval in 0..200 {
        let repeats = u64::from([1, 3, 7, 15, 31, 63, 127].contains(&interval));
        line.interval(2, 100, repeats, false);
        assert!(!line.stalls(), "{interval}");
    }
}

/// Without a sign that flows still wait, new flows may try the line: an estimate that is never tried is never refuted.
#[test]
fn a_stall_ends_by_itself_when_nobody_waits_any_more() {
    let mut line = Line::new(20 * MBIT);
    line.full(10);
    line.silent(16, 4);
    assert!(line.stalls());
    line.silent(1, 0);
    let mut intervals = 0;
    while line.monitor.carried().is_some() {
        line.interval(0, 0, 0, false);
        intervals += 1;
    }
    assert!((1..=20).contains(&intervals), "{intervals} of 200 ms");
    // It cut transfers off, was over and went on, so the line is held back for a minute more.
    while line.stalls() {
        line.interval(0, 0, 0, false);
        intervals += 1;
    }
    assert!((300..=320).contains(&intervals), "{intervals} of 200 ms");
}

/// Plays a stall on a line that is full until then, or idle; returns the intervals for which it is held back afterwards.
fn stall(line: &mut Line, cuts: bool) -> i32 {
    line.full(20);
    if !cuts {
        for _ in 0..25 {
            line.interval(0, 0, 0, false);
        }
    }
    line.silent(10, 3);
    assert!(line.stalls());
    line.full(1);
    let mut intervals = 0;
    while line.stalls() {
        let rate = line.monitor.rate().expect("held back");
        assert_eq!(rate, Rate::from_bits_per_sec(12 * MBIT / 16));
        line.full(1);
        intervals += 1;
    }
    intervals
}

/// The paper's WiFi outdoors: gaps of seconds, again and again. The line is held back for longer each time, and
/// forgiven after some minutes.
#[test]
fn a_line_that_stalls_again_and_again_is_held_back() {
    // A minute after a stall, half of it is forgotten.
    for (cuts, expected) in [(true, [150, 300, 300]), (false, [0, 5, 10])] {
        let mut line = Line::new(12 * MBIT);
        let held = [(); 3].map(|()| stall(&mut line, cuts));
        for (found, expected) in held.iter().zip(expected) {
            assert!(found.abs_diff(expected) <= 1, "{held:?}, {cuts}");
        }
        line.part(10 * 300, 4);
        assert_eq!(stall(&mut line, cuts), held[0]);
    }
}

/// The queue of a slow line overflows, and all senders wait for their timeouts at once.
#[test]
fn a_line_that_is_silent_for_a_moment_is_not_held_back() {
    let mut line = Line::new(2 * MBIT);
    for _ in 0..5 {
        line.full(20);
        for repeats in [0, 3, 0] {
            line.interval(0, 0, repeats, false);
        }
        assert!(line.stalls());
        line.full(1);
        assert!(!line.stalls());
    }
}

/// Servers whose segments a stall cut off wait as long again as it lasted at most, but for what they lose later.
#[test]
fn connections_wait_for_servers_during_a_stall_and_as_long_again() {
    for intervals in [10, 60] {
        let mut line = Line::new(12 * MBIT);
        line.full(20);
        let flowed = line.now;
        assert_eq!(line.monitor.disruption(line.now), None);
        // Repeats each second: flows go on waiting.
        for at in 0..intervals {
            line.interval(0, 0, if at % 5 == 1 { 3 } else { 0 }, false);
        }
        let since = line.monitor.disruption(line.now).expect("it stalls");
        assert!(
            since < flowed,
            "connections that were active just before it"
        );
        assert!(flowed.since(since) < Duration::from_secs(4));
        let end = line.now;
        let mut waited = Duration::ZERO;
        while line.monitor.disruption(line.now).is_some() {
            waited = line.now.since(end);
            line.full(1);
        }
        let lasted = INTERVAL * intervals;
        let expected = lasted.max(Duration::from_secs(4));
        assert!(
            waited.abs_diff(expected) < Duration::from_secs(1),
            "{waited:?} after {lasted:?}"
        );
    }
    let mut idle = Line::new(12 * MBIT);
    assert!(stall(&mut idle, false) == 0);
    assert_eq!(
        idle.monitor.disruption(idle.now),
        None,
        "it cut nothing off"
    );
}

proptest! {
    /// Little traffic is what programs want. Nothing but flows that wait makes it a stall.
    #[test]
    fn a_line_of_which_nobody_wants_more_does_not_stall(
        capacity in 1u64..300,
        rates in prop::collection::vec((0u64..60, 40u64..499, 0u64..2), 1..200),
    ) {
        let mut line = Line::new(capacity * MBIT);
        line.full(5);
        let mut repeated = 0;
        for (index, (packets, size, repeats)) in rates.into_iter().enumerate() {
            // One lost request in a second and a half at most.
            let repeats = if index >= repeated + 8 { repeats } else { 0 };
            if repeats > 0 {
                repeated = index;
            }
            line.interval(packets, size, repeats, packets % 2 == 0);
            prop_assert!(!line.stalls());
        }
    }

    /// A line that carries something does not stall, however much it loses.
    #[test]
    fn a_line_that_carries_something_does_not_stall(
        capacity in 1u64..300,
        intervals in prop::collection::vec((0u64..100, any::<bool>()), 1..100),
    ) {
        let mut line = Line::new(capacity * MBIT);
        let packets = (capacity * MBIT / 8 / 5 / 8).min(15_000).div_ceil(1000);
        for (repeats, queue) in intervals {
            line.interval(packets, 1000, repeats, queue);
            prop_assert!(!line.stalls());
        }
    }
}
