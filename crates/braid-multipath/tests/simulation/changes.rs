//! Lines that change while a flow runs: the bond beside the better line alone.

use std::time::Duration;

use braid_multipath::schedule::Adaptive;

use crate::tcp::TcpSender;
use crate::world::{LinkSpec, START, World, line};

const CHANGE_AT: u64 = 6;
const END: u64 = 20;

/// Returns the goodput in Mbit/s of each second of one CUBIC flow over lines that change after six.
fn run(before: &[LinkSpec], after: &[LinkSpec]) -> Vec<f64> {
    let mut world = World::new(before, 1, || Box::new(Adaptive::default()));
    world.add_flow(TcpSender::new().undo().grows_at_first());
    world.run_until(START + Duration::from_secs(CHANGE_AT));
    for (index, line) in after.iter().enumerate() {
        world.set_line(index, line.clone());
    }
    world.run_until(START + Duration::from_secs(END));
    world.delivered.resize(END as usize * 10, 0);
    let second = |at| world.goodput(at as f64, at as f64 + 1.0);
    (0..END).map(second).collect()
}

/// Returns the goodput over that of the better line alone, for each two seconds.
fn beside_the_better(name: &str, after: [LinkSpec; 2]) -> Vec<f64> {
    let before = [line(50.0, 10), line(50.0, 20)];
    let bond = run(&before, &after);
    let alone = [0, 1].map(|index| run(&before[index..=index], &after[index..=index]));
    let sum = |of: &[f64], at: usize| of[at..at + 2].iter().sum::<f64>();
    let stretches = (0..END as usize).step_by(2).map(|at| {
        let best = alone.iter().map(|one| sum(one, at)).fold(0.1, f64::max);
        sum(&bond, at) / best
    });
    let stretches = stretches.collect();
    println!("{name}: {stretches:.2?}");
    stretches
}

fn lossy(line: LinkSpec) -> LinkSpec {
    LinkSpec {
        loss_percent: 2,
        ..line
    }
}

#[test]
fn a_bond_of_lines_that_change_is_no_slower_than_the_better_one() {
    for (name, one, other) in [
        ("one +100 ms", line(50.0, 110), line(50.0, 20)),
        ("the other +100 ms", line(50.0, 10), line(50.0, 120)),
        ("one 5 Mbit/s", line(5.0, 10), line(50.0, 20)),
        ("one 5 Mbit/s and +40 ms", line(5.0, 50), line(50.0, 20)),
        ("2 % loss", lossy(line(50.0, 10)), lossy(line(50.0, 20))),
    ] {
        let stretches = beside_the_better(name, [one, other]);
        let changed = CHANGE_AT as usize / 2;
        assert!(stretches[changed] >= 0.8);
        assert!(stretches[changed + 1..].iter().all(|share| *share >= 0.98));
    }
}

/// The same for more changes, to look at.
#[test]
fn survey() {
    if std::env::var_os("BRAID_SURVEY").is_none() {
        return;
    }
    let jitter = |us: u64, reorder: bool, line: LinkSpec| LinkSpec {
        jitter_us: us,
        reorder,
        ..line
    };
    for (name, one, other) in [
        ("nothing", line(50.0, 10), line(50.0, 20)),
        ("one +40 ms", line(50.0, 50), line(50.0, 20)),
        ("the other +50 ms", line(50.0, 10), line(50.0, 70)),
        ("both +30 ms", line(50.0, 40), line(50.0, 50)),
        ("both +200 ms", line(50.0, 210), line(50.0, 220)),
        ("both 5 Mbit/s", line(5.0, 10), line(5.0, 20)),
        ("both 10 Mbit/s and +60 ms", line(10.0, 70), line(10.0, 80)),
        ("both 200 Mbit/s", line(200.0, 10), line(200.0, 20)),
        ("one 2 % loss", lossy(line(50.0, 10)), line(50.0, 20)),
        (
            "jitter 20 ms",
            jitter(20_000, false, line(50.0, 10)),
            jitter(20_000, false, line(50.0, 20)),
        ),
        (
            "jitter 20 ms that reorders",
            jitter(20_000, true, line(50.0, 10)),
            jitter(20_000, true, line(50.0, 20)),
        ),
    ] {
        beside_the_better(name, [one, other]);
    }
}
