//! Properties of an emulated link.

use std::sync::Arc;
use std::time::Duration;

use braid_core::{Rate, Share};
use braid_emulate::Config;
use braid_emulate::delay::Delay;
use braid_emulate::queue::Limit;
use braid_emulate::rate::Speed;
use braid_emulate::trace::Trace;

/// One link, the same in both directions except for recorded rates.
#[derive(Debug, Clone)]
pub struct LinkSpec {
    pub mbit: f64,
    pub delay: Duration,
    pub jitter_us: u64,
    pub reorder: bool,
    pub loss_percent: u32,
    pub queue_ms: u64,
    pub tier: u8,
    /// Initial rate in Mbit/s; measured by a train if none.
    pub initial: Option<f64>,
    /// Recorded rates of both directions, from end 0 and from end 1, in place of `mbit`.
    pub traces: Option<[Arc<Trace>; 2]>,
}

pub fn line(mbit: f64, delay_ms: u64) -> LinkSpec {
    LinkSpec {
        mbit,
        delay: Duration::from_millis(delay_ms),
        jitter_us: 0,
        reorder: false,
        loss_percent: 0,
        queue_ms: 100,
        tier: 0,
        initial: None,
        traces: None,
    }
}

pub fn rate(mbit: f64) -> Rate {
    Rate::from_bits_per_sec((mbit * 1e6) as u64)
}

impl LinkSpec {
    /// Returns the emulator's configuration for packets sent by end `from`.
    pub fn config(&self, from: usize) -> Config {
        let recorded = self.traces.as_ref().map(|traces| traces[from].clone());
        Config {
            speed: recorded.map_or(Speed::Fixed(rate(self.mbit)), Speed::Trace),
            delay: Delay {
                base: self.delay,
                jitter: Duration::from_micros(self.jitter_us),
                reorder: self.reorder,
                ..Delay::default()
            },
            loss: Share::of(self.loss_percent, 100),
            queue: Limit::Time(Duration::from_millis(self.queue_ms)),
            ..Config::default()
        }
    }
}
