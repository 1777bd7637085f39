//! `[race]`: races of connections.

use std::time::Duration;

use braid_core::Frequency;
use braid_core::units::duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Races of connections, under the policies `race` and `fastest`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RaceConfig {
    /// Lifetime of a path cache entry, during which it decides without another race.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub cache_ttl: Duration,
    /// One in this many connections with a valid path cache entry is raced anyway; 0: none.
    pub explore_one_in: u32,
    /// Maximum rate of races towards one network (an IPv4 /24, an IPv6 /48).
    #[schemars(with = "String")]
    pub per_destination: Frequency,
    /// Maximum rate of races in total.
    #[schemars(with = "String")]
    pub total: Frequency,
    /// Race over metered uplinks too.
    pub metered: bool,
}

impl Default for RaceConfig {
    /// A page's connections go to few networks within seconds: the first ones are raced, the others use
    /// the cache. Eight a second towards one network corresponds to one visitor with that many more
    /// addresses, and 200 in total to a household's busiest moment.
    fn default() -> Self {
        Self {
            cache_ttl: Duration::from_secs(120),
            explore_one_in: 16,
            per_destination: Frequency::per_second(8),
            total: Frequency::per_second(200),
            metered: false,
        }
    }
}
