//! Growing times, corrections of the clock, resets, and restarts and suspends of the hub.
//!
//! The attacker sees, keeps, drops, delays and repeats every message, and makes those that need no
//! secret.

use std::collections::BTreeSet;

use super::explore::{Broken, Model, explore as search};

/// Times are small numbers: the last one stands for 2⁶⁴ − 1.
type Micros = u8;

/// The hub's clock at the begin.
const CLOCK: Micros = 50;
/// Largest lead of a time over the hub's clock.
const AHEAD: Micros = 20;
/// Indices that the hub draws from.
const INDICES: [u8; 2] = [1, 2];

/// Rules that differ between the drafts.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// A correction of the clock comes in a message 2, not in a cookie reply.
    time_is_sealed: bool,
    /// The hub refuses times far ahead of its clock.
    time_is_bounded: bool,
    /// Reset tokens belong to an epoch, and only those of earlier epochs are issued.
    resets_have_epochs: bool,
    /// Each epoch has a key of its own; else it has a number, by which a start counts on from the one that was stored,
    /// and a suspend in memory alone.
    epochs_are_drawn: bool,
    /// Bounds on steps, so that the search ends: handshakes begun, and epochs after the first.
    begins: u8,
    starts: u8,
}

const NOW: Rules = Rules {
    time_is_sealed: true,
    time_is_bounded: true,
    resets_have_epochs: true,
    epochs_are_drawn: true,
    begins: 3,
    starts: 2,
};
/// Fewer handshakes, and as many epochs as a number that begins again needs.
const MORE_EPOCHS: Rules = Rules {
    begins: 2,
    starts: 3,
    ..NOW
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Session {
    epoch: u8,
    index: u8,
    /// Time of the initiation that began it.
    time: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Token {
    epoch: u8,
    index: u8,
}

/// Messages that the hub has sent to the client, and that can arrive any number of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Reply {
    Accept(Session),
    Clock { time: Micros, told: Micros },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    begins: u8,
    /// The client's clock minus the hub's.
    offset: i16,
    floor: Micros,
    attempt: Option<Micros>,
    session: Option<Session>,
    /// Starts and suspends of the hub.
    starts: u8,
    epoch: u8,
    /// The latest epoch so far: tokens of all before it are given away.
    latest: u8,
    /// The number on the hub's disk, if epochs are numbers.
    stored: u8,
    newest: Micros,
    /// Sessions of the hub: one in which the client has spoken, one in which it has not.
    proven: Option<Session>,
    unproven: Option<Session>,
    /// All messages that were ever sent.
    initiations: BTreeSet<Micros>,
    replies: BTreeSet<Reply>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Begin,
    /// An initiation arrives at the hub, new or replayed; it draws this index.
    Initiation(Micros, u8),
    Reply(Reply),
    /// A forged cookie reply with a time; it needs the hub's public key.
    ForgedTime(Micros),
    /// A packet sealed by the client's keys arrives at the hub.
    Data,
    Restart,
    Suspend,
    /// The attacker sends a reset token of the hub. It has collected all that it can get, before
    /// any session began.
    Reset(Token),
}

impl State {
    fn new(offset: i16) -> State {
        State {
            begins: 0,
            offset,
            floor: 0,
            attempt: None,
            session: None,
            starts: 0,
            epoch: 0,
            latest: 0,
            stored: 0,
            newest: 0,
            proven: None,
            unproven: None,
            initiations: BTreeSet::new(),
            replies: BTreeSet::new(),
        }
    }

    /// Time passes with every handshake.
    fn hub_clock(&self) -> Micros {
        CLOCK + self.begins
    }

    fn knows(&self, session: Session) -> bool {
        session.epoch == self.epoch
            && (self.proven == Some(session) || self.unproven == Some(session))
    }

    fn uses(&self, index: u8) -> bool {
        let mut own = [self.proven, self.unproven].into_iter().flatten();
        own.any(|session| session.index == index)
    }

    fn begin(&mut self) {
        let clock = (i16::from(self.hub_clock()) + self.offset).clamp(0, i16::from(Micros::MAX));
        let time = (clock as Micros).max(self.floor.wrapping_add(1));
        self.begins += 1;
        (self.floor, self.attempt) = (time, Some(time));
        self.initiations.insert(time);
    }

    fn correct(&mut self, rules: Rules, ours: Micros, told: Micros) {
        match rules.time_is_sealed {
            true if told < ours => {
                self.offset = i16::from(told) - i16::from(self.hub_clock());
                self.floor = told;
            }
            true => self.floor = told,
            // The draft accepted it only if it was not before its own.
            false if told >= ours => self.floor = self.floor.max(told),
            false => return,
        }
        if self.begins < rules.begins {
            self.begin();
        } else {
            // Out of steps: the handshake is no longer in progress.
            self.attempt = None;
        }
    }

    /// Begins another epoch, without the sessions so far.
    fn lose_sessions(&mut self, epoch: u8) {
        (self.proven, self.unproven) = (None, None);
        self.starts += 1;
        self.epoch = epoch;
        self.latest = self.latest.max(epoch);
    }

    fn hear(&mut self, rules: Rules, time: Micros, index: u8) {
        let end = match rules.time_is_bounded {
            true => self.hub_clock() + AHEAD,
            false => Micros::MAX,
        };
        let is_late = rules.time_is_bounded && time >= end;
        if time > self.newest && !is_late {
            let epoch = self.epoch;
            let session = Session { epoch, index, time };
            self.newest = time;
            self.unproven = Some(session);
            self.replies.insert(Reply::Accept(session));
        } else if time != self.newest {
            let told = match rules.time_is_sealed {
                true => self.newest.max(self.hub_clock()),
                false => self.newest,
            };
            self.replies.insert(Reply::Clock { time, told });
        } else if !self.initiations.contains(&time) {
            unreachable!("nobody makes an initiation but the client");
        }
    }

    /// Returns true if the client gets a session that it proves once the attacker stops.
    fn recovers(&self, rules: Rules) -> bool {
        let mut state = self.clone();
        for _ in 0..6 {
            // Steps for the client, whatever has been used up.
            state.begins = state.begins.min(rules.begins - 1);
            state.begin();
            let Some(time) = state.attempt else {
                return false;
            };
            let index = INDICES.into_iter().find(|index| !state.uses(*index));
            // The hub has more indices than this model.
            let index = index.unwrap_or(3);
            let before = state.newest;
            state.hear(rules, time, index);
            let session = Session {
                epoch: state.epoch,
                index,
                time,
            };
            if state.newest != before && state.replies.contains(&Reply::Accept(session)) {
                return true;
            }
            let told = state.replies.iter().find_map(|reply| match reply {
                Reply::Clock { time: of, told } if *of == time => Some(*told),
                _ => None,
            });
            match told {
                // A copy of a recorded initiation gets the same reply; otherwise the handshake
                // continues as told.
                None => {}
                Some(told) if rules.time_is_sealed && told < time => {
                    state.offset = i16::from(told) - i16::from(state.hub_clock());
                    state.floor = told;
                }
                Some(told) => state.floor = state.floor.max(told),
            }
        }
        false
    }
}

impl Model for State {
    type Rules = Rules;
    type Step = Step;

    /// All possible next steps, the attacker's own first.
    fn steps(&self, rules: Rules) -> Vec<Step> {
        let mut steps = Vec::new();
        if !rules.time_is_sealed && self.attempt.is_some() && self.begins < rules.begins {
            steps.extend([1, Micros::MAX - 1, Micros::MAX].map(Step::ForgedTime));
        }
        let token = |epoch| INDICES.map(|index| Step::Reset(Token { epoch, index }));
        match rules.resets_have_epochs {
            true => steps.extend((0..self.latest).flat_map(token)),
            // Before its use, each index was unknown to the hub.
            false => steps.extend(token(0)),
        }
        for time in &self.initiations {
            let free = INDICES.into_iter().filter(|index| !self.uses(*index));
            steps.extend(free.map(|index| Step::Initiation(*time, index)));
        }
        steps.extend(self.replies.iter().map(|reply| Step::Reply(*reply)));
        steps.push(Step::Data);
        if self.begins < rules.begins {
            steps.push(Step::Begin);
        }
        if self.starts < rules.starts {
            steps.extend([Step::Restart, Step::Suspend]);
        }
        steps
    }

    fn take(&mut self, rules: Rules, step: Step) -> Result<(), &'static str> {
        match step {
            Step::Begin => self.begin(),
            Step::Initiation(time, index) => self.hear(rules, time, index),
            Step::Reply(Reply::Accept(session)) if self.attempt == Some(session.time) => {
                (self.attempt, self.session) = (None, Some(session));
            }
            Step::Reply(Reply::Clock { time, told }) if self.attempt == Some(time) => {
                self.correct(rules, time, told);
            }
            Step::ForgedTime(told) => {
                if let Some(time) = self.attempt {
                    self.correct(rules, time, told);
                }
            }
            Step::Data => {
                if let Some(session) = self.session.filter(|s| self.unproven == Some(*s)) {
                    (self.proven, self.unproven) = (Some(session), None);
                }
            }
            Step::Restart => {
                if !rules.epochs_are_drawn {
                    self.stored += 1;
                }
                self.lose_sessions(match rules.epochs_are_drawn {
                    true => self.epoch + 1,
                    false => self.stored,
                });
                self.newest = 0;
            }
            Step::Suspend => self.lose_sessions(self.epoch + 1),
            Step::Reset(token) => {
                let Some(session) = self.session.filter(|s| s.index == token.index) else {
                    return Ok(());
                };
                if rules.resets_have_epochs && session.epoch != token.epoch {
                    return Ok(());
                }
                if self.knows(session) {
                    return Err("a session that the hub has is ended by a stranger");
                }
                self.session = None;
            }
            Step::Reply(_) => {}
        }
        Ok(())
    }

    fn check(&self, rules: Rules) -> Result<(), &'static str> {
        match self.recovers(rules) {
            true => Ok(()),
            false => Err("a client is shut out"),
        }
    }
}

/// Starts with a correct clock, none, and one that is far ahead.
fn explore(rules: Rules) -> Result<usize, Broken<Step>> {
    search(rules, [0, -50, 100].map(State::new))
}

#[test]
fn the_protocol_as_it_is_keeps_its_promises() {
    for rules in [NOW, MORE_EPOCHS] {
        let states = explore(rules).unwrap_or_else(|(broken, way)| panic!("{broken}: {way:?}"));
        println!("{states} states");
        assert!(states > 1000, "{states} states");
    }
}

#[test]
fn a_time_in_a_cookie_reply_shuts_a_client_out() {
    let draft = Rules {
        time_is_sealed: false,
        time_is_bounded: false,
        ..NOW
    };
    let (broken, way) = explore(draft).expect_err("the attack is found");
    println!("{way:?}");
    assert_eq!(broken, "a client is shut out");
    assert!(
        way.iter().any(|step| matches!(step, Step::ForgedTime(_))),
        "{way:?}"
    );
}

#[test]
fn a_reset_token_for_whoever_asks_ends_sessions() {
    let draft = Rules {
        resets_have_epochs: false,
        ..NOW
    };
    let (broken, way) = explore(draft).expect_err("the attack is found");
    println!("{way:?}");
    assert_eq!(broken, "a session that the hub has is ended by a stranger");
    assert!(matches!(way.last(), Some(Step::Reset(_))), "{way:?}");
}

/// After two suspends the hub had given away tokens of the epoch that its next start began.
#[test]
fn epochs_that_are_counted_begin_again() {
    let draft = Rules {
        epochs_are_drawn: false,
        ..MORE_EPOCHS
    };
    let (broken, way) = explore(draft).expect_err("the attack is found");
    println!("{way:?}");
    assert_eq!(broken, "a session that the hub has is ended by a stranger");
    let suspends = way.iter().filter(|step| **step == Step::Suspend);
    assert_eq!(suspends.count(), 2, "{way:?}");
}

/// The hub's bound on times protects against a momentary thief of the client's keys; it does not
/// prevent this attack.
#[test]
fn a_bound_alone_does_not_keep_a_forged_time_out() {
    let draft = Rules {
        time_is_sealed: false,
        ..NOW
    };
    assert!(explore(draft).is_err(), "a bound alone does not do");
}
