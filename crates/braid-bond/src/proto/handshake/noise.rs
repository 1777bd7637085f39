//! The Noise library, with injected randomness.

use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};
use zeroize::Zeroizing;

use super::{Identity, NOISE, PROLOGUE, PublicKey};
use crate::proto::erase::Erased;

/// A handshake that this end begins. `ephemeral` is the private key of this handshake alone.
pub(super) fn initiate(
    own: &Identity,
    peer: PublicKey,
    ephemeral: [u8; 32],
) -> Erased<HandshakeState> {
    let state = builder(own, ephemeral)
        .remote_public_key(&peer.0)
        .and_then(Builder::build_initiator);
    Erased::new(state.expect("keys are of the right size"))
}

/// A handshake that the other end begins.
pub(super) fn respond(own: &Identity, ephemeral: [u8; 32]) -> Erased<HandshakeState> {
    let state = builder(own, ephemeral).build_responder();
    Erased::new(state.expect("keys are of the right size"))
}

fn builder(own: &Identity, ephemeral: [u8; 32]) -> Builder<'_> {
    let params = NOISE.parse().expect("a Noise protocol name");
    Builder::with_resolver(
        params,
        Box::new(EphemeralResolver(Zeroizing::new(ephemeral))),
    )
    .local_private_key(own.private())
    .and_then(|builder| builder.prologue(PROLOGUE))
    .expect("set once each")
}

/// The library's own primitives, with the given ephemeral key; keys are overwritten on drop.
struct EphemeralResolver(Zeroizing<[u8; 32]>);

impl CryptoResolver for EphemeralResolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(OneShotRandom(Some(self.0.clone()))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        let dh = DefaultResolver.resolve_dh(choice)?;
        Some(Box::new(KeyPair(dh)))
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        let cipher = DefaultResolver.resolve_cipher(choice)?;
        Some(Box::new(Key(cipher)))
    }
}

/// A key pair whose private key is overwritten on drop.
struct KeyPair(Box<dyn Dh>);

impl Drop for KeyPair {
    fn drop(&mut self) {
        self.0.set(&[0; 32]);
    }
}

impl Dh for KeyPair {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn pub_len(&self) -> usize {
        self.0.pub_len()
    }

    fn priv_len(&self) -> usize {
        self.0.priv_len()
    }

    fn set(&mut self, privkey: &[u8]) {
        self.0.set(privkey);
    }

    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), snow::Error> {
        self.0.generate(rng)
    }

    fn pubkey(&self) -> &[u8] {
        self.0.pubkey()
    }

    fn privkey(&self) -> &[u8] {
        self.0.privkey()
    }

    fn dh(&self, pubkey: &[u8], out: &mut [u8]) -> Result<(), snow::Error> {
        self.0.dh(pubkey, out)
    }
}

/// A cipher whose key is overwritten on drop.
struct Key(Box<dyn Cipher>);

impl Drop for Key {
    fn drop(&mut self) {
        self.0.set(&[0; 32]);
    }
}

impl Cipher for Key {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn set(&mut self, key: &[u8; 32]) {
        self.0.set(key);
    }

    fn encrypt(&self, nonce: u64, authtext: &[u8], plaintext: &[u8], out: &mut [u8]) -> usize {
        self.0.encrypt(nonce, authtext, plaintext, out)
    }

    fn decrypt(
        &self,
        nonce: u64,
        authtext: &[u8],
        ciphertext: &[u8],
        out: &mut [u8],
    ) -> Result<usize, snow::Error> {
        self.0.decrypt(nonce, authtext, ciphertext, out)
    }
}

/// Returns its bytes once: a handshake needs one ephemeral key, and a second use would be a bug.
struct OneShotRandom(Option<Zeroizing<[u8; 32]>>);

impl Random for OneShotRandom {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        match self.0.take() {
            Some(bytes) if dest.len() == bytes.len() => {
                dest.copy_from_slice(&*bytes);
                Ok(())
            }
            _ => Err(snow::Error::Rng),
        }
    }
}
