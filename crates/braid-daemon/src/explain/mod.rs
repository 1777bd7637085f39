//! Why a new flow would go where.
//!
//! Pure: a question and what the daemon knows go in; what the datapath would decide comes out, with
//! each thing that is looked at on the way, in the order in which it is. The decisions are not made
//! anew here: rules are held against the flow by [`RuleEntry::matches`], tables are those that the
//! datapath walks.
//!
//! [`RuleEntry::matches`]: braid_balance::RuleEntry::matches

mod race;
mod rule;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::time::Duration;

use braid_balance::{
    ClassEntry, ClassId, FTP_CONTROL, FTP_DATA_FROM, FTP_KEPT, Family, KernelTime, LbMethod,
    PathCacheEntry, Protocol, Site, Sticky, Translation,
};
use braid_core::UplinkId;
use braid_core::forecast::UplinkLoad;
use braid_core::units::duration;

use crate::classes::{Classes, Purpose, Standing};
use crate::config::{Fallback, WhenDown};
use crate::names::Names;
use crate::plumbing::{INNER_V4, INNER_V6};
use crate::report::{Candidate, ExplainQuestion, Outcome, Stage, Step};
use crate::rules::RuleBook;
use crate::settings::Settings;
use race::Decided;
pub(crate) use race::{counts, predict};

/// What the daemon knows.
#[derive(Clone)]
pub struct World<'a> {
    /// Now.
    pub now: KernelTime,
    /// The settings.
    pub settings: &'a Settings,
    /// The rules as the datapath has them.
    pub rules: &'a RuleBook,
    /// The classes as the datapath has them.
    pub classes: &'a Classes,
    /// Which client keeps to which uplink.
    pub sticky: &'a [Sticky],
    /// What is remembered of the ways to the destination.
    pub path: Option<&'a PathCacheEntry>,
    /// What the datapath goes by in its predictions for an uplink, if it was told anything.
    pub line: &'a dyn Fn(UplinkId) -> Option<UplinkLoad>,
    /// What addresses are called.
    pub names: &'a Names,
    /// How the uplinks stand.
    pub standings: &'a [Standing],
    /// An uplink's state with its evidence, in words.
    pub evidence: &'a dyn Fn(UplinkId) -> String,
    /// The main table's route to the destination, where it has one that is more specific than the
    /// default route: Braid never sees such packets.
    pub route: Option<&'a str>,
    /// The uplink on whose own link the destination is, where Braid takes what comes from a LAN there.
    pub neighbour: Option<UplinkId>,
    /// Why the client may open no flow, if that is so.
    pub refused: Option<String>,
    /// Clients with flows of this protocol to the destination, and the uplink of each.
    pub holders: &'a [Holder],
}

/// Somebody's flow to the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The client, inside.
    pub client: IpAddr,
    /// The uplink that carries it.
    pub uplink: UplinkId,
}

/// What becomes of a new flow, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// What becomes of it.
    pub outcome: Outcome,
    /// The uplink, where there is only one.
    pub uplink: Option<String>,
    /// Every uplink that it may take.
    pub candidates: Vec<Candidate>,
    /// How it came to that.
    pub steps: Vec<Step>,
}

fn is_for_many(destination: IpAddr) -> bool {
    match destination {
        IpAddr::V4(address) => address.is_multicast() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_multicast(),
    }
}

/// Explains what would become of a new flow.
#[must_use]
pub fn explain(question: &ExplainQuestion, world: &World<'_>) -> Explanation {
    let mut story = Story {
        world,
        steps: Vec::new(),
    };
    let facts = rule::facts(question, world);
    let asked = Asked {
        client: facts.source,
        dest: question.destination,
        protocol: question.protocol,
        port: question.port,
        family: family_of(question.destination),
    };
    if let Some(id) = world.neighbour {
        if !story.protocol(&asked) {
            return story.end(Outcome::Refused, None, Vec::new());
        }
        let candidate = story.candidate(id, Some(1.0));
        let text = format!(
            "on the link of {} itself: from a LAN by that uplink, whether it works or not",
            candidate.uplink
        );
        story.tell(Stage::Route, text);
        let outcome = story.unless_held(&asked, Outcome::Uplink, &[id]);
        return story.end(outcome, Some(id), vec![candidate]);
    }
    if let Some(route) = world.route {
        story.tell(
            Stage::Route,
            format!("the main table has a route of its own: {route}"),
        );
        return story.end(Outcome::Untouched, None, Vec::new());
    }
    if is_for_many(question.destination) {
        let text =
            "for a group or all of a network and no single host: past Braid, by the main table";
        story.tell(Stage::Route, text.to_owned());
        return story.end(Outcome::Untouched, None, Vec::new());
    }
    let default = "no route but the default one: Braid's";
    story.tell(Stage::Route, default.to_owned());
    if let Some(refused) = &world.refused {
        story.tell(Stage::Client, refused.clone());
        return story.end(Outcome::Refused, None, Vec::new());
    }
    let class = match rule::judge(&facts, question, world, &mut story) {
        Some(class) => class,
        None => return story.end(Outcome::Untouched, None, Vec::new()),
    };
    if !story.protocol(&asked) {
        return story.end(Outcome::Refused, None, Vec::new());
    }
    story.of_class(&asked, class)
}

/// The inside's address: the one that was named, or the host's own.
pub(crate) fn client(question: &ExplainQuestion) -> IpAddr {
    question.source.unwrap_or(match question.destination {
        IpAddr::V4(_) => INNER_V4.into(),
        IpAddr::V6(_) => INNER_V6.into(),
    })
}

fn family_of(address: IpAddr) -> Family {
    match address {
        IpAddr::V4(_) => Family::V4,
        IpAddr::V6(_) => Family::V6,
    }
}

/// Who speaks to whom.
struct Asked {
    client: IpAddr,
    dest: IpAddr,
    protocol: u8,
    port: Option<u16>,
    family: Family,
}

/// TCP's number, and the port on which an FTP server listens.
const FTP: (u8, Option<u16>) = (6, Some(FTP_CONTROL[0]));

/// For how long an FTP control connection, and what may be its data, keep the uplink of an earlier control
/// connection; `None`: neither is asked about.
fn ftp_time(asked: &Asked) -> Option<Duration> {
    let ftp = |port| FTP_CONTROL.contains(&port) || port >= FTP_DATA_FROM;
    (asked.protocol == FTP.0 && asked.port.is_some_and(ftp)).then_some(FTP_KEPT)
}

/// An explanation while it is told.
struct Story<'a, 'w> {
    world: &'a World<'w>,
    steps: Vec<Step>,
}

impl Story<'_, '_> {
    fn tell(&mut self, stage: Stage, text: String) {
        self.steps.push(Step { stage, text });
    }

    fn end(
        self,
        outcome: Outcome,
        uplink: Option<UplinkId>,
        candidates: Vec<Candidate>,
    ) -> Explanation {
        let (uplink, candidates) = match outcome {
            Outcome::Refused => (None, Vec::new()),
            _ => (uplink, candidates),
        };
        Explanation {
            outcome,
            uplink: uplink.map(|id| name(self.world, id)),
            candidates,
            steps: self.steps,
        }
    }

    /// Tells what the protocol is in for. `false`: it cannot be translated.
    fn protocol(&mut self, asked: &Asked) -> bool {
        let protocol = Protocol(asked.protocol);
        if (asked.protocol, asked.port) == FTP {
            let text = "passive FTP works; in active mode the server opens the data connection, which \
                        belongs to no flow: have the client use passive mode";
            self.tell(Stage::Protocol, text.to_owned());
        }
        if protocol.translation() != Translation::None {
            return true;
        }
        let hears = match protocol.is_of_links() {
            true => "routers of one link speak it among themselves, so its sender hears nothing",
            false => "its sender hears \"administratively prohibited\" by ICMP",
        };
        let text = format!(
            "IP protocol {} cannot be translated: reason out_protocol; {hears}",
            asked.protocol
        );
        self.tell(Stage::Protocol, text);
        false
    }

    /// The outcome, or a refusal if other clients have the destination by all uplinks that the flow
    /// may take: without ports, answers could not be told apart.
    fn unless_held(&mut self, asked: &Asked, outcome: Outcome, uplinks: &[UplinkId]) -> Outcome {
        if Protocol(asked.protocol).translation() != Translation::ByAddress {
            return outcome;
        }
        let mut free = false;
        for id in uplinks {
            let others = |holder: &&Holder| holder.uplink == *id && holder.client != asked.client;
            match self.world.holders.iter().find(others) {
                Some(holder) => {
                    let text = format!(
                        "{}: {} has it to {} already, and there are no ports to tell two clients \
                         apart by: reason nat_address_taken, and \"administratively prohibited\" by ICMP",
                        name(self.world, *id),
                        holder.client,
                        asked.dest
                    );
                    self.tell(Stage::Protocol, text);
                }
                None => free = true,
            }
        }
        if free { outcome } else { Outcome::Refused }
    }

    fn of_class(mut self, asked: &Asked, class: ClassId) -> Explanation {
        let Some(entry) = self.world.classes.entry(class) else {
            self.tell(
                Stage::Policy,
                format!("class {} is not set up yet", class.0),
            );
            return self.end(Outcome::NoUplink, None, Vec::new());
        };
        let slots = match asked.family {
            Family::V4 => &entry.v4,
            Family::V6 => &entry.v6,
        };
        let purpose = self.world.classes.purpose(class);
        self.policy(purpose, slots, asked.family);
        if let Some(id) = self.preferred(entry, asked.family) {
            let candidate = self.candidate(id, Some(1.0));
            let text = format!("{}: {}", candidate.uplink, candidate.why);
            self.tell(Stage::Uplink, text);
            let outcome = self.unless_held(asked, Outcome::Uplink, &[id]);
            return self.end(outcome, Some(id), vec![candidate]);
        }
        if slots.is_empty() {
            self.absent(asked.family);
            return match purpose {
                Some(
                    Purpose::Share { .. }
                    | Purpose::Bond {
                        fallback: Fallback::Balance,
                    },
                )
                | None => self.end(Outcome::NoUplink, None, vec![]),
                Some(_) => self.end(Outcome::Blocked, None, Vec::new()),
            };
        }
        let decided = match self.sticky(asked, entry) {
            Some(stuck) => Decided::Chosen(stuck),
            None => self.race(asked, entry),
        };
        let (chosen, racers) = match decided {
            Decided::Chosen(id) => (Some(id), Vec::new()),
            Decided::Raced(racers) => (None, racers),
            Decided::BySlots => (self.slot(asked, entry, slots), Vec::new()),
        };
        let candidates = match chosen {
            Some(id) => vec![self.candidate(id, Some(1.0))],
            None if racers.is_empty() => self.sharers(slots),
            None => racers.iter().map(|id| self.candidate(*id, None)).collect(),
        };
        for candidate in &candidates {
            let text = format!("{}: {}", candidate.uplink, candidate.why);
            self.tell(Stage::Uplink, text);
        }
        self.absent(asked.family);
        let outcome = match chosen {
            Some(id) => self.unless_held(asked, Outcome::Uplink, &[id]),
            None if racers.is_empty() => {
                self.unless_held(asked, Outcome::Shared, &distinct(slots.clone()))
            }
            // Only protocols with ports are raced.
            None => Outcome::Raced,
        };
        self.end(outcome, chosen, candidates)
    }

    /// The uplink that takes all of a class, while it takes any of the family.
    fn preferred(&self, entry: &ClassEntry, family: Family) -> Option<UplinkId> {
        let mut standings = self.world.standings.iter();
        let preferred = standings.find(|standing| Some(standing.id) == entry.prefers)?;
        preferred.takes(family).then_some(preferred.id)
    }

    /// What the class is for, and where that differs from what happens now, why.
    fn policy(&mut self, purpose: Option<&Purpose>, slots: &[UplinkId], family: Family) {
        let text = match purpose {
            None => "the common policy".to_owned(),
            Some(Purpose::Share { policy, sticky }) => {
                let how = match policy.races() {
                    true => format!("policy {policy}"),
                    false => format!("shared out by {policy}"),
                };
                match sticky.time() {
                    None => how,
                    Some(_) => format!("{how}, a client keeps to a site for {sticky}"),
                }
            }
            Some(Purpose::Bond { fallback }) => {
                let bond = self.world.standings.iter().find(|s| s.bond);
                let why = match bond {
                    None => "is not there",
                    Some(bond) if !bond.up => "carries nothing",
                    Some(bond) if !bond.takes(family) => "has no address of this family",
                    Some(_) => "",
                };
                match (why, fallback) {
                    ("", _) => "the bond".to_owned(),
                    (why, Fallback::Block) => format!("the bond, which {why}: blocked meanwhile"),
                    (why, Fallback::Balance) => format!(
                        "the bond, which {why}: policy {} meanwhile",
                        self.world.settings.config.policy
                    ),
                }
            }
            Some(Purpose::Block) => "blocked".to_owned(),
            Some(Purpose::Only { uplink, when_down }) => {
                let target = self.world.standings.iter().find(|s| s.name == *uplink);
                let why = match target {
                    None => Some("is not there".to_owned()),
                    Some(target) if !target.up => Some("takes no new flows".to_owned()),
                    Some(target) => match family {
                        Family::V4 if !target.v4 => Some("has no IPv4".to_owned()),
                        Family::V6 if !target.v6 => Some("has no IPv6".to_owned()),
                        _ => None,
                    },
                };
                match (why, when_down) {
                    (None, _) => format!("only {uplink}"),
                    (Some(why), WhenDown::Block) => {
                        format!("only {uplink}, which {why}: blocked meanwhile")
                    }
                    (Some(why), WhenDown::Others) if slots.is_empty() => {
                        format!("only {uplink}, which {why}, and there is no other")
                    }
                    (Some(why), WhenDown::Others) => {
                        format!("only {uplink}, which {why}: the others take over meanwhile")
                    }
                }
            }
        };
        self.tell(Stage::Policy, text);
    }

    /// The uplink that the client keeps to for this site, by its class or as FTP has to.
    fn sticky(&mut self, asked: &Asked, entry: &ClassEntry) -> Option<UplinkId> {
        let time = entry.sticky.or_else(|| ftp_time(asked))?;
        let known = self.world.names.look(self.world.now, asked.dest);
        let site = known
            .filter(|known| known.facts.site != 0)
            .map_or(Site::of(asked.dest), |known| Site::Named(known.facts.site));
        let called = match (site, known) {
            (Site::Named(_), Some(known)) => format!("the site of {}", known.name),
            (_, _) => format!("the network of {}", asked.dest),
        };
        let found = self.world.sticky.iter().find(|sticky| {
            (sticky.client, sticky.site, sticky.class) == (asked.client, site, entry.id)
        });
        let age = found.map(|sticky| self.world.now.since(sticky.used));
        let (Some(sticky), Some(age)) = (found, age.filter(|age| *age < time)) else {
            // Most connections that may be data of FTP are none.
            entry.sticky?;
            let text = format!("{} has no uplink for {called} yet", asked.client);
            self.tell(Stage::Sticky, text);
            return None;
        };
        let uplink = name(self.world, sticky.uplink);
        let standing = self.world.standings.iter().find(|s| s.id == sticky.uplink);
        let able = standing.is_some_and(|s| {
            s.up && match asked.family {
                Family::V4 => s.v4,
                Family::V6 => s.v6,
            }
        });
        let (client, ago) = (asked.client, whole_seconds(age));
        let keeps = format!("{client} keeps to {uplink} for {called}, last used {ago} ago");
        self.tell(
            Stage::Sticky,
            match able {
                true => keeps,
                false => format!("{keeps}, but {uplink} takes no new flows"),
            },
        );
        able.then_some(sticky.uplink)
    }

    /// The slot that the flow gets, where that is certain.
    fn slot(&mut self, asked: &Asked, entry: &ClassEntry, slots: &[UplinkId]) -> Option<UplinkId> {
        let sole = slots
            .iter()
            .all(|slot| *slot == slots[0])
            .then_some(slots[0]);
        if slots.len() == 1 {
            return sole;
        }
        let position = entry.lb_method.slot(asked.client, asked.dest, slots.len());
        let (text, chosen) = match (entry.lb_method, position) {
            (LbMethod::HashSource, Some(at)) => (
                format!(
                    "slot {at} of {}, by the hash of {}",
                    slots.len(),
                    asked.client
                ),
                Some(slots[at]),
            ),
            (LbMethod::HashPair, Some(at)) => (
                format!(
                    "slot {at} of {}, by the hash of {} and {}",
                    slots.len(),
                    asked.client,
                    asked.dest
                ),
                Some(slots[at]),
            ),
            (_, _) => (format!("the next of {} slots", slots.len()), sole),
        };
        self.tell(Stage::Slot, text);
        chosen
    }

    fn candidate(&self, id: UplinkId, share: Option<f64>) -> Candidate {
        Candidate {
            uplink: name(self.world, id),
            share,
            why: (self.world.evidence)(id),
        }
    }

    fn sharers(&self, slots: &[UplinkId]) -> Vec<Candidate> {
        let mut sharers: Vec<(UplinkId, usize)> = Vec::new();
        for slot in slots {
            match sharers.iter_mut().find(|(id, _)| id == slot) {
                Some((_, count)) => *count += 1,
                None => sharers.push((*slot, 1)),
            }
        }
        sharers.sort_by_key(|(id, count)| (std::cmp::Reverse(*count), *id));
        let share = |count: usize| count as f64 / slots.len() as f64;
        sharers
            .into_iter()
            .map(|(id, count)| self.candidate(id, Some(share(count))))
            .collect()
    }

    /// Uplinks that take no flows of this family, each with its reason.
    fn absent(&mut self, family: Family) {
        let world = self.world;
        let waiting: Vec<UplinkId> = world
            .classes
            .waiting(world.standings)
            .map(|standing| standing.id)
            .collect();
        for standing in world.standings {
            let name = &standing.name;
            let text = match family {
                _ if !standing.up => {
                    format!(
                        "{name} takes no new flows: {}",
                        (world.evidence)(standing.id)
                    )
                }
                Family::V4 if !standing.v4 => format!("{name} has no IPv4"),
                Family::V6 if !standing.v6 => format!("{name} has no IPv6"),
                _ if waiting.contains(&standing.id) => {
                    format!("{name} is back and waits, since failback is never")
                }
                _ => continue,
            };
            self.tell(Stage::Uplink, text);
        }
    }
}

/// Each uplink once.
fn distinct(mut uplinks: Vec<UplinkId>) -> Vec<UplinkId> {
    uplinks.sort();
    uplinks.dedup();
    uplinks
}

fn name(world: &World<'_>, id: UplinkId) -> String {
    let standing = world.standings.iter().find(|standing| standing.id == id);
    standing.map_or_else(|| format!("uplink {id}"), |standing| standing.name.clone())
}

fn whole_seconds(span: std::time::Duration) -> String {
    duration::display(std::time::Duration::from_secs(span.as_secs())).to_string()
}
