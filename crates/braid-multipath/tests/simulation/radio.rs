//! One flow over two radio links: the bond beside each link alone, in the same phase of the same
//! rates.
//!
//! `BRAID_TRACES=DIR cargo test --release -p braid-multipath --test simulation -- radio --nocapture`
//! replays the recordings of a directory, with CUBIC and BBR and queues of 300 ms and 1 s.
//! `BRAID_CASE=TEXT` selects the cases whose names contain it, `BRAID_INNER=cubic` or `bbr` one
//! kind of flow. With `BRAID_QUICK` only the bond runs, with queues of 300 ms.
//! `BRAID_RADIO_LOG=TEXT` prints the sender's estimates each tenth of a second.

use std::time::Duration;

use braid_multipath::LinkId;
use braid_multipath::liveness::Verdict;
use braid_multipath::schedule::{Adaptive, Class};

use crate::alone;
use crate::tcp::TcpSender;
use crate::world::{LinkSpec, START, World, line, quantile};

mod floor;
mod survey;

use braid_emulate::walk::Rates;

/// One radio link: its rates in both directions, and the second of them at which the flow begins.
#[derive(Clone)]
struct Radio {
    there: Rates,
    back: Rates,
    from: f64,
    delay_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Inner {
    Cubic,
    Bbr,
}

/// Duration of a flow in seconds.
const SPAN: u64 = 42;

/// Result of one case.
#[derive(Debug)]
struct Outcome {
    vs_best_single: f64,
    share_of_offered: f64,
    /// Lowest goodput over two seconds, as a fraction of the goodput that the better link alone has
    /// then.
    worst_stretch: f64,
    /// Share of the two-second stretches, one each tenth of a second, in which the bond carries
    /// less than 0.9 of what the better link alone does.
    behind: f64,
    /// One-way delay of a small packet above the lower of the links', ms.
    added_p50: f64,
    added_p99: f64,
    /// The same over the better link alone.
    alone_p50: f64,
    alone_p99: f64,
}

impl Radio {
    fn line(&self, queue_ms: u64) -> LinkSpec {
        let at = START.as_nanos() as f64 / 1e9;
        LinkSpec {
            traces: Some([
                self.there.trace(self.from, at),
                self.back.trace(self.from, at),
            ]),
            queue_ms,
            mbit: self.there.mean(self.from, SPAN as f64),
            ..line(1.0, self.delay_ms)
        }
    }

    fn reversed(&self) -> Radio {
        Radio {
            there: self.back.clone(),
            back: self.there.clone(),
            ..self.clone()
        }
    }
}

fn sender(inner: Inner) -> TcpSender {
    match inner {
        Inner::Cubic => TcpSender::new().undo(),
        Inner::Bbr => TcpSender::bbr().undo(),
    }
}

fn mbit(tenths: &[u64]) -> f64 {
    tenths.iter().sum::<u64>() as f64 * 8.0 / 1e6 / (tenths.len() as f64 / 10.0)
}

fn compare(name: &str, radios: &[Radio], queue_ms: u64, inner: Inner) -> Outcome {
    let lines: Vec<LinkSpec> = radios.iter().map(|radio| radio.line(queue_ms)).collect();
    let span = Duration::from_secs(SPAN);
    let quick = std::env::var_os("BRAID_QUICK").is_some();
    let alone: Vec<alone::Alone> = (lines.iter().enumerate())
        .map(|(index, line)| match quick {
            true => alone::Alone {
                delivered: vec![100_000; SPAN as usize * 10],
                delays: vec![],
                finished: None,
            },
            false => alone::run(line, sender(inner), 1 + index as u64, (START, span), true),
        })
        .collect();
    let mut world = World::new(&lines, 1, || Box::new(Adaptive::default()));
    world.add_flow(sender(inner));
    world.add_stream(100, Duration::from_millis(20), Class::Ordered);
    let log = std::env::var("BRAID_RADIO_LOG").is_ok_and(|wanted| name.contains(&wanted));
    for tenth in 1..=SPAN * 10 {
        world.run_until(START + Duration::from_millis(tenth * 100));
        if log {
            show(&world, radios, tenth, lines.len());
        }
    }
    world.delivered.resize((SPAN * 10) as usize, 0);
    if log {
        for at in (0..(SPAN * 10) as usize).step_by(20) {
            let alone = alone.iter().map(|a| mbit(&a.delivered[at..at + 20]));
            println!(
                "{:2} s: {:5.1}, alone {:5.1?}",
                at / 10,
                mbit(&world.delivered[at..at + 20]),
                alone.collect::<Vec<f64>>()
            );
        }
    }
    let best = (alone.iter().enumerate())
        .max_by(|a, b| mbit(&a.1.delivered).total_cmp(&mbit(&b.1.delivered)))
        .map_or(0, |(index, _)| index);
    let offered: f64 = lines.iter().map(|line| line.mbit).sum();
    let bond = mbit(&world.delivered);
    // Stretches in which the link alone delivers next to nothing do not count.
    let usual = mbit(&alone[best].delivered);
    let stretch = |start: usize| {
        let range = start..start + 20;
        let its = mbit(&alone[best].delivered[range.clone()]);
        (its > 0.05 * usual).then(|| mbit(&world.delivered[range]) / its)
    };
    let stretches: Vec<f64> = (10..world.delivered.len() - 20)
        .filter_map(stretch)
        .collect();
    let behind = stretches.iter().filter(|share| **share < 0.9).count();
    let base = radios.iter().map(|radio| radio.delay_ms).min().unwrap_or(0) as f64;
    let delays = &world.streams[0].delays;
    let outcome = Outcome {
        vs_best_single: bond / mbit(&alone[best].delivered),
        share_of_offered: bond / offered,
        worst_stretch: stretches.iter().copied().fold(f64::INFINITY, f64::min),
        behind: behind as f64 / stretches.len().max(1) as f64,
        added_p50: quantile(delays, 0.5) - base,
        added_p99: quantile(delays, 0.99) - base,
        alone_p50: quantile(&alone[best].delays, 0.5) - base,
        alone_p99: quantile(&alone[best].delays, 0.99) - base,
    };
    let singles: Vec<String> = (alone.iter())
        .map(|a| {
            format!(
                "{:.1} (+{:.0}/+{:.0} ms)",
                mbit(&a.delivered),
                quantile(&a.delays, 0.5) - base,
                quantile(&a.delays, 0.99) - base
            )
        })
        .collect();
    let tcp = &world.flows[0].sender;
    let suspects = world.changes.iter();
    let suspects =
        suspects.filter(|(_, end, change)| *end == 0 && change.verdict == Verdict::Suspect);
    println!(
        "{name}, {queue_ms} ms, {inner:?}: {bond:.1} of {offered:.1} Mbit/s, alone {}; vs best {:.2}, share {:.2}, worst 2 s {:.2}, behind {:.3}, delay +{:.0}/+{:.0} ms; {} cuts, {} undone, {} timeouts, {} suspected, {} again, {} given up, late {}, dropped {:?}, on links {}, {} spurious, slow start ended by {:?}",
        singles.join(" and "),
        outcome.vs_best_single,
        outcome.share_of_offered,
        outcome.worst_stretch,
        outcome.behind,
        outcome.added_p50,
        outcome.added_p99,
        tcp.cuts,
        tcp.undone,
        tcp.timeouts,
        suspects.count(),
        world.sender(0).retransmitted(),
        world.receiver(1).counters().given_up(),
        world.receiver(1).counters().late.iter().sum::<u64>(),
        world.sender(0).drops(),
        world.dropped_on_links,
        world.spurious,
        tcp.full,
    );
    outcome
}

/// Prints the sender's estimates, each tenth of a second.
fn show(world: &World, radios: &[Radio], tenth: u64, links: usize) {
    let at = tenth as f64 / 10.0;
    print!("{at:5.1}  {:5.1} ", world.goodput(at - 0.1, at));
    for (index, radio) in radios.iter().enumerate().take(links) {
        let (estimator, liveness) = world.sender(0).link(LinkId(index as u8)).expect("a link");
        let mbit = |rate: braid_core::Rate| rate.bits_per_sec() as f64 / 1e6;
        print!(
            "| offers {:5.1} proven {:5.1} rate {:5.1} got {:5.1} queue {:4} target {:3} standing {:3} flight {:4} of {:4} kB {:?} ",
            radio.there.mean(radio.from + at - 0.1, 0.1),
            mbit(estimator.capacity().proven()),
            mbit(estimator.rate()),
            estimator.delivered().map_or(0.0, mbit),
            estimator.queue().as_millis(),
            estimator.capacity().target().as_millis(),
            estimator.capacity().persistent_delay().as_millis(),
            estimator.in_flight().get() / 1000,
            estimator.window().get() / 1000,
            liveness.verdict(),
        );
    }
    let backlog = world.sender(0).backlog().0;
    let tcp = &world.flows[0].sender;
    println!(
        "| {backlog} wait, cwnd {:.0} srtt {:.0}, {} held, {} cuts, {} undone, {} timeouts, {} given up, dropped {:?}, on links {}",
        tcp.window(),
        tcp.srtt().as_secs_f64() * 1e3,
        world.receiver(1).occupied(),
        tcp.cuts,
        tcp.undone,
        tcp.timeouts,
        world.receiver(1).counters().given_up(),
        world.sender(0).drops(),
        world.dropped_on_links,
    );
}

fn drive(there: &str, from: f64) -> Radio {
    let dir = std::env::var_os("BRAID_TRACES").expect("a directory of recordings");
    let read = |name: &str| Rates::read(&std::path::Path::new(&dir).join(name));
    Radio {
        there: read(there),
        back: read("drive-a-up.csv"),
        from,
        delay_ms: 20,
    }
}

fn wide_drive(there: &str, from: f64) -> Radio {
    Radio {
        back: Rates::fixed(12.0),
        ..drive(there, from)
    }
}

fn recorded() -> Option<Vec<(&'static str, Vec<Radio>)>> {
    std::env::var_os("BRAID_TRACES")?;
    let pair = [
        drive("drive-b-down.csv", 10.0),
        drive("drive-a-down.csv", 10.0),
    ];
    let late = [
        drive("drive-b-down.csv", 60.0),
        drive("drive-a-down.csv", 40.0),
    ];
    let far = [
        drive("drive-b-down.csv", 10.0),
        drive("drive-b-down.csv", 60.0),
    ];
    let up = [
        drive("drive-a-down.csv", 0.0).reversed(),
        drive("drive-a-down.csv", 30.0).reversed(),
    ];
    let wide = [
        wide_drive("satellite-c-down.csv", 5.0),
        wide_drive("drive-c-down.csv", 5.0),
    ];
    let dsl = [
        Radio {
            there: Rates::fixed(20.0),
            back: Rates::fixed(5.0),
            from: 0.0,
            delay_ms: 10,
        },
        drive("drive-a-down.csv", 20.0),
    ];
    Some(vec![
        ("drive-b + drive-a", pair.to_vec()),
        ("drive-b + drive-a later", late.to_vec()),
        ("drive-b + itself later", far.to_vec()),
        ("drive-a up + later", up.to_vec()),
        ("satellite-c + drive-c", wide.to_vec()),
        ("dsl + drive-a", dsl.to_vec()),
    ])
}

#[test]
fn radio_recorded() {
    let Some(cases) = recorded() else { return };
    let only = std::env::var("BRAID_CASE").unwrap_or_default();
    for (name, radios) in cases {
        if !name.contains(&only) {
            continue;
        }
        for inner in inners() {
            for queue_ms in [300, 1000] {
                if queue_ms == 300 || std::env::var_os("BRAID_QUICK").is_none() {
                    compare(name, &radios, queue_ms, inner);
                }
            }
        }
    }
}

fn inners() -> Vec<Inner> {
    match std::env::var("BRAID_INNER").as_deref() {
        Ok("cubic") => vec![Inner::Cubic],
        Ok("bbr") => vec![Inner::Bbr],
        _ => vec![Inner::Cubic, Inner::Bbr],
    }
}

fn lte(mean: f64, seed: u64) -> Radio {
    Radio {
        there: Rates::lte(mean, 60.0, seed),
        back: Rates::lte(mean / 3.0, 60.0, seed + 1000),
        from: 5.0,
        delay_ms: 20,
    }
}

fn walks(seed: u64) -> Vec<(String, Vec<Radio>)> {
    vec![
        (
            format!("walks 12 + 6, seed {seed}"),
            vec![lte(12.0, seed), lte(6.0, seed + 50)],
        ),
        (
            format!("walks 15 + 3, seed {seed}"),
            vec![lte(15.0, seed + 100), lte(3.0, seed + 150)],
        ),
    ]
}

fn wide(seed: u64) -> (String, Vec<Radio>) {
    let satellite = Radio {
        there: Rates::satellite(150.0, 60.0, seed),
        back: Rates::fixed(12.0),
        from: 5.0,
        delay_ms: 25,
    };
    let name = format!("walk 40 + satellite 150, seed {seed}");
    (name, vec![lte(40.0, seed + 200), satellite])
}

#[test]
fn a_flow_over_radio_walks_is_faster_than_over_either_alone() {
    let (mut gains, mut added) = (Vec::new(), Vec::new());
    for seed in 1..=3 {
        for (name, radios) in walks(seed) {
            let outcome = compare(&name, &radios, 300, Inner::Cubic);
            assert!(outcome.vs_best_single >= 0.9);
            assert!(outcome.share_of_offered >= 0.7);
            assert!(outcome.added_p50 <= 40.0);
            gains.push(outcome.vs_best_single);
            added.push(outcome.added_p50);
        }
    }
    assert!(added.iter().sum::<f64>() / added.len() as f64 <= 35.0);
    assert!(gains.iter().sum::<f64>() / gains.len() as f64 >= 1.05);
}

/// Acknowledgements of a download go out on both links while one stalls. Upwards the first has 4 to 6 Mbit/s and the second
/// 0.1 to 0.6, and a queue there delays what the sender learns of that link.
#[test]
fn copies_of_acknowledgements_do_not_fill_a_weak_link() {
    let radios = [lte(15.0, 103), lte(3.0, 153)];
    let lines = radios.each_ref().map(|radio| radio.line(300));
    let mut world = World::new(&lines, 1, || Box::new(Adaptive::default()));
    world.add_flow(sender(Inner::Cubic));
    let mut most = 0;
    for tenth in 1..=30 {
        world.run_until(START + Duration::from_millis(tenth * 100));
        let (weak, _) = world.sender(1).link(LinkId(1)).expect("a link");
        most = most.max(weak.in_flight().get());
    }
    println!("{most} bytes in flight");
    assert!(most < 40_000);
}

/// These have no assertions: they show the remaining work.
#[test]
fn radio_walks_with_bbr_and_satellites() {
    if std::env::var_os("BRAID_TRACES").is_none() {
        return;
    }
    let only = std::env::var("BRAID_CASE").unwrap_or_default();
    for seed in 1..=3 {
        let all = walks(seed).into_iter().chain([wide(seed)]);
        for (name, radios) in all.filter(|(name, _)| name.contains(&only)) {
            for inner in inners() {
                compare(&name, &radios, 300, inner);
            }
        }
    }
}

/// Runs a flow over a link of 20 Mbit/s and one that falls from 10 to 0.4 for two seconds; `before`
/// are its rates before that. Returns goodput while it fades and the longest time without delivery
/// then, in tenths of a second, for each of eight seeds.
fn fading(before: &[(f64, f64)]) -> Vec<(f64, usize)> {
    let runs = (1..=8).map(|seed| {
        let fast = Radio {
            there: Rates::fixed(20.0),
            back: Rates::fixed(10.0),
            from: 0.0,
            delay_ms: 20,
        };
        let fades = 4.0 + 0.05 * seed as f64;
        let after = [(fades, 0.4), (6.0, 10.0), (60.0, 10.0)];
        let slow = Radio {
            there: Rates::steps(&[before, &after].concat()),
            ..fast.clone()
        };
        let lines = [fast.line(300), slow.line(300)];
        let mut world = World::new(&lines, seed, || Box::new(Adaptive::default()));
        world.add_flow(sender(Inner::Cubic));
        world.run_until(START + Duration::from_secs(7));
        let fading = &world.delivered[43..60];
        println!(
            "seed {seed}: {:.1} Mbit/s while it fades, {fading:?}",
            mbit(fading)
        );
        // The slow link alone delivers less than this.
        let silent = fading.split(|bytes| *bytes >= 20_000);
        let longest = silent.map(<[u64]>::len).max().unwrap_or(0);
        (mbit(fading), longest)
    });
    runs.collect()
}

/// A link that falls to a twentieth of its rate still delivers packets, so it is never silent.
/// Delivery in order must not wait for the packets in flight on it.
#[test]
fn what_a_slow_link_holds_up_goes_by_the_other_one() {
    let runs = fading(&[(0.0, 10.0)]);
    assert!(runs.iter().all(|(mbit, _)| *mbit > 14.0), "{runs:?}");
    // Twice as long without retransmission before packets are given up.
    let longest: usize = runs.iter().map(|(_, longest)| longest).sum();
    assert!(longest <= 13, "tenths of a second without order: {runs:?}");
}

/// Over a link that stalls, packets are sent again sooner while nothing else is to be sent.
#[test]
fn what_a_stalling_link_holds_up_goes_by_an_idle_one_at_once() {
    let stalls = [
        (0.0, 10.0),
        (2.0, 0.0),
        (2.2, 10.0),
        (3.0, 0.0),
        (3.2, 10.0),
    ];
    let runs = fading(&stalls);
    // 15.6 if they are sent again only 100 ms after they were overtaken.
    let mean = runs.iter().map(|(mbit, _)| mbit).sum::<f64>() / runs.len() as f64;
    assert!(mean > 16.5, "{runs:?}");
}
