//! The wire: one packet at a time, at a fixed rate, by a trace, or without limit.
//!
//! The rate counts whole Ethernet frames without their checksum, as `tc` does: 1514 bytes for an IP
//! packet of 1500.

use std::sync::Arc;
use std::time::Duration;

use braid_core::{Bytes, Rate};

use crate::Time;
use crate::trace::{Cursor, Trace};

/// Rate of the wire.
#[derive(Debug, Clone, PartialEq)]
pub enum Speed {
    /// A packet takes no time.
    Unlimited,
    /// Bits per second; at zero, nothing passes until the speed changes.
    Fixed(Rate),
    /// The rate of a recorded link, repeated.
    Trace(Arc<Trace>),
}

impl Speed {
    /// Returns true if nothing changes. A trace that is loaded again starts over.
    pub(crate) fn goes_on_as(&self, other: &Speed) -> bool {
        match (self, other) {
            (Speed::Trace(one), Speed::Trace(other)) => Arc::ptr_eq(one, other),
            (one, other) => one == other,
        }
    }

    /// Returns the mean rate; `None` if unlimited. Queue limits by time are computed from it.
    #[must_use]
    pub fn mean(&self) -> Option<Rate> {
        match self {
            Speed::Unlimited => None,
            Speed::Fixed(rate) => Some(*rate),
            Speed::Trace(trace) => Some(trace.mean()),
        }
    }
}

/// A wire and the packet on it.
///
/// Invariant: over any span of time, no more leaves than the speed allows plus one packet: a packet
/// leaves when its last bit has been sent, and the next one's first bit is not sent earlier.
#[derive(Debug)]
pub(crate) struct Wire<P> {
    speed: Speed,
    /// Start of the current trace: when it was set.
    began: Time,
    cursor: Cursor,
    /// When the last packet left.
    free_at: Time,
    busy: Option<Sending<P>>,
}

#[derive(Debug)]
struct Sending<P> {
    packet: P,
    len: u32,
    started: Time,
    /// None at rate zero.
    done: Option<Time>,
}

impl<P> Wire<P> {
    pub fn new(speed: Speed) -> Wire<P> {
        Wire {
            speed,
            began: Time::ZERO,
            cursor: Cursor::default(),
            free_at: Time::ZERO,
            busy: None,
        }
    }

    pub fn is_busy(&self) -> bool {
        self.busy.is_some()
    }

    /// Returns when the wire is free for a packet that is ready at `ready`. The wire must not be
    /// busy.
    pub fn start_time(&self, ready: Time) -> Time {
        self.free_at.max(ready)
    }

    /// Puts a packet on the free wire.
    pub fn send(&mut self, packet: P, len: u32, at: Time) {
        debug_assert!(self.busy.is_none() && at >= self.free_at);
        let done = self.finish(at, len);
        self.busy = Some(Sending {
            packet,
            len,
            started: at,
            done,
        });
    }

    /// Returns when the packet on the wire will have left; `None` if there is none, or at rate
    /// zero.
    pub fn done_at(&self) -> Option<Time> {
        self.busy.as_ref().and_then(|sending| sending.done)
    }

    /// Takes the packet that has left the wire by `now`, with the time.
    pub fn take(&mut self, now: Time) -> Option<(P, Time)> {
        let done = self.done_at().filter(|done| *done <= now)?;
        self.free_at = done;
        self.busy.take().map(|sending| (sending.packet, done))
    }

    /// Changes the speed. The rest of the packet on the wire is sent at the new speed.
    pub fn set_speed(&mut self, now: Time, speed: Speed) {
        self.speed = speed;
        self.began = now;
        self.cursor = Cursor::default();
        let Some(sending) = &self.busy else { return };
        let left = match sending.done {
            None => sending.len,
            Some(done) => {
                let (left, whole) = (done.since(now), done.since(sending.started));
                part(sending.len, left, whole)
            }
        };
        let done = self.finish(now, left);
        if let Some(sending) = &mut self.busy {
            sending.done = done;
        }
    }

    fn finish(&mut self, start: Time, len: u32) -> Option<Time> {
        match &self.speed {
            Speed::Unlimited => Some(start),
            Speed::Fixed(rate) => rate
                .time_of(Bytes::new(len.into()))
                .map(|span| start + span),
            Speed::Trace(trace) => {
                let within = Time::ZERO + start.since(self.began);
                let done = trace.finish(&mut self.cursor, within, len);
                Some(self.began + done.since(Time::ZERO))
            }
        }
    }
}

/// `len · left / whole`, rounded up.
fn part(len: u32, left: Duration, whole: Duration) -> u32 {
    if whole.is_zero() {
        return 0;
    }
    let bytes = (u128::from(len) * left.as_nanos()).div_ceil(whole.as_nanos());
    u32::try_from(bytes).unwrap_or(len).min(len)
}
