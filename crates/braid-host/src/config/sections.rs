//! The sections that every configuration may have: `[api]`, `[metrics]` and `[web]`.

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::de::DeTable;

use super::document::no_repeats;
use super::host_name::HostName;
use super::problem::Problem;
use super::table::{Located, Table};

/// `[api]` and its keys.
pub const API: (&str, &[&str]) = ("[api]", &["group", "change_group"]);
/// `[metrics]` and its keys.
pub const METRICS: (&str, &[&str]) = ("[metrics]", &["listen"]);
/// `[web]` and its keys.
pub const WEB: (&str, &[&str]) = ("[web]", &["listen", "names", "certificate", "key"]);

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

/// The page for browsers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WebConfig {
    /// Address and port of the page. None: no port is opened. A loopback address is served by HTTP, any
    /// other by HTTPS alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Names by which browsers may call this machine, besides `localhost` and its address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<HostName>,
    /// PEM file with the certificate and those above it. None: the daemon makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<PathBuf>,
    /// PEM file with the certificate's private key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
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
    let listen = listen(&mut table, "127.0.0.1:9494", "[::1]:9494", problems);
    table.finish(sections, problems);
    MetricsConfig { listen }
}

/// Reads `[web]`; `sections` as for [`api`].
pub fn web(
    inner: &DeTable<'_>,
    sections: &[(&str, &'static [&'static str])],
    problems: &mut Vec<Problem>,
) -> WebConfig {
    let mut table = Table::new(WEB.0, WEB.1, inner);
    let listen = listen(&mut table, "127.0.0.1:8080", "192.168.1.1:8443", problems);
    let fix = "write names like \"gateway.home.arpa\", without a port";
    let names: Vec<Located<HostName>> = table.list("names", fix, problems);
    no_repeats("names", &names, problems);
    let files = ["certificate", "key"].map(|key| table.text(key, problems));
    table.finish(sections, problems);
    for file in files.iter().flatten() {
        if !file.value.starts_with('/') {
            let what = format!("{:?} is not the whole path of a file", file.value);
            let fix = "write it from the root on, like \"/etc/braid/web.pem\"";
            problems.push(Problem::new(what, file.at.clone(), "from where?").fix(fix));
        }
    }
    if let [Some(alone), None] | [None, Some(alone)] = &files {
        let what = "a certificate and its key come together";
        let fix = "write both `certificate` and `key`, or neither to have one made";
        problems.push(Problem::new(what, alone.at.clone(), "the other is missing").fix(fix));
    }
    let [certificate, key] = files.map(|file| file.map(|file| PathBuf::from(file.value)));
    WebConfig {
        listen,
        names: names.into_iter().map(|name| name.value).collect(),
        certificate,
        key,
    }
}

/// Takes `listen`, an address and a port.
fn listen(
    table: &mut Table<'_, '_>,
    example: &str,
    other: &str,
    problems: &mut Vec<Problem>,
) -> Option<SocketAddr> {
    let fix = format!("write an address and a port like \"{example}\" or \"{other}\"");
    let listen: Located<SocketAddr> = table.parsed("listen", &fix, problems)?;
    if listen.value.port() == 0 {
        let what = "`listen` cannot have port 0";
        problems
            .push(Problem::new(what, listen.at.clone(), "any port, so nobody finds it").fix(fix));
    }
    Some(listen.value)
}
