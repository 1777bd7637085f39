//! MACs that are checked before any Diffie–Hellman: they cost an attacker as much as the defender.
//!
//! All are HMAC-SHA256, cut to 16 bytes:
//! ```text
//! mac1 of an initiation    key SHA256("braid mac" ‖ responder's public key)
//!                          over the datagram before it
//! mac1 of a response       key SHA256("braid mac" ‖ initiator's public key)
//!                          over the datagram before it ‖ initiator's ephemeral key
//! mac2 of an initiation    key the cookie; over the datagram before it
//! ```
//! The response's MAC also covers the ephemeral key of the initiation that it answers: an attacker
//! who has not seen that key cannot make the initiator compute anything.

use ring::{digest, hmac};

use super::PublicKey;
use crate::proto::erase::Erased;

/// Bytes of a MAC, and of a cookie.
pub const MAC: usize = 16;

/// Checks and makes the MACs of messages to one public key.
pub struct MacKey(Erased<hmac::Key>);

impl Clone for MacKey {
    fn clone(&self) -> Self {
        MacKey(Erased::new((*self.0).clone()))
    }
}

impl std::fmt::Debug for MacKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MacKey")
    }
}

impl MacKey {
    /// Key for messages to `receiver`.
    #[must_use]
    pub fn of(receiver: PublicKey) -> Self {
        MacKey(derived(b"braid mac", receiver))
    }

    /// Key for cookie replies from `responder`; see [`CookieReply`](super::CookieReply).
    #[must_use]
    pub fn of_cookies(responder: PublicKey) -> Self {
        MacKey(derived(b"braid cookie", responder))
    }

    /// Key for notices that `responder` is a retired key.
    pub(super) fn of_retired(responder: PublicKey) -> Self {
        MacKey(derived(b"braid retired", responder))
    }

    /// Key derived from a secret.
    #[must_use]
    pub fn secret(secret: &[u8]) -> Self {
        MacKey(Erased::new(hmac::Key::new(hmac::HMAC_SHA256, secret)))
    }

    /// The MAC over the concatenation of `parts`.
    #[must_use]
    pub fn sign(&self, parts: &[&[u8]]) -> [u8; MAC] {
        let mut mac = [0; MAC];
        mac.copy_from_slice(&self.sign_whole(parts)[..MAC]);
        mac
    }

    /// The uncut MAC over the concatenation of `parts`.
    #[must_use]
    pub fn sign_whole(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.0);
        parts.iter().for_each(|part| context.update(part));
        let mut mac = [0; 32];
        mac.copy_from_slice(context.sign().as_ref());
        mac
    }

    /// Returns true if `mac` is right, in constant time.
    #[must_use]
    pub fn verify(&self, parts: &[&[u8]], mac: &[u8; MAC]) -> bool {
        same(&self.sign(parts), mac)
    }
}

/// Compares two secrets in constant time.
#[must_use]
pub fn same(a: &[u8; MAC], b: &[u8; MAC]) -> bool {
    // ORed through `black_box`, or the compiler may leave the loop at the first difference.
    let differing = a.iter().zip(b).fold(0, |differing, (a, b)| {
        std::hint::black_box(differing | (a ^ b))
    });
    differing == 0
}

/// SHA-256.
#[must_use]
pub fn hash(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    hash
}

fn derived(label: &[u8], key: PublicKey) -> Erased<hmac::Key> {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(label);
    context.update(&key.0);
    Erased::new(hmac::Key::new(hmac::HMAC_SHA256, context.finish().as_ref()))
}
