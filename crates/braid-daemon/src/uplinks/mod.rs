//! The uplinks as the daemon knows them: registry, health rules, capacities, quality, forecasts and quotas.

pub(crate) mod capacities;
pub(crate) mod link_quality;
pub(crate) mod liveness_rules;
pub mod quota;
pub(crate) mod registry;
pub(crate) mod shapers;
pub(crate) mod uplink_forecasts;
