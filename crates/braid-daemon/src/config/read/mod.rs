//! Reads a [`Config`] from TOML text and collects all errors.

mod alarms;
mod bond;
mod datapath;
mod liveness;
mod race;
mod rules;
mod shape;
mod uplinks;

use braid_host::config::sections::{self, api, metrics, web};
use braid_host::config::{
    ApiConfig, ConfigError, Located, MetricsConfig, Problem, Table, Warnings, WebConfig, document,
    no_repeats, section,
};
use std::ops::Range;

use toml::de::DeTable;
use uplinks::UplinkDraft;

use super::policy::{Failback, FirstPackets, Policy};
use super::{BondConfig, Config, LanConfig, LivenessConfig, NameServers, RaceConfig, ShapeConfig};

const TOP: (&str, &[&str]) = (
    "the top level",
    &[
        "policy",
        "sticky",
        "failback",
        "first_packets",
        "name_servers",
        "uplink",
        "liveness",
        "race",
        "shape",
        "bond",
        "rule",
        "lan",
        "datapath",
        "api",
        "metrics",
        "alarm",
        "mail",
        "web",
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
const SHAPE: (&str, &[&str]) = ("[shape]", &["enabled", "target"]);
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
        "max_extra_delay",
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
    &[
        "kind",
        "hook",
        "coexist",
        "max_flows",
        "max_embryonic",
        "ovs_run_dir",
        "fail_mode",
        "openflow_mode",
    ],
);
const ALARM: (&str, &[&str]) = (
    "[[alarm]]",
    &[
        "name", "when", "at", "uplink", "for", "command", "webhook", "mail",
    ],
);
const MAIL: (&str, &[&str]) = (
    "[mail]",
    &[
        "server",
        "port",
        "encryption",
        "from",
        "user",
        "password_file",
    ],
);
pub(super) const SECTIONS: &[(&str, &[&str])] = &[
    TOP,
    UPLINK,
    LIVENESS,
    RACE,
    SHAPE,
    BOND,
    OVERFLOW,
    RULE,
    LAN,
    DATAPATH,
    ALARM,
    MAIL,
    sections::API,
    sections::METRICS,
    sections::WEB,
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
    Ok((config, Warnings::new(name, text, warnings)))
}

fn top(document: &DeTable<'_>, problems: &mut Vec<Problem>, warnings: &mut Vec<Problem>) -> Config {
    let mut table = Table::new(TOP.0, TOP.1, document);
    let policy = table.keyword("policy", &Policy::NAMES, problems);
    let sticky = table.parsed("sticky", STICKY_FIX, problems);
    let failback = table.keyword("failback", Failback::NAMES, problems);
    let first_packets = table.keyword("first_packets", FirstPackets::NAMES, problems);
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
    let shape = section(&mut table, "shape", problems)
        .map_or_else(ShapeConfig::default, |(inner, _)| {
            shape::shape(inner, problems)
        });
    let bond = section(&mut table, "bond", problems)
        .map_or_else(BondConfig::default, |(inner, _)| {
            bond::bond(inner, problems)
        });
    let rules = rules::rules(&mut table, &drafts, problems, warnings);
    let lan = section(&mut table, "lan", problems).map(|(inner, _)| lan(inner, &drafts, problems));
    let (datapath, openflow) = section(&mut table, "datapath", problems)
        .map_or_else(Default::default, |(inner, _)| {
            datapath::datapath(inner, problems)
        });
    let api = section(&mut table, "api", problems).map_or_else(ApiConfig::default, |(inner, _)| {
        api(inner, SECTIONS, problems)
    });
    let metrics = section(&mut table, "metrics", problems)
        .map_or_else(MetricsConfig::default, |(inner, _)| {
            metrics(inner, SECTIONS, problems)
        });
    let mail = section(&mut table, "mail", problems);
    let has_mail = mail.is_some();
    let mail = mail.and_then(|(inner, at)| alarms::mail(inner, at, problems));
    let alarms = alarms::alarms(&mut table, &drafts, has_mail, problems);
    let web = section(&mut table, "web", problems).map_or_else(WebConfig::default, |(inner, _)| {
        web(inner, SECTIONS, problems)
    });
    table.finish(SECTIONS, problems);

    let unsaid = match drafts.iter().any(UplinkDraft::has_share) {
        true => Policy::Wrr,
        // A bridge has no races.
        false if openflow.is_some() => Policy::Rr,
        false => Policy::default(),
    };
    let config = Config {
        policy: policy.map_or(unsaid, |policy| policy.value),
        sticky: sticky.map(|sticky| sticky.value).unwrap_or_default(),
        failback: failback.map(|word| word.value).unwrap_or_default(),
        first_packets: first_packets.map(|word| word.value).unwrap_or_default(),
        name_servers: match name_servers.is_empty() {
            true => NameServers::default(),
            false => NameServers(name_servers.into_iter().map(|one| one.value).collect()),
        },
        uplinks: drafts.into_iter().map(|draft| draft.config).collect(),
        liveness,
        race,
        shape,
        bond,
        rules,
        lan,
        datapath,
        api,
        metrics,
        alarms,
        mail,
        web,
    };
    if let Some(at) = openflow {
        datapath::refuse_missing(&config, &at, problems);
    }
    config
}

/// Takes an optional name that no other table of its kind has; `unnamed` is used if there is none.
fn own_name(
    table: &mut Table<'_, '_>,
    kind: &str,
    unnamed: (String, Range<usize>),
    before: &[Located<String>],
    problems: &mut Vec<Problem>,
) -> Located<String> {
    let Some(name) = table.text("name", problems) else {
        let (value, at) = unnamed;
        return Located { value, at };
    };
    uplinks::check_label(kind, &name, problems);
    if let Some(first) = before.iter().find(|other| other.value == name.value) {
        let what = format!("two {kind}s are called {:?}", name.value);
        problems.push(
            Problem::new(what, name.at.clone(), "again here")
                .also(first.at.clone(), "first here")
                .fix(format!("give each {kind} a name of its own")),
        );
    }
    name
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
