//! Settings and uplinks for unit tests.

use std::num::NonZeroU32;

use braid_core::UplinkId;

use crate::classes::UplinkStatus;
use crate::config::{Config, Overrides, Settings};

/// Returns the settings of a configuration. Round robin unless it sets a policy: that is the simplest to count.
pub fn settings(text: &str) -> Settings {
    let unsaid = if text.contains("policy") {
        ""
    } else {
        "policy = 'rr'\n"
    };
    let config = Config::parse("test", &format!("{unsaid}{text}")).unwrap();
    Settings::new(config, &Overrides::default()).unwrap()
}

/// Returns an uplink that is up and has both families.
pub fn status(id: u8, name: &str) -> UplinkStatus {
    UplinkStatus {
        id: UplinkId(id),
        name: name.to_owned(),
        up: true,
        degraded: false,
        v4: true,
        v6: true,
        tier: 1,
        weight: NonZeroU32::MIN,
        capacity: None,
        metered: false,
        bond: false,
        load: None,
    }
}
