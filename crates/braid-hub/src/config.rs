//! Configuration of a hub; the rules are those of `braid_host::config`. A missing file is a valid
//! configuration.

mod read;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use braid_bond::token::{HubAddress, PORT};
use braid_core::Rate;
use braid_host::config::{ApiConfig, ConfigError, MetricsConfig, Prefix, Quota, WebConfig};

use crate::client::Name;

/// Path of the configuration if the command line names none.
pub const DEFAULT_PATH: &str = "/etc/braid/hub.toml";

/// Default path of the store.
pub const DEFAULT_STORE: &str = "/var/lib/braid/hub.redb";

/// Default name of the inner device.
pub const DEFAULT_DEVICE: &str = "braid-hub";

/// Default inner IPv4 network.
pub const DEFAULT_NETWORK: &str = "10.73.0.0/16";

/// All settings. `HubConfig::default()` stands for a missing file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubConfig {
    /// Addresses to listen on, UDP.
    pub listen: Vec<SocketAddr>,
    /// Public addresses for tokens; if empty, the machine's own.
    pub address: Vec<HubAddress>,
    /// The inner device.
    pub device: String,
    /// Size of the largest inner packet, bytes.
    pub mtu: u16,
    /// Inner networks; if empty, 10.73.0.0/16 and a /64 that the hub draws once.
    pub pool: Vec<Prefix>,
    /// Treatment of packets to other networks.
    pub forward: Forward,
    /// True if clients reach each other.
    pub between_clients: bool,
    /// Destinations of clients besides the internet.
    pub reach: Vec<Reach>,
    /// Most that the hub forwards for a client in each direction, unless its invitation sets a
    /// rate.
    pub client_rate: Option<Rate>,
    /// Settings of single clients, by name.
    pub clients: BTreeMap<Name, ClientConfig>,
    /// True if data of clients that want it is sent in cleartext, as GRE.
    pub gre: bool,
    /// Path of the store of keys and clients.
    pub store: PathBuf,
    /// The local API on the Unix socket.
    pub api: ApiConfig,
    /// Metrics endpoint.
    pub metrics: MetricsConfig,
    /// The page for browsers.
    pub web: WebConfig,
}

/// Settings of one client: a `[[client]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientConfig {
    /// Most that the hub forwards for it in each direction; overrides its invitation.
    pub rate: Option<Rate>,
    /// Volume per day or month, both directions together, after which it gets
    /// [`SPENT_RATE`](crate::client_registry::SPENT_RATE).
    pub quota: Option<Quota>,
    /// Destinations besides those of all clients.
    pub reach: Vec<Reach>,
}

/// Treatment of clients' packets to other networks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forward {
    /// They leave with the hub's address, which works anywhere.
    #[default]
    Nat,
    /// They leave with the client's inner address: the surrounding networks know the route back.
    Routed,
    /// Forwarding and filtering of the machine are left alone.
    Off,
}

impl Forward {
    /// All values, as words.
    pub const NAMES: [&str; 3] = ["nat", "routed", "off"];

    /// The value as a word.
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

/// Destination of clients besides the internet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The hub's own machine.
    Hub,
    /// A network outside the internet.
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
            web: WebConfig::default(),
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
    /// The file cannot be read, or all problems of its contents.
    pub fn load(path: &Path) -> Result<HubConfig, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        HubConfig::parse(&path.display().to_string(), &text)
    }

    /// Checks the text of a configuration; `name` is for diagnostics.
    ///
    /// # Errors
    /// All problems of the text.
    pub fn parse(name: &str, text: &str) -> Result<HubConfig, ConfigError> {
        read::read(name, text)
    }

    /// The named file, or the default one if it exists, or the default configuration.
    ///
    /// # Errors
    /// Same as [`HubConfig::load`].
    pub fn find(named: Option<&Path>) -> Result<HubConfig, ConfigError> {
        match named {
            Some(path) => HubConfig::load(path),
            None if Path::new(DEFAULT_PATH).exists() => HubConfig::load(Path::new(DEFAULT_PATH)),
            None => Ok(HubConfig::default()),
        }
    }

    /// Applies the settings of a reloaded configuration that can change at once; returns the keys
    /// of those that take effect at the next start.
    pub fn apply(&mut self, read: HubConfig) -> Vec<&'static str> {
        // All fields are listed, so that a new one has to be assigned to either group.
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
            web,
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
            ("web", self.web != web),
        ];
        self.address = address;
        self.reach = reach;
        self.client_rate = client_rate;
        self.clients = clients;
        let later = later.into_iter().filter(|(_, differs)| *differs);
        later.map(|(key, _)| key).collect()
    }

    /// Default port in tokens: that of the first listener.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.listen.first().map_or(PORT, SocketAddr::port)
    }

    /// The inner networks; `global` is the global ID that the hub drew (RFC 4193 §3.2.2).
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
