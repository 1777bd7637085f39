//! Bytes of the recent past.

use std::time::Duration;

use braid_core::{Bytes, Rate, Time};

/// Bytes of a recent span, older ones counting less.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecentBytes {
    span: Duration,
    bytes: f64,
    at: Time,
}

impl RecentBytes {
    pub fn over(span: Duration) -> RecentBytes {
        RecentBytes {
            span,
            bytes: 0.0,
            at: Time::ZERO,
        }
    }

    pub fn bytes(&self, now: Time) -> f64 {
        self.bytes * (-now.since(self.at).as_secs_f64() / self.span.as_secs_f64()).exp()
    }

    pub fn rate(&self, now: Time) -> Rate {
        let bits = self.bytes(now) * 8.0 / self.span.as_secs_f64();
        Rate::from_bits_per_sec(bits as u64)
    }

    pub fn add(&mut self, now: Time, len: Bytes) {
        self.bytes = self.bytes(now) + len.get() as f64;
        self.at = now;
    }
}
