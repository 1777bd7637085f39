//! Conversion of reports between the wire and the sender.

use std::time::Duration;

use braid_core::{Bytes, Rate, Time};
use braid_multipath::estimate::LinkReport;
use braid_multipath::{MAX_LINKS, PacketNumber, RelativeDelay, Stamp};

use super::clock::PeerClock;
use crate::proto::frame::{Entry, Report};
use crate::proto::packet::expand_stamp;

/// The newest report, which goes out on one link after the other.
#[derive(Clone, Debug, Default)]
pub(super) struct OutgoingReport {
    number: u64,
    made: Time,
    links: Vec<LinkReport>,
    entries: Vec<Entry>,
    /// Subtracted from every delay of the session, so that delays are small numbers.
    zero: Option<i64>,
}

impl OutgoingReport {
    pub fn make(&mut self, now: Time, fill: impl FnOnce(&mut Vec<LinkReport>)) {
        self.number += 1;
        self.made = now;
        self.links.clear();
        fill(&mut self.links);
        self.links.sort_by_key(|report| report.link);
        self.links.truncate(MAX_LINKS);
    }

    pub fn append(&mut self, now: Time, clock: &PeerClock, out: &mut Vec<u8>) {
        let waited = now.since(self.made);
        let (made, zero) = (self.made, &mut self.zero);
        let entry = |report: &LinkReport| {
            let zero = *zero.get_or_insert(report.delay.0);
            Entry {
                link: report.link,
                highest: report.highest.0,
                packets: report.packets,
                bytes: report.bytes.get(),
                lost: report.lost,
                age: micros(made.since(report.received_at) + waited),
                held: micros(report.held + waited),
                echo: clock.bits(report.echo),
                delay: report.delay.0 - zero,
                jitter: micros(report.jitter),
                train: report.train.map_or(0, kilobits),
            }
        };
        self.entries.clear();
        self.entries.extend(self.links.iter().map(entry));
        Report::write(self.number, &self.entries, out);
    }
}

fn micros(span: Duration) -> u32 {
    u32::try_from(span.as_micros()).unwrap_or(u32::MAX)
}

fn kilobits(rate: Rate) -> u32 {
    u32::try_from(rate.bits_per_sec() / 1000).unwrap_or(u32::MAX)
}

/// Converts an entry for the sender of its packets. `stamp` is that of the packet that brought it.
/// The sender did not number packets up to `before`, so reports about them are skipped.
pub(super) fn incoming(now: Time, stamp: Stamp, entry: &Entry, before: u64) -> Option<LinkReport> {
    let highest = entry.highest.checked_sub(before)?;
    let made = Time::from_nanos(stamp.0.saturating_mul(1000));
    Some(LinkReport {
        link: entry.link,
        highest: PacketNumber(highest),
        echo: expand_stamp(entry.echo, Stamp::of(now)),
        held: Duration::from_micros(entry.held.into()),
        received_at: made.before(Duration::from_micros(entry.age.into())),
        packets: entry.packets,
        bytes: Bytes::new(entry.bytes),
        lost: entry.lost,
        delay: RelativeDelay(entry.delay),
        jitter: Duration::from_micros(entry.jitter.into()),
        train: (entry.train > 0).then(|| Rate::from_bits_per_sec(u64::from(entry.train) * 1000)),
    })
}
