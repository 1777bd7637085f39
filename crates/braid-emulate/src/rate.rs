//! The wire: one packet at a time, at a fixed rate, by a trace, or without limit.
//!
//! What counts against the rate is the whole Ethernet frame without its checksum, as `tc` counts:
//! 1514 bytes for an IP packet of 1500.

use std::sync::Arc;
use std::time::Duration;

use braid_core::{Bytes, Rate};

use crate::Time;
use crate::trace::{Cursor, Trace};

/// How fast the wire is.
#[derive(Debug, Clone, PartialEq)]
pub enum Speed {
    /// A packet takes no time.
    Unlimited,
    /// So many bits per second; at zero, nothing passes until the speed changes.
    Fixed(Rate),
    /// As a recorded link did, over and over.
    Trace(Arc<Trace>),
}

impl Speed {
    /// Returns true if nothing changes. A trace that is read anew begins anew.
    pub(crate) fn goes_on_as(&self, other: &Speed) -> bool {
        match (self, other) {
            (Speed::Trace(one), Speed::Trace(other)) => Arc::ptr_eq(one, other),
            (one, other) => one == other,
        }
    }

    /// The mean rate; none if unlimited. Queues that are limited by time are sized by it.
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
    /// When a trace began: when it was set.
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

    /// When the wire is free for a packet that is ready at `ready`. Only while it is not busy.
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

    /// When the packet on the wire will have left; none if there is none, or at rate zero.
    pub fn done_at(&self) -> Option<Time> {
        self.busy.as_ref().and_then(|sending| sending.done)
    }

    /// Takes the packet off the wire that has left by `now`, and when it did.
    pub fn take(&mut self, now: Time) -> Option<(P, Time)> {
        let done = self.done_at().filter(|done| *done <= now)?;
        self.free_at = done;
        self.busy.take().map(|sending| (sending.packet, done))
    }

    /// Changes the speed. What is left of the packet on the wire is sent at the new one.
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
