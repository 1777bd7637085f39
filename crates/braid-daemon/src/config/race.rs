//! How connections are raced.

use std::time::Duration;

use braid_core::Frequency;
use braid_core::units::duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How connections are raced, under the policies `race` and `fastest`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RaceConfig {
    /// How long what was found for a destination's network decides without another race.
    #[serde(with = "duration")]
    #[schemars(with = "String")]
    pub cache_ttl: Duration,
    /// One in so many connections whose uplink is remembered is raced all the same; 0: none.
    pub explore_one_in: u32,
    /// Most races towards one network (a /24 of IPv4, a /48 of IPv6).
    #[schemars(with = "String")]
    pub per_destination: Frequency,
    /// Most races in all.
    #[schemars(with = "String")]
    pub total: Frequency,
    /// Race over metered uplinks as well.
    pub metered: bool,
}

impl Default for RaceConfig {
    /// A page's connections go to few networks within seconds: the first ones are raced, the others
    /// remember. Eight a second towards one network is what one visitor with so many more addresses
    /// would do, and 200 in all is what a household's busiest moment asks for.
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
