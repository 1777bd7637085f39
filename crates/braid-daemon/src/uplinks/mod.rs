//! The uplinks as the daemon knows them: registry, health rules, forecasts and quotas.

pub(crate) mod link_forecasts;
pub(crate) mod liveness_rules;
pub mod quota;
pub(crate) mod registry;
