//! Capacity of an uplink in each direction, as its own traffic shows it.
//!
//! In: for each short interval the bytes sent and received, and by how much round trips inside the
//! flows exceed their shortest. Out: for each direction a capacity, the way it is known, its error,
//! and its age. Nothing is sent for it, and the far end needs nothing.

mod passive;

use std::time::Duration;

use crate::{Bytes, Rate, Time};

pub use passive::MIN_INTERVAL;
use passive::{DirectionInterval, PassiveCapacity};

/// The way in which a capacity is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapacityBasis {
    /// A queue stood while this rate was carried.
    Saturated,
    /// The line carried this rate and may carry more.
    AtLeast,
}

/// A capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapacityEstimate {
    /// The capacity, or a lower bound of it.
    pub rate: Rate,
    /// The way in which it is known.
    pub basis: CapacityBasis,
    /// Expected error as a fraction of the rate, at most 1; of a bound, 1.
    pub error: f64,
    /// Time since it was last measured.
    pub age: Duration,
}

/// Traffic of an uplink in an interval, as seen from this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UplinkInterval {
    /// Time of its end.
    pub end: Time,
    /// Its length.
    pub span: Duration,
    /// Bytes sent.
    pub tx: Bytes,
    /// Bytes received.
    pub rx: Bytes,
    /// Those of the bytes sent that were sent before.
    pub repeated: Bytes,
    /// Mean growth of round trips in flows that moved data; `None` if none was measured.
    pub queueing: Option<Duration>,
}

/// Estimates of both directions of an uplink.
#[derive(Clone, Debug)]
pub struct UplinkCapacity {
    tx: PassiveCapacity,
    rx: PassiveCapacity,
    /// The last interval, and the queueing of the one before.
    last: Option<(UplinkInterval, Option<Duration>)>,
    /// The last queueing that was measured, and its time.
    queueing: Option<(Time, Duration)>,
}

impl Default for UplinkCapacity {
    fn default() -> UplinkCapacity {
        UplinkCapacity {
            tx: PassiveCapacity::of_sent(),
            rx: PassiveCapacity::of_received(),
            last: None,
            queueing: None,
        }
    }
}

impl UplinkCapacity {
    /// Takes the next interval.
    pub fn note(&mut self, interval: &UplinkInterval) {
        let queueing = self.queueing_in(interval);
        let interval = &UplinkInterval {
            queueing,
            ..*interval
        };
        let last = self.last.take();
        let before = last.and_then(|(last, _)| last.queueing);
        self.last = Some((*interval, before));
        self.rx.note(&DirectionInterval {
            end: interval.end,
            span: interval.span,
            carried: interval.rx,
            opposite: interval.tx,
            queueing: interval.queueing,
        });
        // Packets that were dropped on the way out are sent again one round trip later.
        if let Some((sent, before)) = last {
            self.tx.note(&DirectionInterval {
                end: sent.end,
                span: sent.span,
                carried: drained(&sent, before, interval.repeated),
                opposite: sent.rx,
                queueing: sent.queueing,
            });
        }
    }

    /// Returns the queueing of an interval. Behind a long queue a round trip takes longer than an
    /// interval, and some intervals have none: until the next one can be there, the last one holds.
    fn queueing_in(&mut self, interval: &UplinkInterval) -> Option<Duration> {
        if let Some(queueing) = interval.queueing {
            self.queueing = Some((interval.end, queueing));
            return Some(queueing);
        }
        let (at, queueing) = self.queueing?;
        let holds = queueing + 2 * interval.span;
        (interval.end.since(at) <= holds).then_some(queueing)
    }

    /// Returns the estimate of the capacity to send; `None` before anything was sent.
    #[must_use]
    pub fn tx(&self, now: Time) -> Option<CapacityEstimate> {
        self.tx.estimate(now)
    }

    /// Returns the estimate of the capacity to receive; `None` before anything was received.
    #[must_use]
    pub fn rx(&self, now: Time) -> Option<CapacityEstimate> {
        self.rx.estimate(now)
    }
}

/// Returns the bytes that left the queue. Packets are counted when they are sent, before the queue:
/// some are dropped there, and while the queue grows more are sent than leave it. `before` is the
/// queueing of the interval before, `dropped` the bytes that have to be sent again.
fn drained(interval: &UplinkInterval, before: Option<Duration>, dropped: Bytes) -> Bytes {
    let passed = interval.span.as_secs_f64();
    let growth = match (before, interval.queueing) {
        (Some(before), Some(after)) => after.as_secs_f64() - before.as_secs_f64(),
        _ => 0.0,
    };
    let arrived = interval.tx.get().saturating_sub(dropped.get()) as f64;
    let drained = arrived * passed / (passed + growth).max(passed / 2.0);
    Bytes::new(drained as u64)
}
