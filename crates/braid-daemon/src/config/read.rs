//! From TOML text to a [`Config`], noting all that is wrong on the way.

use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use braid_core::{MAX_UPLINKS, Rate};
use miette::NamedSource;
use toml::de::{DeTable, DeValue};

use super::problem::{ConfigError, Problem};
use super::table::{At, Table, wrong_type};
use super::{ApiConfig, Config, DatapathConfig, Hook, LanConfig, Policy, UplinkConfig};

const TOP: (&str, &[&str]) = (
    "the top level",
    &["policy", "uplink", "lan", "datapath", "api"],
);
const UPLINK: (&str, &[&str]) = (
    "[[uplink]]",
    &[
        "name", "device", "weight", "capacity", "gateway4", "gateway6", "ports",
    ],
);
const LAN: (&str, &[&str]) = ("[lan]", &["devices", "forward"]);
const DATAPATH: (&str, &[&str]) = (
    "[datapath]",
    &["hook", "coexist", "max_flows", "max_embryos"],
);
const API: (&str, &[&str]) = ("[api]", &["group"]);
pub(super) const SECTIONS: &[(&str, &[&str])] = &[TOP, UPLINK, LAN, DATAPATH, API];

/// Weights above this say nothing that a smaller proportion would not.
const MAX_WEIGHT: u32 = 1_000_000;
/// Names become metric labels and table cells.
const MAX_NAME: usize = 32;
/// `IFNAMSIZ` less its final zero.
const MAX_DEVICE: usize = 15;

/// An uplink as read, with the places that checks across uplinks point at.
struct Draft {
    name: At<String>,
    device: At<String>,
    weight: Option<At<u32>>,
    capacity: Option<At<Rate>>,
    /// Neither a weight nor a capacity is written, not even a wrong one.
    shareless: bool,
    config: UplinkConfig,
}

pub(super) fn read(name: &str, text: &str) -> Result<Config, ConfigError> {
    let mut problems = Vec::new();
    let (document, syntax) = DeTable::parse_recoverable(text);
    for error in syntax {
        let at = error.span().unwrap_or(0..0);
        problems.push(Problem::new(error.message(), at, "here"));
    }
    // After a syntax error keys may have landed in the wrong table: what is said about them then
    // would mislead, so meaning waits until the text can be read.
    let mut config = Config::default();
    if problems.is_empty() {
        config = top(document.get_ref(), &mut problems);
    }
    if problems.is_empty() {
        return Ok(config);
    }
    let source = Arc::new(NamedSource::new(name, text.to_owned()));
    problems.sort_by_key(Problem::offset);
    let problems = problems
        .into_iter()
        .map(|problem| problem.within(&source))
        .collect();
    Err(ConfigError::Invalid {
        name: name.to_owned(),
        problems,
    })
}

fn top(document: &DeTable<'_>, problems: &mut Vec<Problem>) -> Config {
    let mut table = Table::new(TOP.0, TOP.1, document);
    let policy = table
        .word("policy", &Policy::NAMES, problems)
        .map(|policy| policy.value);
    let drafts = uplinks(&mut table, problems);
    across_uplinks(&drafts, problems);
    let lan = section(&mut table, "lan", problems).map(|(inner, _)| lan(inner, &drafts, problems));
    let datapath = section(&mut table, "datapath", problems)
        .map_or_else(DatapathConfig::default, |(inner, _)| {
            datapath(inner, problems)
        });
    let api = section(&mut table, "api", problems)
        .map_or_else(ApiConfig::default, |(inner, _)| api(inner, problems));
    table.finish(SECTIONS, problems);

    let weighted = drafts
        .iter()
        .any(|draft| draft.weight.is_some() || draft.capacity.is_some());
    let unsaid = if weighted { Policy::Wrr } else { Policy::Rr };
    let uplinks = drafts.into_iter().map(|draft| draft.config).collect();
    Config {
        policy: policy.unwrap_or(unsaid),
        uplinks,
        lan,
        datapath,
        api,
    }
}

/// Takes out a `[section]`.
fn section<'t, 'i>(
    table: &mut Table<'t, 'i>,
    key: &str,
    problems: &mut Vec<Problem>,
) -> Option<(&'t DeTable<'i>, Range<usize>)> {
    let value = table.take(key)?;
    let inner = value.get_ref().as_table();
    if inner.is_none() {
        let fix = format!("write [{key}] on a line of its own, and its keys below");
        problems.push(wrong_type(key, "a table", value).fix(fix));
    }
    inner.map(|inner| (inner, value.span()))
}

fn uplinks(table: &mut Table<'_, '_>, problems: &mut Vec<Problem>) -> Vec<Draft> {
    let Some(value) = table.take("uplink") else {
        return Vec::new();
    };
    let items = match value.get_ref() {
        DeValue::Array(items) => items,
        _ => {
            let fix = "write [[uplink]], with two brackets, for each of them";
            problems.push(wrong_type("uplink", "a list of tables", value).fix(fix));
            return Vec::new();
        }
    };
    let mut drafts = Vec::new();
    for item in items.iter() {
        match item.get_ref().as_table() {
            Some(inner) => drafts.extend(uplink(inner, item.span(), problems)),
            None => problems.push(wrong_type("uplink", "a list of tables", item)),
        }
    }
    drafts
}

fn uplink(inner: &DeTable<'_>, at: Range<usize>, problems: &mut Vec<Problem>) -> Option<Draft> {
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
    };
    Some(Draft {
        name,
        device,
        weight,
        capacity,
        shareless,
        config,
    })
}

/// A weight: like any count, but the two mistakes that people make get their own advice.
fn weight(table: &mut Table<'_, '_>, problems: &mut Vec<Problem>) -> Option<At<u32>> {
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

fn check_device(device: &At<String>, problems: &mut Vec<Problem>) {
    let name = device.value.as_str();
    let label = match name {
        "" => "empty",
        "lo" => "the loopback leads nowhere",
        "braid0" | "braid1" => "Braid's own device",
        _ if name.len() > MAX_DEVICE => "longer than the 15 characters a device name has",
        // The kernel's own rule. A name becomes part of paths below /proc/sys.
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

fn check_name(name: &At<String>, problems: &mut Vec<Problem>) {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let good = (1..=MAX_NAME).contains(&name.value.len()) && name.value.chars().all(fits);
    if !good {
        let what = format!("no uplink can be called {:?}", name.value);
        let fix = "use 1 to 32 letters, digits, '-', '_' and '.'";
        problems.push(Problem::new(what, name.at.clone(), "this name").fix(fix));
    }
}

fn check_gateways(
    v4: Option<&At<std::net::Ipv4Addr>>,
    v6: Option<&At<std::net::Ipv6Addr>>,
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

/// What only shows when uplinks are seen side by side.
fn across_uplinks(drafts: &[Draft], problems: &mut Vec<Problem>) {
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
        } else if let Some(first) = before.iter().find(|o| o.name.value == draft.name.value) {
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

fn lan(inner: &DeTable<'_>, drafts: &[Draft], problems: &mut Vec<Problem>) -> LanConfig {
    let mut table = Table::new(LAN.0, LAN.1, inner);
    let devices = table.texts("devices", problems);
    let forward = table.truth("forward", problems).unwrap_or(true);
    table.finish(SECTIONS, problems);
    for (i, device) in devices.iter().enumerate() {
        check_device(device, problems);
        if let Some(draft) = drafts
            .iter()
            .find(|draft| draft.device.value == device.value)
        {
            let what = format!("{:?} faces the clients and is an uplink too", device.value);
            problems.push(
                Problem::new(what, device.at.clone(), "a LAN device here")
                    .also(draft.device.at.clone(), "an uplink here")
                    .fix("remove it from one of the two"),
            );
        }
        if let Some(first) = devices[..i]
            .iter()
            .find(|other| other.value == device.value)
        {
            let what = format!("{:?} is listed twice", device.value);
            problems.push(
                Problem::new(what, device.at.clone(), "again here")
                    .also(first.at.clone(), "first here")
                    .fix("remove one of the two"),
            );
        }
    }
    LanConfig {
        devices: devices.into_iter().map(|device| device.value).collect(),
        forward,
    }
}

fn datapath(inner: &DeTable<'_>, problems: &mut Vec<Problem>) -> DatapathConfig {
    let mut table = Table::new(DATAPATH.0, DATAPATH.1, inner);
    let default = DatapathConfig::default();
    let hook = table.word::<Hook>("hook", &["auto", "tcx", "clsact"], problems);
    let coexist = table.truth("coexist", problems);
    let max_flows = table.count("max_flows", 1024..=16_777_216, problems);
    let max_embryos = table.count("max_embryos", 1024..=4_194_304, problems);
    table.finish(SECTIONS, problems);
    DatapathConfig {
        hook: hook.map_or(default.hook, |hook| hook.value),
        coexist: coexist.unwrap_or(default.coexist),
        max_flows: max_flows.map_or(default.max_flows, |n| n.value),
        max_embryos: max_embryos.map_or(default.max_embryos, |n| n.value),
    }
}

fn api(inner: &DeTable<'_>, problems: &mut Vec<Problem>) -> ApiConfig {
    let mut table = Table::new(API.0, API.1, inner);
    let group = table.text("group", problems);
    table.finish(SECTIONS, problems);
    if let Some(empty) = group.as_ref().filter(|group| group.value.is_empty()) {
        let fix = "name a group, or leave the line out for root alone";
        problems.push(Problem::new("no group", empty.at.clone(), "empty").fix(fix));
    }
    ApiConfig {
        group: group.map(|group| group.value),
    }
}
