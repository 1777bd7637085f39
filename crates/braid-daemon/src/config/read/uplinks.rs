//! `[[uplink]]`.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::ops::Range;

use braid_core::{MAX_UPLINKS, Rate, Share};
use braid_host::config::{Located, Problem, Quota, Table, tables};
use braid_uplink::OWN_DEVICES;
use toml::de::DeTable;

use super::super::rule::Action;
use super::super::target::Target;
use super::super::uplink::{FIRST_TIER, UplinkConfig};
use super::{SECTIONS, UPLINK};

/// Maximum weight; larger ones add no useful precision.
const MAX_WEIGHT: u32 = 1_000_000;
/// Maximum length of a name, which becomes a metric label and a table cell.
const MAX_NAME_BYTES: usize = 32;
/// Maximum length of a device name: `IFNAMSIZ` less its final zero.
const MAX_DEVICE_BYTES: usize = 15;
/// Maximum tier. Tiers separate cheap from costly uplinks, so there need be no more than uplinks.
const MAX_TIER: u32 = 32;
/// Maximum number of targets per uplink: a burst probes all of them.
const MAX_TARGETS: usize = 16;

/// An uplink as read, with the places that checks across uplinks refer to.
pub(super) struct UplinkDraft {
    pub name: Located<String>,
    pub device: Located<String>,
    weight: Option<Located<u32>>,
    capacity: Option<Located<Rate>>,
    overflow: Option<Range<usize>>,
    /// True if neither a weight nor a capacity is written, not even an invalid one.
    shareless: bool,
    pub config: UplinkConfig,
}

impl UplinkDraft {
    /// Returns true if it has a weight or a capacity.
    pub fn has_share(&self) -> bool {
        self.weight.is_some() || self.capacity.is_some()
    }
}

pub(super) fn uplinks(table: &mut Table<'_, '_>, problems: &mut Vec<Problem>) -> Vec<UplinkDraft> {
    let tables = tables(table, "uplink", problems);
    let drafts: Vec<UplinkDraft> = tables
        .into_iter()
        .filter_map(|(inner, at)| uplink(inner, at, problems))
        .collect();
    across_uplinks(&drafts, problems);
    drafts
}

fn uplink(
    inner: &DeTable<'_>,
    at: Range<usize>,
    problems: &mut Vec<Problem>,
) -> Option<UplinkDraft> {
    let mut table = Table::new(UPLINK.0, UPLINK.1, inner);
    let has = |name: &str| inner.keys().any(|key| key.get_ref() == name);
    let (had_device, shareless) = (has("device"), !has("weight") && !has("capacity"));
    let device = table.text("device", problems);
    let name = table.text("name", problems);
    let weight = weight(&mut table, problems);
    let capacity = table.parsed::<Rate>("capacity", "write it as \"20 Mbit/s\"", problems);
    let gateway4 = table.parsed("gateway4", "write an address like \"192.0.2.1\"", problems);
    let gateway6 = table.parsed("gateway6", "write an address like \"fe80::1\"", problems);
    let ports = table.parsed("ports", "write a range like \"16384-32767\"", problems);
    let tier = table.count("tier", 1..=MAX_TIER, problems);
    let metered = table.boolean("metered", problems);
    let overflow = overflow(&mut table, problems);
    let quota = table.parsed::<Quota>("quota", Quota::FIX, problems);
    let targets = targets(&mut table, problems);
    table.finish(SECTIONS, problems);

    check_gateways(gateway4.as_ref(), gateway6.as_ref(), problems);
    if let (Some(weight), Some(capacity)) = (&weight, &capacity) {
        let what = "an uplink has either a weight or a capacity";
        problems.push(
            Problem::new(
                what,
                capacity.at.clone(),
                "this says the same in another way",
            )
            .also(weight.at.clone(), "the weight")
            .fix("keep one of the two"),
        );
    }
    if let Some(capacity) = capacity
        .as_ref()
        .filter(|rate| rate.value.bits_per_sec() == 0)
    {
        let what = "`capacity` cannot be zero";
        let fix = "leave the uplink out to send nothing over it";
        problems.push(Problem::new(what, capacity.at.clone(), "carries nothing").fix(fix));
    }
    if let (Some(overflow), false) = (&overflow, has("capacity")) {
        let what = "`overflow` needs a capacity";
        problems.push(
            Problem::new(what, overflow.at.clone(), "a part of what?")
                .fix("add a line like capacity = \"20 Mbit/s\""),
        );
    }
    let Some(device) = device else {
        if !had_device {
            let fix = "add a line like device = \"eth0\" (`ip link` lists them)";
            problems.push(Problem::new("an uplink without `device`", at, "this one").fix(fix));
        }
        return None;
    };
    check_device(&device, problems);
    let name = name.unwrap_or_else(|| device.clone());
    check_name(&name, problems);

    let config = UplinkConfig {
        name: name.value.clone(),
        device: device.value.clone(),
        weight: weight
            .as_ref()
            .and_then(|weight| NonZeroU32::new(weight.value)),
        capacity: capacity.as_ref().map(|capacity| capacity.value),
        gateway4: gateway4.map(|gateway| gateway.value),
        gateway6: gateway6.map(|gateway| gateway.value),
        ports: ports.map(|ports| ports.value).unwrap_or_default(),
        tier: tier.map_or(FIRST_TIER, |tier| tier.value as u8),
        metered: metered.unwrap_or(false),
        overflow: overflow.as_ref().map(|share| share.value),
        quota: quota.map(|quota| quota.value),
        targets,
    };
    Some(UplinkDraft {
        name,
        device,
        weight,
        capacity,
        overflow: overflow.map(|overflow| overflow.at),
        shareless,
        config,
    })
}

/// Takes a weight, with specific advice for the two common mistakes.
fn weight(table: &mut Table<'_, '_>, problems: &mut Vec<Problem>) -> Option<Located<u32>> {
    let before = problems.len();
    let weight = table.count("weight", 1..=MAX_WEIGHT, problems);
    if let Some(problem) = problems.get_mut(before) {
        let advice = "a weight is a whole number from 1: 3 and 2 say the same as 1.5 and 1; \
                      leave the uplink out to send nothing over it";
        let bare = Problem::new("", 0..0, "");
        *problem = std::mem::replace(problem, bare).fix(advice);
    }
    weight
}

fn overflow(table: &mut Table<'_, '_>, problems: &mut Vec<Problem>) -> Option<Located<Share>> {
    let fix = "write a share like \"80 %\"";
    let overflow: Located<Share> = table.parsed("overflow", fix, problems)?;
    if overflow.value == Share::NONE {
        let what = "`overflow` cannot be nothing";
        let fix = "to use the next tier always, give its uplinks the same tier";
        problems.push(Problem::new(what, overflow.at.clone(), "0 %").fix(fix));
        return None;
    }
    Some(overflow)
}

/// Takes `targets`, here and in `[liveness]`.
pub(super) fn targets(table: &mut Table<'_, '_>, problems: &mut Vec<Problem>) -> Vec<Target> {
    let targets = table.list::<Target>("targets", Target::FIX, problems);
    super::no_repeats("targets", &targets, problems);
    if let Some(extra) = targets.get(MAX_TARGETS) {
        let what = format!("more than {MAX_TARGETS} targets");
        problems.push(Problem::new(what, extra.at.clone(), "one too many"));
    }
    targets.into_iter().map(|target| target.value).collect()
}

pub(super) fn check_device(device: &Located<String>, problems: &mut Vec<Problem>) {
    let name = device.value.as_str();
    let label = match name {
        "" => "empty",
        "lo" => "the loopback leads nowhere",
        _ if OWN_DEVICES.contains(&name) => "Braid's own device",
        _ if name.len() > MAX_DEVICE_BYTES => "longer than the 15 characters a device name has",
        // The kernel has the same rule. A name becomes part of paths below /proc/sys.
        "." | ".." => "no device has such a name",
        _ if name
            .contains(|c: char| matches!(c, '/' | ':') || c.is_whitespace() || c.is_control()) =>
        {
            "no device has such a name"
        }
        _ => return,
    };
    let what = format!("no uplink on device {name:?}");
    let fix = "name a network device (`ip link` lists them)";
    problems.push(Problem::new(what, device.at.clone(), label).fix(fix));
}

fn check_name(name: &Located<String>, problems: &mut Vec<Problem>) {
    if Action::RESERVED.contains(&name.value.as_str()) {
        let what = format!("no uplink can be called {:?}", name.value);
        let fix = "give it another name";
        let label = "means something else in a rule's `use`";
        problems.push(Problem::new(what, name.at.clone(), label).fix(fix));
    }
    check_label("uplink", name, problems);
}

/// Checks the name of an uplink or a rule, which becomes a metric label and a table cell.
pub(super) fn check_label(kind: &str, name: &Located<String>, problems: &mut Vec<Problem>) {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let good = (1..=MAX_NAME_BYTES).contains(&name.value.len()) && name.value.chars().all(fits);
    if !good {
        let what = format!("no {kind} can be called {:?}", name.value);
        let fix = "use 1 to 32 letters, digits, '-', '_' and '.'";
        problems.push(Problem::new(what, name.at.clone(), "this name").fix(fix));
    }
}

fn check_gateways(
    v4: Option<&Located<Ipv4Addr>>,
    v6: Option<&Located<Ipv6Addr>>,
    problems: &mut Vec<Problem>,
) {
    let bad4 = v4.filter(|a| {
        a.value.is_unspecified()
            || a.value.is_multicast()
            || a.value.is_loopback()
            || a.value.is_broadcast()
    });
    let bad6 =
        v6.filter(|a| a.value.is_unspecified() || a.value.is_multicast() || a.value.is_loopback());
    let both = bad4
        .map(|a| a.at.clone())
        .into_iter()
        .chain(bad6.map(|a| a.at.clone()));
    for at in both {
        let what = "a gateway is one machine on the uplink's network";
        let fix = "write its address (`ip route` shows it after \"via\")";
        problems.push(Problem::new(what, at, "not the address of a machine").fix(fix));
    }
}

/// Checks that either all uplinks of a tier have an `overflow` or none, because load is that of the
/// whole tier.
fn across_tiers(drafts: &[UplinkDraft], problems: &mut Vec<Problem>) {
    for draft in drafts
        .iter()
        .filter(|draft| draft.config.overflow.is_none())
    {
        let tier = draft.config.tier;
        let other = drafts
            .iter()
            .find(|o| o.config.tier == tier && o.overflow.is_some());
        if let Some((other, at)) = other.and_then(|o| Some((o, o.overflow.clone()?))) {
            let what = format!("uplink {:?} has no overflow", draft.name.value);
            let label = format!("is of tier {tier} too");
            let fix = "add a line like overflow = \"80 %\", or give it another tier";
            problems.push(
                Problem::new(what, draft.device.at.clone(), label)
                    .also(at, format!("{:?} has one", other.name.value))
                    .fix(fix),
            );
        }
    }
}

/// Checks that compare uplinks with each other.
fn across_uplinks(drafts: &[UplinkDraft], problems: &mut Vec<Problem>) {
    for (i, draft) in drafts.iter().enumerate() {
        let before = &drafts[..i];
        if let Some(first) = before
            .iter()
            .find(|other| other.device.value == draft.device.value)
        {
            let what = format!("two uplinks on device {:?}", draft.device.value);
            let fix = "give each uplink a device of its own, or remove one of the two";
            problems.push(
                Problem::new(what, draft.device.at.clone(), "again here")
                    .also(first.device.at.clone(), "first here")
                    .fix(fix),
            );
        }
        // Uplinks without a name are called like their devices: the same device twice is one error then.
        let is_named = |draft: &UplinkDraft| draft.name.at != draft.device.at;
        let clashes = |o: &&UplinkDraft| {
            o.name.value == draft.name.value
                && (o.device.value != draft.device.value || is_named(o) && is_named(draft))
        };
        if let Some(first) = before.iter().find(clashes) {
            let what = format!("two uplinks are called {:?}", draft.name.value);
            problems.push(
                Problem::new(what, draft.name.at.clone(), "again here")
                    .also(first.name.at.clone(), "first here")
                    .fix("give each uplink a name of its own"),
            );
        }
    }
    if let Some(extra) = drafts.get(MAX_UPLINKS) {
        let what = format!("more than {MAX_UPLINKS} uplinks");
        problems.push(Problem::new(what, extra.device.at.clone(), "one too many"));
    }
    across_tiers(drafts, problems);
    let capacity = drafts.iter().find_map(|draft| draft.capacity.as_ref());
    let weight = drafts.iter().find_map(|draft| draft.weight.as_ref());
    let one_has_both = drafts
        .iter()
        .any(|d| d.capacity.is_some() && d.weight.is_some());
    if let (Some(capacity), Some(weight), false) = (capacity, weight, one_has_both) {
        let what = "weights and capacities cannot be compared with each other";
        problems.push(
            Problem::new(what, capacity.at.clone(), "a capacity here")
                .also(weight.at.clone(), "a weight here")
                .fix("give every uplink a weight, or every uplink a capacity"),
        );
    }
    if let (Some(capacity), Some(bare)) = (capacity, drafts.iter().find(|d| d.shareless)) {
        let what = format!("uplink {:?} has no capacity, others have", bare.name.value);
        problems.push(
            Problem::new(what, bare.device.at.clone(), "this uplink")
                .also(capacity.at.clone(), "a capacity here")
                .fix("add a line like capacity = \"20 Mbit/s\""),
        );
    }
}
