//! Two ends that complete handshakes, without links between them.
#![allow(dead_code, reason = "each test uses its part")]

pub mod epochs;

use std::net::SocketAddr;

use braid_bond::proto::entropy::Entropy;
use braid_bond::proto::handshake::{
    Attempt, Ciphers, Established, HandshakeAction, Identity, Listener, Options, Psk, PublicKey,
    Start,
};
use braid_bond::proto::packet::SessionIndex;
use braid_bond::proto::seal::Cipher;
use braid_bond::proto::session::Session;
use braid_core::Time;
use braid_multipath::LinkId;

pub fn index(number: u32) -> SessionIndex {
    let [_, a, b, c] = number.to_be_bytes();
    SessionIndex::new([a, b, c]).expect("not zero")
}

pub fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, last], 4000))
}

pub fn start(number: u32, micros: u64) -> Start {
    Start {
        index: index(number),
        continues: None,
        micros,
        ciphers: Ciphers::preferring(Cipher::Aes256Gcm),
        options: Options::new(),
    }
}

/// A listener and a client that it knows.
pub struct World {
    pub client: Identity,
    pub server: PublicKey,
    pub psk: Psk,
    pub listener: Listener,
    pub entropy: Entropy,
}

impl World {
    pub fn new() -> World {
        let client = Identity::new([1; 32]);
        let server = Identity::new([2; 32]);
        let psk = Psk::new([3; 32]);
        let public = server.public();
        let mut listener = Listener::new(Time::ZERO, server, Entropy::new(&[4; 32]));
        listener.insert(client.public(), psk.clone());
        World {
            client,
            server: public,
            psk,
            listener,
            entropy: Entropy::new(&[5; 32]),
        }
    }

    /// The same ends with other randomness.
    pub fn again(&self) -> World {
        let mut world = World::new();
        world.entropy = Entropy::new(&[6; 32]);
        world
    }

    pub fn attempt(&mut self, start: Start) -> Attempt {
        Attempt::new(
            &self.client,
            self.server,
            &self.psk,
            start,
            &mut self.entropy,
        )
    }

    /// Accepts the offer of a datagram, with the index `number`.
    pub fn accept(&mut self, now: Time, datagram: &[u8], number: u32) -> (Session, Vec<u8>) {
        let answer = self.listener.handle_initiation(now, address(1), datagram);
        let Ok(HandshakeAction::Offer(offer)) = answer else {
            panic!("{answer:?}")
        };
        let ciphers = Ciphers::preferring(Cipher::Aes256Gcm);
        let accepted =
            self.listener
                .accept(now, *offer, index(number), false, ciphers, &Options::new());
        let accepted = accepted.expect("nothing is against it");
        (accepted.session, accepted.reply)
    }

    /// A whole handshake over link 0: the client's session and the server's.
    pub fn sessions(&mut self, now: Time, micros: u64) -> (Established, Session) {
        let mut attempt = self.attempt(start(0x0a_0000 + micros as u32, micros));
        let (session, reply) = self.accept(
            now,
            &message1(&attempt, LinkId(0)),
            0x0b_0000 + micros as u32,
        );
        let established = attempt.handle_response(now, &reply);
        (established.expect("it is genuine"), session)
    }
}

pub fn message1(attempt: &Attempt, link: LinkId) -> Vec<u8> {
    let mut datagram = Vec::new();
    attempt.append(link, &mut datagram);
    datagram
}
