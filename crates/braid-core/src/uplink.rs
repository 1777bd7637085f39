//! The small number by which tables and kernel maps know an uplink.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Most uplinks that one machine can have at once. The flow datapath sizes its arrays by it.
pub const MAX_UPLINKS: usize = 32;

/// An uplink's index, `0..MAX_UPLINKS`: what slot tables and kernel maps store.
///
/// It stays the same as long as the uplink is known, whatever its device or address become.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UplinkId(pub u8);

impl UplinkId {
    /// The index as arrays want it.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for UplinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
