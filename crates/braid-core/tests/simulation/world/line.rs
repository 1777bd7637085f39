//! What a link is like.

use std::time::Duration;

use braid_core::{Rate, Share};
use braid_emulate::Config;
use braid_emulate::delay::Delay;
use braid_emulate::queue::Limit;
use braid_emulate::rate::Speed;

/// One link, both directions alike.
#[derive(Debug, Clone)]
pub struct Line {
    pub mbit: f64,
    pub delay: Duration,
    pub jitter_us: u64,
    pub reorder: bool,
    pub loss_percent: u32,
    pub queue_ms: u64,
    pub tier: u8,
    /// What it is taken to carry in the beginning, Mbit/s; measured by a train if none.
    pub initial: Option<f64>,
}

pub fn line(mbit: f64, delay_ms: u64) -> Line {
    Line {
        mbit,
        delay: Duration::from_millis(delay_ms),
        jitter_us: 0,
        reorder: false,
        loss_percent: 0,
        queue_ms: 100,
        tier: 0,
        initial: None,
    }
}

pub fn rate(mbit: f64) -> Rate {
    Rate::from_bits_per_sec((mbit * 1e6) as u64)
}

impl Line {
    pub fn config(&self) -> Config {
        Config {
            speed: Speed::Fixed(rate(self.mbit)),
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
