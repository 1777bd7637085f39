//! Capacity of an uplink in each direction, as its own traffic shows it.
//!
//! In: for each short interval the bytes sent and received, by how much round trips inside the
//! flows exceed their shortest, and for how long that shows a queue. Out: for each direction a capacity, the way it is known, its error,
//! and its age. Nothing is sent for it, and the far end needs nothing.
//!
//! Active measurements are taken as well: a transfer ([`TransferCapacity`]), or trains of packets
//! ([`DispersionCapacity`]). The later of the two measurements is the capacity, and the other one stays to be compared
//! with it. [`PacketSizeCapacity`] is for comparison.
//!
//! A line that carries next to nothing although flows wait for it has no such estimate: [`StallMonitor`].

mod crucial;
mod dispersion;
mod packet_size;
mod passive;
mod stall;
mod transfer;

use std::time::Duration;

use crate::{Bytes, Rate, Time};

pub use dispersion::{BURST_PACKETS, DispersionCapacity, MAX_BURSTS, TrainPacket};
pub use packet_size::PacketSizeCapacity;
pub use passive::MIN_INTERVAL;
use passive::{DirectionInterval, PassiveCapacity, drained};
pub use stall::{StallInterval, StallMonitor};
pub use transfer::{
    FIRST_CONNECTIONS, MAX_CONNECTIONS, MIN_SAMPLE, TransferCapacity, TransferSample, TransferStep,
};

/// A rate that refutes an estimate counts for this much of itself: it was carried without a queue.
const REFUTED_GROWTH: f64 = 1.2;
/// Time after an active measurement for which intervals are still of it: that of a passive estimate's intervals.
const ACTIVE_SHADOW: Duration = Duration::from_millis(1_500);

/// The way in which a capacity is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapacityBasis {
    /// A queue stood while this rate was carried.
    Saturated,
    /// The line carried this rate and may carry more.
    AtLeast,
    /// A transfer was made to measure it.
    Transfer,
    /// Trains of packets were sent to measure it.
    Dispersion,
}

/// Capacity as something shows it that was made to measure it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActiveEstimate {
    /// The capacity, or a lower bound of it.
    pub rate: Rate,
    /// Expected error as a fraction of the rate, at most 1.
    pub error: f64,
    /// True if it is the line's capacity; otherwise the line may carry more than this.
    pub saturated: bool,
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
    /// Time in which a queue is seen to have stood: of each round trip the growth, without the line's silence before its
    /// end, as far back as the last one that showed a queue. A part of it may lie before the interval.
    pub queued: Duration,
    /// Time from the last one that did to the end of the interval.
    pub unseen: Duration,
}

/// Estimates of both directions of an uplink.
#[derive(Clone, Debug)]
pub struct UplinkCapacity {
    tx: DirectionCapacity,
    rx: DirectionCapacity,
    /// The last interval, and the queueing of the one before.
    last: Option<(UplinkInterval, Option<Duration>)>,
    /// The last queueing that was measured, and its time.
    queueing: Option<(Time, Duration)>,
}

impl Default for UplinkCapacity {
    fn default() -> UplinkCapacity {
        UplinkCapacity {
            tx: DirectionCapacity::new(PassiveCapacity::of_sent()),
            rx: DirectionCapacity::new(PassiveCapacity::of_received()),
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
        self.rx.passive.note(&DirectionInterval {
            end: interval.end,
            span: interval.span,
            entered: interval.rx,
            grown: 0.0,
            opposite: interval.tx,
            queueing: interval.queueing,
            queued: interval.queued,
            unseen: interval.unseen,
        });
        // Packets that were dropped on the way out are sent again one round trip later.
        if let Some((sent, before)) = last {
            self.tx.passive.note(&DirectionInterval {
                end: sent.end,
                span: sent.span,
                entered: entered(&sent, interval.repeated),
                grown: grown(&sent, before),
                opposite: sent.rx,
                queueing: sent.queueing,
                queued: sent.queued,
                unseen: sent.unseen,
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

    /// Takes the result of a measurement of this kind to send.
    pub fn note_tx_active(&mut self, now: Time, basis: CapacityBasis, found: &ActiveEstimate) {
        self.tx.note_active(now, basis, found);
    }

    /// Takes the result of a measurement of this kind to receive.
    pub fn note_rx_active(&mut self, now: Time, basis: CapacityBasis, found: &ActiveEstimate) {
        self.rx.note_active(now, basis, found);
    }

    /// Returns the estimate of the capacity to send; `None` before anything was sent.
    #[must_use]
    pub fn tx(&self, now: Time) -> Option<CapacityEstimate> {
        self.tx.estimates(now).0
    }

    /// Returns the estimate of the capacity to receive; `None` before anything was received.
    #[must_use]
    pub fn rx(&self, now: Time) -> Option<CapacityEstimate> {
        self.rx.estimates(now).0
    }

    /// Returns the capacity to send of the last second as a whole, where [`UplinkCapacity::tx`] has that of its end: if
    /// the line was full all the time and has changed, the mean.
    #[must_use]
    pub fn tx_last_second(&self, now: Time) -> Option<CapacityEstimate> {
        self.tx.last_second(now)
    }

    /// Returns the same of the capacity to receive.
    #[must_use]
    pub fn rx_last_second(&self, now: Time) -> Option<CapacityEstimate> {
        self.rx.last_second(now)
    }

    /// Returns the capacity by which new flows are shared out: that to receive, for which people wait most, or that to
    /// send if only that was measured; `None` if neither was measured.
    ///
    /// It is the estimate. A rate that refutes it counts as well, and for a fifth more. If the line
    /// were taken for one of which nothing is known, each step up of a line that changes would draw all flows, as
    /// if it had become the fastest of all.
    #[must_use]
    pub fn assumed(&self, now: Time) -> Option<Rate> {
        self.rx.assumed(now).or_else(|| self.tx.assumed(now))
    }

    /// Returns the growth of round trips in the last interval, as far as it is not the jitter that quiet intervals
    /// show; `None` if none was measured.
    #[must_use]
    pub fn queueing(&self) -> Option<Duration> {
        let queueing = self.last.as_ref()?.0.queueing?;
        // While one direction is full, round trips grow in quiet intervals of the other one too.
        let jitter = self.tx.passive.jitter().min(self.rx.passive.jitter());
        Some(queueing.saturating_sub(jitter))
    }

    /// Returns the bytes that left the queue in the last interval when `sent` had gone into it.
    #[must_use]
    pub fn left_queue(&self, sent: Bytes) -> Bytes {
        let Some((last, before)) = &self.last else {
            return sent;
        };
        drained(sent, last.span, grown(last, *before))
    }

    /// Returns by how much, as a fraction, the capacity to send changes in a second, as far as it was seen.
    #[must_use]
    pub fn tx_drift(&self) -> f64 {
        self.tx.passive.drift_in(Duration::from_secs(1))
    }

    /// Returns the same of the capacity to receive.
    #[must_use]
    pub fn rx_drift(&self) -> f64 {
        self.rx.passive.drift_in(Duration::from_secs(1))
    }

    /// Returns the estimate of the other method to send, if both have one.
    #[must_use]
    pub fn other_tx(&self, now: Time) -> Option<CapacityEstimate> {
        self.tx.estimates(now).1
    }

    /// Returns the estimate of the other method to receive, if both have one.
    #[must_use]
    pub fn other_rx(&self, now: Time) -> Option<CapacityEstimate> {
        self.rx.estimates(now).1
    }
}

/// Estimates of one direction.
#[derive(Clone, Debug)]
struct DirectionCapacity {
    passive: PassiveCapacity,
    /// The last capacity that an active measurement has found, and its time; its age is zero.
    active: Option<(Time, CapacityEstimate)>,
}

impl DirectionCapacity {
    fn new(passive: PassiveCapacity) -> DirectionCapacity {
        DirectionCapacity {
            passive,
            active: None,
        }
    }

    fn note_active(&mut self, now: Time, basis: CapacityBasis, found: &ActiveEstimate) {
        let estimate = CapacityEstimate {
            rate: found.rate,
            basis,
            error: found.error,
            age: Duration::ZERO,
        };
        match found.saturated {
            true => self.active = Some((now, estimate)),
            false => self.passive.note_carried(now, found.rate),
        }
    }

    /// See [`UplinkCapacity::assumed`].
    fn assumed(&self, now: Time) -> Option<Rate> {
        let found = self.estimates(now).0?;
        if found.basis != CapacityBasis::AtLeast {
            return Some(found.rate);
        }
        let was_measured = self.passive.was_measured() || self.active.is_some();
        let rate = found.rate.bits_per_sec() as f64 * REFUTED_GROWTH;
        was_measured.then(|| Rate::from_bits_per_sec(rate as u64))
    }

    /// See [`UplinkCapacity::tx_last_second`].
    fn last_second(&self, now: Time) -> Option<CapacityEstimate> {
        let found = self.estimates(now).0?;
        match found.basis {
            CapacityBasis::Saturated => self.passive.last_second(now),
            _ => Some(found),
        }
    }

    /// Returns the estimate of the method that measured last, and that of the other one.
    fn estimates(&self, now: Time) -> (Option<CapacityEstimate>, Option<CapacityEstimate>) {
        let passive = self.passive.estimate(now);
        let Some((at, found)) = self.active else {
            return (passive, None);
        };
        let age = now.since(at);
        let active = CapacityEstimate {
            error: found.error.hypot(self.passive.drift_in(age)).min(1.0),
            age,
            ..found
        };
        let is_later = |passive: &CapacityEstimate| {
            let since = age.saturating_sub(passive.age);
            match passive.basis {
                // Flows beside a transfer met its queue and had only a part of the line.
                CapacityBasis::Saturated => since > ACTIVE_SHADOW,
                _ => since > Duration::ZERO && passive::refutes(passive.rate, found.rate),
            }
        };
        match passive {
            Some(passive) if is_later(&passive) => (Some(passive), Some(active)),
            passive => (Some(active), passive),
        }
    }
}

/// Returns the bytes that went into the queue: packets are counted when they are sent, and some are dropped there. `dropped` has to be
/// sent again.
fn entered(interval: &UplinkInterval, dropped: Bytes) -> Bytes {
    Bytes::new(interval.tx.get().saturating_sub(dropped.get()))
}

/// Returns the seconds by which the queue has grown in an interval; `before` is the queueing of the interval before.
fn grown(interval: &UplinkInterval, before: Option<Duration>) -> f64 {
    match (before, interval.queueing) {
        (Some(before), Some(after)) => after.as_secs_f64() - before.as_secs_f64(),
        _ => 0.0,
    }
}
