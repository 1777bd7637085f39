//! Candidates of races.

use std::time::Instant;

use braid_balance::{ClassEntry, ClassId, LbMethod};
use braid_core::{Rate, UplinkId};

use super::{settings, status};
use crate::classes::{Classes, Headroom, Load, UplinkStatus};

fn entries(text: &str, statuses: &[UplinkStatus]) -> Vec<ClassEntry> {
    Classes::default().update(Instant::now(), &settings(text), statuses)
}

fn candidates(text: &str, statuses: &[UplinkStatus]) -> Vec<u8> {
    let entries = entries(text, statuses);
    entries[0].candidates.iter().map(|id| id.0).collect()
}

fn three() -> [UplinkStatus; 3] {
    [status(0, "a"), status(1, "b"), status(2, "c")]
}

#[test]
fn policies_race_on_all_that_work_and_share_out_the_rest() {
    let found = entries("policy = 'race'", &three());
    assert_eq!(found[0].lb_method, LbMethod::Race);
    assert_eq!(found[0].candidates, [0, 1, 2].map(UplinkId));
    assert_eq!(found[0].v4.len(), 1024, "what is not raced has slots");
    assert_eq!(
        entries("policy = 'fastest'", &three())[0].lb_method,
        LbMethod::Fastest
    );
    assert!(candidates("policy = 'wrr'", &three()).is_empty());
    let mut uplinks = three();
    uplinks[1].up = false;
    assert_eq!(candidates("policy = 'race'", &uplinks), [0, 2]);
}

#[test]
fn a_rule_may_race_what_the_rest_does_not() {
    let text = "[[rule]]\nport = 443\nuse = 'fastest'\n[[rule]]\nport = 25\nuse = 'block'";
    let found = entries(text, &three());
    let walks: Vec<LbMethod> = found.iter().map(|class| class.lb_method).collect();
    assert!(walks.contains(&LbMethod::Fastest));
    for class in &found {
        let races = class.lb_method == LbMethod::Fastest;
        assert_eq!(
            class.candidates.len(),
            if races { 3 } else { 0 },
            "{class:?}"
        );
        assert!(races || class.id != ClassId(1));
    }
}

#[test]
fn what_costs_money_is_raced_only_when_asked() {
    let mut uplinks = three();
    uplinks[2].metered = true;
    assert_eq!(candidates("policy = 'race'", &uplinks), [0, 1]);
    let asked = "policy = 'race'\n[race]\nmetered = true";
    assert_eq!(candidates(asked, &uplinks), [0, 1, 2]);
}

#[test]
fn only_the_lowest_tier_races_and_not_while_the_next_one_helps() {
    let text = "
        policy = 'race'
        [[uplink]]
        name = 'a'
        device = 'a'
        capacity = '10 Mbit/s'
        overflow = '50 %'
        [[uplink]]
        name = 'b'
        device = 'b'
        capacity = '10 Mbit/s'
        overflow = '50 %'
        [[uplink]]
        name = 'c'
        device = 'c'
        capacity = '10 Mbit/s'
        tier = 2
    ";
    let mut uplinks = three();
    uplinks[2].tier = 2;
    assert_eq!(candidates(text, &uplinks), [0, 1]);
    for uplink in &mut uplinks[..2] {
        uplink.load = Some(Load {
            tx: Rate::from_bits_per_sec(9_000_000),
            rx: Rate::from_bits_per_sec(0),
            measured: None,
            at_least: Rate::from_bits_per_sec(0),
            stall: None,
        });
        uplink.capacity = Some(Rate::from_bits_per_sec(10_000_000));
    }
    let helped = candidates(text, &uplinks);
    assert!(
        helped.is_empty(),
        "raced, flows would stay on the full tier"
    );
}

#[test]
fn a_lossy_uplink_leaves_the_race_as_long_as_two_others_run() {
    let mut uplinks = three();
    uplinks[1].degraded = true;
    assert_eq!(candidates("policy = 'race'", &uplinks), [0, 2]);
    assert_eq!(candidates("policy = 'fastest'", &uplinks), [0, 1, 2]);
    uplinks[0].degraded = true;
    assert_eq!(candidates("policy = 'race'", &uplinks), [0, 1, 2]);
}

#[test]
fn an_uplink_that_may_race_for_one_family_alone_races_for_none_that_it_carries_otherwise() {
    let mut uplinks = three();
    // The only one for IPv6 is of a later tier: there it carries, it does not race for IPv4.
    uplinks[0].v6 = false;
    uplinks[1].v6 = false;
    uplinks[2].tier = 2;
    assert_eq!(candidates("policy = 'race'", &uplinks), [0, 1]);
    // An uplink that lacks a family still races for the other.
    uplinks[2].tier = 1;
    assert_eq!(candidates("policy = 'race'", &uplinks), [0, 1, 2]);
}

#[test]
fn room_is_what_is_configured_or_what_was_seen() {
    let mut classes = Classes::default();
    let settings = settings("policy = 'fastest'");
    let mut uplinks = three();
    let load = |mbit: u64| {
        let rate = |mbit: u64| Rate::from_bits_per_sec(mbit * 1_000_000);
        Some(Load {
            tx: rate(0),
            rx: rate(mbit),
            measured: None,
            at_least: Rate::from_bits_per_sec(0),
            stall: None,
        })
    };
    let room = |capacity: u64, spare: u64| {
        let rate = |mbit: u64| Rate::from_bits_per_sec(mbit * 1_000_000);
        Some(Headroom {
            capacity: rate(capacity),
            spare: rate(spare),
        })
    };
    uplinks[0].load = load(3);
    uplinks[1].load = load(0);
    uplinks[1].capacity = Some(Rate::from_bits_per_sec(20_000_000));
    classes.update(Instant::now(), &settings, &uplinks);
    assert_eq!(
        classes.headroom(UplinkId(0)),
        None,
        "3 Mbit/s are no line's all"
    );
    assert_eq!(classes.headroom(UplinkId(1)), room(20, 20));
    let mut classes = Classes::default();
    uplinks[0].load = load(30);
    uplinks[1].load = load(25);
    classes.update(Instant::now(), &settings, &uplinks);
    assert_eq!(classes.headroom(UplinkId(0)), room(30, 0));
    assert_eq!(classes.headroom(UplinkId(1)), room(20, 0));
    assert_eq!(classes.headroom(UplinkId(2)), room(30, 30));
}
