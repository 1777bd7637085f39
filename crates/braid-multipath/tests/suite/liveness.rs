//! Liveness: when a link becomes suspect, and how it returns.

use std::time::Duration;

use braid_core::{Bytes, Time};
use braid_multipath::estimate::{Demand, LinkEstimator, LinkReport};
use braid_multipath::liveness::{KEEPALIVE, Liveness, RX_SILENCE_TIMEOUT, Verdict};
use braid_multipath::{LinkId, PacketNumber, RelativeDelay, Stamp};

const LEN: Bytes = Bytes::new(100);

fn ms(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

/// A link with a round trip of 30 ms, whose packets arrive or do not.
struct Bench {
    link: LinkEstimator,
    live: Liveness,
    sent: u64,
    arrived: u64,
}

impl Bench {
    fn new() -> Bench {
        Bench {
            link: LinkEstimator::new(None),
            live: Liveness::new(ms(0)),
            sent: 0,
            arrived: 0,
        }
    }

    /// Sends a packet now. If it arrives, its report arrives now too (a round trip later).
    fn exchange(&mut self, at: u64, arrives: bool) {
        let number = self.link.handle_sent(ms(at), LEN, true);
        self.live.handle_sent(ms(at));
        self.sent += 1;
        if !arrives {
            return;
        }
        self.arrived += 1;
        let now = ms(at + 30);
        let report = LinkReport {
            link: LinkId(0),
            highest: number,
            echo: Stamp(at * 1_000),
            held: Duration::ZERO,
            received_at: ms(at + 15),
            packets: self.arrived,
            bytes: Bytes::new(self.arrived * 100),
            lost: self.sent - self.arrived,
            delay: RelativeDelay(15_000),
            jitter: Duration::ZERO,
            train: None,
        };
        assert_eq!(report.highest, PacketNumber(self.sent - 1));
        self.link.handle_report(now, &report, Demand::Met);
        let lost = self.sent - self.arrived;
        self.live
            .handle_progress(now, &self.link, self.arrived, lost);
    }

    fn settle(&mut self, until: u64) {
        (0..until)
            .step_by(50)
            .for_each(|at| self.exchange(at, true));
    }

    fn verdict(&mut self, at: u64) -> Verdict {
        self.live.handle_timeout(ms(at), &self.link);
        self.live.verdict()
    }

    /// Sends the due probes until `until`; they arrive or not. Returns when they were sent.
    fn probes(&mut self, from: u64, until: u64, arrive: bool) -> Vec<u64> {
        let mut at = Vec::new();
        for now in from..until {
            self.live.handle_timeout(ms(now), &self.link);
            if self.live.poll_probe(ms(now)) {
                at.push(now);
                self.exchange(now, arrive);
            }
        }
        at
    }
}

#[test]
fn silence_with_packets_in_flight_makes_a_link_suspect() {
    let mut bench = Bench::new();
    bench.settle(2_000);
    bench.exchange(2_000, false);
    assert_eq!(bench.verdict(2_074), Verdict::Active);
    assert_eq!(bench.live.poll_timeout(&bench.link), ms(2_075));
    assert_eq!(bench.verdict(2_075), Verdict::Suspect);
    assert_eq!(bench.live.poll_change(), Some(Verdict::Suspect));
    assert_eq!(bench.live.poll_change(), None);
    assert_eq!(bench.live.share(), 0.0);
}

#[test]
fn silence_without_packets_in_flight_means_nothing() {
    let mut bench = Bench::new();
    bench.settle(2_000);
    assert_eq!(bench.verdict(19_000), Verdict::Active);
    // Packets that elicit no report do not count as in flight.
    bench.link.handle_sent(ms(19_000), LEN, false);
    assert_eq!(bench.verdict(19_500), Verdict::Active);
}

#[test]
fn probes_of_a_suspect_link_become_rare() {
    let mut bench = Bench::new();
    bench.settle(1_000);
    bench.exchange(1_000, false);
    bench.verdict(1_200);
    let at = bench.probes(1_200, 120_000, false);
    assert!(at[0] <= 1_250);
    let gaps: Vec<_> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.windows(2).all(|pair| pair[0] <= pair[1]), "{gaps:?}");
    assert_eq!(gaps.last(), Some(&10_000));
    assert!(at.len() < 50);
}

#[test]
fn a_short_silence_ends_with_the_first_sign() {
    let mut bench = Bench::new();
    bench.settle(1_000);
    bench.exchange(1_000, false);
    bench.verdict(1_100);
    bench.exchange(1_200, true);
    assert_eq!(bench.live.verdict(), Verdict::Returning(0.5));
    assert_eq!(bench.verdict(1_400), Verdict::Active);
}

#[test]
fn a_long_silence_ends_after_a_few_signs_with_a_small_share() {
    let mut bench = Bench::new();
    bench.settle(1_000);
    bench.exchange(1_000, false);
    bench.verdict(1_100);
    for at in [9_000, 9_100] {
        bench.exchange(at, true);
        assert_eq!(bench.live.verdict(), Verdict::Suspect);
    }
    bench.exchange(9_200, true);
    assert_eq!(bench.live.verdict(), Verdict::Returning(0.1));
    let shares: Vec<_> = (9_250..9_900)
        .step_by(25)
        .map(|at| {
            bench.exchange(at, true);
            bench.verdict(at + 30);
            bench.live.share()
        })
        .collect();
    assert!(
        shares.windows(2).all(|pair| pair[0] <= pair[1]),
        "{shares:?}"
    );
    assert_eq!(bench.live.verdict(), Verdict::Active);
}

#[test]
fn signs_of_life_between_losses_do_not_end_a_silence() {
    let mut bench = Bench::new();
    bench.settle(1_000);
    bench.exchange(1_000, false);
    bench.verdict(1_100);
    let mut at = 9_000;
    for arrives in [true, true, false].repeat(5) {
        bench.exchange(at, arrives);
        assert_eq!(bench.live.verdict(), Verdict::Suspect);
        at += 100;
    }
    for at in [at, at + 100, at + 200] {
        bench.exchange(at, true);
    }
    assert_eq!(bench.live.verdict(), Verdict::Returning(0.1));
}

/// A scheduler's stall, or a queue: however long, nothing was lost, so no signs of life are
/// required.
#[test]
fn a_silence_after_which_everything_arrives_was_a_stall() {
    let mut bench = Bench::new();
    bench.settle(1_000);
    for at in [1_000, 12_000, 23_000] {
        bench.link.handle_sent(ms(at), LEN, true);
        bench.live.handle_sent(ms(at));
        assert_eq!(bench.verdict(at + 200), Verdict::Suspect);
        // The packet arrives late, and the next one with it.
        bench.sent += 1;
        bench.arrived += 1;
        bench.exchange(at + 9_000, true);
        assert_eq!(bench.live.verdict(), Verdict::Active);
    }
    // None of them was a failure: after the first one three signs are required.
    bench.exchange(33_000, false);
    assert_eq!(bench.verdict(33_200), Verdict::Suspect);
    for at in [34_000, 34_100, 34_200] {
        assert_eq!(bench.live.verdict(), Verdict::Suspect);
        bench.exchange(at, true);
    }
    assert_eq!(bench.live.verdict(), Verdict::Returning(0.1));
}

#[test]
fn a_link_that_keeps_failing_has_to_show_more() {
    let signs = |failures: u64| {
        let mut bench = Bench::new();
        bench.settle(1_000);
        let mut at = 1_000;
        for _ in 0..failures {
            bench.exchange(at, false);
            bench.verdict(at + 200);
            at += 1_000;
            let mut signs = 0;
            while bench.live.verdict() == Verdict::Suspect {
                bench.exchange(at, true);
                at += 50;
                signs += 1;
            }
            if failures == 1 {
                return signs;
            }
            for _ in 0..20 {
                bench.exchange(at, true);
                bench.verdict(at + 30);
                at += 50;
            }
            if signs > 5 {
                return signs;
            }
        }
        0
    };
    assert_eq!(signs(1), 3);
    assert_eq!(signs(3), 6);
}

#[test]
fn a_link_that_loses_a_third_is_quarantined_until_it_does_not() {
    let mut bench = Bench::new();
    bench.settle(1_000);
    let mut steps = 0;
    while bench.live.verdict() == Verdict::Active && steps < 600 {
        bench.exchange(1_000 + steps * 10, steps % 5 > 1);
        steps += 1;
    }
    assert_eq!(bench.live.verdict(), Verdict::Quarantined);
    // None of these probes arrives: nothing changes, and they become rare.
    let silent = bench.probes(10_000, 20_000, false);
    assert_eq!(bench.live.verdict(), Verdict::Quarantined);
    assert!((10..=25).contains(&silent.len()), "{}", silent.len());
    // Then all arrive: they become frequent, and the link is back within four seconds.
    let answered = bench.probes(20_000, 24_000, true);
    assert!((20..=60).contains(&answered.len()), "{}", answered.len());
    assert_eq!(bench.live.verdict(), Verdict::Active);
}

#[test]
fn a_quarantined_link_of_which_absurd_things_are_told_is_judged_all_the_same() {
    let mut bench = Bench::new();
    bench.settle(1_000);
    let lossy = (0..600).map(|step| (1_000 + step * 10, step % 5 > 1));
    for (at, arrives) in lossy {
        if bench.live.verdict() == Verdict::Active {
            bench.exchange(at, arrives);
        }
    }
    assert_eq!(bench.live.verdict(), Verdict::Quarantined);
    let most = u64::MAX;
    // As many lost as arrived, each count near overflow of their sum, and again from zero.
    for (came, lost) in [(most, most), (0, 0), (most, most), (most, most)] {
        let now = ms(20_000);
        bench.live.handle_progress(now, &bench.link, came, lost);
        assert_eq!(bench.live.verdict(), Verdict::Quarantined);
    }
}

#[test]
fn an_idle_link_is_sent_a_packet_every_keepalive() {
    let mut bench = Bench::new();
    bench.settle(1_000);
    let at = bench.probes(1_000, 200_000, true);
    let every = KEEPALIVE.as_millis() as u64;
    assert!(
        at.windows(2).all(|pair| pair[1] - pair[0] == every),
        "{at:?}"
    );
}

#[test]
fn a_link_that_is_heard_no_more_while_others_are_is_asked_once_and_judged() {
    let silence = RX_SILENCE_TIMEOUT.as_millis() as u64;
    let mut bench = Bench::new();
    bench.settle(1_000);
    assert!(
        !bench.live.poll_rx_probe(ms(1_000), ms(1_000)),
        "never answered"
    );
    bench.live.handle_received(ms(1_000));

    let asks = |bench: &mut Bench, from: u64, until: u64| -> Vec<u64> {
        (from..until)
            .filter(|at| bench.live.poll_rx_probe(ms(*at), ms(*at)))
            .collect()
    };
    assert_eq!(asks(&mut bench, 1_000, 60_000), [1_001 + silence]);
    // It has not answered, which makes it suspect like any unanswered packet.
    bench.exchange(60_000, false);
    assert_eq!(bench.verdict(60_500), Verdict::Suspect);

    let mut bench = Bench::new();
    bench.settle(1_000);
    bench.live.handle_received(ms(1_000));
    // Nothing arrived over others either: nobody sends.
    assert!(!bench.live.poll_rx_probe(ms(9_000), ms(1_000)));
    // Alternating links: at most one probe a second.
    let mut asked = Vec::new();
    for turn in 0..10 {
        let from = 1_000 + turn * 400;
        bench.live.handle_received(ms(from));
        asked.extend(asks(&mut bench, from, from + 400));
    }
    assert_eq!(asked.len(), 4, "{asked:?}");
}
