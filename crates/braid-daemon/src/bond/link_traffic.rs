//! What the bond's links carry, for the capacities of their uplinks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use braid_bond::io::{LinkStatus, Traffic};
use braid_core::Rate;
use braid_multipath::LinkId;

/// Packets in a direction from which on their delay shows a queue: less is feedback, which comes
/// when it pleases.
const MIN_PACKETS: u64 = 6;

/// What a link has carried between two looks at its counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkTraffic {
    /// Rate to send, with IP and UDP headers.
    pub tx: Rate,
    /// The same to receive.
    pub rx: Rate,
    /// The longer one of the line's two queues; `None` if nothing moved that shows it.
    pub queueing: Option<Duration>,
}

/// Counters of the links when they were last looked at.
#[derive(Debug, Default)]
pub(crate) struct LinkMeter {
    taken: Option<Instant>,
    counters: BTreeMap<LinkId, [Traffic; 2]>,
    traffic: Vec<(LinkId, LinkTraffic)>,
}

impl LinkMeter {
    /// Takes the links as they were at `taken`, and returns what they have carried since the look
    /// before: the same again if there is no new one.
    pub fn note(&mut self, taken: Instant, links: &[LinkStatus]) -> Vec<(LinkId, LinkTraffic)> {
        let before = self.taken.replace(taken);
        let span = before.map_or(Duration::ZERO, |at| taken.saturating_duration_since(at));
        if before.is_none() || !span.is_zero() {
            let carried = |link: &LinkStatus| {
                let before = self.counters.get(&link.id)?;
                Some((link.id, traffic(link, before, span)))
            };
            self.traffic = links.iter().filter_map(carried).collect();
            let counters = |link: &LinkStatus| (link.id, [link.sent, link.received]);
            self.counters = links.iter().map(counters).collect();
        }
        self.traffic.clone()
    }
}

fn traffic(link: &LinkStatus, before: &[Traffic; 2], span: Duration) -> LinkTraffic {
    let [sent, received] = [(link.sent, before[0]), (link.received, before[1])].map(since);
    let rate =
        |bytes: u64| Rate::from_bits_per_sec((bytes as f64 * 8.0 / span.as_secs_f64()) as u64);
    let queue = |packets, queue| (packets >= MIN_PACKETS).then_some(queue);
    LinkTraffic {
        tx: rate(sent.1),
        rx: rate(received.1),
        queueing: queue(sent.0, link.queue).max(queue(received.0, link.received_queue)),
    }
}

/// Returns the packets and bytes that were added to a counter; all of it if it has begun anew.
fn since((now, before): (Traffic, Traffic)) -> (u64, u64) {
    let more = |now: u64, before| now.checked_sub(before).unwrap_or(now);
    let bytes = more(now.bytes.get(), before.bytes.get());
    (more(now.packets, before.packets), bytes)
}

#[cfg(test)]
mod tests {
    use braid_core::Bytes;

    use super::*;

    fn link(id: u8, sent: [u64; 2], received: [u64; 2], queues: [u64; 2]) -> LinkStatus {
        let traffic = |[packets, bytes]: [u64; 2]| Traffic {
            packets,
            bytes: Bytes::new(bytes),
        };
        let [queue, received_queue] = queues.map(Duration::from_millis);
        LinkStatus {
            id: LinkId(id),
            remote: None,
            max_payload_bytes: 1400,
            in_use: true,
            cleartext: false,
            verdict: None,
            rate: Rate::from_bits_per_sec(0),
            delivered: None,
            rtt: None,
            owd_skew: None,
            queue,
            received_queue,
            jitter: Duration::ZERO,
            loss_fast: 0.0,
            loss_slow: 0.0,
            lost_random: 0,
            lost_congestive: 0,
            share: 0.0,
            sent: traffic(sent),
            received: traffic(received),
            late: 0,
            duplicates: 0,
            gaps_expired: 0,
            send_errors: 0,
            bulk_flows: None,
            error: None,
        }
    }

    #[test]
    fn rates_are_those_between_two_looks() {
        let (mut meter, start) = (LinkMeter::default(), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        let first = [link(1, [50, 5000], [900, 900_000], [0, 0])];
        assert_eq!(meter.note(start, &first), []);
        let second = [
            link(1, [53, 5250], [1000, 1_025_000], [40, 9]),
            link(2, [9, 900], [9, 900], [1, 1]),
        ];
        let found = meter.note(after(100), &second);
        let expected = LinkTraffic {
            tx: Rate::from_bits_per_sec(20_000),
            rx: Rate::from_bits_per_sec(10_000_000),
            // Three packets show no queue.
            queueing: Some(Duration::from_millis(9)),
        };
        assert_eq!(found, [(LinkId(1), expected)]);
        assert_eq!(meter.note(after(100), &second), found, "no new look");
        // Nothing moved on the first, and the second has begun anew.
        let third = [second[0].clone(), link(2, [6, 250], [0, 0], [7, 0])];
        let [idle, anew] = meter.note(after(300), &third)[..] else {
            panic!("two links")
        };
        assert_eq!(
            (idle.1.rx, idle.1.queueing),
            (Rate::from_bits_per_sec(0), None)
        );
        assert_eq!(anew.1.tx, Rate::from_bits_per_sec(10_000));
        assert_eq!(anew.1.queueing, Some(Duration::from_millis(7)));
    }
}
