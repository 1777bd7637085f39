//! One TCP flow over one link without a bond: what a bond is measured against.

use std::time::Duration;

use braid_core::Time;
use braid_emulate::{Fate, Link};

use crate::tcp::{Ack, TcpReceiver, TcpSender};
use crate::world::{FULL, Line};

/// Goodput in Mbit/s from one to another second after the flow began, for each of the spans.
pub fn goodput<const N: usize>(line: &Line, seed: u64, spans: [(u64, u64); N]) -> [f64; N] {
    let mut there: Link<(u64, Time)> = Link::new(line.config(), seed * 100);
    let mut back: Link<Ack> = Link::new(line.config(), seed * 100 + 1);
    let mut sender = TcpSender::new();
    let mut receiver = TcpReceiver::default();
    let mut now = Time::ZERO;
    let mut delivered = [0u64; N];
    let spans = spans.map(|(from, to)| Duration::from_secs(from)..Duration::from_secs(to));
    let end = spans.iter().map(|span| span.end).max().unwrap_or_default();
    while now.since(Time::ZERO) < end {
        for seq in sender.poll_transmit(now) {
            there.handle_packet(now, FULL, (seq, now));
        }
        let next = [
            there.poll_timeout(),
            back.poll_timeout(),
            sender.poll_timeout(),
        ];
        now = next.into_iter().flatten().min().map_or(now, |t| t.max(now));
        while let Some(out) = there.poll_output(now) {
            let (seq, sent) = out.packet;
            if out.fate != Fate::Delivered {
                continue;
            }
            for (count, span) in delivered.iter_mut().zip(&spans) {
                *count += u64::from(span.contains(&now.since(Time::ZERO)));
            }
            if let Some(ack) = receiver.handle_segment(seq, sent) {
                back.handle_packet(now, 60, ack);
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
    let mbit = |index: usize| {
        let seconds = (spans[index].end - spans[index].start).as_secs_f64();
        delivered[index] as f64 * f64::from(FULL) * 8.0 / 1e6 / seconds
    };
    std::array::from_fn(mbit)
}
