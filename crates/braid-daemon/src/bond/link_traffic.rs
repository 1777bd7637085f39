//! Rates of the bond's links, for the capacities of their uplinks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use braid_bond::io::{LinkStatus, Traffic};
use braid_core::Rate;
use braid_multipath::LinkId;

/// Rates of a link between two looks at its counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkTraffic {
    /// Rate to send, with IP and UDP headers.
    pub tx: Rate,
    /// The same to receive.
    pub rx: Rate,
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
    let [tx, rx] = [(link.sent, before[0]), (link.received, before[1])].map(|(now, before)| {
        let bytes = since(now, before) as f64;
        Rate::from_bits_per_sec((bytes * 8.0 / span.as_secs_f64()) as u64)
    });
    LinkTraffic { tx, rx }
}

/// Returns the bytes that were added to a counter; all of it if it has begun anew.
fn since(now: Traffic, before: Traffic) -> u64 {
    let (now, before) = (now.bytes.get(), before.bytes.get());
    now.checked_sub(before).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use braid_core::Bytes;

    use super::*;

    fn link(id: u8, sent: u64, received: u64) -> LinkStatus {
        let traffic = |bytes| Traffic {
            packets: 0,
            bytes: Bytes::new(bytes),
        };
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
            queue: Duration::ZERO,
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
        let carried = |tx, rx| LinkTraffic {
            tx: Rate::from_bits_per_sec(tx),
            rx: Rate::from_bits_per_sec(rx),
        };
        assert_eq!(meter.note(start, &[link(1, 5000, 900_000)]), []);
        let second = [link(1, 5250, 1_025_000), link(2, 900, 900)];
        let found = meter.note(after(100), &second);
        assert_eq!(found, [(LinkId(1), carried(20_000, 10_000_000))]);
        assert_eq!(meter.note(after(100), &second), found, "no new look");
        // Nothing moved on the first, and the second has begun anew.
        let third = [link(1, 5250, 1_025_000), link(2, 250, 0)];
        let found = meter.note(after(300), &third);
        assert_eq!(
            found,
            [(LinkId(1), carried(0, 0)), (LinkId(2), carried(10_000, 0))]
        );
    }
}
