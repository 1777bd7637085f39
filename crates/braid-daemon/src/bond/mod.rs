//! The bond: one more way out, over all uplinks at once, through a hub of the user's own.
//!
//! ```text
//!  flows ──▶ datapath ──▶ braid-bond (TUN) ──▶ driver ══ a link for each uplink ══▶ hub ──▶ internet
//! ```
//! To the rest of the daemon it is an uplink like any other: it has a device without a link layer, and
//! addresses, which the hub gave. So all that holds for flows holds for those in the bond: translation,
//! classes, explanations, what becomes of them when it dies. What is different is that this daemon
//! carries its packets, so it goes when the daemon goes; see `carrier`.
//!
//! Here: whom the machine has joined (`joined`), where the hub is (`hub`), which links are wanted
//! (`links`), what helpers tell (`hearing`) and how it is doing by that (`condition`), how packets are treated
//! (`policy`, `classify`), what its device had to drop (`overrun`).

mod carrier;
mod classify;
mod condition;
mod events;
mod hub;
mod links;
mod membership;
mod policy;
mod report;
mod tun_drops;

use std::collections::BTreeMap;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use braid_balance::Lease;
use braid_bond::io::{ClientConfig, ClientEvent, ClientStatus, Policy, Tun};
use braid_bond::proto::handshake::terms;
use braid_bond::token::Token;
use braid_core::LinkId;
use braid_uplink::{
    BOND_DEVICE, Candidate, Discovery, Layer, NextHop, RejectReason, Rejected, Snapshot, Uplink,
};
use tokio::sync::mpsc::UnboundedSender;

use crate::config::Encapsulation;
use crate::settings::Settings;
use crate::state_dir::StateDir;
use crate::user_error::UserError;

use carrier::Carrier;
use condition::Condition;
use hub::Lookup;
use links::Links;

pub use condition::State;
pub use links::BondUplink;
pub use membership::{Membership, parse_token};
pub(crate) use tun_drops::tun_drops;

/// What the bond is called among uplinks.
pub const NAME: &str = "bond";

/// Largest inner packet: the tunnel puts a full one into two datagrams where it must.
const MTU: u16 = 1500;

/// What the bond's helpers tell the loop.
#[derive(Debug)]
pub enum BondEvent {
    /// The driver's words.
    Driver(ClientEvent),
    /// Where the hub is, or why that cannot be told.
    Hub(Result<Vec<SocketAddr>, String>),
    /// Time has come for something that was put off.
    Recheck,
}

/// What became of news, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BondChange {
    /// The bond as a whole.
    Bond(String),
    /// One uplink's part in it.
    Link(String, String),
}

/// Removes the bond's device, which outlives the daemon that made it. Returns whether it was there.
///
/// # Errors
/// Somebody is attached to it, or the system refused.
pub fn remove_device() -> Result<bool, UserError> {
    Tun::remove(BOND_DEVICE).map_err(|error| carrier::stopped(&error))
}

/// The bond of an instance, joined or not.
#[derive(Debug)]
pub struct Bond {
    state_dir: StateDir,
    joined: Option<Membership>,
    condition: Condition,
    links: Links,
    lines: Vec<BondUplink>,
    hub: Vec<SocketAddr>,
    lookup: Option<Lookup>,
    carrier: Option<Carrier>,
    /// What the driver was told of how packets are treated.
    policy: Option<Policy>,
    /// Why links have no socket.
    errors: BTreeMap<LinkId, String>,
    /// Why nothing is known of where the hub is.
    nowhere: Option<String>,
    /// Why what is on disk is not what is known.
    unwritten: Option<UserError>,
    events: UnboundedSender<BondEvent>,
}

impl Bond {
    /// Goes on from what was joined before. Nothing is carried yet.
    ///
    /// # Errors
    /// The file that says so cannot be read.
    pub fn open(
        state_dir: StateDir,
        events: UnboundedSender<BondEvent>,
    ) -> Result<Bond, UserError> {
        Ok(Bond {
            joined: Membership::load(&state_dir)?,
            state_dir,
            condition: Condition::default(),
            links: Links::default(),
            lines: Vec::new(),
            hub: Vec::new(),
            lookup: None,
            carrier: None,
            policy: None,
            errors: BTreeMap::new(),
            nowhere: None,
            unwritten: None,
            events,
        })
    }

    /// Whether this machine has joined a hub.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        self.joined.is_some()
    }

    /// Whether the hub has ever taken this machine. What must not leave the bond is not blocked before:
    /// the hub may have to be looked up first.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.joined.as_ref().is_some_and(|joined| joined.accepted)
    }

    /// How it is doing.
    #[must_use]
    pub fn state(&self) -> &State {
        self.condition.state()
    }

    /// Why something of it is not as it should be, besides its state.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let nowhere = self.nowhere.clone().filter(|_| self.hub.is_empty());
        let unwritten = self.unwritten.as_ref().map(ToString::to_string);
        let errors = self
            .errors
            .iter()
            .map(|(link, error)| format!("{}: {error}", self.links.name_of(*link).unwrap_or("?")));
        let errors: Vec<String> = errors.collect();
        nowhere.into_iter().chain(unwritten).chain(errors)
    }

    /// Joins the hub of a token. What was joined by the same token before goes on.
    ///
    /// # Errors
    /// Another hub was joined, or the disk refuses.
    pub fn join(&mut self, token: Token) -> Result<(), UserError> {
        let joined = Membership::begin(&self.state_dir, token)?;
        if self.joined.is_none() {
            self.condition = Condition::default();
            self.joined = Some(joined);
        }
        Ok(())
    }

    /// Leaves the hub; `false`: none was joined.
    ///
    /// # Errors
    /// What the disk said; then nothing has changed.
    pub fn leave(&mut self) -> Result<bool, UserError> {
        let forgotten = Membership::forget(&self.state_dir)?;
        self.joined = None;
        self.rest();
        remove_device()?;
        Ok(forgotten)
    }

    /// Ends what runs.
    fn rest(&mut self) {
        self.carrier = None;
        self.policy = None;
        self.lookup = None;
        self.links = Links::default();
        self.hub.clear();
        self.errors.clear();
        self.nowhere = None;
    }

    /// Starts what is to run and does not: the device, the driver, the search for the hub. Needs a
    /// tokio runtime, and the network namespace that the device is to be in.
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
        let Some(joined) = self.joined.clone().filter(|_| self.carrier.is_none()) else {
            return;
        };
        let addresses = joined.token.addresses.clone();
        self.hub = match joined.hub.is_empty() {
            true => hub::plain(&addresses),
            false => joined.hub.clone(),
        };
        self.links.fall_silent();
        self.errors.clear();
        if let Err(failure) = self.start(&joined, settings, lease) {
            let stopped = State::Stopped(failure.text.clone());
            if *self.state() != stopped {
                tracing::warn!(%failure, "the bond cannot be carried");
            }
            self.condition.stopped(failure.text);
            return;
        }
        if matches!(self.state(), State::Stopped(_)) {
            self.condition = Condition::default();
        }
        self.lookup = Some(Lookup::begin(addresses, self.events.clone()));
    }

    fn start(
        &mut self,
        joined: &Membership,
        settings: &Settings,
        lease: impl FnOnce() -> Result<Lease, UserError>,
    ) -> Result<(), UserError> {
        // It outlives this daemon: without the device and its program the kernel would take what comes for connections of
        // its own and refuse it, and programs that watch addresses would give up what they are about.
        let tun =
            Tun::open_persistent(BOND_DEVICE, MTU).map_err(|error| carrier::stopped(&error))?;
        let events = self.events.clone();
        let policy = self.policy(settings);
        let config = ClientConfig {
            tun,
            identity: joined.identity.clone(),
            hub: joined.token.hub,
            psk: joined.token.secret.psk(),
            options: terms::enrol(joined.token.secret.id()),
            policy: policy.clone(),
            gre: settings.config.bond.encapsulation == Encapsulation::Gre,
            links: self.links.wanted().to_vec(),
            mark: None,
            // Who hung up needs no news.
            events: Box::new(move |event| drop(events.send(BondEvent::Driver(event)))),
        };
        self.carrier = Some(Carrier::start(config, lease()?)?);
        self.policy = Some(policy);
        Ok(())
    }

    /// Has the links be those of these lines.
    pub fn follow_lines(&mut self, lines: Vec<BondUplink>, settings: &Settings) {
        self.lines = lines;
        self.follow_links();
        self.follow_settings(settings);
    }

    fn follow_links(&mut self) {
        if self.joined.is_none() {
            return;
        }
        let before = self.links.wanted().to_vec();
        let wanted = self.links.update(&self.lines, &self.hub);
        if wanted == before {
            return;
        }
        let wanted = wanted.to_vec();
        let is_wanted = |id: &LinkId| wanted.iter().any(|link| link.id == *id);
        self.errors.retain(|id, _| is_wanted(id));
        if let Some(carrier) = &self.carrier {
            carrier.set_links(wanted);
        }
    }

    fn follow_settings(&mut self, settings: &Settings) {
        let policy = self.policy(settings);
        let Some(carrier) = &self.carrier else { return };
        if self.policy.as_ref() != Some(&policy) {
            carrier.set_policy(policy.clone());
            self.policy = Some(policy);
        }
    }

    /// The inner addresses that its device is to have.
    #[must_use]
    pub fn addresses(&self) -> Vec<IpAddr> {
        let terms = self
            .joined
            .iter()
            .flat_map(|joined| &joined.terms.addresses);
        terms.map(|(address, _)| *address).collect()
    }

    /// Takes over the bond of an earlier daemon, if its device is there still: its flows wait until the hub has
    /// answered this one. Returns the uplink that they are on, and why it takes no new ones.
    pub fn inherit(&mut self, snapshot: &Snapshot, now: Instant) -> Option<(Uplink, String)> {
        let joined = self.joined.as_ref().filter(|joined| joined.accepted)?;
        let uplink = self.described(joined, snapshot).ok()?;
        self.condition = Condition::inherited(now);
        Some((uplink, self.state().to_string()))
    }

    /// Puts the bond among the uplinks that were found, or among those that cannot be used.
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

    /// How its driver was doing a moment ago.
    #[must_use]
    pub fn latest(&self) -> Option<ClientStatus> {
        self.carrier.as_ref().and_then(Carrier::latest)
    }

    /// The uplink of a link.
    #[must_use]
    pub fn name_of(&self, link: LinkId) -> Option<&str> {
        self.links.name_of(link)
    }

    /// For whoever has news.
    #[must_use]
    pub fn events(&self) -> UnboundedSender<BondEvent> {
        self.events.clone()
    }

    /// Whether its device is there and its driver runs.
    #[must_use]
    pub fn is_carried(&self) -> bool {
        self.carrier.is_some()
    }

    /// Ends what runs, as the daemon does.
    pub fn end(&mut self) {
        drop(mem::take(&mut self.carrier));
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
