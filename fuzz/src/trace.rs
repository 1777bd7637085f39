//! Recorded rates.

use std::path::Path;
use std::sync::Arc;

use braid_emulate::Config;
use braid_emulate::queue::Limit;
use braid_emulate::rate::Speed;
use braid_emulate::trace::{Trace, TraceError};

use crate::drive::drive;

/// An accepted trace carries packets, each once and never back in time; a refused one names an
/// existing line.
pub fn trace(data: &[u8]) {
    let Some(text) = crate::text(data) else {
        return;
    };
    match Trace::parse(Path::new("fuzz.trace"), text) {
        Ok(trace) => {
            let config = Config {
                speed: Speed::Trace(Arc::new(trace)),
                queue: Limit::Packets(1000),
                ..Config::default()
            };
            drive(config, data);
        }
        Err(TraceError::Line { line, why, .. }) => {
            assert!((1..=text.lines().count()).contains(&line), "{line}: {why}");
        }
        Err(error) => assert!(error.to_string().contains("fuzz.trace"), "{error}"),
    }
}
