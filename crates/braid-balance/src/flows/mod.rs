//! The flow table: idle times, sweeps, races under way, and the evacuation of failed uplinks.

pub(crate) mod evacuate;
pub(crate) mod idle_times;
pub(crate) mod races;
pub(crate) mod sweep;
