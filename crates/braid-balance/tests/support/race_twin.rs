//! The race of one connection in plain Rust: what must come of every packet, from the rules of
//! `docs/race.md` and not from the programs.

use std::collections::BTreeMap;

use super::probe::Verdict::{self, Dropped, Passed, Sent};

/// An event of a connection.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// Its SYN, the first one or a repetition; another connection's if the number differs.
    Syn { sequence: u32 },
    /// The client's segment once the connection is open.
    Ack,
    /// SYN/ACK from the server over an uplink; `right`: it answers the last SYN.
    SynAck { uplink: usize, right: bool },
    /// The server refuses over an uplink.
    Reset { uplink: usize, right: bool },
    /// Somebody on the way says so.
    Error { uplink: usize },
    /// A segment without SYN.
    Data { uplink: usize },
    /// So long a pause that nobody waits any more.
    Pause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Asked,
    Refused,
    Answered,
}

#[derive(Clone, Debug)]
struct Race {
    sequence: u32,
    fates: BTreeMap<usize, Fate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Answered,
    Open,
    Refused,
    /// It was open when a reset came, which may be a forger's.
    Doubted,
}

/// The outcome that a packet must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    pub verdict: Verdict,
    pub reason: &'static str,
    /// Uplinks that the packet goes out by, if it is a raced SYN.
    pub by: Vec<usize>,
}

fn expected(verdict: Verdict, reason: &'static str) -> Expected {
    Expected {
        verdict,
        reason,
        by: Vec::new(),
    }
}

/// The connection.
#[derive(Debug, Default)]
pub struct Twin {
    race: Option<Race>,
    /// The uplink that it goes by, and how it stands.
    flow: Option<(usize, State)>,
}

impl Twin {
    /// Returns true if the client may send anything but a SYN. Without a connection such a segment
    /// would belong to somebody else.
    pub fn may_talk(&self) -> bool {
        self.race.is_some() || self.flow.is_some()
    }

    /// The sequence number of the SYN that is raced.
    pub fn sequence(&self) -> Option<u32> {
        self.race.as_ref().map(|race| race.sequence)
    }

    /// Returns the outcome that an event must have, or `None` if the programs do nothing.
    pub fn handle(&mut self, event: Event, uplinks: usize) -> Option<Expected> {
        match event {
            Event::Syn { sequence } => Some(self.syn(sequence, uplinks)),
            Event::Ack => Some(match &mut self.flow {
                Some((_, state)) => {
                    if matches!(state, State::Answered | State::Doubted) {
                        *state = State::Open;
                    }
                    expected(Sent, "out_flow")
                }
                None => expected(Dropped, "race_undecided"),
            }),
            Event::SynAck { uplink, right } => Some(self.answer(uplink, right)),
            Event::Reset { uplink, right } => Some(self.refusal(uplink, right, false)),
            Event::Error { uplink } => Some(self.refusal(uplink, true, true)),
            Event::Data { uplink } => Some(self.data(uplink)),
            Event::Pause => {
                self.race = None;
                if matches!(self.flow, Some((_, State::Answered))) {
                    self.flow = None;
                }
                None
            }
        }
    }

    fn syn(&mut self, sequence: u32, uplinks: usize) -> Expected {
        match self.flow {
            Some((_, State::Refused | State::Doubted)) => self.flow = None,
            Some(_) => return expected(Sent, "out_flow"),
            None => {
                if let Some(race) = &mut self.race
                    && race.sequence == sequence
                {
                    let left = race.fates.iter_mut().filter(|(_, f)| **f != Fate::Refused);
                    let left = left.map(|(uplink, fate)| {
                        *fate = Fate::Asked;
                        *uplink
                    });
                    let by: Vec<usize> = left.collect();
                    if by.is_empty() {
                        self.race = None;
                        return expected(Sent, "race_none_left");
                    }
                    return Expected {
                        by,
                        ..expected(Sent, "race_repeated")
                    };
                }
            }
        }
        self.race = Some(Race {
            sequence,
            fates: (0..uplinks).map(|uplink| (uplink, Fate::Asked)).collect(),
        });
        Expected {
            by: (0..uplinks).collect(),
            ..expected(Sent, "race_begun")
        }
    }

    /// Returns true if the connection uses this uplink.
    fn is_winner(&self, uplink: usize) -> bool {
        self.flow.is_some_and(|(winner, _)| winner == uplink)
    }

    fn answer(&mut self, uplink: usize, right: bool) -> Expected {
        if self.is_winner(uplink) {
            return if right {
                self.heard(uplink)
            } else {
                expected(Passed, "in_stack")
            };
        }
        let decided = self.flow.is_some();
        let Some(race) = &mut self.race else {
            return expected(Passed, "in_no_flow");
        };
        match (right, decided) {
            (true, false) => {
                race.fates.insert(uplink, Fate::Answered);
                self.flow = Some((uplink, State::Answered));
                expected(Passed, "in_stack")
            }
            (true, true) => {
                race.fates.insert(uplink, Fate::Answered);
                expected(Sent, "race_lost")
            }
            (false, false) => expected(Sent, "race_lost"),
            (false, true) => expected(Dropped, "race_late"),
        }
    }

    fn refusal(&mut self, uplink: usize, right: bool, error: bool) -> Expected {
        let passed = if error { "in_icmp_error" } else { "in_stack" };
        if self.is_winner(uplink) {
            // Wrong numbers are somebody else's.
            if let (Some((_, state)), true) = (&mut self.flow, right && !error) {
                *state = match state {
                    State::Answered | State::Refused => State::Refused,
                    State::Open | State::Doubted => State::Doubted,
                };
            }
            return expected(Passed, passed);
        }
        let decided = self.flow.is_some();
        let Some(race) = &mut self.race else {
            return expected(Passed, if error { "in_local" } else { "in_no_flow" });
        };
        if right {
            race.fates.insert(uplink, Fate::Refused);
            if !decided && race.fates.values().all(|fate| *fate != Fate::Asked) {
                self.flow = Some((uplink, State::Refused));
                return expected(Passed, passed);
            }
        }
        let late = decided && !error;
        expected(Dropped, if late { "race_late" } else { "race_refused" })
    }

    fn data(&mut self, uplink: usize) -> Expected {
        if self.is_winner(uplink) {
            return self.heard(uplink);
        }
        match (&self.race, self.flow) {
            (None, _) => expected(Passed, "in_no_flow"),
            (Some(_), Some(_)) => expected(Dropped, "race_late"),
            (Some(_), None) => expected(Sent, "race_lost"),
        }
    }

    /// Whatever follows a refusal says that there is a connection after all.
    fn heard(&mut self, uplink: usize) -> Expected {
        if let Some((_, state)) = &mut self.flow {
            *state = match state {
                State::Answered | State::Refused => State::Answered,
                State::Open | State::Doubted => State::Open,
            };
        }
        debug_assert!(self.is_winner(uplink));
        expected(Passed, "in_stack")
    }
}
