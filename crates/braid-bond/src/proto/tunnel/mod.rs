//! One end of a bond: inner packets in, datagrams out, and back.
//!
//! A [`Tunnel`] joins the protocol to the decisions of `braid_multipath::bond`: this module has keys,
//! frames and addresses; the core decides about links, order, rate and loss. A tunnel opens no
//! socket and reads no clock; its driver does, and calls
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
//! - A link carries data once an authentic packet came on it and its address is validated. Until
//!   then it is probed at growing intervals.
//! - A report covers all links. It goes over every link that carried data lately, and over idle
//!   ones every [`REPORT_IDLE`]: news of a dead link must not depend on that link, and an idle
//!   metered link is not worth forty packets a second.
//! - Packet numbers continue whatever happens to a link, since they are nonces; the sender's own
//!   count, which restarts with a link, is added to them.
//! - An idle tunnel sends only liveness probes, three packets a minute and link, and their replies.

mod cleartext;
mod client;
mod clock;
mod header_compression;
mod lane_shares;
mod link;
mod policy_sync;
mod quic;
mod receive;
mod receive_window;
mod reports;
mod segment;
mod timeout;
mod transmit;
mod types;
mod view;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use braid_core::{Bytes, Histogram, Time};
use braid_multipath::ack_filter::{AckFilter, Segment};
use braid_multipath::bond::{InnerPacket, Receiver, Sender, SenderSettings};
use braid_multipath::delivery_pacer::DeliveryPacer;
use braid_multipath::liveness::Verdict;
use braid_multipath::quic_flows::{QuicFlows, QuicVerdict};
use braid_multipath::resequence::DeliveryOrder;
use braid_multipath::spurious::{DataSegment, SpuriousFilter};
use braid_multipath::window_limit::WindowLimits;
use braid_multipath::{LinkId, MAX_LINKS};
use braid_packet::protocol;
use client::HandshakeClient;
use clock::{PeerClock, PeerLanes};
use lane_shares::LaneShares;
use link::Link;
use segment::TcpSegment;

use super::ecn;
use super::entropy::Entropy;
use super::flow::FlowInfo;
use super::frame::Reason;
use super::handshake::terms::Capabilities;
use super::handshake::{HandshakeError, Options, PublicKey};
use super::packet::SessionIndex;
use super::policy::RemoteSide;
use super::pool::{BufferPool, Packet};
use super::reassembly::Reassembler;
use super::reject::{Reject, Rejects};
use super::repair_symbol::RepairSymbol;
use super::replay_guard::ReplayGuard;
use super::session::Session;

pub use client::ClientSettings;
pub use link::{LinkConfig, MAX_PAYLOAD_BYTES};
pub use policy_sync::PolicyStatus;
pub use types::{Datagram, Event, TunnelSettings};
pub use view::FlowLinks;

/// Least interval of reports on an idle link.
pub const REPORT_IDLE: Duration = Duration::from_millis(500);

/// Bytes of a packet besides its UDP payload: IPv4 and UDP headers. Both ends count the same,
/// whatever the IP version of a link.
pub const IP_UDP_HEADERS: u64 = 28;

/// Length of a DATA frame's header without the length field.
const DATA_HEADER: usize = 5;

/// Most unfetched events; beyond this the oldest is dropped.
const MAX_QUEUED_EVENTS: usize = 256;

/// The session is being closed.
#[derive(Debug)]
struct Closing {
    reason: Reason,
    /// Links on which the other end is still to be told, one bit each.
    links: u32,
}

/// The sender of a flow, see [`InnerPacket`].
#[derive(Clone, Copy, Debug)]
struct FlowKind {
    is_stream: bool,
    is_limited: bool,
}

/// One end of a bond.
#[derive(Debug)]
pub struct Tunnel {
    settings: TunnelSettings,
    client: Option<HandshakeClient>,
    replay_guard: ReplayGuard,
    entropy: Entropy,
    links: [Option<Link>; MAX_LINKS],
    sender: Sender<Packet>,
    receiver: Receiver<Packet, RepairSymbol>,
    reorder_delay: Histogram,
    /// Acknowledgements for flows of this end, and of this end for flows of the other.
    ack_filter: AckFilter<Packet>,
    bulk_ack_filter: AckFilter<Packet>,
    /// Datagrams that were released with others.
    delivery_pacer: DeliveryPacer<Packet>,
    quic_flows: QuicFlows,
    window_limits: WindowLimits,
    lowered_windows: u64,
    spurious_filter: SpuriousFilter,
    spurious_retransmissions: u64,
    /// Buffers of outgoing packets, which are kept for repair for a while, and of incoming ones.
    /// They are separate because a pool works best if packets leave in the order in which they
    /// came.
    send_pool: BufferPool,
    receive_pool: BufferPool,
    reassembler: Reassembler,
    /// Bytes that may be summed up to rebuild packets.
    repair_credit: usize,
    clock: PeerClock,
    lanes: PeerLanes,
    reports: reports::OutgoingReport,
    fragmenter: Option<transmit::Fragmenter>,
    /// Packets of the repair symbol that is being encoded.
    sources: Vec<Packet>,
    scratch: Vec<u8>,
    events: VecDeque<Event>,
    rejects: Rejects,
    /// True if the current keys have carried inner packets.
    busy: bool,
    closing: Option<Closing>,
    last_received: Time,
    /// Capabilities of the other end.
    peer: Capabilities,
    /// True if this end wants cleartext data.
    gre: bool,
    policy_sender: policy_sync::PolicySender,
    policy_receiver: policy_sync::PolicyReceiver,
    compression: header_compression::HeaderCompression,
    /// Bytes of each lane on each link, sent and received: at a client alone, whose daemon explains them.
    shares: Option<Box<[LaneShares; 2]>>,
}

impl Tunnel {
    /// The initiating end: begins a handshake as soon as it has a link.
    #[must_use]
    pub fn connect(
        now: Time,
        client: ClientSettings,
        settings: TunnelSettings,
        entropy: Entropy,
    ) -> Self {
        let gre = client.gre;
        let client = Some(HandshakeClient::new(client));
        let mut tunnel = Self::new(now, client, settings, entropy);
        tunnel.gre = gre;
        tunnel.shares = Some(Box::default());
        tunnel.update_policy();
        tunnel
    }

    /// The responding end, with the session that it accepted from `peer`.
    #[must_use]
    pub fn accept(
        now: Time,
        session: Session,
        peer: Capabilities,
        settings: TunnelSettings,
        entropy: Entropy,
    ) -> Self {
        let mut tunnel = Self::new(now, None, settings, entropy);
        tunnel.peer = peer;
        tunnel.replay_guard.keys.offer(session);
        tunnel
    }

    fn new(
        now: Time,
        client: Option<HandshakeClient>,
        settings: TunnelSettings,
        entropy: Entropy,
    ) -> Self {
        Tunnel {
            sender: sender(&settings),
            receiver: receiver(&settings),
            reorder_delay: Histogram::default(),
            ack_filter: AckFilter::for_new_flows(),
            bulk_ack_filter: AckFilter::for_bulk_flows(),
            delivery_pacer: DeliveryPacer::default(),
            quic_flows: QuicFlows::default(),
            window_limits: WindowLimits::default(),
            lowered_windows: 0,
            spurious_filter: SpuriousFilter::default(),
            spurious_retransmissions: 0,
            settings,
            client,
            replay_guard: ReplayGuard::default(),
            entropy,
            links: [const { None }; MAX_LINKS],
            send_pool: BufferPool::default(),
            receive_pool: BufferPool::default(),
            reassembler: Reassembler::default(),
            repair_credit: receive::MAX_REPAIR_CREDIT,
            clock: PeerClock::default(),
            lanes: PeerLanes::default(),
            reports: reports::OutgoingReport::default(),
            fragmenter: None,
            sources: Vec::new(),
            scratch: Vec::with_capacity(2048),
            events: VecDeque::new(),
            rejects: Rejects::default(),
            busy: false,
            closing: None,
            last_received: now,
            peer: Capabilities::default(),
            gre: false,
            policy_sender: policy_sync::PolicySender::default(),
            policy_receiver: policy_sync::PolicyReceiver::default(),
            compression: header_compression::HeaderCompression::default(),
            shares: None,
        }
    }

    /// Adds a link, or replaces its configuration.
    pub fn add_link(&mut self, now: Time, id: LinkId, config: LinkConfig) {
        self.deactivate_link(now, id);
        let mut link = Link::new(now, config);
        link.number_base = self.links[id.index()]
            .as_ref()
            .map_or(0, |known| known.number_base);
        link.start_probing(now);
        self.links[id.index()] = Some(link);
        self.replay_guard.allow_link(id);
        let continues = self.replay_guard.keys.peek().map(Session::peer);
        if let Some(client) = &mut self.client {
            client.handle_link(id);
            if continues.is_none() {
                client.ensure_running(now, None, &mut self.entropy);
            }
        }
    }

    /// Removes a link; packets in flight on it are sent again on others. Its numbers are kept, so
    /// it may be added again.
    pub fn remove_link(&mut self, now: Time, id: LinkId) {
        self.deactivate_link(now, id);
        let Some(link) = &mut self.links[id.index()] else {
            return;
        };
        link.path = super::path::Path::default();
        link.probe_at = None;
        self.receiver.set_live(now, id, false);
        self.replay_guard.refuse_link(id);
    }

    /// Takes a link from the sender, and records the numbers that it used: they are nonces.
    fn deactivate_link(&mut self, now: Time, id: LinkId) {
        let used = self.sender.link(id).map_or(0, |(link, _)| link.sent().0.0);
        if let Some(link) = self.links[id.index()].as_mut().filter(|link| link.in_use) {
            link.number_base += used;
            link.in_use = false;
        }
        self.sender.remove_link(now, id);
    }

    /// Handles an inner IP packet, which is copied. Anything else is dropped, and so is everything
    /// while packets that wait or are kept for repair fill their memory.
    pub fn handle_inner(&mut self, now: Time, packet: impl AsRef<[u8]>) {
        let packet = packet.as_ref();
        let is_ip = !packet.is_empty() && !super::header_compression::is_compressed(packet);
        let is_ip = is_ip && packet.len() <= super::reassembly::MAX_PACKET_BYTES;
        if !is_ip || !self.send_pool.has_room(now) {
            return;
        }
        let info = FlowInfo::of(packet);
        // All packets that cannot be parsed count as one flow.
        let flow = info.as_ref().map_or(0, FlowInfo::hash);
        let (mut is_stream, mut is_limited, mut data) = (false, false, None);
        if info
            .as_ref()
            .is_some_and(|info| info.protocol == protocol::TCP)
        {
            let segment = TcpSegment::parse(packet);
            data = segment.as_ref().and_then(TcpSegment::data);
            if data.is_some_and(|data| self.is_spurious(flow, data)) {
                self.spurious_retransmissions += 1;
                return;
            }
            is_limited =
                (segment.as_ref()).is_some_and(|segment| self.note_sent(now, flow, segment));
            let segment = segment.map_or(Segment::Other, |segment| segment.kind());
            let spacing = match segment {
                Segment::Ack(_) => self.sender.bulk_ack_spacing(now),
                _ => None,
            };
            let pool = &mut self.send_pool;
            let copy = || {
                let mut buffer = pool.take(now);
                buffer.extend_from_slice(packet);
                pool.lend(buffer)
            };
            let filter = &mut self.bulk_ack_filter;
            let passes = filter.passes(now, flow, segment, spacing, copy);
            self.send_acks(now);
            if !passes {
                return;
            }
            is_stream = true;
        } else if info.is_some_and(|info| info.has_quic_port()) {
            match self.handle_quic(now, packet, flow) {
                QuicVerdict::Unknown => {}
                QuicVerdict::Stream => is_stream = true,
                QuicVerdict::Probe => return,
            }
        }
        let kind = FlowKind {
            is_stream,
            is_limited,
        };
        let places = self.send_inner(now, packet, info.as_ref(), flow, kind);
        if let Some(data) = data {
            self.spurious_filter.handle_sent(now, flow, data, places);
        }
    }

    /// Returns true for a segment whose data wait already.
    fn is_spurious(&mut self, flow: u32, data: DataSegment) -> bool {
        let (filter, sender) = (&mut self.spurious_filter, &self.sender);
        filter.is_spurious(flow, data, || sender.places(flow))
    }

    fn handle_quic(&mut self, now: Time, packet: &[u8], flow: u32) -> QuicVerdict {
        match quic::parse(packet, || self.max_whole_packet()) {
            Some(parsed) => self.quic_flows.handle(now, flow, parsed),
            None => QuicVerdict::Unknown,
        }
    }

    /// Sends the acknowledgements whose wait is over.
    fn send_acks(&mut self, now: Time) {
        while let Some(packet) = self.bulk_ack_filter.poll() {
            let info = FlowInfo::of(&packet);
            let flow = info.as_ref().map_or(0, FlowInfo::hash);
            let kind = FlowKind {
                is_stream: true,
                is_limited: false,
            };
            self.send_inner(now, &packet, info.as_ref(), flow, kind);
        }
    }

    /// Sends a packet of a flow. Returns the places in its queue up to its own, if it waits
    /// in one.
    fn send_inner(
        &mut self,
        now: Time,
        packet: &[u8],
        info: Option<&FlowInfo>,
        flow: u32,
        kind: FlowKind,
    ) -> Option<Range<u64>> {
        let class = self.settings.policy.class(info, self.remote_side());
        let lane = self.sender.lane(flow);
        let buffer = self.compress(now, lane, packet);
        let len = Bytes::new(buffer.len() as u64);
        self.busy = true;
        let packet = self.send_pool.lend(buffer);
        let inner = InnerPacket {
            flow,
            class,
            len,
            is_stream: kind.is_stream,
            is_limited: kind.is_limited,
        };
        self.sender.handle_packet(now, inner, packet)
    }

    /// Stores new keys for this session, which the other end asked for.
    pub fn offer(&mut self, session: Session) {
        self.replay_guard.keys.offer(session);
    }

    /// Forgets all keys and the handshake in progress: the machine was suspended or copied, so
    /// others may have the keys, or a copy may be using them. A client asks at once for new keys
    /// that continue the session.
    pub fn forget_keys(&mut self, now: Time) {
        let continues = self.replay_guard.keys.peek().map(Session::peer);
        self.replay_guard.keys.clear();
        self.clock.handle_suspend();
        let has_links = self.links.iter().any(Option::is_some);
        if let Some(client) = self.client.as_mut().filter(|_| has_links) {
            client.restart(now, continues, &mut self.entropy);
        }
    }

    /// Uses this key of the hub from now on: a handshake by it begins at once, and continues the
    /// session. The caller has stored the key.
    pub fn set_hub(&mut self, now: Time, hub: PublicKey) {
        let continues = self.replay_guard.keys.peek().map(Session::peer);
        if let Some(client) = &mut self.client {
            client.set_hub(now, hub, continues, &mut self.entropy);
        }
    }

    /// Ends the session, and tells the other end on every link.
    pub fn close(&mut self, reason: Reason) {
        let links = u32::MAX;
        self.closing = Some(Closing { reason, links });
    }

    /// The next inner packet for this end. Its buffer is reused once it is dropped.
    pub fn poll_inner(&mut self, now: Time) -> Option<Packet> {
        loop {
            if let Some(packet) = self.ack_filter.poll() {
                return Some(self.limit_window(now, packet));
            }
            if let Some(packet) = self.delivery_pacer.poll(now) {
                return Some(packet);
            }
            let Some(delivery) = self.receiver.poll_delivery() else {
                self.delivery_pacer.end_release();
                return None;
            };
            self.reorder_delay.record(delivery.waited);
            let Some(packet) = self.decompress(delivery.lane, delivery.item) else {
                continue;
            };
            if delivery.order == DeliveryOrder::InOrder && is_udp(&packet) {
                let (lane, bytes) = (delivery.lane, packet.len());
                let arrived = now.before(delivery.waited);
                let passes = self
                    .delivery_pacer
                    .handle(now, arrived, lane, bytes, packet);
                match passes {
                    Some(packet) => return Some(packet),
                    None => continue,
                }
            }
            let Some(segment) = TcpSegment::parse_short(&packet) else {
                return Some(self.limit_window(now, packet));
            };
            let (flow, kind) = (segment.acknowledged_flow(), segment.kind());
            if let Some(syn) = segment.syn() {
                self.window_limits.handle_syn(now, flow, false, syn);
            }
            let spacing = match self.window_limits.limits(flow) {
                true => None,
                false => self.sender.ack_spacing(now),
            };
            self.ack_filter.handle(now, flow, kind, spacing, packet);
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Session indices by which the other end may address this one.
    pub fn indices(&self) -> impl Iterator<Item = SessionIndex> {
        self.replay_guard.keys.indices()
    }

    /// The current session; none before the first handshake, or once it has expired.
    #[must_use]
    pub fn session(&self) -> Option<&Session> {
        self.replay_guard.keys.peek()
    }

    /// Refused datagrams by reason.
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
    pub fn receiver(&self) -> &Receiver<Packet, RepairSymbol> {
        &self.receiver
    }

    /// TCP segments dropped because their data waited for the links already.
    #[must_use]
    pub fn spurious_retransmissions(&self) -> u64 {
        self.spurious_retransmissions
    }

    /// Packets delivered with a smaller receive window than they came with.
    #[must_use]
    pub fn lowered_windows(&self) -> u64 {
        self.lowered_windows
    }

    /// Memory of the inner packets that wait or are kept for repair in each direction, sent and
    /// received, bytes; at most 128 MiB each, and what one batch of datagrams brings.
    #[must_use]
    pub fn packet_memory(&self) -> [usize; 2] {
        [&self.send_pool, &self.receive_pool].map(BufferPool::bytes)
    }

    /// Largest UDP payload that a link carries; none without such a link.
    #[must_use]
    pub fn max_payload(&self, link: LinkId) -> Option<u16> {
        self.links[link.index()]
            .as_ref()
            .map(|link| link.mtu.payload())
    }

    /// Applies the sender's verdicts.
    fn handle_changes(&mut self, now: Time) {
        while let Some(change) = self.sender.poll_change() {
            if change.verdict == Verdict::Suspect {
                self.receiver.set_live(now, change.link, false);
            }
            let is_out = matches!(change.verdict, Verdict::Suspect | Verdict::Quarantined);
            if let Some(link) = &mut self.links[change.link.index()] {
                if is_out {
                    // Perhaps large packets alone are lost: small ones pass on a path that has become narrower.
                    link.mtu.handle_black_hole();
                    // Sealed packets alone do not show that the link passes GRE.
                    link.gre_probe = cleartext::GreProbe::new(now);
                } else {
                    link.mtu.handle_return(now);
                }
            }
            self.update_parity_limit();
            push(&mut self.events, Event::LinkVerdict(change));
        }
    }

    /// Applies keys that have come into force.
    fn handle_keys(&mut self, now: Time, continued: bool, options: Options) {
        self.busy = false;
        self.last_received = now;
        if !continued {
            self.sender = sender(&self.settings);
            self.spurious_filter = SpuriousFilter::default();
            self.receiver = receiver(&self.settings);
            self.reorder_delay = Histogram::default();
            self.reassembler.clear();
            self.clock = PeerClock::default();
            self.lanes = PeerLanes::default();
            self.reports = reports::OutgoingReport::default();
            self.fragmenter = None;
            for link in self.links.iter_mut().flatten() {
                link.restart(now);
            }
            self.peer = Capabilities::read(&options);
            self.compression = header_compression::HeaderCompression::default();
            self.resend_policy();
        }
        self.clock.handle_keys(now);
        self.note_unsupported_policy();
        for link in self.links.iter_mut().flatten() {
            // A packet on every link confirms the keys, and shows which links work.
            link.start_probing(now);
            link.confirm_keys = true;
        }
        push(&mut self.events, Event::Established { continued, options });
    }

    /// Gives a link to the sender once it may carry data.
    fn activate_link(&mut self, now: Time, id: LinkId) {
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
        self.update_parity_limit();
        push(&mut self.events, Event::LinkUsable(id));
    }

    /// Tells the sender the largest packet whose repair symbol fits into a datagram.
    fn update_parity_limit(&mut self) {
        let links = self.links.iter().flatten().filter(|link| link.in_use);
        let payload = links.map(|link| usize::from(link.mtu.payload())).min();
        let most = payload.map(|payload| Bytes::new(view::max_whole_packet_in(payload) as u64));
        self.sender.set_fec(most);
    }

    fn refuse(&mut self, reason: Reject) {
        self.rejects.count(reason);
    }

    fn is_client(&self) -> bool {
        self.client.is_some()
    }

    /// The remote side of packets that leave by this tunnel.
    fn remote_side(&self) -> RemoteSide {
        match self.is_client() {
            true => RemoteSide::Destination,
            false => RemoteSide::Source,
        }
    }
}

fn sender(settings: &TunnelSettings) -> Sender<Packet> {
    // The pool holds on to the packet's bytes, so a marked packet is a new one. Few are marked.
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
        max_extra_delay: settings.policy.extra_delay(),
        ..SenderSettings::default()
    };
    Sender::new(settings.policy.scheduler(), options)
}

fn receiver(settings: &TunnelSettings) -> Receiver<Packet, RepairSymbol> {
    let mut receiver = Receiver::new(settings.receiver);
    receiver.set_reordering(settings.policy.ordering);
    receiver
}

/// Returns true for a UDP packet without IPv6 extension headers.
fn is_udp(packet: &[u8]) -> bool {
    let protocol = match packet.first().map(|byte| byte >> 4) {
        Some(4) => packet.get(9),
        _ => packet.get(6),
    };
    protocol == Some(&protocol::UDP)
}

fn push(events: &mut VecDeque<Event>, event: Event) {
    if events.len() == MAX_QUEUED_EVENTS {
        events.pop_front();
    }
    events.push_back(event);
}

impl From<HandshakeError> for Reject {
    fn from(_: HandshakeError) -> Self {
        Reject::Handshake
    }
}
