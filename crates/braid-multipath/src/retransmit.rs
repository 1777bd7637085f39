//! Retransmission of packets that a link lost, where that is sooner than the inner flow's own.
//!
//! - The receiver requests each missing packet *once* (a NACK), and only if the retransmission can
//!   arrive before the resequencer gives up ([`NackLimiter`]): one that arrives too late costs
//!   twice.
//! - A NACK names the link's packet numbers. A gap in them shows at the link's next packet; a gap
//!   in the lane would show only once all links had passed.
//! - Requests are limited to a share of the packets that arrive, so that a link that drops
//!   everything does not drown the others in retransmissions.
//! - The sender keeps sent packets for a moment, bounded in bytes and time, and returns each once
//!   ([`RetransmitBuffer`]): NACKs travel over all links, so they arrive more than once. It keeps
//!   none of those that were returned, which a peer could have it look through again and again.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::{Bytes, Time};

use crate::estimate::NumberRange;
use crate::{LinkId, PacketNumber};

/// Packets that may be requested per packet that arrives; the credit grows up to [`MAX_CREDIT`].
const CREDIT_PER_PACKET: f64 = 0.5;

/// A burst of this many lost packets can be requested as a whole.
const MAX_CREDIT: f64 = 128.0;

/// Decides which lost packets of one link to request.
#[derive(Debug, Clone, Copy)]
pub struct NackLimiter {
    credit: f64,
}

impl Default for NackLimiter {
    fn default() -> NackLimiter {
        NackLimiter { credit: MAX_CREDIT }
    }
}

impl NackLimiter {
    /// Notes that a packet arrived.
    pub fn handle_packet(&mut self) {
        self.credit = (self.credit + CREDIT_PER_PACKET).min(MAX_CREDIT);
    }

    /// Returns the part of a newly lost range to request: as much of its end as the credit allows,
    /// since the end has most time left. None if `retransmit_delay` exceeds `max_wait`, the time
    /// for which the lane will wait.
    pub fn request(
        &mut self,
        lost: NumberRange,
        retransmit_delay: Duration,
        max_wait: Duration,
    ) -> Option<NumberRange> {
        let allowed = (self.credit as u64).min(lost.count());
        if retransmit_delay > max_wait || allowed == 0 {
            return None;
        }
        self.credit -= allowed as f64;
        Some(NumberRange {
            first: PacketNumber(lost.last.0 + 1 - allowed),
            last: lost.last,
        })
    }
}

/// A packet that was sent, as it is kept.
#[derive(Debug, Clone)]
pub struct SentPacket<T> {
    /// Its number on the link.
    pub number: PacketNumber,
    /// When it was sent.
    pub at: Time,
    /// Its size.
    pub len: Bytes,
    /// The packet.
    pub item: T,
    /// True if a copy that nobody had asked for was to be sent, and was not.
    pub is_tried: bool,
}

/// Packets recently sent on one link.
#[derive(Debug)]
pub struct RetransmitBuffer<T> {
    sent: VecDeque<SentPacket<T>>,
    bytes: u64,
    max_bytes: Bytes,
    max_age: Duration,
}

impl<T> RetransmitBuffer<T> {
    /// Keeps up to `max_bytes` for up to `max_age`.
    #[must_use]
    pub fn new(max_bytes: Bytes, max_age: Duration) -> RetransmitBuffer<T> {
        RetransmitBuffer {
            sent: VecDeque::new(),
            bytes: 0,
            max_bytes,
            max_age,
        }
    }

    /// Changes the time for which items are kept.
    pub fn set_max_age(&mut self, max_age: Duration) {
        self.max_age = max_age;
    }

    /// Keeps an item sent under `number`, which must not be below an earlier one. Several items may
    /// share a number.
    pub fn handle_sent(&mut self, now: Time, number: PacketNumber, len: Bytes, item: T) {
        self.bytes += len.get();
        self.sent.push_back(SentPacket {
            number,
            at: now,
            len,
            item,
            is_tried: false,
        });
        while self.sent.front().is_some_and(|first| {
            self.bytes > self.max_bytes.get() || now.since(first.at) > self.max_age
        }) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some(first) = self.sent.pop_front() {
            self.bytes -= first.len.get();
        }
    }

    /// Removes the items sent under these numbers and calls `each` for them, but for those that are
    /// too old.
    pub fn take(&mut self, now: Time, range: NumberRange, mut each: impl FnMut(SentPacket<T>)) {
        let places = range.places(&self.sent, |sent| sent.number);
        for sent in self.sent.drain(places) {
            self.bytes -= sent.len.get();
            if now.since(sent.at) <= self.max_age {
                each(sent);
            }
        }
    }

    /// The same from the first one on that was not tried before.
    pub fn take_untried(&mut self, now: Time, range: NumberRange, each: impl FnMut(SentPacket<T>)) {
        let mut sent = self
            .sent
            .range(range.places(&self.sent, |sent| sent.number));
        if let Some(first) = sent.find(|sent| !sent.is_tried) {
            let first = first.number;
            self.take(now, NumberRange { first, ..range }, each);
        }
    }

    /// Keeps an item again that was taken and not sent. It may be requested still.
    pub fn restore(&mut self, at: Time, number: PacketNumber, len: Bytes, item: T) {
        let place = self.sent.partition_point(|other| other.number <= number);
        self.bytes += len.get();
        let sent = SentPacket {
            number,
            at,
            len,
            item,
            is_tried: true,
        };
        self.sent.insert(place, sent);
    }

    /// Forgets items that are too old.
    pub fn handle_timeout(&mut self, now: Time) {
        while self
            .sent
            .front()
            .is_some_and(|first| now.since(first.at) > self.max_age)
        {
            self.forget_first();
        }
    }

    /// Returns the bytes kept.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes::new(self.bytes)
    }
}

/// A request for retransmission (negative acknowledgement).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nack {
    /// The link that lost the packets.
    pub link: LinkId,
    /// Their numbers on it.
    pub range: NumberRange,
}
