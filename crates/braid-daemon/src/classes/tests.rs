//! Shares of the uplinks in each class's flows.

mod bond;
mod load;
mod race;

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use braid_balance::{ClassId, Family, LbMethod};
use braid_core::UplinkId;
use braid_core::slots::{SLOTS, Weights};
use proptest::prelude::*;

use super::{Classes, UplinkStatus, share_of};
use crate::test_fixtures::{settings, status};

fn weighted(id: u8, weight: u32) -> UplinkStatus {
    UplinkStatus {
        weight: NonZeroU32::new(weight).unwrap(),
        ..status(id, &format!("uplink{id}"))
    }
}

/// Number of slots that each uplink has in a class's IPv4 table.
fn counts(classes: &Classes, class: u8) -> Vec<(u8, usize)> {
    let slots = &classes.entry(ClassId(class)).unwrap().v4;
    let ids = 0..32;
    ids.map(|id| (id, slots.iter().filter(|slot| slot.0 == id).count()))
        .filter(|(_, count)| *count > 0)
        .collect()
}

#[test]
fn without_rules_there_is_one_class() {
    let mut classes = Classes::default();
    let settings = settings("");
    let entries = classes.update(Instant::now(), &settings, &[status(0, "a"), status(1, "b")]);
    assert_eq!(entries.len(), 1);
    assert_eq!(
        (entries[0].id, entries[0].lb_method),
        (ClassId(0), LbMethod::RoundRobin)
    );
    assert_eq!(counts(&classes, 0), [(0, 512), (1, 512)]);
    assert!((share_of(classes.entries(), UplinkId(1)) - 0.5).abs() < 1e-9);
}

#[test]
fn a_degraded_uplink_counts_a_quarter() {
    let mut classes = Classes::default();
    let mut uplinks = [status(0, "a"), status(1, "b")];
    uplinks[1].degraded = true;
    classes.update(Instant::now(), &settings(""), &uplinks);
    assert_eq!(counts(&classes, 0), [(0, 819), (1, 205)]);
    uplinks[0].degraded = true;
    classes.update(Instant::now(), &settings(""), &uplinks);
    assert_eq!(
        counts(&classes, 0),
        [(0, 512), (1, 512)],
        "nobody is better"
    );
}

#[test]
fn only_the_lowest_tier_that_is_up_takes_flows() {
    let mut classes = Classes::default();
    let mut uplinks = [status(0, "a"), status(1, "b"), status(2, "c")];
    uplinks[1].tier = 2;
    uplinks[2].tier = 3;
    let at = Instant::now();
    classes.update(at, &settings(""), &uplinks);
    assert_eq!(counts(&classes, 0), [(0, SLOTS)]);
    uplinks[0].up = false;
    classes.update(at, &settings(""), &uplinks);
    assert_eq!(counts(&classes, 0), [(1, SLOTS)]);
    // A family is served by whoever has it, whatever the tier.
    uplinks[1].v4 = false;
    let entries = classes.update(at, &settings(""), &uplinks);
    assert_eq!(counts(&classes, 0), [(2, SLOTS)]);
    assert!(entries[0].v6.iter().all(|slot| *slot == UplinkId(1)));
    for uplink in &mut uplinks {
        uplink.up = false;
    }
    let entries = classes.update(at, &settings(""), &uplinks);
    assert!(entries[0].v4.is_empty() && entries[0].v6.is_empty());
}

const RULES: &str = "
    [[rule]]
    name = 'calls'
    dscp = 'ef'
    use = 'lte'
    [[rule]]
    name = 'backup'
    port = 873
    use = 'lte'
    on_down = 'block'
    [[rule]]
    name = 'web'
    port = 443
    use = 'hash-source'
    sticky = '10 min'
    [[rule]]
    name = 'plain'
    port = 80
    use = 'rr'
    [[rule]]
    name = 'evil'
    destination = '192.0.2.0/24'
    use = 'block'
    [[rule]]
    name = 'ours'
    destination = '198.51.100.0/24'
    use = 'none'
";

#[test]
fn rules_make_classes_of_what_they_ask_for() {
    let mut classes = Classes::default();
    let settings = settings(RULES);
    let mut uplinks = [status(0, "dsl"), status(1, "lte")];
    let at = Instant::now();
    classes.update(at, &settings, &uplinks);
    let class = |classes: &Classes, name: &str| {
        let rule = settings.rules().find(|rule| rule.name == name).unwrap();
        classes.class_of(&settings, rule)
    };
    let of = |classes: &Classes, name: &str| {
        classes
            .entry(class(classes, name).unwrap())
            .unwrap()
            .clone()
    };
    // A single slot says that there is no choice.
    assert_eq!(of(&classes, "calls").v4, [UplinkId(1)]);
    assert_eq!(of(&classes, "backup").v6, [UplinkId(1)]);
    let web = of(&classes, "web");
    assert_eq!(
        (web.lb_method, web.sticky),
        (LbMethod::HashSource, Some(Duration::from_secs(600)))
    );
    assert_eq!(
        class(&classes, "plain"),
        Some(ClassId(0)),
        "that is the common policy"
    );
    assert!(of(&classes, "evil").v4.is_empty());
    assert_eq!(class(&classes, "ours"), None, "the datapath never sees it");

    uplinks[1].up = false;
    let common = classes.update(at, &settings, &uplinks)[0].clone();
    assert_eq!(of(&classes, "calls").v4, common.v4, "the others take over");
    assert!(
        of(&classes, "backup").v4.is_empty(),
        "nothing of it is ever seen elsewhere"
    );

    uplinks[1].up = true;
    uplinks[1].v6 = false;
    let common = classes.update(at, &settings, &uplinks)[0].clone();
    let calls = of(&classes, "calls");
    assert_eq!((calls.v4, calls.v6), (vec![UplinkId(1)], common.v6));
    assert!(of(&classes, "backup").v6.is_empty());

    // An uplink that nobody has seen yet is one that is down.
    classes.update(at, &settings, &uplinks[..1]);
    assert!(of(&classes, "backup").v4.is_empty() && !of(&classes, "calls").v4.is_empty());
}

#[test]
fn each_class_has_its_own_weights() {
    let settings = settings("policy = 'wrr'\n[[rule]]\nport = 80\nuse = 'rr'\n");
    let mut classes = Classes::default();
    classes.update(Instant::now(), &settings, &[weighted(0, 3), weighted(1, 1)]);
    assert_eq!(counts(&classes, 0), [(0, 768), (1, 256)]);
    assert_eq!(counts(&classes, 1), [(0, 512), (1, 512)]);
}

#[test]
fn a_class_keeps_its_number_while_a_rule_asks_for_it() {
    let mut classes = Classes::default();
    let uplinks = [status(0, "dsl"), status(1, "lte")];
    let (before, at) = (settings(RULES), Instant::now());
    classes.update(at, &before, &uplinks);
    let web = before.rules().find(|rule| rule.name == "web").unwrap();
    let number = classes.class_of(&before, web);
    let blocked = before.rules().find(|rule| rule.name == "evil").unwrap();
    let freed = classes.class_of(&before, blocked).unwrap();
    let after = settings(
        "[[rule]]\nname='new'\nuse='dsl'\n[[rule]]\nport=443\nuse='hash-source'\nsticky='10 min'\n",
    );
    let entries = classes.update(at, &after, &uplinks);
    let mut rules = after.rules();
    let new = classes.class_of(&after, rules.next().unwrap()).unwrap();
    assert_eq!(classes.class_of(&after, rules.next().unwrap()), number);
    assert_ne!(Some(new), number);
    assert_eq!(entries.len(), 3);
    assert!(
        entries
            .iter()
            .all(|entry| entry.id != freed || freed == new)
    );
}

#[test]
fn never_fails_back_until_the_others_die() {
    let settings = settings("failback = 'never'");
    let mut classes = Classes::default();
    let at = Instant::now();
    let mut uplinks = [status(0, "dsl"), status(1, "lte")];
    uplinks[1].tier = 2;
    let shares = |classes: &mut Classes, uplinks: &[UplinkStatus]| {
        classes.update(at, &settings, uplinks);
        counts(classes, 0)
    };
    assert_eq!(shares(&mut classes, &uplinks), [(0, SLOTS)]);
    uplinks[0].up = false;
    assert_eq!(shares(&mut classes, &uplinks), [(1, SLOTS)]);
    uplinks[0].up = true;
    assert_eq!(shares(&mut classes, &uplinks), [(1, SLOTS)], "it waits");
    let waiting: Vec<_> = classes.waiting(&uplinks).map(|s| s.name.as_str()).collect();
    assert_eq!(waiting, ["dsl"]);
    uplinks[1].up = false;
    assert_eq!(
        shares(&mut classes, &uplinks),
        [(0, SLOTS)],
        "there is nobody else"
    );
    uplinks[1].up = true;
    assert_eq!(shares(&mut classes, &uplinks), [(0, SLOTS)]);
    uplinks[0].up = false;
    assert_eq!(shares(&mut classes, &uplinks), [(1, SLOTS)]);
    uplinks[0].up = true;
    assert_eq!(shares(&mut classes, &uplinks), [(1, SLOTS)]);
    classes.allow_failback();
    assert_eq!(
        shares(&mut classes, &uplinks),
        [(0, SLOTS)],
        "the user said so"
    );
}

#[test]
fn a_family_that_only_a_waiting_uplink_has_is_served() {
    let settings = settings("failback = 'never'");
    let mut classes = Classes::default();
    let at = Instant::now();
    let mut uplinks = [status(0, "dsl"), status(1, "lte")];
    uplinks[1].v6 = false;
    classes.update(at, &settings, &uplinks);
    uplinks[0].up = false;
    classes.update(at, &settings, &uplinks);
    uplinks[0].up = true;
    let entry = classes.update(at, &settings, &uplinks)[0].clone();
    assert!(
        entry.v4.iter().all(|slot| *slot == UplinkId(1)),
        "dsl waits"
    );
    assert!(
        entry.v6.iter().all(|slot| *slot == UplinkId(0)),
        "lte has no IPv6"
    );
}

#[test]
fn a_spare_that_failed_unused_is_not_kept_waiting() {
    let settings = settings("failback = 'never'");
    let mut classes = Classes::default();
    let at = Instant::now();
    let mut uplinks = [status(0, "dsl"), status(1, "lte")];
    uplinks[1].tier = 2;
    classes.update(at, &settings, &uplinks);
    uplinks[1].up = false;
    classes.update(at, &settings, &uplinks);
    uplinks[1].up = true;
    classes.update(at, &settings, &uplinks);
    assert_eq!(classes.waiting(&uplinks).count(), 0);
}

#[test]
fn a_restart_goes_on_with_the_tables_that_are_walked() {
    let mut first = Classes::default();
    let uplinks = [weighted(0, 3), weighted(1, 2)];
    let at = Instant::now();
    let entries = first.update(at, &settings("policy='wrr'"), &uplinks);
    let found = braid_core::slots::SlotTable::from_slots(&entries[0].v4).unwrap();
    let mut second = Classes::new(vec![(ClassId(0), Family::V4, found)]);
    assert_eq!(
        second.update(at, &settings("policy='wrr'"), &uplinks)[0].v4,
        entries[0].v4
    );
}

proptest! {
    #[test]
    fn shares_are_exact_and_changes_are_the_smallest(
        before in prop::collection::btree_map(0u8..32, 1u32..1000, 1..12),
        after in prop::collection::btree_map(0u8..32, 1u32..1000, 1..12),
    ) {
        let settings = settings("policy = 'wrr'");
        let uplinks = |weights: &std::collections::BTreeMap<u8, u32>| -> Vec<UplinkStatus> {
            weights.iter().map(|(id, weight)| weighted(*id, *weight)).collect()
        };
        let wanted = |weights: &std::collections::BTreeMap<u8, u32>| {
            let weights = weights.iter().map(|(id, weight)| (UplinkId(*id), *weight));
            Weights::new(weights).unwrap().counts()
        };
        let (mut classes, at) = (Classes::default(), Instant::now());
        let first = classes.update(at, &settings, &uplinks(&before))[0].v4.clone();
        let second = classes.update(at, &settings, &uplinks(&after))[0].v4.clone();
        let have = |slots: &[UplinkId], id: UplinkId| slots.iter().filter(|s| **s == id).count();
        for (slots, wanted) in [(&first, wanted(&before)), (&second, wanted(&after))] {
            for (id, count) in wanted {
                prop_assert_eq!(have(slots, id), count);
            }
        }
        let moved = first.iter().zip(&second).filter(|(a, b)| a != b).count();
        let gained: usize = (0..32).map(UplinkId)
            .map(|id| have(&second, id).saturating_sub(have(&first, id)))
            .sum();
        prop_assert_eq!(moved, gained);
    }

    #[test]
    fn no_flow_goes_to_who_is_down_or_of_a_higher_tier(
        uplinks in prop::collection::vec((any::<bool>(), any::<bool>(), any::<bool>(), 1u8..4), 1..8),
    ) {
        let statuses: Vec<UplinkStatus> = uplinks.iter().zip(0..).map(|((up, v4, v6, tier), id)| {
            UplinkStatus { up: *up, v4: *v4, v6: *v6, tier: *tier, ..weighted(id, 1) }
        }).collect();
        let mut classes = Classes::default();
        let entry = classes.update(Instant::now(), &settings(""), &statuses)[0].clone();
        for (slots, family) in [(&entry.v4, Family::V4), (&entry.v6, Family::V6)] {
            let able = || statuses.iter().filter(|s| s.up && s.has(family));
            let first = able().map(|s| s.tier).min();
            let best: Vec<UplinkId> = able().filter(|s| Some(s.tier) == first).map(|s| s.id).collect();
            prop_assert_eq!(slots.is_empty(), best.is_empty());
            prop_assert!(slots.iter().all(|slot| best.contains(slot)));
            prop_assert!(best.iter().all(|id| slots.contains(id)));
        }
    }
}
