//! Admission by a token: two machines that have it, a hub whose decisions are on disk before they
//! count, and whose packet thread learns of them later. The attacker records and repeats messages,
//! and the hub is killed at any moment.

use std::collections::BTreeSet;

use super::explore::{Model, explore};

/// A machine's key: the rightful one, and that of somebody who has read the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Key {
    Owner,
    Reader,
}

const KEYS: [Key; 2] = [Key::Owner, Key::Reader];

/// Bounds on steps, so that the search ends.
const HANDSHAKES: u8 = 4;
const KILLS: u8 = 2;
/// Commands that wait for the packet thread.
const COMMANDS: usize = 3;

#[derive(Clone, Copy, Debug)]
struct Rules {
    /// An admission is on disk before the packet thread learns of it.
    stores_first: bool,
    /// The token is bound to the first key.
    binds: bool,
    /// A revoked client's token stays void, also after its record has been removed.
    voids_token: bool,
}

const NOW: Rules = Rules {
    stores_first: true,
    binds: true,
    voids_token: true,
};

/// The client's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Record {
    Invited,
    Joined(Key),
    Revoked,
    /// The record of a revoked client was removed: others have ended after it.
    Removed,
}

/// Commands to the packet thread, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Command {
    Insert(Key),
    Revoke(Key),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    disk: Record,
    /// Decided and not yet on disk.
    unwritten: Option<Record>,
    /// Keys that asked, and about which the hub has not decided.
    asked: BTreeSet<Key>,
    commands: Vec<Command>,
    served: BTreeSet<Key>,
    sessions: BTreeSet<Key>,
    /// Message 1 by key and time; all that were ever sent can arrive again.
    initiations: BTreeSet<(Key, u8)>,
    newest: [u8; 2],
    clock: u8,
    kills: u8,
    /// The first key that had a session.
    first: Option<Key>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Begin(Key),
    Arrive(Key, u8),
    Decide(Key),
    Write,
    Obey,
    Revoke,
    Remove,
    Kill,
}

impl State {
    fn new() -> State {
        State {
            disk: Record::Invited,
            unwritten: None,
            asked: BTreeSet::new(),
            commands: Vec::new(),
            served: BTreeSet::new(),
            sessions: BTreeSet::new(),
            initiations: BTreeSet::new(),
            newest: [0; 2],
            clock: 0,
            kills: 0,
            first: None,
        }
    }

    fn decide(&mut self, rules: Rules, key: Key) {
        self.asked.remove(&key);
        let record = self.unwritten.unwrap_or(self.disk);
        let is_let_in = match record {
            Record::Invited => true,
            Record::Joined(known) => known == key || !rules.binds,
            Record::Revoked | Record::Removed => false,
        };
        if !is_let_in {
            return;
        }
        match rules.stores_first {
            true => self.disk = Record::Joined(key),
            false => self.unwritten = Some(Record::Joined(key)),
        }
        self.commands.push(Command::Insert(key));
    }

    fn revoke(&mut self, rules: Rules) {
        let Record::Joined(key) = self.disk else {
            return;
        };
        self.disk = match rules.voids_token {
            true => Record::Revoked,
            false => Record::Invited,
        };
        self.commands.push(Command::Revoke(key));
    }

    fn remove(&mut self) {
        if self.disk == Record::Revoked {
            self.disk = Record::Removed;
        }
    }

    fn arrive(&mut self, key: Key, time: u8) -> Result<(), &'static str> {
        if !self.served.contains(&key) {
            self.asked.insert(key);
            return Ok(());
        }
        let newest = &mut self.newest[key as usize];
        if time <= *newest {
            return Ok(());
        }
        *newest = time;
        self.sessions.insert(key);
        match self.first.replace(self.first.unwrap_or(key)) {
            Some(first) if first != key => Err("a token lets two machines in"),
            _ => Ok(()),
        }
    }

    fn kill(&mut self) {
        self.kills += 1;
        (self.unwritten, self.newest) = (None, [0; 2]);
        self.asked.clear();
        self.commands.clear();
        self.sessions.clear();
        self.served = match self.disk {
            Record::Joined(key) => BTreeSet::from([key]),
            _ => BTreeSet::new(),
        };
    }
}

impl Model for State {
    type Rules = Rules;
    type Step = Step;

    fn steps(&self, _: Rules) -> Vec<Step> {
        let mut steps = vec![Step::Revoke, Step::Remove];
        if self.clock < HANDSHAKES {
            steps.extend(KEYS.map(Step::Begin));
        }
        let sent = self.initiations.iter();
        steps.extend(sent.map(|(key, time)| Step::Arrive(*key, *time)));
        if self.commands.len() < COMMANDS {
            steps.extend(self.asked.iter().map(|key| Step::Decide(*key)));
        }
        if self.unwritten.is_some() {
            steps.push(Step::Write);
        }
        if !self.commands.is_empty() {
            steps.push(Step::Obey);
        }
        if self.kills < KILLS {
            steps.push(Step::Kill);
        }
        steps
    }

    fn take(&mut self, rules: Rules, step: Step) -> Result<(), &'static str> {
        match step {
            Step::Begin(key) => {
                self.clock += 1;
                self.initiations.insert((key, self.clock));
            }
            Step::Arrive(key, time) => return self.arrive(key, time),
            Step::Decide(key) => self.decide(rules, key),
            Step::Write => self.disk = self.unwritten.take().unwrap_or(self.disk),
            Step::Obey => match self.commands.remove(0) {
                Command::Insert(key) => _ = self.served.insert(key),
                Command::Revoke(key) => {
                    self.served.remove(&key);
                    self.sessions.remove(&key);
                }
            },
            Step::Revoke => self.revoke(rules),
            Step::Remove => self.remove(),
            Step::Kill => self.kill(),
        }
        Ok(())
    }

    fn check(&self, _: Rules) -> Result<(), &'static str> {
        let has_obeyed = self.commands.is_empty();
        let is_out = matches!(self.disk, Record::Revoked | Record::Removed);
        if is_out && has_obeyed && !self.sessions.is_empty() {
            return Err("a revoked client has a session");
        }
        Ok(())
    }
}

#[test]
fn a_token_lets_one_machine_in_until_it_is_revoked() {
    let states = explore(NOW, [State::new()]);
    let states = states.unwrap_or_else(|(broken, way)| panic!("{broken}: {way:?}"));
    println!("{states} states");
    assert!(states > 1000, "{states} states");
}

#[test]
fn without_any_of_its_rules_a_token_lets_two_machines_in() {
    let drafts = [
        Rules {
            stores_first: false,
            ..NOW
        },
        Rules {
            binds: false,
            ..NOW
        },
        Rules {
            voids_token: false,
            ..NOW
        },
    ];
    for rules in drafts {
        let (broken, way) = explore(rules, [State::new()]).expect_err("the attack is found");
        println!("{rules:?}: {way:?}");
        assert_eq!(broken, "a token lets two machines in");
    }
}
