//! State machine of the bond, driven by its driver's events.
//!
//! Pure. Rules, and why:
//! - The bond takes flows while it has keys and some link carries data. Without the last link new flows go
//!   elsewhere at once, because waiting for a hub would be in vain.
//! - Its flows stay for [`HUB_SILENCE_LIMIT`]: connections use the hub's address and cannot move, and a
//!   restarted hub is back within seconds. A hub that announces that it stops may be on a machine that reboots:
//!   its flows stay for [`HUB_REBOOT_TIME`].

use std::fmt;
use std::time::{Duration, Instant};

use braid_bond::proto::frame::Reason;
use braid_bond::proto::handshake::terms::Refusal;

/// Time for which flows wait for an unreachable hub before they are closed or moved.
const HUB_SILENCE_LIMIT: Duration = Duration::from_secs(15);

/// The same for a hub that has announced that it stops: its machine is back within a minute, and the hub a
/// moment later.
const HUB_REBOOT_TIME: Duration = Duration::from_secs(75);

/// State of the bond.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// No answer from the hub yet.
    Calling {
        /// Periods of ten seconds without an answer.
        unanswered: u32,
    },
    /// It carries packets.
    Up,
    /// It was up.
    Lost {
        /// Time since which it is not.
        since: Instant,
        /// The reason.
        why: &'static str,
        /// Time for which its flows wait.
        patience: Duration,
    },
    /// The hub refuses this machine.
    Refused(Refusal),
    /// The driver has ended.
    Stopped(String),
}

impl State {
    /// Returns true if it takes new flows.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self, State::Up)
    }

    /// Returns true if its flows are to be closed or moved.
    #[must_use]
    pub fn is_given_up(&self, now: Instant) -> bool {
        match self {
            State::Lost {
                since, patience, ..
            } => now.saturating_duration_since(*since) >= *patience,
            State::Refused(_) | State::Stopped(_) => true,
            State::Calling { .. } | State::Up => false,
        }
    }

    /// Returns the word for the state.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            State::Calling { .. } => "connecting",
            State::Up => "up",
            State::Lost { .. } => "lost",
            State::Refused(_) => "refused",
            State::Stopped(_) => "stopped",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Calling { unanswered: 0 } => f.write_str("the hub has not answered yet"),
            State::Calling { unanswered } => {
                write!(f, "the hub has not answered for {} s", unanswered * 10)
            }
            State::Up => f.write_str("the hub answers"),
            State::Lost { why, .. } => f.write_str(why),
            State::Refused(refusal) => refusal.fmt(f),
            State::Stopped(why) => write!(f, "stopped: {why}"),
        }
    }
}

/// The state with its transitions.
#[derive(Debug)]
pub struct StateMachine {
    keys: bool,
    state: State,
}

impl Default for StateMachine {
    fn default() -> Self {
        StateMachine {
            keys: false,
            state: State::Calling { unanswered: 0 },
        }
    }
}

impl StateMachine {
    /// Starts with the flows of an earlier daemon. They wait as for an unreachable hub.
    #[must_use]
    pub fn inherited(now: Instant) -> StateMachine {
        StateMachine {
            keys: false,
            state: State::Lost {
                since: now,
                why: "the daemon was started anew, and the hub has not answered yet",
                patience: HUB_SILENCE_LIMIT,
            },
        }
    }

    /// Returns the state.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Handles the end of the handshake: there are keys.
    pub fn established(&mut self) {
        self.keys = true;
        if matches!(self.state, State::Refused(_)) {
            self.state = State::Calling { unanswered: 0 };
        }
    }

    /// Handles ten seconds without an answer. This changes nothing while links carry packets, because those
    /// report their own failure.
    pub fn unanswered(&mut self) {
        match &mut self.state {
            State::Calling { unanswered } => *unanswered = unanswered.saturating_add(1),
            State::Refused(_) => self.state = State::Calling { unanswered: 1 },
            State::Up | State::Lost { .. } | State::Stopped(_) => {}
        }
    }

    /// Handles a refusal of the hub.
    pub fn refused(&mut self, refusal: Refusal) {
        self.keys = false;
        self.state = State::Refused(refusal);
    }

    /// Handles the end of the session by the hub.
    pub fn closed(&mut self, now: Instant, reason: Reason) {
        self.keys = false;
        match reason {
            Reason::Stopped => self.lose(now, "the hub has been stopped", HUB_REBOOT_TIME),
            _ => self.lose(now, "the hub has ended the session", HUB_SILENCE_LIMIT),
        }
    }

    /// Handles a change of the links; `any` is true if one carries data.
    pub fn links(&mut self, now: Instant, any: bool) {
        match (any && self.keys, &self.state) {
            (_, State::Refused(_) | State::Stopped(_)) => {}
            (true, _) => self.state = State::Up,
            (false, _) => self.lose(
                now,
                "no link to the hub carries anything",
                HUB_SILENCE_LIMIT,
            ),
        }
    }

    /// Handles the end of the driver.
    pub fn stopped(&mut self, why: String) {
        self.keys = false;
        self.state = State::Stopped(why);
    }

    /// Changes from up to lost. A bond that was never up is not lost, and one that is lost keeps its first
    /// time.
    fn lose(&mut self, now: Instant, why: &'static str, patience: Duration) {
        if self.state == State::Up {
            self.state = State::Lost {
                since: now,
                why,
                patience,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_up_with_keys_and_a_link_and_given_up_after_a_while() {
        let now = Instant::now();
        let mut bond = StateMachine::default();
        bond.links(now, false);
        assert_eq!(bond.state().word(), "connecting");
        bond.links(now, true);
        assert!(!bond.state().is_up(), "no keys");
        bond.established();
        bond.links(now, true);
        assert!(bond.state().is_up());
        bond.unanswered();
        assert!(bond.state().is_up());
        bond.links(now, false);
        bond.unanswered();
        assert_eq!(bond.state().word(), "lost");
        assert!(!bond.state().is_given_up(now + HUB_SILENCE_LIMIT / 2));
        assert!(bond.state().is_given_up(now + HUB_SILENCE_LIMIT));
        bond.links(now, true);
        assert!(bond.state().is_up());
    }

    #[test]
    fn what_an_earlier_daemon_left_waits_for_the_hub() {
        let now = Instant::now();
        let mut bond = StateMachine::inherited(now);
        assert!(!bond.state().is_up());
        assert!(!bond.state().is_given_up(now + HUB_SILENCE_LIMIT / 2));
        assert!(bond.state().is_given_up(now + HUB_SILENCE_LIMIT));
        bond.unanswered();
        assert_eq!(bond.state().word(), "lost");
        bond.established();
        bond.links(now, true);
        assert!(bond.state().is_up());
    }

    #[test]
    fn a_hub_that_says_that_it_stops_is_waited_for_while_its_machine_is_restarted() {
        let now = Instant::now();
        let mut bond = StateMachine::default();
        bond.established();
        bond.links(now, true);
        bond.closed(now, Reason::Stopped);
        bond.links(now, false);
        assert_eq!(bond.state().to_string(), "the hub has been stopped");
        let minute = Duration::from_secs(60);
        assert!(!bond.state().is_given_up(now + minute));
        assert!(bond.state().is_given_up(now + HUB_REBOOT_TIME));
    }

    #[test]
    fn a_refusal_stands_until_the_hub_says_otherwise() {
        let now = Instant::now();
        let mut bond = StateMachine::default();
        bond.refused(Refusal::Revoked);
        bond.links(now, true);
        assert!(bond.state().is_given_up(now));
        assert_eq!(
            bond.state().to_string(),
            "the hub does not serve this client any more"
        );
        bond.established();
        bond.links(now, true);
        assert!(bond.state().is_up());
        bond.closed(now, Reason::Full);
        assert!(bond.state().is_given_up(now + HUB_SILENCE_LIMIT));
        bond.links(now, true);
        assert!(!bond.state().is_up(), "the keys are void");
        bond.stopped("device gone".into());
        bond.links(now, true);
        assert_eq!(bond.state().to_string(), "stopped: device gone");
    }
}
