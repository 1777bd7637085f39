//! Decides how much FEC each lane gets.

use std::time::Duration;

use braid_core::{Bytes, Rate, Time};

use super::spacing;
use crate::{LANES, LaneId};

/// A lane is young until it has sent what the bond carries in this time, about the length of a TCP
/// flow's slow start, which a single wait of 4 ms ends (HyStart++, RFC 9406 §4.2).
const YOUNG_SPAN: Duration = Duration::from_millis(500);

/// After a pause this long a lane is young again.
const IDLE_RESET: Duration = Duration::from_secs(1);

/// Rate for a young lane while the bond's load is below [`MAX_YOUNG_LOAD`].
const YOUNG_RATE: FecRate = FecRate {
    spacing: 4,
    pause: Duration::from_micros(500),
};
const MAX_YOUNG_LOAD: f64 = 0.3;

/// A lane that pauses for this long gets a repair symbol over its latest packets.
const FLUSH_DELAY: Duration = Duration::from_millis(3);

/// Averaging time of the load.
const LOAD_SPAN: Duration = Duration::from_millis(50);

/// Conditions for a lane's next repair symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FecRate {
    /// Packets after which it is sent.
    pub spacing: usize,
    /// Pause after the last packet after which it is sent.
    pub pause: Duration,
}

#[derive(Debug, Clone, Copy, Default)]
struct Lane {
    sent: Bytes,
    last: Time,
}

/// Decides how much FEC each lane gets.
#[derive(Debug)]
pub struct FecController {
    lanes: Vec<Lane>,
    spacing: Option<usize>,
    rate: Rate,
    /// True if a loss would be no surprise.
    loss_likely: bool,
    /// Bytes sent, decaying over [`LOAD_SPAN`].
    used: f64,
    used_at: Time,
}

impl Default for FecController {
    fn default() -> FecController {
        FecController {
            lanes: vec![Lane::default(); LANES],
            spacing: None,
            rate: Rate::from_bits_per_sec(0),
            loss_likely: true,
            used: 0.0,
            used_at: Time::ZERO,
        }
    }
}

impl FecController {
    /// Takes the bond's loss, 0 to 1, whether that is `known`, and its rate.
    pub fn handle_report(&mut self, loss: f64, known: bool, rate: Rate) {
        self.spacing = spacing(loss);
        self.loss_likely = self.spacing.is_some() || !known;
        self.rate = rate;
    }

    /// Counts `len` bytes sent in a lane. Returns the lane's FEC rate; none for no FEC.
    pub fn handle_sent(&mut self, now: Time, lane: LaneId, len: Bytes) -> Option<FecRate> {
        if !self.loss_likely {
            return None;
        }
        let passed = now.since(self.used_at).as_secs_f64() / LOAD_SPAN.as_secs_f64();
        self.used_at = now;
        self.used = self.used * (-passed).exp() + len.get() as f64;
        let lane = &mut self.lanes[lane.index()];
        if now.since(lane.last) >= IDLE_RESET {
            lane.sent = Bytes::default();
        }
        lane.last = now;
        lane.sent += len;
        let spare = self.used <= MAX_YOUNG_LOAD * self.rate.bytes_in(LOAD_SPAN).get() as f64;
        if spare && lane.sent <= self.rate.bytes_in(YOUNG_SPAN) {
            return Some(YOUNG_RATE);
        }
        let pause = FLUSH_DELAY;
        self.spacing.map(|spacing| FecRate { spacing, pause })
    }
}
