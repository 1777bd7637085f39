//! A short hash that is the same in every run.

use std::hash::Hasher;

use fnv::FnvHasher;

/// FNV-1a of 64 bits, folded to 32. Fast for a few bytes; collisions can be found on purpose.
#[derive(Default)]
pub struct ShortHash(FnvHasher);

impl ShortHash {
    /// Takes in bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// Returns the hash of all bytes so far.
    #[must_use]
    pub fn finish(&self) -> u32 {
        let hash = self.0.finish();
        (hash ^ hash >> 32) as u32
    }
}
