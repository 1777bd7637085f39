//! Loss has the configured frequency and burstiness.

use braid_core::Share;
use braid_emulate::{Config, Fate, Link, Time};

fn share(percent: u32) -> Share {
    format!("{percent} %").parse().expect("a share")
}

#[test]
fn loss_is_what_was_asked_for() {
    let lost = |config: Config| {
        let mut link = Link::new(config, 7);
        (0..200_000).for_each(|number| link.handle_packet(Time::ZERO, 100, number));
        while link.poll_output(Time::ZERO).is_some() {}
        let stats = link.stats();
        (stats.lost_random.packets + stats.lost_burst.packets) as f64 / 200_000.0
    };
    let random = lost(Config {
        loss: share(3),
        ..Config::default()
    });
    // Three standard deviations of a binomial distribution are 0.11 %.
    assert!((random - 0.03).abs() < 0.0012, "{random}");
    let burst = lost(Config {
        burst: "1 %, 20 %".parse().ok(),
        ..Config::default()
    });
    // 0.01 / (0.01 + 0.2); runs of five packets widen the spread of the count.
    assert!((burst - 0.0476).abs() < 0.005, "{burst}");
}

#[test]
fn bursts_are_as_long_as_asked_for() {
    let config = Config {
        burst: "1 %, 20 %".parse().ok(),
        ..Config::default()
    };
    let mut link = Link::new(config, 3);
    (0..200_000).for_each(|number| link.handle_packet(Time::ZERO, 100, number));
    let mut outputs: Vec<_> = std::iter::from_fn(|| link.poll_output(Time::ZERO)).collect();
    outputs.sort_by_key(|output| output.number);
    let lost: Vec<bool> = outputs.iter().map(|o| o.fate == Fate::LostBurst).collect();
    let runs = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
    let mean = lost.iter().filter(|lost| **lost).count() as f64 / runs as f64;
    assert!((4.5..5.5).contains(&mean), "{mean}");
}
