//! Classes of traffic: each has slot tables of its own.

use std::time::Duration;

use braid_core::UplinkId;

use crate::{ClassId, Walk};

/// What one class of traffic walks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassEntry {
    /// Its number, below [`MAX_CLASSES`]. 0 is the default: what no rule names.
    pub id: ClassId,
    /// How a new flow picks its slot.
    pub walk: Walk,
    /// How long a client keeps its uplink for a site, counted from the last flow that it opened to
    /// it, to the second; `None`: every flow is chosen anew.
    pub sticky: Option<Duration>,
    /// Slots for IPv4, at most 1024. Empty: new flows are dropped, reason `no_uplink` in class 0 and
    /// `class_blocked` in others. A single slot says that there is no choice: flows say
    /// [`Choice::Only`](crate::Choice::Only).
    pub v4: Vec<UplinkId>,
    /// Slots for IPv6.
    pub v6: Vec<UplinkId>,
}

/// Classes there are.
pub const MAX_CLASSES: usize = crate::shared::CLASSES as usize;
