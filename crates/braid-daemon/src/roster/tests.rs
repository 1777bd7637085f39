//! The roster against what may happen to uplinks.

use super::*;
use crate::config::Config;
use crate::settings::Overrides;
use braid_uplink::{Candidate, Rejected};

fn uplink(device: &str, ifindex: u32, v6: bool) -> Uplink {
    let exit = braid_uplink::Exit {
        address: [192, 0, 2, u8::try_from(ifindex).unwrap()].into(),
        gateway: Some([192, 0, 2, 254].into()),
        others: vec![],
        metric: 0,
        advertised: false,
    };
    Uplink {
        name: device.into(),
        device: device.into(),
        ifindex,
        layer: braid_uplink::Layer::L2,
        mtu: 1500,
        v4: Some(exit),
        v6: v6.then(|| braid_uplink::Exit {
            address: "2001:db8::1".parse().unwrap(),
            gateway: None,
            others: vec![],
            metric: 0,
            advertised: true,
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

fn share(roster: &Roster, id: u8) -> f64 {
    roster.share(UplinkId(id))
}

#[test]
fn an_uplink_that_goes_and_comes_keeps_its_number_and_gets_its_share_back() {
    let settings = settings("rr");
    let both = [uplink("a", 1, false), uplink("b", 2, false)];
    let mut roster = Roster::default();
    let (found, snapshot) = seen(&both);
    assert_eq!(
        roster.update(&found, &snapshot, &settings),
        [Change::Taken("a".into()), Change::Taken("b".into())]
    );
    assert_eq!((share(&roster, 0), share(&roster, 1)), (0.5, 0.5));

    let (mut one, _) = seen(&both[1..]);
    one.rejected.push(Rejected {
        candidate: Candidate {
            name: "a".into(),
            device: "a".into(),
        },
        reason: Reason::NoCarrier,
    });
    let gone = Change::Gone("a".into(), "no carrier".into());
    assert_eq!(roster.update(&one, &snapshot, &settings), [gone]);
    assert_eq!((share(&roster, 0), share(&roster, 1)), (0.0, 1.0));
    let accepts: Vec<bool> = roster
        .entries(|_| false)
        .iter()
        .map(|entry| entry.accepts_new)
        .collect();
    assert_eq!(
        accepts,
        [false, true],
        "the entry stays, its flows may live"
    );
    assert_eq!(roster.update(&one, &snapshot, &settings), [], "said once");

    let back = [Change::Back("a".into())];
    assert_eq!(roster.update(&found, &snapshot, &settings), back);
    assert_eq!((share(&roster, 0), share(&roster, 1)), (0.5, 0.5));
}

#[test]
fn a_restarted_daemon_uses_the_same_numbers() {
    let remembered = vec![
        Remembered {
            index: 1,
            device: "b".into(),
            ifindex: 2,
        },
        Remembered {
            index: 0,
            device: "gone".into(),
            ifindex: 5,
        },
    ];
    let mut roster = Roster::new(remembered, None, None);
    let (found, snapshot) = seen(&[uplink("a", 1, false), uplink("b", 2, false)]);
    roster.update(&found, &snapshot, &settings("rr"));
    let ids: Vec<u8> = roster.members().iter().map(|member| member.id.0).collect();
    assert_eq!(ids, [2, 1], "0 belongs to a device that may come back");
}

#[test]
fn each_family_has_its_own_table() {
    let mut roster = Roster::default();
    let (found, snapshot) = seen(&[uplink("a", 1, false), uplink("b", 2, true)]);
    roster.update(&found, &snapshot, &settings("rr"));
    assert_eq!(roster.slots(Family::V4).len(), SLOTS);
    assert!(roster.slots(Family::V6).iter().all(|id| *id == UplinkId(1)));
    let (found, snapshot) = seen(&[uplink("a", 1, false)]);
    roster.update(&found, &snapshot, &settings("rr"));
    assert!(roster.slots(Family::V6).is_empty());
    assert!(!roster.members()[1].present);
    assert_eq!(roster.members()[1].down.as_deref(), Some("no such device"));
}

#[test]
fn a_device_made_anew_has_its_new_index_before_it_is_usable() {
    let mut roster = Roster::default();
    let (found, snapshot) = seen(&[uplink("a", 1, false), uplink("b", 2, false)]);
    roster.update(&found, &snapshot, &settings("rr"));
    let (_, snapshot) = seen(&[uplink("a", 7, false), uplink("b", 2, false)]);
    let (found, _) = seen(&[uplink("b", 2, false)]);
    roster.update(&found, &snapshot, &settings("rr"));
    let indices: Vec<u32> = roster
        .entries(|_| false)
        .iter()
        .map(|entry| entry.ifindex)
        .collect();
    assert_eq!(indices, [7, 2]);
}

fn numbers(roster: &Roster) -> Vec<(u8, &str, u32)> {
    let members = roster.members().iter();
    members
        .map(|m| (m.id.0, m.uplink.device.as_str(), m.uplink.ifindex))
        .collect()
}

#[test]
fn a_renamed_device_is_the_same_uplink() {
    let settings = settings("rr");
    let mut roster = Roster::default();
    let (found, snapshot) = seen(&[uplink("a", 1, false), uplink("b", 2, false)]);
    roster.update(&found, &snapshot, &settings);
    let slots = roster.slots(Family::V4).to_vec();

    let (found, snapshot) = seen(&[uplink("wan", 1, false), uplink("b", 2, false)]);
    let changes = roster.update(&found, &snapshot, &settings);
    assert_eq!(changes, [Change::Renamed("a".into(), "wan".into())]);
    assert_eq!(numbers(&roster), [(0, "wan", 1), (1, "b", 2)]);
    assert_eq!(roster.members()[0].uplink.name, "wan");
    assert_eq!(roster.slots(Family::V4), slots);
    assert_eq!(roster.remembered()[0].device, "wan");

    // Also while no daemon ran.
    let mut next = Roster::new(roster.remembered().to_vec(), SlotTable::found(&slots), None);
    let (found, snapshot) = seen(&[uplink("wan", 1, false), uplink("lte", 2, false)]);
    next.update(&found, &snapshot, &settings);
    assert_eq!(numbers(&next), [(0, "wan", 1), (1, "lte", 2)]);
    assert_eq!(next.slots(Family::V4), slots);

    // Also while it is down and no candidate.
    let (_, snapshot) = seen(&[uplink("dsl", 1, false), uplink("b", 2, false)]);
    let (found, _) = seen(&[uplink("b", 2, false)]);
    roster.update(&found, &snapshot, &settings);
    assert_eq!(numbers(&roster), [(0, "dsl", 1), (1, "b", 2)]);
}

#[test]
fn devices_may_swap_names_or_take_over_one() {
    let settings = settings("rr");
    let mut roster = Roster::default();
    let (found, snapshot) = seen(&[uplink("a", 1, false), uplink("b", 2, false)]);
    roster.update(&found, &snapshot, &settings);
    let (found, snapshot) = seen(&[uplink("b", 1, false), uplink("a", 2, false)]);
    roster.update(&found, &snapshot, &settings);
    assert_eq!(numbers(&roster), [(0, "b", 1), (1, "a", 2)]);
    let known: Vec<_> = roster
        .remembered()
        .iter()
        .map(|r| r.device.as_str())
        .collect();
    assert_eq!(known, ["b", "a"]);

    let (found, snapshot) = seen(&[uplink("b", 1, false)]);
    roster.update(&found, &snapshot, &settings);
    let (found, snapshot) = seen(&[uplink("a", 1, false)]);
    roster.update(&found, &snapshot, &settings);
    assert_eq!(numbers(&roster), [(0, "a", 1)]);
    assert_eq!(roster.remembered().len(), 1);
}

#[test]
fn a_configured_uplink_is_whichever_device_bears_its_name() {
    let text = "[[uplink]]\ndevice='a'\n[[uplink]]\ndevice='b'\n";
    let config = Config::parse("test", text).unwrap();
    let settings = Settings::new(config, &Overrides::default()).unwrap();
    let mut roster = Roster::default();
    let (found, snapshot) = seen(&[uplink("a", 1, false)]);
    roster.update(&found, &snapshot, &settings);
    let (found, snapshot) = seen(&[uplink("b", 1, false)]);
    roster.update(&found, &snapshot, &settings);
    assert_eq!(numbers(&roster), [(0, "a", 1), (1, "b", 1)]);
    let entries = roster.entries(|_| false);
    let entries: Vec<_> = entries.iter().map(|e| (e.id.0, e.ifindex)).collect();
    assert_eq!(entries, [(1, 1)], "no two uplinks on one device");

    // Without that configuration there is only the device.
    let (found, snapshot) = seen(&[uplink("c", 1, false)]);
    roster.update(&found, &snapshot, &self::settings("rr"));
    assert_eq!(numbers(&roster), [(0, "a", 1), (1, "c", 1)]);
}

#[test]
fn a_restarted_daemon_goes_on_with_the_slots_it_finds() {
    let settings = settings("hash-source");
    let mut roster = Roster::default();
    let all = [
        uplink("a", 1, false),
        uplink("b", 2, false),
        uplink("c", 3, false),
    ];
    let (found, snapshot) = seen(&all);
    let (without_a, _) = seen(&all[1..]);
    for found in [&found, &without_a, &found] {
        roster.update(found, &snapshot, &settings);
    }
    let slots = roster.slots(Family::V4).to_vec();
    let restarted = |table| {
        let mut next = Roster::new(roster.remembered().to_vec(), table, None);
        next.update(&found, &snapshot, &settings);
        next.slots(Family::V4).to_vec()
    };
    assert_eq!(restarted(SlotTable::found(&slots)), slots);
    assert_ne!(
        restarted(None),
        slots,
        "moved and moved back, it is another table"
    );
}

#[test]
fn a_reloaded_configuration_changes_weights_and_membership() {
    let config = |text| {
        let config = Config::parse("test", text).unwrap();
        Settings::new(config, &Overrides::default()).unwrap()
    };
    let both = [uplink("a", 1, false), uplink("b", 2, false)];
    let mut roster = Roster::default();
    let (found, snapshot) = seen(&both);
    roster.update(&found, &snapshot, &settings("rr"));
    let three_to_one =
        config("[[uplink]]\ndevice='a'\nweight=3\n[[uplink]]\ndevice='b'\nweight=1\n");
    roster.update(&found, &snapshot, &three_to_one);
    assert_eq!((share(&roster, 0), share(&roster, 1)), (0.75, 0.25));
    let (found, _) = seen(&both[1..]);
    roster.update(&found, &snapshot, &config("[[uplink]]\ndevice='b'\n"));
    let why = roster.members()[0].down.as_deref();
    assert_eq!(why, Some("not in the configuration any more"));
    assert_eq!((share(&roster, 0), share(&roster, 1)), (0.0, 1.0));
}
