//! The tables that a new flow's uplink is chosen by: rules, classes, sticky clients, names, limits, and the path cache.

pub(crate) mod classes;
pub(crate) mod connlimit;
pub(crate) mod dns_names;
pub(crate) mod lb_method;
pub(crate) mod path_cache;
pub(crate) mod rules;
pub(crate) mod sticky;
