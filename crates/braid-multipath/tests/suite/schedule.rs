//! Schedulers: weighted ([mpsdn] §III-C), overflow ([l3b] §3), adaptive.

use std::time::Duration;

use braid_core::{Bytes, Rate, Time};
use braid_multipath::schedule::{
    Adaptive, Choice, Class, Head, Interval, LinkView, Overflow, Parameters, ParametersError,
    Scheduler, Tuning, Weighted,
};
use braid_multipath::{LinkId, RelativeDelay};
use proptest::prelude::*;

const FULL: Bytes = Bytes::new(1500);

fn ms(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

fn head(backlog: u64) -> Head {
    Head {
        len: FULL,
        backlog: Bytes::new(backlog.max(FULL.get())),
        class: Class::Ordered,
        pin: None,
        except: None,
    }
}

/// A link that is ready at `ready` ms, with Mbit/s and a delay in ms.
fn link(id: u8, ready: u64, mbit: u64, delay: i64) -> LinkView {
    LinkView {
        id: LinkId(id),
        tier: 0,
        usable: true,
        ready: Some(ms(ready)),
        rate: Rate::from_bits_per_sec(mbit * 1_000_000),
        delay: RelativeDelay(delay * 1000),
        base: RelativeDelay(delay * 1000),
    }
}

fn sent(choice: Choice) -> Option<u8> {
    match choice {
        Choice::Send { link, .. } => Some(link.0),
        Choice::Wait(_) => None,
    }
}

fn counts(scheduler: &mut dyn Scheduler, links: &[LinkView], packets: usize) -> Vec<usize> {
    let mut counts = vec![0; links.len()];
    for _ in 0..packets {
        let chosen = sent(scheduler.choose(ms(0), &head(0), links)).expect("a link");
        counts[usize::from(chosen)] += 1;
    }
    counts
}

proptest! {
    /// [mpsdn] §III-C: "weighted according to their capacity as w_j = c_j/Σc_i".
    #[test]
    fn paper_weighted_shares_are_those_of_the_capacities(weights in proptest::collection::vec(1u32..100, 1..6),
                                                         burst in 1u32..32) {
        let links: Vec<_> = (0..weights.len() as u8).map(|id| link(id, 0, 10, 0)).collect();
        let given: Vec<_> = weights.iter().enumerate().map(|(i, &w)| (LinkId(i as u8), w)).collect();
        let mut weighted = Weighted::new(&given, burst);
        let packets = 20_000;
        let sum: u32 = weights.iter().sum();
        for (count, weight) in counts(&mut weighted, &links, packets).iter().zip(&weights) {
            let exact = packets as f64 * f64::from(*weight) / f64::from(sum);
            let slack = f64::from(burst) * (weights.len() as f64 + 1.0);
            prop_assert!((*count as f64 - exact).abs() <= slack, "{count} of {exact}");
        }
    }

    /// A bond never waits for ever while a link is usable, and never uses one that is not.
    #[test]
    fn adaptive_uses_only_usable_links_and_does_not_stall(
        specs in proptest::collection::vec((any::<bool>(), 0u64..50, 1u64..200, 0i64..200, 0u8..3, any::<bool>()), 1..6),
        backlog in 0u64..1_000_000) {
        let links: Vec<_> = specs.iter().enumerate().map(|(i, &(usable, ready, rate, delay, tier, full))| {
            LinkView {
                usable,
                tier,
                ready: (!full).then_some(ms(ready)),
                ..link(i as u8, ready, rate, delay)
            }
        }).collect();
        let mut adaptive = Adaptive::default();
        match adaptive.choose(ms(10), &head(backlog), &links) {
            Choice::Send { link, run } => {
                let view = &links[link.index()];
                prop_assert!(view.usable && view.ready.is_some_and(|ready| ready <= ms(10)));
                prop_assert!(run >= FULL && run <= Bytes::new(24_000));
            }
            Choice::Wait(Some(until)) => prop_assert!(until > ms(10)),
            Choice::Wait(None) => {
                // It waits for a report, which one of the cheapest links will bring.
                let usable = || links.iter().filter(|view| view.usable);
                let tier = usable().map(|view| view.tier).min();
                let mut cheap = usable().filter(|view| Some(view.tier) == tier).peekable();
                prop_assert!(cheap.peek().is_none() || cheap.any(|view| view.ready.is_none()));
            }
        }
    }
}

/// Found by a seed of the property above: a dearer link with a full window, admitted by the
/// backlog, made the cheap link wait for it.
#[test]
fn adaptive_does_not_keep_a_cheap_link_waiting_for_a_dearer_one() {
    let dear = LinkView {
        tier: 1,
        ready: None,
        ..link(0, 0, 42, 105)
    };
    let cheap = link(1, 0, 1, 149);
    let choice = Adaptive::default().choose(ms(10), &head(2751), &[dear, cheap]);
    assert_eq!(sent(choice), Some(1));
}

/// A slower link is used once half of its break-even backlog waits, and needs a tenth of that to
/// stay in use while the faster one alone could not carry the sent rate.
#[test]
fn adaptive_keeps_a_slower_link_while_more_is_sent_than_the_faster_one_carries() {
    let mut adaptive = Adaptive::default();
    let slow_is_let_in = |adaptive: &mut Adaptive, at: u64, backlog: u64| {
        let links = [link(0, at + 1, 64, 7), link(1, at, 60, 21)];
        sent(adaptive.choose(ms(at), &head(backlog), &links)) == Some(1)
    };
    let fast = |adaptive: &mut Adaptive, at: u64| {
        let links = [link(0, at, 64, 7), link(1, at + 1, 60, 21)];
        assert_eq!(
            sent(adaptive.choose(ms(at), &head(20_000), &links)),
            Some(0)
        );
    };
    // Some 2.5 ms of the faster link wait at first, and 10 in the end.
    for at in 0..200 {
        fast(&mut adaptive, at);
        assert!(!slow_is_let_in(&mut adaptive, at, 20_000));
    }
    for at in 200..400 {
        fast(&mut adaptive, at);
        assert!(slow_is_let_in(&mut adaptive, at, 80_000));
    }
    assert!(slow_is_let_in(&mut adaptive, 400, 20_000));
    // A millisecond's worth in two is less than the faster one carries.
    for at in (402..700).step_by(2) {
        fast(&mut adaptive, at);
    }
    assert!(!slow_is_let_in(&mut adaptive, 700, 20_000));
}

/// [mpsdn] §III-C: the scheduler "sends bursts of packets along the paths".
#[test]
fn paper_weighted_sends_bursts() {
    let links = [link(0, 0, 10, 0), link(1, 0, 10, 0)];
    let mut weighted = Weighted::new(&[(LinkId(0), 2), (LinkId(1), 1)], 4);
    let order: Vec<_> = (0..24)
        .filter_map(|_| sent(weighted.choose(ms(0), &head(0), &links)))
        .collect();
    for burst in order.chunks(4) {
        assert!(burst.iter().all(|link| *link == burst[0]), "{order:?}");
    }
}

#[test]
fn weighted_passes_over_a_link_that_is_not_usable() {
    let mut links = [link(0, 0, 10, 0), link(1, 0, 10, 0)];
    links[0].usable = false;
    let mut weighted = Weighted::new(&[(LinkId(0), 2), (LinkId(1), 1)], 4);
    assert_eq!(counts(&mut weighted, &links, 10), [0, 10]);
}

const FIXED: LinkId = LinkId(0);
const MOBILE: LinkId = LinkId(1);

fn overflow(parameters: Parameters) -> Overflow {
    Overflow::new(&[FIXED, MOBILE], parameters).expect("valid parameters")
}

/// A report interval of the fixed line.
fn report(overflow: &mut Overflow, at: u64, sent: u64, lost: u64) -> f64 {
    let fixed = Interval {
        link: FIXED,
        sent,
        lost,
    };
    let mobile = Interval {
        link: MOBILE,
        sent: 0,
        lost: 0,
    };
    overflow.handle_interval(ms(at), &[fixed, mobile]);
    overflow.weight(MOBILE)
}

/// [l3b] §3.2: "when w_mobile is zero but loss is reported, IWI increases w_mobile by the number of
/// lost packets".
#[test]
fn paper_iwi_raises_by_the_number_of_lost_packets() {
    let mut overflow = overflow(Parameters::default());
    assert_eq!(overflow.weight(MOBILE), 0.0);
    assert_eq!(report(&mut overflow, 50, 300, 7), 7.0);
}

/// [l3b] §3.1, eq. 1: "w_mobile += k ∗ pktlost/pktsent ∗ w_fixed"; §3.2: "a very small loss fraction
/// would not change w_mobile", so weights are whole.
#[test]
fn paper_awi_follows_equation_1() {
    for k in [0.1, 0.5, 1.0] {
        let mut overflow = overflow(Parameters {
            k,
            ..Parameters::default()
        });
        let first = report(&mut overflow, 50, 300, 1);
        let second = report(&mut overflow, 100, 300, 60);
        assert_eq!(second - first, (k * 0.2 * 50.0).round());
        assert_eq!(report(&mut overflow, 150, 1000, 1), second);
    }
}

/// [l3b] §3.2: w_mobile "is clamped to a maximum value w_mobilemax. This clamp keeps IWI from
/// overshooting"; 45 in §5.2.
#[test]
fn paper_the_weight_is_clamped() {
    let mut overflow = overflow(Parameters::default());
    assert_eq!(report(&mut overflow, 50, 300, 200), 45.0);
}

/// [l3b] §3.3: "After no loss has been reported for T_dwd, DWD decrements w_mobile by one for each
/// interval T_report in which no loss has been reported."
#[test]
fn paper_dwd_waits_and_then_gives_back_one_by_one() {
    let mut overflow = overflow(Parameters::default());
    report(&mut overflow, 50, 300, 10);
    for at in [100, 150, 200, 250] {
        assert_eq!(report(&mut overflow, at, 300, 0), 10.0);
    }
    assert_eq!(report(&mut overflow, 300, 300, 0), 9.0);
    assert_eq!(report(&mut overflow, 350, 300, 0), 8.0);
    assert_eq!(report(&mut overflow, 400, 300, 12), 9.0);
    assert_eq!(report(&mut overflow, 450, 300, 0), 9.0);
}

/// [l3b] §3.3: "T_dwd must be a multiple of T_report".
#[test]
fn paper_t_dwd_must_be_a_multiple_of_t_report() {
    let odd = Parameters {
        t_dwd: Duration::from_millis(120),
        ..Parameters::default()
    };
    let refused = Overflow::new(&[FIXED, MOBILE], odd).expect_err("not a multiple");
    assert_eq!(refused, ParametersError::NotAMultiple);
}

/// [l3b] §3: "a certain fraction of traffic is assigned to each bonded interface … based on the
/// weights for each"; with w_fixed = 50 and w_mobile = 25, two thirds and one.
#[test]
fn paper_traffic_follows_the_weights() {
    let links = [link(0, 0, 10, 0), link(1, 0, 10, 0)];
    let mut overflow = overflow(Parameters::default());
    assert_eq!(counts(&mut overflow, &links, 300), [300, 0]);
    report(&mut overflow, 50, 300, 25);
    assert_eq!(counts(&mut overflow, &links, 300), [200, 100]);
}

/// Beyond the paper: with three links the loss of each feeds the next, and the dearest gives back
/// first.
#[test]
fn overflow_of_three_links_fills_in_cost_order() {
    let links = [LinkId(2), LinkId(0), LinkId(1)];
    let mut overflow = Overflow::new(&links, Parameters::default()).expect("valid");
    let interval = |link: u8, lost| Interval {
        link: LinkId(link),
        sent: 100,
        lost,
    };
    overflow.handle_interval(ms(50), &[interval(2, 5), interval(0, 0)]);
    assert_eq!(
        (overflow.weight(LinkId(0)), overflow.weight(LinkId(1))),
        (5.0, 0.0)
    );
    overflow.handle_interval(ms(100), &[interval(2, 0), interval(0, 3)]);
    assert_eq!(
        (overflow.weight(LinkId(0)), overflow.weight(LinkId(1))),
        (5.0, 3.0)
    );
    for at in [400, 450, 500, 550] {
        overflow.handle_interval(ms(at), &[interval(2, 0), interval(0, 0)]);
    }
    assert_eq!(
        (overflow.weight(LinkId(0)), overflow.weight(LinkId(1))),
        (4.0, 0.0)
    );
}

#[test]
fn overflow_without_its_cheap_link_uses_the_next() {
    let mut links = [link(0, 0, 10, 0), link(1, 0, 10, 0)];
    links[0].usable = false;
    let mut overflow = overflow(Parameters::default());
    assert_eq!(counts(&mut overflow, &links, 10), [0, 10]);
}

#[test]
fn adaptive_takes_the_link_that_delivers_first() {
    // (links, backlog, expected): None is "wait".
    let table = [
        (
            "the faster one",
            [link(0, 0, 50, 15), link(1, 0, 50, 30)],
            1500,
            Some(0),
        ),
        (
            "short backlog waits",
            [link(0, 2, 50, 15), link(1, 0, 50, 30)],
            1500,
            None,
        ),
        (
            "long backlog does not",
            [link(0, 2, 50, 15), link(1, 0, 50, 30)],
            200_000,
            Some(1),
        ),
        (
            "equal delay does not wait",
            [link(0, 2, 50, 15), link(1, 0, 50, 15)],
            3000,
            Some(1),
        ),
        (
            "beyond the budget",
            [link(0, 2, 50, 15), link(1, 0, 50, 150)],
            9_000_000,
            None,
        ),
        (
            "serialization counts",
            [link(0, 0, 1, 15), link(1, 0, 100, 20)],
            1500,
            Some(1),
        ),
    ];
    for (what, links, backlog, expected) in table {
        let choice = Adaptive::default().choose(ms(0), &head(backlog), &links);
        assert_eq!(sent(choice), expected, "{what}");
    }
}

/// The link of 20 ms would deliver each single packet first. A packet that it holds up would hold up
/// all those on the other one.
#[test]
fn adaptive_sends_a_light_load_over_the_link_that_delivers_64_kb_first() {
    let mut adaptive = Adaptive::default();
    let links = |at: u64| [link(0, at, 20, 20), link(1, at, 150, 25)];
    // 12 Mbit/s, in bursts of two packets.
    for at in (0..2000).step_by(2) {
        for _ in 0..2 {
            assert_eq!(
                sent(adaptive.choose(ms(at), &head(0), &links(at))),
                Some(1),
                "at {at} ms"
            );
        }
    }
    // It waits for that link, though not for long.
    let busy = |ready| [link(0, 2000, 20, 20), link(1, ready, 150, 25)];
    assert_eq!(
        adaptive.choose(ms(2000), &head(0), &busy(2001)),
        Choice::Wait(Some(ms(2001)))
    );
    assert_eq!(
        sent(adaptive.choose(ms(2000), &head(0), &busy(2020))),
        Some(0)
    );
    // 120 Mbit/s are no light load.
    let took: Vec<_> = (3000..3200)
        .flat_map(|at| [at; 10])
        .filter_map(|at| sent(adaptive.choose(ms(at), &head(0), &links(at))))
        .collect();
    assert!(took.iter().filter(|link| **link == 0).count() > 1000);
}

#[test]
fn adaptive_stays_among_equals() {
    let links = [link(0, 0, 50, 15), link(1, 0, 50, 15)];
    let mut adaptive = Adaptive::default();
    let first = sent(adaptive.choose(ms(0), &head(0), &links));
    let nearly = [
        link(0, 0, 50, 15),
        LinkView {
            delay: RelativeDelay(14_500),
            ..links[1]
        },
    ];
    assert_eq!(first, Some(0));
    assert_eq!(sent(adaptive.choose(ms(0), &head(0), &nearly)), Some(0));
}

#[test]
fn adaptive_runs_are_a_millisecond_of_the_backlog() {
    let links = [link(0, 0, 100, 15)];
    let run = |backlog| match Adaptive::default().choose(ms(0), &head(backlog), &links) {
        Choice::Send { run, .. } => run.get(),
        Choice::Wait(_) => 0,
    };
    assert_eq!(run(1500), 1500);
    assert_eq!(run(6000), 6000);
    assert_eq!(run(1_000_000), 12_500);
}

#[test]
fn adaptive_spares_the_dear_link_until_the_cheap_one_is_full() {
    let dear = LinkView {
        tier: 1,
        ..link(1, 0, 50, 5)
    };
    let cheap = [link(0, 2, 50, 15), dear];
    // 10 ms of the cheap link are 62,500 bytes, behind the head.
    let mut adaptive = Adaptive::default();
    assert_eq!(sent(adaptive.choose(ms(0), &head(60_000), &cheap)), None);
    assert_eq!(sent(adaptive.choose(ms(0), &head(65_000), &cheap)), Some(1));
    let mut gone = cheap;
    gone[0].usable = false;
    assert_eq!(sent(adaptive.choose(ms(0), &head(1500), &gone)), Some(1));
}

#[test]
fn adaptive_serves_classes() {
    let links = [link(0, 5, 50, 15), link(1, 0, 50, 60)];
    let classed = |class, pin, except| Head {
        class,
        pin,
        except,
        ..head(1500)
    };
    let choose = |head: Head| sent(Adaptive::new(Tuning::default()).choose(ms(0), &head, &links));
    assert_eq!(choose(classed(Class::Ordered, None, None)), None);
    assert_eq!(choose(classed(Class::Unordered, None, None)), Some(1));
    assert_eq!(
        choose(classed(Class::Pinned, Some(LinkId(1)), None)),
        Some(1)
    );
    assert_eq!(choose(classed(Class::Pinned, Some(LinkId(0)), None)), None);
    assert_eq!(
        choose(classed(Class::Redundant, None, Some(LinkId(0)))),
        Some(1)
    );
}
