//! Rules as `bpf/select/rules.h` has them: masks and spans, which a program compares without branches.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::{MAX_RULES, RuleEntry};
use crate::generated::{
    CLASSES, FAMILY_V4, FAMILY_V6, KNOWS_MAC, KNOWS_PORTS, KNOWS_UID, NEEDS_CGROUP, NEEDS_MAC,
    NEEDS_NAMES,
};
use crate::maps::layout::select::{RuleBank, RuleValue};
use crate::maps::layout::{Address, from_ip};
use crate::maps::tables::{Tables, refused};
use crate::{Error, Family};

/// Writes the bank that is not in use, then makes it the one that is. Rules that are in force already
/// are not written again.
pub(crate) fn set_rules(tables: &mut Tables, rules: &[RuleEntry]) -> Result<(), Error> {
    let wanted = bank(rules)?;
    let failed = |error| refused("map rules", &error);
    let active = tables.rules_active.get(&0, 0).map_err(failed)? & 1;
    if tables.rules.get(&active, 0).map_err(failed)? == *wanted {
        return Ok(());
    }
    let next = active ^ 1;
    tables.rules.set(next, wanted, 0).map_err(failed)?;
    tables.rules_active.set(0, next, 0).map_err(failed)
}

fn bank(rules: &[RuleEntry]) -> Result<Box<RuleBank>, Error> {
    if rules.len() > MAX_RULES {
        return refuse(format!("{} of them, at most {MAX_RULES}", rules.len()));
    }
    let mut bank = Box::new(RuleBank {
        count: u32::try_from(rules.len()).expect("at most MAX_RULES"),
        needs: rules.iter().fold(0, |needs, rule| needs | needed(rule)),
        rule: [RuleValue::default(); MAX_RULES],
    });
    for (number, rule) in rules.iter().enumerate() {
        bank.rule[number] = value(number, rule)?;
    }
    Ok(bank)
}

/// Facts that must be looked up for a rule; the others are in the packet.
fn needed(rule: &RuleEntry) -> u32 {
    let mut needs = 0;
    if rule.mac.is_some() {
        needs |= NEEDS_MAC;
    }
    if rule.name.is_some() {
        needs |= NEEDS_NAMES;
    }
    if rule.cgroup.is_some() {
        needs |= NEEDS_CGROUP;
    }
    needs
}

/// A rule in the program's terms.
pub(super) fn value(number: usize, rule: &RuleEntry) -> Result<RuleValue, Error> {
    let class = rule.class.0;
    if u32::from(class) >= CLASSES {
        return refuse(format!("rule {number}: classes go up to {}", CLASSES - 1));
    }
    let mut wanted = RuleValue {
        names: rule.name.map_or(0, super::NameBit::mask),
        cgroup: rule.cgroup.unwrap_or_default(),
        class,
        ..RuleValue::default()
    };
    let (value, mask) = (&mut wanted.value, &mut wanted.mask);
    let mut families = Vec::from_iter(rule.family);
    let ends = [
        (rule.source, &mut value.source, &mut mask.source),
        (rule.dest, &mut value.dest, &mut mask.dest),
    ];
    for (prefix, value, mask) in ends {
        let Some((address, length)) = prefix else {
            continue;
        };
        let Some(bits) = mapped_length(address, length) else {
            return refuse(format!("rule {number}: {address}/{length}: no such prefix"));
        };
        *mask = (!u128::MAX.checked_shr(bits).unwrap_or(0)).to_be_bytes();
        *value = masked(address, mask);
        families.push(super::family_of(address));
    }
    if let Some(&family) = families.first() {
        if families.iter().any(|other| *other != family) {
            return refuse(format!("rule {number}: both ipv4 and ipv6"));
        }
        mask.family = u8::MAX;
        value.family = match family {
            Family::V4 => FAMILY_V4,
            Family::V6 => FAMILY_V6,
        } as u8;
    }
    if let Some(protocol) = rule.protocol {
        (value.protocol, mask.protocol) = (protocol, u8::MAX);
    }
    if let Some(dscp) = rule.dscp {
        (value.dscp, mask.dscp) = (dscp, u8::MAX);
    }
    if let Some(mac) = rule.mac {
        (value.mac, mask.mac) = (mac, [u8::MAX; 6]);
        mask.known |= KNOWS_MAC as u8;
    }
    if rule.uid.is_some() {
        mask.known |= KNOWS_UID as u8;
    }
    if rule.source_ports.is_some() || rule.dest_ports.is_some() {
        mask.known |= KNOWS_PORTS as u8;
    }
    value.known = mask.known;
    let [source, dest] = [&rule.source_ports, &rule.dest_ports].map(Option::as_ref);
    (wanted.source_low, wanted.source_span) = span(number, source, u16::MAX)?;
    (wanted.dest_low, wanted.dest_span) = span(number, dest, u16::MAX)?;
    (wanted.uid_low, wanted.uid_span) = span(number, rule.uid.as_ref(), u32::MAX)?;
    Ok(wanted)
}

/// Bits of a prefix of the address' v4-mapped or IPv6 form.
fn mapped_length(address: IpAddr, length: u8) -> Option<u32> {
    let (before, bits) = match address {
        IpAddr::V4(_) => (96, 32),
        IpAddr::V6(_) => (0, 128),
    };
    (u32::from(length) <= bits).then(|| before + u32::from(length))
}

fn masked(address: IpAddr, mask: &Address) -> Address {
    let whole = from_ip(address);
    std::array::from_fn(|byte| whole[byte] & mask[byte])
}

/// First value and how many more; everything where nothing is asked for.
fn span<T>(number: usize, range: Option<&RangeInclusive<T>>, max: T) -> Result<(T, T), Error>
where
    T: Copy + Default + PartialOrd + std::ops::Sub<Output = T> + std::fmt::Display,
{
    let (low, high) = range.map_or((T::default(), max), |range| (*range.start(), *range.end()));
    if low > high {
        return refuse(format!("rule {number}: {low} to {high}: an empty range"));
    }
    Ok((low, high - low))
}

fn refuse<T>(problem: String) -> Result<T, Error> {
    Err(Error::Invalid {
        what: "rules",
        problem,
    })
}
