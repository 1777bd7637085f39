//! The responder's reply to message 1 under load, before it computes a Diffie–Hellman.
//!
//! ```text
//! 0      3
//! 1      link
//! 2..17  salt
//! 18..   sealed: cookie 16; tag 16
//! ```
//! It is sealed by ChaCha20-Poly1305 with a zero nonce, no associated data, and the key
//! HMAC-SHA256(SHA256("braid cookie" ‖ responder's public key), salt ‖ mac1 of the initiation):
//! only an end that has seen the initiation can read or make one, and no key is used twice. It does
//! not prove that the responder sent it: anybody who knows the responder's public key and sees the
//! initiation can make one. So it contains nothing but the cookie, and a wrong cookie costs the
//! initiator one more copy of message 1.
//!
//! The cookie is a MAC over the sender's address by a secret that changes every two minutes. An
//! initiation with the cookie has `mac2` keyed by it, which proves that its sender receives at that
//! address.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use braid_core::Time;
use braid_multipath::{LinkId, MAX_LINKS};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use super::mac::{MAC, MacKey};
use super::{HandshakeError, PublicKey};
use crate::proto::entropy::Entropy;
use crate::proto::packet::{TAG, kind};

/// Time for which the responder issues cookies by one secret; it accepts them for as long again.
pub const COOKIE_LIFETIME: Duration = Duration::from_secs(120);

const SALT: usize = 16;
const SIZE: usize = 2 + SALT + MAC + TAG;

const _: () = assert!(SIZE <= super::MIN_INITIATION_LENGTH);

/// Cookie reply of a responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CookieReply {
    /// The link that the initiation named.
    pub link: LinkId,
    /// Key of `mac2`.
    pub cookie: [u8; MAC],
}

impl CookieReply {
    /// Writes the datagram that answers the initiation with `mac1`.
    pub fn append(
        &self,
        responder: PublicKey,
        mac1: &[u8; MAC],
        salt: [u8; SALT],
        out: &mut Vec<u8>,
    ) {
        let mut sealed = self.cookie;
        let tag = key(responder, &salt, mac1)
            .seal_in_place_separate_tag(zero(), Aad::empty(), &mut sealed)
            .expect("it is far below the cipher's limit");
        out.extend_from_slice(&[kind::COOKIE, self.link.0]);
        out.extend_from_slice(&salt);
        out.extend_from_slice(&sealed);
        out.extend_from_slice(tag.as_ref());
    }

    /// The link that a datagram names, not authenticated.
    #[must_use]
    pub fn link_of(datagram: &[u8]) -> Option<LinkId> {
        let link = *datagram.get(1)?;
        (usize::from(link) < MAX_LINKS).then_some(LinkId(link))
    }

    /// Opens the datagram that answers the initiation with `mac1`.
    ///
    /// # Errors
    /// [`HandshakeError::Malformed`], or [`HandshakeError::Forged`].
    pub fn open(
        datagram: &[u8],
        responder: PublicKey,
        mac1: &[u8; MAC],
    ) -> Result<Self, HandshakeError> {
        let datagram: &[u8; SIZE] = datagram.try_into().map_err(|_| HandshakeError::Malformed)?;
        let link = Self::link_of(datagram).ok_or(HandshakeError::Malformed)?;
        let mut salt = [0; SALT];
        salt.copy_from_slice(&datagram[2..2 + SALT]);
        let mut sealed = [0; MAC + TAG];
        sealed.copy_from_slice(&datagram[2 + SALT..]);
        let plain = key(responder, &salt, mac1)
            .open_in_place(zero(), Aad::empty(), &mut sealed)
            .map_err(|_| HandshakeError::Forged)?;
        let cookie = plain.try_into().map_err(|_| HandshakeError::Malformed)?;
        Ok(CookieReply { link, cookie })
    }
}

fn key(responder: PublicKey, salt: &[u8; SALT], mac1: &[u8; MAC]) -> LessSafeKey {
    let secret = MacKey::of_cookies(responder).sign_whole(&[salt, mac1]);
    let key = UnboundKey::new(&CHACHA20_POLY1305, &secret);
    LessSafeKey::new(key.expect("the cipher has keys of 32 bytes"))
}

fn zero() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

/// A responder's cookie secrets.
#[derive(Debug)]
pub(super) struct CookieSecrets {
    current: MacKey,
    previous: Option<MacKey>,
    since: Time,
}

impl CookieSecrets {
    pub fn new(now: Time, entropy: &mut Entropy) -> Self {
        CookieSecrets {
            current: MacKey::secret(&entropy.bytes::<32>()),
            previous: None,
            since: now,
        }
    }

    /// Replaces the secret if it is old enough.
    pub fn rotate(&mut self, now: Time, entropy: &mut Entropy) {
        let age = now.since(self.since);
        if age < COOKIE_LIFETIME {
            return;
        }
        let fresh = MacKey::secret(&entropy.bytes::<32>());
        let old = std::mem::replace(&mut self.current, fresh);
        self.previous = (age < 2 * COOKIE_LIFETIME).then_some(old);
        self.since = now;
    }

    /// The cookie of an address.
    pub fn cookie(&self, from: SocketAddr) -> [u8; MAC] {
        cookie(&self.current, from)
    }

    /// Returns true if `mac2` over `message` is keyed by a cookie of this address.
    pub fn verify(&self, from: SocketAddr, message: &[u8], mac2: &[u8; MAC]) -> bool {
        let secrets = [Some(&self.current), self.previous.as_ref()];
        secrets.into_iter().flatten().any(|secret| {
            let cookie = MacKey::secret(&cookie(secret, from));
            cookie.verify(&[message], mac2)
        })
    }
}

fn cookie(secret: &MacKey, from: SocketAddr) -> [u8; MAC] {
    let address = match from.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    secret.sign(&[&address.octets(), &from.port().to_be_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_accepted_for_one_life_after_its_own() {
        let from: SocketAddr = "192.0.2.7:4000".parse().expect("an address");
        let mut entropy = Entropy::new(&[7; 32]);
        let mut cookie_secrets = CookieSecrets::new(Time::ZERO, &mut entropy);
        let proof = |cookie: [u8; MAC]| MacKey::secret(&cookie).sign(&[b"message"]);
        let first = proof(cookie_secrets.cookie(from));
        let accepts = |cookie_secrets: &CookieSecrets, mac2: &[u8; MAC]| {
            cookie_secrets.verify(from, b"message", mac2)
        };

        let nearly = COOKIE_LIFETIME - Duration::from_secs(1);
        cookie_secrets.rotate(Time::ZERO + nearly, &mut entropy);
        assert_eq!(
            proof(cookie_secrets.cookie(from)),
            first,
            "it is not old enough"
        );
        cookie_secrets.rotate(Time::ZERO + COOKIE_LIFETIME, &mut entropy);
        let next = proof(cookie_secrets.cookie(from));
        assert_ne!(next, first);
        assert!(accepts(&cookie_secrets, &first) && accepts(&cookie_secrets, &next));
        assert!(!cookie_secrets.verify("192.0.2.8:4000".parse().unwrap(), b"message", &next));
        cookie_secrets.rotate(Time::ZERO + 2 * COOKIE_LIFETIME, &mut entropy);
        assert!(!accepts(&cookie_secrets, &first) && accepts(&cookie_secrets, &next));

        // After a long pause both secrets have expired, or nearly.
        let latest = proof(cookie_secrets.cookie(from));
        let mut idle = CookieSecrets::new(Time::ZERO, &mut Entropy::new(&[7; 32]));
        idle.rotate(Time::ZERO + COOKIE_LIFETIME + nearly, &mut entropy);
        assert!(accepts(&idle, &first));
        cookie_secrets.rotate(Time::ZERO + 4 * COOKIE_LIFETIME, &mut entropy);
        assert!(!accepts(&cookie_secrets, &latest));
    }
}
