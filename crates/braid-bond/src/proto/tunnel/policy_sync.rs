//! Transfer of a client's policy to the hub.

use std::time::Duration;

use braid_core::Time;
use braid_multipath::LinkId;

use super::{Datagram, Event, Tunnel, TunnelSettings, push};
use crate::proto::frame::{Frame, PolicyAck, PolicyFragment};
use crate::proto::policy::{MAX_POLICY_BYTES, Policy};

/// Bytes of a policy in one packet, which fits every link.
const FRAGMENT_SIZE: usize = 1000;

/// Most fragments of a policy.
const MAX_FRAGMENTS: usize = 16;

/// The longest policy fits.
const _: () = assert!(MAX_POLICY_BYTES <= FRAGMENT_SIZE * MAX_FRAGMENTS);

/// Time before the first repetition of an unacknowledged policy, doubled each time up to
/// [`MAX_RETRY_DELAY`].
const MIN_RETRY: Duration = Duration::from_millis(250);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// State of the policy at the hub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyStatus {
    /// There was nothing to send: both ends use the default.
    #[default]
    Unsent,
    /// The hub has not answered yet.
    Pending,
    /// The hub applies it.
    Applied,
    /// The hub does not understand it, being of another version.
    Rejected,
    /// The hub's version does not support policies.
    Unsupported,
}

/// The client's side.
#[derive(Debug, Default)]
pub(super) struct PolicySender {
    version: u64,
    bytes: Vec<u8>,
    status: PolicyStatus,
    /// The next fragment to send, and its time.
    fragment: usize,
    due: Option<Time>,
    repeat: Duration,
    /// Complete transmissions: each goes over the next link, since one may be dead.
    rounds: usize,
}

impl PolicySender {
    /// Sends this policy from now on, if it is a new one.
    fn set(&mut self, policy: &Policy) {
        let mut bytes = Vec::new();
        policy.append(&mut bytes);
        let is_told = self.version > 0 || *policy != Policy::default();
        if is_told && bytes != self.bytes {
            self.version += 1;
            self.bytes = bytes;
            self.begin();
        }
    }

    /// The hub has no policy, or an older one.
    fn begin(&mut self) {
        if self.version == 0 {
            return;
        }
        self.status = PolicyStatus::Pending;
        self.fragment = 0;
        self.due = Some(Time::ZERO);
        self.repeat = MIN_RETRY;
        self.rounds = 0;
    }

    fn handle_ack(&mut self, ack: PolicyAck) {
        if ack.version == self.version {
            self.due = None;
            self.status = match ack.applied {
                true => PolicyStatus::Applied,
                false => PolicyStatus::Rejected,
            };
        }
    }

    fn handle_sent(&mut self, now: Time) {
        self.fragment += 1;
        if self.fragment * FRAGMENT_SIZE >= self.bytes.len() {
            self.fragment = 0;
            self.rounds += 1;
            self.due = Some(now + self.repeat);
            self.repeat = (self.repeat * 2).min(MAX_RETRY_DELAY);
        }
    }
}

/// The hub's side.
#[derive(Debug, Default)]
pub(super) struct PolicyReceiver {
    /// The newest complete policy, and whether it is applied.
    known: Option<PolicyAck>,
    /// Version of the policy that is being received.
    version: u64,
    parts: Vec<Option<Vec<u8>>>,
}

impl PolicyReceiver {
    /// Handles a fragment; returns the policy's bytes once it is complete.
    fn take(&mut self, fragment: &PolicyFragment<'_>) -> Option<Vec<u8>> {
        let known = self.known.map_or(0, |known| known.version);
        let is_news = fragment.version > known && fragment.version >= self.version;
        let fits =
            usize::from(fragment.last) < MAX_FRAGMENTS && fragment.content.len() <= FRAGMENT_SIZE;
        if !is_news || !fits {
            return None;
        }
        let count = usize::from(fragment.last) + 1;
        if fragment.version > self.version || self.parts.len() != count {
            self.version = fragment.version;
            self.parts = vec![None; count];
        }
        self.parts[usize::from(fragment.fragment)] = Some(fragment.content.to_vec());
        if self.parts.iter().any(Option::is_none) {
            return None;
        }
        let parts = std::mem::take(&mut self.parts);
        Some(parts.into_iter().flatten().flatten().collect())
    }
}

impl Tunnel {
    /// Changes the treatment of packets, here and at the hub. [`TunnelSettings::receiver`] counts
    /// from the next session on.
    pub fn set_settings(&mut self, settings: TunnelSettings) {
        self.sender.set_scheduler(settings.policy.scheduler());
        self.receiver.set_reordering(settings.policy.ordering);
        self.sender
            .set_max_extra_delay(settings.policy.extra_delay());
        self.settings = settings;
        self.update_policy();
    }

    /// State of the policy at the hub.
    #[must_use]
    pub fn policy_status(&self) -> PolicyStatus {
        self.policy_sender.status
    }

    pub(super) fn update_policy(&mut self) {
        if self.is_client() {
            self.policy_sender.set(&self.settings.policy);
            self.note_unsupported_policy();
        }
    }

    /// A session has begun in which the hub has no policy.
    pub(super) fn resend_policy(&mut self) {
        self.policy_sender.begin();
    }

    /// Stops waiting for a hub that does not support policies, as its session shows.
    pub(super) fn note_unsupported_policy(&mut self) {
        let is_unsupported = self.session().is_some() && !self.peer.policy;
        if is_unsupported && self.policy_sender.status == PolicyStatus::Pending {
            self.policy_sender.status = PolicyStatus::Unsupported;
            push(
                &mut self.events,
                Event::PolicyStatus(PolicyStatus::Unsupported),
            );
        }
    }

    pub(super) fn policy_timeout(&self) -> Option<Time> {
        let due = self.policy_sender.due?;
        let can = self.peer.policy && self.policy_link().is_some();
        can.then_some(due)
    }

    fn policy_link(&self) -> Option<LinkId> {
        self.nth_link(self.policy_sender.rounds)
    }

    pub(super) fn poll_policy(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Datagram> {
        self.policy_timeout().filter(|due| now >= *due)?;
        let id = self.policy_link()?;
        let to = self.remote(id)?;
        let policy_sender = &self.policy_sender;
        let last = policy_sender.bytes.len().div_ceil(FRAGMENT_SIZE) - 1;
        let bytes = policy_sender
            .bytes
            .chunks(FRAGMENT_SIZE)
            .nth(policy_sender.fragment)?
            .to_vec();
        let frame = Frame::Policy(PolicyFragment {
            version: policy_sender.version,
            fragment: policy_sender.fragment as u8,
            last: last as u8,
            content: &bytes,
        });
        self.policy_sender.handle_sent(now);
        self.send(now, id, to, &[frame], out)
    }

    /// Only a client sends a policy.
    pub(super) fn handle_policy(&mut self, id: LinkId, fragment: &PolicyFragment<'_>) {
        if self.is_client() {
            return;
        }
        if let Some(bytes) = self.policy_receiver.take(fragment) {
            let policy = Policy::parse(&bytes).ok();
            self.policy_receiver.known = Some(PolicyAck {
                version: fragment.version,
                applied: policy.is_some(),
            });
            if let Some(policy) = policy {
                let settings = TunnelSettings {
                    policy,
                    ..self.settings.clone()
                };
                self.set_settings(settings);
            }
        }
        let known = self.policy_receiver.known;
        if let Some(known) = known.filter(|known| known.version == fragment.version) {
            self.on(id, |link| link.policy_ack = Some(known));
        }
    }

    pub(super) fn handle_policy_ack(&mut self, ack: PolicyAck) {
        let before = self.policy_sender.status;
        self.policy_sender.handle_ack(ack);
        if self.policy_sender.status != before {
            push(
                &mut self.events,
                Event::PolicyStatus(self.policy_sender.status),
            );
        }
    }
}
