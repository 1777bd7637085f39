//! Explains which uplink a new flow would take.
//!
//! Pure: from a question and a snapshot of the daemon's state to the datapath's decision, with all steps
//! in order. The decisions are not reimplemented here: rules are matched by [`RuleEntry::matches`], and
//! the tables are those of the datapath.
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

use crate::classes::{ClassKind, Classes, UplinkStatus};
use crate::config::{Fallback, OnDown, Settings};
use crate::dns_snoop::NameCache;
use crate::plumbing::{INNER_V4, INNER_V6};
use crate::report::{Candidate, ExplainQuestion, Outcome, ReservationReport, Stage, Step};
use crate::rules::CompiledRules;
use crate::uplinks::uplink_forecasts::Reservation;
use race::Decided;
pub(crate) use race::{is_valid, predict};

/// The daemon's state, as far as the decision depends on it.
#[derive(Clone)]
pub struct Snapshot<'a> {
    /// Current time.
    pub now: KernelTime,
    /// The settings.
    pub settings: &'a Settings,
    /// The rules as the datapath has them.
    pub rules: &'a CompiledRules,
    /// The classes as the datapath has them.
    pub classes: &'a Classes,
    /// Sticky entries: clients that keep an uplink for a site.
    pub sticky: &'a [Sticky],
    /// Path cache entry of the destination.
    pub path: Option<&'a PathCacheEntry>,
    /// Returns the datapath's data for predictions on an uplink, if it has any.
    pub load: &'a dyn Fn(UplinkId) -> Option<UplinkLoad>,
    /// Returns the part of an uplink's capacity that is left to app-limited flows, if there are any.
    pub reservation: &'a dyn Fn(UplinkId) -> Option<Reservation>,
    /// Names of remote addresses, learned from DNS answers.
    pub names: &'a NameCache,
    /// State of the uplinks.
    pub statuses: &'a [UplinkStatus],
    /// Returns an uplink's state with its evidence, in words.
    pub evidence: &'a dyn Fn(UplinkId) -> String,
    /// The main table's route to the destination, if it has one that is more specific than the default
    /// route: Braid never sees such packets.
    pub route: Option<&'a str>,
    /// The uplink on whose own link the destination is, if Braid sends LAN traffic there.
    pub neighbour: Option<UplinkId>,
    /// Reason why the client may open no flow, if there is one.
    pub refused: Option<String>,
    /// Clients with flows of this protocol to the destination, and the uplink of each.
    pub other_flows: &'a [OtherFlow],
}

/// An existing flow to the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherFlow {
    /// The client, inside.
    pub client: IpAddr,
    /// The uplink that carries it.
    pub uplink: UplinkId,
}

/// Outcome for a new flow, and the steps to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Outcome.
    pub outcome: Outcome,
    /// The uplink, if there is only one.
    pub uplink: Option<String>,
    /// Every uplink that it may take.
    pub candidates: Vec<Candidate>,
    /// Capacity that the prediction leaves to app-limited flows.
    pub reservations: Vec<ReservationReport>,
    /// Steps of the decision.
    pub steps: Vec<Step>,
}

fn is_for_many(destination: IpAddr) -> bool {
    match destination {
        IpAddr::V4(address) => address.is_multicast() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_multicast(),
    }
}

/// Explains the decision about a new flow.
#[must_use]
pub fn explain(question: &ExplainQuestion, snapshot: &Snapshot<'_>) -> Explanation {
    let mut trace = Trace {
        snapshot,
        reservations: Vec::new(),
        steps: Vec::new(),
    };
    let facts = rule::facts(question, snapshot);
    let flow = FlowKey {
        client: facts.source,
        dest: question.destination,
        protocol: question.protocol,
        port: question.port,
        family: family_of(question.destination),
    };
    if let Some(id) = snapshot.neighbour {
        if !trace.protocol(&flow) {
            return trace.end(Outcome::Refused, None, Vec::new());
        }
        let candidate = trace.candidate(id, Some(1.0));
        let text = format!(
            "on the link of {} itself: from a LAN by that uplink, whether it works or not",
            candidate.uplink
        );
        trace.note(Stage::Route, text);
        let outcome = trace.unless_held(&flow, Outcome::Uplink, &[id]);
        return trace.end(outcome, Some(id), vec![candidate]);
    }
    if let Some(route) = snapshot.route {
        trace.note(
            Stage::Route,
            format!("the main table has a route of its own: {route}"),
        );
        return trace.end(Outcome::Untouched, None, Vec::new());
    }
    if is_for_many(question.destination) {
        let text =
            "for a group or all of a network and no single host: past Braid, by the main table";
        trace.note(Stage::Route, text.to_owned());
        return trace.end(Outcome::Untouched, None, Vec::new());
    }
    let default = "no route but the default one: Braid's";
    trace.note(Stage::Route, default.to_owned());
    if let Some(refused) = &snapshot.refused {
        trace.note(Stage::Client, refused.clone());
        return trace.end(Outcome::Refused, None, Vec::new());
    }
    let class = match rule::match_rules(&facts, question, snapshot, &mut trace) {
        Some(class) => class,
        None => return trace.end(Outcome::Untouched, None, Vec::new()),
    };
    if !trace.protocol(&flow) {
        return trace.end(Outcome::Refused, None, Vec::new());
    }
    trace.of_class(&flow, class)
}

/// Returns the inside address: the one in the question, or the host's own.
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

/// The fields of a flow that decisions depend on.
struct FlowKey {
    client: IpAddr,
    dest: IpAddr,
    protocol: u8,
    port: Option<u16>,
    family: Family,
}

/// TCP's number, and the port on which an FTP server listens.
const FTP: (u8, Option<u16>) = (6, Some(FTP_CONTROL[0]));

/// Returns how long FTP control and possible data connections keep the uplink of an earlier control
/// connection; `None` if the flow is neither.
fn ftp_time(flow: &FlowKey) -> Option<Duration> {
    let ftp = |port| FTP_CONTROL.contains(&port) || port >= FTP_DATA_FROM;
    (flow.protocol == FTP.0 && flow.port.is_some_and(ftp)).then_some(FTP_KEPT)
}

/// An explanation under construction.
struct Trace<'a, 'w> {
    snapshot: &'a Snapshot<'w>,
    reservations: Vec<ReservationReport>,
    steps: Vec<Step>,
}

impl Trace<'_, '_> {
    fn note(&mut self, stage: Stage, text: String) {
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
            uplink: uplink.map(|id| name(self.snapshot, id)),
            candidates,
            reservations: self.reservations,
            steps: self.steps,
        }
    }

    /// Notes limitations of the protocol. Returns `false` if it cannot be translated.
    fn protocol(&mut self, flow: &FlowKey) -> bool {
        let protocol = Protocol(flow.protocol);
        if (flow.protocol, flow.port) == FTP {
            let text = "passive FTP works; in active mode the server opens the data connection, which \
                        belongs to no flow: have the client use passive mode";
            self.note(Stage::Protocol, text.to_owned());
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
            flow.protocol
        );
        self.note(Stage::Protocol, text);
        false
    }

    /// Returns the outcome, or a refusal if other clients have flows to the destination on all uplinks
    /// that the flow may take: without ports, their answers could not be told apart.
    fn unless_held(&mut self, flow: &FlowKey, outcome: Outcome, uplinks: &[UplinkId]) -> Outcome {
        if Protocol(flow.protocol).translation() != Translation::ByAddress {
            return outcome;
        }
        let mut free = false;
        for id in uplinks {
            let others = |holder: &&OtherFlow| holder.uplink == *id && holder.client != flow.client;
            match self.snapshot.other_flows.iter().find(others) {
                Some(holder) => {
                    let text = format!(
                        "{}: {} has it to {} already, and there are no ports to tell two clients \
                         apart by: reason nat_address_taken, and \"administratively prohibited\" by ICMP",
                        name(self.snapshot, *id),
                        holder.client,
                        flow.dest
                    );
                    self.note(Stage::Protocol, text);
                }
                None => free = true,
            }
        }
        if free { outcome } else { Outcome::Refused }
    }

    fn of_class(mut self, flow: &FlowKey, class: ClassId) -> Explanation {
        let Some(entry) = self.snapshot.classes.entry(class) else {
            self.note(
                Stage::Policy,
                format!("class {} is not set up yet", class.0),
            );
            return self.end(Outcome::NoUplink, None, Vec::new());
        };
        let slots = match flow.family {
            Family::V4 => &entry.v4,
            Family::V6 => &entry.v6,
        };
        let kind = self.snapshot.classes.kind(class);
        self.policy(kind, slots, flow.family);
        if let Some(id) = self.preferred(entry, flow.family) {
            let candidate = self.candidate(id, Some(1.0));
            let text = format!("{}: {}", candidate.uplink, candidate.why);
            self.note(Stage::Uplink, text);
            let outcome = self.unless_held(flow, Outcome::Uplink, &[id]);
            return self.end(outcome, Some(id), vec![candidate]);
        }
        if slots.is_empty() {
            self.absent(flow.family);
            return match kind {
                Some(
                    ClassKind::Share { .. }
                    | ClassKind::Bond {
                        fallback: Fallback::Balance,
                    },
                )
                | None => self.end(Outcome::NoUplink, None, vec![]),
                Some(_) => self.end(Outcome::Blocked, None, Vec::new()),
            };
        }
        let decided = match self.sticky(flow, entry) {
            Some(stuck) => Decided::Chosen(stuck),
            None => self.race(flow, entry),
        };
        let (chosen, raced) = match decided {
            Decided::Chosen(id) => (Some(id), Vec::new()),
            Decided::Raced(uplinks) => (None, uplinks),
            Decided::BySlots => (self.slot(flow, entry, slots), Vec::new()),
        };
        let candidates = match chosen {
            Some(id) => vec![self.candidate(id, Some(1.0))],
            None if raced.is_empty() => self.sharers(slots),
            None => raced.iter().map(|id| self.candidate(*id, None)).collect(),
        };
        for candidate in &candidates {
            let text = format!("{}: {}", candidate.uplink, candidate.why);
            self.note(Stage::Uplink, text);
        }
        self.absent(flow.family);
        let outcome = match chosen {
            Some(id) => self.unless_held(flow, Outcome::Uplink, &[id]),
            None if raced.is_empty() => {
                self.unless_held(flow, Outcome::Shared, &distinct(slots.clone()))
            }
            // Only protocols with ports are raced.
            None => Outcome::Raced,
        };
        self.end(outcome, chosen, candidates)
    }

    /// Returns the uplink that a class prefers, while it takes flows of the family.
    fn preferred(&self, entry: &ClassEntry, family: Family) -> Option<UplinkId> {
        let mut statuses = self.snapshot.statuses.iter();
        let preferred = statuses.find(|status| Some(status.id) == entry.prefers)?;
        preferred.takes(family).then_some(preferred.id)
    }

    /// Notes the policy of the class, and why it does not apply now, if so.
    fn policy(&mut self, kind: Option<&ClassKind>, slots: &[UplinkId], family: Family) {
        let text = match kind {
            None => "the common policy".to_owned(),
            Some(ClassKind::Share { policy, sticky }) => {
                let how = match policy.races() {
                    true => format!("policy {policy}"),
                    false => format!("shared out by {policy}"),
                };
                match sticky.time() {
                    None => how,
                    Some(_) => format!("{how}, a client keeps to a site for {sticky}"),
                }
            }
            Some(ClassKind::Bond { fallback }) => {
                let bond = self.snapshot.statuses.iter().find(|s| s.bond);
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
                        self.snapshot.settings.config.policy
                    ),
                }
            }
            Some(ClassKind::Block) => "blocked".to_owned(),
            Some(ClassKind::Only { uplink, on_down }) => {
                let target = self.snapshot.statuses.iter().find(|s| s.name == *uplink);
                let why = match target {
                    None => Some("is not there".to_owned()),
                    Some(target) if !target.up => Some("takes no new flows".to_owned()),
                    Some(target) => match family {
                        Family::V4 if !target.v4 => Some("has no IPv4".to_owned()),
                        Family::V6 if !target.v6 => Some("has no IPv6".to_owned()),
                        _ => None,
                    },
                };
                match (why, on_down) {
                    (None, _) => format!("only {uplink}"),
                    (Some(why), OnDown::Block) => {
                        format!("only {uplink}, which {why}: blocked meanwhile")
                    }
                    (Some(why), OnDown::Fallback) if slots.is_empty() => {
                        format!("only {uplink}, which {why}, and there is no other")
                    }
                    (Some(why), OnDown::Fallback) => {
                        format!("only {uplink}, which {why}: the others take over meanwhile")
                    }
                }
            }
        };
        self.note(Stage::Policy, text);
    }

    /// Returns the uplink that the client keeps for this site, by its class or because of FTP.
    fn sticky(&mut self, flow: &FlowKey, entry: &ClassEntry) -> Option<UplinkId> {
        let time = entry.sticky.or_else(|| ftp_time(flow))?;
        let known = self.snapshot.names.get(self.snapshot.now, flow.dest);
        let site = known
            .filter(|known| known.facts.site != 0)
            .map_or(Site::of(flow.dest), |known| Site::Named(known.facts.site));
        let called = match (site, known) {
            (Site::Named(_), Some(known)) => format!("the site of {}", known.name),
            (_, _) => format!("the network of {}", flow.dest),
        };
        let found = self.snapshot.sticky.iter().find(|sticky| {
            (sticky.client, sticky.site, sticky.class) == (flow.client, site, entry.id)
        });
        let age = found.map(|sticky| self.snapshot.now.since(sticky.used));
        let (Some(sticky), Some(age)) = (found, age.filter(|age| *age < time)) else {
            // Most connections that could be FTP data are not.
            entry.sticky?;
            let text = format!("{} has no uplink for {called} yet", flow.client);
            self.note(Stage::Sticky, text);
            return None;
        };
        let uplink = name(self.snapshot, sticky.uplink);
        let status = self
            .snapshot
            .statuses
            .iter()
            .find(|s| s.id == sticky.uplink);
        let able = status.is_some_and(|s| {
            s.up && match flow.family {
                Family::V4 => s.v4,
                Family::V6 => s.v6,
            }
        });
        let (client, ago) = (flow.client, whole_seconds(age));
        let keeps = format!("{client} keeps to {uplink} for {called}, last used {ago} ago");
        self.note(
            Stage::Sticky,
            match able {
                true => keeps,
                false => format!("{keeps}, but {uplink} takes no new flows"),
            },
        );
        able.then_some(sticky.uplink)
    }

    /// Returns the uplink of the flow's slot, if it is certain.
    fn slot(&mut self, flow: &FlowKey, entry: &ClassEntry, slots: &[UplinkId]) -> Option<UplinkId> {
        let sole = slots
            .iter()
            .all(|slot| *slot == slots[0])
            .then_some(slots[0]);
        if slots.len() == 1 {
            return sole;
        }
        let position = entry.lb_method.slot(flow.client, flow.dest, slots.len());
        let (text, chosen) = match (entry.lb_method, position) {
            (LbMethod::HashSource, Some(at)) => (
                format!(
                    "slot {at} of {}, by the hash of {}",
                    slots.len(),
                    flow.client
                ),
                Some(slots[at]),
            ),
            (LbMethod::HashPair, Some(at)) => (
                format!(
                    "slot {at} of {}, by the hash of {} and {}",
                    slots.len(),
                    flow.client,
                    flow.dest
                ),
                Some(slots[at]),
            ),
            (_, _) => (format!("the next of {} slots", slots.len()), sole),
        };
        self.note(Stage::Slot, text);
        chosen
    }

    fn candidate(&self, id: UplinkId, share: Option<f64>) -> Candidate {
        Candidate {
            uplink: name(self.snapshot, id),
            share,
            why: (self.snapshot.evidence)(id),
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

    /// Notes the uplinks that take no flows of this family, each with its reason.
    fn absent(&mut self, family: Family) {
        let snapshot = self.snapshot;
        let waiting: Vec<UplinkId> = snapshot
            .classes
            .waiting(snapshot.statuses)
            .map(|status| status.id)
            .collect();
        for status in snapshot.statuses {
            let name = &status.name;
            let text = match family {
                _ if !status.up => {
                    format!(
                        "{name} takes no new flows: {}",
                        (snapshot.evidence)(status.id)
                    )
                }
                Family::V4 if !status.v4 => format!("{name} has no IPv4"),
                Family::V6 if !status.v6 => format!("{name} has no IPv6"),
                _ if waiting.contains(&status.id) => {
                    format!("{name} is back and waits, since failback is never")
                }
                _ => continue,
            };
            self.note(Stage::Uplink, text);
        }
    }
}

/// Returns each uplink once.
fn distinct(mut uplinks: Vec<UplinkId>) -> Vec<UplinkId> {
    uplinks.sort();
    uplinks.dedup();
    uplinks
}

fn name(snapshot: &Snapshot<'_>, id: UplinkId) -> String {
    let status = snapshot.statuses.iter().find(|status| status.id == id);
    status.map_or_else(|| format!("uplink {id}"), |status| status.name.clone())
}

fn whole_seconds(span: std::time::Duration) -> String {
    duration::display(std::time::Duration::from_secs(span.as_secs())).to_string()
}
