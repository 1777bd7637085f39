//! Demand: packets that wait for a link for more than a moment are a reason to probe it for more
//! rate.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::{Bytes, Rate, Time};
use braid_emulate::delay::Delay;
use braid_emulate::rate::Speed;
use braid_emulate::{Config, Fate, Link};
use braid_multipath::bond::{InnerPacket, LinkSettings, Sender, SenderSettings};
use braid_multipath::estimate::{Arrivals, LinkReport};
use braid_multipath::schedule::{Adaptive, Class};
use braid_multipath::{Incoming, LinkId, PacketNumber, Stamp};

const LINK: LinkId = LinkId(0);
const LEN: u64 = 1440;
const MBIT: f64 = 50.0;
const STEP: Duration = Duration::from_micros(50);
const SPAN: Duration = Duration::from_secs(2);

/// One direction of a bond of one link of 50 Mbit/s and 15 ms.
struct OneLink {
    now: Time,
    /// Time that reports take back.
    back: Duration,
    sender: Sender<()>,
    link: Link<(PacketNumber, Stamp)>,
    arrivals: Arrivals,
    reports: VecDeque<(Time, LinkReport)>,
}

impl OneLink {
    fn new(initial_mbit: f64) -> OneLink {
        let now = Time::from_nanos(1_000_000_000);
        let rate = |mbit: f64| Rate::from_bits_per_sec((mbit * 1e6) as u64);
        let mut sender = Sender::new(Box::new(Adaptive::default()), SenderSettings::default());
        let settings = LinkSettings {
            initial: Some(rate(initial_mbit)),
            ..LinkSettings::default()
        };
        sender.add_link(now, LINK, settings);
        let config = Config {
            speed: Speed::Fixed(rate(MBIT)),
            delay: Delay {
                base: Duration::from_millis(15),
                ..Delay::default()
            },
            ..Config::default()
        };
        OneLink {
            now,
            back: Duration::from_millis(15),
            sender,
            link: Link::new(config, 1),
            arrivals: Arrivals::new(LINK),
            reports: VecDeque::new(),
        }
    }

    fn hand_over(&mut self, packets: u64) {
        for _ in 0..packets {
            let inner = InnerPacket {
                flow: 1,
                class: Class::Ordered,
                len: Bytes::new(LEN),
                is_stream: false,
                is_limited: false,
            };
            self.sender.handle_packet(self.now, inner, ());
        }
    }

    /// One step of time; `packets` are handed over just before a report in the same step.
    fn step(&mut self, packets: impl FnOnce() -> u64) {
        self.now = self.now + STEP;
        if self.reports.front().is_some_and(|(at, _)| *at <= self.now) {
            self.hand_over(packets());
            let (_, report) = self.reports.pop_front().expect("it was there");
            self.sender.handle_report(self.now, &report);
        }
        self.sender.handle_timeout(self.now);
        while let Some(sent) = self.sender.poll_transmit(self.now) {
            let numbered = (sent.number, sent.stamp);
            self.link.handle_packet(self.now, LEN as u32, numbered);
        }
        while let Some(out) = self.link.poll_output(self.now) {
            if out.fate == Fate::Delivered {
                let (number, stamp) = out.packet;
                let packet = Incoming {
                    number,
                    stamp,
                    arrived: self.now,
                    len: Bytes::new(LEN),
                    elicits: true,
                };
                self.arrivals.handle_packet(self.now, &packet);
            }
        }
        if self.arrivals.is_report_due(self.now) {
            let report = self.arrivals.report(self.now).expect("something came");
            let back = self.now + self.back;
            self.reports.push_back((back, report));
        }
    }

    /// The link's proven rate and its send rate, in Mbit/s.
    fn rates(&self) -> (f64, f64) {
        let (estimator, _) = self.sender.link(LINK).expect("it was added");
        let mbit = |rate: Rate| rate.bits_per_sec() as f64 / 1e6;
        (mbit(estimator.capacity().proven()), mbit(estimator.rate()))
    }
}

/// Acknowledgements release a window in bursts. In the worst case each burst comes just before a
/// report and is nearly as long as the link needs until the next.
#[test]
fn a_burst_that_is_gone_before_the_next_report_does_not_push_a_link() {
    let mut one = OneLink::new(MBIT);
    one.hand_over(20);
    let start = one.now;
    let (mut last, mut reports, mut highest) = (start, 0, 0.0_f64);
    while one.now.since(start) < SPAN {
        let since = (one.now + STEP).since(last).as_secs_f64();
        let mut came = false;
        one.step(|| {
            came = true;
            (0.92 * since * MBIT * 1e6 / 8.0 / LEN as f64) as u64
        });
        if came {
            (last, reports) = (one.now, reports + 1);
        }
        highest = highest.max(one.rates().1);
    }
    println!("{reports} reports, highest rate {highest:.1} Mbit/s");
    assert!(reports >= 50);
    assert!(highest <= 1.25 * MBIT);
}

/// Packets that wait for longer do: otherwise a link's rate would never be found.
#[test]
fn packets_that_wait_for_longer_push_a_link() {
    let mut one = OneLink::new(0.2 * MBIT);
    let start = one.now;
    let mut pushed = 0.0_f64;
    while one.now.since(start) < SPAN {
        let (_, waiting) = one.sender.backlog();
        one.hand_over(100_u64.saturating_sub(waiting.get() / LEN));
        one.step(|| 0);
        let (proven, rate) = one.rates();
        pushed = pushed.max(rate / proven);
    }
    let (proven, _) = one.rates();
    println!("pushed by {pushed:.2}, proven {proven:.1} Mbit/s");
    assert!(pushed >= 1.5);
    assert!(proven >= 0.95 * MBIT);
}

/// Reports about packets before a pause arrive while the burst after it is sent. The first packets
/// of that burst have not waited since the pause began.
#[test]
fn a_burst_after_a_pause_has_not_waited_for_it() {
    let mut one = OneLink::new(MBIT);
    one.back = Duration::from_millis(85);
    let start = one.now;
    let (mut due, mut turn, mut highest) = (start, 0, 0.0_f64);
    while one.now.since(start) < SPAN {
        if one.now >= due {
            // 300 ms at nine tenths of the rate, then nothing for 40 ms, then 24 ms of the rate at
            // once.
            let (packets, micros) = match turn % 1201 {
                1199 => (1, 40_000),
                1200 => (104, 24_000),
                _ => (1, 250),
            };
            one.hand_over(packets);
            due = due + Duration::from_micros(micros);
            turn += 1;
        }
        one.step(|| 0);
        highest = highest.max(one.rates().1);
    }
    println!("highest rate {highest:.1} Mbit/s");
    assert!(turn > 2402, "two bursts and more: {turn}");
    assert!(highest <= 1.25 * MBIT);
}
