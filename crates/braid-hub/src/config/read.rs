//! Parsing of a configuration from TOML.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use braid_bond::token::{AddressError, HubAddress, MAX_ADDRESSES, PORT};
use braid_core::Rate;
use braid_host::config::sections::{self, api, metrics, web};
use braid_host::config::{ApiConfig, ConfigError, MetricsConfig, Prefix, Quota, WebConfig};
use braid_host::config::{DeTable, Located, Problem, Table, document, no_repeats, section, tables};

use super::{ClientConfig, Forward, HubConfig, Reach, everywhere};
use crate::client::Name;
use crate::pool::AddressPool;

const TOP_LEVEL: (&str, &[&str]) = (
    "the top level",
    &[
        "listen",
        "address",
        "device",
        "mtu",
        "pool",
        "forward",
        "between_clients",
        "reach",
        "client_rate",
        "client",
        "gre",
        "store",
        "api",
        "metrics",
        "web",
    ],
);
const CLIENT: (&str, &[&str]) = ("[[client]]", &["name", "rate", "quota", "reach"]);
const SECTIONS: &[(&str, &[&str])] = &[
    TOP_LEVEL,
    CLIENT,
    sections::API,
    sections::METRICS,
    sections::WEB,
];

const LISTEN_HINT: &str =
    "write a port from 1 to 65535, or addresses with ports like \"198.51.100.7:27243\"";
const ADDRESS_HINT: &str =
    "write where clients find the hub, like \"hub.example.org\" or \"198.51.100.7:27243\"";
const POOL_HINT: &str =
    "write a network per IP version, like [\"10.73.0.0/16\", \"fd12:3456:789a::/64\"]";
const REACH_HINT: &str =
    "write \"hub\" for the hub's own machine, or networks like \"192.168.1.0/24\"";
const NAME_HINT: &str = "write the name that it was invited by, like name = \"attic\"";
const RATE_HINT: &str = "write a rate like \"50 Mbit/s\"";

pub(super) fn read(name: &str, text: &str) -> Result<HubConfig, ConfigError> {
    document(name, text, top)
}

fn top(document: &DeTable<'_>, problems: &mut Vec<Problem>) -> HubConfig {
    let mut table = Table::new(TOP_LEVEL.0, TOP_LEVEL.1, document);
    let default = HubConfig::default();
    let listen = listen(&mut table, problems);
    let port = listen
        .iter()
        .flatten()
        .next()
        .map_or(PORT, SocketAddr::port);
    let written = table.list::<AddressText>("address", ADDRESS_HINT, problems);
    let address: Vec<Located<HubAddress>> = written
        .into_iter()
        .filter_map(|Located { value, at }| {
            let value = HubAddress::read(&value.0, port).ok()?;
            Some(Located { value, at })
        })
        .collect();
    if let Some(extra) = address.get(MAX_ADDRESSES) {
        let what = format!("`address` has more than {MAX_ADDRESSES} entries");
        let fix = "name those that clients are to try first";
        problems.push(Problem::new(what, extra.at.clone(), "one too many").fix(fix));
    }
    no_repeats("address", &address, problems);
    let device = device(&mut table, problems);
    // IPv6 needs 1280 (RFC 8200 §5). Nobody sends inner packets of more than 1500 bytes unasked.
    let mtu = table.count("mtu", 1280..=9000, problems);
    let pool = pool(&mut table, problems);
    let forward = table.keyword("forward", &Forward::NAMES, problems);
    let between_clients = table.boolean("between_clients", problems);
    let reach = reach(&mut table, problems);
    let client_rate = rate(&mut table, "client_rate", problems);
    let mut reach_of_clients = Vec::new();
    let clients = clients(&mut table, &mut reach_of_clients, problems);
    if let Some(off) = forward.as_ref().filter(|word| word.value == Forward::Off)
        && let Some(first) = reach.iter().chain(&reach_of_clients).next()
    {
        let what = "`reach` means nothing with forward = \"off\"".to_owned();
        let fix = "leave one of them out: with \"off\" the machine's own filter decides";
        let problem = Problem::new(what, first.at.clone(), "has no effect");
        problems.push(
            problem
                .also(off.at.clone(), "the filter is left alone")
                .fix(fix),
        );
    }
    let gre = table.boolean("gre", problems);
    let store = table.text("store", problems).map(|text| {
        let path = PathBuf::from(&text.value);
        if !path.is_absolute() {
            let what = format!("`store` cannot be {:?}", text.value);
            let fix = "write the file's whole path, from the root";
            problems.push(Problem::new(what, text.at, "not a whole path").fix(fix));
        }
        path
    });
    let api = section(&mut table, "api", problems).map_or_else(ApiConfig::default, |(inner, _)| {
        api(inner, SECTIONS, problems)
    });
    let metrics = section(&mut table, "metrics", problems)
        .map_or_else(MetricsConfig::default, |(inner, _)| {
            metrics(inner, SECTIONS, problems)
        });
    let web = section(&mut table, "web", problems).map_or_else(WebConfig::default, |(inner, _)| {
        web(inner, SECTIONS, problems)
    });
    table.finish(SECTIONS, problems);
    HubConfig {
        listen: listen.unwrap_or(default.listen),
        address: address.into_iter().map(|address| address.value).collect(),
        device: device.unwrap_or(default.device),
        mtu: mtu.map_or(default.mtu, |mtu| mtu.value as u16),
        pool,
        forward: forward.map_or(default.forward, |word| word.value),
        between_clients: between_clients.unwrap_or(default.between_clients),
        reach: reach.into_iter().map(|reach| reach.value).collect(),
        client_rate,
        clients,
        gre: gre.unwrap_or(default.gre),
        store: store.unwrap_or(default.store),
        api,
        metrics,
        web,
    }
}

/// An entry of `listen`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListenEntry {
    Port(u16),
    Address(SocketAddr),
}

impl FromStr for ListenEntry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let place = match text.parse::<SocketAddr>() {
            Ok(address) => ListenEntry::Address(address),
            Err(_) => ListenEntry::Port(text.parse().map_err(|_| "no port and no address")?),
        };
        match place {
            ListenEntry::Port(0) => Err("any port, so nobody finds it".to_owned()),
            ListenEntry::Address(address) if address.port() == 0 => {
                Err("any port, so nobody finds it".to_owned())
            }
            place => Ok(place),
        }
    }
}

impl std::fmt::Display for ListenEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ListenEntry::Port(port) => port.fmt(f),
            ListenEntry::Address(address) => address.fmt(f),
        }
    }
}

/// An address of the hub; its port defaults to that of `listen`.
struct AddressText(String);

impl FromStr for AddressText {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        HubAddress::read(text, PORT).map(|_| AddressText(text.to_owned()))
    }
}

fn listen(table: &mut Table<'_, '_>, problems: &mut Vec<Problem>) -> Option<Vec<SocketAddr>> {
    let places = table.list::<ListenEntry>("listen", LISTEN_HINT, problems);
    no_repeats("listen", &places, problems);
    let places = places.into_iter().flat_map(|place| match place.value {
        ListenEntry::Port(port) => everywhere(port),
        ListenEntry::Address(address) => vec![address],
    });
    Some(places.collect()).filter(|places: &Vec<_>| !places.is_empty())
}

fn device(table: &mut Table<'_, '_>, problems: &mut Vec<Problem>) -> Option<String> {
    let device = table.text("device", problems)?;
    let legal = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':' | b'"' | b'\\');
    let good = (1..16).contains(&device.value.len())
        && device.value.bytes().all(legal)
        && !matches!(device.value.as_str(), "." | ".." | "all" | "default");
    if !good {
        let what = format!("`device` cannot be {:?}", device.value);
        let fix = "write a name of 1 to 15 letters, digits, \"-\", \"_\" and \".\"";
        problems.push(Problem::new(what, device.at, "no name for a device").fix(fix));
        return None;
    }
    Some(device.value)
}

fn pool(table: &mut Table<'_, '_>, problems: &mut Vec<Problem>) -> Vec<Prefix> {
    let networks: Vec<Located<Prefix>> = table.list("pool", POOL_HINT, problems);
    for (at, network) in networks.iter().enumerate() {
        let version = |other: &&Located<Prefix>| {
            other.value.address().is_ipv4() == network.value.address().is_ipv4()
        };
        let first = networks[..at].iter().find(version);
        let label = if first.is_some() {
            "a second one"
        } else {
            "too small"
        };
        let pair = first.map(|first| first.value).into_iter();
        let Err(error) = AddressPool::new(pair.chain([network.value]).collect()) else {
            continue;
        };
        let problem = Problem::new(format!("`pool`: {error}"), network.at.clone(), label);
        let problem = match first {
            Some(first) => problem.also(first.at.clone(), "the first"),
            None => problem,
        };
        problems.push(problem.fix(POOL_HINT));
    }
    networks.into_iter().map(|network| network.value).collect()
}

fn reach(table: &mut Table<'_, '_>, problems: &mut Vec<Problem>) -> Vec<Located<Reach>> {
    let reach = table.list("reach", REACH_HINT, problems);
    no_repeats("reach", &reach, problems);
    reach
}

/// Parses `[[client]]` tables. All their destinations are added to `reached`.
fn clients(
    table: &mut Table<'_, '_>,
    reached: &mut Vec<Located<Reach>>,
    problems: &mut Vec<Problem>,
) -> BTreeMap<Name, ClientConfig> {
    let mut clients = BTreeMap::new();
    for (inner, at) in tables(table, "client", problems) {
        let mut client = Table::new(CLIENT.0, CLIENT.1, inner);
        let says_name = client.has("name");
        let says_more = ["rate", "quota", "reach"].iter().any(|key| client.has(key));
        let name: Option<Located<Name>> = client.parsed("name", NAME_HINT, problems);
        let rate = rate(&mut client, "rate", problems);
        let quota = client.parsed::<Quota>("quota", Quota::FIX, problems);
        let quota = quota.map(|quota| quota.value);
        let own = reach(&mut client, problems);
        let values = own.iter().map(|own| own.value).collect();
        reached.extend(own);
        client.finish(SECTIONS, problems);
        if !says_more {
            let fix = "add a line like rate = \"50 Mbit/s\", quota = \"50 GB/month\" or reach = [\"hub\"]";
            let what = "[[client]] without `rate`, `quota` or `reach`";
            problems.push(Problem::new(what, at.clone(), "says nothing").fix(fix));
        }
        if !says_name {
            let what = "[[client]] without `name`";
            problems.push(Problem::new(what, at, "no name").fix(NAME_HINT));
        }
        let config = ClientConfig {
            rate,
            quota,
            reach: values,
        };
        if let Some(name) = name
            && clients.insert(name.value.clone(), config).is_some()
        {
            let what = format!("[[client]] {} is there twice", name.value);
            let fix = "remove one of them";
            problems.push(Problem::new(what, name.at, "again").fix(fix));
        }
    }
    clients
}

fn rate(table: &mut Table<'_, '_>, key: &str, problems: &mut Vec<Problem>) -> Option<Rate> {
    let rate: Located<Rate> = table.parsed(key, RATE_HINT, problems)?;
    if rate.value < Rate::from_bits_per_sec(1000) {
        let what = format!("`{key}` cannot be less than \"1 kbit/s\"");
        let fix = "write a rate like \"50 Mbit/s\", or leave the line out for no limit";
        problems.push(Problem::new(what, rate.at, "nothing would pass").fix(fix));
        return None;
    }
    Some(rate.value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn an_empty_configuration_is_valid() {
        let config = HubConfig::parse("empty", "").unwrap();
        assert_eq!(config, HubConfig::default());
        let networks = config.networks([0x12, 0x34, 0x56, 0x78, 0x9a]);
        let texts: Vec<String> = networks.iter().map(Prefix::to_string).collect();
        assert_eq!(texts, ["10.73.0.0/16", "fd12:3456:789a::/64"]);
    }

    #[test]
    fn the_packaged_file_shows_the_defaults() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/hub.toml");
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(
            HubConfig::parse("packaged", &text).unwrap(),
            HubConfig::default()
        );
        // Every commented-out line must be valid as well.
        let all: String = text
            .lines()
            .map(|line| {
                line.strip_prefix('#')
                    .filter(|l| !l.starts_with(' '))
                    .unwrap_or(line)
            })
            .flat_map(|line| [line, "\n"])
            .collect();
        HubConfig::parse("all of it", &all).unwrap();
    }

    const EVERY_KEY: &str = r#"
        listen = [500, "198.51.100.7:600"]
        address = ["hub.example.org", "198.51.100.7:600"]
        device = "hub0"
        mtu = 1400
        pool = "10.0.0.0/24"
        forward = "routed"
        between_clients = true
        reach = ["hub", "192.168.1.0/24"]
        client_rate = "50 Mbit/s"
        gre = true
        store = "/var/lib/x.redb"
        [api]
        group = "netdev"
        [metrics]
        listen = "127.0.0.1:9495"
        [[client]]
        name = "attic"
        rate = "1 Mbit/s"
        reach = ["10.1.0.0/16"]
    "#;

    #[test]
    fn every_key_is_read() {
        let config = HubConfig::parse("one", EVERY_KEY).unwrap();
        let listen: Vec<String> = config.listen.iter().map(ToString::to_string).collect();
        assert_eq!(listen, ["0.0.0.0:500", "[::]:500", "198.51.100.7:600"]);
        let address: Vec<String> = config.address.iter().map(ToString::to_string).collect();
        assert_eq!(address, ["hub.example.org:500", "198.51.100.7:600"]);
        assert_eq!((config.port(), config.mtu), (500, 1400));
        assert_eq!(config.forward, Forward::Routed);
        assert!(config.between_clients && config.gre);
        let reach: Vec<String> = config.reach.iter().map(ToString::to_string).collect();
        assert_eq!(reach, ["hub", "192.168.1.0/24"]);
        assert_eq!(
            config.networks([0; 5]).len(),
            1,
            "no IPv6 where none is wanted"
        );
        assert_eq!(config.client_rate, Some("50 Mbit/s".parse().unwrap()));
        let attic = &config.clients[&"attic".parse::<Name>().unwrap()];
        assert_eq!(attic.reach, ["10.1.0.0/16".parse().unwrap()]);
    }

    #[test]
    fn settings_that_need_a_restart_are_named_and_stay_unchanged() {
        let read = HubConfig::parse("one", EVERY_KEY).unwrap();
        let mut config = HubConfig::default();
        let later = [
            "listen",
            "device",
            "mtu",
            "pool",
            "forward",
            "between_clients",
            "gre",
            "store",
            "api",
            "metrics",
        ];
        assert_eq!(config.apply(read.clone()), later);
        let expected = HubConfig {
            address: read.address.clone(),
            client_rate: read.client_rate,
            clients: read.clients.clone(),
            reach: read.reach.clone(),
            ..HubConfig::default()
        };
        assert_eq!(config, expected);
        let mut same = read.clone();
        assert_eq!(same.apply(read), [""; 0]);
    }
}
