//! [l3b] Fig. 3: one UDP flow of 63 to 105 Mbit/s over a fixed line of 64 Mbit/s and a mobile one,
//! for k ∈ {0.1, 0.5, 1} and T_dwd ∈ {50, 250, 500} ms, in virtual time.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::{Bytes, Rate, Time};
use braid_emulate::delay::Delay;
use braid_emulate::queue::Limit;
use braid_emulate::rate::Speed;
use braid_emulate::{Config, Fate, Link};
use braid_multipath::schedule::{
    Choice, Class, Head, Interval, LinkView, Overflow, Parameters, Scheduler,
};
use braid_multipath::{LinkId, RelativeDelay};

/// §5.1: "All generated UDP packets are 1492 bytes long".
const LEN: u32 = 1492;
const T_REPORT: Duration = Duration::from_millis(50);
/// The shaper's queue is not given either.
const QUEUE: Duration = Duration::from_millis(20);

/// §5.2: "starts with a sending rate of 63 Mb/s, then increases its rate exponentially every 200ms
/// for 15 seconds, until it reaches a maximum of 105Mb/s. It holds this constant sending rate for 10
/// seconds and afterwards decreases the rate logarithmically to finally get back to the initial
/// data rate of 63Mb/s after another 15 seconds."
fn demand(at: Duration) -> f64 {
    let t = (at.as_millis() / 200) as f64 * 0.2;
    let up = |t: f64| 63.0 * (105.0f64 / 63.0).powf(t / 15.0);
    match t {
        t if t < 15.0 => up(t),
        t if t < 25.0 => 105.0,
        t => up(40.0 - t),
    }
}

struct Outcome {
    loss: f64,
    /// As a fraction of the fixed line's rate, while the demand was above it.
    utilisation: f64,
}

fn wire(mbit: u64, delay: u64, jitter: u64) -> Link<()> {
    let config = Config {
        speed: Speed::Fixed(Rate::from_bits_per_sec(mbit * 1_000_000)),
        delay: Delay {
            base: Duration::from_millis(delay),
            jitter: Duration::from_millis(jitter),
            ..Delay::default()
        },
        queue: Limit::Time(QUEUE),
        ..Config::default()
    };
    Link::new(config, mbit)
}

fn view(id: u8) -> LinkView {
    LinkView {
        id: LinkId(id),
        tier: id,
        usable: true,
        ready: Some(Time::ZERO),
        rate: Rate::default(),
        delay: RelativeDelay(0),
        base: RelativeDelay(0),
    }
}

/// Runs §5.2's experiment once.
fn run(k: f64, t_dwd: u64) -> Outcome {
    let parameters = Parameters {
        k,
        t_dwd: Duration::from_millis(t_dwd),
        t_report: T_REPORT,
        ..Parameters::default()
    };
    let mut overflow = Overflow::new(&[LinkId(0), LinkId(1)], parameters).expect("valid");
    // §5.1: 64 Mbit/s and 13 ms; about 60 Mbit/s and 25 to 45 ms.
    let mut links = [wire(64, 13, 0), wire(60, 35, 10)];
    let views = [view(0), view(1)];
    let head = Head {
        len: Bytes::new(u64::from(LEN)),
        backlog: Bytes::new(u64::from(LEN)),
        class: Class::Ordered,
        pin: None,
        except: None,
    };
    let (mut now, mut next_report) = (Time::ZERO, Time::ZERO + T_REPORT);
    // When losses become known, by link.
    let mut known: [VecDeque<Time>; 2] = [VecDeque::new(), VecDeque::new()];
    let (mut sent, mut fresh) = ([0u64; 2], [0u64; 2]);
    let (mut lost, mut served, mut busy) = (0u64, 0u64, 0.0);
    let end = Time::ZERO + Duration::from_secs(40);
    while now < end {
        while now >= next_report {
            let interval = |i: usize| Interval {
                link: LinkId(i as u8),
                sent: fresh[i],
                lost: known[i].iter().take_while(|at| **at <= next_report).count() as u64,
            };
            let intervals = [interval(0), interval(1)];
            for (queue, interval) in known.iter_mut().zip(&intervals) {
                queue.drain(..interval.lost as usize);
            }
            overflow.handle_interval(next_report, &intervals);
            fresh = [0; 2];
            next_report = next_report + T_REPORT;
        }
        let Choice::Send { link, .. } = overflow.choose(now, &head, &views) else {
            panic!("both links are usable");
        };
        let index = link.index();
        sent[index] += 1;
        fresh[index] += 1;
        links[index].handle_packet(now, LEN, ());
        for (index, link) in links.iter_mut().enumerate() {
            while let Some(out) = link.poll_output(now) {
                if out.fate == Fate::QueueFull {
                    lost += 1;
                    known[index].push_back(out.due);
                } else if index == 0 && demand(out.due.since(Time::ZERO)) >= 64.0 {
                    served += u64::from(out.len);
                }
            }
        }
        let rate = demand(now.since(Time::ZERO));
        let step = Duration::from_secs_f64(f64::from(LEN) * 8.0 / (rate * 1e6));
        busy += if rate >= 64.0 {
            step.as_secs_f64()
        } else {
            0.0
        };
        now = now + step;
    }
    Outcome {
        loss: lost as f64 / (sent[0] + sent[1]) as f64,
        utilisation: served as f64 * 8.0 / 64e6 / busy,
    }
}

/// Loss in Fig. 3, by k and T_dwd (§5.2), as fractions.
const PAPER: [(f64, [f64; 3]); 3] = [
    (0.1, [0.0625, 0.0472, 0.041]),
    (0.5, [0.0179, 0.0053, 0.0034]),
    (1.0, [0.0114, 0.0029, 0.0015]),
];

/// §5.2: "With a small values k of 0.1 not enough traffic is shifted to the mobile link, leading to
/// permanent losses"; "loss rates are below one percent for the other combinations"; "the larger
/// T_dwd is, … less oscillation also leads to lower loss rates. Unfortunately, it also decreases the
/// utilization on the fixed line."
///
/// Deviations, for want of what the paper does not tell: the queue of the shaper, T_lto (here a loss
/// is known at once), and the LTE line's own variation. With k = 0.1 and k = 0.5 our loss depends
/// less on T_dwd than the paper's, and for T_dwd = 50 ms it is less than half of it.
#[test]
fn paper_fig_3_loss_falls_with_k_and_with_t_dwd() {
    let mut grid = Vec::new();
    for (k, paper) in PAPER {
        for (t_dwd, paper) in [50, 250, 500].into_iter().zip(paper) {
            let outcome = run(k, t_dwd);
            println!(
                "k {k} T_dwd {t_dwd}: loss {:.4} (paper {paper}), fixed line {:.3}",
                outcome.loss, outcome.utilisation
            );
            assert!(outcome.loss < 2.5 * paper && outcome.loss > paper / 3.0);
            grid.push(outcome);
        }
    }
    for column in 0..3 {
        assert!(grid[column].loss > 0.03, "k = 0.1 loses permanently");
        assert!(grid[column].loss > 3.0 * grid[column + 3].loss);
        assert!(grid[column + 3].loss > grid[column + 6].loss);
        assert!(grid[column + 3].loss < 0.01 && grid[column + 6].loss < 0.01);
    }
    for row in [3, 6] {
        assert!(grid[row].loss > grid[row + 2].loss);
        assert!(grid[row].utilisation > grid[row + 2].utilisation);
    }
}
