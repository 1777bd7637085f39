//! Conflicts between rules.
//!
//! Rules are evaluated in order, so a later rule never sees the flows of an earlier one. Exceptions are
//! written that way, so a more general later rule is not reported. A rule that can never match, or two
//! rules that overlap in part, may be a mistake.

use super::matcher::IpVersion;
use super::rule::{Action, RuleConfig};

/// A suspicious property of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Conflict {
    /// Its matchers contradict each other.
    Nothing,
    /// The earlier rule at this index matches everything that it matches.
    Hidden(usize),
    /// The earlier rule at this index matches a part of its flows, with another action.
    Overlap(usize),
    /// It is `none`, and takes effect before the earlier rule at this index, which the kernel's routing
    /// cannot express.
    TooEarly(usize),
}

/// Returns the conflict of each rule, by its index.
pub(super) fn conflicts(rules: &[RuleConfig]) -> Vec<(usize, Conflict)> {
    let mut conflicts = Vec::new();
    for (place, rule) in rules.iter().enumerate() {
        if matches_nothing(rule) {
            conflicts.push((place, Conflict::Nothing));
            continue;
        }
        let before = || {
            rules[..place]
                .iter()
                .enumerate()
                .filter(|(_, other)| !matches_nothing(other))
        };
        let hides = |other: &RuleConfig| covers(other, rule) && !too_early(rule, other);
        if let Some((first, _)) = before().find(|(_, other)| hides(other)) {
            conflicts.push((place, Conflict::Hidden(first)));
            continue;
        }
        for (first, other) in before() {
            if !meets(other, rule) {
                continue;
            }
            if too_early(rule, other) {
                conflicts.push((place, Conflict::TooEarly(first)));
            } else if !covers(rule, other) && other.action != rule.action {
                conflicts.push((place, Conflict::Overlap(first)));
            }
        }
    }
    conflicts
}

fn too_early(rule: &RuleConfig, other: &RuleConfig) -> bool {
    rule.action == Action::None && other.action != Action::None && !other.kernel_can_match()
}

fn matches_nothing(rule: &RuleConfig) -> bool {
    let local = !rule.uid.is_empty() || rule.user.is_some() || rule.cgroup.is_some();
    rule.entries().is_empty() || (local && !rule.mac.is_empty())
}

/// Returns true if `big` matches every flow that `small` matches, as far as that is known without
/// querying the machine.
fn covers(big: &RuleConfig, small: &RuleConfig) -> bool {
    lists(&big.source, &small.source, |a, b| a.covers(b))
        && lists(&big.destination, &small.destination, |a, b| a.covers(b))
        && same(&big.protocol, &small.protocol)
        && lists(&big.source_port, &small.source_port, |a, b| a.covers(b))
        && lists(&big.port, &small.port, |a, b| a.covers(b))
        && same(&big.dscp, &small.dscp)
        && lists(&big.mac, &small.mac, |a, b| a == b)
        && lists(&big.domain, &small.domain, |a, b| a.covers(b))
        && lists(&big.uid, &small.uid, |a, b| a.covers(b))
        && same(&big.user, &small.user)
        && group_covers(big, small)
        && big
            .family
            .is_none_or(|family| family_of(small) == Some(family))
}

/// Returns true if some flow matches both.
fn meets(a: &RuleConfig, b: &RuleConfig) -> bool {
    any(&a.source, &b.source, |a, b| a.covers(b) || b.covers(a))
        && any(&a.destination, &b.destination, |a, b| {
            a.covers(b) || b.covers(a)
        })
        && both(&a.protocol, &b.protocol)
        && any(&a.source_port, &b.source_port, |a, b| a.meets(b))
        && any(&a.port, &b.port, |a, b| a.meets(b))
        && both(&a.dscp, &b.dscp)
        && any(&a.mac, &b.mac, |a, b| a == b)
        && any(&a.domain, &b.domain, |a, b| a.meets(b))
        && any(&a.uid, &b.uid, |a, b| a.meets(b))
        && both(&a.user, &b.user)
        && ported(a, b)
        && ported(b, a)
        && !one_local_one_not(a, b)
        && !one_local_one_not(b, a)
        && match (family_of(a), family_of(b)) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        }
}

/// A rule with ports never overlaps one for a protocol without ports.
fn ported(a: &RuleConfig, b: &RuleConfig) -> bool {
    let asks = !a.port.is_empty() || !a.source_port.is_empty();
    !asks || b.protocol.is_none_or(|protocol| protocol.has_ports())
}

fn one_local_one_not(a: &RuleConfig, b: &RuleConfig) -> bool {
    let local = !a.uid.is_empty() || a.user.is_some() || a.cgroup.is_some();
    local && !b.mac.is_empty()
}

/// A group includes those below it.
fn group_covers(big: &RuleConfig, small: &RuleConfig) -> bool {
    match (&big.cgroup, &small.cgroup) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(big), Some(small)) => small.relative().starts_with(big.relative()),
    }
}

/// Returns the only family that a rule can match, if there is only one.
fn family_of(rule: &RuleConfig) -> Option<IpVersion> {
    let only = |prefixes: &[braid_host::config::Prefix]| {
        let first = IpVersion::of(prefixes.first()?.address());
        prefixes
            .iter()
            .all(|p| IpVersion::of(p.address()) == first)
            .then_some(first)
    };
    rule.family
        .or_else(|| only(&rule.source))
        .or_else(|| only(&rule.destination))
}

/// For lists, of which an empty one matches everything.
fn lists<T>(big: &[T], small: &[T], covers: impl Fn(&T, &T) -> bool) -> bool {
    let covered = |small: &T| big.iter().any(|big| covers(big, small));
    big.is_empty() || (!small.is_empty() && small.iter().all(covered))
}

fn any<T>(a: &[T], b: &[T], meets: impl Fn(&T, &T) -> bool) -> bool {
    a.is_empty() || b.is_empty() || a.iter().any(|a| b.iter().any(|b| meets(a, b)))
}

fn same<T: PartialEq>(big: &Option<T>, small: &Option<T>) -> bool {
    big.is_none() || big == small
}

fn both<T: PartialEq>(a: &Option<T>, b: &Option<T>) -> bool {
    a.is_none() || b.is_none() || a == b
}
