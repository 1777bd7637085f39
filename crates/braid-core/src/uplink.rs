//! Identifiers of uplinks.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Most uplinks of one machine. The flow datapath sizes its arrays by it.
pub const MAX_UPLINKS: usize = 32;

/// Index of an uplink, `0..MAX_UPLINKS`, as stored in slot tables and kernel maps.
///
/// It stays the same as long as the uplink is known, even if its device or address changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UplinkId(pub u8);

impl UplinkId {
    /// Returns the index as an array index.
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
