//! The bond among the uplinks.

use super::*;
use crate::config::Settings;

fn bonded(text: &str) -> Settings {
    Settings {
        bonded: true,
        ..settings(text)
    }
}

/// The bond with number 9, beside two uplinks.
fn statuses(up: bool) -> [UplinkStatus; 3] {
    let bond = UplinkStatus {
        bond: true,
        up,
        ..status(9, "bond")
    };
    [status(0, "a"), status(1, "b"), bond]
}

fn update(classes: &mut Classes, settings: &Settings, up: bool) {
    classes.update(Instant::now(), settings, &statuses(up));
}

fn preferred(classes: &Classes, class: u8) -> Option<u8> {
    classes
        .entry(ClassId(class))
        .unwrap()
        .prefers
        .map(|id| id.0)
}

#[test]
fn flows_without_a_rule_take_the_bond_and_its_class_shares_out_what_it_cannot() {
    let mut classes = Classes::default();
    let settings = bonded("");
    update(&mut classes, &settings, true);
    assert_eq!(preferred(&classes, 0), Some(9));
    assert_eq!(counts(&classes, 0), [(0, 512), (1, 512)]);
    assert!((share_of(classes.entries(), UplinkId(9)) - 1.0).abs() < 1e-9);
    assert!(share_of(classes.entries(), UplinkId(0)).abs() < 1e-9);
    update(&mut classes, &settings, false);
    assert_eq!(preferred(&classes, 0), None);
    assert_eq!(counts(&classes, 0), [(0, 512), (1, 512)]);
    assert!((share_of(classes.entries(), UplinkId(0)) - 0.5).abs() < 1e-9);
}

#[test]
fn what_must_not_leave_the_bond_goes_nowhere_without_it() {
    let mut classes = Classes::default();
    let settings = bonded("[bond]\nfallback = 'block'\n[[rule]]\nport = 1\nuse = 'balance'\n");
    for up in [true, false] {
        update(&mut classes, &settings, up);
        assert_eq!(preferred(&classes, 0), up.then_some(9));
        assert_eq!(counts(&classes, 0), []);
        assert_eq!(preferred(&classes, 1), None);
        assert_eq!(counts(&classes, 1), [(0, 512), (1, 512)]);
    }
}

#[test]
fn rules_send_flows_there_and_past_it() {
    let mut classes = Classes::default();
    let settings = bonded(
        "[bond]\nflows = 'ruled'\n\
         [[rule]]\nport = 1\nuse = 'bond'\n\
         [[rule]]\nport = 2\nuse = 'bond'\non_down = 'block'\n\
         [[rule]]\nport = 3\nuse = 'balance'\n\
         [[rule]]\nport = 4\nuse = 'b'\n",
    );
    let class = |classes: &Classes, rule: usize| {
        let rule = &settings.config.rules[rule];
        classes.class_of(&settings, rule).unwrap().0
    };
    for up in [true, false] {
        update(&mut classes, &settings, up);
        assert_eq!(preferred(&classes, 0), None);
        let of = |rule| {
            let class = class(&classes, rule);
            (preferred(&classes, class), counts(&classes, class))
        };
        let bond = up.then_some(9);
        assert_eq!(of(0), (bond, vec![(0, 512), (1, 512)]));
        assert_eq!(of(1), (bond, vec![]));
        assert_eq!(class(&classes, 2), 0, "as without a rule");
        assert_eq!(of(3), (None, vec![(1, 1)]));
    }
}

#[test]
fn whoever_lacks_its_uplink_goes_the_common_way_the_bond_included() {
    let mut classes = Classes::default();
    let settings = bonded("[[rule]]\nport = 1\nuse = 'gone'\n");
    update(&mut classes, &settings, true);
    assert_eq!(preferred(&classes, 1), Some(9));
    assert_eq!(counts(&classes, 1), [(0, 512), (1, 512)]);
}

#[test]
fn nobody_races_over_the_bond() {
    let mut classes = Classes::default();
    let settings = bonded("policy = 'race'\n");
    update(&mut classes, &settings, true);
    let entry = classes.entry(ClassId(0)).unwrap();
    assert_eq!(entry.candidates, [UplinkId(0), UplinkId(1)]);
}

#[test]
fn a_machine_that_joined_no_hub_has_no_bond() {
    let mut classes = Classes::default();
    update(&mut classes, &settings(""), true);
    assert_eq!(preferred(&classes, 0), None);
}
