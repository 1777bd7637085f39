//! Events of the bond's driver and of the lookup of its hub.

use std::net::SocketAddr;
use std::time::Instant;

use braid_bond::io::ClientEvent;
use braid_bond::proto::handshake::PublicKey;
use braid_bond::proto::handshake::terms::{self, Terms};
use braid_bond::proto::tunnel::{Event, PolicyStatus};
use braid_multipath::LinkId;
use braid_multipath::liveness::Verdict;

use super::{Bond, BondChange, BondEvent, KEY_RETIRED, Membership, State};

impl Bond {
    /// Handles an event; returns the changes that a user would notice. The caller updates the uplink registry
    /// afterwards.
    pub fn handle_event(&mut self, now: Instant, events: BondEvent) -> Vec<BondChange> {
        let before = self.state().clone();
        let mut changes = Vec::new();
        match events {
            BondEvent::Driver(event) => self.handle_driver(now, event, &mut changes),
            BondEvent::Hub(found) => self.handle_hub(found),
            BondEvent::Recheck => {}
        }
        let state = self.state_machine.state();
        if before.word() != state.word() {
            changes.push(BondChange::Bond(state.to_string()));
        }
        if let Some(driver) = &self.driver {
            driver.take_flows(state.is_up());
        }
        if matches!(state, State::Stopped(_)) {
            self.driver = None;
            self.policy = None;
        }
        changes
    }

    fn handle_driver(&mut self, now: Instant, event: ClientEvent, changes: &mut Vec<BondChange>) {
        match event {
            ClientEvent::Tunnel(event) => self.handle_tunnel(now, event, changes),
            ClientEvent::LinkFailed { id, error, .. } => {
                let text = format!("bond: {error}");
                changes.extend(self.link_change(id, text.clone()));
                self.errors.insert(id, text);
                self.note_link(now, id, false);
            }
            ClientEvent::LinkRecovered { id } => drop(self.errors.remove(&id)),
            ClientEvent::Failed(error) => self.state_machine.stopped(error.to_string()),
        }
    }

    fn handle_tunnel(&mut self, now: Instant, event: Event, changes: &mut Vec<BondChange>) {
        match event {
            Event::Established { continued, options } => {
                self.state_machine.established();
                self.key_retired = false;
                if let Some(key) = terms::current_key(&options) {
                    self.follow_key(key);
                }
                let terms = Terms::read(&options);
                if !terms.addresses.is_empty() {
                    self.accept(terms);
                }
                if !continued {
                    self.links.fall_silent();
                    self.state_machine.links(now, false);
                    self.follow_links();
                }
            }
            Event::HandshakeTimeout => self.state_machine.unanswered(),
            Event::KeyRetired => {
                if !std::mem::replace(&mut self.key_retired, true) {
                    changes.push(BondChange::Bond(KEY_RETIRED.to_owned()));
                }
            }
            Event::Refused(refusal) => self.state_machine.refused(refusal),
            Event::Closed(reason) => {
                self.links.fall_silent();
                self.state_machine.closed(now, reason);
                self.follow_links();
            }
            Event::LinkUsable(link) => {
                changes.extend(self.link_change(link, "carries packets of the bond".into()));
                self.note_link(now, link, true);
            }
            Event::LinkVerdict(change) => {
                let (works, text) = match change.verdict {
                    Verdict::Active => (true, "carries packets of the bond again"),
                    Verdict::Returning(_) => (true, "is back in the bond, with a part at first"),
                    Verdict::Suspect => (false, "has fallen silent in the bond"),
                    Verdict::Quarantined => (false, "loses too much for the bond"),
                };
                if !matches!(change.verdict, Verdict::Returning(part) if part > 0.2) {
                    changes.extend(self.link_change(change.link, text.to_owned()));
                }
                self.note_link(now, change.link, works);
            }
            Event::PolicyStatus(heard) => {
                let text = unheard(heard).map(str::to_owned);
                changes.extend(text.map(BondChange::Bond));
            }
            Event::PathMigrated { .. } | Event::PayloadIncreased { .. } => {}
        }
    }

    fn link_change(&self, link: LinkId, text: String) -> Option<BondChange> {
        let name = self.links.name_of(link)?;
        Some(BondChange::Link(name.to_owned(), text))
    }

    fn note_link(&mut self, now: Instant, link: LinkId, works: bool) {
        if self.links.note(link, works) {
            self.follow_links();
        }
        self.state_machine.links(now, self.links.any_works());
    }

    fn handle_hub(&mut self, found: Result<Vec<SocketAddr>, String>) {
        match found {
            Ok(found) => {
                self.nowhere = None;
                if self.hub != found {
                    self.hub.clone_from(&found);
                    self.follow_links();
                }
                let known = self
                    .joined
                    .as_ref()
                    .is_some_and(|joined| joined.hub == found);
                self.remember(|joined| joined.hub = found, known);
            }
            Err(why) => {
                tracing::warn!(why, "the hub cannot be looked up");
                self.nowhere = Some(why);
            }
        }
    }

    /// Takes the terms that the hub gives.
    fn accept(&mut self, terms: Terms) {
        let known = |joined: &Membership| joined.accepted && joined.terms == terms;
        let known = self.joined.as_ref().is_some_and(known);
        let accept = |joined: &mut Membership| {
            joined.accepted = true;
            joined.terms = terms;
        };
        self.remember(accept, known);
    }

    /// Takes the hub's new key: it is on disk before it is used. After an error the hub tells it again,
    /// in the next handshake.
    fn follow_key(&mut self, key: PublicKey) {
        let Some(mut joined) = self.joined.clone() else {
            return;
        };
        joined.hub_key = key;
        if let Err(failure) = joined.store(&self.state_dir) {
            tracing::warn!(%failure, "the hub's new key is not on disk, so the old one stays in use");
            self.unwritten = Some(failure);
            return;
        }
        tracing::info!(%key, "the hub has another key");
        self.joined = Some(joined);
        self.unwritten = None;
        if let Some(driver) = &self.driver {
            driver.set_hub(key);
        }
    }

    fn remember(&mut self, change: impl FnOnce(&mut Membership), known: bool) {
        let Some(joined) = self.joined.as_mut().filter(|_| !known) else {
            return;
        };
        change(joined);
        let stored = joined.store(&self.state_dir);
        if let Err(failure) = &stored {
            tracing::warn!(%failure, "cannot save the hub's terms");
        }
        self.unwritten = stored.err();
    }
}

/// Returns the reason that the hub does not treat packets as requested, if there is one.
pub(super) fn unheard(heard: PolicyStatus) -> Option<&'static str> {
    match heard {
        PolicyStatus::Unsupported => {
            Some("the hub is too old to be told how to treat packets: it does as it sees fit")
        }
        PolicyStatus::Rejected => Some(
            "the hub does not understand how packets are to be treated, being of another version: \
             it does as it sees fit",
        ),
        PolicyStatus::Unsent | PolicyStatus::Pending | PolicyStatus::Applied => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_that_is_too_old_is_told_apart_from_one_that_does_not_understand() {
        let text = |heard| unheard(heard).expect("something is amiss");
        assert!(text(PolicyStatus::Unsupported).contains("too old"));
        assert!(text(PolicyStatus::Rejected).contains("another version"));
        assert!(unheard(PolicyStatus::Applied).is_none());
    }
}
