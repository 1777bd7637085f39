//! A client with two lines to a hub:
//!
//! ```text
//!            ┌────────┐ wan0 10.1.0.2 ── 10.1.0.1 isp0 ┌─────┐
//! 10.9.0.2 ──┤ client │                                │ hub ├── 10.9.0.1
//!  fd09::2   └────────┘ wan1 10.2.0.2 ── 10.2.0.1 isp1 └─────┘   fd09::1
//!                                           192.0.2.1, 2001:db8::1 port 4500
//! ```

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use braid_bond::io::{
    ClientConfig, ClientEvent, ClientHandle, ClientStatus, HubConfig, HubEvent, HubHandle,
    LinkSpec, Peer, Policy, Prefix, Tun, client, hub,
};
use braid_bond::proto::handshake::{Identity, Options, Psk, PublicKey};
use braid_multipath::LinkId;

use crate::epochs::later_run;
use crate::net::Namespace;

/// Timeout of expected events, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The hub's port.
pub const PORT: u16 = 4500;
/// Inner addresses of hub and client.
pub const HUB: [&str; 2] = ["10.9.0.1", "fd09::1"];
pub const CLIENT: [&str; 2] = ["10.9.0.2", "fd09::2"];
/// Inner networks of the client.
const INNER: [(&str, u8); 2] = [("10.9.0.2", 32), ("fd09::2", 128)];

static SERIAL: AtomicU32 = AtomicU32::new(0);

/// Namespaces and lines, without a tunnel.
pub struct World {
    /// True if both ends want cleartext data.
    pub gre: bool,
    pub client: Namespace,
    pub hub: Namespace,
    /// Starts of a hub.
    starts: AtomicU8,
    _turn: Turn,
}

/// Tests that measure rates run alone: beside others, processes wait for a processor as long as a
/// radio's scheduler stalls, and a stalling line is rated differently.
static TURNS: RwLock<()> = RwLock::new(());

/// Held for its lock while a world exists.
enum Turn {
    Shared {
        _guard: RwLockReadGuard<'static, ()>,
    },
    Alone {
        _guard: RwLockWriteGuard<'static, ()>,
    },
}

impl Turn {
    // A test that panicked leaves no inconsistent state.
    fn shared() -> Turn {
        let _guard = TURNS.read().unwrap_or_else(PoisonError::into_inner);
        Turn::Shared { _guard }
    }

    fn alone() -> Turn {
        let _guard = TURNS.write().unwrap_or_else(PoisonError::into_inner);
        Turn::Alone { _guard }
    }
}

/// IP version of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outer {
    V4,
    V6,
}

pub struct Client {
    pub handle: ClientHandle,
    pub events: Receiver<ClientEvent>,
}

pub struct Hub {
    pub handle: HubHandle,
    events: Receiver<HubEvent>,
}

pub fn identity(number: u8) -> Identity {
    Identity::new([number; 32])
}

pub fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

impl World {
    pub fn new() -> World {
        World::on(Turn::shared())
    }

    /// The same, without other worlds beside it.
    pub fn alone() -> World {
        World::on(Turn::alone())
    }

    fn on(turn: Turn) -> World {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("brd{}x{serial}", std::process::id());
        let world = World {
            client: Namespace::new(&format!("{name}-client")),
            hub: Namespace::new(&format!("{name}-hub")),
            gre: false,
            starts: AtomicU8::new(0),
            _turn: turn,
        };
        let World { client, hub, .. } = &world;
        for line in 0..2 {
            let (wan, isp, net) = (format!("wan{line}"), format!("isp{line}"), line + 1);
            client.ip(&format!(
                "link add {wan} type veth peer name {isp} netns {}",
                hub.name()
            ));
            for (namespace, device, last) in [(client, &wan, 2), (hub, &isp, 1)] {
                namespace.ip(&format!("addr add 10.{net}.0.{last}/24 dev {device}"));
                namespace.ip(&format!("addr add fd0{net}::{last}/64 dev {device} nodad"));
                namespace.ip(&format!("link set {device} up"));
            }
            for gateway in [format!("10.{net}.0.1"), format!("fd0{net}::1")] {
                client.ip(&format!(
                    "route add default via {gateway} dev {wan} metric {net}"
                ));
            }
        }
        hub.ip("addr add 192.0.2.1/32 dev lo");
        hub.ip("addr add 2001:db8::1/128 dev lo nodad");
        world
    }

    /// The same, with ends that want cleartext data, as GRE.
    pub fn trusted() -> World {
        World {
            gre: true,
            ..World::alone()
        }
    }

    /// The hub, which knows the client.
    pub fn start_hub(&self, offloads: bool) -> Hub {
        let (tell, events) = channel();
        let inner = INNER.map(|(text, length)| Prefix::new(address(text), length).expect("fits"));
        let peer = Peer {
            key: identity(1).public(),
            psk: Psk::new([7; 32]),
            options: Options::new(),
            inner: inner.to_vec(),
            cap: None,
            gre: self.gre,
        };
        let start = || {
            let tell = tell.clone();
            hub::start(HubConfig {
                tun: Tun::open_with("bond0", 1500, offloads)?,
                keys: identity(2).into(),
                epochs: later_run(self.starts.fetch_add(1, Ordering::Relaxed)),
                listen: ["0.0.0.0", "::"]
                    .map(|any| SocketAddr::new(address(any), PORT))
                    .to_vec(),
                mark: None,
                gre: self.gre,
                peers: vec![peer.clone()],
                between_peers: false,
                enrol: None,
                events: Box::new(move |event| _ = tell.send(event)),
            })
        };
        let handle = self.hub.enter(|| {
            // Another test's program that is about to start may hold descriptors of the previous
            // hub for a moment.
            let deadline = Instant::now() + PATIENCE;
            loop {
                match start() {
                    Ok(handle) => return handle,
                    Err(error) => assert!(Instant::now() < deadline, "{error}"),
                }
            }
        });
        inner_addresses(&self.hub, HUB);
        Hub { handle, events }
    }

    pub fn start_client(&self, offloads: bool, links: Vec<LinkSpec>) -> Client {
        self.start_client_as(1, offloads, links)
    }

    pub fn start_client_as(&self, number: u8, offloads: bool, links: Vec<LinkSpec>) -> Client {
        let (tell, events) = channel();
        let handle = self.client.enter(|| {
            client::start(ClientConfig {
                tun: Tun::open_with("bond0", 1500, offloads).expect("a TUN device"),
                identity: identity(number),
                hub: hub_key(),
                psk: Psk::new([7; 32]),
                options: Options::new(),
                policy: Policy::default(),
                gre: self.gre,
                links,
                mark: None,
                events: Box::new(move |event| _ = tell.send(event)),
            })
            .expect("a client")
        });
        inner_addresses(&self.client, CLIENT);
        Client { handle, events }
    }
}

impl Hub {
    /// Waits for an event; those before it are dropped.
    pub fn until_event(&self, is_it: impl Fn(&HubEvent) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if is_it(&self.events.recv_timeout(left).expect("the event comes")) {
                return;
            }
        }
    }
}

fn inner_addresses(namespace: &Namespace, [v4, v6]: [&str; 2]) {
    namespace.ip(&format!("addr add {v4}/24 dev bond0"));
    namespace.ip(&format!("addr add {v6}/64 dev bond0 nodad"));
}

pub fn hub_key() -> PublicKey {
    identity(2).public()
}

/// The client's link over a line.
pub fn link(line: u8, outer: Outer) -> LinkSpec {
    let net = line + 1;
    let (source, hub) = match outer {
        Outer::V4 => (format!("10.{net}.0.2"), "192.0.2.1"),
        Outer::V6 => (format!("fd0{net}::2"), "2001:db8::1"),
    };
    LinkSpec {
        id: LinkId(line),
        device: format!("wan{line}"),
        source: address(&source),
        hub: SocketAddr::new(address(hub), PORT),
        tier: 0,
        cap: None,
        quota: None,
    }
}

pub fn links(outer: Outer) -> Vec<LinkSpec> {
    vec![link(0, outer), link(1, outer)]
}

impl Client {
    pub fn status(&self) -> ClientStatus {
        self.handle.status().expect("it runs")
    }

    /// Waits for links to be in use.
    pub fn until_in_use(&self, links: &[u8]) {
        self.until(|status| {
            let in_use = |id: &u8| {
                let mut links = status.links.iter();
                links.any(|link| link.id == LinkId(*id) && link.in_use)
            };
            links.iter().all(in_use)
        });
    }

    /// Waits for a state.
    pub fn until(&self, is_so: impl Fn(&ClientStatus) -> bool) {
        wait_for(|| is_so(&self.status()), || format!("{:#?}", self.status()));
    }

    /// Waits for an event; those before it are dropped.
    pub fn until_event(&self, is_it: impl Fn(&ClientEvent) -> bool) -> ClientEvent {
        let deadline = Instant::now() + PATIENCE;
        let mut others = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left).unwrap_or_else(|_| {
                panic!(
                    "these came, and not the one: {others:#?}\n{:#?}",
                    self.status()
                )
            });
            if is_it(&event) {
                return event;
            }
            others.push(event);
        }
    }
}

/// Waits for a condition, looking again every few milliseconds.
pub fn wait_for(is_so: impl Fn() -> bool, describe: impl Fn() -> String) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "it never was so: {}", describe());
        std::thread::sleep(Duration::from_millis(5));
    }
}
