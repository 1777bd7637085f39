//! Sealing and opening data packets in place.
//!
//! A key belongs to one session and one direction. The nonce is the link and the packet number,
//! which no two packets of a session and direction share:
//! ```text
//! link 32 · link packet number 64     (big endian)
//! ```
//! The library is `ring`: in a measurement it sealed 1,420 bytes in place by AES-256-GCM in
//! 0.32–0.39 µs, aws-lc-rs 0.47 in 0.60–0.80 µs, and it builds without CMake.

use braid_multipath::{LinkId, PacketNumber};
use ring::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hmac;

use super::erase::Erased;
use super::packet::{HEADER, TAG};

/// The cipher of a session's data packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cipher {
    /// AES-256-GCM: for processors with AES instructions.
    Aes256Gcm,
    /// ChaCha20-Poly1305 (RFC 8439): for all others.
    ChaCha20Poly1305,
}

impl Cipher {
    /// Its code in handshakes, also its bit in sets of ciphers.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Cipher::Aes256Gcm => 1,
            Cipher::ChaCha20Poly1305 => 2,
        }
    }

    /// The cipher of a code; none if this version does not know it.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Cipher> {
        match code {
            1 => Some(Cipher::Aes256Gcm),
            2 => Some(Cipher::ChaCha20Poly1305),
            _ => None,
        }
    }

    fn algorithm(self) -> &'static aead::Algorithm {
        match self {
            Cipher::Aes256Gcm => &aead::AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }
}

/// The packet was sealed by another key, or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("packet cannot be authenticated")]
pub struct Forged;

/// The key of one direction of one session.
pub struct Key {
    key: Erased<LessSafeKey>,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Key {
    /// Derives the key for `cipher` from the handshake's output `secret`. The cipher is part of the
    /// derivation, so that one secret never keys two.
    #[must_use]
    pub fn new(cipher: Cipher, secret: &[u8; 32]) -> Self {
        let derive = Erased::new(hmac::Key::new(hmac::HMAC_SHA256, secret));
        let mut context = hmac::Context::with_key(&derive);
        context.update(b"braid data");
        context.update(&[cipher.code()]);
        let key = UnboundKey::new(cipher.algorithm(), context.sign().as_ref());
        Key {
            key: Erased::new(LessSafeKey::new(
                key.expect("both ciphers have keys of 32 bytes"),
            )),
        }
    }

    /// Seals a packet: `packet` is the header and the plaintext; the tag is appended.
    ///
    /// # Panics
    /// If `packet` is shorter than a header, or longer than any datagram.
    pub fn seal(&self, link: LinkId, number: PacketNumber, packet: &mut Vec<u8>) {
        let (header, plain) = packet
            .split_first_chunk_mut::<HEADER>()
            .expect("a packet has a header");
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce(link, number), Aad::from(*header), plain)
            .expect("a packet is far below the ciphers' limits");
        packet.extend_from_slice(tag.as_ref());
    }

    /// Opens a packet in place and returns the plaintext.
    ///
    /// # Errors
    /// [`Forged`] if it is not authentic; its bytes are undefined then.
    pub fn open<'a>(
        &self,
        link: LinkId,
        number: PacketNumber,
        packet: &'a mut [u8],
    ) -> Result<&'a mut [u8], Forged> {
        let (header, sealed) = packet.split_first_chunk_mut::<HEADER>().ok_or(Forged)?;
        if sealed.len() < TAG {
            return Err(Forged);
        }
        self.key
            .open_in_place(nonce(link, number), Aad::from(*header), sealed)
            .map_err(|_| Forged)
    }
}

fn nonce(link: LinkId, number: PacketNumber) -> Nonce {
    let mut nonce = [0; aead::NONCE_LEN];
    nonce[3] = link.0;
    nonce[4..].copy_from_slice(&number.0.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}
