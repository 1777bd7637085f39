//! Who an end is.

use std::fmt;

use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};

/// A static public key: an end's identity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; 32]);

impl fmt::Debug for PublicKey {
    /// The first four bytes: enough to tell peers apart in a test's output.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "PublicKey({a:02x}{b:02x}{c:02x}{d:02x}…)")
    }
}

/// A static key pair (X25519).
#[derive(Clone)]
pub struct Identity {
    private: [u8; 32],
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
    pub fn new(private: [u8; 32]) -> Self {
        let mut dh = DefaultResolver
            .resolve_dh(&DHChoice::Curve25519)
            .expect("X25519 is built in");
        dh.set(&private);
        let mut public = [0; 32];
        public.copy_from_slice(dh.pubkey());
        Identity {
            private,
            public: PublicKey(public),
        }
    }

    /// What others know this end by.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// To be kept secret.
    #[must_use]
    pub fn private(&self) -> &[u8; 32] {
        &self.private
    }
}

/// A key that both ends were given beforehand, so that a future break of X25519 alone opens
/// nothing. The default is the one of those who have none: 32 zero bytes.
#[derive(Clone, Default)]
pub struct Psk(pub [u8; 32]);

impl fmt::Debug for Psk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Psk(…)")
    }
}
