//! Sending again what a link lost, where that is sooner than the inner flow could.
//!
//! - The receiver asks *once* for each packet that a link's own numbers show to be missing, and only
//!   if the copy can be there before the resequencer gives up ([`NackLimiter`]): a copy that comes too
//!   late costs twice.
//! - It asks by the link's number, which is known to be missing at the link's next packet; the lane
//!   would tell only once all links had passed.
//! - What is asked for is limited to a share of what arrives, so that a link that drops everything
//!   does not drown the others in copies.
//! - The sender keeps what it sent for a moment, bounded in bytes and time, and gives each packet
//!   out once ([`RetransmitBuffer`]): requests travel over all links, so they come more than once.

use std::collections::VecDeque;
use std::time::Duration;

use crate::estimate::NumberRange;
use crate::{Bytes, LinkId, PacketNumber, Time};

/// Of each packet that arrives, so many may be asked for; saved up to [`MAX_CREDIT`].
const CREDIT_PER_PACKET: f64 = 0.5;

/// A burst of so many lost packets is still asked for entirely.
const MAX_CREDIT: f64 = 128.0;

/// Decides whether to ask for what is missing on one link.
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
    /// A packet arrived.
    pub fn handle_packet(&mut self) {
        self.credit = (self.credit + CREDIT_PER_PACKET).min(MAX_CREDIT);
    }

    /// What to ask for of a range just held for lost: as much of its end as may be afforded, since
    /// that has most time left; nothing if `answer`, the time until a copy comes, is longer than
    /// `patience`, the time for which its lane will wait.
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

#[derive(Debug, Clone)]
struct SentPacket<T> {
    number: PacketNumber,
    at: Time,
    len: Bytes,
    item: Option<T>,
}

/// What was sent on one link of late.
#[derive(Debug)]
pub struct RetransmitBuffer<T> {
    sent: VecDeque<SentPacket<T>>,
    bytes: u64,
    max_bytes: Bytes,
    max_age: Duration,
}

impl<T> RetransmitBuffer<T> {
    /// Keeps up to `most` bytes for up to `age`.
    #[must_use]
    pub fn new(max_bytes: Bytes, max_age: Duration) -> RetransmitBuffer<T> {
        RetransmitBuffer {
            sent: VecDeque::new(),
            bytes: 0,
            max_bytes,
            max_age,
        }
    }

    /// Keeps what was sent under `number`, which must not be below an earlier one; several items
    /// may share a number.
    pub fn handle_sent(&mut self, now: Time, number: PacketNumber, len: Bytes, item: T) {
        self.bytes += len.get();
        let item = Some(item);
        self.sent.push_back(SentPacket {
            number,
            at: now,
            len,
            item,
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

    /// Gives out what was sent under these numbers, each item once; what is too old is gone.
    pub fn take(&mut self, now: Time, range: NumberRange, mut each: impl FnMut(Bytes, T)) {
        let from = self.sent.partition_point(|sent| sent.number < range.first);
        for sent in self.sent.range_mut(from..) {
            if sent.number > range.last {
                return;
            }
            if now.since(sent.at) <= self.max_age
                && let Some(item) = sent.item.take()
            {
                each(sent.len, item);
            }
        }
    }

    /// Forgets what is too old.
    pub fn handle_timeout(&mut self, now: Time) {
        while self
            .sent
            .front()
            .is_some_and(|first| now.since(first.at) > self.max_age)
        {
            self.forget_first();
        }
    }

    /// Bytes kept.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes::new(self.bytes)
    }
}

/// A request to send again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nack {
    /// The link that lost them.
    pub link: LinkId,
    /// Their numbers on it.
    pub range: NumberRange,
}
