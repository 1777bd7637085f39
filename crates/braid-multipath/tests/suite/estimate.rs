//! Estimates of a link: arrivals compared with a simple model, and the rate controller on fluid
//! links.

use std::collections::BTreeSet;
use std::time::Duration;

use braid_core::{Bytes, Rate, Time};
use braid_multipath::estimate::{
    Arrival, Arrivals, Capacity, Demand, LinkEstimator, LinkReport, LossEstimator, Queue,
    RECENT_MIN_WINDOW, RecentMin, ReorderExtent, Rtt, Sample, SentAt,
};
use braid_multipath::{Incoming, LinkId, PacketNumber, RelativeDelay, Stamp};
use proptest::prelude::*;

const LEN: Bytes = Bytes::new(1000);

fn ms(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

fn us(us: u64) -> Time {
    Time::from_nanos(us * 1_000)
}

fn arrivals() -> Arrivals {
    Arrivals::new(LinkId(0))
}

/// A packet stamped 10 times its number, arriving at `at` µs.
fn packet(arrivals: &mut Arrivals, at: u64, number: u64) -> Arrival {
    packet_read_at(arrivals, (at, at), number)
}

/// The same, arriving and being read at times in µs.
fn packet_read_at(arrivals: &mut Arrivals, (arrived, read): (u64, u64), number: u64) -> Arrival {
    let packet = Incoming {
        number: PacketNumber(number),
        stamp: Stamp(number * 10),
        arrived: us(arrived),
        len: LEN,
        elicits: true,
    };
    arrivals.handle_packet(us(read), &packet)
}

#[test]
fn a_gap_of_a_link_that_keeps_order_is_a_loss_at_once() {
    let mut arrivals = arrivals();
    packet(&mut arrivals, 0, 0);
    packet(&mut arrivals, 10, 3);
    assert_eq!(arrivals.lost(), 2);
    assert_eq!(arrivals.settled(), Some(Stamp(30)));
    let range = arrivals.poll_lost().expect("a range");
    assert_eq!((range.first.0, range.last.0, range.count()), (1, 2, 2));
    assert_eq!(arrivals.poll_lost(), None);
}

#[test]
fn a_link_that_reorders_is_learned_and_then_waited_for() {
    let mut arrivals = arrivals();
    packet(&mut arrivals, 0, 0);
    packet(&mut arrivals, 1_000, 2);
    assert_eq!(arrivals.lost(), 1);
    assert_eq!(packet(&mut arrivals, 4_000, 1), Arrival::Late);
    assert_eq!((arrivals.lost(), arrivals.late()), (0, 1));
    assert!(arrivals.extent(us(4_000)) >= Duration::from_millis(3));
    // The next gap is open for as long, and the link has not settled past it.
    packet(&mut arrivals, 5_000, 4);
    assert_eq!((arrivals.lost(), arrivals.open()), (0, 1));
    assert_eq!(arrivals.settled(), Some(Stamp(20)));
    assert_eq!(packet(&mut arrivals, 7_000, 3), Arrival::Reordered);
    assert_eq!(arrivals.settled(), Some(Stamp(40)));
    // A packet that does not arrive is lost when the extent has passed.
    packet(&mut arrivals, 8_000, 6);
    let due = arrivals.poll_timeout().expect("an open gap");
    arrivals.handle_timeout(due);
    assert_eq!((arrivals.lost(), arrivals.open()), (1, 0));
    assert_eq!(arrivals.settled(), Some(Stamp(60)));
}

#[test]
fn a_backlog_shows_the_link_and_not_how_late_it_was_read() {
    let mut arrivals = arrivals();
    for number in 0..100 {
        let arrived = 15_000 + number * 10;
        packet_read_at(&mut arrivals, (arrived, 115_000), number);
    }
    let report = arrivals.report(us(116_000)).expect("packets came");
    assert_eq!(report.delay, RelativeDelay(15_000));
    assert_eq!(report.jitter, Duration::ZERO);
    assert_eq!(report.received_at, us(15_990));
    let train = report.train.expect("they were sent together");
    assert_eq!(train, Rate::from_bits_per_sec(800_000_000));
}

#[test]
fn a_gap_is_waited_for_by_when_packets_arrived() {
    let mut arrivals = arrivals();
    packet(&mut arrivals, 0, 0);
    packet(&mut arrivals, 1_000, 2);
    packet(&mut arrivals, 4_000, 1);
    let extent = arrivals.extent(us(4_000));
    // The second is read much later than the first, but arrived soon after it.
    packet(&mut arrivals, 10_000, 4);
    assert_eq!(
        packet_read_at(&mut arrivals, (12_000, 90_000), 3),
        Arrival::Reordered
    );
    assert_eq!(arrivals.extent(us(90_000)), extent);
    // As nothing more is read, a gap is given up by the reader's clock.
    packet_read_at(&mut arrivals, (13_000, 91_000), 6);
    assert_eq!(arrivals.poll_timeout(), Some(us(91_000) + extent));
    // Of a backlog that is read at once nothing was overdue, whenever it arrived.
    let filler = packet_read_at(&mut arrivals, (40_000, 91_500), 5);
    assert_eq!(filler, Arrival::Reordered);
    assert!(arrivals.extent(us(91_500)) >= Duration::from_millis(27));
}

/// A packet from the middle of a gap makes two gaps of it.
#[test]
fn the_gaps_remembered_are_bounded_however_they_are_filled() {
    let mut arrivals = arrivals();
    packet(&mut arrivals, 0, 0);
    packet(&mut arrivals, 1_000, 2_001);
    for number in (2..2_000).step_by(2) {
        assert_eq!(packet(&mut arrivals, 1_000, number), Arrival::Late);
    }
    assert_eq!(packet(&mut arrivals, 1_000, 1_999), Arrival::Late);
    assert_eq!(packet(&mut arrivals, 1_000, 3), Arrival::Duplicate);
    // The same on a link that is known to reorder: gaps are open first, then given up.
    packet(&mut arrivals, 2_000, 2_003);
    packet(&mut arrivals, 6_000, 2_002);
    packet(&mut arrivals, 6_000, 5_001);
    assert_eq!(arrivals.open(), 2_997);
    for number in (2_005..5_000).step_by(2) {
        assert_eq!(packet(&mut arrivals, 6_000, number), Arrival::Reordered);
    }
    assert_eq!(packet(&mut arrivals, 6_000, 4_998), Arrival::Reordered);
    assert!(arrivals.open() <= 257, "{}", arrivals.open());
    assert_eq!(packet(&mut arrivals, 6_000, 2_004), Arrival::Duplicate);
}

#[test]
fn an_extent_is_forgotten_slowly() {
    let mut extent = ReorderExtent::default();
    assert_eq!(extent.extent(ms(0)), Duration::ZERO);
    extent.handle_late(ms(0), Duration::from_millis(8));
    let learned = extent.extent(ms(1));
    assert!(learned >= Duration::from_millis(10));
    assert_eq!(extent.extent(ms(4_999)), learned);
    assert_eq!(extent.extent(ms(5_000)), learned * 3 / 4);
    assert_eq!(extent.extent(ms(200_000)), Duration::ZERO);
    // Packets later than any wait do not count as reordered.
    extent.handle_late(ms(200_000), Duration::from_millis(400));
    assert_eq!(extent.extent(ms(200_000)), Duration::ZERO);
}

proptest! {
    /// For any order of arrival, losses and duplicates, every number is new once, and in the end
    /// each has arrived or is lost.
    #[test]
    fn arrivals_agree_with_a_set(mut numbers in proptest::collection::vec(0u64..200, 1..300), spread in 0usize..12) {
        // Mostly ascending, each moved by at most `spread`.
        numbers.sort_unstable();
        for i in 0..numbers.len() {
            let j = (i + (numbers[i] as usize * 7) % (spread + 1)).min(numbers.len() - 1);
            numbers.swap(i, j);
        }
        let mut arrivals = arrivals();
        let mut model = BTreeSet::new();
        for (index, &number) in numbers.iter().enumerate() {
            let arrival = packet(&mut arrivals, index as u64 * 100, number);
            prop_assert_eq!(arrival == Arrival::Duplicate, !model.insert(number));
            let highest = model.last().copied().unwrap_or(0);
            let here = model.len() as u64;
            prop_assert_eq!(here + arrivals.lost() + arrivals.open(), highest + 1);
            let settled = arrivals.settled();
            prop_assert!(arrivals.open() > 0 || settled.is_some());
        }
        arrivals.handle_timeout(ms(10_000));
        prop_assert_eq!(arrivals.open(), 0);
        let report = arrivals.report(ms(10_000)).expect("something came");
        prop_assert_eq!(report.packets, model.len() as u64);
        prop_assert_eq!(report.lost, report.highest.0 + 1 - report.packets);
        // Each lost number was returned, also those that arrived late.
        let mut told = BTreeSet::new();
        while let Some(range) = arrivals.poll_lost() {
            told.extend(range.first.0..=range.last.0);
        }
        for number in 0..=report.highest.0 {
            prop_assert!(model.contains(&number) || told.contains(&number));
        }
    }
}

#[test]
fn reports_are_due_by_time_or_by_packets() {
    let mut arrivals = arrivals();
    assert!(!arrivals.is_report_due(ms(100)));
    packet(&mut arrivals, 100_000, 0);
    assert!(arrivals.is_report_due(ms(100)));
    arrivals.report(ms(100));
    assert!(!arrivals.is_report_due(ms(1_000)));
    for number in 1..64 {
        packet(&mut arrivals, 106_000, number);
    }
    assert!(!arrivals.is_report_due(ms(106)));
    packet(&mut arrivals, 106_000, 64);
    assert!(arrivals.is_report_due(ms(106)));
}

#[test]
fn a_report_tells_the_lowest_delay_of_its_interval() {
    let mut arrivals = arrivals();
    for (at, number) in [(20_000, 0), (9_000, 1), (30_000, 2)] {
        packet(&mut arrivals, at, number);
    }
    let report = arrivals.report(us(32_000)).expect("packets");
    assert_eq!(report.delay, RelativeDelay(9_000 - 10));
    assert_eq!(report.echo, Stamp(20));
    assert_eq!(report.held, Duration::from_millis(2));
    packet(&mut arrivals, 40_000, 3);
    let report = arrivals.report(us(40_000)).expect("packets");
    assert_eq!(report.delay, RelativeDelay(40_000 - 30));
}

#[test]
fn jitter_is_the_mean_difference_of_neighbours() {
    let mut arrivals = arrivals();
    assert_eq!(arrivals.jitter(), Duration::ZERO);
    // 1000 and 1400 µs in turn, so that neighbours differ by 400.
    for number in 0..40 {
        packet(
            &mut arrivals,
            1_000 + 10 * number + 400 * (number % 2),
            number,
        );
    }
    let told = arrivals.report(ms(2)).expect("packets").jitter;
    assert_eq!(told.as_micros(), 400);
    // A steady delay brings it down by a sixteenth a packet: 400 · (15/16)¹⁶ is 142.
    for number in 40..56 {
        packet(&mut arrivals, 1_400 + 10 * number, number);
    }
    assert_eq!(arrivals.jitter().as_micros(), 142);
}

#[test]
fn the_base_is_the_lowest_of_the_window() {
    let mut base = RecentMin::<_>::default();
    base.handle_value(ms(0), RelativeDelay(-500));
    base.handle_value(ms(3_000), RelativeDelay(700));
    assert_eq!(base.min(ms(19_000)), Some(RelativeDelay(-500)));
    assert_eq!(base.min(ms(21_000)), Some(RelativeDelay(700)));
    assert_eq!(base.min(ms(3_000) + RECENT_MIN_WINDOW), None);
}

proptest! {
    #[test]
    fn the_lowest_is_that_of_all_values_of_the_window(
        values in proptest::collection::vec((0u64..3_000, 0u32..100), 1..60),
        later in 0u64..30_000,
    ) {
        let mut recent = RecentMin::<_>::default();
        let (mut now, mut all) = (0, Vec::new());
        for (passed, value) in values {
            now += passed;
            recent.handle_value(ms(now), value);
            all.push((now / 1_000, value));
            for at in [now, now + later] {
                let within = all.iter().filter(|(of, _)| at / 1_000 - of < 20);
                prop_assert_eq!(recent.min(ms(at)), within.map(|(_, value)| *value).min());
            }
        }
    }
}

#[test]
fn round_trips_are_smoothed_as_rfc_6298_has_it() {
    let mut rtt = Rtt::default();
    assert_eq!(rtt.rto(), Duration::from_millis(200 + 4 * 100));
    rtt.handle_sample(ms(0), Duration::from_millis(40));
    assert_eq!(rtt.smoothed(), Duration::from_millis(40));
    assert_eq!(rtt.variation(), Duration::from_millis(20));
    assert_eq!(rtt.rto(), Duration::from_millis(40 + 4 * 20));
    rtt.handle_sample(ms(1), Duration::from_millis(80));
    // RTTVAR = 3/4 · 20 + 1/4 · |40 − 80|; SRTT = 7/8 · 40 + 1/8 · 80.
    assert_eq!(rtt.variation(), Duration::from_millis(25));
    assert_eq!(rtt.smoothed(), Duration::from_millis(45));
    assert_eq!(rtt.min(), Duration::from_millis(40));
    // The lowest is of the last 20 s, and of what came since answers may take another way.
    rtt.handle_sample(ms(20_000), Duration::from_millis(90));
    assert_eq!(rtt.min(), Duration::from_millis(90));
    rtt.forget_min();
    rtt.handle_sample(ms(20_001), Duration::from_millis(95));
    assert_eq!(rtt.min(), Duration::from_millis(95));
}

#[test]
fn loss_is_averaged_by_packets_and_told_apart() {
    let mut loss = LossEstimator::default();
    loss.handle_loss(ms(0), 10, 90, false);
    // A report about one packet hardly counts.
    loss.handle_loss(ms(1), 1, 0, true);
    assert!(
        (loss.slow() - 11.0 / 101.0).abs() < 0.001,
        "{}",
        loss.slow()
    );
    assert_eq!((loss.random(), loss.congestive()), (10, 1));
    for step in 1..20 {
        loss.handle_loss(ms(step * 50), 0, 100, false);
    }
    assert!(loss.fast() < 0.001);
    assert!(loss.slow() > 0.003);
}

#[test]
fn totals_of_absurd_reports_end_at_the_largest_number() {
    let mut loss = LossEstimator::default();
    for step in 0..4 {
        loss.handle_loss(ms(step), u64::MAX / 2, u64::MAX / 2, step % 2 == 0);
    }
    assert_eq!(loss.packets(), u64::MAX);
    assert_eq!(
        (loss.random(), loss.congestive()),
        (u64::MAX - 1, u64::MAX - 1)
    );
}

/// A fluid link with a queue, fed at the controller's rate, one report every 25 ms.
struct Fluid {
    mbit: f64,
    /// Drop-tail limit.
    queue_s: f64,
    random_loss: f64,
    /// Persistent delay: present while anything is sent, without a queue.
    standing_s: f64,
    backlog: f64,
    /// In bytes.
    sent: f64,
    capacity: Capacity,
    now: u64,
    log: Vec<(f64, f64, f64)>,
}

impl Fluid {
    fn new(mbit: f64, queue_s: f64, random_loss: f64) -> Fluid {
        Fluid {
            mbit,
            queue_s,
            random_loss,
            standing_s: 0.0,
            backlog: 0.0,
            sent: 0.0,
            capacity: Capacity::default(),
            now: 0,
            log: Vec::new(),
        }
    }

    /// Runs for `ms_long` with a demand of at most `demand` Mbit/s; logs each step's delivered
    /// rate.
    fn run(&mut self, ms_long: u64, demand: f64) {
        for _ in 0..ms_long / 25 {
            let step = 0.025;
            let allowed = self.capacity.rate().bits_per_sec() as f64 / 1e6;
            let offered = allowed.min(demand);
            self.backlog += offered * step;
            let served = self.backlog.min(self.mbit * step);
            self.backlog -= served;
            let over = (self.backlog - self.mbit * self.queue_s).max(0.0);
            self.backlog -= over;
            let delivered = served / step * (1.0 - self.random_loss);
            let packets = |mbit: f64| (mbit * 1e6 / 8.0 / 1500.0) as u64;
            let lost = packets(over + served * self.random_loss);
            self.now += 25;
            let queue = Queue {
                delay: Duration::from_secs_f64(self.backlog / self.mbit + self.standing_s),
                jitter: Duration::ZERO,
                rtt_min: Duration::from_millis(30),
                sent: Some(SentAt {
                    at: ms(self.now),
                    before: Bytes::new(self.sent as u64),
                }),
            };
            self.sent += offered * 1e6 / 8.0 * step;
            let backlog = if demand > allowed {
                Demand::Backlog
            } else {
                Demand::Met
            };
            self.capacity.handle_queue(ms(self.now), queue, backlog);
            let sample = Sample {
                delivered: Rate::from_bits_per_sec((delivered * 1e6) as u64),
                offered: Rate::from_bits_per_sec((offered * 1e6) as u64),
                arrived: packets(delivered * step),
                lost,
                fresh: (packets(delivered * step), lost),
                average: lost as f64 / (lost + packets(delivered * step)).max(1) as f64,
            };
            self.capacity.handle_sample(ms(self.now), &sample);
            self.log
                .push((delivered, self.backlog / self.mbit, sample.loss()));
        }
    }

    /// Means over the last `ms_long`: delivered Mbit/s, queue in ms, loss.
    fn mean(&self, ms_long: u64) -> (f64, f64, f64) {
        let last = &self.log[self.log.len() - (ms_long / 25) as usize..];
        let n = last.len() as f64;
        let sum = last
            .iter()
            .fold((0.0, 0.0, 0.0), |s, l| (s.0 + l.0, s.1 + l.1, s.2 + l.2));
        (sum.0 / n, sum.1 / n * 1e3, sum.2 / n)
    }
}

#[test]
fn the_rate_settles_at_the_links_with_a_small_queue() {
    for mbit in [2.0, 20.0, 50.0, 300.0] {
        let mut link = Fluid::new(mbit, 0.3, 0.0);
        link.run(1_500, 1e9);
        link.run(10_000, 1e9);
        let (delivered, queue, _) = link.mean(10_000);
        assert!(delivered > 0.985 * mbit, "{mbit}: {delivered}");
        assert!(queue < 15.0, "{mbit}: {queue} ms");
    }
}

#[test]
fn a_link_that_loses_three_quarters_is_followed_within_half_a_second() {
    let mut link = Fluid::new(50.0, 0.3, 0.0);
    link.run(5_000, 1e9);
    link.mbit = 12.5;
    link.run(500, 1e9);
    assert!(link.capacity.proven() < Rate::from_bits_per_sec(15_000_000));
    link.run(1_000, 1e9);
    assert!(link.mean(500).1 < 20.0, "queue {:?}", link.mean(500));
    link.mbit = 50.0;
    link.run(600, 1e9);
    assert!(link.mean(50).0 > 45.0, "{:?}", link.mean(50));
}

#[test]
fn delay_that_stands_without_a_queue_is_no_reason_to_slow_down() {
    let mut link = Fluid::new(50.0, 0.3, 0.0);
    link.standing_s = 0.03;
    link.run(5_000, 1e9);
    let (delivered, queue, _) = link.mean(2_000);
    assert!(delivered > 0.95 * 50.0, "{delivered}");
    assert!(queue < 15.0, "{queue} ms");
    let standing = link.capacity.persistent_delay().as_secs_f64();
    assert!((0.025..0.04).contains(&standing), "{standing} s");
    // The persistent delay ends: delay above the base is a queue again.
    link.standing_s = 0.0;
    link.run(20_000, 1e9);
    let (delivered, queue, _) = link.mean(2_000);
    assert!(delivered > 0.95 * 50.0, "{delivered}");
    assert!(queue < 20.0, "{queue} ms");
}

#[test]
fn what_comes_while_next_to_nothing_is_sent_is_nobodys_rate() {
    // Loss without a queue makes the controller probe; then the link is in quarantine and only
    // probed.
    let mut link = Fluid::new(50.0, 0.3, 0.3);
    link.run(1_000, 1e9);
    link.random_loss = 0.0;
    link.run(5_000, 0.01);
    assert!(link.capacity.proven() > Rate::from_bits_per_sec(4_000_000));
}

#[test]
fn without_demand_nothing_decays_and_nothing_is_probed() {
    let mut link = Fluid::new(50.0, 0.3, 0.0);
    link.run(5_000, 1e9);
    let before = link.capacity.proven();
    link.run(20_000, 3.0);
    assert_eq!(link.capacity.proven(), before);
    assert!(link.capacity.rate().bits_per_sec() as f64 <= 1.25 * before.bits_per_sec() as f64);
}

/// A token bucket passes its burst as fast as the wire does, and a flow that paces itself, such as
/// BBR, never sends such a link what it seems to carry.
#[test]
fn a_train_is_no_proof() {
    let mbit = |mbit: u64| Rate::from_bits_per_sec(mbit * 1_000_000);
    let proven = |demand: f64| {
        let mut link = Fluid::new(50.0, 0.3, 0.0);
        link.capacity.handle_train(mbit(600));
        link.run(2_000, demand);
        link.capacity.proven()
    };
    // A queue that grows, and none.
    assert!((mbit(45)..mbit(60)).contains(&proven(51.0)));
    assert!(proven(49.0) > mbit(500));
    // Somebody else's queue, beside a flow that is slower than any link is believed to be.
    let mut link = Fluid::new(50.0, 0.3, 0.0);
    link.capacity.handle_train(mbit(600));
    link.standing_s = 0.05;
    link.run(2_000, 3.0);
    assert!(link.capacity.proven() > mbit(500));
}

/// Returns the ratio of the send rate to the proven rate after `reports` reports of a loaded link
/// without a queue. `last` changes the last report.
fn probed(reports: u32, last: impl Fn(&mut Queue, &mut Demand, &mut f64)) -> f64 {
    let mut capacity = Capacity::default();
    for report in 1..=reports {
        let mut queue = Queue {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            rtt_min: Duration::from_millis(30),
            sent: None,
        };
        let (mut demand, mut offered) = (Demand::Backlog, 1.0);
        if report == reports {
            last(&mut queue, &mut demand, &mut offered);
        }
        handle_report(&mut capacity, report, queue, demand, offered);
    }
    gain(&capacity)
}

/// The `number`th report of a link that delivers all it is sent: `offered` times its proven rate.
fn handle_report(capacity: &mut Capacity, number: u32, queue: Queue, demand: Demand, offered: f64) {
    let now = ms(25 * u64::from(number));
    // The sample says if the link is loaded, and the report behind it counts accordingly.
    let proven = capacity.proven().bits_per_sec() as f64;
    let rate = Rate::from_bits_per_sec((offered * proven) as u64);
    let sample = Sample {
        delivered: rate,
        offered: rate,
        arrived: 10,
        lost: 0,
        fresh: (10, 0),
        average: 0.0,
    };
    capacity.handle_sample(now, &sample);
    capacity.handle_queue(now, queue, demand);
}

/// The ratio of the send rate to the proven rate.
fn gain(capacity: &Capacity) -> f64 {
    capacity.rate().bits_per_sec() as f64 / capacity.proven().bits_per_sec() as f64
}

/// Returns the gain after reports of these delays, in ms.
fn after_delays(delays: &[u64], demand: Demand, offered: f64) -> f64 {
    let mut capacity = Capacity::default();
    for (number, delay) in (1..).zip(delays) {
        let queue = Queue {
            delay: Duration::from_millis(*delay),
            jitter: Duration::ZERO,
            rtt_min: Duration::from_millis(30),
            sent: None,
        };
        handle_report(&mut capacity, number, queue, demand, offered);
    }
    gain(&capacity)
}

#[test]
fn a_link_that_is_held_back_is_drained_if_it_delivers_ever_more_although_it_seems_to_queue() {
    let is_drained = |gain: f64| gain < 0.75;
    let (growing, steady) = (1.002, 1.0);
    // 6 ms are no queue that lowers the rate, and too much for a higher one.
    assert!(is_drained(after_delays(&[6; 25], Demand::Backlog, growing)));
    assert!(!is_drained(after_delays(&[6; 25], Demand::Backlog, steady)));
    assert!(
        !is_drained(after_delays(&[6; 15], Demand::Backlog, growing)),
        "for half a second"
    );
    assert!(!is_drained(after_delays(&[6; 25], Demand::Met, growing)));
    assert!(!is_drained(after_delays(
        &[3; 25],
        Demand::Backlog,
        growing
    )));
}

#[test]
fn a_link_whose_delay_scatters_is_sent_more_up_to_a_longer_delay() {
    let scattering = [0, 30, 0, 30, 0, 30, 0, 30, 0, 30];
    let then = |delay| [&scattering[..], &[delay; 4]].concat();
    let gain = |delay| after_delays(&then(delay), Demand::Backlog, 1.0);
    assert!(gain(15) >= 2.0, "{}", gain(15));
    assert!(gain(25) < 1.5, "{}", gain(25));
    // The same delays on a quiet link.
    assert!(after_delays(&[15; 14], Demand::Backlog, 1.0) < 1.5);
}

#[test]
fn a_link_is_sent_more_than_it_has_proven_only_on_demand_and_without_a_queue() {
    let more = |factor: f64| factor >= 1.5;
    assert!(!more(probed(1, |_, _, _| ())));
    assert!((1.5..1.6).contains(&probed(2, |_, _, _| ())));
    assert!((1.5..1.6).contains(&probed(3, |_, _, _| ())));
    assert!((2.0..2.1).contains(&probed(4, |_, _, _| ())));
    // Every packet could be sent; a queue of most of the target; less was sent than allowed.
    assert!(!more(probed(9, |_, demand, _| *demand = Demand::Met)));
    assert!(!more(
        probed(9, |queue, _, _| queue.delay = Duration::from_millis(7))
    ));
    assert!(!more(probed(9, |_, _, offered| *offered = 0.3)));
}

#[test]
fn random_loss_does_not_slow_a_link_down() {
    for loss in [0.02, 0.05] {
        let mut link = Fluid::new(50.0, 0.3, loss);
        link.run(2_000, 1e9);
        link.run(20_000, 1e9);
        let (delivered, queue, _) = link.mean(20_000);
        assert!(
            delivered > 0.97 * 50.0 * (1.0 - loss),
            "{loss}: {delivered}"
        );
        assert!(queue < 20.0, "{loss}: {queue} ms");
    }
}

#[test]
fn a_policer_is_not_pushed() {
    // No queue at all: everything above the rate is lost, and the delay never shows it.
    let mut link = Fluid::new(20.0, 0.0, 0.0);
    link.run(3_000, 1e9);
    link.run(20_000, 1e9);
    let (delivered, _, lost) = link.mean(20_000);
    assert!(delivered > 0.85 * 20.0, "{delivered}");
    assert!(lost < 0.03, "{lost}");
}

#[test]
fn a_report_that_cannot_be_ours_changes_nothing() {
    let mut link = LinkEstimator::new(None);
    link.handle_sent(ms(0), LEN, true);
    let report = LinkReport {
        link: LinkId(0),
        highest: PacketNumber(1),
        echo: Stamp(0),
        held: Duration::ZERO,
        received_at: ms(10),
        packets: 2,
        bytes: Bytes::new(2000),
        lost: 0,
        delay: RelativeDelay(0),
        jitter: Duration::ZERO,
        train: None,
    };
    assert!(!link.handle_report(ms(20), &report, Demand::Met));
    assert!(!link.rtt().is_known());
    let ours = LinkReport {
        highest: PacketNumber(0),
        ..report
    };
    assert!(link.handle_report(ms(20), &ours, Demand::Met));
    // The same over another link: nothing new.
    assert!(!link.handle_report(ms(30), &ours, Demand::Met));
    assert_eq!(link.rtt().min(), Duration::from_millis(20));
}

#[test]
fn in_flight_is_what_was_sent_after_the_highest_that_arrived() {
    let mut link = LinkEstimator::new(None);
    for at in 0..10 {
        link.handle_sent(ms(at), LEN, true);
    }
    assert_eq!(link.in_flight(), Bytes::new(10_000));
    assert_eq!(link.waiting_since(), Some(ms(0)));
    let report = LinkReport {
        link: LinkId(0),
        highest: PacketNumber(6),
        echo: Stamp(6_000),
        held: Duration::from_millis(1),
        received_at: ms(100),
        packets: 6,
        bytes: Bytes::new(6000),
        lost: 1,
        delay: RelativeDelay(0),
        jitter: Duration::ZERO,
        train: None,
    };
    link.handle_report(ms(20), &report, Demand::Met);
    assert_eq!(link.in_flight(), Bytes::new(3_000));
    assert_eq!(link.waiting_since(), Some(ms(7)));
    assert_eq!(link.rtt().min(), Duration::from_millis(13));
}
