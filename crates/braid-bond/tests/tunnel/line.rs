//! A line in virtual time: rate, delay, jitter, loss, a queue, holes.

use std::net::SocketAddr;
use std::time::Duration;

use braid_core::{Bytes, Rate, Time};

/// Repeatable random numbers: xorshift64*.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number from 0 to below 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// One direction of a line.
#[derive(Clone, Debug)]
pub struct Line {
    pub rate: Rate,
    pub delay: Duration,
    /// Random addition to each packet's delay, so that packets may overtake each other.
    pub jitter: Duration,
    pub loss: f64,
    /// Longest wait of a packet in the queue.
    pub queue: Duration,
    /// Largest UDP payload that passes.
    pub payload: usize,
    /// Nothing passes.
    pub hole: bool,
    /// GRE passes.
    pub gre: bool,
    /// Each packet comes twice.
    pub duplicates: bool,
    free: Time,
    pub packets: u64,
    pub bytes: u64,
}

impl Line {
    pub fn new(mbit: u64, millis: u64) -> Line {
        Line {
            rate: Rate::from_bits_per_sec(mbit * 1_000_000),
            delay: Duration::from_millis(millis),
            jitter: Duration::ZERO,
            loss: 0.0,
            queue: Duration::from_millis(100),
            payload: 1472,
            hole: false,
            gre: true,
            duplicates: false,
            free: Time::ZERO,
            packets: 0,
            bytes: 0,
        }
    }

    /// The arrival time of a datagram sent now; none if it is lost.
    pub fn send(&mut self, now: Time, size: usize, dice: &mut Dice) -> Option<Time> {
        self.packets += 1;
        self.bytes += size as u64;
        let waits = self.free.since(now);
        if self.hole || size > self.payload || waits > self.queue {
            return None;
        }
        let wire = Bytes::new(size as u64 + 28);
        let span = self.rate.time_of(wire).expect("a rate above zero");
        self.free = self.free.max(now) + span;
        if dice.share() < self.loss {
            return None;
        }
        Some(self.free + self.delay + self.jitter.mul_f64(dice.share()))
    }
}

/// A line in both directions, and the address that the hub sees behind it.
#[derive(Clone, Debug)]
pub struct Lines {
    pub up: Line,
    pub down: Line,
    pub client: SocketAddr,
}

impl Lines {
    pub fn new(index: u8, mbit: u64, millis: u64) -> Lines {
        Lines {
            up: Line::new(mbit, millis),
            down: Line::new(mbit, millis),
            client: SocketAddr::from(([10, 0, index, 1], 4000)),
        }
    }

    pub fn both(&mut self, change: impl Fn(&mut Line)) {
        change(&mut self.up);
        change(&mut self.down);
    }
}
