//! Properties of a link, over random configurations and traffic in virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use braid_core::{Bytes, Rate, Share};
use braid_emulate::config::Aqm;
use braid_emulate::delay::{Delay, Distribution};
use braid_emulate::queue::Limit;
use braid_emulate::rate::Speed;
use braid_emulate::trace::{OPPORTUNITY_BYTES, Trace};
use braid_emulate::{Config, Fate, Link, Output, Time};
use proptest::collection::vec;
use proptest::prelude::*;

/// Time since the previous packet, and length of this one.
type Arrival = (Duration, u32);

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    // Bursts, steady streams and pauses.
    let gap = prop_oneof![3 => Just(0u64), 5 => 0u64..200_000, 1 => 0u64..50_000_000];
    vec((gap.prop_map(Duration::from_nanos), 60u32..=1514), 1..400)
}

fn rate() -> impl Strategy<Value = Rate> {
    prop_oneof![100_000u64..1_000_000, 1_000_000u64..300_000_000].prop_map(Rate::from_bits_per_sec)
}

fn speed() -> impl Strategy<Value = Speed> {
    prop_oneof![
        1 => Just(Speed::Unlimited),
        4 => rate().prop_map(Speed::Fixed),
        2 => trace().prop_map(Speed::Trace),
    ]
}

fn trace() -> impl Strategy<Value = Arc<Trace>> {
    let millis = vec(0u64..5, 1..60).prop_map(|gaps| {
        let mut at = 0;
        let lines = gaps.into_iter().map(|gap| {
            at += gap;
            format!("{at}\n")
        });
        lines.chain([String::from("1000\n")]).collect::<String>()
    });
    let csv = vec((1u64..300, 0u64..50), 1..20).prop_map(|rows| {
        let mut at = 0;
        let mut text = String::from("seconds,Mbit/s\n");
        for (gap, mbits) in rows {
            text += &format!("{}.{:03},{}\n", at / 1000, at % 1000, mbits);
            at += gap;
        }
        // The last row lets packets pass.
        text + &format!("{}.{:03},5\n", at / 1000, at % 1000)
    });
    prop_oneof![millis, csv]
        .prop_map(|text| Arc::new(Trace::parse("test".as_ref(), &text).expect("a trace")))
}

fn delay() -> impl Strategy<Value = Delay> {
    let shape = prop_oneof![
        Just(Distribution::Uniform),
        Just(Distribution::Normal),
        Just(Distribution::Pareto)
    ];
    (0u64..100_000_000, 0u64..20_000_000, shape, any::<bool>()).prop_map(
        |(base, jitter, distribution, reorder)| Delay {
            base: Duration::from_nanos(base),
            jitter: Duration::from_nanos(jitter),
            distribution,
            reorder,
        },
    )
}

fn limit() -> impl Strategy<Value = Limit> {
    prop_oneof![
        (1u32..100).prop_map(Limit::Packets),
        (1u64..100_000).prop_map(|bytes| Limit::Bytes(Bytes::new(bytes))),
        (1u64..200).prop_map(|ms| Limit::Time(Duration::from_millis(ms))),
    ]
}

fn share(percent: u32) -> Share {
    format!("{percent} %").parse().expect("a share")
}

fn config() -> impl Strategy<Value = Config> {
    let burst = prop_oneof![
        Just(None),
        Just("1%,20%".parse().ok()),
        Just("5%,50%,90%,1%".parse().ok())
    ];
    let aqm = prop_oneof![Just(Aqm::DropTail), Just(Aqm::Codel)];
    (speed(), delay(), 0u32..20, burst, limit(), aqm).prop_map(
        |(speed, delay, loss, burst, queue, aqm)| Config {
            speed,
            delay,
            loss: share(loss),
            burst,
            queue,
            aqm,
        },
    )
}

/// Sends all arrivals through a link that is polled at its timeouts, then drains it.
fn drive(link: &mut Link<u64>, arrivals: &[Arrival]) -> Vec<Output<u64>> {
    let mut outputs = Vec::new();
    let mut now = Time::ZERO;
    for (number, &(gap, len)) in (0..).zip(arrivals) {
        let at = now + gap;
        drain(link, &mut outputs, at);
        now = at;
        link.handle_packet(now, len, number);
    }
    drain(link, &mut outputs, Time::from_nanos(u64::MAX));
    outputs
}

/// Polls until nothing is due by `until`.
fn drain(link: &mut Link<u64>, outputs: &mut Vec<Output<u64>>, until: Time) {
    while let Some(due) = link.poll_timeout().filter(|due| *due <= until) {
        outputs.extend(std::iter::from_fn(|| link.poll_output(due)));
    }
}

/// Sends the same packets, but polls only after the last has arrived.
fn drive_late(link: &mut Link<u64>, arrivals: &[Arrival]) -> Vec<Output<u64>> {
    let mut now = Time::ZERO;
    for (number, &(gap, len)) in (0..).zip(arrivals) {
        now = now + gap;
        link.handle_packet(now, len, number);
    }
    let late = now + Duration::from_secs(100_000);
    std::iter::from_fn(|| link.poll_output(late)).collect()
}

fn delivered(outputs: &[Output<u64>]) -> Vec<Output<u64>> {
    outputs
        .iter()
        .copied()
        .filter(|output| output.fate == Fate::Delivered)
        .collect()
}

/// Returns the largest excess of sent bits over allowed bits, over all windows that begin and end
/// with a packet; the first packet of a window may have begun before it.
fn worst_excess(times: &[(Time, u32)], allowed: impl Fn(Time, Time) -> f64) -> f64 {
    let mut worst = 0f64;
    for (first, &(from, _)) in times.iter().enumerate() {
        let mut bits = 0.0;
        for &(to, len) in &times[first + 1..] {
            bits += f64::from(len) * 8.0;
            worst = worst.max(bits - allowed(from, to));
        }
    }
    worst
}

proptest! {
    #[test]
    fn every_packet_meets_exactly_one_fate(config in config(), arrivals in arrivals(), seed: u64) {
        let mut link = Link::new(config, seed);
        let outputs = drive(&mut link, &arrivals);
        let mut seen = BTreeMap::new();
        for output in &outputs {
            prop_assert_eq!(seen.insert(output.packet, output.fate), None);
            prop_assert_eq!(output.len, arrivals[output.packet as usize].1);
        }
        prop_assert_eq!(seen.len(), arrivals.len());
        let stats = link.stats();
        let fates = [
            stats.delivered, stats.queue_full, stats.codel, stats.lost_random, stats.lost_burst,
            stats.black_hole,
        ];
        prop_assert_eq!(stats.arrived.packets, fates.iter().map(|c| c.packets).sum::<u64>());
        prop_assert_eq!(stats.arrived.bytes, fates.iter().map(|c| c.bytes).sum::<u64>());
        prop_assert_eq!((stats.held.packets, stats.held.bytes), (0, 0));
    }

    #[test]
    fn counters_add_up_at_every_moment(config in config(), arrivals in arrivals(), every in 1usize..7) {
        let mut link = Link::new(config, 1);
        let mut now = Time::ZERO;
        for (number, &(gap, len)) in arrivals.iter().enumerate() {
            now = now + gap;
            link.handle_packet(now, len, number as u64);
            if number % every == 0 {
                while link.poll_output(now).is_some() {}
            }
            let s = link.stats();
            let gone = s.delivered.packets + s.queue_full.packets + s.codel.packets
                + s.lost_random.packets + s.lost_burst.packets;
            prop_assert_eq!(s.arrived.packets, gone + s.held.packets);
        }
    }

    #[test]
    fn the_rate_is_never_exceeded(rate in rate(), base in 0u64..50_000_000, arrivals in arrivals()) {
        let delay = Delay { base: Duration::from_nanos(base), ..Delay::default() };
        let config = Config { speed: Speed::Fixed(rate), delay, ..Config::default() };
        let outputs = drive(&mut Link::new(config, 1), &arrivals);
        let times: Vec<_> = delivered(&outputs).iter().map(|o| (o.due, o.len)).collect();
        let allowed = |from, to: Time| to.since(from).as_secs_f64() * rate.bits_per_sec() as f64;
        // A window lets through at most rate · window and the packet that opens it.
        prop_assert!(worst_excess(&times, allowed) < 1e-3);
    }

    #[test]
    fn jitter_bunches_by_no_more_than_its_span(rate in rate(), delay in delay(), arrivals in arrivals()) {
        let span = (delay.longest() - delay.shortest()).as_secs_f64();
        let config = Config { speed: Speed::Fixed(rate), delay, ..Config::default() };
        let outputs = drive(&mut Link::new(config, 1), &arrivals);
        let mut times: Vec<_> = delivered(&outputs).iter().map(|o| (o.due, o.len)).collect();
        times.sort();
        let bits = rate.bits_per_sec() as f64;
        let allowed = |from, to: Time| (to.since(from).as_secs_f64() + span) * bits;
        // With reordering, the packet that opens the window need not be the largest.
        prop_assert!(worst_excess(&times, allowed) < 8.0 * 1514.0 + 1e-3);
    }

    #[test]
    fn a_mahimahi_trace_lets_one_frame_through_per_line(lines in vec(0u64..20, 1..50), arrivals in arrivals()) {
        let mut millis: Vec<u64> = lines.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
        millis.push(millis.last().expect("one") + 1);
        let text: String = millis.iter().map(|ms| format!("{ms}\n")).collect();
        let period = *millis.last().expect("one");
        let trace = Trace::parse("test".as_ref(), &text).expect("a trace");
        let config = Config { speed: Speed::Trace(Arc::new(trace)), ..Config::default() };
        let outputs = drive(&mut Link::new(config, 1), &arrivals);
        let mut by_time = BTreeMap::<u64, u32>::new();
        for output in delivered(&outputs) {
            prop_assert_eq!(output.due.as_nanos() % 1_000_000, 0);
            *by_time.entry(output.due.as_nanos() / 1_000_000).or_default() += output.len;
        }
        let (mut before, mut lines_before) = (0, 0);
        for (ms, bytes) in by_time {
            let cycle = ms / period;
            let lines: u64 = cycle * millis.len() as u64
                + millis.iter().filter(|at| cycle * period + **at <= ms).count() as u64;
            // The first packet at an instant may have begun in earlier opportunities.
            let fresh = lines - lines_before;
            prop_assert!(fresh > 0, "nothing may leave at {ms} ms");
            prop_assert!(u64::from(bytes) <= fresh * u64::from(OPPORTUNITY_BYTES) + 1514);
            before += u64::from(bytes);
            prop_assert!(before <= lines * u64::from(OPPORTUNITY_BYTES));
            lines_before = lines;
        }
    }

    #[test]
    fn order_is_kept_unless_told_otherwise(config in config(), arrivals in arrivals(), seed: u64) {
        let reorder = config.delay.reorder && !config.delay.jitter.is_zero();
        let outputs = delivered(&drive(&mut Link::new(config, seed), &arrivals));
        prop_assert!(outputs.windows(2).all(|pair| pair[0].due <= pair[1].due));
        if !reorder {
            prop_assert!(outputs.windows(2).all(|pair| pair[0].number < pair[1].number));
        }
    }

    #[test]
    fn delay_lies_within_its_bounds(config in config(), arrivals in arrivals(), seed: u64) {
        let delay = config.delay;
        let fixed = match config.speed { Speed::Fixed(rate) => Some(rate), _ => None };
        for output in delivered(&drive(&mut Link::new(config, seed), &arrivals)) {
            let Some(rate) = fixed else { continue };
            let sent = output.started + rate.time_of(Bytes::new(output.len.into())).expect("a rate");
            prop_assert!(output.due >= sent + delay.shortest());
            prop_assert!(output.due <= sent + delay.longest());
        }
    }

    #[test]
    fn fates_do_not_depend_on_when_the_driver_polls(config in config(), arrivals in arrivals(), seed: u64) {
        let mut early = drive(&mut Link::new(config.clone(), seed), &arrivals);
        let mut late = drive_late(&mut Link::new(config, seed), &arrivals);
        early.sort_by_key(|output| output.number);
        late.sort_by_key(|output| output.number);
        prop_assert_eq!(early, late);
    }

    #[test]
    fn drop_tail_agrees_with_a_list_of_departures(rate in rate(), most in 1u32..50, arrivals in arrivals()) {
        // Reference: a packet is dropped if `most` wait; it starts once the previous one has left.
        let config = Config {
            speed: Speed::Fixed(rate),
            queue: Limit::Packets(most),
            ..Config::default()
        };
        let mut outputs = drive(&mut Link::new(config, 1), &arrivals);
        outputs.sort_by_key(|output| output.number);
        let (mut now, mut free, mut starts) = (Time::ZERO, Time::ZERO, Vec::<Time>::new());
        for (output, &(gap, len)) in outputs.iter().zip(&arrivals) {
            now = now + gap;
            let waiting = starts.iter().filter(|start| **start > now).count();
            if waiting >= most as usize {
                prop_assert_eq!(output.fate, Fate::QueueFull);
                continue;
            }
            let start = now.max(free);
            starts.push(start);
            free = start + rate.time_of(Bytes::new(len.into())).expect("a rate");
            prop_assert_eq!((output.fate, output.started, output.due), (Fate::Delivered, start, free));
        }
    }

    #[test]
    fn a_changed_rate_holds_from_then_on(before in rate(), after in rate(), at in 0u64..20_000_000) {
        // A long queue and one change: from the change on no window exceeds the new rate.
        let wide = Config { queue: Limit::Packets(1000), ..Config::default() };
        let mut link = Link::new(Config { speed: Speed::Fixed(before), ..wide.clone() }, 1);
        (0..300).for_each(|number| link.handle_packet(Time::ZERO, 1500, number));
        let at = Time::from_nanos(at);
        let mut outputs = Vec::new();
        drain(&mut link, &mut outputs, at);
        outputs.clear();
        link.configure(at, Config { speed: Speed::Fixed(after), ..wide });
        drain(&mut link, &mut outputs, Time::from_nanos(u64::MAX));
        let times: Vec<_> = outputs.iter().map(|o| (o.due, o.len)).collect();
        let allowed = |from, to: Time| to.since(from).as_secs_f64() * after.bits_per_sec() as f64;
        prop_assert!(worst_excess(&times, allowed) < 1e-3);
        prop_assert_eq!(link.stats().delivered.packets, 300);
    }
}

#[test]
fn at_200_mbits_the_delay_is_exact() {
    let delay = Delay {
        base: Duration::from_millis(15),
        ..Delay::default()
    };
    let rate = Rate::from_bits_per_sec(200_000_000);
    let mut link = Link::new(
        Config {
            speed: Speed::Fixed(rate),
            delay,
            ..Config::default()
        },
        1,
    );
    // One second at 99 % of the rate: 60.56 µs for a frame, one every 61 µs.
    let arrivals: Vec<Arrival> = (0..16_000)
        .map(|_| (Duration::from_nanos(61_000), 1514))
        .collect();
    let outputs = drive(&mut link, &arrivals);
    assert_eq!(outputs.len(), arrivals.len());
    for output in outputs {
        assert_eq!(
            output.due.since(output.arrived),
            Duration::from_nanos(15_000_000 + 60_560)
        );
    }
}

#[test]
fn the_black_hole_swallows_what_is_under_way_and_ends() {
    let delay = Delay {
        base: Duration::from_millis(10),
        ..Delay::default()
    };
    let mut link = Link::new(
        Config {
            delay,
            ..Config::default()
        },
        1,
    );
    let ms = |ms: u64| Time::from_nanos(ms * 1_000_000);
    link.handle_packet(ms(0), 100, 0);
    link.set_black_hole(true);
    assert_eq!(
        link.poll_output(ms(10)).map(|o| o.fate),
        Some(Fate::BlackHole)
    );
    link.handle_packet(ms(11), 100, 1);
    link.set_black_hole(false);
    assert_eq!(
        link.poll_output(ms(21)).map(|o| o.fate),
        Some(Fate::Delivered)
    );
}

#[test]
fn a_rate_of_zero_holds_everything_until_it_changes() {
    let still = Config {
        speed: Speed::Fixed(Rate::default()),
        queue: Limit::Packets(10),
        ..Config::default()
    };
    let mut link = Link::new(still.clone(), 1);
    (0..3).for_each(|number| link.handle_packet(Time::ZERO, 1250, number));
    assert_eq!(link.poll_timeout(), None);
    let start = Time::from_nanos(5_000_000_000);
    assert_eq!(link.poll_output(start), None);
    let speed = Speed::Fixed(Rate::from_bits_per_sec(10_000_000));
    link.configure(start, Config { speed, ..still });
    let mut outputs = Vec::new();
    drain(&mut link, &mut outputs, start + Duration::from_secs(1));
    let after: Vec<_> = outputs.iter().map(|o| o.due.since(start)).collect();
    assert_eq!(after, [1, 2, 3].map(Duration::from_millis));
}
