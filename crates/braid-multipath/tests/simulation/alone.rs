//! One TCP flow over one link without a bond: the reference for a bond.

use std::time::Duration;

use braid_core::Time;
use braid_emulate::{Fate, Link};

use crate::tcp::{Ack, TcpReceiver, TcpSender};
use crate::world::{FULL, LinkSpec};

/// Measurements of one flow and of a small packet beside it.
pub struct Alone {
    /// Bytes delivered in order, each once, in each tenth of a second.
    pub delivered: Vec<u64>,
    /// One-way delays of a packet of 100 bytes every 20 ms.
    pub delays: Vec<Duration>,
    /// When the last segment of a flow that ends arrived.
    pub finished: Option<Time>,
}

#[derive(Debug, Clone)]
enum Packet {
    Segment(u64, Time),
    Small(Time),
}

const SMALL_EVERY: Duration = Duration::from_millis(20);

/// Runs `sender`'s flow from `start` on for the given span; `small` adds a small flow beside it.
pub fn run(
    line: &LinkSpec,
    mut sender: TcpSender,
    seed: u64,
    (start, span): (Time, Duration),
    small: bool,
) -> Alone {
    let mut there: Link<Packet> = Link::new(line.config(0), seed * 100);
    let mut back: Link<Ack> = Link::new(line.config(1), seed * 100 + 1);
    let mut receiver = TcpReceiver::default();
    let mut now = start;
    let mut delivered = vec![0; (span.as_millis() / 100) as usize];
    let mut delays = Vec::new();
    let mut next_small = small.then_some(start);
    let mut finished = None;
    while now.since(start) < span && finished.is_none() {
        for seq in sender.poll_transmit(now) {
            there.handle_packet(now, FULL, Packet::Segment(seq, now));
        }
        if let Some(at) = next_small.filter(|at| *at <= now) {
            there.handle_packet(now, 100, Packet::Small(now));
            next_small = Some(at + SMALL_EVERY);
        }
        let next = [
            there.poll_timeout(),
            back.poll_timeout(),
            sender.poll_timeout(),
            next_small,
        ];
        now = next.into_iter().flatten().min().map_or(now, |t| t.max(now));
        while let Some(out) = there.poll_output(now) {
            if out.fate != Fate::Delivered {
                continue;
            }
            match out.packet {
                Packet::Small(sent) => delays.push(now.since(sent)),
                Packet::Segment(seq, sent) => {
                    let before = receiver.next;
                    if let Some(ack) = receiver.handle_segment(seq, sent) {
                        back.handle_packet(now, 60, ack);
                    }
                    let tenth = (now.since(start).as_millis() / 100) as usize;
                    if let Some(count) = delivered.get_mut(tenth) {
                        *count += (receiver.next - before) * u64::from(FULL);
                    }
                    if receiver.next >= sender.total_segments() {
                        finished = Some(now);
                    }
                }
            }
        }
        while let Some(out) = back.poll_output(now) {
            if out.fate == Fate::Delivered {
                sender.handle_ack(now, &out.packet);
            }
        }
        if sender.poll_timeout().is_some_and(|at| at <= now) {
            sender.handle_timeout(now);
        }
    }
    Alone {
        delivered,
        delays,
        finished,
    }
}

/// Returns the goodput in Mbit/s for each span, in seconds after the flow's beginning.
pub fn goodput<const N: usize>(
    line: &LinkSpec,
    sender: TcpSender,
    seed: u64,
    spans: [(u64, u64); N],
) -> [f64; N] {
    let end = spans.iter().map(|span| span.1).max().unwrap_or_default();
    let span = (Time::ZERO, Duration::from_secs(end));
    let alone = run(line, sender, seed, span, false);
    spans.map(|(from, to)| {
        let tenths = &alone.delivered[from as usize * 10..to as usize * 10];
        tenths.iter().sum::<u64>() as f64 * 8.0 / 1e6 / (to - from) as f64
    })
}
