//! A client and a hub over lines in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::time::Duration;

use braid_bond::proto::entropy::Entropy;
use braid_bond::proto::gre;
use braid_bond::proto::handshake::{Ciphers, Identity, Options, Psk, PublicKey};
use braid_bond::proto::seal::Cipher;
use braid_bond::proto::server::Server;
use braid_bond::proto::tunnel::{ClientSettings, Event, LinkConfig, Tunnel, TunnelSettings};
use braid_core::Time;
use braid_multipath::LinkId;

use crate::epochs::later_run;
use crate::line::{Dice, Lines};

/// The hub's address.
pub const HUB: SocketAddr = SocketAddr::new(
    std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)),
    4000,
);

/// µs since 1970 at the simulation's zero.
const UNIX: u64 = 1_700_000_000_000_000;

/// Offset of the hub's clock from the client's.
const SKEW: Duration = Duration::from_secs(1_234);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Client,
    Hub,
}

#[derive(Debug, PartialEq, Eq)]
struct Flying {
    at: Time,
    order: u64,
    to: End,
    from: SocketAddr,
    datagram: Vec<u8>,
}

impl Ord for Flying {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl PartialOrd for Flying {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Both ends, and the lines between them.
pub struct Pair {
    pub now: Time,
    /// The hub's clock is so far ahead.
    ahead: Duration,
    pub client: Tunnel,
    pub server: Server,
    pub peer: PublicKey,
    pub lines: Vec<Lines>,
    pub dice: Dice,
    flying: BinaryHeap<Reverse<Flying>>,
    order: u64,
    /// Delivered inner packets, with their times.
    pub at_hub: Vec<(Time, Vec<u8>)>,
    pub at_client: Vec<(Time, Vec<u8>)>,
    pub client_events: Vec<(Time, Event)>,
    pub hub_events: Vec<(Time, Event)>,
    /// Every datagram of the client, if recording is on.
    pub recorded: Option<Vec<(SocketAddr, Vec<u8>)>>,
    buffer: Vec<u8>,
}

pub fn identity(number: u8) -> Identity {
    Identity::new([number; 32])
}

pub fn server(now: Time, seed: u8) -> Server {
    let ciphers = Ciphers::preferring(Cipher::Aes256Gcm);
    let entropy = Entropy::new(&[seed; 32]);
    let mut server = Server::new(
        now,
        identity(2),
        ciphers,
        TunnelSettings::default(),
        entropy,
    );
    server.insert(identity(1).public(), Psk::new([7; 32]));
    server.set_epochs(later_run(0));
    server
}

/// The same hub after a restart.
pub fn restarted(now: Time, seed: u8) -> Server {
    let mut server = server(now, seed);
    server.set_epochs(later_run(1));
    server
}

pub fn client_settings() -> ClientSettings {
    ClientSettings {
        identity: identity(1),
        hub: identity(2).public(),
        psk: Psk::new([7; 32]),
        ciphers: Ciphers::preferring(Cipher::Aes256Gcm),
        options: Options::new(),
        gre: false,
        unix_micros: UNIX,
    }
}

impl Pair {
    /// A client that connects over these lines, which are its links 0, 1, 2 …
    pub fn new(seed: u64, lines: Vec<Lines>) -> Pair {
        Pair::with(seed, lines, TunnelSettings::default())
    }

    pub fn with(seed: u64, lines: Vec<Lines>, settings: TunnelSettings) -> Pair {
        Pair::of(seed, lines, client_settings(), settings)
    }

    /// The same with a client that wants GRE, or not.
    pub fn wanting(seed: u64, lines: Vec<Lines>, gre: bool) -> Pair {
        let client = ClientSettings {
            gre,
            ..client_settings()
        };
        Pair::of(seed, lines, client, TunnelSettings::default())
    }

    fn of(seed: u64, lines: Vec<Lines>, client: ClientSettings, settings: TunnelSettings) -> Pair {
        println!("seed {seed}");
        let now = Time::ZERO;
        let entropy = Entropy::new(&[seed as u8; 32]);
        let mut client = Tunnel::connect(now, client, settings, entropy);
        for index in 0..lines.len() {
            client.add_link(now, LinkId(index as u8), link());
        }
        Pair {
            now,
            ahead: SKEW,
            client,
            server: server(now + SKEW, seed as u8 ^ 0x80),
            peer: identity(1).public(),
            lines,
            dice: Dice::new(seed),
            flying: BinaryHeap::new(),
            order: 0,
            at_hub: Vec::new(),
            at_client: Vec::new(),
            client_events: Vec::new(),
            hub_events: Vec::new(),
            recorded: None,
            buffer: Vec::new(),
        }
    }

    /// The hub's end; requires a finished handshake.
    pub fn hub(&mut self) -> &mut Tunnel {
        self.server.tunnel(self.peer).expect("it is connected")
    }

    pub fn hub_now(&self) -> Time {
        self.now + self.ahead
    }

    pub fn inner_at_hub(&mut self, packet: Vec<u8>) {
        let now = self.hub_now();
        self.hub().handle_inner(now, packet);
    }

    pub fn inner_at_client(&mut self, packet: Vec<u8>) {
        self.client.handle_inner(self.now, packet);
    }

    /// Injects a datagram that neither end has sent.
    pub fn inject(&mut self, to: End, from: SocketAddr, datagram: Vec<u8>) {
        self.fly(self.now, to, from, datagram);
    }

    fn fly(&mut self, at: Time, to: End, from: SocketAddr, datagram: Vec<u8>) {
        self.order += 1;
        self.flying.push(Reverse(Flying {
            at,
            order: self.order,
            to,
            from,
            datagram,
        }));
    }

    /// Runs until `until`; calls `each` at every instant with an event.
    pub fn run(&mut self, until: Time, mut each: impl FnMut(&mut Pair)) {
        let mut instants = 0u64;
        loop {
            self.exchange();
            each(self);
            self.exchange();
            let hub = self.server.poll_timeout();
            let hub = hub.map(|at| self.now + at.since(self.hub_now()));
            let flying = self.flying.peek().map(|Reverse(flying)| flying.at);
            let next = [self.client.poll_timeout(), hub, flying];
            let next = next.into_iter().flatten().min();
            let next = next.unwrap_or(until).max(self.now);
            instants = if next > self.now { 0 } else { instants + 1 };
            assert!(instants < 10_000, "time stands still at {:?}", self.now);
            if next >= until {
                self.now = until;
                return;
            }
            self.now = next;
            self.arrive();
            self.client.handle_timeout(self.now);
            self.server.handle_timeout(self.hub_now());
        }
    }

    pub fn run_for(&mut self, span: Duration) {
        self.run(self.now + span, |_| {});
    }

    /// Suspends the client: its clock stands still meanwhile, and it forgets its keys.
    pub fn suspend_client(&mut self, span: Duration) {
        self.flying.clear();
        let until = self.ahead + span;
        let mut buffer = Vec::new();
        while self.ahead < until {
            let now = self.hub_now();
            self.server.handle_timeout(now);
            while self.server.poll_transmit(now, &mut buffer).is_some() {}
            let next = self.server.poll_timeout().map(|at| at.since(now));
            let least = Duration::from_micros(100);
            self.ahead = until.min(self.ahead + next.unwrap_or(span).max(least));
        }
        self.client.forget_keys(self.now);
    }

    fn arrive(&mut self) {
        while let Some(Reverse(flying)) = self.flying.peek() {
            if flying.at > self.now {
                return;
            }
            let Some(Reverse(mut flying)) = self.flying.pop() else {
                return;
            };
            let (from, datagram) = (flying.from, &mut flying.datagram);
            match flying.to {
                // Refused datagrams are counted; tests read the counters.
                End::Client => {
                    let _ = self
                        .client
                        .handle_datagram(self.now, (self.now, from), datagram);
                }
                End::Hub => {
                    let now = self.hub_now();
                    let _ = self.server.handle_datagram(now, (now, from), datagram);
                }
            }
        }
    }

    /// Drains the output of both ends.
    fn exchange(&mut self) {
        let mut buffer = std::mem::take(&mut self.buffer);
        while let Some(datagram) = self.client.poll_transmit(self.now, &mut buffer) {
            assert_eq!(datagram.to, HUB);
            let lines = &mut self.lines[datagram.link.index()];
            let from = lines.client;
            if let Some(recorded) = &mut self.recorded {
                recorded.push((from, buffer.clone()));
            }
            let passes = lines.up.gre || !gre::is_gre(&buffer);
            let arrives = lines.up.send(self.now, buffer.len(), &mut self.dice);
            let arrives = arrives.filter(|_| passes);
            let copies = if lines.up.duplicates { 2 } else { 1 };
            for at in arrives
                .into_iter()
                .cycle()
                .take(copies * usize::from(arrives.is_some()))
            {
                self.fly(at, End::Hub, from, buffer.clone());
            }
        }
        let hub_now = self.hub_now();
        while let Some(to) = self.server.poll_transmit(hub_now, &mut buffer) {
            let Some(lines) = self.lines.iter_mut().find(|lines| lines.client == to) else {
                continue;
            };
            let passes = lines.down.gre || !gre::is_gre(&buffer);
            let arrives = lines.down.send(self.now, buffer.len(), &mut self.dice);
            let arrives = arrives.filter(|_| passes);
            if let Some(at) = arrives {
                self.fly(at, End::Client, HUB, buffer.clone());
            }
        }
        self.buffer = buffer;
        while let Some(packet) = self.client.poll_inner(self.now) {
            self.at_client.push((self.now, packet.to_vec()));
        }
        while let Some(event) = self.client.poll_event() {
            self.client_events.push((self.now, event));
        }
        let hub_now = self.hub_now();
        for (_, tunnel) in self.server.tunnels() {
            while let Some(packet) = tunnel.poll_inner(hub_now) {
                self.at_hub.push((self.now, packet.to_vec()));
            }
            while let Some(event) = tunnel.poll_event() {
                self.hub_events.push((self.now, event));
            }
        }
    }

    /// Runs for `span`, and calls `each` every `tick` with the number of earlier calls.
    pub fn tick(&mut self, span: Duration, tick: Duration, mut each: impl FnMut(&mut Pair, u64)) {
        let (begin, mut count) = (self.now, 0);
        while tick * (count as u32) < span {
            each(self, count);
            count += 1;
            self.run(begin + tick * (count as u32), |_| {});
        }
    }

    /// Runs until both ends can use all links.
    pub fn connect(&mut self) {
        let usable = |events: &[(Time, Event)]| {
            let usable = events
                .iter()
                .filter(|(_, event)| matches!(event, Event::LinkUsable(_)));
            usable.count()
        };
        let deadline = self.now + Duration::from_secs(30);
        while self.now < deadline {
            self.run_for(Duration::from_millis(10));
            let links = self.lines.len();
            if usable(&self.client_events) >= links && usable(&self.hub_events) >= links {
                return;
            }
        }
        panic!(
            "not connected: {:?} {:?}",
            self.client_events, self.hub_events
        );
    }
}

pub fn link() -> LinkConfig {
    LinkConfig {
        remote: Some(HUB),
        ..LinkConfig::default()
    }
}

/// An inner UDP packet of `size` bytes of flow `port`, with a number inside. It goes to QUIC's
/// port, so that small packets are ordered as well.
pub fn inner(port: u16, number: u64, size: usize) -> Vec<u8> {
    let mut payload = vec![0; size - 28];
    payload[..8].copy_from_slice(&number.to_be_bytes());
    let end = |last, port| (std::net::IpAddr::from([10, 9, 0, last]), port);
    braid_packet::build::udp(end(1, port), end(2, 443), &payload)
}

/// Flow and number of such a packet.
pub fn number(packet: &[u8]) -> (u16, u64) {
    let port = u16::from_be_bytes([packet[20], packet[21]]);
    let number = packet[28..36].try_into().expect("eight bytes");
    (port, u64::from_be_bytes(number))
}
