//! A hub that replaces its key, and a client that follows. Either is killed at any moment, and
//! messages arrive late, more than once, or never. Notices that a key is retired are forged at will.
//!
//! The overlap ends by the hub's clock, which may be ahead or behind for less than the time for which the hub keeps a key
//! that is over. A thief has each key that was replaced, and the client's pre-shared key: he answers in the hub's place
//! whoever comes by such a key, and tells a key of his own. That is how a client ends that has not followed; one that the
//! hub has served since the overlap was over must be safe from him.

use std::collections::BTreeSet;

use super::explore::{Model, explore};

const SHUT_OUT: &str = "a client that followed in time is shut out";
const STOLEN: &str = "a thief of a key that is over has a client that was served since";

/// Keys are numbered in the order in which the hub draws them.
type Key = u8;

const ROTATIONS: Key = 2;
/// Parts of the time for which a key that is over is kept.
const KEPT: u8 = 2;

/// Most that may happen.
#[derive(Clone, Copy, Debug)]
struct Budget {
    handshakes: u8,
    kills: u8,
    clock_changes: u8,
}

/// Clocks are right.
const RIGHT_CLOCKS: Budget = Budget {
    handshakes: 4,
    kills: 3,
    clock_changes: 0,
};

const WRONG_CLOCKS: Budget = Budget {
    handshakes: 3,
    kills: 2,
    clock_changes: 4,
};

#[derive(Clone, Copy, Debug)]
struct Rules {
    /// The hub stores a key before it tells anybody.
    hub_stores_first: bool,
    /// The client stores a key before it uses it.
    client_stores_first: bool,
    /// A notice changes nothing.
    notices_are_words: bool,
    /// Nobody is answered by a key that is over by the clock.
    is_silent_when_over: bool,
    /// A key that is over by the clock is kept for a while.
    is_kept_when_over: bool,
}

const NOW: Rules = Rules {
    hub_stores_first: true,
    client_stores_first: true,
    notices_are_words: true,
    is_silent_when_over: true,
    is_kept_when_over: true,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Keys {
    current: Key,
    previous: Option<Key>,
}

/// The hub's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Clock {
    Right,
    Ahead,
    Behind,
}

/// Message 2: to which handshake, by which key, and the key that it tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Answer {
    handshake: u8,
    by: Key,
    tells: Option<Key>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    hub_disk: Keys,
    hub: Keys,
    drawn: Key,
    client_disk: Key,
    client: Key,
    /// Told and not yet stored.
    unwritten: Option<Key>,
    /// The handshake in progress.
    attempt: Option<u8>,
    handshakes: u8,
    sent: BTreeSet<(u8, Key)>,
    answers: BTreeSet<Answer>,
    /// The hub has seen the client use the current key.
    has_followed: bool,
    /// The overlap was over before that.
    is_late: bool,
    /// The hub has answered the client since the overlap was over by its clock.
    is_served_late: bool,
    gave_up: bool,
    /// The overlap is over by a clock that is right.
    is_over: bool,
    clock: Clock,
    /// Parts of time for which the clock has been wrong.
    wrong_for: u8,
    /// Parts of time for which the hub has run, and its clock has said nothing but that the overlap is over.
    over_for: u8,
    /// Steps of each kind that are left.
    handshakes_left: u8,
    kills_left: u8,
    clock_changes_left: u8,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Rotate,
    HubWrites,
    /// The operator ends the overlap.
    Retire,
    /// The overlap's time has passed.
    OverlapEnds,
    SetClock(Clock),
    /// A part of the time passes for which a key that is over is kept.
    TimePasses,
    KillHub,
    KillClient,
    Begin,
    Arrive(u8, Key),
    Answer(Answer),
    ClientWrites,
    Notice,
    /// The thief answers the handshake in progress.
    Steal,
}

impl State {
    fn new(budget: Budget) -> State {
        let keys = Keys {
            current: 0,
            previous: None,
        };
        State {
            hub_disk: keys,
            hub: keys,
            drawn: 0,
            client_disk: 0,
            client: 0,
            unwritten: None,
            attempt: None,
            handshakes: 0,
            sent: BTreeSet::new(),
            answers: BTreeSet::new(),
            has_followed: true,
            is_late: false,
            is_served_late: false,
            gave_up: false,
            is_over: false,
            clock: Clock::Right,
            wrong_for: 0,
            over_for: 0,
            handshakes_left: budget.handshakes,
            kills_left: budget.kills,
            clock_changes_left: budget.clock_changes,
        }
    }

    /// The hub keeps this key, valid or not.
    fn has(&self, key: Key) -> bool {
        self.hub.current == key || self.hub.previous == Some(key)
    }

    /// The overlap is over by the hub's clock.
    fn is_over_by_clock(&self) -> bool {
        let by_clock = match self.clock {
            Clock::Right => self.is_over,
            Clock::Ahead => true,
            Clock::Behind => false,
        };
        self.hub.previous.is_some() && by_clock
    }

    fn answers_by(&self, rules: Rules, key: Key) -> bool {
        let is_valid = !rules.is_silent_when_over || !self.is_over_by_clock();
        self.hub.current == key || self.hub.previous == Some(key) && is_valid
    }

    /// The hub looks at the clock, as it does every two seconds.
    fn review(&mut self, rules: Rules) {
        if !self.is_over_by_clock() {
            self.over_for = 0;
        } else if self.over_for >= KEPT || !rules.is_kept_when_over {
            self.erase();
        }
    }

    fn erase(&mut self) {
        self.hub.previous = None;
        self.hub_disk = self.hub;
        self.over_for = 0;
    }

    fn hear(&mut self, rules: Rules, answer: Answer) {
        if self.attempt != Some(answer.handshake) || answer.by != self.client {
            return;
        }
        self.attempt = None;
        let Some(told) = answer.tells else {
            return;
        };
        self.unwritten = Some(told);
        if !rules.client_stores_first {
            // The session goes on under it; what is on disk follows later.
            self.client = told;
        }
    }
}

impl Model for State {
    type Rules = Rules;
    type Step = Step;

    fn steps(&self, _: Rules) -> Vec<Step> {
        let mut steps = Vec::new();
        // The overlap that is counted from a wrong time is not promised.
        let may_rotate = self.hub.previous.is_none() && self.clock == Clock::Right;
        if may_rotate && self.drawn < ROTATIONS {
            steps.push(Step::Rotate);
        }
        if self.hub.previous.is_some() {
            if !self.is_over {
                steps.push(Step::OverlapEnds);
            }
            // A clock is wrong for less than the time for which a key is kept.
            if self.clock == Clock::Right || self.wrong_for + 1 < KEPT {
                steps.push(Step::TimePasses);
            }
        }
        if self.clock_changes_left > 0 {
            let clocks = [Clock::Right, Clock::Ahead, Clock::Behind];
            let others = clocks.into_iter().filter(|clock| *clock != self.clock);
            steps.extend(others.map(Step::SetClock));
        }
        if self.hub != self.hub_disk {
            steps.push(Step::HubWrites);
        } else if self.hub.previous.is_some() {
            steps.push(Step::Retire);
        }
        if self.kills_left > 0 {
            steps.extend([Step::KillHub, Step::KillClient]);
        }
        if self.handshakes_left > 0 {
            steps.push(Step::Begin);
        }
        steps.extend(
            self.sent
                .iter()
                .map(|(handshake, key)| Step::Arrive(*handshake, *key)),
        );
        steps.extend(self.answers.iter().map(|answer| Step::Answer(*answer)));
        if self.unwritten.is_some() {
            steps.push(Step::ClientWrites);
        }
        if self.attempt.is_some() {
            steps.push(Step::Notice);
            if self.client < self.hub.current {
                steps.push(Step::Steal);
            }
        }
        steps
    }

    fn take(&mut self, rules: Rules, step: Step) -> Result<(), &'static str> {
        match step {
            Step::Rotate => {
                self.drawn += 1;
                self.hub = Keys {
                    current: self.drawn,
                    previous: Some(self.hub.current),
                };
                if rules.hub_stores_first {
                    self.hub_disk = self.hub;
                }
                self.has_followed = false;
                (self.is_over, self.is_served_late) = (false, false);
            }
            Step::HubWrites => self.hub_disk = self.hub,
            Step::Retire => {
                self.is_late |= !self.has_followed;
                self.erase();
            }
            Step::OverlapEnds => {
                self.is_over = true;
                self.is_late |= !self.has_followed;
                self.review(rules);
            }
            Step::SetClock(clock) => {
                self.clock_changes_left -= 1;
                self.clock = clock;
                if clock == Clock::Right {
                    self.wrong_for = 0;
                }
                self.review(rules);
            }
            Step::TimePasses => {
                self.wrong_for += u8::from(self.clock != Clock::Right);
                self.over_for += 1;
                self.review(rules);
            }
            Step::KillHub => {
                self.kills_left -= 1;
                self.hub = self.hub_disk;
                self.over_for = 0;
                self.review(rules);
            }
            Step::KillClient => {
                self.kills_left -= 1;
                (self.client, self.unwritten, self.attempt) = (self.client_disk, None, None);
            }
            Step::Begin => {
                self.handshakes += 1;
                self.handshakes_left -= 1;
                self.attempt = Some(self.handshakes);
                self.sent.insert((self.handshakes, self.client));
            }
            Step::Arrive(handshake, key) if self.answers_by(rules, key) => {
                self.is_served_late |= self.is_over_by_clock();
                if key == self.hub.current {
                    (self.has_followed, self.is_late) = (true, false);
                }
                let tells = (key != self.hub.current).then_some(self.hub.current);
                self.answers.insert(Answer {
                    handshake,
                    by: key,
                    tells,
                });
            }
            Step::Arrive(..) => {}
            Step::Answer(answer) => self.hear(rules, answer),
            Step::ClientWrites => {
                if let Some(key) = self.unwritten.take() {
                    (self.client_disk, self.client) = (key, key);
                }
            }
            Step::Notice => self.gave_up |= !rules.notices_are_words,
            Step::Steal if self.has_followed || self.is_served_late => {
                return Err(STOLEN);
            }
            // Nothing more is promised to this client.
            Step::Steal => {}
        }
        Ok(())
    }

    fn check(&self, _: Rules) -> Result<(), &'static str> {
        if self.gave_up {
            return Err("a forged notice stops a client");
        }
        let has_both = self.has(self.client) && self.has(self.client_disk);
        if !self.is_late && !has_both {
            return Err(SHUT_OUT);
        }
        Ok(())
    }
}

#[test]
fn who_comes_during_the_overlap_is_never_shut_out() {
    for budget in [RIGHT_CLOCKS, WRONG_CLOCKS] {
        let states = explore(NOW, [State::new(budget)]);
        let states = states.unwrap_or_else(|(broken, way)| panic!("{broken}: {way:?}"));
        println!("{budget:?}: {states} states");
        assert!(states > 1000, "{states} states");
    }
}

#[test]
fn keys_that_are_used_before_they_are_stored_shut_clients_out() {
    let drafts = [
        Rules {
            hub_stores_first: false,
            ..NOW
        },
        Rules {
            client_stores_first: false,
            ..NOW
        },
    ];
    for rules in drafts {
        find(rules, RIGHT_CLOCKS, SHUT_OUT);
    }
}

#[test]
fn a_notice_that_is_obeyed_stops_a_client() {
    let rules = Rules {
        notices_are_words: false,
        ..NOW
    };
    find(rules, RIGHT_CLOCKS, "a forged notice stops a client");
}

/// The hub did so.
#[test]
fn a_key_that_is_erased_as_soon_as_it_is_over_shuts_clients_out_by_a_wrong_clock() {
    let rules = Rules {
        is_kept_when_over: false,
        ..NOW
    };
    find(rules, WRONG_CLOCKS, SHUT_OUT);
    // By a right one it does not.
    explore(rules, [State::new(RIGHT_CLOCKS)]).expect("nobody is shut out");
}

#[test]
fn a_key_that_is_kept_must_not_be_used() {
    let rules = Rules {
        is_silent_when_over: false,
        ..NOW
    };
    for budget in [RIGHT_CLOCKS, WRONG_CLOCKS] {
        find(rules, budget, STOLEN);
    }
}

fn find(rules: Rules, budget: Budget, expected: &str) {
    let (broken, way) = explore(rules, [State::new(budget)]).expect_err("the failure is found");
    println!("{rules:?}: {way:?}");
    assert_eq!(broken, expected);
}
