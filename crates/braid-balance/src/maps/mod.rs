//! The maps that programs and this crate share: their layout, typed handles, and the plain ones read or written.

pub(crate) mod batch;
pub(crate) mod counters;
pub(crate) mod devices;
pub(crate) mod layout;
pub(crate) mod lease;
pub(crate) mod shaping;
pub(crate) mod tables;
pub(crate) mod uplinks;
