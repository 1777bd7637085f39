//! `[shape]`.

use std::time::Duration;

use braid_host::config::{Problem, Table};
use toml::de::DeTable;

use super::super::shape::ShapeConfig;
use super::{SECTIONS, SHAPE};

/// Bounds of `target`. Below a millisecond bursts are taken for a queue; CoDel's interval is 100 ms, and its target a
/// part of it.
const TARGETS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

pub(super) fn shape(inner: &DeTable<'_>, problems: &mut Vec<Problem>) -> ShapeConfig {
    let mut table = Table::new(SHAPE.0, SHAPE.1, inner);
    let usual = ShapeConfig::default();
    let enabled = table.boolean("enabled", problems);
    let target = table.time("target", TARGETS, problems);
    table.finish(SECTIONS, problems);
    ShapeConfig {
        enabled: enabled.unwrap_or(usual.enabled),
        target: target.map_or(usual.target, |time| time.value),
    }
}
