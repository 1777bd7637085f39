//! The random numbers of one link.

use braid_core::Share;

/// SplitMix64 (Steele, Lea, Flood 2014). Implemented here instead of taken from a crate, so that a
/// seed in a report gives the same losses in every later version.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`, in steps of 2⁻⁵³.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns true with the given probability; draws nothing if the result is certain.
    pub fn happens(&mut self, probability: Share) -> bool {
        probability > Share::NONE && self.unit() < probability.fraction()
    }
}
