//! A kernel of a few values in memory: changes, restorations, crashes.

use std::ops::RangeInclusive;

use super::*;

/// A kernel of a few sysctls, and what the last plan saved.
struct Machine {
    values: Values,
    saved: Saved,
}

impl Machine {
    fn new(values: &[(&str, &str)]) -> Machine {
        let values = values
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        Machine {
            values,
            saved: Saved::default(),
        }
    }

    fn take(&mut self, changes: Changes) -> Vec<String> {
        let steps: Vec<_> = changes.writes.into_iter().chain(changes.restores).collect();
        for step in &steps {
            self.values.insert(step.key.clone(), step.value.clone());
        }
        self.saved = changes.saved;
        steps.iter().map(ToString::to_string).collect()
    }

    fn apply(&mut self, uplinks: &[&str], ports: &[RangeInclusive<u16>]) -> Vec<String> {
        let desired = desired(uplinks, ports);
        self.take(changes(&desired, &self.values, &self.saved))
    }

    fn remove(&mut self) -> Vec<String> {
        self.take(restoration(&self.values, &self.saved))
    }
}

fn desired(uplinks: &[&str], ports: &[RangeInclusive<u16>]) -> Desired {
    Desired {
        loose_rp_filter: uplinks.iter().map(ToString::to_string).collect(),
        reserved_ports: ports.to_vec(),
        ..Desired::default()
    }
}

#[test]
fn only_strict_filters_are_loosened_whether_by_device_or_by_all() {
    let key = rp_filter("a");
    for (all, own, expected) in [
        ("0", "0", None),
        ("0", "1", Some("2")),
        ("1", "0", Some("2")),
        ("2", "0", None),
    ] {
        let mut machine = Machine::new(&[(RP_FILTER_ALL, all), (&key, own)]);
        let steps = machine.apply(&["a"], &[]);
        let expected = expected.map(|value| format!("sysctl -w {key}={value}"));
        assert_eq!(steps, Vec::from_iter(expected), "all {all}, own {own}");
        assert_eq!(machine.apply(&["a"], &[]), [""; 0], "not idempotent");
        machine.remove();
        assert_eq!(machine.values[&key], own);
    }
}

#[test]
fn an_uplink_that_goes_gets_its_filter_back() {
    let key = rp_filter("a");
    let mut machine = Machine::new(&[(RP_FILTER_ALL, "0"), (&key, "1")]);
    machine.apply(&["a"], &[]);
    assert_eq!(machine.apply(&[], &[]), [format!("sysctl -w {key}=1")]);
    assert_eq!(machine.apply(&[], &[]), [""; 0]);
    assert_eq!(machine.saved, Saved::default());
    // A device that is gone has nothing to restore.
    machine.apply(&["a"], &[]);
    machine.values.remove(&key);
    assert_eq!(machine.remove(), [""; 0]);
}

#[test]
fn reserved_ports_follow_the_configuration_and_leave_others_alone() {
    let mut machine = Machine::new(&[(RESERVED_PORTS, "8080,17000")]);
    let ports = |machine: &Machine| machine.values[RESERVED_PORTS].clone();
    machine.apply(&[], &[16384..=32767]);
    assert_eq!(ports(&machine), "8080,16384-32767");
    machine.apply(&[], &[20000..=29999]);
    assert_eq!(ports(&machine), "8080,17000,20000-29999");
    machine.values.insert(
        RESERVED_PORTS.to_owned(),
        "17000,20000-29999,40000".to_owned(),
    );
    assert_eq!(machine.apply(&[], &[20000..=29999]), [""; 0]);
    machine.remove();
    assert_eq!(ports(&machine), "17000,40000");
    assert_eq!(machine.remove(), [""; 0]);
}

#[test]
fn what_was_stored_before_a_crash_does_not_confuse_the_next_start() {
    let key = rp_filter("a");
    let mut machine = Machine::new(&[(RP_FILTER_ALL, "0"), (&key, "1")]);
    let desired = desired(&["a"], &[]);
    // Stored, but the step was never taken.
    machine.saved = changes(&desired, &machine.values, &Saved::default()).saved;
    assert_eq!(machine.remove(), [""; 0]);
    machine.saved = changes(&desired, &machine.values, &Saved::default()).saved;
    assert_eq!(machine.apply(&["a"], &[]), [format!("sysctl -w {key}=2")]);
    machine.remove();
    assert_eq!(machine.values[&key], "1");
}

#[test]
fn what_was_saved_follows_renamed_devices() {
    let sysctl = |key: &str, before: &str| SavedSysctl {
        key: key.to_owned(),
        before: before.to_owned(),
        ours: "2".to_owned(),
    };
    let saved = |a: &str, b: &str| Saved {
        sysctls: vec![
            sysctl(&format!("net/ipv4/conf/{a}/rp_filter"), "1"),
            sysctl(&format!("net/ipv6/conf/{b}/accept_ra"), "0"),
            sysctl(RESERVED_PORTS, ""),
            sysctl(V6_FORWARD, "0"),
        ],
    };
    let before = saved("wan.7", "lte");
    assert_eq!(before.renamed(&[]), before);
    assert_eq!(before.renamed(&[("wan.7", "dsl")]), saved("dsl", "lte"));
    let swapped = before.renamed(&[("wan.7", "lte"), ("lte", "wan.7")]);
    assert_eq!(swapped, saved("lte", "wan.7"));
}
