//! Address of a link's other end, and its validation.
//!
//! The address is taken from authentic packets, so a NAT that rebinds or an end that roams needs no
//! handshake. An attacker who copies an authentic packet and sends it from elsewhere must gain
//! nothing, so a new address is challenged, and used only once the response came from there (RFC
//! 9000 §8.2, §9.3); until then packets go to the old one. Only a packet with the highest number so
//! far may bring a new address: a delayed packet from before a move must not move the link back.
//!
//! If no address is known yet, as at a responder, the first one is used at once, for at most
//! [`AMPLIFICATION_LIMIT`] times the bytes that came from it, and challenged.

use std::net::SocketAddr;
use std::time::Duration;

use super::entropy::Entropy;
use super::frame::TOKEN;
use braid_core::Time;

/// Most bytes sent to an unvalidated address, per byte that came from it (RFC 9000 §8.1).
pub const AMPLIFICATION_LIMIT: u64 = 3;

/// Time before the first repetition of a challenge, doubled each time.
pub const CHALLENGE_TIMEOUT: Duration = Duration::from_millis(200);

/// Challenges before a candidate is dropped: 200 ms to 3.2 s apart, 6.2 s in all.
pub const MAX_CHALLENGES: u32 = 5;

/// An address that has not been validated.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    address: SocketAddr,
    token: [u8; TOKEN],
    challenges: u32,
    due: Time,
    received: u64,
    sent: u64,
}

impl Candidate {
    fn allows(&self, bytes: u64) -> bool {
        self.sent + bytes <= AMPLIFICATION_LIMIT * self.received
    }
}

/// Address of a link's other end.
#[derive(Clone, Debug, Default)]
pub struct Path {
    proven: Option<SocketAddr>,
    candidate: Option<Candidate>,
    migrations: u64,
}

impl Path {
    /// A link whose other end is at `address`, from the configuration, or not known yet.
    #[must_use]
    pub fn new(address: Option<SocketAddr>) -> Self {
        Path {
            proven: address,
            ..Path::default()
        }
    }

    /// The address to send `bytes` to; none if no address is known, or if the known one is not
    /// validated and its limit is used up.
    #[must_use]
    pub fn address(&self, bytes: u64) -> Option<SocketAddr> {
        let unproven = self.candidate.filter(|candidate| candidate.allows(bytes));
        let unproven = unproven.map(|candidate| candidate.address);
        self.proven.or(unproven)
    }

    /// The validated address.
    #[must_use]
    pub fn proven(&self) -> Option<SocketAddr> {
        self.proven
    }

    /// Changes of the address.
    #[must_use]
    pub fn migrations(&self) -> u64 {
        self.migrations
    }

    /// Records that `bytes` were sent to `to`.
    pub fn handle_sent(&mut self, to: SocketAddr, bytes: u64) {
        if let Some(candidate) = self.candidate.as_mut().filter(|c| c.address == to) {
            candidate.sent += bytes;
        }
    }

    /// Handles an authentic packet of `bytes` from `from`; `newest`: no packet with a higher number
    /// has come.
    pub fn handle_received(
        &mut self,
        now: Time,
        from: SocketAddr,
        bytes: u64,
        newest: bool,
        entropy: &mut Entropy,
    ) {
        if self.proven == Some(from) {
            // The old address works: the candidate was an attacker, or is gone.
            if newest {
                self.candidate = None;
            }
            return;
        }
        if let Some(candidate) = self.candidate.as_mut().filter(|c| c.address == from) {
            candidate.received += bytes;
        } else if newest {
            self.candidate = Some(Candidate {
                address: from,
                token: entropy.bytes(),
                challenges: 0,
                due: now,
                received: bytes,
                sent: 0,
            });
        }
    }

    /// The challenge to send now, and its destination. The caller announces the packet by
    /// [`Path::handle_sent`]. A candidate whose limit is used up is not challenged.
    pub fn poll_challenge(&mut self, now: Time, bytes: u64) -> Option<(SocketAddr, [u8; TOKEN])> {
        self.forget(now);
        let candidate = self.candidate.as_mut()?;
        if now < candidate.due {
            return None;
        }
        if !candidate.allows(bytes) {
            candidate.due = now + CHALLENGE_TIMEOUT;
            return None;
        }
        candidate.due = now + CHALLENGE_TIMEOUT * (1 << candidate.challenges);
        candidate.challenges += 1;
        Some((candidate.address, candidate.token))
    }

    fn forget(&mut self, now: Time) {
        self.candidate
            .take_if(|candidate| candidate.challenges == MAX_CHALLENGES && now >= candidate.due);
    }

    /// The time of the next repetition of a challenge.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.candidate.map(|candidate| candidate.due)
    }

    /// Handles the response to a challenge. Returns true if the address changed.
    pub fn handle_response(&mut self, from: SocketAddr, token: [u8; TOKEN]) -> bool {
        let answered = self
            .candidate
            .take_if(|candidate| candidate.address == from && candidate.token == token);
        if answered.is_none() {
            return false;
        }
        self.proven = Some(from);
        self.migrations += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 1000))
    }

    fn after(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn a_new_address_is_used_only_after_it_answered() {
        let mut entropy = Entropy::new(&[1; 32]);
        let mut path = Path::new(Some(at(1)));
        path.handle_received(after(0), at(2), 100, true, &mut entropy);
        assert_eq!(path.address(1500), Some(at(1)));
        let (to, token) = path.poll_challenge(after(0), 40).expect("it is challenged");
        assert_eq!(to, at(2));
        assert!(!path.handle_response(at(2), [0; TOKEN]), "guessed");
        assert!(!path.handle_response(at(3), token), "from elsewhere");
        assert_eq!(path.address(1500), Some(at(1)));
        assert!(path.handle_response(at(2), token));
        assert_eq!(path.address(1500), Some(at(2)));
        assert!(!path.handle_response(at(2), token), "once");
        assert_eq!(path.migrations(), 1);
    }

    #[test]
    fn a_straggler_moves_nothing_and_the_old_address_is_believed() {
        let mut entropy = Entropy::new(&[1; 32]);
        let mut path = Path::new(Some(at(1)));
        path.handle_received(after(0), at(2), 100, false, &mut entropy);
        assert_eq!(path.poll_challenge(after(0), 40), None);
        // An attacker repeats packets from elsewhere, and its copies arrive first.
        path.handle_received(after(1), at(3), 100, true, &mut entropy);
        path.handle_received(after(2), at(1), 100, true, &mut entropy);
        assert_eq!(path.poll_challenge(after(2), 40), None);
    }

    #[test]
    fn an_address_that_has_not_proved_itself_gets_three_times_what_it_sent() {
        let mut entropy = Entropy::new(&[1; 32]);
        let mut path = Path::new(None);
        assert_eq!(path.address(1), None);
        path.handle_received(after(0), at(1), 100, true, &mut entropy);
        let mut sent = 0;
        while let Some(to) = path.address(40) {
            path.handle_sent(to, 40);
            sent += 40;
        }
        assert_eq!(sent, 280);
        assert_eq!(
            path.poll_challenge(after(0), 40),
            None,
            "not even a challenge"
        );
        path.handle_received(after(0), at(1), 100, true, &mut entropy);
        let (_, token) = path.poll_challenge(after(200), 40).expect("it may");
        assert!(path.handle_response(at(1), token));
        assert_eq!(path.address(100_000), Some(at(1)));
    }

    #[test]
    fn a_candidate_that_never_answers_is_forgotten() {
        let mut entropy = Entropy::new(&[1; 32]);
        let mut path = Path::new(Some(at(1)));
        path.handle_received(after(0), at(2), 1000, true, &mut entropy);
        let mut challenged = Vec::new();
        while let Some(due) = path.poll_timeout() {
            if path.poll_challenge(due, 40).is_some() {
                challenged.push(due);
            }
        }
        let expected = [0, 200, 600, 1400, 3000].map(after);
        assert_eq!(challenged, expected);
        assert_eq!(path.address(1500), Some(at(1)));
    }
}
