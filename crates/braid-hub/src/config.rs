//! What a user may set of a hub; the rules are those of `braid_daemon::config`. No file at all is a
//! valid configuration.

mod read;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use braid_bond::token::{HubAddress, PORT};
use braid_core::Rate;
use braid_daemon::config::{ApiConfig, ConfigError, MetricsConfig, Prefix, Quota};

use crate::client::Name;

/// Where the configuration is looked for when none is named on the command line.
pub const DEFAULT_PATH: &str = "/etc/braid/hub.toml";

/// Where the store is if nothing else is said.
pub const DEFAULT_STORE: &str = "/var/lib/braid/hub.redb";

/// The inner device if nothing else is said.
pub const DEFAULT_DEVICE: &str = "braid-hub";

/// The inner IPv4 network if nothing else is said.
pub const DEFAULT_NETWORK: &str = "10.73.0.0/16";

/// Everything a user may set. `HubConfig::default()` is what no file means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubConfig {
    /// Where it listens, UDP.
    pub listen: Vec<SocketAddr>,
    /// Where clients find it, for tokens; empty: the machine's own addresses.
    pub address: Vec<HubAddress>,
    /// The inner device.
    pub device: String,
    /// Size of the largest inner packet, bytes.
    pub mtu: u16,
    /// Inner networks; empty: 10.73.0.0/16, and a /64 of its own that it draws once.
    pub pool: Vec<Prefix>,
    /// What becomes of packets for elsewhere.
    pub forward: Forward,
    /// Whether clients reach each other.
    pub between_clients: bool,
    /// What clients reach besides the internet.
    pub reach: Vec<Reach>,
    /// Most that is passed on for a client in each direction, where its invitation does not say.
    pub client_rate: Option<Rate>,
    /// What single clients have, by name.
    pub clients: BTreeMap<Name, ClientConfig>,
    /// Whether data of clients that want it so goes in the clear, as GRE.
    pub gre: bool,
    /// Where keys and clients are kept.
    pub store: PathBuf,
    /// The local API on the Unix socket.
    pub api: ApiConfig,
    /// Figures for a monitoring system.
    pub metrics: MetricsConfig,
}

/// What one client has: a `[[client]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientConfig {
    /// Most that is passed on for it in each direction, whatever its invitation says.
    pub rate: Option<Rate>,
    /// How much is passed on for it in a day or a month, both directions together, before it gets
    /// [`SPENT_RATE`](crate::book::SPENT_RATE).
    pub quota: Option<Quota>,
    /// Destinations that it reaches besides those of all clients.
    pub reach: Vec<Reach>,
}

/// What becomes of clients' packets for elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forward {
    /// They leave with the hub's address: works wherever the hub stands.
    #[default]
    Nat,
    /// They leave with the client's inner address: the networks around know the way back.
    Routed,
    /// The machine's forwarding and filtering are left as they are.
    Off,
}

impl Forward {
    /// Its words.
    pub const NAMES: [&str; 3] = ["nat", "routed", "off"];

    /// Its word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Forward::Nat => "nat",
            Forward::Routed => "routed",
            Forward::Off => "off",
        }
    }
}

impl FromStr for Forward {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "nat" => Ok(Forward::Nat),
            "routed" => Ok(Forward::Routed),
            "off" => Ok(Forward::Off),
            _ => Err(format!("{text:?} is none of nat, routed, off")),
        }
    }
}

/// What clients reach besides the internet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The hub's own machine.
    Hub,
    /// A network that is no part of the internet.
    Network(Prefix),
}

impl FromStr for Reach {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "hub" {
            return Ok(Reach::Hub);
        }
        let network = text.parse();
        network
            .map(Reach::Network)
            .map_err(|_| format!("{text:?} is neither \"hub\" nor a network"))
    }
}

impl std::fmt::Display for Reach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reach::Hub => f.write_str("hub"),
            Reach::Network(network) => network.fmt(f),
        }
    }
}

impl Default for HubConfig {
    fn default() -> Self {
        HubConfig {
            listen: everywhere(PORT),
            address: Vec::new(),
            device: DEFAULT_DEVICE.to_owned(),
            mtu: 1500,
            pool: Vec::new(),
            forward: Forward::default(),
            between_clients: false,
            reach: Vec::new(),
            client_rate: None,
            clients: BTreeMap::new(),
            gre: false,
            store: DEFAULT_STORE.into(),
            api: ApiConfig::default(),
            metrics: MetricsConfig::default(),
        }
    }
}

fn everywhere(port: u16) -> Vec<SocketAddr> {
    let all: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    all.map(|address| SocketAddr::new(address, port)).into()
}

impl HubConfig {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// The file cannot be read, or everything that is wrong with its contents.
    pub fn load(path: &Path) -> Result<HubConfig, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        HubConfig::parse(&path.display().to_string(), &text)
    }

    /// Checks the text of a configuration; `name` is what diagnostics call it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(name: &str, text: &str) -> Result<HubConfig, ConfigError> {
        read::read(name, text)
    }

    /// The named file, or the one at the default place if it is there, or no configuration.
    ///
    /// # Errors
    /// As [`HubConfig::load`].
    pub fn find(named: Option<&Path>) -> Result<HubConfig, ConfigError> {
        match named {
            Some(path) => HubConfig::load(path),
            None if Path::new(DEFAULT_PATH).exists() => HubConfig::load(Path::new(DEFAULT_PATH)),
            None => Ok(HubConfig::default()),
        }
    }

    /// Takes over what counts at once of a configuration that was read anew; says which keys of it only
    /// count from the next start.
    pub fn apply(&mut self, read: HubConfig) -> Vec<&'static str> {
        // Each is named: one that is added is one or the other.
        let HubConfig {
            listen,
            address,
            device,
            mtu,
            pool,
            forward,
            between_clients,
            reach,
            client_rate,
            clients,
            gre,
            store,
            api,
            metrics,
        } = read;
        let later = [
            ("listen", self.listen != listen),
            ("device", self.device != device),
            ("mtu", self.mtu != mtu),
            ("pool", self.pool != pool),
            ("forward", self.forward != forward),
            ("between_clients", self.between_clients != between_clients),
            ("gre", self.gre != gre),
            ("store", self.store != store),
            ("api", self.api != api),
            ("metrics", self.metrics != metrics),
        ];
        self.address = address;
        self.reach = reach;
        self.client_rate = client_rate;
        self.clients = clients;
        let later = later.into_iter().filter(|(_, differs)| *differs);
        later.map(|(key, _)| key).collect()
    }

    /// The port that clients without a word from the user are sent to: that of the first listener.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.listen.first().map_or(PORT, SocketAddr::port)
    }

    /// The inner networks; `global` is what the hub drew for its own (RFC 4193 §3.2.2).
    #[must_use]
    pub fn networks(&self, global: [u8; 5]) -> Vec<Prefix> {
        if !self.pool.is_empty() {
            return self.pool.clone();
        }
        let [a, b, c, d, e] = global;
        let local = format!("fd{a:02x}:{b:02x}{c:02x}:{d:02x}{e:02x}::/64");
        [DEFAULT_NETWORK, &local]
            .map(|text| text.parse().expect("a network"))
            .into()
    }
}
