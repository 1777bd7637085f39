//! One TCP flow over one link without a bond: what a bond is measured against.

use std::time::Duration;

use braid_core::Time;
use braid_emulate::{Fate, Link};

use crate::tcp::{Ack, TcpReceiver, TcpSender};
use crate::world::{FULL, Line};

/// Goodput in Mbit/s from `from` to `to` seconds after the flow began.
pub fn goodput(line: &Line, seed: u64, (from, to): (u64, u64)) -> f64 {
    let mut there: Link<(u64, Time)> = Link::new(line.config(), seed * 100);
    let mut back: Link<Ack> = Link::new(line.config(), seed * 100 + 1);
    let mut sender = TcpSender::new();
    let mut receiver = TcpReceiver::default();
    let mut now = Time::ZERO;
    let mut delivered = 0;
    let (from, to) = (Duration::from_secs(from), Duration::from_secs(to));
    while now.since(Time::ZERO) < to {
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
            delivered += u64::from(now.since(Time::ZERO) >= from);
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
    delivered as f64 * f64::from(FULL) * 8.0 / 1e6 / (to - from).as_secs_f64()
}
