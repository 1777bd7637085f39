//! A process that stalls, at either end of a link, leaves no wrong estimate behind.

use std::time::Duration;

use braid_core::{Bytes, Time};
use braid_multipath::estimate::{Arrivals, Demand, LinkEstimator, LinkReport};
use braid_multipath::{Incoming, LinkId, PacketNumber, Stamp};
use proptest::prelude::*;

const LEN: Bytes = Bytes::new(1_500);
const TRIP_US: u64 = 30_000;

/// A link with a queue of 100 ms, sent at its estimated rate. The receiver reads nothing during
/// `unread`, and then everything at once; the sender sends nothing during `mute`. Times are in
/// microseconds.
struct Bench {
    link: LinkEstimator,
    arrivals: Arrivals,
    mbit: f64,
    wire_free: f64,
    under_way: std::collections::VecDeque<(u64, u64, u64)>,
    reports: std::collections::VecDeque<(u64, LinkReport)>,
    next_send: f64,
    unread: (u64, u64),
    /// True if the receiver knows when packets arrived.
    stamped: bool,
    mute: (u64, u64),
}

fn us(us: u64) -> Time {
    Time::from_nanos(us * 1_000)
}

fn packet(number: u64, stamp: u64, arrived: Time) -> Incoming {
    Incoming {
        number: PacketNumber(number),
        stamp: Stamp(stamp),
        arrived,
        len: LEN,
        elicits: true,
    }
}

fn within(span: (u64, u64), at: u64) -> bool {
    (span.0..span.1).contains(&at)
}

impl Bench {
    fn new(mbit: f64) -> Bench {
        Bench {
            link: LinkEstimator::new(None),
            arrivals: Arrivals::new(LinkId(0)),
            mbit,
            wire_free: 0.0,
            under_way: Default::default(),
            reports: Default::default(),
            next_send: 0.0,
            unread: (0, 0),
            stamped: false,
            mute: (0, 0),
        }
    }

    fn step(&mut self, at: u64) {
        while let Some((_, report)) = self.reports.front().filter(|(due, _)| *due <= at) {
            self.link.handle_report(us(at), report, Demand::Backlog);
            self.reports.pop_front();
        }
        let wire = 12_000.0 / self.mbit;
        while !within(self.mute, at) && self.next_send <= at as f64 && self.link.fits_window(LEN) {
            let number = self.link.handle_sent(us(at), LEN, true);
            let pace = self.link.pace().bits_per_sec().max(1) as f64;
            self.next_send = self.next_send.max(at as f64 - 2_000.0) + 12e9 / pace;
            let starts = self.wire_free.max(at as f64);
            if starts - at as f64 <= 100_000.0 {
                self.wire_free = starts + wire;
                let due = self.wire_free as u64 + TRIP_US / 2;
                self.under_way.push_back((due, number.0, at));
            }
        }
        if within(self.unread, at) {
            return;
        }
        while let Some((due, number, sent)) = self.under_way.front().copied().filter(|p| p.0 <= at)
        {
            self.under_way.pop_front();
            let arrived = if self.stamped { due } else { at };
            self.arrivals
                .handle_packet(us(at), &packet(number, sent, us(arrived)));
            if self.arrivals.is_report_due(us(at))
                && let Some(report) = self.arrivals.report(us(at))
            {
                self.reports.push_back((at + TRIP_US / 2, report));
            }
        }
        if self.arrivals.is_report_due(us(at))
            && let Some(report) = self.arrivals.report(us(at))
        {
            self.reports.push_back((at + TRIP_US / 2, report));
        }
    }

    /// Returns the highest estimate between two times, as a fraction of the link's rate.
    fn run(&mut self, from_ms: u64, to_ms: u64) -> f64 {
        let mut most = 0.0f64;
        for at in (from_ms * 1_000..to_ms * 1_000).step_by(250) {
            self.step(at);
            let proven = self.link.capacity().proven().bits_per_sec() as f64;
            most = most.max(proven / (self.mbit * 1e6));
        }
        most
    }
}

/// Lengths of stalls, ms: half of them below a second.
fn stalls() -> impl Strategy<Value = u64> {
    prop_oneof![10u64..1_000, 1_000u64..=10_000]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_receiver_that_reads_late_makes_no_link_faster(mbit in 4.0f64..80.0, stall in stalls(), forgiven: bool) {
        let mut bench = Bench::new(mbit);
        bench.run(0, 3_000);
        bench.unread = (3_000_000, 3_000_000 + stall * 1_000);
        let during = bench.run(3_000, 3_000 + stall);
        if forgiven {
            bench.link.restart();
        }
        let after = bench.run(3_000 + stall, 5_000 + stall);
        prop_assert!(during.max(after) <= 1.5, "{} during, {} after", during, after);
        let later = bench.link.capacity().proven().bits_per_sec() as f64 / (mbit * 1e6);
        prop_assert!(later >= 0.7, "{} two seconds later", later);
    }

    #[test]
    fn a_sender_that_sends_late_makes_no_link_faster(mbit in 4.0f64..80.0, stall in stalls(), forgiven: bool) {
        let mut bench = Bench::new(mbit);
        bench.run(0, 3_000);
        bench.mute = (3_000_000, 3_000_000 + stall * 1_000);
        bench.run(3_000, 3_000 + stall);
        if forgiven {
            bench.link.restart();
        }
        let after = bench.run(3_000 + stall, 5_000 + stall);
        prop_assert!(after <= 1.5, "{} after", after);
        let later = bench.link.capacity().proven().bits_per_sec() as f64 / (mbit * 1e6);
        prop_assert!(later >= 0.7, "{} two seconds later", later);
    }
}

/// Returns for how many of 200 short stalls, of up to 150 ms, the rate leaves 0.85 to 1.15 of the link's
/// within half a second.
fn rates_that_moved(stamped: bool) -> usize {
    let moves = |case: &u64| {
        let mut bench = Bench::new(4.0 + 0.38 * *case as f64);
        bench.stamped = stamped;
        bench.run(0, 3_000);
        let stall = 10 + case * 79 % 140;
        bench.unread = (3_000_000, 3_000_000 + stall * 1_000);
        (3_000..3_500 + stall).step_by(10).any(|from| {
            bench.run(from, from + 10);
            let rate = bench.link.rate().bits_per_sec() as f64 / (bench.mbit * 1e6);
            !(0.85..=1.15).contains(&rate)
        })
    };
    (0..200).filter(moves).count()
}

/// Late reading makes a link look slow, fast and full within a moment. With the kernel's stamps it does
/// not; what is left are stalls so long that the sender had nothing in flight at their end.
#[test]
fn a_receiver_that_knows_when_packets_arrived_keeps_the_rate() {
    let (stamped, unstamped) = (rates_that_moved(true), rates_that_moved(false));
    assert!(
        stamped * 3 <= unstamped,
        "{stamped} with stamps, {unstamped} without"
    );
}

/// Packets that arrive in another order than they were sent are no train.
#[test]
fn a_backlog_that_was_reordered_is_no_train() {
    let mut arrivals = Arrivals::new(LinkId(0));
    // The newest first, then forty that are older by up to 40 ms, all within a millisecond.
    for (index, number) in std::iter::once(40).chain(0..40).enumerate() {
        let at = us(100_000 + index as u64 * 20);
        arrivals.handle_packet(at, &packet(number, 10_000 + number * 1_000, at));
    }
    let report = arrivals
        .report(us(101_000) + Duration::ZERO)
        .expect("packets came");
    assert_eq!(report.train, None);
}
