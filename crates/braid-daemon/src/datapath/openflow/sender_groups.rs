//! Numbers of the control groups that rules name, by which packets tell their sender's group ([`super::senders`]).
//!
//! A socket's groups are one line of descent, so a packet bears one number: that of the deepest group with a rule. A
//! rule is met by the number of its group and by those of groups below.
//!
//! The tables of nftables and the controller's rules do not change at the same moment, and a number must not mean two
//! groups meanwhile: a group keeps its number as long as a rule names it, and the number follows from its kernel id,
//! which a restarted daemon finds unchanged and the kernel never gives again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use braid_balance::RuleEntry;

use crate::rules::SystemIds;

/// Numbers there are, from 1 on; 0 is no group. Rules are as many at most.
const NUMBERS: u64 = 255;

/// A control group that rules name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SenderGroup {
    /// Its path below the cgroup2 mount.
    pub path: PathBuf,
    pub number: u8,
}

/// The groups by kernel id.
#[derive(Debug, Default)]
pub(super) struct SenderGroups(BTreeMap<u64, SenderGroup>);

impl SenderGroups {
    /// Takes over the groups of these rules.
    pub fn set(&mut self, rules: &[RuleEntry], system: &SystemIds) {
        let named: BTreeSet<u64> = rules.iter().filter_map(|rule| rule.cgroup).collect();
        self.0.retain(|id, _| named.contains(id));
        let paths: BTreeMap<u64, PathBuf> = system
            .cgroups
            .iter()
            .map(|(path, id)| (*id, path.relative().to_owned()))
            .collect();
        for (id, path) in paths {
            if !named.contains(&id) || self.0.contains_key(&id) {
                continue;
            }
            if let Some(number) = self.free_number(id) {
                self.0.insert(id, SenderGroup { path, number });
            }
        }
    }

    fn free_number(&self, id: u64) -> Option<u8> {
        let mut numbers = (0..NUMBERS).filter_map(|step| {
            let number = (id % NUMBERS + step) % NUMBERS + 1;
            u8::try_from(number).ok()
        });
        numbers.find(|number| self.0.values().all(|group| group.number != *number))
    }

    /// Returns the numbers of packets that are from this group or from one below it.
    pub fn numbers(&self, id: u64) -> Vec<u8> {
        let Some(top) = self.0.get(&id) else {
            return Vec::new();
        };
        let below = self
            .0
            .values()
            .filter(|group| group.path.starts_with(&top.path));
        below.map(|group| group.number).collect()
    }

    /// Returns the groups with their kernel ids.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &SenderGroup)> {
        self.0.iter().map(|(id, group)| (*id, group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(ids: &[u64]) -> Vec<RuleEntry> {
        let rule = |id: &u64| RuleEntry {
            cgroup: Some(*id),
            ..RuleEntry::default()
        };
        ids.iter().map(rule).collect()
    }

    fn system(groups: &[(&str, u64)]) -> SystemIds {
        let groups = groups.iter().map(|(path, id)| (path.parse().unwrap(), *id));
        SystemIds {
            cgroups: groups.collect(),
            ..SystemIds::default()
        }
    }

    #[test]
    fn a_rule_is_met_by_its_group_and_those_below() {
        let mut groups = SenderGroups::default();
        let machine = system(&[
            ("/work", 10),
            ("/work/a", 11),
            ("/work.slice", 12),
            ("/work/a/b", 13),
        ]);
        groups.set(&rules(&[10, 11, 12, 13]), &machine);
        assert_eq!(groups.numbers(10), [11, 12, 14]);
        assert_eq!(groups.numbers(11), [12, 14]);
        assert_eq!(groups.numbers(12), [13]);
        assert!(groups.numbers(9).is_empty());
    }

    #[test]
    fn a_group_keeps_its_number_and_a_new_one_gets_another() {
        let mut groups = SenderGroups::default();
        groups.set(&rules(&[3, 258]), &system(&[("/a", 3), ("/b", 258)]));
        assert_eq!((groups.numbers(3), groups.numbers(258)), (vec![4], vec![5]));
        // The first is made anew, and its rule follows only once the machine has been looked at again.
        groups.set(&rules(&[3, 258]), &system(&[("/a", 300), ("/b", 258)]));
        assert_eq!((groups.numbers(3), groups.numbers(258)), (vec![4], vec![5]));
        groups.set(&rules(&[300, 258]), &system(&[("/a", 300), ("/b", 258)]));
        assert!(groups.numbers(3).is_empty());
        assert_eq!(
            (groups.numbers(300), groups.numbers(258)),
            (vec![46], vec![5])
        );
    }

    #[test]
    fn as_many_groups_as_rules_have_numbers() {
        let mut groups = SenderGroups::default();
        let ids: Vec<u64> = (1000..1255).collect();
        let paths: Vec<(String, u64)> = ids.iter().map(|id| (format!("/{id}"), *id)).collect();
        let paths: Vec<(&str, u64)> = paths
            .iter()
            .map(|(path, id)| (path.as_str(), *id))
            .collect();
        groups.set(&rules(&ids), &system(&paths));
        let mut numbers: Vec<u8> = ids.iter().flat_map(|id| groups.numbers(*id)).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=255).collect::<Vec<u8>>());
    }
}
