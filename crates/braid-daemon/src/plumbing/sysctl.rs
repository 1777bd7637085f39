//! Sysctls that Braid changes, and their previous values. Decisions only.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Desired;
use super::ports::Ports;
use super::state::{Family, Step};

pub(super) const RESERVED_PORTS: &str = "net/ipv4/ip_local_reserved_ports";
const V4_FORWARD: &str = "net/ipv4/ip_forward";
const V6_FORWARD: &str = "net/ipv6/conf/all/forwarding";
const V4_REDIRECTS: &str = "net/ipv4/conf/all/accept_redirects";
const RP_FILTER_ALL: &str = "net/ipv4/conf/all/rp_filter";

/// Previous values of changed sysctls. Store them *before* applying the plan that they came with, and pass them
/// to the next plan and to the removal, also in another process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// In the order of the changes; each key at most once.
    pub sysctls: Vec<SavedSysctl>,
}

/// One changed sysctl.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSysctl {
    /// Slash-separated path below `/proc/sys`, for example `net/ipv4/conf/eth0/rp_filter` (device
    /// names may contain dots).
    pub key: String,
    /// The previous value.
    pub before: String,
    /// The value set. Removal leaves a sysctl alone that someone else has changed since. The same as `before`
    /// for one that must be written again after its master switch is restored.
    pub ours: String,
}

impl Saved {
    fn get(&self, key: &str) -> Option<&SavedSysctl> {
        self.sysctls.iter().find(|s| s.key == key)
    }

    /// Returns the same for renamed devices, given as old and new names: the kernel renames their sysctls with
    /// them.
    #[must_use]
    pub fn renamed(&self, devices: &[(&str, &str)]) -> Saved {
        let mut saved = self.clone();
        for sysctl in &mut saved.sysctls {
            let conf = sysctl.key.split_once("/conf/");
            let of = conf.and_then(|(family, rest)| Some((family, rest.rsplit_once('/')?)));
            let Some((family, (device, name))) = of else {
                continue;
            };
            if let Some((_, new)) = devices.iter().find(|(old, _)| *old == device) {
                sysctl.key = format!("{family}/conf/{new}/{name}");
            }
        }
        saved
    }
}

/// Present values by key; missing sysctls are absent.
pub(super) type Values = BTreeMap<String, String>;

/// Sysctls to write, and those to save.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Steps towards the desired state.
    pub writes: Vec<Step>,
    /// Steps back to the previous state, where it is no longer desired otherwise.
    pub restores: Vec<Step>,
    pub saved: Saved,
}

/// Returns the keys that a plan reads, besides those already saved; `devices` are the kernel's own lists of
/// devices below `net/ipv4/conf` and `net/ipv6/conf`.
pub(super) fn keys(desired: &Desired, devices: &[(Family, String)]) -> Vec<String> {
    let mut keys = vec![RESERVED_PORTS.to_owned(), RP_FILTER_ALL.to_owned()];
    for (_, uplink) in &desired.uplinks {
        keys.push(rp_filter(&uplink.device));
        keys.push(accept_ra(&uplink.device));
    }
    if desired.forward {
        keys.extend([V4_FORWARD, V6_FORWARD, V4_REDIRECTS].map(str::to_owned));
        keys.extend(
            devices
                .iter()
                .map(|(family, device)| forwarding(*family, device)),
        );
    }
    keys
}

/// Compares the present with the desired state.
pub(super) fn changes(desired: &Desired, values: &Values, saved: &Saved) -> Changes {
    let mut changes = Changes::default();
    for wish in desired_values(desired, values, saved) {
        if values.get(&wish.key) != Some(&wish.ours) {
            changes.writes.push(write(&wish.key, &wish.ours));
        }
        changes.saved.sysctls.push(wish);
    }
    let undone = saved
        .sysctls
        .iter()
        .filter(|s| changes.saved.get(&s.key).is_none());
    let (restores, kept) = restore(undone.cloned().collect(), values);
    changes.restores = restores;
    changes.saved.sysctls.extend(kept);
    changes
}

/// Returns the steps back to the previous state.
pub(super) fn restoration(values: &Values, saved: &Saved) -> Changes {
    let (restores, kept) = restore(saved.sysctls.clone(), values);
    Changes {
        writes: Vec::new(),
        restores,
        saved: Saved { sysctls: kept },
    }
}

/// Returns the steps back for these, and those of them that have to stay saved until the steps are taken.
fn restore(mut undone: Vec<SavedSysctl>, values: &Values) -> (Vec<Step>, Vec<SavedSysctl>) {
    // Writing a master switch overwrites the sysctls below it, so the switches go first.
    undone.sort_by_key(|s| !is_switch(&s.key));
    let mut steps = Vec::new();
    let mut switched = Vec::new();
    undone.retain(|s| {
        let Some(now) = values.get(&s.key) else {
            return false;
        };
        let again = switched
            .iter()
            .any(|switch: &String| governs(switch, &s.key));
        let value = match before(s, now) {
            Some(value) if *now != value || again => value,
            _ => return false,
        };
        steps.push(write(&s.key, &value));
        switched.extend(is_switch(&s.key).then(|| s.key.clone()));
        true
    });
    (steps, undone)
}

/// Returns the value to restore; `None` if someone else has changed it since.
fn before(saved: &SavedSysctl, now: &str) -> Option<String> {
    if saved.key == RESERVED_PORTS {
        return Some(found_ports(saved, now)?.to_string());
    }
    (now == saved.ours || now == saved.before).then(|| saved.before.clone())
}

/// Returns the reserved ports without Braid's: others may add and remove theirs meanwhile.
fn found_ports(saved: &SavedSysctl, now: &str) -> Option<Ports> {
    let added = Ports::parse(&saved.ours)?.without(&Ports::parse(&saved.before)?);
    Some(Ports::parse(now)?.without(&added))
}

/// Returns every sysctl that should differ from its previous value, in the order of writing.
fn desired_values(desired: &Desired, values: &Values, saved: &Saved) -> Vec<SavedSysctl> {
    let found = |key: &str| {
        let now = values.get(key)?;
        let ours = saved.get(key).filter(|s| s.ours == *now);
        Some(ours.map_or_else(|| now.clone(), |s| s.before.clone()))
    };
    let mut desired_values = Vec::new();
    let mut wish = |key: String, expected: &str, ours: &str| {
        if found(&key).as_deref() == Some(expected) {
            desired_values.push(SavedSysctl {
                key,
                before: expected.to_owned(),
                ours: ours.to_owned(),
            });
        }
    };

    // Packets to the inner address arrive on an uplink whose routes lead elsewhere: strict reverse
    // path filtering (1) would drop them, loose (2) does not. The kernel takes the larger of the
    // device's value and that of `all`.
    let all_strict = found(RP_FILTER_ALL).as_deref() == Some("1");
    for (_, uplink) in desired.uplinks.iter().filter(|(_, u)| u.v4.is_some()) {
        let key = rp_filter(&uplink.device);
        wish(key.clone(), "1", "2");
        if all_strict {
            wish(key, "0", "2");
        }
    }
    if desired.forward {
        // A router ignores router advertisements and forgets what it learned from them, unless accept_ra is 2,
        // so that is set before the switch.
        for (_, uplink) in &desired.uplinks {
            if uplink.v6.as_ref().is_some_and(|x| x.advertised) {
                wish(accept_ra(&uplink.device), "1", "2");
            }
        }
        wish(V4_FORWARD.to_owned(), "0", "1");
        wish(V6_FORWARD.to_owned(), "0", "1");
        let switches: Vec<_> = desired_values
            .iter()
            .filter(|w| is_switch(&w.key))
            .cloned()
            .collect();
        for switch in switches {
            desired_values.extend(governed(&switch.key, values, saved));
        }
    }
    desired_values.extend(ports(desired, values, saved));
    desired_values
}

fn ports(desired: &Desired, values: &Values, saved: &Saved) -> Option<SavedSysctl> {
    let now = values.get(RESERVED_PORTS)?;
    let found = match saved.get(RESERVED_PORTS) {
        Some(saved) => found_ports(saved, now)?,
        None => Ports::parse(now)?,
    };
    let wanted = found.union(&Ports::new(desired.ports.iter().cloned()));
    (wanted != found).then(|| SavedSysctl {
        key: RESERVED_PORTS.to_owned(),
        before: found.to_string(),
        ours: wanted.to_string(),
    })
}

/// Returns the sysctls that a master switch overwrites with a value other than the previous one: forwarding per
/// device where it was on although the switch was off, and the refusal of redirects where it was on although
/// the machine was no router.
fn governed(switch: &str, values: &Values, saved: &Saved) -> Vec<SavedSysctl> {
    if saved
        .get(switch)
        .is_some_and(|s| values.get(switch) == Some(&s.ours))
    {
        let known = saved.sysctls.iter().filter(|s| governs(switch, &s.key));
        return known.cloned().collect();
    }
    let surviving = |key: &str, value: &str| match key {
        V4_REDIRECTS => value == "0",
        _ => value == "1",
    };
    values
        .iter()
        .filter(|(key, value)| governs(switch, key) && surviving(key, value))
        .map(|(key, value)| SavedSysctl {
            key: key.clone(),
            before: value.clone(),
            ours: value.clone(),
        })
        .collect()
}

/// Returns true if these steps switch IPv4 forwarding for every device.
pub(super) fn switches_forwarding(steps: &[Step]) -> bool {
    steps
        .iter()
        .any(|s| matches!(s, Step::Sysctl { key, .. } if key == V4_FORWARD))
}

pub(super) fn write(key: &str, value: &str) -> Step {
    Step::Sysctl {
        key: key.to_owned(),
        value: value.to_owned(),
    }
}

fn is_switch(key: &str) -> bool {
    key == V4_FORWARD || key == V6_FORWARD
}

fn governs(switch: &str, key: &str) -> bool {
    let per_device = |prefix| key.starts_with(prefix) && key.ends_with("/forwarding");
    match switch {
        V4_FORWARD => key == V4_REDIRECTS || per_device("net/ipv4/conf/"),
        V6_FORWARD => key != V6_FORWARD && per_device("net/ipv6/conf/"),
        _ => false,
    }
}

fn rp_filter(device: &str) -> String {
    format!("net/ipv4/conf/{device}/rp_filter")
}

pub(super) fn accept_ra(device: &str) -> String {
    format!("net/ipv6/conf/{device}/accept_ra")
}

fn forwarding(family: Family, device: &str) -> String {
    match family {
        Family::V4 => format!("net/ipv4/conf/{device}/forwarding"),
        Family::V6 => format!("net/ipv6/conf/{device}/forwarding"),
    }
}
