//! A client's policy on its way to the hub.

use std::time::Duration;

use super::{Datagram, Event, Settings, Tunnel, push};
use crate::proto::frame::{Frame, PolicyHeard, PolicyPart};
use crate::proto::policy::{POLICY_MAX, Policy};
use braid_core::{LinkId, Time};

/// Bytes of a policy in one packet: it fits whatever a link carries.
const PART: usize = 1000;

/// Parts of a policy at most.
const PARTS: usize = 16;

/// The longest policy fits.
const _: () = assert!(POLICY_MAX <= PART * PARTS);

/// First repetition of a policy that has not been heard, doubled each time up to [`REPEAT_MOST`].
const REPEAT: Duration = Duration::from_millis(250);
const REPEAT_MOST: Duration = Duration::from_secs(5);

/// What the hub has made of the policy that it was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Heard {
    /// There was nothing to tell: both ends do as they do without a word.
    #[default]
    Nothing,
    /// It has not answered yet.
    Waiting,
    /// It does by it.
    Followed,
    /// It was told, and can make nothing of it: it is of another version.
    Refused,
    /// It cannot be told: it is from before there were policies.
    Deaf,
}

/// The client's side.
#[derive(Debug, Default)]
pub(super) struct Saying {
    version: u64,
    bytes: Vec<u8>,
    heard: Heard,
    /// The next part to say, and when.
    part: usize,
    due: Option<Time>,
    repeat: Duration,
    /// How often all of it was said: each time on the next link, since one may be dead.
    rounds: usize,
}

impl Saying {
    /// Says this policy from now on, if it is another one.
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

    /// The hub knows nothing, or nothing of this.
    fn begin(&mut self) {
        if self.version == 0 {
            return;
        }
        self.heard = Heard::Waiting;
        self.part = 0;
        self.due = Some(Time::ZERO);
        self.repeat = REPEAT;
        self.rounds = 0;
    }

    fn handle_heard(&mut self, heard: PolicyHeard) {
        if heard.version == self.version {
            self.due = None;
            self.heard = match heard.followed {
                true => Heard::Followed,
                false => Heard::Refused,
            };
        }
    }

    fn handle_said(&mut self, now: Time) {
        self.part += 1;
        if self.part * PART >= self.bytes.len() {
            self.part = 0;
            self.rounds += 1;
            self.due = Some(now + self.repeat);
            self.repeat = (self.repeat * 2).min(REPEAT_MOST);
        }
    }
}

/// The hub's side.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    /// The newest that was heard whole, and whether it is followed.
    known: Option<PolicyHeard>,
    /// The one that is being heard.
    version: u64,
    parts: Vec<Option<Vec<u8>>>,
}

impl Hearing {
    /// Takes a part; gives the bytes of a policy if all of it has come now.
    fn take(&mut self, part: &PolicyPart<'_>) -> Option<Vec<u8>> {
        let known = self.known.map_or(0, |known| known.version);
        let is_news = part.version > known && part.version >= self.version;
        let fits = usize::from(part.last) < PARTS && part.content.len() <= PART;
        if !is_news || !fits {
            return None;
        }
        let count = usize::from(part.last) + 1;
        if part.version > self.version || self.parts.len() != count {
            self.version = part.version;
            self.parts = vec![None; count];
        }
        self.parts[usize::from(part.part)] = Some(part.content.to_vec());
        if self.parts.iter().any(Option::is_none) {
            return None;
        }
        let parts = std::mem::take(&mut self.parts);
        Some(parts.into_iter().flatten().flatten().collect())
    }
}

impl Tunnel {
    /// Treats packets otherwise from now on, and has the hub do so too. What [`Settings::receiver`] says
    /// changes with the next session.
    pub fn set_settings(&mut self, settings: Settings) {
        self.sender.set_scheduler(settings.policy.scheduler());
        self.receiver.set_reordering(settings.policy.ordering);
        self.settings = settings;
        self.tell_policy();
    }

    /// What the hub has made of the policy.
    #[must_use]
    pub fn heard_policy(&self) -> Heard {
        self.saying.heard
    }

    pub(super) fn tell_policy(&mut self) {
        if self.is_client() {
            self.saying.set(&self.settings.policy);
            self.notice_deafness();
        }
    }

    /// A session has begun in which the hub knows nothing of it.
    pub(super) fn repeat_policy(&mut self) {
        self.saying.begin();
    }

    /// Waits no longer for a hub that, as its session shows, cannot be told.
    pub(super) fn notice_deafness(&mut self) {
        let is_deaf = self.session().is_some() && !self.peer.policy;
        if is_deaf && self.saying.heard == Heard::Waiting {
            self.saying.heard = Heard::Deaf;
            push(&mut self.events, Event::Policy(Heard::Deaf));
        }
    }

    pub(super) fn policy_timeout(&self) -> Option<Time> {
        let due = self.saying.due?;
        let can = self.peer.policy && self.speaking_link().is_some();
        can.then_some(due)
    }

    fn speaking_link(&self) -> Option<LinkId> {
        self.nth_link(self.saying.rounds)
    }

    pub(super) fn poll_policy(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Datagram> {
        self.policy_timeout().filter(|due| now >= *due)?;
        let id = self.speaking_link()?;
        let to = self.remote(id)?;
        let saying = &self.saying;
        let last = saying.bytes.len().div_ceil(PART) - 1;
        let bytes = saying.bytes.chunks(PART).nth(saying.part)?.to_vec();
        let frame = Frame::Policy(PolicyPart {
            version: saying.version,
            part: saying.part as u8,
            last: last as u8,
            content: &bytes,
        });
        self.saying.handle_said(now);
        self.send(now, id, to, &[frame], out)
    }

    /// Only a client has something to say about how it is treated.
    pub(super) fn handle_policy(&mut self, id: LinkId, part: &PolicyPart<'_>) {
        if self.is_client() {
            return;
        }
        if let Some(bytes) = self.hearing.take(part) {
            let policy = Policy::parse(&bytes).ok();
            self.hearing.known = Some(PolicyHeard {
                version: part.version,
                followed: policy.is_some(),
            });
            if let Some(policy) = policy {
                let settings = Settings {
                    policy,
                    ..self.settings.clone()
                };
                self.set_settings(settings);
            }
        }
        let known = self.hearing.known;
        if let Some(known) = known.filter(|known| known.version == part.version) {
            self.on(id, |link| link.heard = Some(known));
        }
    }

    pub(super) fn handle_policy_heard(&mut self, heard: PolicyHeard) {
        let before = self.saying.heard;
        self.saying.handle_heard(heard);
        if self.saying.heard != before {
            push(&mut self.events, Event::Policy(self.saying.heard));
        }
    }
}
