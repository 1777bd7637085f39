//! Noise for made-up measurements, and a network in virtual time.

#[allow(dead_code, reason = "each test uses a part")]
pub mod network;

/// Numbers that look random, the same for the same seed.
#[allow(dead_code, reason = "each test uses a part")]
pub struct Noise(pub u64);

#[allow(dead_code, reason = "each test uses a part")]
impl Noise {
    /// Between 0 and 1.
    pub fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Normally distributed with deviation 1, nearly: twelve uniform numbers.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.next()).sum::<f64>() - 6.0
    }
}
