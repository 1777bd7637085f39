//! Packet trains: the delivered rate of packets sent back to back, a first guess of a link's rate.

use std::time::Duration;

use braid_core::{Bytes, Rate, Time};

use crate::Stamp;

/// Least packets of a train: a link's scheduler may pass fewer at once.
const MIN_TRAIN_PACKETS: u32 = 16;

/// Packets stamped up to this long after the first belong to its train. Older ones were overtaken
/// and do not.
const MAX_TRAIN_SPREAD_US: u64 = 1_000;

/// A faster train shows the receiving machine's rate, not the link's: batched reads gave up to 14.8
/// Gbit/s on a link of 40 Mbit/s.
const MAX_TRAIN_RATE: Rate = Rate::from_bits_per_sec(2_000_000_000);

/// Detects trains.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TrainDetector {
    current: Option<Run>,
    longest: Option<(u32, Rate)>,
}

#[derive(Debug, Clone, Copy)]
struct Run {
    stamp: Stamp,
    first_at: Time,
    last_at: Time,
    packets: u32,
    /// Bytes of all but the first packet, whose own time on the wire is not seen.
    bytes: u64,
}

impl TrainDetector {
    pub fn handle_packet(&mut self, now: Time, stamp: Stamp, len: Bytes) {
        match &mut self.current {
            Some(run) if is_together(run.stamp, stamp) => {
                run.packets += 1;
                run.bytes += len.get();
                run.last_at = now;
            }
            current => {
                *current = Some(Run {
                    stamp,
                    first_at: now,
                    last_at: now,
                    packets: 1,
                    bytes: 0,
                });
            }
        }
        if let Some(run) = self.current
            && run.packets >= MIN_TRAIN_PACKETS
            && self
                .longest
                .is_none_or(|(packets, _)| run.packets >= packets)
            && let Some(rate) = rate(run.bytes, run.last_at.since(run.first_at))
        {
            self.longest = Some((run.packets, rate));
        }
    }

    /// Returns the rate of the longest train since the last call.
    pub fn take(&mut self) -> Option<Rate> {
        self.longest.take().map(|(_, rate)| rate)
    }
}

fn is_together(first: Stamp, stamp: Stamp) -> bool {
    let later = stamp.0.checked_sub(first.0);
    later.is_some_and(|later| later <= MAX_TRAIN_SPREAD_US)
}

fn rate(bytes: u64, span: Duration) -> Option<Rate> {
    let bits = (u128::from(bytes) * 8_000_000_000).checked_div(span.as_nanos())?;
    let rate = Rate::from_bits_per_sec(u64::try_from(bits).ok()?);
    (rate <= MAX_TRAIN_RATE).then_some(rate)
}
