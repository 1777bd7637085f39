//! Reports about the hub, from the registry and the packet thread's status.

use std::collections::BTreeMap;

use braid_bond::io::{FlowStatus, HubStatus, LinkStatus, PeerStatus};
use braid_bond::proto::handshake::{ListenerCounters, PublicKey};
use braid_bond::proto::reject::{Reject, Rejects};
use braid_core::Bytes;
use braid_host::report::HealthProblem;
use braid_host::user_error::UserError;

use crate::client::{Client, State};
use crate::client_registry::SPENT_RATE;
use crate::hub::{Hub, ago, is_alive, millis, now};
use crate::report::{
    ClientCounts, ClientReport, ClientsReport, LinkReport, QueueReport, StatusReport,
};

impl Hub {
    /// Reply to `GET /v1/status`.
    ///
    /// # Errors
    /// The hub is ending.
    pub fn status(&mut self) -> Result<StatusReport, UserError> {
        let figures = self.io_status()?;
        let networks = self.registry.pool().networks();
        Ok(StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            key: self.key().to_string(),
            previous_key: self.previous_key(),
            is_sealed: self.registry.is_sealed(),
            listen: self.config.listen.iter().map(ToString::to_string).collect(),
            device: self.config.device.clone(),
            networks: networks.iter().map(ToString::to_string).collect(),
            forward: self.config.forward.name().to_owned(),
            clients: self.counts(&figures),
            handshakes: handshakes(&figures.listener),
            rejected: rejected(&figures),
            unrouted_packets: figures.unrouted,
            health: self.health(),
        })
    }

    fn counts(&self, figures: &HubStatus) -> ClientCounts {
        let mut counts = ClientCounts::default();
        let at = now();
        for client in self.registry.clients() {
            match client.state {
                State::Joined { .. } => counts.joined += 1,
                State::Invited { .. } if client.is_current(at) => counts.invited += 1,
                State::Invited { .. } => {}
                State::Revoked { .. } => counts.revoked += 1,
            }
        }
        let served = figures.peers.iter().filter(|peer| peer.session.is_some());
        let served = served.filter(|peer| self.registry.served(peer.key).is_some());
        counts.connected = served.count() as u64;
        counts
    }

    fn health(&self) -> Vec<HealthProblem> {
        let mut health = Vec::new();
        for (client, address) in self.registry.outside_pool(now()) {
            let name = &client.name;
            health.push(HealthProblem {
                code: "address-outside".to_owned(),
                text: format!(
                    "{name}: its address {address} is not in the pool {} (any more)",
                    self.registry.pool().text()
                ),
                fix: format!("braid hub revoke {name}, and invite it again"),
            });
        }
        for client in self.registry.clients().filter(|client| is_alive(client)) {
            let Some(misuse) = self.registry.misuse(client.id) else {
                continue;
            };
            let name = &client.name;
            health.push(HealthProblem {
                code: "token-misused".to_owned(),
                text: format!(
                    "{name}: another machine came with its token, {} times, last {}; it was refused",
                    misuse.times,
                    ago(misuse.last)
                ),
                fix: format!(
                    "if that was {name} itself, set up anew: braid hub revoke {name}, and invite it \
                     again; else somebody has read the token"
                ),
            });
        }
        health.extend(self.quotas());
        health.extend(self.key_problems());
        for name in self.registry.unknown_names(now()) {
            health.push(HealthProblem {
                code: "no-such-client".to_owned(),
                text: format!("[[client]] {name}: no client has that name (any more)"),
                fix: format!(
                    "braid hub clients lists them: correct the name in the configuration, take the table \
                     out, or invite {name}"
                ),
            });
        }
        if let Some(why) = &self.reload_error {
            health.push(HealthProblem {
                code: "configuration".to_owned(),
                text: format!(
                    "the new configuration is invalid, the old one stays in force: {why}"
                ),
                fix: "correct the file, and send SIGHUP again (systemctl reload braid-hub)"
                    .to_owned(),
            });
        }
        if let Some(why) = &self.gre_error {
            health.push(HealthProblem {
                code: "gre".to_owned(),
                text: format!("gre = true has no effect, all packets stay sealed: {why}"),
                fix: "systemctl edit braid-hub, there [Service] and CapabilityBoundingSet=CAP_NET_RAW, and restart \
                      it; or take gre out of the configuration"
                    .to_owned(),
            });
        }
        if let Some(why) = &self.filter_error {
            health.push(HealthProblem {
                code: "filter".to_owned(),
                text: format!("clients do not reach what the configuration says: {why}"),
                fix: "see that nft works, and send SIGHUP again (systemctl reload braid-hub)"
                    .to_owned(),
            });
        }
        if let Some(why) = self.registry.persist_error() {
            health.push(HealthProblem {
                code: "store".to_owned(),
                text: format!("the store cannot be written, so no client can join, and a revocation is forgotten by a restart: {why}"),
                fix: "see that there is room on the disk, and that it can be written".to_owned(),
            });
        }
        health
    }

    /// Problems of clients without quota left.
    fn quotas(&self) -> Vec<HealthProblem> {
        let spent = self
            .registry
            .clients()
            .filter(|client| self.registry.is_spent(client));
        let line = |client: &Client| {
            let (name, quota) = (&client.name, self.registry.quota(client)?);
            Some(HealthProblem {
                code: "quota-exhausted".to_owned(),
                text: format!(
                    "{name}: its quota of {quota} is used up; it has {SPENT_RATE} until that begins anew"
                ),
                fix: "raise its quota in the configuration, or wait until it begins anew"
                    .to_owned(),
            })
        };
        spent.filter_map(line).collect()
    }

    /// Reply to `GET /v1/clients`.
    ///
    /// # Errors
    /// The hub is ending.
    pub fn clients(&mut self) -> Result<ClientsReport, UserError> {
        let figures = self.io_status()?;
        let peers: BTreeMap<PublicKey, &PeerStatus> =
            figures.peers.iter().map(|peer| (peer.key, peer)).collect();
        let report = |client: &Client| {
            let peer = client.served_key().and_then(|key| peers.get(&key)).copied();
            self.client(client, peer)
        };
        Ok(ClientsReport {
            clients: self.registry.clients().map(report).collect(),
        })
    }

    fn client(&self, client: &Client, peer: Option<&PeerStatus>) -> ClientReport {
        let connected = peer.is_some_and(|peer| peer.session.is_some());
        let key = match client.state {
            State::Joined { key, .. } => Some(key),
            State::Revoked { key, .. } => key,
            State::Invited { .. } => None,
        };
        let links = peer
            .filter(|_| connected)
            .map_or(&[][..], |peer| &peer.links);
        ClientReport {
            name: client.name.to_string(),
            state: client.state_name(now()).to_owned(),
            connected,
            addresses: client.addresses.clone(),
            key: key.map(|key| key.to_string()),
            rate: self.registry.cap(client),
            quota: self.registry.quota(client),
            quota_used_bytes: self.registry.used(client, now()).map(Bytes::get),
            created_unix_ms: millis(client.created),
            expires_unix_ms: match client.state {
                State::Invited { until } => Some(millis(until)),
                _ => None,
            },
            last_seen_unix_ms: client.seen.map(millis),
            rx_bytes: client.received,
            tx_bytes: client.sent,
            spoofed_packets: peer.map_or(0, |peer| peer.spoofed),
            capped_packets: peer.map_or(0, |peer| peer.capped),
            token_misuses: self
                .registry
                .misuse(client.id)
                .map_or(0, |misuse| misuse.times),
            links: links.iter().map(link).collect(),
            queue: peer.filter(|_| connected).map(|peer| queue(&peer.flow)),
        }
    }
}

fn queue(flow: &FlowStatus) -> QueueReport {
    QueueReport {
        backlog_packets: flow.backlog_packets,
        backlog_bytes: flow.backlog_bytes.get(),
        dropped: flow.dropped,
        marked: flow.marked,
        overflowed: flow.overflowed,
        lowered_windows: flow.lowered_windows,
        spurious_retransmissions: flow.spurious_retransmissions,
        retransmitted: flow.repaired,
    }
}

fn link(link: &LinkStatus) -> LinkReport {
    LinkReport {
        id: link.id.0,
        remote: link.remote.map(|remote| remote.to_string()),
        in_use: link.in_use,
        rtt_ms: link.rtt.map(|rtt| rtt.smoothed.as_secs_f64() * 1e3),
        loss: link.loss_fast,
        rate_bit_s: link.rate.bits_per_sec(),
        share: link.share,
        rx_bytes: link.received.bytes.get(),
        tx_bytes: link.sent.bytes.get(),
    }
}

fn handshakes(counters: &ListenerCounters) -> BTreeMap<String, u64> {
    let named = [
        ("accepted", counters.accepted),
        ("refused", counters.refused),
        ("repeated", counters.repeated),
        ("malformed", counters.malformed),
        ("mac", counters.macs_wrong),
        ("cookie", counters.cookies),
        ("limited", counters.limited),
        ("forged", counters.forged),
        ("unknown-key", counters.unknown_peers),
        ("stale", counters.stale),
        ("cipher", counters.ciphers),
        ("reset", counters.resets),
        ("retired-key", counters.retired),
    ];
    named.map(|(name, count)| (name.to_owned(), count)).into()
}

/// Datagrams refused by the server and by its tunnels.
fn rejected(figures: &HubStatus) -> BTreeMap<String, u64> {
    let within = figures.peers.iter().map(|peer| &peer.flow.rejects);
    let all: Vec<&Rejects> = within.chain([&figures.rejects]).collect();
    let count = |reason: Reject| all.iter().map(|rejects| rejects.of(reason)).sum();
    Reject::ALL
        .map(|reason| (reason.name().to_owned(), count(reason)))
        .into()
}
