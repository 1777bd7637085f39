//! Tests of the uplink registry.

mod epoch;

use super::*;
use std::time::{Duration, Instant};

use crate::classes::{Classes, share_of};
use crate::config::{Config, Overrides};
use crate::report::PauseOrigin;
use braid_uplink::liveness::{Evidence, WorkingFamilies};
use braid_uplink::{Candidate, Rejected};

fn uplink(device: &str, ifindex: u32, v6: bool) -> Uplink {
    let next_hop = braid_uplink::NextHop {
        address: [192, 0, 2, u8::try_from(ifindex).unwrap()].into(),
        gateway: Some([192, 0, 2, 254].into()),
        others: vec![],
        metric: 0,
        advertised: false,
        on_link: None,
    };
    Uplink {
        name: device.into(),
        device: device.into(),
        ifindex,
        layer: braid_uplink::Layer::L2,
        mtu: 1500,
        v4: Some(next_hop),
        v6: v6.then(|| braid_uplink::NextHop {
            address: "2001:db8::1".parse().unwrap(),
            gateway: None,
            others: vec![],
            metric: 0,
            advertised: true,
            on_link: None,
        }),
        why: "default route".into(),
    }
}

fn seen(uplinks: &[Uplink]) -> (Discovery, Snapshot) {
    let links = uplinks.iter().map(|uplink| Link {
        index: uplink.ifindex,
        name: uplink.device.clone(),
        layer: Some(uplink.layer),
        state: LinkState::Up,
        mtu: uplink.mtu,
    });
    let snapshot = Snapshot {
        links: links.collect(),
        ..Snapshot::default()
    };
    (
        Discovery {
            uplinks: uplinks.to_vec(),
            rejected: vec![],
        },
        snapshot,
    )
}

fn settings(policy: &str) -> Settings {
    let config = Config::parse("test", &format!("policy = \"{policy}\"")).unwrap();
    Settings::new(config, &Overrides::default()).unwrap()
}

fn classes(registry: &UplinkRegistry, settings: &Settings) -> Classes {
    let mut classes = Classes::default();
    let statuses = registry.statuses(settings, |name| settings.tier(name), |_| None);
    classes.update(Instant::now(), settings, &statuses);
    classes
}

fn shares(registry: &UplinkRegistry, settings: &Settings) -> (f64, f64) {
    let classes = classes(registry, settings);
    (
        share_of(classes.entries(), UplinkId(0)),
        share_of(classes.entries(), UplinkId(1)),
    )
}

#[test]
fn an_uplink_that_goes_and_comes_keeps_its_number_and_gets_its_share_back() {
    let settings = settings("rr");
    let both = [uplink("a", 1, false), uplink("b", 2, false)];
    let mut registry = UplinkRegistry::default();
    let (found, snapshot) = seen(&both);
    assert_eq!(
        registry.update(&found, &snapshot, &settings),
        [Change::Taken("a".into()), Change::Taken("b".into())]
    );
    assert_eq!(shares(&registry, &settings), (0.5, 0.5));

    let (mut one, _) = seen(&both[1..]);
    one.rejected.push(Rejected {
        candidate: Candidate {
            name: "a".into(),
            device: "a".into(),
        },
        reason: RejectReason::NoCarrier,
    });
    let gone = Change::Gone("a".into(), "no carrier".into());
    assert_eq!(registry.update(&one, &snapshot, &settings), [gone]);
    assert_eq!(shares(&registry, &settings), (0.0, 1.0));
    let accepts: Vec<bool> = registry
        .entries(|_| false, |_| false)
        .iter()
        .map(|entry| entry.accepts_new)
        .collect();
    assert_eq!(
        accepts,
        [false, true],
        "the entry stays, its flows may live"
    );
    assert_eq!(registry.update(&one, &snapshot, &settings), [], "said once");

    let back = [Change::Back("a".into())];
    assert_eq!(registry.update(&found, &snapshot, &settings), back);
    assert_eq!(shares(&registry, &settings), (0.5, 0.5));
}

#[test]
fn a_restarted_daemon_uses_the_same_numbers() {
    let numbers = vec![
        UplinkNumber {
            index: 1,
            device: "b".into(),
            ifindex: 2,
            failures: 0,
        },
        UplinkNumber {
            index: 0,
            device: "gone".into(),
            ifindex: 5,
            failures: 0,
        },
    ];
    let mut registry = UplinkRegistry::new(numbers);
    let (found, snapshot) = seen(&[uplink("a", 1, false), uplink("b", 2, false)]);
    registry.update(&found, &snapshot, &settings("rr"));
    let ids: Vec<u8> = registry
        .records()
        .iter()
        .map(|record| record.id.0)
        .collect();
    assert_eq!(ids, [2, 1], "0 belongs to a device that may come back");
}

#[test]
fn each_family_has_its_own_uplinks() {
    let mut registry = UplinkRegistry::default();
    let (found, snapshot) = seen(&[uplink("a", 1, false), uplink("b", 2, true)]);
    let settings = settings("rr");
    registry.update(&found, &snapshot, &settings);
    let class = classes(&registry, &settings).entries()[0].clone();
    assert!(class.v4.contains(&UplinkId(0)) && class.v4.contains(&UplinkId(1)));
    assert!(class.v6.iter().all(|id| *id == UplinkId(1)));
    let (found, snapshot) = seen(&[uplink("a", 1, false)]);
    registry.update(&found, &snapshot, &settings);
    assert!(classes(&registry, &settings).entries()[0].v6.is_empty());
    assert!(!registry.records()[1].present);
    assert_eq!(
        registry.records()[1].down.as_deref(),
        Some("no such device")
    );
}

fn look(verdict: Verdict, v4: bool, v6: bool) -> HealthSnapshot {
    HealthSnapshot {
        verdict,
        since: Instant::now(),
        evidence: Evidence::none(),
        families: WorkingFamilies { v4, v6 },
        rtt: Some(Duration::from_millis(20)),
        jitter: None,
        answered: None,
        loss: None,
        probed: None,
        send_error: None,
    }
}

/// Judges two uplinks with both families and says which carries which: `46/4-`.
fn carried(verdicts: [HealthSnapshot; 2]) -> String {
    carried_with(verdicts, &[])
}

/// The same with pauses, of which some are forced.
fn carried_with(verdicts: [HealthSnapshot; 2], pauses: &[(&str, bool)]) -> String {
    let mut registry = UplinkRegistry::default();
    let (found, snapshot) = seen(&[uplink("a", 1, true), uplink("b", 2, true)]);
    registry.update(&found, &snapshot, &settings("rr"));
    registry.judge(|id| verdicts.get(id.index()).cloned());
    let paused = |forced| Pause {
        by: PauseOrigin::CommandLine,
        since_unix_ms: 0,
        until_unix_ms: None,
        forced,
    };
    let pauses = pauses.iter();
    let pauses = pauses.map(|(name, forced)| ((*name).to_owned(), paused(*forced)));
    registry.set_pauses(&pauses.collect());
    let of = |record: &UplinkRecord| {
        let word = |family, word| match registry.carries(record, family) {
            true => word,
            false => "-",
        };
        [word(Family::V4, "4"), word(Family::V6, "6")].concat()
    };
    let records: Vec<String> = registry.records().iter().map(of).collect();
    records.join("/")
}

#[test]
fn who_is_dead_takes_no_new_flows_unless_everybody_is() {
    use Verdict::{Dead, Degraded, Portal, Up};
    let both = |verdict| look(verdict, true, true);
    assert_eq!(carried([both(Up), both(Up)]), "46/46");
    assert_eq!(carried([both(Dead), both(Up)]), "--/46");
    assert_eq!(carried([both(Portal), both(Degraded)]), "--/46");
    assert_eq!(carried([both(Dead), both(Dead)]), "46/46");
    assert_eq!(carried([both(Dead), both(Portal)]), "46/46");
    // One family alone: the other's flows stay, its own go where it works, or where it may.
    assert_eq!(carried([look(Up, true, false), both(Up)]), "4-/46");
    assert_eq!(carried([both(Dead), look(Up, true, false)]), "--/46");
}

#[test]
fn who_is_paused_stands_in_for_dead_lines_unless_by_force() {
    use Verdict::{Dead, Portal, Up};
    let both = |verdict| look(verdict, true, true);
    let a = |forced| [("a", forced)];
    assert_eq!(
        carried_with([both(Up), both(Up)], &a(false)),
        "--/46",
        "b works"
    );
    assert_eq!(
        carried_with([both(Up), both(Dead)], &a(false)),
        "46/--",
        "a stands in"
    );
    assert_eq!(carried_with([both(Up), both(Portal)], &a(false)), "46/--");
    assert_eq!(
        carried_with([both(Up), both(Dead)], &a(true)),
        "--/46",
        "b is better than nothing"
    );
    assert_eq!(carried_with([both(Dead), both(Dead)], &a(false)), "--/46");
    // Programs fall back from one family to the other, as with a dead line.
    assert_eq!(
        carried_with([both(Up), look(Up, false, true)], &a(false)),
        "--/46"
    );
    let all = [("a", false), ("b", false)];
    assert_eq!(carried_with([both(Up), both(Up)], &all), "46/46");
    assert_eq!(carried_with([both(Dead), both(Up)], &all), "--/46");
    assert_eq!(
        carried_with([both(Up), both(Up)], &[("a", true), ("b", true)]),
        "--/--"
    );
}

#[test]
fn the_bond_is_no_other_line() {
    let mut registry = UplinkRegistry::default();
    let mut bond = uplink("bond", 2, false);
    bond.device = braid_uplink::BOND_DEVICE.into();
    let (found, snapshot) = seen(&[uplink("dsl", 1, false), bond]);
    registry.update(&found, &snapshot, &settings("rr"));
    let [dsl, bond] = registry.records() else {
        panic!("two uplinks")
    };
    assert!(!registry.has_other_line(dsl), "the bond needs it");
    assert!(registry.has_other_line(bond));
    assert!(registry.has_alternative(dsl));
}

#[test]
fn flows_leave_an_uplink_only_for_one_that_works() {
    let mut registry = UplinkRegistry::default();
    let (found, snapshot) = seen(&[uplink("a", 1, true), uplink("b", 2, false)]);
    registry.update(&found, &snapshot, &settings("rr"));
    let has_alternative = |registry: &UplinkRegistry| -> Vec<bool> {
        let records = registry.records().iter();
        records
            .map(|record| registry.has_alternative(record))
            .collect()
    };
    assert_eq!(has_alternative(&registry), [true, true]);
    registry.judge(|id| (id.0 == 0).then(|| look(Verdict::Dead, false, false)));
    assert_eq!(
        has_alternative(&registry),
        [true, false],
        "b has no better one"
    );
    assert!(registry.records()[0].is_dead() && !registry.records()[1].is_dead());
    let entries = registry.entries(UplinkRecord::is_dead, |_| false);
    let tells: Vec<bool> = entries.iter().map(|entry| entry.resets_tcp).collect();
    assert_eq!(tells, [true, false]);
}

#[test]
fn only_what_stops_every_packet_cuts() {
    for (reason, cut) in [
        (RejectReason::NoCarrier, true),
        (RejectReason::AdminDown, true),
        (RejectReason::NoAddress, true),
        (RejectReason::NoRoute, false),
    ] {
        let mut registry = UplinkRegistry::default();
        let (found, snapshot) = seen(&[uplink("a", 1, false)]);
        registry.update(&found, &snapshot, &settings("rr"));
        let (mut none, _) = seen(&[]);
        none.rejected.push(Rejected {
            candidate: Candidate {
                name: "a".into(),
                device: "a".into(),
            },
            reason,
        });
        registry.update(&none, &snapshot, &settings("rr"));
        assert_eq!(registry.records()[0].is_dead(), cut, "{none:?}");
    }
}

#[test]
fn a_device_made_anew_has_its_new_index_before_it_is_usable() {
    let mut registry = UplinkRegistry::default();
    let (found, snapshot) = seen(&[uplink("a", 1, false), uplink("b", 2, false)]);
    registry.update(&found, &snapshot, &settings("rr"));
    let (_, snapshot) = seen(&[uplink("a", 7, false), uplink("b", 2, false)]);
    let (found, _) = seen(&[uplink("b", 2, false)]);
    registry.update(&found, &snapshot, &settings("rr"));
    let indices: Vec<u32> = registry
        .entries(|_| false, |_| false)
        .iter()
        .map(|entry| entry.ifindex)
        .collect();
    assert_eq!(indices, [7, 2]);
}

fn numbers(registry: &UplinkRegistry) -> Vec<(u8, &str, u32)> {
    let records = registry.records().iter();
    records
        .map(|m| (m.id.0, m.uplink.device.as_str(), m.uplink.ifindex))
        .collect()
}

#[test]
fn a_renamed_device_is_the_same_uplink() {
    let settings = settings("rr");
    let mut registry = UplinkRegistry::default();
    let (found, snapshot) = seen(&[uplink("a", 1, false), uplink("b", 2, false)]);
    registry.update(&found, &snapshot, &settings);

    let (found, snapshot) = seen(&[uplink("wan", 1, false), uplink("b", 2, false)]);
    let changes = registry.update(&found, &snapshot, &settings);
    assert_eq!(changes, [Change::Renamed("a".into(), "wan".into())]);
    assert_eq!(numbers(&registry), [(0, "wan", 1), (1, "b", 2)]);
    assert_eq!(registry.records()[0].uplink.name, "wan");
    assert_eq!(registry.numbers()[0].device, "wan");

    // Also while no daemon ran.
    let mut next = UplinkRegistry::new(registry.numbers().to_vec());
    let (found, snapshot) = seen(&[uplink("wan", 1, false), uplink("lte", 2, false)]);
    next.update(&found, &snapshot, &settings);
    assert_eq!(numbers(&next), [(0, "wan", 1), (1, "lte", 2)]);

    // Also while it is down and no candidate.
    let (_, snapshot) = seen(&[uplink("dsl", 1, false), uplink("b", 2, false)]);
    let (found, _) = seen(&[uplink("b", 2, false)]);
    registry.update(&found, &snapshot, &settings);
    assert_eq!(numbers(&registry), [(0, "dsl", 1), (1, "b", 2)]);
}

#[test]
fn devices_may_swap_names_or_take_over_one() {
    let settings = settings("rr");
    let mut registry = UplinkRegistry::default();
    let (found, snapshot) = seen(&[uplink("a", 1, false), uplink("b", 2, false)]);
    registry.update(&found, &snapshot, &settings);
    let (found, snapshot) = seen(&[uplink("b", 1, false), uplink("a", 2, false)]);
    registry.update(&found, &snapshot, &settings);
    assert_eq!(numbers(&registry), [(0, "b", 1), (1, "a", 2)]);
    let known: Vec<_> = registry
        .numbers()
        .iter()
        .map(|r| r.device.as_str())
        .collect();
    assert_eq!(known, ["b", "a"]);

    let (found, snapshot) = seen(&[uplink("b", 1, false)]);
    registry.update(&found, &snapshot, &settings);
    let (found, snapshot) = seen(&[uplink("a", 1, false)]);
    registry.update(&found, &snapshot, &settings);
    assert_eq!(numbers(&registry), [(0, "a", 1)]);
    assert_eq!(registry.numbers().len(), 1);
}

#[test]
fn a_configured_uplink_is_whichever_device_bears_its_name() {
    let text = "[[uplink]]\ndevice='a'\n[[uplink]]\ndevice='b'\n";
    let config = Config::parse("test", text).unwrap();
    let settings = Settings::new(config, &Overrides::default()).unwrap();
    let mut registry = UplinkRegistry::default();
    let (found, snapshot) = seen(&[uplink("a", 1, false)]);
    registry.update(&found, &snapshot, &settings);
    let (found, snapshot) = seen(&[uplink("b", 1, false)]);
    registry.update(&found, &snapshot, &settings);
    assert_eq!(numbers(&registry), [(0, "a", 1), (1, "b", 1)]);
    let entries = registry.entries(|_| false, |_| false);
    let entries: Vec<_> = entries.iter().map(|e| (e.id.0, e.ifindex)).collect();
    assert_eq!(entries, [(1, 1)], "no two uplinks on one device");

    // Without that configuration there is only the device.
    let (found, snapshot) = seen(&[uplink("c", 1, false)]);
    registry.update(&found, &snapshot, &self::settings("rr"));
    assert_eq!(numbers(&registry), [(0, "a", 1), (1, "c", 1)]);
}

#[test]
fn a_reloaded_configuration_changes_weights_and_membership() {
    let config = |text| {
        let config = Config::parse("test", text).unwrap();
        Settings::new(config, &Overrides::default()).unwrap()
    };
    let both = [uplink("a", 1, false), uplink("b", 2, false)];
    let mut registry = UplinkRegistry::default();
    let (found, snapshot) = seen(&both);
    registry.update(&found, &snapshot, &config(""));
    let settings = config("[[uplink]]\ndevice='a'\nweight=3\n[[uplink]]\ndevice='b'\nweight=1\n");
    registry.update(&found, &snapshot, &settings);
    assert_eq!(shares(&registry, &settings), (0.75, 0.25));
    let (found, _) = seen(&both[1..]);
    let settings = config("[[uplink]]\ndevice='b'\n");
    registry.update(&found, &snapshot, &settings);
    let why = registry.records()[0].down.as_deref();
    assert_eq!(why, Some("not in the configuration any more"));
    assert_eq!(shares(&registry, &settings), (0.0, 1.0));
}
