//! Facts about flows and their ends that outlive one event: the limit per host, servers that do not follow a move,
//! and the path cache between two daemons.

pub(crate) mod connlimit;
pub(crate) mod no_migration;
pub mod path_cache_store;
