//! How much is done for which lane.

use std::time::Duration;

use super::spacing;
use crate::{Bytes, LANES, LaneId, Rate, Time};

/// A lane is young until it has sent what the bond carries in this time: so long a TCP flow's slow
/// start lasts, which a single wait of 4 ms ends (HyStart++, RFC 9406 §4.2).
const YOUTH: Duration = Duration::from_millis(500);

/// After so long a pause it is young again.
const RESTS: Duration = Duration::from_secs(1);

/// What a young lane gets while the bond has the more part of its rate to spare.
const YOUNG: Care = Care {
    spacing: 4,
    pause: Duration::from_micros(500),
};
const SPARE_BELOW: f64 = 0.3;

/// A lane that has not gone on for so long gets a sum over what it has.
const PAUSE: Duration = Duration::from_millis(3);

/// The time over which it is averaged how much of the rate is used.
const USED_OVER: Duration = Duration::from_millis(50);

/// When a lane's next sum goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Care {
    /// After so many packets,
    pub spacing: usize,
    /// or so long after the last one.
    pub pause: Duration,
}

#[derive(Debug, Clone, Copy, Default)]
struct Lane {
    sent: Bytes,
    last: Time,
}

/// Decides how much is done for which lane.
#[derive(Debug)]
pub struct Caution {
    lanes: Vec<Lane>,
    spacing: Option<usize>,
    rate: Rate,
    /// Whether a loss would be no surprise.
    doubtful: bool,
    /// Bytes sent, fading over [`USED_OVER`].
    used: f64,
    used_at: Time,
}

impl Default for Caution {
    fn default() -> Caution {
        Caution {
            lanes: vec![Lane::default(); LANES],
            spacing: None,
            rate: Rate::from_bits_per_sec(0),
            doubtful: true,
            used: 0.0,
            used_at: Time::ZERO,
        }
    }
}

impl Caution {
    /// The bond loses `loss` of its packets, 0 to 1, as far as that is `known`, and carries `rate`.
    pub fn handle_report(&mut self, loss: f64, known: bool, rate: Rate) {
        self.spacing = spacing(loss);
        self.doubtful = self.spacing.is_some() || !known;
        self.rate = rate;
    }

    /// `len` bytes are sent in a lane: what is done for them; nothing if none.
    pub fn handle_sent(&mut self, now: Time, lane: LaneId, len: Bytes) -> Option<Care> {
        if !self.doubtful {
            return None;
        }
        let passed = now.since(self.used_at).as_secs_f64() / USED_OVER.as_secs_f64();
        self.used_at = now;
        self.used = self.used * (-passed).exp() + len.get() as f64;
        let lane = &mut self.lanes[lane.index()];
        if now.since(lane.last) >= RESTS {
            lane.sent = Bytes::default();
        }
        lane.last = now;
        lane.sent += len;
        let spare = self.used <= SPARE_BELOW * self.rate.bytes_in(USED_OVER).get() as f64;
        if spare && lane.sent <= self.rate.bytes_in(YOUTH) {
            return Some(YOUNG);
        }
        let pause = PAUSE;
        self.spacing.map(|spacing| Care { spacing, pause })
    }
}
