//! Rate to which a direction of an uplink is shaped, so that the line's own queue stays short.
//!
//! In: for each short interval the bytes that crossed the line, whether the shaper held traffic back,
//! by how much round trips inside the flows have grown, and the capacity as measured
//! ([`crate::capacity`]). Out: the rate. Nothing is shaped before a capacity is known.
//!
//! Rules and their reasons:
//! - A capacity that was measured just now sets the rate, a little below it, up or down. It was measured because
//!   a queue stood, so the rate was too high.
//! - Round trips that have grown a lot mean that the line has become slower. The bytes that crossed it meanwhile are its
//!   rate now; waiting for a measurement would take three more intervals. While a queue stands the rate is lower still, so
//!   that it empties.
//! - A shaped line shows no capacity any more, because no queue stands. So while the shaper limits and round trips stay
//!   short, the rate grows: slowly at first, since most lines stay as they are, then ever faster. A line that changes from
//!   second to second is followed faster from the start. Growth ends where round trips grow.
//! - Round trips of flows with few packets in flight grow by their own bursts and by delayed acknowledgements. So a little
//!   growth of them slows that of the rate and does not end it: the rate must never only fall. Above the rate that was
//!   measured it falls as slowly.
//! - After a fall to much less than before the rate grows faster: a line that stalled is back, most
//!   likely, with the rate that it had.
//! - A virtual queue to send is before the line's: what senders put into it stands in the line's own queue. That is no
//!   sign that the line has become slower. Where packets wait before the line instead, round trips are without that wait.
//! - A line that is full both ways from the start shows no capacity, since its queue may stand in either direction, and
//!   one whose queue drops much of what is sent may not show one for seconds. If round trips have grown for long, the
//!   directions that carry much begin with what they carry; one without a queue grows from there.
//! - A line that carries little shows nothing, and keeps its rate.
//! - Round trips do not say in which direction the queue stands. It is the one whose rate is used most. Where they are
//!   about alike both are slowed down until it is empty, and their rates fall in turns.

use std::time::Duration;

use crate::capacity::{CapacityBasis, CapacityEstimate};
use crate::{Bytes, Rate, Time};

/// Rate to send at, as a fraction of the capacity. The virtual queue is before the line's.
const TX_SHARE: f64 = 0.97;
/// The same for bytes received. They come at no more than the capacity, so the virtual queue only
/// grows if it is served more slowly than that.
const RX_SHARE: f64 = 0.95;
/// Growth of round trips, in excess of jitter and of [`SHORT_PACKETS`], up to which the rate may grow.
const SHORT_QUEUE: Duration = Duration::from_millis(4);
/// Growth of round trips, in excess of jitter and of [`LONG_PACKETS`], from which the rate falls: in two intervals, or
/// if it is three times as much.
const LONG_QUEUE: Duration = Duration::from_millis(10);
/// Packets of full size that come at once and are no queue.
const SHORT_PACKETS: f64 = 2.0;
/// Packets of full size that are no queue for long.
const LONG_PACKETS: f64 = 4.0;
/// Packets more that are no queue where packets wait before the line: two leave at once, and what is computed of the
/// wait is not better than that.
const QUEUED_PACKETS: f64 = 2.0;
/// Delay of the virtual queue to send that senders are left with, besides [`SHORT_PACKETS`].
const TX_QUEUE: Duration = Duration::from_millis(4);
/// Time for which round trips have grown before a line without a capacity is shaped by what it carries.
const FULL_TIME: Duration = Duration::from_secs(1);
/// A direction carries much if the other one has not so many times its bytes.
const MUCH_RATIO: f64 = 8.0;
/// Bits of a packet of full size.
const PACKET_BITS: f64 = 12_000.0;
/// Time in which a queue is to empty.
const DRAIN_TIME: Duration = Duration::from_millis(500);
/// Fraction of the rate that is left to empty a queue, at most.
const MAX_DRAIN: f64 = 0.4;
/// Part of the rate from which the direction is busy although nothing was dropped.
const BUSY: f64 = 0.95;
/// A direction whose rate is used this much as far as the other's is suspected of a queue.
const SUSPECT: f64 = 0.8;
/// Least change of a line from one second to the next, as a fraction: growth starts with it.
const MIN_GROWTH: f64 = 0.02;
/// Growth is twice as fast after this time of it, five times after twice that.
const GROWTH_TIME: f64 = 2.0;
/// Fastest growth, as a fraction per second.
const MAX_GROWTH: f64 = 1.0;
/// Growth after a fall below [`RECOVERING`] of the rate before.
const RECOVERY_GROWTH: f64 = 0.8;
/// Fraction of the rate before a fall below which it grows by [`RECOVERY_GROWTH`].
const RECOVERING: f64 = 0.7;
/// Time for which the rate before a fall is remembered.
const FALL_MEMORY: Duration = Duration::from_secs(15);
/// A fall leaves this part of the rate at least: one interval may be of a stall.
const MAX_FALL: f64 = 0.5;
/// Time after a fall in which bytes sent show no other one: they are as many as the shaper lets through.
const TX_FALL_PAUSE: Duration = Duration::from_millis(600);
/// Bytes of an interval below which it does not make the rate fall.
const MIN_BYTES: u64 = 10_000;
/// Lowest rate, in bits per second: an acknowledgement's worth of downloads must pass.
const MIN_RATE: f64 = 100_000.0;
/// Longest span of an interval that shows a rate.
const MAX_INTERVAL: Duration = Duration::from_millis(1_500);

/// Traffic of an uplink's direction in an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShapedTraffic {
    /// Bytes that crossed the line.
    pub carried: Bytes,
    /// True if the shaper dropped or marked packets.
    pub limited: bool,
    /// Growth of round trips in flows that moved data, in excess of jitter; `None` if none was measured.
    pub queueing: Option<Duration>,
    /// The measured capacity.
    pub capacity: Option<CapacityEstimate>,
    /// Relative change of the line from one second to the next, as far as it was seen.
    pub drift: f64,
    /// True if packets wait before the line, and `queueing` is without that wait.
    pub queued: bool,
}

/// Rates of both directions of an uplink.
#[derive(Clone, Debug)]
pub struct UplinkShaper {
    tx: Direction,
    rx: Direction,
    full: Full,
}

/// A queue that has stood, and the highest rates that were carried meanwhile, sent and received: not all of it may have
/// been full in either direction.
#[derive(Clone, Copy, Debug, Default)]
struct Full {
    time: Duration,
    rates: [f64; 2],
}

impl Default for UplinkShaper {
    fn default() -> UplinkShaper {
        UplinkShaper {
            tx: Direction::new(TX_SHARE, TX_QUEUE, TX_FALL_PAUSE),
            rx: Direction::new(RX_SHARE, Duration::ZERO, Duration::ZERO),
            full: Full::default(),
        }
    }
}

impl UplinkShaper {
    /// Returns a shaper that continues with the rates of another one.
    #[must_use]
    pub fn resumed(tx: Option<Rate>, rx: Option<Rate>) -> UplinkShaper {
        let mut shaper = UplinkShaper::default();
        shaper.tx.rate = tx.map(|rate| rate.bits_per_sec() as f64);
        shaper.rx.rate = rx.map(|rate| rate.bits_per_sec() as f64);
        shaper
    }

    /// Takes an interval that ends at `end`. The ceiling is the configured capacity, which also is the capacity
    /// before any was measured.
    pub fn note(
        &mut self,
        end: Time,
        span: Duration,
        tx: &ShapedTraffic,
        rx: &ShapedTraffic,
        ceiling: Option<Rate>,
    ) {
        self.begin_full(span, tx, rx);
        let used = [self.tx.used(span, tx), self.rx.used(span, rx)];
        let most = used[0].max(used[1]);
        let suspects = used.map(|used| used > 0.0 && used >= most * SUSPECT);
        let may_fall = match suspects {
            [true, true] => self.next_to_fall(end),
            _ => [true; 2],
        };
        self.tx.note(end, span, tx, suspects[0], may_fall[0]);
        self.rx.note(end, span, rx, suspects[1], may_fall[1]);
        self.tx.limit(ceiling);
        self.rx.limit(ceiling);
    }

    /// Returns which of two suspected directions may fall: the one that has not done so for longer, and neither while the
    /// last fall takes effect.
    fn next_to_fall(&self, now: Time) -> [bool; 2] {
        let [tx, rx] = [&self.tx, &self.rx].map(|way| way.fall.map(|(at, _)| at));
        if tx
            .max(rx)
            .is_some_and(|last| now.since(last) < TX_FALL_PAUSE)
        {
            return [false; 2];
        }
        [tx <= rx, tx > rx]
    }

    /// Begins to shape a line on which a queue has stood for some time without showing a capacity: in the directions
    /// that carry much.
    fn begin_full(&mut self, span: Duration, tx: &ShapedTraffic, rx: &ShapedTraffic) {
        let carried = [tx, rx].map(|traffic| traffic.carried.get() as f64);
        let is_full = carried[0].max(carried[1]) >= MIN_BYTES as f64
            && tx.queueing.unwrap_or_default() > LONG_QUEUE + TX_QUEUE;
        if !is_full || span.is_zero() || span > MAX_INTERVAL {
            self.full = Full::default();
            return;
        }
        self.full.time += span;
        let rates = [tx, rx].map(|traffic| bits_per_sec(span, traffic.carried));
        for (most, rate) in self.full.rates.iter_mut().zip(rates) {
            *most = rate.max(*most);
        }
        if self.full.time < FULL_TIME {
            return;
        }
        let most = self.full.rates[0].max(self.full.rates[1]);
        let rates = self
            .full
            .rates
            .map(|rate| (rate * MUCH_RATIO > most).then_some(rate));
        self.tx.begin(rates[0]);
        self.rx.begin(rates[1]);
    }

    /// Returns the rate to send at; `None` before a capacity is known.
    #[must_use]
    pub fn tx(&self) -> Option<Rate> {
        self.tx.applied()
    }

    /// Returns the rate to receive at; `None` before a capacity is known.
    #[must_use]
    pub fn rx(&self) -> Option<Rate> {
        self.rx.applied()
    }
}

#[derive(Clone, Debug)]
struct Direction {
    share: f64,
    /// Delay of its own virtual queue, as far as that stands in the line's.
    own_queue: Duration,
    /// Time between two falls.
    fall_pause: Duration,
    /// Bits per second; `None` before a capacity is known.
    rate: Option<f64>,
    /// Part of the rate that is left to empty a queue.
    drain: f64,
    /// Time of the measurement that was used last.
    measured: Option<Time>,
    /// The rate by the last measurement.
    wanted: Option<f64>,
    /// Time for which the rate has grown without a queue.
    unopposed: f64,
    /// True if the queue was long in the last interval.
    was_long: bool,
    /// The last fall, and the rate before it.
    fall: Option<(Time, f64)>,
}

impl Direction {
    fn new(share: f64, own_queue: Duration, fall_pause: Duration) -> Direction {
        Direction {
            share,
            own_queue,
            fall_pause,
            rate: None,
            drain: 0.0,
            measured: None,
            wanted: None,
            unopposed: 0.0,
            was_long: false,
            fall: None,
        }
    }

    fn applied(&self) -> Option<Rate> {
        let rate = self.rate? * (1.0 - self.drain);
        Some(Rate::from_bits_per_sec(rate.max(MIN_RATE) as u64))
    }

    /// Returns the part of the rate that is used; 0 while there is none, since nothing is known to be full.
    fn used(&self, span: Duration, traffic: &ShapedTraffic) -> f64 {
        let bits = bits_per_sec(span, traffic.carried);
        self.rate.map_or(0.0, |rate| bits / rate.max(MIN_RATE))
    }

    /// Begins with the rate that is carried, if none is known.
    fn begin(&mut self, carried: Option<f64>) {
        if let Some(carried) = carried {
            self.rate
                .get_or_insert((carried * self.share).max(MIN_RATE));
        }
    }

    fn limit(&mut self, ceiling: Option<Rate>) {
        let Some(ceiling) = ceiling else { return };
        let most = ceiling.bits_per_sec() as f64 * self.share;
        self.rate = Some(self.rate.map_or(most, |rate| rate.min(most)));
    }

    /// Takes an interval. A queue in it is this direction's only if it is suspected.
    fn note(
        &mut self,
        end: Time,
        span: Duration,
        traffic: &ShapedTraffic,
        is_suspect: bool,
        may_fall: bool,
    ) {
        if span.is_zero() || span > MAX_INTERVAL {
            return;
        }
        let queueing = traffic.queueing.unwrap_or_default();
        let carried = bits_per_sec(span, traffic.carried);
        let packet = PACKET_BITS / self.rate.unwrap_or(carried).max(MIN_RATE);
        let (bursts, own_queue) = match traffic.queued {
            true => (QUEUED_PACKETS, Duration::ZERO),
            false => (0.0, self.own_queue),
        };
        let short = SHORT_QUEUE + Duration::from_secs_f64(packet * (SHORT_PACKETS + bursts));
        let long = LONG_QUEUE + Duration::from_secs_f64(packet * LONG_PACKETS) + own_queue;
        let has_queue = is_suspect && queueing > short;
        let is_long = is_suspect && queueing > long;
        let was_long = std::mem::replace(&mut self.was_long, is_long);
        let waits = queueing.saturating_sub(short).as_secs_f64();
        self.drain = match has_queue {
            true => (waits / DRAIN_TIME.as_secs_f64()).min(MAX_DRAIN),
            false => 0.0,
        };
        if has_queue {
            self.unopposed = 0.0;
        }
        // A rate to send that was measured behind no more than bursts is the shaper's own.
        let is_credible = has_queue && (own_queue.is_zero() || is_long || was_long);
        if self.take_measurement(end, traffic.capacity, is_credible) {
            return;
        }
        let Some(rate) = self.rate else { return };
        let falls = may_fall && is_long && (was_long || queueing > long * 3);
        if falls && traffic.carried.get() >= MIN_BYTES {
            self.fall(end, rate, carried * self.share);
        } else if !is_long && (traffic.limited || carried >= rate * BUSY) {
            match has_queue {
                true => self.approach(span, rate),
                false => self.grow(end, span, rate, traffic.drift),
            }
        }
    }

    /// Sets the rate by a capacity that was measured since the last one; returns false if there is none.
    /// It lowers the rate only if it `is_credible`.
    fn take_measurement(
        &mut self,
        end: Time,
        capacity: Option<CapacityEstimate>,
        is_credible: bool,
    ) -> bool {
        let Some(capacity) = capacity.filter(|found| found.basis != CapacityBasis::AtLeast) else {
            return false;
        };
        let at = Time::ZERO + end.since(Time::ZERO).saturating_sub(capacity.age);
        if self.measured.is_some_and(|before| at <= before) {
            return false;
        }
        let wanted = capacity.rate.bits_per_sec() as f64 * self.share;
        self.measured = Some(at);
        if !is_credible && self.rate.is_some_and(|rate| wanted < rate) {
            return false;
        }
        self.wanted = Some(wanted);
        self.unopposed = 0.0;
        if let Some(rate) = self.rate
            && wanted < rate
        {
            self.remember(end, rate);
            self.rate = Some(wanted.max(rate * MAX_FALL));
        } else {
            self.rate = Some(wanted);
        }
        true
    }

    fn fall(&mut self, end: Time, rate: f64, wanted: f64) {
        let pauses = |(at, _): (Time, f64)| end.since(at) < self.fall_pause;
        if wanted >= rate || self.fall.is_some_and(pauses) {
            return;
        }
        self.remember(end, rate);
        self.rate = Some(wanted.max(rate * MAX_FALL));
    }

    /// Notes a fall. Several in a row are one, from the highest rate.
    fn remember(&mut self, end: Time, rate: f64) {
        let before = self.before(end).map_or(rate, |before| before.max(rate));
        self.fall = Some((end, before));
    }

    /// Returns the rate before the last fall, as long as it is remembered.
    fn before(&self, now: Time) -> Option<f64> {
        let (at, rate) = self.fall?;
        (now.since(at) < FALL_MEMORY).then_some(rate)
    }

    /// Moves the rate slowly where round trips have grown a little: down if it has grown above what was measured, else
    /// up.
    fn approach(&mut self, span: Duration, rate: f64) {
        let step = MIN_GROWTH * span.as_secs_f64();
        self.rate = Some(match self.wanted.filter(|wanted| rate > *wanted) {
            Some(wanted) => wanted.max(rate * (1.0 - step)),
            None => rate * (1.0 + step),
        });
    }

    fn grow(&mut self, end: Time, span: Duration, rate: f64, drift: f64) {
        let span = span.as_secs_f64();
        self.unopposed += span;
        let faster = 1.0 + (self.unopposed / GROWTH_TIME).powi(2);
        let mut growth = (drift.max(MIN_GROWTH) * faster).min(MAX_GROWTH);
        if self
            .before(end)
            .is_some_and(|before| rate < before * RECOVERING)
        {
            growth = growth.max(RECOVERY_GROWTH);
        }
        self.rate = Some(rate * (1.0 + growth * span));
    }
}

fn bits_per_sec(span: Duration, bytes: Bytes) -> f64 {
    bytes.get() as f64 * 8.0 / span.as_secs_f64().max(1e-3)
}
