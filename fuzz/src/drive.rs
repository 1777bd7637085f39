//! Sends packets through an emulated link.

use std::collections::BTreeSet;
use std::time::Duration;

use braid_emulate::{Config, Fate, Link, Time};

/// Packets to send: enough to fill a small queue and to use up several lines of a trace.
const PACKETS: usize = 48;

/// Sends packets whose spacing and sizes derive from `data`, and waits for them by the link's own
/// time-outs. Each leaves the link once, neither before it arrived nor before the last delivered
/// one, unless the link may reorder.
pub(crate) fn drive(config: Config, data: &[u8]) {
    let ordered = !config.delay.reorder;
    let mut link = Link::new(config, 1);
    let mut seen = Seen::default();
    let mut now = Time::ZERO;
    for (number, byte) in (0..PACKETS).zip(data.iter().cycle()) {
        now = now + Duration::from_micros(u64::from(*byte).pow(2));
        link.handle_packet(now, 60 + 6 * u32::from(*byte), number);
        seen.take(&mut link, now, ordered);
    }
    // A time-out may be early once per packet and place: on the wire and in flight.
    for _ in 0..4 * PACKETS {
        match link.poll_timeout() {
            Some(due) if due < Time::from_nanos(u64::MAX) => now = now.max(due),
            _ => break,
        }
        seen.take(&mut link, now, ordered);
    }
    let idle = link
        .poll_timeout()
        .is_none_or(|due| due == Time::from_nanos(u64::MAX));
    assert!(idle, "time-outs lead nowhere at {now:?}");
    let held = link.stats().held.packets;
    let arrived = link.stats().arrived.packets;
    assert!(
        seen.numbers.len() as u64 + held >= arrived,
        "packets vanished"
    );
}

#[derive(Default)]
struct Seen {
    numbers: BTreeSet<usize>,
    last: Time,
}

impl Seen {
    fn take(&mut self, link: &mut Link<usize>, now: Time, ordered: bool) {
        while let Some(output) = link.poll_output(now) {
            assert!(self.numbers.insert(output.packet), "{output:?} came twice");
            assert!(output.arrived <= output.started, "{output:?}");
            assert!(output.started <= output.due, "{output:?}");
            assert!(output.due <= now, "{output:?} came out at {now:?}");
            if ordered && output.fate == Fate::Delivered {
                assert!(self.last <= output.due, "{output:?} after {:?}", self.last);
                self.last = output.due;
            }
        }
    }
}
