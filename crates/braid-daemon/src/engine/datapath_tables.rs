//! Contents of the datapath's tables, and the order in which a change is written.

use std::net::IpAddr;

use braid_balance::{ClassEntry, ClassId, RaceSettings, RuleEntry, UplinkEntry};
use braid_core::UplinkId;

use crate::classes::{gives_flows, share_of};

/// All tables that decide where a new flow goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tables {
    /// Every uplink with a device.
    pub uplinks: Vec<UplinkEntry>,
    /// Every class in use, with its slots.
    pub classes: Vec<ClassEntry>,
    /// Rules that assign flows to classes; the first match decides.
    pub rules: Vec<RuleEntry>,
    /// Settings of races.
    pub race: RaceSettings,
}

impl Tables {
    /// Returns the first phase of a change: everything that must not wait, without what is not ready.
    ///
    /// A dead uplink takes no new flow from this moment. A new uplink, or one with a new device, has no program
    /// yet that would translate the answers. It takes flows in the second phase, when the program is in place;
    /// until then its slots stay with their present uplinks.
    pub fn withdraw_only(&self, applied: &Tables) -> Tables {
        let takes_flows = |entry: &UplinkEntry| {
            let same = |old: &&UplinkEntry| old.id == entry.id && old.ifindex == entry.ifindex;
            applied
                .uplinks
                .iter()
                .find(same)
                .is_some_and(|old| old.accepts_new)
        };
        let mut uplinks = self.uplinks.clone();
        for entry in &mut uplinks {
            entry.accepts_new &= takes_flows(entry);
        }
        if uplinks == self.uplinks {
            return self.clone();
        }
        Tables {
            uplinks,
            ..applied.clone()
        }
    }

    /// Returns true if an uplink takes new flows by these tables.
    pub fn takes_new_flows(&self, id: UplinkId) -> bool {
        let accepts = |entry: &UplinkEntry| entry.id == id && entry.accepts_new;
        self.uplinks.iter().any(accepts) && self.classes.iter().any(|class| gives_flows(class, id))
    }

    /// Returns true if an uplink sends the first packets of flows twice.
    pub fn sends_twice(&self, id: UplinkId) -> bool {
        let sends_twice = |entry: &UplinkEntry| entry.id == id && entry.sends_twice;
        self.uplinks.iter().any(sends_twice)
    }

    /// Returns the fraction of new flows of the default class that an uplink takes.
    pub fn share_of(&self, id: UplinkId) -> f64 {
        match self.takes_new_flows(id) {
            true => share_of(&self.classes, id),
            false => 0.0,
        }
    }

    /// Returns the addresses that uplinks have lost.
    pub fn lost_addresses(&self, applied: &Tables) -> Vec<(UplinkId, IpAddr)> {
        let addresses = |entry: &UplinkEntry| {
            let v4 = entry.v4.map(|next_hop| IpAddr::from(next_hop.address));
            let v6 = entry.v6.map(|next_hop| IpAddr::from(next_hop.address));
            [v4, v6].map(move |address| address.map(|address| (entry.id, address)))
        };
        let all = |tables: &Tables| -> Vec<(UplinkId, IpAddr)> {
            tables
                .uplinks
                .iter()
                .flat_map(addresses)
                .flatten()
                .collect()
        };
        let now = all(self);
        let known = |id| self.uplinks.iter().any(|entry| entry.id == id);
        let mut lost = all(applied);
        // An uplink without its device is dead, which failover handles.
        lost.retain(|old| known(old.0) && !now.contains(old));
        lost
    }

    /// Returns the classes to write before new rules: those of both tables, so that no flow gets a class that
    /// does not exist.
    pub fn classes_of_both(&self, applied: &Tables) -> Vec<ClassEntry> {
        let gone = applied.new_classes(self);
        let gone = |class: &&ClassEntry| gone.contains(&class.id);
        let old = applied.classes.iter().filter(gone);
        self.classes.iter().chain(old).cloned().collect()
    }

    /// Returns the classes that are not in the other tables.
    pub fn new_classes(&self, applied: &Tables) -> Vec<ClassId> {
        let known = |id| applied.classes.iter().any(|class| class.id == id);
        let ids = self.classes.iter().map(|class| class.id);
        ids.filter(|id| !known(*id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use braid_balance::{Layer, LbMethod, NextHop};
    use std::time::Duration;

    const RACE: RaceSettings = RaceSettings {
        cache_ttl: Duration::from_secs(120),
        explore_one_in: 16,
        per_prefix: 8,
        total: 200,
    };

    fn entry(id: u8, ifindex: u32, accepts_new: bool) -> UplinkEntry {
        UplinkEntry {
            id: UplinkId(id),
            ifindex,
            layer: Layer::L2,
            mtu: 1500,
            v4: None,
            v6: None,
            ports: 16384..=32767,
            accepts_new,
            resets_tcp: false,
            epoch: 0,
            leased: false,
            waits: false,
            sends_twice: false,
        }
    }

    fn tables(uplinks: Vec<UplinkEntry>, slots: &[u8]) -> Tables {
        Tables {
            uplinks,
            classes: vec![class(0, slots)],
            rules: vec![],
            race: RACE,
        }
    }

    fn class(id: u8, slots: &[u8]) -> ClassEntry {
        ClassEntry {
            id: ClassId(id),
            lb_method: LbMethod::RoundRobin,
            sticky: None,
            v4: slots.iter().copied().map(UplinkId).collect(),
            v6: Vec::new(),
            prefers: None,
            candidates: Vec::new(),
        }
    }

    #[test]
    fn rules_find_their_classes_whenever_they_look() {
        let with = |classes| Tables {
            uplinks: vec![],
            classes,
            rules: vec![],
            race: RACE,
        };
        let before = with(vec![class(0, &[1]), class(1, &[1])]);
        let after = with(vec![class(0, &[2]), class(2, &[2])]);
        let both = vec![class(0, &[2]), class(2, &[2]), class(1, &[1])];
        assert_eq!(after.classes_of_both(&before), both);
    }

    fn renumbered(id: u8, address: [u8; 4]) -> UplinkEntry {
        UplinkEntry {
            v4: Some(NextHop {
                address: address.into(),
                gateway: None,
                on_link: None,
            }),
            ..entry(id, 1, true)
        }
    }

    #[test]
    fn an_address_that_is_gone_is_noticed() {
        let before = tables(
            vec![renumbered(0, [192, 0, 2, 1]), renumbered(1, [192, 0, 2, 2])],
            &[0, 1],
        );
        let after = tables(vec![renumbered(0, [192, 0, 2, 9])], &[0]);
        let gone = (UplinkId(0), IpAddr::from([192, 0, 2, 1]));
        assert_eq!(after.lost_addresses(&before), [gone]);
        assert_eq!(before.lost_addresses(&before), []);
    }

    #[test]
    fn a_dead_uplink_goes_at_once() {
        let before = tables(vec![entry(0, 1, true), entry(1, 2, true)], &[0, 1]);
        let after = tables(vec![entry(0, 1, false), entry(1, 2, true)], &[1, 1]);
        assert_eq!(after.withdraw_only(&before), after);
    }

    #[test]
    fn a_new_uplink_waits_while_a_dead_one_goes() {
        let before = tables(vec![entry(0, 1, true), entry(1, 2, true)], &[0, 1]);
        let after = tables(
            vec![entry(0, 1, false), entry(1, 2, true), entry(2, 3, true)],
            &[2, 1],
        );
        let first = tables(
            vec![entry(0, 1, false), entry(1, 2, true), entry(2, 3, false)],
            &[0, 1],
        );
        assert_eq!(after.withdraw_only(&before), first);
        assert!(!first.takes_new_flows(UplinkId(2)));
        assert_eq!([1, 2].map(|id| first.share_of(UplinkId(id))), [0.5, 0.0]);
        assert!(after.takes_new_flows(UplinkId(2)));
        assert_eq!([1, 2].map(|id| after.share_of(UplinkId(id))), [0.5, 0.5]);
        // Stopped there and retried, they still wait. The second phase is the whole.
        assert_eq!(after.withdraw_only(&first), first);
        assert_eq!(after.withdraw_only(&after), after);
    }

    #[test]
    fn an_uplink_that_is_back_or_on_a_new_device_waits() {
        let before = tables(vec![entry(0, 1, false), entry(1, 2, true)], &[1, 1]);
        let after = tables(vec![entry(0, 1, true), entry(1, 7, true)], &[0, 1]);
        let first = tables(vec![entry(0, 1, false), entry(1, 7, false)], &[1, 1]);
        assert_eq!(after.withdraw_only(&before), first);
    }
}
