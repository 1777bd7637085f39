//! The queue in front of the wire, and its limit.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use braid_core::units::duration;
use braid_core::{Bytes, Rate};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use crate::Time;

/// A packet in the link, with its times.
#[derive(Debug)]
pub(crate) struct QueuedPacket<P> {
    pub packet: P,
    pub number: u64,
    pub len: u32,
    pub arrived: Time,
    /// When its first bit was sent; its arrival while it waits.
    pub started: Time,
}

/// Limit of the queue, not counting the packet on the wire. Arrivals beyond it are dropped
/// (drop-tail).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// This many packets, at least 1.
    Packets(u32),
    /// This many bytes, at least one packet.
    Bytes(Bytes),
    /// As many bytes as the wire sends in this time at its (mean) rate, at least one packet.
    Time(Duration),
}

impl Limit {
    /// 100 ms: typical of a home router at its uplink's rate.
    pub const DEFAULT: Limit = Limit::Time(Duration::from_millis(100));
}

/// A text that is not a limit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{0:?} is not a queue limit: write packets (\"1000p\"), a size (\"256 kB\") or a time \
     (\"100 ms\"), more than zero"
)]
pub struct LimitError(String);

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Limit, LimitError> {
        let packets = text
            .trim()
            .strip_suffix('p')
            .map(|count| count.trim_end().parse());
        let limit = match packets {
            Some(Ok(count)) => Some(Limit::Packets(count)),
            _ => text
                .parse()
                .map(Limit::Bytes)
                .or_else(|_| duration::parse(text).map(Limit::Time))
                .ok(),
        };
        let zero = [
            Limit::Packets(0),
            Limit::Bytes(Bytes::default()),
            Limit::Time(Duration::ZERO),
        ];
        limit
            .filter(|limit| !zero.contains(limit))
            .ok_or_else(|| LimitError(text.to_owned()))
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Packets(count) => write!(f, "{count}p"),
            Limit::Bytes(bytes) => bytes.fmt(f),
            Limit::Time(span) => duration::display(*span).fmt(f),
        }
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Limit, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// First in, first out, up to a limit.
#[derive(Debug)]
pub(crate) struct Fifo<P> {
    packets: VecDeque<QueuedPacket<P>>,
    bytes: u64,
    most_packets: usize,
    most_bytes: u64,
}

impl<P> Fifo<P> {
    /// `rate` is the wire's mean rate. Without one (unlimited), a limit by time has no meaning, and
    /// nothing ever waits.
    pub fn new(limit: Limit, rate: Option<Rate>) -> Fifo<P> {
        let mut fifo = Fifo {
            packets: VecDeque::new(),
            bytes: 0,
            most_packets: 0,
            most_bytes: 0,
        };
        fifo.set_limit(limit, rate);
        fifo
    }

    /// Changes the limit. Packets already in the queue stay.
    pub fn set_limit(&mut self, limit: Limit, rate: Option<Rate>) {
        (self.most_packets, self.most_bytes) = match (limit, rate) {
            (Limit::Packets(count), _) => (count as usize, u64::MAX),
            (Limit::Bytes(bytes), _) => (usize::MAX, bytes.get()),
            (Limit::Time(span), Some(rate)) => (usize::MAX, rate.bytes_in(span).get()),
            (Limit::Time(_), None) => (usize::MAX, u64::MAX),
        };
    }

    /// Appends a packet, or gives it back if the queue is full. An empty queue takes any packet.
    pub fn push(&mut self, held: QueuedPacket<P>) -> Result<(), QueuedPacket<P>> {
        let bytes = self.bytes + u64::from(held.len);
        let full = self.packets.len() >= self.most_packets || bytes > self.most_bytes;
        if full && !self.packets.is_empty() {
            return Err(held);
        }
        self.bytes = bytes;
        self.packets.push_back(held);
        Ok(())
    }

    pub fn pop(&mut self) -> Option<QueuedPacket<P>> {
        let held = self.packets.pop_front()?;
        self.bytes -= u64::from(held.len);
        Some(held)
    }

    /// Returns when the first packet arrived.
    pub fn head_arrived(&self) -> Option<Time> {
        self.packets.front().map(|held| held.arrived)
    }

    pub fn len(&self) -> usize {
        self.packets.len()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
