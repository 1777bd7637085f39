//! Packets of unauthenticated senders are rejected, counted, and harm no client.

use std::net::{SocketAddr, UdpSocket};

use braid_bond::proto::entropy::Entropy;
use braid_bond::proto::handshake::terms::enrol;
use braid_bond::proto::handshake::{Attempt, Ciphers, Identity, Options, Psk, PublicKey, Start};
use braid_bond::proto::packet::SessionIndex;
use braid_bond::proto::seal::Cipher;
use braid_bond::token::{PORT, Token};
use braid_multipath::LinkId;
use serde_json::Value;

use crate::world::{HUB, World, wait_for};

/// Returns a handshake's message 1 for the peer with this key.
fn initiation(own: [u8; 32], to: PublicKey, micros: u64, options: Options) -> Vec<u8> {
    let start = Start {
        index: SessionIndex::new([1, 2, 3]).expect("not zero"),
        continues: None,
        micros,
        ciphers: Ciphers::preferring(Cipher::ChaCha20Poly1305),
        options,
    };
    let mut seed = own;
    seed[31] ^= micros as u8;
    let mut entropy = Entropy::new(&seed);
    let own = Identity::new(own);
    let attempt = Attempt::new(&own, to, &Psk::default(), start, &mut entropy);
    let mut datagram = Vec::new();
    attempt.append(LinkId(0), &mut datagram);
    datagram
}

fn count(status: &Value, table: &str, name: &str) -> u64 {
    status[table][name].as_u64().expect("a number")
}

/// Sends an attacker's datagrams, all from one socket on another machine.
fn attack(world: &World, token: &Token) {
    let hub = SocketAddr::new(HUB.parse().expect("an address"), PORT);
    world.machines[1].enter(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        let send = |datagram: &[u8]| {
            // A full queue drops part of a flood.
            let _ = socket.send_to(datagram, hub);
        };
        for length in 0..300usize {
            for first in [0x00, 0x01, 0x02, 0x03, 0x04, 0x20, 0x45, 0x60, 0xff] {
                let mut datagram = vec![length as u8; length];
                if let Some(byte) = datagram.first_mut() {
                    *byte = first;
                }
                send(&datagram);
            }
        }
        // A sender that does not know the hub's key.
        let nobody = Identity::new([200; 32]).public();
        send(&initiation([9; 32], nobody, 1, Options::new()));
        // The client's own message, as if recorded earlier and replayed.
        send(&initiation([1; 32], token.hub, 1, enrol(token.secret.id())));
        // A flood of well-formed messages with keys that were never invited.
        for number in 0..400u16 {
            let [high, low] = number.to_be_bytes();
            let mut key = [77; 32];
            (key[0], key[1]) = (high, low);
            send(&initiation(key, token.hub, 5, Options::new()));
        }
    });
}

#[test]
fn a_client_does_not_notice_that_strangers_attack() {
    let world = World::new();
    let hub = world.start_hub("");
    let token = world.invite("attic", &[]);
    let client = world.join(0, &token, 1);
    client.until_in();
    assert!(client.reaches("203.0.113.1"));
    std::thread::scope(|scope| {
        let machine = client.namespace();
        let pinging = scope.spawn(|| machine.run("ping -c 100 -i 0.02 -W 5 203.0.113.1"));
        attack(&world, &token);
        let said = pinging.join().expect("it ends");
        assert!(said.contains(" 0% packet loss"), "{said}");
    });
    let status = || world.json(&["status"]);
    let refused = [
        ("rejected", "malformed", 1_000),
        ("rejected", "session", 100),
        ("handshakes", "mac", 1),
        ("handshakes", "stale", 1),
        ("handshakes", "unknown-key", 50),
        ("handshakes", "cookie", 50),
    ];
    for (table, name, least) in refused {
        wait_for(
            || count(&status(), table, name) >= least,
            || format!("{least} {name} in {}", status()),
        );
    }
    assert_eq!(count(&status(), "handshakes", "accepted"), 1);
    // It has not started before, so no session has been lost.
    assert_eq!(count(&status(), "handshakes", "reset"), 0);
    assert!(hub.is_alive(), "{}", hub.log());
    assert_eq!(status()["health"], Value::Array(Vec::new()));
}
