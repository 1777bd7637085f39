//! Addresses of links: a client whose provider gives it another address, and an attacker who sees
//! one of its two lines, sends from any source address, and receives at one of its own.

use std::collections::BTreeSet;

use super::explore::{Model, explore};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Address {
    /// The client's first and second address on a link.
    Home(u8),
    /// The attacker's.
    Attacker,
    /// Of a third party, who answers nothing.
    Victim,
}

const LINKS: usize = 2;
/// The line that the attacker sees.
const SEEN: usize = 0;
/// Packets of a link, so that the search ends.
const PACKETS: u8 = 3;

#[derive(Clone, Copy, Debug)]
struct Rules {
    /// A new address is used once a challenge was answered from there.
    challenges: bool,
    /// Only a packet with the highest number so far proposes an address.
    newest_counts: bool,
}

const NOW: Rules = Rules {
    challenges: true,
    newest_counts: true,
};

/// A sealed packet from the client: its number, and the challenge that it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Packet {
    number: u8,
    answers: Option<Address>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct Link {
    /// The client's address now.
    home: u8,
    sent: u8,
    /// Packets that have not arrived at the hub, with the address that they were sent from. Each
    /// counts once, wherever a copy comes from.
    flying: BTreeSet<(Packet, u8)>,
    /// The hub's state.
    proven: Option<Address>,
    challenged: Option<Address>,
    highest: u8,
    /// Challenges that have reached the client. A token stands for the address that it was sent to.
    heard: BTreeSet<Address>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    links: [Link; LINKS],
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Move(usize),
    Send(usize, Option<Address>),
    Arrive(usize, Packet, Address),
    /// The hub's challenge reaches the client: at its address, or passed on by the attacker.
    Hear(usize, Address),
}

impl State {
    fn new() -> State {
        let link = Link {
            proven: Some(Address::Home(0)),
            ..Link::default()
        };
        State {
            links: [link.clone(), link],
        }
    }

    fn arrive(&mut self, rules: Rules, at: usize, packet: Packet, from: Address) {
        let link = &mut self.links[at];
        link.flying.retain(|(flying, _)| *flying != packet);
        let is_newest = packet.number > link.highest;
        link.highest = link.highest.max(packet.number);
        if packet.answers == Some(from) && link.challenged == Some(from) {
            (link.proven, link.challenged) = (Some(from), None);
        }
        if (is_newest || !rules.newest_counts) && link.proven != Some(from) {
            match rules.challenges {
                true => link.challenged = Some(from),
                false => link.proven = Some(from),
            }
        }
    }

    /// Lets a link's client send, and hear what it is asked, until nothing changes.
    fn settle(&mut self, rules: Rules, at: usize) {
        for _ in 0..3 {
            let link = &mut self.links[at];
            link.highest = link.highest.max(link.sent);
            let home = Address::Home(link.home);
            link.sent = link.highest + 1;
            let packet = Packet {
                number: link.sent,
                answers: link.heard.contains(&home).then_some(home),
            };
            self.arrive(rules, at, packet, home);
            let link = &mut self.links[at];
            if link.challenged == Some(home) {
                link.heard.insert(home);
            }
        }
    }
}

impl Model for State {
    type Rules = Rules;
    type Step = Step;

    fn steps(&self, _: Rules) -> Vec<Step> {
        let mut steps = Vec::new();
        for (at, link) in self.links.iter().enumerate() {
            if link.home == 0 {
                steps.push(Step::Move(at));
            }
            if link.sent < PACKETS {
                steps.push(Step::Send(at, None));
                steps.extend(link.heard.iter().map(|token| Step::Send(at, Some(*token))));
            }
            for (packet, home) in &link.flying {
                steps.push(Step::Arrive(at, *packet, Address::Home(*home)));
                if at == SEEN {
                    steps.push(Step::Arrive(at, *packet, Address::Attacker));
                    steps.push(Step::Arrive(at, *packet, Address::Victim));
                }
            }
            match link.challenged {
                Some(to @ Address::Home(home)) if home == link.home => {
                    steps.push(Step::Hear(at, to));
                }
                Some(Address::Attacker) => steps.push(Step::Hear(at, Address::Attacker)),
                _ => {}
            }
        }
        steps
    }

    fn take(&mut self, rules: Rules, step: Step) -> Result<(), &'static str> {
        match step {
            Step::Move(at) => self.links[at].home = 1,
            Step::Send(at, answers) => {
                let link = &mut self.links[at];
                link.sent += 1;
                let packet = Packet {
                    number: link.sent,
                    answers,
                };
                link.flying.insert((packet, link.home));
            }
            Step::Arrive(at, packet, from) => self.arrive(rules, at, packet, from),
            Step::Hear(at, token) => _ = self.links[at].heard.insert(token),
        }
        Ok(())
    }

    fn check(&self, rules: Rules) -> Result<(), &'static str> {
        for (at, link) in self.links.iter().enumerate() {
            if link.proven == Some(Address::Victim) {
                return Err("the hub sends to somebody who never asked for it");
            }
            if at != SEEN && link.proven == Some(Address::Attacker) {
                return Err("the attacker takes a line that it does not see");
            }
            let mut later = self.clone();
            later.settle(rules, at);
            if later.links[at].proven != Some(Address::Home(link.home)) {
                return Err("a link does not come back to its client");
            }
        }
        Ok(())
    }
}

#[test]
fn a_link_moves_to_who_answers_and_back_to_its_client() {
    let states = explore(NOW, [State::new()]);
    let states = states.unwrap_or_else(|(broken, way)| panic!("{broken}: {way:?}"));
    println!("{states} states");
    assert!(states > 1000, "{states} states");
}

#[test]
fn the_source_of_the_latest_packet_alone_sends_a_flood_to_a_victim() {
    let draft = Rules {
        challenges: false,
        ..NOW
    };
    let (broken, way) = explore(draft, [State::new()]).expect_err("the attack is found");
    println!("{way:?}");
    assert_eq!(broken, "the hub sends to somebody who never asked for it");
}
