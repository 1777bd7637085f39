//! The Noise library, with randomness that is handed in.

use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};

use super::{Identity, NOISE, PROLOGUE, PublicKey};

/// A handshake that this end begins. `ephemeral` is the private key of this handshake alone.
pub(super) fn initiate(own: &Identity, peer: PublicKey, ephemeral: [u8; 32]) -> HandshakeState {
    builder(own, ephemeral)
        .remote_public_key(&peer.0)
        .and_then(Builder::build_initiator)
        .expect("keys are of the right size")
}

/// A handshake that the other end begins.
pub(super) fn respond(own: &Identity, ephemeral: [u8; 32]) -> HandshakeState {
    builder(own, ephemeral)
        .build_responder()
        .expect("keys are of the right size")
}

fn builder(own: &Identity, ephemeral: [u8; 32]) -> Builder<'_> {
    let params = NOISE.parse().expect("a Noise protocol name");
    Builder::with_resolver(params, Box::new(Given(ephemeral)))
        .local_private_key(own.private())
        .and_then(|builder| builder.prologue(PROLOGUE))
        .expect("set once each")
}

/// The library's own primitives, but for randomness.
struct Given([u8; 32]);

impl CryptoResolver for Given {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Once(Some(self.0))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

/// Gives its bytes once: a handshake needs one ephemeral key, and two uses would be a mistake.
struct Once(Option<[u8; 32]>);

impl Random for Once {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        match self.0.take() {
            Some(bytes) if dest.len() == bytes.len() => {
                dest.copy_from_slice(&bytes);
                Ok(())
            }
            _ => Err(snow::Error::Rng),
        }
    }
}
