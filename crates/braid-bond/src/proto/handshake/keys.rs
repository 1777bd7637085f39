//! Static keys and pre-shared keys.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use zeroize::{Zeroize, Zeroizing};

/// A static public key: an end's identity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; 32]);

impl fmt::Debug for PublicKey {
    /// Prints the first four bytes: enough to distinguish peers in a test's output.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "PublicKey({a:02x}{b:02x}{c:02x}{d:02x}…)")
    }
}

impl fmt::Display for PublicKey {
    /// Prints base64, 44 characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

/// Error of a text that is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key is 44 characters of base64, the last of them \"=\"")]
pub struct InvalidKey;

fn decode(text: &str) -> Result<Zeroizing<Vec<u8>>, InvalidKey> {
    let bytes = STANDARD.decode(text.trim());
    bytes.map(Zeroizing::new).map_err(|_| InvalidKey)
}

impl FromStr for PublicKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let bytes = decode(text)?;
        let bytes = bytes.as_slice().try_into();
        bytes.map(PublicKey).map_err(|_| InvalidKey)
    }
}

/// The 32 bytes of a secret key. They are on the heap, where they stay when this moves, and are zeroed on drop. The
/// default is zero.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct KeyBytes(Box<[u8; 32]>);

impl fmt::Debug for KeyBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyBytes(…)")
    }
}

impl Drop for KeyBytes {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Deref for KeyBytes {
    type Target = [u8; 32];

    fn deref(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<[u8; 32]> for KeyBytes {
    /// The caller's own copy is not erased: use [`KeyBytes::try_fill`] where there need not be one.
    fn from(mut bytes: [u8; 32]) -> Self {
        let key = KeyBytes(Box::new(bytes));
        bytes.zeroize();
        key
    }
}

impl KeyBytes {
    /// Has `fill` write the bytes to the place where they stay.
    ///
    /// # Errors
    /// Those of `fill`.
    pub fn try_fill<E>(fill: impl FnOnce(&mut [u8; 32]) -> Result<(), E>) -> Result<Self, E> {
        let mut key = KeyBytes::default();
        fill(&mut key.0)?;
        Ok(key)
    }

    /// The bytes of a text in base64.
    ///
    /// # Errors
    /// The text is not a key.
    pub fn from_text(text: &str) -> Result<Self, InvalidKey> {
        let bytes = decode(text)?;
        let bytes: &[u8; 32] = bytes.as_slice().try_into().map_err(|_| InvalidKey)?;
        KeyBytes::try_fill(|key| {
            *key = *bytes;
            Ok(())
        })
    }
}

/// A static key pair (X25519).
#[derive(Clone)]
pub struct Identity {
    private: KeyBytes,
    public: PublicKey,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({:?})", self.public)
    }
}

impl Identity {
    /// The pair of a private key: any 32 unpredictable bytes.
    #[must_use]
    pub fn new(private: impl Into<KeyBytes>) -> Self {
        let private = private.into();
        let mut dh = DefaultResolver
            .resolve_dh(&DHChoice::Curve25519)
            .expect("X25519 is built in");
        dh.set(&*private);
        let mut public = [0; 32];
        public.copy_from_slice(dh.pubkey());
        // The library does not overwrite its copy.
        dh.set(&[0; 32]);
        Identity {
            private,
            public: PublicKey(public),
        }
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// The private key, to be kept secret.
    #[must_use]
    pub fn private(&self) -> &[u8; 32] {
        &self.private
    }

    /// The private key as base64, for a file or a terminal.
    #[must_use]
    pub fn private_text(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(self.private.as_slice()))
    }

    /// The pair of a private key in base64.
    ///
    /// # Errors
    /// The text is not a key.
    pub fn from_text(private: &str) -> Result<Self, InvalidKey> {
        KeyBytes::from_text(private).map(Identity::new)
    }
}

/// The static keys of a hub.
#[derive(Clone, Debug)]
pub struct HubKeys {
    /// The key that it has for now.
    pub current: Identity,
    /// Its key before that, while clients may still use it: they learn the current one.
    pub previous: Option<Identity>,
    /// The last key that it no longer has: clients that use it are told.
    pub retired: Option<PublicKey>,
}

impl From<Identity> for HubKeys {
    /// The keys of a hub that has never replaced its key.
    fn from(current: Identity) -> Self {
        HubKeys {
            current,
            previous: None,
            retired: None,
        }
    }
}

/// A pre-shared key, so that a future break of X25519 alone opens nothing. The default, for ends
/// that share none, is 32 zero bytes.
#[derive(Clone, Default)]
pub struct Psk(pub KeyBytes);

impl Psk {
    /// The pre-shared key of these bytes.
    #[must_use]
    pub fn new(bytes: impl Into<KeyBytes>) -> Self {
        Psk(bytes.into())
    }
}

impl fmt::Debug for Psk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Psk(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7748 §6.1: Alice's key pair.
    #[test]
    fn a_pair_is_the_curves_and_reads_back_from_its_text() {
        let private = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=";
        let identity = Identity::from_text(private).unwrap();
        let public = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";
        assert_eq!(identity.public().to_string(), public);
        assert_eq!(public.parse(), Ok(identity.public()));
        assert_eq!(*identity.private_text(), private);
    }

    #[test]
    fn invalid_keys_are_refused() {
        for bad in [
            "",
            "abc",
            "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTm==",
            "ä",
        ] {
            assert_eq!(bad.parse::<PublicKey>(), Err(InvalidKey), "{bad}");
        }
    }
}
