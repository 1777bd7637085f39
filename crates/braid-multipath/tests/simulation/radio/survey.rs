//! Many pairs of radio links at once: the geometric means by which a change is judged.
//!
//! `BRAID_SURVEY=TEXT` runs the groups whose names contain it, or one of several texts with `|` in between; with `BRAID_TRACES=DIR` recorded
//! ones, too. `BRAID_SEEDS=N` sets the number of walks of each kind, 8 by default. `BRAID_CASE=TEXT` selects the cases whose names end with it,
//! such as `seed 25`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Inner, Outcome, Radio, compare, drive, inners, lte, wide_drive};
use braid_emulate::walk::Rates;

struct Case {
    group: &'static str,
    name: String,
    radios: Vec<Radio>,
    inner: Inner,
}

fn dsl(mbit: f64) -> Radio {
    Radio {
        there: Rates::fixed(mbit),
        back: Rates::fixed(mbit / 4.0),
        from: 0.0,
        delay_ms: 10,
    }
}

fn satellite(mean: f64, seed: u64) -> Radio {
    Radio {
        there: Rates::satellite(mean, 60.0, seed),
        back: Rates::fixed(12.0),
        from: 5.0,
        delay_ms: 25,
    }
}

fn walks(seed: u64) -> [(&'static str, [Radio; 2]); 5] {
    let s = seed;
    [
        ("walks 12 + 6", [lte(12.0, s), lte(6.0, s + 50)]),
        ("walks 15 + 3", [lte(15.0, s + 100), lte(3.0, s + 150)]),
        ("dsl 20 + walk 6", [dsl(20.0), lte(6.0, s + 250)]),
        (
            "walk 40 + satellite 150",
            [lte(40.0, s + 200), satellite(150.0, s)],
        ),
        (
            "satellites 190 + 90",
            [satellite(190.0, s + 20), satellite(90.0, s + 40)],
        ),
    ]
}

fn recorded() -> Vec<(&'static str, String, [Radio; 2])> {
    let a = |from: f64| drive("drive-a-down.csv", from);
    let b = |from: f64| drive("drive-b-down.csv", from);
    let mut cases = Vec::new();
    for (one, other) in [
        (10.0, 10.0),
        (25.0, 0.0),
        (40.0, 25.0),
        (60.0, 40.0),
        (75.0, 15.0),
    ] {
        let name = format!("{one} s and {other} s");
        cases.push(("drive-b + drive-a", name, [b(one), a(other)]));
    }
    for (one, other) in [(10.0, 60.0), (0.0, 30.0), (40.0, 90.0)] {
        let name = format!("{one} s and {other} s");
        cases.push(("drive-b twice", name, [b(one), b(other)]));
    }
    for (one, other) in [(0.0, 30.0), (10.0, 45.0), (20.0, 60.0)] {
        let name = format!("{one} s and {other} s");
        cases.push((
            "drive-a up twice",
            name,
            [a(one).reversed(), a(other).reversed()],
        ));
    }
    for from in [5.0, 50.0, 100.0] {
        let pair = [
            wide_drive("satellite-c-down.csv", from),
            wide_drive("drive-c-down.csv", from),
        ];
        cases.push(("satellite-c + drive-c", format!("{from} s"), pair));
    }
    for from in [0.0, 20.0, 40.0] {
        cases.push((
            "dsl 20 + drive-a",
            format!("{from} s"),
            [dsl(20.0), a(from)],
        ));
        cases.push((
            "dsl 20 + drive-b",
            format!("{from} s"),
            [dsl(20.0), b(from)],
        ));
    }
    for from in [0.0, 40.0] {
        let pair = [wide_drive("drive-c-down.csv", from), b(from)];
        cases.push(("drive-c + drive-b", format!("{from} s"), pair));
    }
    let satellite = |from: f64| wide_drive("satellite-c-down.csv", from);
    for from in [10.0, 40.0, 70.0] {
        let name = format!("{from} s");
        let pair = [satellite(from), wide_drive("drive-b-down.csv", from)];
        cases.push(("satellite-c + drive-b", name.clone(), pair));
        let pair = [drive("satellite-c-down.csv", from), a(from - 10.0)];
        cases.push(("satellite-c + drive-a", name.clone(), pair));
        let pair = [drive("drive-c-down.csv", from), a(from - 10.0)];
        cases.push(("drive-c + drive-a", name, pair));
    }
    cases
}

fn mean(outcomes: &[&Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    let logs = outcomes.iter().map(|outcome| of(outcome).max(1e-3).ln());
    (logs.sum::<f64>() / outcomes.len().max(1) as f64).exp()
}

fn lowest(outcomes: &[&Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    let all = outcomes.iter().map(|outcome| of(outcome));
    all.fold(f64::INFINITY, f64::min)
}

#[test]
fn radio_survey() {
    let Ok(wanted) = std::env::var("BRAID_SURVEY") else {
        return;
    };
    let seeds = std::env::var("BRAID_SEEDS").map_or(8, |seeds| seeds.parse().expect("a number"));
    let mut cases = Vec::new();
    for inner in inners() {
        let mut add = |group: &'static str, part: &str, radios: [Radio; 2]| {
            cases.push(Case {
                group,
                name: format!("{group}, {part}"),
                radios: radios.to_vec(),
                inner,
            });
        };
        for seed in 1..=seeds {
            for (group, radios) in walks(seed) {
                add(group, &format!("seed {seed}"), radios);
            }
        }
        if std::env::var_os("BRAID_TRACES").is_some() {
            for (group, part, radios) in recorded() {
                add(group, &part, radios);
            }
        }
    }
    let only = std::env::var("BRAID_CASE").unwrap_or_default();
    cases.retain(|case| case.name.ends_with(&only));
    cases.retain(|case| wanted.split('|').any(|one| case.group.contains(one)));
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = compare(&case.name, &case.radios, 300, case.inner);
                    done.lock()
                        .expect("unpoisoned")
                        .push((case.group, case.inner, outcome));
                }
            });
        }
    });
    let done = done.into_inner().expect("unpoisoned");
    for inner in inners() {
        let mut groups: Vec<&str> = cases.iter().map(|case| case.group).collect();
        groups.sort_unstable();
        groups.dedup();
        groups.push("all");
        for group in groups {
            let of = |one: &&(&str, Inner, Outcome)| {
                one.1 == inner && (group == "all" || one.0 == group)
            };
            let outcomes: Vec<&Outcome> = done.iter().filter(of).map(|one| &one.2).collect();
            println!(
                "{inner:?} {group:24} vs best {:.3} (least {:.2}), share {:.3}, worst 2 s {:.2} (least {:.2}), behind {:.3}, delay +{:.1}/+{:.0} ms, alone +{:.0}/+{:.0}",
                mean(&outcomes, |o| o.vs_best_single),
                lowest(&outcomes, |o| o.vs_best_single),
                mean(&outcomes, |o| o.share_of_offered),
                mean(&outcomes, |o| o.worst_stretch),
                lowest(&outcomes, |o| o.worst_stretch),
                outcomes.iter().map(|o| o.behind).sum::<f64>() / outcomes.len().max(1) as f64,
                mean(&outcomes, |o| o.added_p50),
                mean(&outcomes, |o| o.added_p99),
                mean(&outcomes, |o| o.alone_p50),
                mean(&outcomes, |o| o.alone_p99),
            );
        }
    }
}
