//! Timers of a tunnel.

use std::time::Duration;

use braid_core::Time;
use braid_multipath::liveness::Verdict;
use braid_multipath::{LinkId, MAX_LINKS};

use super::client::HandshakeClient;
use super::{Event, Tunnel, push};
use crate::proto::session::Session;

/// Silence on all links after which a client begins a new handshake: the hub may have lost the
/// session, and its reset may be lost.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);

impl Tunnel {
    /// The time at which [`Tunnel::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let links = self.links.iter().flatten();
        let links = links.flat_map(|link| {
            let probes = link.mtu.poll_timeout().filter(|_| link.in_use);
            [link.probe_timeout(), probes, link.path.poll_timeout()]
        });
        let session = self.replay_guard.keys.peek();
        let links = links.flatten().filter(|_| session.is_some());
        // Without keys, as after a close by the hub, a handshake is due at once.
        let rekey = session.map_or(Time::ZERO, |session| session.rekey_at(self.busy));
        let client = self.client.as_ref();
        let can = self.closing.is_none() && self.links.iter().any(Option::is_some);
        let rests = client.is_some_and(|client| !client.is_running());
        let rekey = Some(rekey).filter(|_| can && rests);
        links
            .chain(rekey)
            .chain(client.and_then(HandshakeClient::poll_timeout))
            .chain(self.sender.poll_timeout().filter(|_| session.is_some()))
            .chain(self.receiver.poll_timeout())
            .chain(self.receiver.next_report())
            .chain(self.ack_filter.poll_timeout())
            .chain(self.bulk_ack_filter.poll_timeout())
            .chain(self.delivery_pacer.poll_timeout())
            .chain(self.policy_timeout().filter(|_| session.is_some()))
            .chain(self.gre_probe_timeout().filter(|_| session.is_some()))
            .min()
    }

    /// Does everything that is due. Early and repeated calls are harmless.
    pub fn handle_timeout(&mut self, now: Time) {
        self.sender.handle_timeout(now);
        self.receiver.handle_timeout(now);
        self.ack_filter.handle_timeout(now);
        self.bulk_ack_filter.handle_timeout(now);
        self.send_acks(now);
        self.rebuild(now);
        self.replay_guard.keys.handle_timeout(now);
        self.send_pool.handle_timeout(now);
        self.receive_pool.handle_timeout(now);
        self.handle_changes(now);
        self.queue_reports(now);
        self.renew(now);
    }

    /// Begins handshakes that are due.
    fn renew(&mut self, now: Time) {
        let silent = now.since(self.last_received) >= SILENCE_TIMEOUT && self.is_silent();
        let alive = self.replay_guard.keys.current(now).is_some();
        let session = self.replay_guard.keys.peek();
        let has_links = self.links.iter().flatten().next().is_some();
        let due = session.is_none_or(|session| session.is_rekey_due(now, self.busy));
        let continues = session.filter(|_| alive).map(Session::peer);
        let Some(client) = self.client.as_mut().filter(|_| has_links) else {
            return;
        };
        if client.handle_timeout(now, &mut self.entropy) {
            push(&mut self.events, Event::HandshakeTimeout);
        }
        if (due || silent || !alive) && self.closing.is_none() {
            client.ensure_running(now, continues, &mut self.entropy);
        }
    }

    /// Returns true if no link in use works: one in quarantine gets no reports of a hub that has lost the session either.
    fn is_silent(&self) -> bool {
        let in_use = |id: &u8| {
            self.links[usize::from(*id)]
                .as_ref()
                .is_some_and(|l| l.in_use)
        };
        let verdicts = (0..MAX_LINKS as u8)
            .filter(in_use)
            .filter_map(|id| self.sender.link(LinkId(id)))
            .map(|(_, liveness)| liveness.verdict());
        let is_out = |verdict| matches!(verdict, Verdict::Suspect | Verdict::Quarantined);
        let mut verdicts = verdicts.peekable();
        verdicts.peek().is_some() && verdicts.all(is_out)
    }
}
