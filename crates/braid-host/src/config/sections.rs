//! The sections that every configuration has: `[api]` and `[metrics]`.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::de::DeTable;

use super::problem::Problem;
use super::table::{Located, Table};

/// `[api]` and its keys.
pub const API: (&str, &[&str]) = ("[api]", &["group", "change_group"]);
/// `[metrics]` and its keys.
pub const METRICS: (&str, &[&str]) = ("[metrics]", &["listen"]);

/// The local API on the Unix socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApiConfig {
    /// Group whose members may read through the API, besides root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Group whose members may read and change everything through the API, besides root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_group: Option<String>,
}

/// Metrics for a monitoring system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricsConfig {
    /// Address and port where Prometheus may scrape, besides the local API. None: no port is opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
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
