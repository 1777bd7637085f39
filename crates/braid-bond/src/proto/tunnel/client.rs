//! The initiator's handshakes: when they begin, on which links, and how often they are repeated.

use std::time::Duration;

use crate::proto::entropy::Entropy;
use crate::proto::handshake::terms::{Capabilities, Refusal};
use crate::proto::handshake::{
    Attempt, Ciphers, Established, HandshakeError, Identity, Options, Psk, PublicKey, Start,
};
use crate::proto::packet::SessionIndex;
use braid_core::{LinkId, Time};

/// First repetition of message 1, doubled each time up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(4);

/// After this a handshake begins anew: what kept it from being answered may have been in it.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

/// After a refusal nothing is asked for so long: whoever runs the hub may change their mind, but not
/// at once.
const REFUSAL_BACKOFF: Duration = Duration::from_secs(30);

/// The hub may correct our clock so often before a session: once for a clock that is behind, once for one
/// that is ahead, and as often again for what happens meanwhile.
const MAX_CLOCK_CORRECTIONS: u32 = 4;

/// Who the initiator is, and whom it calls.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// Who we are.
    pub identity: Identity,
    /// Whom we call.
    pub hub: PublicKey,
    /// What both were given beforehand; the default is none.
    pub psk: Psk,
    /// What to seal data with.
    pub ciphers: Ciphers,
    /// What to tell the hub.
    pub options: Options,
    /// Whether data is to go in the clear, as GRE, if the hub wants that too.
    pub gre: bool,
    /// µs since 1970 at [`Time::ZERO`]; a clock that is wrong costs a round trip at most.
    pub unix_micros: u64,
}

#[derive(Debug)]
struct RunningAttempt {
    attempt: Attempt,
    begun: Time,
    repeat: Duration,
    due: Time,
    /// Links that message 1 is yet to go out on, one bit each.
    links: u32,
    /// Links on which a cookie was answered since message 1 last went out on all, one bit each. Anybody
    /// who sees message 1 can make cookie replies: more of them are not answered.
    proved: u32,
}

/// Begins handshakes.
#[derive(Debug)]
pub(super) struct HandshakeClient {
    settings: ClientSettings,
    running: Option<RunningAttempt>,
    /// No initiation may have a time up to this.
    floor: u64,
    /// Corrections of the clock since the last session.
    corrections: u32,
    /// The hub has refused; until then it is not asked again.
    backoff_until: Option<Time>,
}

impl HandshakeClient {
    pub fn new(mut settings: ClientSettings) -> Self {
        let capabilities = Capabilities {
            gre: settings.gre,
            ..Capabilities::OURS
        };
        capabilities.append(&mut settings.options);
        HandshakeClient {
            settings,
            running: None,
            floor: 0,
            corrections: 0,
            backoff_until: None,
        }
    }

    /// Begins a handshake, unless one is under way or the hub has refused a moment ago.
    pub fn ensure_running(
        &mut self,
        now: Time,
        continues: Option<SessionIndex>,
        entropy: &mut Entropy,
    ) {
        if self.running.is_none() && self.backoff_until.is_none() {
            self.begin(now, continues, entropy);
        }
    }

    /// Begins a handshake in the place of one that is under way: its keys may not be ours alone any more.
    pub fn restart(&mut self, now: Time, continues: Option<SessionIndex>, entropy: &mut Entropy) {
        self.running = None;
        self.ensure_running(now, continues, entropy);
    }

    fn begin(&mut self, now: Time, continues: Option<SessionIndex>, entropy: &mut Entropy) {
        let clock = self
            .settings
            .unix_micros
            .saturating_add(now.as_nanos() / 1000);
        let micros = clock.max(self.floor.saturating_add(1));
        self.floor = micros;
        let index = std::iter::repeat_with(|| SessionIndex::new(entropy.bytes()));
        let start = Start {
            index: index.flatten().next().expect("few bytes are all zero"),
            continues,
            micros,
            ciphers: self.settings.ciphers,
            options: self.settings.options.clone(),
        };
        let settings = &self.settings;
        let attempt = Attempt::new(
            &settings.identity,
            settings.hub,
            &settings.psk,
            start,
            entropy,
        );
        self.running = Some(RunningAttempt {
            attempt,
            begun: now,
            repeat: RETRY_MIN,
            due: now + RETRY_MIN,
            links: u32::MAX,
            proved: 0,
        });
    }

    /// Whether a handshake is under way, or none may be begun yet.
    pub fn is_running(&self) -> bool {
        self.running.is_some() || self.backoff_until.is_some()
    }

    /// Message 1, and the link that it is to go out on; `usable` says which have an address.
    pub fn poll(&mut self, usable: u32, out: &mut Vec<u8>) -> Option<LinkId> {
        let running = self.running.as_mut()?;
        let links = running.links & usable;
        if links == 0 {
            return None;
        }
        let link = LinkId(links.trailing_zeros() as u8);
        running.links &= !(1 << link.0);
        running.attempt.append(link, out);
        Some(link)
    }

    /// A link has come: the handshake that is under way goes out on it as well.
    pub fn handle_link(&mut self, link: LinkId) {
        if let Some(running) = &mut self.running {
            running.links |= 1 << link.0;
        }
    }

    /// Repeats message 1, or begins anew. Returns whether a handshake was given up.
    pub fn handle_timeout(&mut self, now: Time, entropy: &mut Entropy) -> bool {
        self.backoff_until = self.backoff_until.filter(|until| now < *until);
        let Some(running) = self.running.as_mut().filter(|running| now >= running.due) else {
            return false;
        };
        if now.since(running.begun) >= ATTEMPT_TIMEOUT {
            let continues = running.attempt.start().continues;
            self.begin(now, continues, entropy);
            return true;
        }
        running.repeat = (running.repeat * 2).min(RETRY_MAX);
        running.due = now + running.repeat;
        running.links = u32::MAX;
        running.proved = 0;
        false
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        let due = self.running.as_ref().map(|running| running.due);
        due.or(self.backoff_until)
    }

    /// Takes message 2. There is no session if the hub has corrected our clock: a new handshake is
    /// under way then.
    pub fn handle_response(
        &mut self,
        now: Time,
        datagram: &[u8],
        entropy: &mut Entropy,
    ) -> Result<Option<Established>, HandshakeError> {
        let running = self.running.as_mut().ok_or(HandshakeError::Mac)?;
        let established = running.attempt.handle_response(now, datagram)?;
        let Some(running) = self.running.take() else {
            return Err(HandshakeError::Mac);
        };
        match Refusal::read(&established.options) {
            Some(Refusal::Clock(micros)) if self.corrections < MAX_CLOCK_CORRECTIONS => {
                let start = running.attempt.start();
                self.corrections += 1;
                self.correct_clock(now, start.micros, micros);
                self.begin(now, start.continues, entropy);
                return Ok(None);
            }
            Some(_) => {
                self.corrections = 0;
                self.backoff_until = Some(now + REFUSAL_BACKOFF);
            }
            None => self.corrections = 0,
        }
        Ok(Some(established))
    }

    /// The hub wants a time just beyond `theirs`, and got `ours`.
    fn correct_clock(&mut self, now: Time, ours: u64, theirs: u64) {
        if theirs < ours {
            // Ours is ahead of anything that the hub takes: from now on it goes by the hub's.
            self.settings.unix_micros = theirs.saturating_sub(now.as_nanos() / 1000);
        }
        self.floor = theirs;
    }

    pub fn handle_cookie(&mut self, datagram: &[u8]) -> Result<(), HandshakeError> {
        let running = self.running.as_mut().ok_or(HandshakeError::Mac)?;
        let link = 1 << running.attempt.handle_cookie(datagram)?.0;
        if running.proved & link == 0 {
            running.proved |= link;
            running.links |= link;
        }
        Ok(())
    }
}
