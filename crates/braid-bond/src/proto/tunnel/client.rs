//! The initiator's handshakes: start, links, and repetition.

use std::time::Duration;

use braid_core::Time;
use braid_multipath::LinkId;

use crate::proto::entropy::Entropy;
use crate::proto::handshake::terms::{Capabilities, Refusal};
use crate::proto::handshake::{
    Attempt, Ciphers, Established, HandshakeError, Identity, Options, Psk, PublicKey, Start,
};
use crate::proto::packet::SessionIndex;

/// Time before the first repetition of message 1, doubled each time up to [`MAX_RETRY_DELAY`].
const MIN_RETRY: Duration = Duration::from_millis(250);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(4);

/// Time after which a new handshake replaces an unanswered one: its contents may be why nobody
/// answers.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a refusal: the hub's operator may change their mind, but not at once.
const REFUSAL_BACKOFF: Duration = Duration::from_secs(30);

/// Corrections of the clock by the hub before a session: one for a clock that is behind, one for a
/// clock that is ahead, and as many again for changes meanwhile.
const MAX_CLOCK_CORRECTIONS: u32 = 4;

/// Identity of the initiator, and its hub.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// The initiator's key pair.
    pub identity: Identity,
    /// The hub's public key.
    pub hub: PublicKey,
    /// Pre-shared key; the default is none.
    pub psk: Psk,
    /// Ciphers for data.
    pub ciphers: Ciphers,
    /// Options for the hub.
    pub options: Options,
    /// True if data is to be sent in cleartext, as GRE, provided that the hub wants that too.
    pub gre: bool,
    /// µs since 1970 at [`Time::ZERO`]; a wrong clock costs a round trip at most.
    pub unix_micros: u64,
}

#[derive(Debug)]
struct RunningAttempt {
    attempt: Attempt,
    begun: Time,
    repeat: Duration,
    due: Time,
    /// Links on which message 1 is still to be sent, one bit each.
    links: u32,
    /// Links on which a cookie was answered since message 1 last went out on all, one bit each.
    /// Anybody who sees message 1 can make cookie replies, so only one per link is answered.
    proved: u32,
    /// True if somebody says that the hub's key was replaced.
    noticed: bool,
}

/// Runs the initiator's handshakes.
#[derive(Debug)]
pub(super) struct HandshakeClient {
    settings: ClientSettings,
    running: Option<RunningAttempt>,
    /// The time of an initiation must exceed this.
    floor: u64,
    /// Corrections of the clock since the last session.
    corrections: u32,
    /// End of the pause after a refusal.
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

    /// Begins a handshake, unless one is in progress or the hub has refused a moment ago.
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

    /// Replaces a handshake in progress, because others may have its keys.
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
            repeat: MIN_RETRY,
            due: now + MIN_RETRY,
            links: u32::MAX,
            proved: 0,
            noticed: false,
        });
    }

    /// Returns true if a handshake is in progress, or none may begin yet.
    pub fn is_running(&self) -> bool {
        self.running.is_some() || self.backoff_until.is_some()
    }

    /// The next message 1 and its link; `usable` are the links with an address.
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

    /// Sends the handshake in progress on a new link as well.
    pub fn handle_link(&mut self, link: LinkId) {
        if let Some(running) = &mut self.running {
            running.links |= 1 << link.0;
        }
    }

    /// Repeats message 1, or begins a new handshake. Returns true if one was given up.
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
        running.repeat = (running.repeat * 2).min(MAX_RETRY_DELAY);
        running.due = now + running.repeat;
        running.links = u32::MAX;
        running.proved = 0;
        false
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        let due = self.running.as_ref().map(|running| running.due);
        due.or(self.backoff_until)
    }

    /// Handles message 2. Returns none if the hub has corrected the clock: then a new handshake is
    /// in progress.
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

    /// Adapts the clock: the hub wants a time just beyond `theirs`, and got `ours`.
    fn correct_clock(&mut self, now: Time, ours: u64, theirs: u64) {
        if theirs < ours {
            // This clock is ahead of all times that the hub accepts: from now on the hub's counts.
            self.settings.unix_micros = theirs.saturating_sub(now.as_nanos() / 1000);
        }
        self.floor = theirs;
    }

    /// Handles a notice that the hub's key was replaced. Returns true if it is the first for this
    /// handshake.
    pub fn handle_retired(&mut self, datagram: &[u8]) -> Result<bool, HandshakeError> {
        let running = self.running.as_mut().ok_or(HandshakeError::Mac)?;
        if !running.attempt.is_notice_of_retired_key(datagram) {
            return Err(HandshakeError::Forged);
        }
        Ok(!std::mem::replace(&mut running.noticed, true))
    }

    /// Uses this key of the hub from now on, in a new handshake.
    pub fn set_hub(
        &mut self,
        now: Time,
        hub: PublicKey,
        continues: Option<SessionIndex>,
        entropy: &mut Entropy,
    ) {
        if self.settings.hub != hub {
            self.settings.hub = hub;
            self.backoff_until = None;
            self.restart(now, continues, entropy);
        }
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
