//! Unpredictable bytes, all from one seed that the driver draws.
//!
//! The protocol draws no randomness itself: with the seed given, everything it does follows from
//! its inputs, so a simulation repeats itself and test vectors are possible.

use ring::hmac;

/// An endless stream of bytes that nobody can predict who does not know the seed: block `i` is
/// HMAC-SHA256(seed, i), `i` as eight bytes, big endian.
pub struct Entropy {
    key: hmac::Key,
    block: u64,
}

impl std::fmt::Debug for Entropy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Entropy(…)")
    }
}

impl Entropy {
    /// The stream of a seed. A seed must never serve two streams.
    #[must_use]
    pub fn new(seed: &[u8; 32]) -> Self {
        Entropy {
            key: hmac::Key::new(hmac::HMAC_SHA256, seed),
            block: 0,
        }
    }

    /// The next `N` bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        for chunk in bytes.chunks_mut(32) {
            let block = hmac::sign(&self.key, &self.block.to_be_bytes());
            self.block += 1;
            chunk.copy_from_slice(&block.as_ref()[..chunk.len()]);
        }
        bytes
    }

    /// The next bytes as a number.
    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.bytes())
    }

    /// The next bytes as a seed of another stream.
    pub fn fork(&mut self) -> Entropy {
        Entropy::new(&self.bytes())
    }
}
