//! A hub that replaces its key, and a client that follows. Either is killed at any moment, and
//! messages arrive late, more than once, or never. Notices that a key is retired are forged at will.

use std::collections::BTreeSet;

use super::explore::{Model, explore};

/// Keys are numbered in the order in which the hub draws them.
type Key = u8;

const ROTATIONS: Key = 2;
const HANDSHAKES: u8 = 4;
const KILLS: u8 = 3;

#[derive(Clone, Copy, Debug)]
struct Rules {
    /// The hub stores a key before it tells anybody.
    hub_stores_first: bool,
    /// The client stores a key before it uses it.
    client_stores_first: bool,
    /// A notice changes nothing.
    notices_are_words: bool,
}

const NOW: Rules = Rules {
    hub_stores_first: true,
    client_stores_first: true,
    notices_are_words: true,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Keys {
    current: Key,
    previous: Option<Key>,
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
    /// The previous key was retired before that.
    is_late: bool,
    gave_up: bool,
    kills: u8,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Rotate,
    HubWrites,
    Retire,
    KillHub,
    KillClient,
    Begin,
    Arrive(u8, Key),
    Answer(Answer),
    ClientWrites,
    Notice,
}

impl State {
    fn new() -> State {
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
            gave_up: false,
            kills: 0,
        }
    }

    fn has(&self, key: Key) -> bool {
        self.hub.current == key || self.hub.previous == Some(key)
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
        if self.hub.previous.is_none() && self.drawn < ROTATIONS {
            steps.push(Step::Rotate);
        }
        if self.hub != self.hub_disk {
            steps.push(Step::HubWrites);
        } else if self.hub.previous.is_some() {
            steps.push(Step::Retire);
        }
        if self.kills < KILLS {
            steps.extend([Step::KillHub, Step::KillClient]);
        }
        if self.handshakes < HANDSHAKES {
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
            }
            Step::HubWrites => self.hub_disk = self.hub,
            Step::Retire => {
                self.is_late |= !self.has_followed;
                self.hub.previous = None;
                self.hub_disk = self.hub;
            }
            Step::KillHub => {
                self.kills += 1;
                self.hub = self.hub_disk;
            }
            Step::KillClient => {
                self.kills += 1;
                (self.client, self.unwritten, self.attempt) = (self.client_disk, None, None);
            }
            Step::Begin => {
                self.handshakes += 1;
                self.attempt = Some(self.handshakes);
                self.sent.insert((self.handshakes, self.client));
            }
            Step::Arrive(handshake, key) if self.has(key) => {
                self.has_followed |= key == self.hub.current;
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
        }
        Ok(())
    }

    fn check(&self, _: Rules) -> Result<(), &'static str> {
        if self.gave_up {
            return Err("a forged notice stops a client");
        }
        let has_both = self.has(self.client) && self.has(self.client_disk);
        if !self.is_late && !has_both {
            return Err("a client that followed in time is shut out");
        }
        Ok(())
    }
}

#[test]
fn who_comes_during_the_overlap_is_never_shut_out() {
    let states = explore(NOW, [State::new()]);
    let states = states.unwrap_or_else(|(broken, way)| panic!("{broken}: {way:?}"));
    println!("{states} states");
    assert!(states > 1000, "{states} states");
}

#[test]
fn keys_that_are_used_before_they_are_stored_shut_clients_out() {
    let drafts = [
        (
            Rules {
                hub_stores_first: false,
                ..NOW
            },
            "a client that followed in time is shut out",
        ),
        (
            Rules {
                client_stores_first: false,
                ..NOW
            },
            "a client that followed in time is shut out",
        ),
        (
            Rules {
                notices_are_words: false,
                ..NOW
            },
            "a forged notice stops a client",
        ),
    ];
    for (rules, expected) in drafts {
        let (broken, way) = explore(rules, [State::new()]).expect_err("the failure is found");
        println!("{rules:?}: {way:?}");
        assert_eq!(broken, expected);
    }
}
