//! Epochs of a hub that has run before.

use braid_bond::proto::handshake::{EpochKey, EpochKeys};

/// Keys of the epochs of a hub with this number of earlier runs.
pub fn later_run(earlier: u8) -> EpochKeys {
    let key = |run| EpochKey::new([run; 32]);
    EpochKeys::new(key(earlier), (0..earlier).rev().map(key))
}
