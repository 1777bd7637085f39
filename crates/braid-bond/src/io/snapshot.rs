//! Status of a tunnel, read from its parts.

use braid_core::{Rate, Time};
use braid_multipath::{LinkId, MAX_LINKS};

use super::{FlowStatus, LinkStatus, RttStatus, SessionStatus, Traffic};
use crate::proto::tunnel::Tunnel;

/// Window of a link's share.
const SHARE_WINDOW: std::time::Duration = std::time::Duration::from_secs(1);

/// Datagrams of each link, and its recent share.
#[derive(Debug, Default)]
pub(super) struct LinkShares {
    pub sent: [Traffic; MAX_LINKS],
    pub received: [Traffic; MAX_LINKS],
    /// Bytes sent at the begin of the current window and of the previous one.
    marks: [[u64; MAX_LINKS]; 2],
    begun: Time,
}

impl LinkShares {
    /// Begins a new window if it is time.
    pub fn rotate(&mut self, now: Time) {
        let past = now.since(self.begun);
        if past >= SHARE_WINDOW {
            self.marks[1] = self.marks[0];
            self.marks[0] = self.sent.map(|sent| sent.bytes.get());
            if past >= 2 * SHARE_WINDOW {
                self.marks[1] = self.marks[0];
            }
            self.begun = now;
        }
    }

    /// A link's share of the bytes sent in the current and the previous window.
    pub fn of(&self, link: LinkId) -> f64 {
        let since = |index: usize| {
            self.sent[index]
                .bytes
                .get()
                .saturating_sub(self.marks[1][index])
        };
        let all: u64 = (0..MAX_LINKS).map(since).sum();
        match all {
            0 => 0.0,
            _ => since(link.index()) as f64 / all as f64,
        }
    }
}

pub(super) fn session(now: Time, tunnel: &Tunnel) -> Option<SessionStatus> {
    let session = tunnel.session()?;
    Some(SessionStatus {
        age: now.since(session.made()),
        since_received: now.since(tunnel.last_received()),
        cipher: session.cipher(),
    })
}

/// Status of every link of the tunnel.
pub(super) fn links(now: Time, tunnel: &Tunnel, shares: &LinkShares) -> Vec<LinkStatus> {
    let base = |id: LinkId| tunnel.sender().link(id)?.0.base(now);
    let fastest = tunnel.links().filter_map(base).min();
    let status = |id: LinkId| {
        let counters = tunnel.receiver().counters();
        let index = id.index();
        let mut status = LinkStatus {
            id,
            remote: tunnel.remote(id),
            max_payload_bytes: tunnel.max_payload(id).unwrap_or_default(),
            in_use: tunnel.is_in_use(id),
            cleartext: tunnel.is_cleartext(id),
            verdict: None,
            rate: Rate::from_bits_per_sec(0),
            delivered: None,
            rtt: None,
            owd_skew: None,
            queue: std::time::Duration::ZERO,
            jitter: std::time::Duration::ZERO,
            loss_fast: 0.0,
            loss_slow: 0.0,
            lost_random: 0,
            lost_congestive: 0,
            share: shares.of(id),
            sent: shares.sent[index],
            received: shares.received[index],
            late: counters.late[index],
            duplicates: counters.duplicates[index],
            gaps_expired: counters.expired[index],
            send_errors: 0,
            bulk_flows: tunnel.sender().bulk_flows(id),
            error: None,
        };
        if let Some((link, liveness)) = tunnel.sender().link(id) {
            let rtt = link.rtt();
            status.verdict = Some(liveness.verdict());
            status.rate = link.rate();
            status.delivered = link.delivered();
            status.rtt = rtt.is_known().then(|| RttStatus {
                smoothed: rtt.smoothed(),
                variation: rtt.variation(),
                min: rtt.min(),
            });
            let own = link.base(now);
            status.owd_skew = own.zip(fastest).map(|(own, fastest)| own.over(fastest));
            status.queue = link.queue();
            status.jitter = link.jitter();
            status.loss_fast = link.loss().fast();
            status.loss_slow = link.loss().slow();
            status.lost_random = link.loss().random();
            status.lost_congestive = link.loss().congestive();
        }
        status
    };
    tunnel.links().map(status).collect()
}

pub(super) fn flow(tunnel: &Tunnel) -> FlowStatus {
    let counters = tunnel.receiver().counters();
    let (backlog_packets, backlog_bytes) = tunnel.sender().backlog();
    let (dropped, marked, overflowed) = tunnel.sender().drops();
    FlowStatus {
        reorder_delay_p50: tunnel.reorder_delay().quantile(0.5),
        reorder_delay_p99: tunnel.reorder_delay().quantile(0.99),
        in_order: counters.in_order,
        held: counters.held,
        unordered: counters.unordered,
        known_lost: counters.known_lost,
        expired: counters.expired.iter().sum(),
        forced: counters.forced,
        backlog_packets: backlog_packets as u64,
        backlog_bytes,
        dropped,
        marked,
        overflowed,
        lowered_windows: tunnel.lowered_windows(),
        spurious_retransmissions: tunnel.spurious_retransmissions(),
        repaired: tunnel.sender().retransmitted(),
        saved: tunnel.saved(),
        rejects: *tunnel.rejects(),
    }
}
