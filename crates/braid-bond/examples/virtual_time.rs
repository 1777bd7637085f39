//! Both ends of a bond over two lines, in virtual time: no socket, no clock, the same output in every run.
//!
//! `cargo run -p braid-bond --example virtual_time`
//!
//! A client connects to a hub over lines of 20 and 10 Mbit/s and sends two seconds of datagrams, 24 Mbit/s, which
//! neither line carries alone. The driver below is all that a tunnel needs: it moves datagrams between the ends and
//! calls each end when the time of its `poll_timeout` has come.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use braid_bond::proto::entropy::Entropy;
use braid_bond::proto::handshake::{Ciphers, Identity, Options, Psk};
use braid_bond::proto::seal::Cipher;
use braid_bond::proto::server::Server;
use braid_bond::proto::tunnel::{ClientSettings, Event, LinkConfig, Tunnel, TunnelSettings};
use braid_core::{Bytes, Rate, Time};
use braid_multipath::LinkId;

const HUB: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), 27243);

/// Inner packets, and the time between two.
const INNER_BYTES: usize = 1200;
const INTERVAL: Duration = Duration::from_micros(400);
const SPAN: Duration = Duration::from_secs(2);

/// One direction of a line: packets leave at its rate, and arrive after its delay.
struct Line {
    rate: Rate,
    delay: Duration,
    free: Time,
    bytes: u64,
}

impl Line {
    fn new(mbit: u64, delay_ms: u64) -> Line {
        Line {
            rate: Rate::from_bits_per_sec(mbit * 1_000_000),
            delay: Duration::from_millis(delay_ms),
            free: Time::ZERO,
            bytes: 0,
        }
    }

    /// Returns the arrival of a datagram that is sent now.
    fn send(&mut self, now: Time, datagram: &[u8]) -> Time {
        // IPv4 and UDP headers, and Ethernet's.
        let bytes = datagram.len() as u64 + 28 + 14;
        self.bytes += bytes;
        self.free = self.free.max(now)
            + self
                .rate
                .time_of(Bytes::new(bytes))
                .expect("a line that has a rate");
        self.free + self.delay
    }
}

/// A client's link: its address there, and the line's two directions.
struct Link {
    client: SocketAddr,
    up: Line,
    down: Line,
}

struct World {
    now: Time,
    client: Tunnel,
    hub: Server,
    links: Vec<Link>,
    /// Datagrams on their way, by time of arrival and order of sending: destination, source, bytes.
    flying: BTreeMap<(Time, u64), (SocketAddr, SocketAddr, Vec<u8>)>,
    sent: u64,
    usable: usize,
    delivered: u64,
}

impl World {
    fn new(links: Vec<Link>) -> World {
        let ciphers = Ciphers::preferring(Cipher::ChaCha20Poly1305);
        let (client, hub) = (Identity::new([1; 32]), Identity::new([2; 32]));
        let settings = ClientSettings {
            hub: hub.public(),
            psk: Psk::new([7; 32]),
            ciphers,
            options: Options::new(),
            gre: false,
            unix_micros: 1_700_000_000_000_000,
            identity: client.clone(),
        };
        // A driver takes randomness from the system; here a seed makes each run the same.
        let mut server = Server::new(
            Time::ZERO,
            hub,
            ciphers,
            TunnelSettings::default(),
            Entropy::new(&[3; 32]),
        );
        server.insert(client.public(), Psk::new([7; 32]));
        let mut tunnel = Tunnel::connect(
            Time::ZERO,
            settings,
            TunnelSettings::default(),
            Entropy::new(&[4; 32]),
        );
        for index in 0..links.len() {
            let link = LinkConfig {
                remote: Some(HUB),
                ..LinkConfig::default()
            };
            tunnel.add_link(Time::ZERO, LinkId(index as u8), link);
        }
        World {
            now: Time::ZERO,
            client: tunnel,
            hub: server,
            links,
            flying: BTreeMap::new(),
            sent: 0,
            usable: 0,
            delivered: 0,
        }
    }

    /// Takes everything that the ends have to say.
    fn exchange(&mut self) {
        let mut buffer = Vec::new();
        while let Some(datagram) = self.client.poll_transmit(self.now, &mut buffer) {
            let link = &mut self.links[datagram.link.index()];
            let arrival = link.up.send(self.now, &buffer);
            self.sent += 1;
            self.flying
                .insert((arrival, self.sent), (HUB, link.client, buffer.clone()));
        }
        while let Some(to) = self.hub.poll_transmit(self.now, &mut buffer) {
            let link = self.links.iter_mut().find(|link| link.client == to);
            let arrival = link
                .expect("a client's address")
                .down
                .send(self.now, &buffer);
            self.sent += 1;
            self.flying
                .insert((arrival, self.sent), (to, HUB, buffer.clone()));
        }
        while self.client.poll_inner(self.now).is_some() {}
        while let Some(event) = self.client.poll_event() {
            self.usable += usize::from(matches!(event, Event::LinkUsable(_)));
        }
        for (_, tunnel) in self.hub.tunnels() {
            while let Some(packet) = tunnel.poll_inner(self.now) {
                self.delivered += packet.len() as u64;
            }
            while tunnel.poll_event().is_some() {}
        }
    }

    /// Runs until a time: always on to the next arrival or timeout.
    fn run_until(&mut self, until: Time) {
        loop {
            self.exchange();
            let arrival = self.flying.keys().next().map(|(at, _)| *at);
            let next = [self.client.poll_timeout(), self.hub.poll_timeout(), arrival];
            let next = next
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(until)
                .max(self.now);
            if next >= until {
                self.now = until;
                return;
            }
            self.now = next;
            while let Some(first) = self
                .flying
                .first_entry()
                .filter(|first| first.key().0 <= next)
            {
                let (to, from, mut datagram) = first.remove();
                // A datagram that an end refuses is counted there.
                let _ = match to == HUB {
                    true => self
                        .hub
                        .handle_datagram(next, (next, from), &mut datagram)
                        .is_ok(),
                    false => self
                        .client
                        .handle_datagram(next, (next, from), &mut datagram)
                        .is_ok(),
                };
            }
            self.client.handle_timeout(next);
            self.hub.handle_timeout(next);
        }
    }
}

fn main() {
    let link = |last, mbit, delay_ms| Link {
        client: SocketAddr::from(([100, 64, last, 2], 40_000)),
        up: Line::new(mbit, delay_ms),
        down: Line::new(mbit, delay_ms),
    };
    let mut world = World::new(vec![link(1, 20, 15), link(2, 10, 30)]);
    while world.usable < world.links.len() {
        let next = world.now + Duration::from_millis(10);
        world.run_until(next);
    }
    println!(
        "both links usable after {} ms",
        world.now.since(Time::ZERO).as_millis()
    );

    let begin = world.now;
    let payload = [0; INNER_BYTES - 28];
    let ends = |last, port| (IpAddr::from([10, 77, 0, last]), port);
    while world.now < begin + SPAN {
        let packet = braid_packet::build::udp(ends(2, 5000), ends(1, 443), &payload);
        world.client.handle_inner(world.now, packet);
        let next = world.now + INTERVAL;
        world.run_until(next);
    }
    let seconds = world.now.since(begin).as_secs_f64();
    println!(
        "{:.1} Mbit/s of inner packets arrived",
        8e-6 * world.delivered as f64 / seconds
    );
    for (id, link) in world.links.iter().enumerate() {
        let mbit = 8e-6 * link.up.bytes as f64 / seconds;
        println!(
            "link {id} carried {mbit:.1} of {:.0} Mbit/s",
            link.up.rate.bits_per_sec() as f64 / 1e6
        );
    }
}
