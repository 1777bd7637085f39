//! Reads a [`Config`] from TOML text and collects all errors.

mod bond;
mod liveness;
mod race;
mod rules;
mod uplinks;

use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use miette::NamedSource;
use toml::de::{DeTable, DeValue};

use super::policy::{Failback, Policy};
use super::problem::{ConfigError, Problem, Warnings};
use super::table::{Located, Table, wrong_type};
use super::{
    ApiConfig, BondConfig, Config, DatapathConfig, Hook, LanConfig, LivenessConfig, MetricsConfig,
    NameServers, RaceConfig,
};
use uplinks::UplinkDraft;

const TOP: (&str, &[&str]) = (
    "the top level",
    &[
        "policy",
        "sticky",
        "failback",
        "name_servers",
        "uplink",
        "liveness",
        "race",
        "bond",
        "rule",
        "lan",
        "datapath",
        "api",
        "metrics",
    ],
);
const UPLINK: (&str, &[&str]) = (
    "[[uplink]]",
    &[
        "name", "device", "weight", "capacity", "gateway4", "gateway6", "ports", "tier", "metered",
        "overflow", "quota", "targets",
    ],
);
const LIVENESS: (&str, &[&str]) = (
    "[liveness]",
    &[
        "enabled",
        "targets",
        "quorum",
        "interval",
        "metered_interval",
        "rise",
        "tcp_reset",
        "portal",
        "portal_expect",
        "degraded_loss",
        "degraded_rtt",
    ],
);
const RACE: (&str, &[&str]) = (
    "[race]",
    &[
        "cache_ttl",
        "explore_one_in",
        "per_destination",
        "total",
        "metered",
    ],
);
const BOND: (&str, &[&str]) = (
    "[bond]",
    &[
        "flows",
        "fallback",
        "scheduler",
        "encapsulation",
        "overflow",
        "reordering",
        "reordering_timeout",
    ],
);
const OVERFLOW: (&str, &[&str]) = (
    "[bond.overflow]",
    &["k", "t_dwd", "t_report", "w_fixed", "w_max"],
);
const RULE: (&str, &[&str]) = (
    "[[rule]]",
    &[
        "name",
        "source",
        "destination",
        "protocol",
        "source_port",
        "port",
        "dscp",
        "mac",
        "domain",
        "uid",
        "user",
        "cgroup",
        "family",
        "use",
        "on_down",
        "sticky",
        "class",
    ],
);
const LAN: (&str, &[&str]) = ("[lan]", &["devices", "forward"]);
const DATAPATH: (&str, &[&str]) = (
    "[datapath]",
    &["hook", "coexist", "max_flows", "max_embryonic"],
);
const API: (&str, &[&str]) = ("[api]", &["group", "change_group"]);
const METRICS: (&str, &[&str]) = ("[metrics]", &["listen"]);
pub(super) const SECTIONS: &[(&str, &[&str])] = &[
    TOP, UPLINK, LIVENESS, RACE, BOND, OVERFLOW, RULE, LAN, DATAPATH, API, METRICS,
];

/// Fix for an invalid `sticky`.
const STICKY_FIX: &str = "write \"off\", or a time from \"1 s\" to \"24 h\" like \"10 min\"";

/// Fix for invalid `name_servers`.
const NAME_SERVERS_FIX: &str =
    "write addresses, \"system\" for those that this machine asks, or \"any\"";

pub(super) fn read(name: &str, text: &str) -> Result<(Config, Warnings), ConfigError> {
    let mut warnings = Vec::new();
    let config = document(name, text, |table, problems| {
        top(table, problems, &mut warnings)
    })?;
    let source = Arc::new(NamedSource::new(name, text.to_owned()));
    Ok((config, Warnings(in_order(warnings, &source))))
}

/// Parses a text; `top` reads its top level and collects errors.
///
/// # Errors
/// All errors in it.
pub fn document<T>(
    name: &str,
    text: &str,
    top: impl FnOnce(&DeTable<'_>, &mut Vec<Problem>) -> T,
) -> Result<T, ConfigError> {
    let mut problems = Vec::new();
    let (document, syntax) = DeTable::parse_recoverable(text);
    for error in syntax {
        let at = error.span().unwrap_or(0..0);
        problems.push(Problem::new(error.message(), at, "here"));
    }
    // After a syntax error keys may have landed in the wrong table, and errors about them would
    // mislead. Meaning is checked only once the text can be parsed.
    let read = problems
        .is_empty()
        .then(|| top(document.get_ref(), &mut problems));
    match read.filter(|_| problems.is_empty()) {
        Some(config) => Ok(config),
        None => Err(ConfigError::Invalid {
            name: name.to_owned(),
            problems: in_order(problems, &Arc::new(NamedSource::new(name, text.to_owned()))),
        }),
    }
}

fn in_order(mut problems: Vec<Problem>, source: &Arc<NamedSource<String>>) -> Vec<Problem> {
    problems.sort_by_key(Problem::offset);
    problems
        .into_iter()
        .map(|problem| problem.within(source))
        .collect()
}

fn top(document: &DeTable<'_>, problems: &mut Vec<Problem>, warnings: &mut Vec<Problem>) -> Config {
    let mut table = Table::new(TOP.0, TOP.1, document);
    let policy = table.keyword("policy", &Policy::NAMES, problems);
    let sticky = table.parsed("sticky", STICKY_FIX, problems);
    let failback = table.keyword("failback", &Failback::NAMES, problems);
    let name_servers = table.list("name_servers", NAME_SERVERS_FIX, problems);
    no_repeats("name_servers", &name_servers, problems);
    let drafts = uplinks::uplinks(&mut table, problems);
    let liveness = section(&mut table, "liveness", problems)
        .map_or_else(LivenessConfig::default, |(inner, _)| {
            liveness::liveness(inner, problems)
        });
    let race = section(&mut table, "race", problems)
        .map_or_else(RaceConfig::default, |(inner, _)| {
            race::race(inner, problems)
        });
    let bond = section(&mut table, "bond", problems)
        .map_or_else(BondConfig::default, |(inner, _)| {
            bond::bond(inner, problems)
        });
    let rules = rules::rules(&mut table, &drafts, problems, warnings);
    let lan = section(&mut table, "lan", problems).map(|(inner, _)| lan(inner, &drafts, problems));
    let datapath = section(&mut table, "datapath", problems)
        .map_or_else(DatapathConfig::default, |(inner, _)| {
            datapath(inner, problems)
        });
    let api = section(&mut table, "api", problems).map_or_else(ApiConfig::default, |(inner, _)| {
        api(inner, SECTIONS, problems)
    });
    let metrics = section(&mut table, "metrics", problems)
        .map_or_else(MetricsConfig::default, |(inner, _)| {
            metrics(inner, SECTIONS, problems)
        });
    table.finish(SECTIONS, problems);

    let unsaid = match drafts.iter().any(UplinkDraft::has_share) {
        true => Policy::Wrr,
        false => Policy::default(),
    };
    Config {
        policy: policy.map_or(unsaid, |policy| policy.value),
        sticky: sticky.map(|sticky| sticky.value).unwrap_or_default(),
        failback: failback.map(|word| word.value).unwrap_or_default(),
        name_servers: match name_servers.is_empty() {
            true => NameServers::default(),
            false => NameServers(name_servers.into_iter().map(|one| one.value).collect()),
        },
        uplinks: drafts.into_iter().map(|draft| draft.config).collect(),
        liveness,
        race,
        bond,
        rules,
        lan,
        datapath,
        api,
        metrics,
    }
}

/// Takes a list of `[[tables]]`, each with the place of its header.
pub fn tables<'t, 'i>(
    table: &mut Table<'t, 'i>,
    key: &str,
    problems: &mut Vec<Problem>,
) -> Vec<(&'t DeTable<'i>, Range<usize>)> {
    let Some(value) = table.take(key) else {
        return Vec::new();
    };
    let DeValue::Array(items) = value.get_ref() else {
        let fix = format!("write [[{key}]], with two brackets, for each of them");
        problems.push(wrong_type(key, "a list of tables", value).fix(fix));
        return Vec::new();
    };
    let mut tables = Vec::new();
    for item in items.iter() {
        match item.get_ref().as_table() {
            Some(inner) => tables.push((inner, item.span())),
            None => problems.push(wrong_type(key, "a list of tables", item)),
        }
    }
    tables
}

/// Reports entries that are listed twice.
pub fn no_repeats<T: PartialEq + Display>(
    key: &str,
    items: &[Located<T>],
    problems: &mut Vec<Problem>,
) {
    for (i, item) in items.iter().enumerate() {
        if let Some(first) = items[..i].iter().find(|other| other.value == item.value) {
            let what = format!("`{key}` lists \"{}\" twice", item.value);
            problems.push(
                Problem::new(what, item.at.clone(), "again here")
                    .also(first.at.clone(), "first here")
                    .fix("remove one of the two"),
            );
        }
    }
}

/// Takes a `[section]`.
pub fn section<'t, 'i>(
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

fn lan(inner: &DeTable<'_>, drafts: &[UplinkDraft], problems: &mut Vec<Problem>) -> LanConfig {
    let mut table = Table::new(LAN.0, LAN.1, inner);
    let devices = table.texts("devices", problems);
    let forward = table.boolean("forward", problems).unwrap_or(true);
    table.finish(SECTIONS, problems);
    for (i, device) in devices.iter().enumerate() {
        uplinks::check_device(device, problems);
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
    let hook = table.keyword::<Hook>("hook", &["auto", "tcx", "clsact"], problems);
    let coexist = table.boolean("coexist", problems);
    let max_flows = table.count("max_flows", 1024..=16_777_216, problems);
    let max_embryonic = table.count("max_embryonic", 1024..=4_194_304, problems);
    table.finish(SECTIONS, problems);
    DatapathConfig {
        hook: hook.map_or(default.hook, |hook| hook.value),
        coexist: coexist.unwrap_or(default.coexist),
        max_flows: max_flows.map_or(default.max_flows, |n| n.value),
        max_embryonic: max_embryonic.map_or(default.max_embryonic, |n| n.value),
    }
}

/// Reads `[api]`; `sections` are all tables with their keys.
pub fn api(
    inner: &DeTable<'_>,
    sections: &[(&str, &'static [&'static str])],
    problems: &mut Vec<Problem>,
) -> ApiConfig {
    let mut table = Table::new(API.0, API.1, inner);
    let groups = ["group", "change_group"].map(|key| table.text(key, problems));
    table.finish(sections, problems);
    for empty in groups
        .iter()
        .flatten()
        .filter(|group| group.value.is_empty())
    {
        let fix = "name a group, or leave the line out for root alone";
        problems.push(Problem::new("no group", empty.at.clone(), "empty").fix(fix));
    }
    let [group, change_group] = groups.map(|group| group.map(|group| group.value));
    ApiConfig {
        group,
        change_group,
    }
}

/// Reads `[metrics]`; `sections` as for [`api`].
pub fn metrics(
    inner: &DeTable<'_>,
    sections: &[(&str, &'static [&'static str])],
    problems: &mut Vec<Problem>,
) -> MetricsConfig {
    let mut table = Table::new(METRICS.0, METRICS.1, inner);
    let fix = "write an address and a port like \"127.0.0.1:9494\" or \"[::1]:9494\"";
    let listen: Option<Located<SocketAddr>> = table.parsed("listen", fix, problems);
    table.finish(sections, problems);
    if let Some(listen) = listen.as_ref().filter(|listen| listen.value.port() == 0) {
        let what = "`listen` cannot have port 0";
        problems
            .push(Problem::new(what, listen.at.clone(), "any port, so nobody finds it").fix(fix));
    }
    MetricsConfig {
        listen: listen.map(|listen| listen.value),
    }
}
