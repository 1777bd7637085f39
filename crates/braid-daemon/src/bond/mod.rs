//! The bond: an uplink that uses all the others at once, through a hub that the user runs.
//!
//! ```text
//!  flows ──▶ datapath ──▶ braid-bond (TUN) ──▶ driver ══ a link for each uplink ══▶ hub ──▶ internet
//! ```
//! To the rest of the daemon it is an uplink like any other. It has a device without a link layer, and
//! addresses from the hub. Its flows are treated like all flows: translation, classes, explanations, failover.
//! The difference is that this daemon carries its packets, so it stops with the daemon; see `driver_thread`.
//!
//! Modules: the joined hub (`membership`), the hub's addresses (`hub_lookup`), the wanted links (`links`) and what they
//! carry (`link_traffic`), events (`events`) and the state that follows (`state_machine`), the treatment of packets
//! (`policy`, `classify`), drops at its device (`tun_drops`).

mod classify;
mod driver_thread;
mod events;
mod hub_lookup;
mod link_traffic;
mod links;
mod membership;
mod policy;
mod report;
mod state_machine;
mod tun_drops;

use std::collections::BTreeMap;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use braid_balance::Lease;
use braid_bond::io::{ClientConfig, ClientEvent, ClientStatus, FlowInfo, FlowLinks, Policy, Tun};
use braid_bond::proto::handshake::terms;
use braid_bond::token::Token;
use braid_host::state_dir::StateDir;
use braid_host::user_error::UserError;
use braid_multipath::LinkId;
use braid_packet::protocol;
use braid_uplink::{
    BOND_DEVICE, Candidate, Discovery, Layer, NextHop, RejectReason, Rejected, Snapshot, Uplink,
};
use driver_thread::DriverThread;
use hub_lookup::Lookup;
use links::Links;
use state_machine::StateMachine;
use tokio::sync::mpsc::UnboundedSender;

use crate::config::{Encapsulation, Settings};

pub(crate) use link_traffic::{LinkMeter, LinkTraffic};
pub use links::BondUplink;
pub use membership::{Membership, parse_token};
pub use state_machine::State;
pub(crate) use tun_drops::tun_drops;

/// Name of the bond among the uplinks.
pub const NAME: &str = "bond";

/// Explains the silence of a hub that no longer has the key that this machine knows.
const KEY_RETIRED: &str = "the hub says that its key was replaced, and this machine was away while it could have \
                           learnt the new one: if that is so, revoke and invite it again at the hub (braid hub \
                           revoke NAME, braid hub invite NAME), and braid leave and join by that token here";

/// Largest inner packet: the tunnel splits a full one into two datagrams where necessary.
const MTU: u16 = 1500;

/// A driver that tells nothing for this long is not taken to carry what it carried.
const MAX_STATUS_AGE: Duration = Duration::from_secs(1);

/// Events of the bond for the daemon's loop.
#[derive(Debug)]
pub enum BondEvent {
    /// An event of the driver.
    Driver(ClientEvent),
    /// The hub's addresses, or the reason that they are unknown.
    Hub(Result<Vec<SocketAddr>, String>),
    /// The time of a scheduled check has come.
    Recheck,
}

/// A change of the bond, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BondChange {
    /// The bond as a whole.
    Bond(String),
    /// One uplink's link in it.
    Link(String, String),
}

/// Removes the bond's device, which outlives the daemon that made it. Returns true if it was there.
///
/// # Errors
/// The device is in use, or the system refused.
pub fn remove_device() -> Result<bool, UserError> {
    Tun::remove(BOND_DEVICE).map_err(|error| driver_thread::stopped(&error))
}

/// The bond of an instance, joined or not.
#[derive(Debug)]
pub struct Bond {
    state_dir: StateDir,
    joined: Option<Membership>,
    state_machine: StateMachine,
    links: Links,
    uplinks: Vec<BondUplink>,
    hub: Vec<SocketAddr>,
    lookup: Option<Lookup>,
    driver: Option<DriverThread>,
    /// The policy that the driver has.
    policy: Option<Policy>,
    /// Socket errors of links.
    errors: BTreeMap<LinkId, String>,
    /// Error of the last lookup of the hub.
    nowhere: Option<String>,
    /// Error of the last write of the membership.
    unwritten: Option<UserError>,
    /// True if somebody, most likely the hub, says that the hub's key was replaced, and no handshake
    /// has succeeded since.
    key_retired: bool,
    events: UnboundedSender<BondEvent>,
}

impl Bond {
    /// Loads the stored membership. No packet is carried yet.
    ///
    /// # Errors
    /// The stored membership cannot be read.
    pub fn open(
        state_dir: StateDir,
        events: UnboundedSender<BondEvent>,
    ) -> Result<Bond, UserError> {
        Ok(Bond {
            joined: Membership::load(&state_dir)?,
            state_dir,
            state_machine: StateMachine::default(),
            links: Links::default(),
            uplinks: Vec::new(),
            hub: Vec::new(),
            lookup: None,
            driver: None,
            policy: None,
            errors: BTreeMap::new(),
            nowhere: None,
            unwritten: None,
            key_retired: false,
            events,
        })
    }

    /// Returns true if this machine has joined a hub.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        self.joined.is_some()
    }

    /// Returns true if the hub has ever accepted this machine. Flows that must not leave the bond are not
    /// blocked before that, because the hub may have to be looked up first.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.joined.as_ref().is_some_and(|joined| joined.accepted)
    }

    /// Returns the state.
    #[must_use]
    pub fn state(&self) -> &State {
        self.state_machine.state()
    }

    /// Returns the problems of the bond, besides its state.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let nowhere = self.nowhere.clone().filter(|_| self.hub.is_empty());
        let unwritten = self.unwritten.as_ref().map(ToString::to_string);
        let errors = self
            .errors
            .iter()
            .map(|(link, error)| format!("{}: {error}", self.links.name_of(*link).unwrap_or("?")));
        let errors: Vec<String> = errors.collect();
        let retired = self.key_retired.then(|| KEY_RETIRED.to_owned());
        nowhere
            .into_iter()
            .chain(unwritten)
            .chain(retired)
            .chain(errors)
    }

    /// Joins the hub of a token. An earlier membership by the same token continues.
    ///
    /// # Errors
    /// Another hub was joined, or the disk refuses.
    pub fn join(&mut self, token: Token) -> Result<(), UserError> {
        let joined = Membership::begin(&self.state_dir, token)?;
        if self.joined.is_none() {
            self.state_machine = StateMachine::default();
            self.joined = Some(joined);
        }
        Ok(())
    }

    /// Leaves the hub; returns false if none was joined.
    ///
    /// # Errors
    /// The disk refused; then nothing has changed.
    pub fn leave(&mut self) -> Result<bool, UserError> {
        let forgotten = Membership::forget(&self.state_dir)?;
        self.joined = None;
        self.rest();
        remove_device()?;
        Ok(forgotten)
    }

    /// Stops the driver and the lookup.
    fn rest(&mut self) {
        self.driver = None;
        self.policy = None;
        self.lookup = None;
        self.links = Links::default();
        self.hub.clear();
        self.errors.clear();
        self.nowhere = None;
        self.key_retired = false;
    }

    /// Starts the device, the driver and the lookup if they should run and do not. Needs a tokio runtime, and
    /// the network namespace of the device.
    pub fn set_going(
        &mut self,
        settings: &Settings,
        lease: impl FnOnce() -> Result<Lease, UserError>,
    ) {
        if self.joined.is_none() {
            // The hub may have been left while no daemon ran.
            if let Err(failure) = remove_device() {
                tracing::warn!(%failure, "the device of a bond that was left stays");
            }
        }
        let Some(joined) = self.joined.clone().filter(|_| self.driver.is_none()) else {
            return;
        };
        let addresses = joined.token.addresses.clone();
        self.hub = match joined.hub.is_empty() {
            true => hub_lookup::plain(&addresses),
            false => joined.hub.clone(),
        };
        self.links.fall_silent();
        self.errors.clear();
        if let Err(failure) = self.start(&joined, settings, lease) {
            let stopped = State::Stopped(failure.text.clone());
            if *self.state() != stopped {
                tracing::warn!(%failure, "the bond cannot be carried");
            }
            self.state_machine.stopped(failure.text);
            return;
        }
        if matches!(self.state(), State::Stopped(_)) {
            self.state_machine = StateMachine::default();
        }
        self.lookup = Some(Lookup::begin(addresses, self.events.clone()));
    }

    fn start(
        &mut self,
        joined: &Membership,
        settings: &Settings,
        lease: impl FnOnce() -> Result<Lease, UserError>,
    ) -> Result<(), UserError> {
        // The device outlives this daemon. Without the device and its program the kernel would take incoming
        // packets for its own connections and refuse them, and programs that watch addresses would give up
        // their connections.
        let tun = Tun::open_persistent(BOND_DEVICE, MTU)
            .map_err(|error| driver_thread::stopped(&error))?;
        let events = self.events.clone();
        let policy = self.policy(settings);
        let config = ClientConfig {
            tun,
            identity: joined.identity.clone(),
            hub: joined.hub_key,
            psk: joined.token.secret.psk(),
            options: terms::enrol(joined.token.secret.id()),
            policy: policy.clone(),
            gre: settings.config.bond.encapsulation == Encapsulation::Gre,
            links: self.links.wanted().to_vec(),
            mark: None,
            // A closed channel needs no events.
            events: Box::new(move |event| drop(events.send(BondEvent::Driver(event)))),
        };
        self.driver = Some(DriverThread::start(config, lease()?)?);
        self.policy = Some(policy);
        Ok(())
    }

    /// Updates the links from these uplinks.
    pub fn follow_uplinks(&mut self, uplinks: Vec<BondUplink>, settings: &Settings) {
        self.uplinks = uplinks;
        self.follow_links();
        self.follow_settings(settings);
    }

    fn follow_links(&mut self) {
        if self.joined.is_none() {
            return;
        }
        let before = self.links.wanted().to_vec();
        let wanted = self.links.update(&self.uplinks, &self.hub);
        if wanted == before {
            return;
        }
        let wanted = wanted.to_vec();
        let is_wanted = |id: &LinkId| wanted.iter().any(|link| link.id == *id);
        self.errors.retain(|id, _| is_wanted(id));
        if let Some(driver) = &self.driver {
            driver.set_links(wanted);
        }
    }

    fn follow_settings(&mut self, settings: &Settings) {
        let policy = self.policy(settings);
        let Some(driver) = &self.driver else { return };
        if self.policy.as_ref() != Some(&policy) {
            driver.set_policy(policy.clone());
            self.policy = Some(policy);
        }
    }

    /// Returns the inner addresses for the device.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        let terms = self
            .joined
            .iter()
            .flat_map(|joined| &joined.terms.addresses);
        terms.map(|(address, _)| *address).collect()
    }

    /// Takes over the bond of an earlier daemon if its device still exists: its flows wait until the hub has
    /// answered this daemon. Returns the uplink, and the reason that it takes no new flows.
    pub fn inherit(&mut self, snapshot: &Snapshot, now: Instant) -> Option<(Uplink, String)> {
        let joined = self.joined.as_ref().filter(|joined| joined.accepted)?;
        let uplink = self.described(joined, snapshot).ok()?;
        self.state_machine = StateMachine::inherited(now);
        Some((uplink, self.state().to_string()))
    }

    /// Adds the bond to the discovered uplinks, or to the rejected candidates.
    pub fn join_discovery(&self, found: &mut Discovery, snapshot: &Snapshot, now: Instant) {
        let Some(joined) = &self.joined else { return };
        match self.uplink(joined, snapshot, now) {
            Ok(uplink) => found.uplinks.push(uplink),
            Err(reason) => found.rejected.push(Rejected {
                candidate: Candidate {
                    name: NAME.to_owned(),
                    device: BOND_DEVICE.to_owned(),
                },
                reason,
            }),
        }
    }

    fn uplink(
        &self,
        joined: &Membership,
        snapshot: &Snapshot,
        now: Instant,
    ) -> Result<Uplink, RejectReason> {
        let state = self.state();
        if !state.is_up() {
            let why = state.to_string();
            return Err(match state.is_given_up(now) {
                true => RejectReason::Lost(why),
                false => RejectReason::Waiting(why),
            });
        }
        self.described(joined, snapshot)
    }

    fn described(&self, joined: &Membership, snapshot: &Snapshot) -> Result<Uplink, RejectReason> {
        let link = snapshot
            .link_named(BOND_DEVICE)
            .ok_or(RejectReason::Missing)?;
        let given = self.addresses();
        let v4 = given.iter().find_map(|address| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        });
        let v6 = given.iter().find_map(|address| match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => Some(*address),
        });
        if v4.is_none() && v6.is_none() {
            return Err(RejectReason::NoAddress);
        }
        let hub: Vec<String> = joined
            .token
            .addresses
            .iter()
            .map(ToString::to_string)
            .collect();
        Ok(Uplink {
            name: NAME.to_owned(),
            device: BOND_DEVICE.to_owned(),
            ifindex: link.index,
            layer: Layer::L3,
            mtu: link.mtu,
            v4: v4.map(next_hop),
            v6: v6.map(next_hop),
            why: format!("joined {}", hub.join(", ")),
        })
    }

    /// Returns the latest status of the driver.
    #[must_use]
    pub fn latest(&self) -> Option<ClientStatus> {
        Some(self.driver.as_ref()?.latest()?.1)
    }

    /// Returns the traffic of the links by the names of their uplinks, see [`LinkMeter::note`].
    pub(crate) fn link_traffic(&self, meter: &mut LinkMeter) -> Vec<(&str, LinkTraffic)> {
        let latest = self.driver.as_ref().and_then(DriverThread::latest);
        let is_late = |taken: Instant| taken.elapsed() >= MAX_STATUS_AGE;
        let Some((taken, status)) = latest.filter(|(taken, _)| !is_late(*taken)) else {
            *meter = LinkMeter::default();
            return Vec::new();
        };
        let traffic = meter.note(taken, &status.links);
        let of_uplink = |(link, traffic)| Some((self.name_of(link)?, traffic));
        traffic.into_iter().filter_map(of_uplink).collect()
    }

    /// Returns the links that carry each flow, given by its protocol, its outer and its remote end: none if no driver
    /// answers.
    pub(crate) fn flow_links(
        &self,
        flows: impl Iterator<Item = (u8, SocketAddr, SocketAddr)>,
    ) -> Option<Vec<FlowLinks>> {
        let both_ways = |(protocol, outer, remote): (u8, SocketAddr, SocketAddr)| {
            let has_ports = matches!(protocol, protocol::TCP | protocol::UDP);
            [(outer, remote), (remote, outer)].map(|(from, to)| {
                let ports = has_ports.then_some([from.port(), to.port()]);
                FlowInfo::between(from.ip(), to.ip(), protocol, ports)
            })
        };
        self.driver
            .as_ref()?
            .flow_links(flows.map(both_ways).collect())
    }

    /// Returns the name of a link's uplink.
    #[must_use]
    pub fn name_of(&self, link: LinkId) -> Option<&str> {
        self.links.name_of(link)
    }

    /// Returns the channel for events.
    #[must_use]
    pub fn events(&self) -> UnboundedSender<BondEvent> {
        self.events.clone()
    }

    /// Returns true if its device exists and its driver runs.
    #[must_use]
    pub fn is_carried(&self) -> bool {
        self.driver.is_some()
    }

    /// Stops the bond at the end of the daemon.
    pub fn end(&mut self) {
        drop(mem::take(&mut self.driver));
        self.lookup = None;
    }
}

fn next_hop<A>(address: A) -> NextHop<A> {
    NextHop {
        address,
        gateway: None,
        others: Vec::new(),
        metric: 0,
        advertised: false,
        on_link: None,
    }
}
