//! Packets sent on a link that no report has covered.

use std::collections::VecDeque;

use braid_core::{Bytes, Time};

use super::NumberRange;
use crate::PacketNumber;

/// Most packets remembered: 0.8 s at 1 Gbit/s. Older ones count as arrived.
const MAX_ENTRIES: usize = 65_536;

#[derive(Debug, Clone, Copy)]
struct Entry {
    at: Time,
    /// Bytes sent before this packet.
    before: u64,
    /// Packets up to this one that elicit a report.
    eliciting: u64,
}

/// The packets of a link from the highest reported one on, in the order of their numbers.
///
/// A link is a FIFO, so the packets in flight are those sent after the highest packet that arrived.
/// Bytes are counted as running totals; no packet is accounted for singly.
#[derive(Debug, Clone, Default)]
pub struct SentLog {
    entries: VecDeque<Entry>,
    /// Number of the first entry.
    first: u64,
    sent: u64,
    eliciting: u64,
}

/// Send time of a packet, and the bytes sent on its link before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentAt {
    /// Send time.
    pub at: Time,
    /// Bytes sent before it.
    pub before: Bytes,
}

impl SentLog {
    /// Takes the next packet and returns its number.
    pub fn handle_sent(&mut self, now: Time, len: Bytes, elicits: bool) -> PacketNumber {
        if self.entries.len() == MAX_ENTRIES {
            self.entries.pop_front();
            self.first += 1;
        }
        let number = PacketNumber(self.first + self.entries.len() as u64);
        self.eliciting += u64::from(elicits);
        self.entries.push_back(Entry {
            at: now,
            before: self.sent,
            eliciting: self.eliciting,
        });
        self.sent += len.get();
        number
    }

    /// Adds `len` bytes to the last packet.
    pub fn handle_more(&mut self, len: Bytes) {
        self.sent += len.get();
    }

    /// Forgets everything below `highest` and returns that packet's entry; none if it is forgotten
    /// already or was never sent.
    pub fn handle_arrived(&mut self, highest: PacketNumber) -> Option<SentAt> {
        let index = usize::try_from(highest.0.checked_sub(self.first)?).ok()?;
        let entry = *self.entries.get(index)?;
        self.entries.drain(..index);
        self.first += index as u64;
        Some(SentAt {
            at: entry.at,
            before: Bytes::new(entry.before),
        })
    }

    /// Returns the send time of the first packet above `highest` that elicits a report; none if
    /// there is none.
    #[must_use]
    pub fn first_eliciting(&self, highest: Option<PacketNumber>) -> Option<Time> {
        let told = match self.index_above(highest) {
            0 => self.forgotten(),
            index => self.entries.get(index - 1)?.eliciting,
        };
        let index = self
            .entries
            .partition_point(|entry| entry.eliciting <= told);
        self.entries.get(index).map(|entry| entry.at)
    }

    /// Returns the eliciting packets before the first entry, as if that entry were one: the error
    /// is at most one packet that is forgotten anyway.
    fn forgotten(&self) -> u64 {
        let first = self.entries.front().map_or(0, |entry| entry.eliciting);
        if self.first == 0 {
            0
        } else {
            first.saturating_sub(1)
        }
    }

    fn index_above(&self, highest: Option<PacketNumber>) -> usize {
        let index = highest.map_or(0, |highest| (highest.0 + 1).saturating_sub(self.first));
        usize::try_from(index).unwrap_or(usize::MAX)
    }

    /// Returns the packets above `highest` sent no later than `at`; none if there are none.
    #[must_use]
    pub fn range_until(&self, highest: Option<PacketNumber>, at: Time) -> Option<NumberRange> {
        let first = self.first + self.index_above(highest) as u64;
        let end = self.first + self.entries.partition_point(|entry| entry.at <= at) as u64;
        (first < end).then(|| NumberRange {
            first: PacketNumber(first),
            last: PacketNumber(end - 1),
        })
    }

    /// Returns the bytes sent above `highest`.
    #[must_use]
    pub fn in_flight(&self, highest: Option<PacketNumber>) -> Bytes {
        let before = self.entries.get(self.index_above(highest));
        Bytes::new(before.map_or(0, |entry| self.sent - entry.before))
    }

    /// Returns the bytes sent in total.
    #[must_use]
    pub fn total(&self) -> Bytes {
        Bytes::new(self.sent)
    }

    /// Returns the number that the next packet will have.
    #[must_use]
    pub fn next(&self) -> PacketNumber {
        PacketNumber(self.first + self.entries.len() as u64)
    }
}
