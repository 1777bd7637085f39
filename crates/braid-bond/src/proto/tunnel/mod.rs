//! One end of a bond: inner packets in, datagrams out, and the other way round.
//!
//! A [`Tunnel`] joins the protocol to the decisions of `braid_core::bond`: keys, frames and addresses
//! here; which link, what order, how fast, what is lost there. It opens no socket and reads no
//! clock; its driver does, and calls
//!
//! | when | what |
//! |---|---|
//! | a datagram came | [`Tunnel::handle_datagram`] |
//! | an inner packet came | [`Tunnel::handle_inner`] |
//! | the time of [`Tunnel::poll_timeout`] has come | [`Tunnel::handle_timeout`] |
//! | after any of these, until none | [`Tunnel::poll_transmit`], [`Tunnel::poll_inner`], [`Tunnel::poll_event`] |
//!
//! Rules beyond those of its parts:
//!
//! - A link carries data once something authentic came on it and its address is proven. Until then
//!   it is tried, at growing distances.
//! - A report speaks of all links. It goes over every link that carried data of late, and over idle
//!   ones every [`REPORT_IDLE`]: the news of a dead link must not depend on it, and an idle metered
//!   link is not worth forty packets a second.
//! - Packet numbers go on whatever happens to a link, since they are nonces; the sender's own count,
//!   which begins anew with a link, is added to them.
//! - With nothing to send, all that is sent is what liveness asks for: three packets a minute and link,
//!   and their answers.

mod clear;
mod client;
mod clock;
mod headers;
mod link;
mod receive;
mod reports;
mod residence;
mod steer;
mod timeout;
mod transmit;
mod types;
mod view;

use std::collections::VecDeque;
use std::time::Duration;

use super::ecn;
use super::entropy::Entropy;
use super::flow::Seen;
use super::frame::Reason;
use super::gate::Gate;
use super::handshake::terms::Abilities;
use super::handshake::{HandshakeError, Options};
use super::packet::SessionIndex;
use super::parts::Parts;
use super::policy::Far;
use super::pool::{Packet, Pool};
use super::reject::{Reject, Rejects};
use super::session::Session;
use super::sum::Sum;
use braid_core::bond::{InnerPacket, Receiver, Sender, SenderSettings};
use braid_core::liveness::Verdict;
use braid_core::{Bytes, LaneId, LinkId, MAX_LINKS, Time};

use client::Client;
use clock::{PeerClock, PeerLanes};
use link::Link;

pub use client::ClientSettings;
pub use link::{LinkConfig, PAYLOAD_MOST};
pub use residence::Residence;
pub use steer::Heard;
pub use types::{Datagram, Event, Settings};

/// An idle link gets a report this often at most.
pub const REPORT_IDLE: Duration = Duration::from_millis(500);

/// What a packet takes on the wire beside its UDP payload: IPv4 and UDP headers. Both ends count
/// the same, whichever family a link is of.
pub const WIRE: u64 = 28;

/// DATA frame's header without length.
const DATA_HEADER: usize = 5;

/// Events that nobody fetched are dropped beyond this, the oldest first.
const MOST_EVENTS: usize = 256;

/// The session is being closed.
#[derive(Debug)]
struct Closing {
    reason: Reason,
    /// Links that the other end is yet to be told on, one bit each.
    links: u32,
}

/// One end of a bond.
#[derive(Debug)]
pub struct Tunnel {
    settings: Settings,
    client: Option<Client>,
    gate: Gate,
    entropy: Entropy,
    links: [Option<Link>; MAX_LINKS],
    sender: Sender<Packet>,
    receiver: Receiver<Packet, Sum>,
    residence: Residence,
    /// Buffers of packets on their way out, which are kept for repair for a while, and of those that
    /// come in: apart, since a pool wants packets to leave in the order in which they came.
    outward: Pool,
    inward: Pool,
    parts: Parts,
    clock: PeerClock,
    lanes: PeerLanes,
    reports: reports::Outgoing,
    rest: Option<transmit::Rest>,
    /// Packets of a sum that is being made.
    covered: Vec<Packet>,
    scratch: Vec<u8>,
    events: VecDeque<Event>,
    rejects: Rejects,
    /// Whether the current keys have carried inner packets.
    busy: bool,
    closing: Option<Closing>,
    heard: Time,
    /// What the other end understands.
    peer: Abilities,
    /// Whether this end wants data in the clear.
    gre: bool,
    saying: steer::Saying,
    hearing: steer::Hearing,
    headers: headers::Headers,
}

impl Tunnel {
    /// The end that calls: begins a handshake as soon as it has a link.
    #[must_use]
    pub fn call(now: Time, client: ClientSettings, settings: Settings, entropy: Entropy) -> Self {
        let gre = client.gre;
        let client = Some(Client::new(client));
        let mut tunnel = Self::new(now, client, settings, entropy);
        tunnel.gre = gre;
        tunnel.tell_policy();
        tunnel
    }

    /// The end that was called, with the session that it accepted from `peer`.
    #[must_use]
    pub fn answer(
        now: Time,
        session: Session,
        peer: Abilities,
        settings: Settings,
        entropy: Entropy,
    ) -> Self {
        let mut tunnel = Self::new(now, None, settings, entropy);
        tunnel.peer = peer;
        tunnel.gate.keys.offer(session);
        tunnel
    }

    fn new(now: Time, client: Option<Client>, settings: Settings, entropy: Entropy) -> Self {
        Tunnel {
            sender: sender(&settings),
            receiver: receiver(&settings),
            residence: Residence::default(),
            settings,
            client,
            gate: Gate::default(),
            entropy,
            links: [const { None }; MAX_LINKS],
            outward: Pool::default(),
            inward: Pool::default(),
            parts: Parts::default(),
            clock: PeerClock::default(),
            lanes: PeerLanes::default(),
            reports: reports::Outgoing::default(),
            rest: None,
            covered: Vec::new(),
            scratch: Vec::with_capacity(2048),
            events: VecDeque::new(),
            rejects: Rejects::default(),
            busy: false,
            closing: None,
            heard: now,
            peer: Abilities::default(),
            gre: false,
            saying: steer::Saying::default(),
            hearing: steer::Hearing::default(),
            headers: headers::Headers::default(),
        }
    }

    /// Adds a link, or changes what is configured of one.
    pub fn add_link(&mut self, now: Time, id: LinkId, config: LinkConfig) {
        self.retire(now, id);
        let mut link = Link::new(now, config);
        link.before = self.links[id.index()]
            .as_ref()
            .map_or(0, |known| known.before);
        link.begin_trying(now);
        self.links[id.index()] = Some(link);
        self.gate.insert(id);
        let continues = self.gate.keys.peek().map(Session::peer);
        if let Some(client) = &mut self.client {
            client.handle_link(id);
            if continues.is_none() {
                client.want(now, None, &mut self.entropy);
            }
        }
    }

    /// Takes a link away; what was in flight on it goes out on others. Its numbers are kept, so it may
    /// come back.
    pub fn remove_link(&mut self, now: Time, id: LinkId) {
        self.retire(now, id);
        let Some(link) = &mut self.links[id.index()] else {
            return;
        };
        link.path = super::path::Path::default();
        link.try_at = None;
        self.receiver.set_live(now, id, false);
        self.gate.remove(id);
    }

    /// Takes a link from the sender, and remembers how many numbers it used: they are nonces.
    fn retire(&mut self, now: Time, id: LinkId) {
        let used = self.sender.link(id).map_or(0, |(link, _)| link.sent().0.0);
        if let Some(link) = self.links[id.index()].as_mut().filter(|link| link.in_use) {
            link.before += used;
            link.in_use = false;
        }
        self.sender.remove_link(now, id);
    }

    /// Takes an inner IP packet, which is copied. Anything else is dropped.
    pub fn handle_inner(&mut self, now: Time, packet: impl AsRef<[u8]>) {
        let packet = packet.as_ref();
        let is_ip = !packet.is_empty() && !super::headers::is_compressed(packet);
        if !is_ip || packet.len() > super::parts::PACKET_MAX {
            return;
        }
        let seen = Seen::of(packet);
        // What cannot be read is of one flow.
        let flow = seen.as_ref().map_or(0, Seen::hash);
        let class = self.settings.policy.class(seen.as_ref(), self.far());
        let buffer = self.compress(now, LaneId::of(flow), packet);
        let len = Bytes::new(buffer.len() as u64);
        self.busy = true;
        let packet = self.outward.lend(buffer);
        let inner = InnerPacket { flow, class, len };
        self.sender.handle_packet(now, inner, packet);
    }

    /// New keys for this session, that the other end asked for.
    pub fn offer(&mut self, session: Session) {
        self.gate.keys.offer(session);
    }

    /// Forgets all keys, and what is under way for new ones: the machine slept or was copied, so they may be
    /// in somebody else's memory, or in use by the copy. A client asks at once for new keys that continue
    /// the session.
    pub fn forget_keys(&mut self, now: Time) {
        let continues = self.gate.keys.peek().map(Session::peer);
        self.gate.keys.clear();
        let has_links = self.links.iter().any(Option::is_some);
        if let Some(client) = self.client.as_mut().filter(|_| has_links) {
            client.begin_anew(now, continues, &mut self.entropy);
        }
    }

    /// Ends the session: the other end is told on every link.
    pub fn close(&mut self, reason: Reason) {
        let links = u32::MAX;
        self.closing = Some(Closing { reason, links });
    }

    /// The next inner packet for this end. Its buffer is used again once it is dropped.
    pub fn poll_inner(&mut self) -> Option<Packet> {
        loop {
            let delivery = self.receiver.poll_delivery()?;
            self.residence.record(delivery.waited);
            let expanded = self.expand(delivery.lane, delivery.item);
            if expanded.is_some() {
                return expanded;
            }
        }
    }

    /// The next thing that has become known.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// By what the other end addresses this one at the moment.
    pub fn indices(&self) -> impl Iterator<Item = SessionIndex> {
        self.gate.keys.indices()
    }

    /// The keys in use; none before the first handshake, or once they are too old.
    #[must_use]
    pub fn session(&self) -> Option<&Session> {
        self.gate.keys.peek()
    }

    /// What was refused, and why.
    #[must_use]
    pub fn rejects(&self) -> &Rejects {
        &self.rejects
    }

    /// The sending direction.
    #[must_use]
    pub fn sender(&self) -> &Sender<impl Clone + use<>> {
        &self.sender
    }

    /// The receiving direction.
    #[must_use]
    pub fn receiver(&self) -> &Receiver<Packet, Sum> {
        &self.receiver
    }

    /// UDP payload that a link carries; none without such a link.
    #[must_use]
    pub fn payload(&self, link: LinkId) -> Option<u16> {
        self.links[link.index()]
            .as_ref()
            .map(|link| link.mtu.payload())
    }

    /// Follows the sender's verdicts.
    fn handle_changes(&mut self, now: Time) {
        while let Some(change) = self.sender.poll_change() {
            if change.verdict == Verdict::Suspect {
                self.receiver.set_live(now, change.link, false);
                if let Some(link) = &mut self.links[change.link.index()] {
                    link.mtu.handle_black_hole(now);
                }
            }
            let is_out = matches!(change.verdict, Verdict::Suspect | Verdict::Quarantined);
            if let Some(link) = self.links[change.link.index()].as_mut().filter(|_| is_out) {
                // What comes by sealed packets alone is no sign that it passes GRE.
                link.passage = clear::Passage::new(now);
            }
            push(&mut self.events, Event::Judged(change));
        }
    }

    /// Takes up keys that are in force from now on.
    fn handle_keys(&mut self, now: Time, continued: bool, options: Options) {
        self.busy = false;
        self.heard = now;
        if !continued {
            self.sender = sender(&self.settings);
            self.receiver = receiver(&self.settings);
            self.residence = Residence::default();
            self.parts.clear();
            self.clock = PeerClock::default();
            self.lanes = PeerLanes::default();
            self.reports = reports::Outgoing::default();
            self.rest = None;
            for link in self.links.iter_mut().flatten() {
                link.restart(now);
            }
            self.peer = Abilities::read(&options);
            self.headers = headers::Headers::default();
            self.repeat_policy();
        }
        self.notice_deafness();
        for link in self.links.iter_mut().flatten() {
            // Something on every link: it confirms the keys, and shows which links work.
            link.begin_trying(now);
            link.greet = true;
        }
        push(&mut self.events, Event::Established { continued, options });
    }

    /// Gives a link to the sender once it may carry data.
    fn take_into_use(&mut self, now: Time, id: LinkId) {
        let Some(link) = &mut self.links[id.index()] else {
            return;
        };
        if link.in_use || link.path.proven().is_none() {
            return;
        }
        link.in_use = true;
        let settings = link.config.settings(view::link_overhead());
        self.sender.add_link(now, id, settings);
        self.sender.set_quota(id, link.config.quota);
        self.cover();
        push(&mut self.events, Event::Usable(id));
    }

    /// Tells the sender how large packets may be for sums of them to fit into a datagram.
    fn cover(&mut self) {
        let links = self.links.iter().flatten().filter(|link| link.in_use);
        let payload = links.map(|link| usize::from(link.mtu.payload())).min();
        let most = payload.map(|payload| Bytes::new(view::whole_in(payload) as u64));
        self.sender.set_fec(most);
    }

    fn refuse(&mut self, reason: Reject) {
        self.rejects.count(reason);
    }

    fn is_client(&self) -> bool {
        self.client.is_some()
    }

    /// Which end of what leaves by this tunnel is not the client's.
    fn far(&self) -> Far {
        match self.is_client() {
            true => Far::Destination,
            false => Far::Source,
        }
    }
}

fn sender(settings: &Settings) -> Sender<Packet> {
    // The pool holds on to the packet's bytes, so a marked packet is a new one. Few are.
    let mark = |packet: &mut Packet| {
        let mut bytes = packet.to_vec();
        let marked = ecn::mark(&mut bytes);
        if marked {
            *packet = Packet::from(bytes);
        }
        marked
    };
    let options = SenderSettings {
        mark,
        ..SenderSettings::default()
    };
    Sender::new(settings.policy.scheduler(), options)
}

fn receiver(settings: &Settings) -> Receiver<Packet, Sum> {
    let mut receiver = Receiver::new(settings.receiver);
    receiver.set_reordering(settings.policy.ordering);
    receiver
}

fn push(events: &mut VecDeque<Event>, event: Event) {
    if events.len() == MOST_EVENTS {
        events.pop_front();
    }
    events.push_back(event);
}

impl From<HandshakeError> for Reject {
    fn from(_: HandshakeError) -> Self {
        Reject::Handshake
    }
}
