//! Who the uplinks are: those seen now, and those seen before whose flows are still in the kernel;
//! and how each stands.
//!
//! Pure: discoveries and verdicts go in; the datapath's entries, and how the uplinks stand for those
//! who share out flows, come out.
//!
//! Rules:
//! - An uplink keeps its number for as long as it is known, also across restarts of the daemon,
//!   because flows in the kernel refer to it.
//! - An uplink that goes away stays listed and keeps its number, taking no new flows: when it comes
//!   back with its address, its flows go on. Without its device it has no entry in the datapath,
//!   whose index might be another's by then.
//! - Uplinks that nobody named are their devices: one that is renamed is the same uplink under
//!   another name (and has the weight of that name). Uplinks of a configuration are what their
//!   device's name says, whichever device bears it.
//! - An uplink that nothing gets through takes no new flows, unless there is no better one for that
//!   family of addresses: then the judgement may be wrong, and nothing is lost by trying.

mod epoch;
mod member;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::mem;
use std::net::IpAddr;
use std::time::Duration;

use braid_balance::{Family, Layer, NextHop, UplinkEntry};
use braid_core::{MAX_UPLINKS, UplinkId};
use braid_uplink::liveness::{Look, Verdict};
use braid_uplink::{Discovery, Link, LinkState, Reason, Snapshot, Uplink};

pub use member::{FAMILIES, Member};

use crate::classes::{Load, Standing};
use crate::settings::Settings;
use crate::state::Remembered;

/// A change that a user would notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An uplink is to be used from now on.
    Taken(String),
    /// An uplink is usable again.
    Back(String),
    /// An uplink cannot be used any more, and why.
    Gone(String, String),
    /// An uplink's device has another name now: the old one, the new one.
    Renamed(String, String),
    /// An uplink has another address, gateway, MTU or device index.
    Renumbered(String),
    /// There is an uplink, but no number left for it.
    NoRoom(String),
}

/// All uplinks of an instance.
#[derive(Clone, Debug, Default)]
pub struct Roster {
    members: Vec<Member>,
    remembered: Vec<Remembered>,
}

impl Roster {
    /// Starts with the numbers that an earlier daemon gave out.
    #[must_use]
    pub fn new(remembered: Vec<Remembered>) -> Roster {
        Roster {
            members: Vec::new(),
            remembered,
        }
    }

    /// Goes by these numbers. For a roster that has no members yet.
    pub fn recall(&mut self, remembered: Vec<Remembered>) {
        self.remembered = remembered;
    }

    /// All uplinks, in the order in which they were first seen.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The numbers given out, for the next daemon.
    #[must_use]
    pub fn remembered(&self) -> &[Remembered] {
        &self.remembered
    }

    /// Takes in an uplink of an earlier daemon that cannot take new flows yet, and why.
    pub fn inherit(&mut self, uplink: &Uplink, why: String, settings: &Settings) {
        self.note(uplink, settings);
        let mut members = self.members.iter_mut();
        if let Some(member) = members.find(|member| member.uplink.device == uplink.device) {
            member.down = Some(why);
        }
    }

    /// Takes note of what there is now.
    pub fn update(
        &mut self,
        found: &Discovery,
        snapshot: &Snapshot,
        settings: &Settings,
    ) -> Vec<Change> {
        let mut changes = match settings.config.uplinks.is_empty() {
            true => self.rename(snapshot),
            false => Vec::new(),
        };
        for member in &mut self.members {
            let link = snapshot.link_named(&member.uplink.device);
            member.present = link.is_some();
            if let Some(link) = link {
                // A device that was made anew under its old name has another index.
                member.uplink.ifindex = link.index;
            }
            if found
                .uplinks
                .iter()
                .any(|uplink| uplink.device == member.uplink.device)
            {
                continue;
            }
            let device = &member.uplink.device;
            let rejected = found
                .rejected
                .iter()
                .find(|r| r.candidate.device == *device);
            // A device that goes down loses its routes and is then no candidate at all.
            let reason = rejected.map_or_else(|| state_of(link), |r| r.reason.clone());
            member.cut = grace(&reason);
            let why = match rejected {
                None if !settings.selects(device) => "not in the configuration any more".into(),
                _ => reason.to_string(),
            };
            if member.down.as_ref() != Some(&why) {
                changes.push(Change::Gone(member.uplink.name.clone(), why.clone()));
                member.down = Some(why);
            }
        }
        for uplink in &found.uplinks {
            changes.extend(self.note(uplink, settings));
        }
        self.remember_indices();
        self.count_failures();
        changes
    }

    /// Follows devices to their new names, also those of an earlier daemon. An uplink that is gone
    /// and whose name another one bears now is forgotten: nobody could tell the two apart.
    fn rename(&mut self, snapshot: &Snapshot) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut renamed = Vec::new();
        for known in &mut self.remembered {
            let link = snapshot.link(known.ifindex);
            let Some(link) = link.filter(|link| link.name != known.device) else {
                continue;
            };
            let old = mem::replace(&mut known.device, link.name.clone());
            let members = self.members.iter_mut();
            for member in members.filter(|member| member.id.0 == known.index) {
                member.uplink.device.clone_from(&link.name);
                member.uplink.name.clone_from(&link.name);
            }
            renamed.push((known.index, link.name.clone()));
            changes.push(Change::Renamed(old, link.name.clone()));
        }
        let stays = |id: u8, device: &str| {
            let mut others = renamed.iter().filter(|(other, _)| *other != id);
            others.all(|(_, name)| name != device)
        };
        self.members
            .retain(|member| stays(member.id.0, &member.uplink.device));
        self.remembered
            .retain(|known| stays(known.index, &known.device));
        changes
    }

    /// By its index a device is known again under another name, as long as it is there.
    fn remember_indices(&mut self) {
        for member in &self.members {
            let known = self.remembered.iter_mut();
            for known in known.filter(|known| known.index == member.id.0) {
                known.ifindex = match member.present {
                    true => member.uplink.ifindex,
                    false => 0,
                };
            }
        }
    }

    fn note(&mut self, uplink: &Uplink, settings: &Settings) -> Option<Change> {
        let name = uplink.name.clone();
        let known = self
            .members
            .iter_mut()
            .find(|m| m.uplink.device == uplink.device);
        if let Some(member) = known {
            let was_down = member.down.take().is_some();
            member.present = true;
            member.cut = None;
            member.weight = settings.weight(&name);
            member.ports = settings.ports(&name).range();
            let differs = member.uplink != *uplink;
            member.uplink = uplink.clone();
            return match (was_down, differs) {
                (true, _) => Some(Change::Back(name)),
                (false, true) => Some(Change::Renumbered(name)),
                (false, false) => None,
            };
        }
        let Some(id) = self.number(&uplink.device) else {
            return Some(Change::NoRoom(name));
        };
        self.members.push(Member {
            id,
            weight: settings.weight(&name),
            ports: settings.ports(&name).range(),
            uplink: uplink.clone(),
            down: None,
            cut: None,
            present: true,
            look: None,
            worked: [false; 2],
        });
        Some(Change::Taken(name))
    }

    /// The number of a device: the one it had, or the lowest that nobody had, or one of a device
    /// that is known from an earlier daemon alone.
    fn number(&mut self, device: &str) -> Option<UplinkId> {
        if let Some(known) = self.remembered.iter().find(|known| known.device == device) {
            return Some(UplinkId(known.index));
        }
        let limit = u8::try_from(MAX_UPLINKS).unwrap_or(u8::MAX);
        let free = (0..limit).find(|index| self.remembered.iter().all(|r| r.index != *index));
        let index = free.or_else(|| {
            let idle = |r: &Remembered| self.members.iter().all(|m| m.id.0 != r.index);
            let reused = self.remembered.iter().position(idle)?;
            Some(self.remembered.remove(reused).index)
        })?;
        self.remembered.push(Remembered {
            index,
            device: device.to_owned(),
            ifindex: 0,
            failures: 0,
        });
        Some(UplinkId(index))
    }

    /// Takes note of how the uplinks fare.
    pub fn judge(&mut self, look: impl Fn(UplinkId) -> Option<Look>) {
        for member in &mut self.members {
            member.look = look(member.id);
        }
        self.count_failures();
    }

    /// The uplink of a number.
    #[must_use]
    pub fn member(&self, id: UplinkId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    /// Whether an uplink is to take new flows of a family: it works, or it is there and none works
    /// for that family. One that is dead takes none at all while another works for any of its
    /// families: programs fall back from one family to the other, and its flows are to leave it.
    #[must_use]
    pub fn carries(&self, member: &Member, family: Family) -> bool {
        let any_works = || self.members.iter().any(|other| other.works(family));
        let last_resort = || {
            let judged_well = member.verdict().takes_new_flows();
            !any_works() && (judged_well || !self.relieves(member))
        };
        member.down.is_none() && member.has(family) && (member.works(family) || last_resort())
    }

    /// Whether what is on an uplink has somewhere else to go.
    #[must_use]
    pub fn relieves(&self, member: &Member) -> bool {
        let other_works = |family| {
            let mut others = self.members.iter().filter(|other| other.id != member.id);
            others.any(|other| other.works(family))
        };
        FAMILIES
            .into_iter()
            .any(|family| member.has(family) && other_works(family))
    }

    /// What the datapath is to know of every uplink that has a device. `tells` says of which ones
    /// TCP is to be told that it is over.
    #[must_use]
    pub fn entries(&self, tells: impl Fn(&Member) -> bool) -> Vec<UplinkEntry> {
        let entry = |member: &Member| UplinkEntry {
            id: member.id,
            ifindex: member.uplink.ifindex,
            layer: match member.uplink.layer {
                braid_uplink::Layer::L2 => Layer::L2,
                braid_uplink::Layer::L3 => Layer::L3,
            },
            mtu: member.uplink.mtu,
            v4: member.uplink.v4.as_ref().map(exit),
            v6: member.uplink.v6.as_ref().map(exit),
            ports: member.ports.clone(),
            accepts_new: FAMILIES.iter().any(|family| self.carries(member, *family)),
            resets_tcp: tells(member),
            epoch: self.epoch(member),
            leased: member.is_bond() && member.cut.is_none(),
            waits: member.waits(),
        };
        let present = self.members.iter().filter(|member| member.present);
        present.map(entry).collect()
    }

    /// The uplinks that can be used now.
    pub fn usable(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.down.is_none())
    }

    /// The uplinks that work for some family: not those that are only used for want of a better one.
    #[must_use]
    pub fn working(&self) -> BTreeSet<UplinkId> {
        let works = |member: &&Member| FAMILIES.iter().any(|family| member.works(*family));
        let working = self.members.iter().filter(works);
        working.map(|member| member.id).collect()
    }

    /// How the uplinks stand, each with what it carries.
    #[must_use]
    pub fn standings(
        &self,
        settings: &Settings,
        tier: impl Fn(&str) -> u8,
        load: impl Fn(&Member) -> Option<Load>,
    ) -> Vec<Standing> {
        let standing = |member: &Member| {
            let carries = |family| self.carries(member, family);
            Standing {
                id: member.id,
                name: member.uplink.name.clone(),
                up: FAMILIES.into_iter().any(carries),
                degraded: member.verdict() == Verdict::Degraded,
                v4: carries(Family::V4),
                v6: carries(Family::V6),
                tier: tier(&member.uplink.name),
                weight: member.weight,
                metered: settings.metered(&member.uplink.name),
                bond: member.is_bond(),
                load: load(member),
            }
        };
        self.members.iter().map(standing).collect()
    }
}

/// Why a device that is no candidate cannot be used.
fn state_of(link: Option<&Link>) -> Reason {
    match link.map(|link| link.state) {
        None => Reason::Missing,
        Some(LinkState::AdminDown) => Reason::AdminDown,
        Some(LinkState::NoCarrier) => Reason::NoCarrier,
        Some(LinkState::Dormant) => Reason::Dormant,
        Some(LinkState::Up) => Reason::NoRoute,
    }
}

/// Grace period for a lost carrier: wireless roaming and a replugged cable restore it within this. TCP retransmits after
/// 200 ms at the earliest.
const CARRIER: Duration = Duration::from_millis(250);

/// Grace period for a lost address or route: DHCP clients and network managers remove and add both when they renew.
pub const RENEWAL: Duration = Duration::from_secs(1);

/// Returns the grace period before flows leave a device in this state; `None` if packets still get through it. A device
/// that is removed has none, because it comes back as another one.
fn grace(reason: &Reason) -> Option<Duration> {
    match reason {
        Reason::Missing | Reason::Lost(_) => Some(Duration::ZERO),
        Reason::NoCarrier | Reason::Dormant => Some(CARRIER),
        Reason::AdminDown | Reason::NoAddress | Reason::NotItsAddress(_) => Some(RENEWAL),
        _ => None,
    }
}

fn exit<A: Copy + Into<IpAddr>>(exit: &braid_uplink::Exit<A>) -> NextHop<A> {
    NextHop {
        address: exit.address,
        gateway: exit.gateway,
        on_link: exit.on_link,
    }
}
