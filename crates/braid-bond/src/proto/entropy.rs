//! Unpredictable bytes.
//!
//! The protocol draws no randomness itself: its caller passes in the source. In production that is
//! the system, asked anew for every ephemeral key: nothing in this process's memory reveals past or
//! future draws, and two copies of one virtual machine draw different bytes as soon as their
//! kernels know that there are two (vmgenid). A simulation passes in a seed: then everything that
//! the protocol does follows from its inputs, runs are repeatable, and test vectors are possible.

use ring::hmac;

/// An endless stream of bytes.
#[cfg_attr(test, derive(Clone))]
pub struct Entropy(Source);

#[cfg_attr(test, derive(Clone))]
enum Source {
    System(fn(&mut [u8])),
    /// Block `i` is HMAC-SHA256(seed, i), `i` as eight bytes, big endian.
    Seed {
        key: hmac::Key,
        block: u64,
    },
}

impl std::fmt::Debug for Entropy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Entropy(…)")
    }
}

impl Entropy {
    /// A source that calls `fill` for every draw.
    #[must_use]
    pub fn system(fill: fn(&mut [u8])) -> Self {
        Entropy(Source::System(fill))
    }

    /// The stream of a seed, for simulations and tests: the seed reveals all of it. A seed must
    /// never serve two streams.
    #[must_use]
    pub fn new(seed: &[u8; 32]) -> Self {
        Entropy(Source::Seed {
            key: hmac::Key::new(hmac::HMAC_SHA256, seed),
            block: 0,
        })
    }

    /// The next `N` bytes.
    pub fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        match &mut self.0 {
            Source::System(fill) => fill(&mut bytes),
            Source::Seed { key, block } => {
                for chunk in bytes.chunks_mut(32) {
                    let drawn = hmac::sign(key, &block.to_be_bytes());
                    *block += 1;
                    chunk.copy_from_slice(&drawn.as_ref()[..chunk.len()]);
                }
            }
        }
        bytes
    }

    /// The next bytes as a number.
    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.bytes())
    }

    /// Another stream: seeded from the next bytes, or the system again.
    pub fn fork(&mut self) -> Entropy {
        match &self.0 {
            Source::System(fill) => Entropy::system(*fill),
            Source::Seed { .. } => Entropy::new(&self.bytes()),
        }
    }
}
