//! A handshake among strangers: one that knows the hub's public key and sees the client's packets,
//! and one that floods the hub.

use std::net::SocketAddr;
use std::time::Duration;

use braid_bond::proto::entropy::Entropy;
use braid_bond::proto::handshake::mac::{MacKey, hash};
use braid_bond::proto::handshake::{
    Attempt, Ciphers, CookieReply, HandshakeAction, Identity, Initiation, Listener, Options, Psk,
    PublicKey, Start,
};
use braid_bond::proto::packet::SessionIndex;
use braid_bond::proto::seal::Cipher;
use braid_bond::proto::server::Server;
use braid_bond::proto::tunnel::{ClientSettings, LinkConfig, Tunnel, TunnelSettings};
use braid_core::Time;
use braid_multipath::LinkId;

const LINKS: u8 = 2;

/// Initiations that use up the rate at which a hub computes without a cookie.
const FLOOD: u32 = 201;

/// The first byte chooses the end that is attacked; the others are the attack.
pub fn cookie(data: &[u8]) {
    match data.split_first() {
        Some((first, attack)) if first & 1 == 0 => on_client(attack),
        Some((_, attack)) => on_hub(attack),
        None => {}
    }
}

fn ciphers() -> Ciphers {
    Ciphers::preferring(Cipher::Aes256Gcm)
}

fn hub_address() -> SocketAddr {
    ([192, 0, 2, 1], 4000).into()
}

/// A client that an observer attacks. Each step is a byte that says what, then its bytes.
struct Attacked {
    now: Time,
    client: Tunnel,
    /// Last initiation on each link.
    sent: [Vec<u8>; LINKS as usize],
    initiations: usize,
}

impl Attacked {
    fn new(hub: PublicKey) -> Attacked {
        let settings = ClientSettings {
            identity: Identity::new([1; 32]),
            hub,
            psk: Psk::new([7; 32]),
            ciphers: ciphers(),
            options: Options::new(),
            gre: false,
            unix_micros: 1,
        };
        let entropy = Entropy::new(&[4; 32]);
        let now = Time::ZERO;
        let mut client = Tunnel::connect(now, settings, TunnelSettings::default(), entropy);
        for link in 0..LINKS {
            let config = LinkConfig {
                remote: Some(hub_address()),
                ..LinkConfig::default()
            };
            client.add_link(now, LinkId(link), config);
        }
        Attacked {
            now,
            client,
            sent: Default::default(),
            initiations: 0,
        }
    }

    fn drain(&mut self) {
        let mut out = Vec::new();
        while let Some(datagram) = self.client.poll_transmit(self.now, &mut out) {
            assert_eq!(datagram.to, hub_address());
            self.sent[datagram.link.index()].clone_from(&out);
            self.initiations += 1;
        }
    }

    fn hear(&mut self, mut datagram: Vec<u8>) {
        // Refused datagrams are counted.
        let _ = self
            .client
            .handle_datagram(self.now, (self.now, hub_address()), &mut datagram);
    }

    fn pass(&mut self, span: Duration) {
        self.now = self.now + span;
        self.client.handle_timeout(self.now);
        self.drain();
    }
}

/// Whatever an observer forges, the client sends at most one more copy of each message 1 on a link,
/// and the hub's answer begins its session.
fn on_client(attack: &[u8]) {
    let hub = Identity::new([2; 32]);
    let mut world = Attacked::new(hub.public());
    world.drain();
    let mut steps = 1;
    let mut rest = attack;
    while let Some((what, after)) = rest.split_first() {
        let body = &after[..after.len().min(40)];
        rest = &after[body.len().min(usize::from(*what >> 3))..];
        match what & 7 {
            0 | 1 => world.hear(forged_cookie(
                &world.sent[usize::from(what & 1)],
                hub.public(),
                body,
            )),
            2 | 3 => world.hear(forged_notice(
                &world.sent[usize::from(what & 1)],
                hub.public(),
            )),
            4 => {
                world.pass(Duration::from_millis(50 * u64::from(what >> 3)));
                steps += 1;
            }
            5 => world.hear([&[2, what & 1], body].concat()),
            6 => world.hear([&[4], body].concat()),
            _ => world.hear(body.to_vec()),
        }
        world.drain();
        assert!(world.client.session().is_none());
    }
    assert!(world.initiations <= steps * 2 * usize::from(LINKS));
    // Message 1 is repeated within four seconds, or a new one begins.
    world.pass(Duration::from_secs(4));
    let mut server = Server::new(
        world.now,
        hub,
        ciphers(),
        TunnelSettings::default(),
        Entropy::new(&[5; 32]),
    );
    server.insert(Identity::new([1; 32]).public(), Psk::new([7; 32]));
    let from = ([192, 0, 2, 2], 2).into();
    server
        .handle_datagram(world.now, (world.now, from), &mut world.sent[0].clone())
        .expect("it is genuine");
    let mut reply = Vec::new();
    assert!(server.poll_transmit(world.now, &mut reply).is_some());
    world.hear(reply);
    assert!(world.client.session().is_some());
}

fn forged_cookie(sent: &[u8], hub: PublicKey, body: &[u8]) -> Vec<u8> {
    let Ok(initiation) = Initiation::parse(sent) else {
        return Vec::new();
    };
    let mut bytes = [0; 32];
    bytes[..body.len().min(32)].copy_from_slice(&body[..body.len().min(32)]);
    let (cookie, salt) = bytes.split_at(16);
    let reply = CookieReply {
        link: initiation.link,
        cookie: cookie.try_into().expect("16 bytes"),
    };
    let mut datagram = Vec::new();
    let salt = salt.try_into().expect("16 bytes");
    reply.append(hub, initiation.mac1, salt, &mut datagram);
    datagram
}

fn forged_notice(sent: &[u8], hub: PublicKey) -> Vec<u8> {
    let Ok(initiation) = Initiation::parse(sent) else {
        return Vec::new();
    };
    let keyed = MacKey::secret(&hash(&[b"braid retired".as_slice(), &hub.0].concat()));
    let mut datagram = vec![5, initiation.link.0];
    datagram.extend_from_slice(&keyed.sign(&[initiation.mac1]));
    datagram
}

/// A hub under a flood answers a wrong cookie by a smaller datagram and computes nothing; the right
/// cookie counts at its own address alone.
fn on_hub(attack: &[u8]) {
    let hub = Identity::new([2; 32]);
    let client = Identity::new([1; 32]);
    let mut listener = Listener::new(Time::ZERO, hub.clone(), Entropy::new(&[3; 32]));
    listener.insert(client.public(), Psk::default());
    let start = Start {
        index: SessionIndex::new([0, 0, 7]).expect("not zero"),
        continues: None,
        micros: 1,
        ciphers: ciphers(),
        options: Options::new(),
    };
    let mut entropy = Entropy::new(&[4; 32]);
    let mut attempt = Attempt::new(&client, hub.public(), &Psk::default(), start, &mut entropy);
    let mut genuine = Vec::new();
    attempt.append(LinkId(0), &mut genuine);
    let to_hub = MacKey::of(hub.public());
    let mut flood = genuine.clone();
    for number in 0..FLOOD {
        flood[3..7].copy_from_slice(&number.to_be_bytes());
        let at = flood.len() - 32;
        let mac1 = to_hub.sign(&[&flood[..at]]);
        flood[at..at + 16].copy_from_slice(&mac1);
        let from = ([198, 51, 100, 1], 1).into();
        let _ = listener.handle_initiation(Time::ZERO, from, &flood);
    }
    assert!(listener.counters().cookies > 0, "it is flooded");
    let (at_home, elsewhere) = (([192, 0, 2, 2], 2).into(), ([192, 0, 2, 3], 2).into());
    for mac2 in attack.chunks(16) {
        let mut wrong = genuine.clone();
        let at = wrong.len() - 16;
        wrong[at..at + mac2.len()].copy_from_slice(mac2);
        demands(&mut listener, at_home, &wrong);
    }
    let reply = demands(&mut listener, at_home, &genuine);
    assert_eq!(attempt.handle_cookie(&reply), Ok(LinkId(0)));
    let mut proven = Vec::new();
    attempt.append(LinkId(0), &mut proven);
    demands(&mut listener, elsewhere, &proven);
    let answer = listener.handle_initiation(Time::ZERO, at_home, &proven);
    assert!(
        matches!(answer, Ok(HandshakeAction::Offer(_))),
        "{answer:?}"
    );
}

fn demands(listener: &mut Listener, from: SocketAddr, initiation: &[u8]) -> Vec<u8> {
    let forged = listener.counters().forged;
    let answer = listener.handle_initiation(Time::ZERO, from, initiation);
    let Ok(HandshakeAction::Reply(reply)) = answer else {
        panic!("{answer:?}")
    };
    assert!(reply[0] == 3 && reply.len() < initiation.len());
    assert_eq!(listener.counters().forged, forged, "nothing is computed");
    reply
}
