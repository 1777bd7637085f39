//! Incoming datagrams.

use std::net::SocketAddr;

use braid_core::{Bytes, Time};
use braid_multipath::estimate::{Arrival, NumberRange};
use braid_multipath::fec::Group;
use braid_multipath::retransmit::Nack;
use braid_multipath::{Incoming, LaneId, LinkId, PacketNumber, Stamp};

use super::link::LinkConfig;
use super::{Event, IP_UDP_HEADERS, Link, Tunnel, push, reports};
use crate::proto::frame::{self, Data, Frame, Frames, LinkParams};
use crate::proto::handshake::terms::Refusal;
use crate::proto::handshake::{Reset, Response};
use crate::proto::packet::{Header, Kind, STAMP};
use crate::proto::pool::{BufferPool, MAX_POOL_BYTES};
use crate::proto::reject::Reject;
use crate::proto::repair_symbol::{self, RepairSymbol};
use crate::proto::session::{KeyStatus, Session};

/// Bytes of packets and repair symbols that may be summed up for each byte that arrives; the credit
/// grows up to [`MAX_REPAIR_CREDIT`]. A packet is in the windows of four symbols, and of these one in
/// three is needed, so it is summed up once or twice. A symbol of a few bytes can have 255 full packets
/// summed up.
const REPAIR_CREDIT_PER_BYTE: usize = 8;

/// The sums of a burst of losses: eight symbols over 255 full packets each.
pub(super) const MAX_REPAIR_CREDIT: usize = 4_000_000;

/// Source of a packet, when it was sent, and when it arrived.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    pub link: LinkId,
    pub from: SocketAddr,
    pub stamp: Stamp,
    pub arrived: Time,
}

impl Tunnel {
    /// Handles a datagram or GRE packet that arrived at a time, which is before now if it waited to be
    /// read, from an address. Its bytes are undefined afterwards.
    ///
    /// # Errors
    /// The reason for refusal; it is counted.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        from: (Time, SocketAddr),
        datagram: &mut [u8],
    ) -> Result<(), Reject> {
        let result = match Kind::of(datagram) {
            None => Err(Reject::Malformed),
            Some(Kind::Data(header)) => self.handle_data(now, from, header, datagram),
            Some(Kind::Cleartext(header)) => self.handle_cleartext(now, from, header, datagram),
            Some(Kind::Response) => self.handle_response(now, datagram),
            Some(Kind::Cookie) => self.handle_cookie(datagram),
            Some(Kind::Reset) => self.handle_reset(now, datagram),
            Some(Kind::Retired) => self.handle_retired(datagram),
            // Initiations are for the listener.
            Some(Kind::Initiation) => Err(Reject::Handshake),
        };
        result.inspect_err(|reason| self.refuse(*reason))
    }

    fn handle_response(&mut self, now: Time, datagram: &[u8]) -> Result<(), Reject> {
        let client = self.client.as_mut().ok_or(Reject::Handshake)?;
        let receiver = Response::parse(datagram)?.receiver;
        if self.replay_guard.keys.has(receiver) {
            // A copy that came over another link.
            return Ok(());
        }
        let established = client.handle_response(now, datagram, &mut self.entropy)?;
        let Some(established) = established else {
            return Ok(());
        };
        if let Some(refusal) = Refusal::read(&established.options) {
            push(&mut self.events, Event::Refused(refusal));
            return Ok(());
        }
        if !established.continued {
            self.replay_guard.forget_keys();
        }
        self.replay_guard.keys.install(now, established.session);
        self.handle_keys(now, established.continued, established.options);
        Ok(())
    }

    fn handle_cookie(&mut self, datagram: &[u8]) -> Result<(), Reject> {
        let client = self.client.as_mut().ok_or(Reject::Handshake)?;
        client.handle_cookie(datagram)?;
        Ok(())
    }

    fn handle_retired(&mut self, datagram: &[u8]) -> Result<(), Reject> {
        let client = self.client.as_mut().ok_or(Reject::Handshake)?;
        if client.handle_retired(datagram)? {
            push(&mut self.events, Event::KeyRetired);
        }
        Ok(())
    }

    fn handle_reset(&mut self, now: Time, datagram: &[u8]) -> Result<(), Reject> {
        let reset = Reset::parse(datagram).ok_or(Reject::Malformed)?;
        let session = self.replay_guard.keys.peek();
        let session = session.filter(|session| session.peer() == reset.index);
        let session = session.ok_or(Reject::Session)?;
        reset
            .verify(session.reset_token())
            .map_err(|_| Reject::Reset)?;
        let continues = Some(Session::peer(session));
        if let Some(client) = &mut self.client {
            client.ensure_running(now, continues, &mut self.entropy);
        }
        Ok(())
    }

    fn handle_data(
        &mut self,
        now: Time,
        (arrived, from): (Time, SocketAddr),
        header: Header,
        datagram: &mut [u8],
    ) -> Result<(), Reject> {
        let id = header.link;
        if !self.is_client() {
            // A hub takes any link of its clients, once a packet on it is authentic.
            self.replay_guard.allow_link(id);
        }
        let len = datagram.len() as u64;
        let opened = self.replay_guard.open(now, header, datagram)?;
        let (number, newest, key_status) = (opened.number, opened.newest, opened.key_status);
        let (bits, frames) = opened.plain.split_at(STAMP);
        let bits = u32::from_be_bytes([0, bits[0], bits[1], bits[2]]);
        self.last_received = now;
        if key_status == KeyStatus::Confirmed {
            // The responder makes a new tunnel for a session that does not continue another.
            self.handle_keys(now, true, Default::default());
        }
        let stamp = self.expand_stamp((now, arrived), id, bits);
        let link =
            self.links[id.index()].get_or_insert_with(|| Link::new(now, LinkConfig::default()));
        link.path
            .handle_received(now, from, len, newest, &mut self.entropy);
        self.activate_link(now, id);
        let wire = Bytes::new(len + IP_UDP_HEADERS);
        let origin = Origin {
            link: id,
            from,
            stamp,
            arrived,
        };
        self.handle_frames(now, origin, number, wire, frames)
    }

    /// Expands the stamp of an accepted packet.
    pub(super) fn expand_stamp(
        &mut self,
        (now, arrived): (Time, Time),
        link: LinkId,
        bits: u32,
    ) -> Stamp {
        let receiver = &self.receiver;
        self.clock.expand(now, bits, |at| {
            let quickest = receiver.least_delay(at, link)?;
            Some(quickest.sent(arrived))
        })
    }

    /// Handles the frames of an accepted packet.
    pub(super) fn handle_frames(
        &mut self,
        now: Time,
        origin: Origin,
        number: PacketNumber,
        wire: Bytes,
        frames: &[u8],
    ) -> Result<(), Reject> {
        let id = origin.link;
        let elicits = Frames::new(frames).any(|frame| frame.is_ok_and(|frame| frame.elicits()));
        self.on(id, |link| link.report_owed |= elicits);
        let packet = Incoming {
            number,
            stamp: origin.stamp,
            arrived: origin.arrived,
            len: wire,
            elicits,
        };
        if self.receiver.handle_datagram(now, id, &packet) == Arrival::Duplicate {
            return Err(Reject::Old);
        }
        self.sender.handle_received(now, id);
        let credit = self.repair_credit + REPAIR_CREDIT_PER_BYTE * frames.len();
        self.repair_credit = credit.min(MAX_REPAIR_CREDIT);
        let mut result = Ok(());
        for frame in Frames::new(frames) {
            match frame {
                Ok(frame) => self.handle_frame(now, origin, frame),
                Err(_) => result = Err(Reject::Frame),
            }
        }
        self.receiver.handle_end(now);
        self.rebuild(now);
        self.bound_memory(now);
        self.handle_changes(now);
        self.queue_reports(now);
        result
    }

    /// Gives up order, and before it the packets kept to rebuild others, rather than take more memory
    /// than [`MAX_POOL_BYTES`]. Afterwards at most half of that is in use, so the next search for
    /// what is free is far.
    fn bound_memory(&mut self, now: Time) {
        if self.receive_pool.bytes() <= MAX_POOL_BYTES {
            return;
        }
        let is_full = |pool: &mut BufferPool| {
            pool.free();
            pool.bytes() > MAX_POOL_BYTES / 2
        };
        if !is_full(&mut self.receive_pool) {
            return;
        }
        self.receiver.forget_repairs();
        if is_full(&mut self.receive_pool) {
            self.receiver.release(now);
            self.delivery_pacer.release();
            // They are delivered before the next batch of datagrams.
            self.receive_pool.forget();
        }
    }

    fn handle_frame(&mut self, now: Time, origin: Origin, frame: Frame<'_>) {
        match frame {
            Frame::Data(data) => self.handle_packet(now, origin, &data),
            Frame::Report(report) => self.handle_report(now, origin.stamp, report),
            Frame::Nack(nack) => self.handle_nack(now, nack),
            Frame::Flush(flush) => {
                let lane = LaneId(flush.lane);
                let highest = self.lanes.expand(lane, flush.highest);
                self.receiver
                    .handle_flush(now, origin.link, lane, highest, origin.stamp);
            }
            // A report answers a ping without token.
            Frame::Ping(ping) if ping.token == 0 => {}
            Frame::Ping(ping) => {
                let pong = frame::Pong { token: ping.token };
                self.on(origin.link, |link| link.push_pong(pong));
            }
            Frame::Pong(pong) => self.handle_pong(now, origin.link, pong),
            Frame::PathChallenge(challenge) => self.on(origin.link, |link| {
                link.response = Some((origin.from, challenge.token));
            }),
            Frame::PathResponse(response) => {
                self.handle_path_response(now, origin, response.token);
            }
            Frame::LinkParams(params) if !self.is_client() => {
                self.handle_link_params(origin.link, params)
            }
            // A hub does not set the parameters of a client's links.
            Frame::LinkParams(_) => {}
            Frame::Policy(fragment) => self.handle_policy(origin.link, &fragment),
            Frame::PolicyAck(ack) => self.handle_policy_ack(ack),
            Frame::Header(context) => self.handle_header(&context),
            Frame::HeaderAck(ack) => self.handle_header_ack(ack),
            Frame::Close(close) => {
                self.replay_guard.keys.clear();
                push(&mut self.events, Event::Closed(close.reason));
                // A hub that stopped may be back in a moment; one that revoked this client repeats
                // it.
                if let Some(client) = self.client.as_mut().filter(|_| self.closing.is_none()) {
                    client.ensure_running(now, None, &mut self.entropy);
                }
            }
            Frame::Parity(parity) => self.handle_parity(now, origin, parity),
            Frame::Padding(_) | Frame::Unknown { .. } => {}
        }
    }

    pub(super) fn on(&mut self, id: LinkId, act: impl FnOnce(&mut Link)) {
        if let Some(link) = &mut self.links[id.index()] {
            act(link);
        }
    }

    fn handle_packet(&mut self, now: Time, origin: Origin, data: &Data<'_>) {
        self.busy = true;
        self.on(origin.link, |link| link.carried = Some(now));
        let lane = LaneId(data.lane);
        if let Some([_, received]) = self.shares.as_deref_mut() {
            received.add(now, lane, origin.link, data.content.len());
        }
        let seq = self.lanes.expand(lane, data.number);
        let packet = match data.fragment {
            None => Some(self.receive_pool.packet(now, data.content)),
            Some(fragment) => {
                let place = (data.lane, seq.0);
                self.reassembler.handle_fragment(
                    now,
                    place,
                    fragment,
                    data.content,
                    &mut self.receive_pool,
                )
            }
        };
        if let Some(packet) = packet {
            let place = (lane, seq, data.class.into());
            self.receiver
                .handle_data(now, origin.link, origin.stamp, place, packet);
        }
    }

    fn handle_parity(&mut self, now: Time, origin: Origin, parity: frame::Parity<'_>) {
        let lane = LaneId(parity.lane);
        let group = Group {
            lane,
            // Its number does not advance the lane: the group may belong to a forgotten one.
            first: self.lanes.expand_known(lane, parity.first),
            count: parity.count,
            power: parity.power,
        };
        let sum = RepairSymbol {
            lengths: parity.lengths,
            content: self.receive_pool.packet(now, parity.content),
        };
        self.receiver
            .handle_repair(now, origin.link, origin.stamp, group, sum);
    }

    /// Recovers missing packets where repair symbols suffice, and what has arrived pays for it.
    pub(super) fn rebuild(&mut self, now: Time) {
        while let Some(recipe) = self.receiver.poll_rebuild() {
            let left = self.repair_credit.checked_sub(repair_symbol::cost(&recipe));
            self.repair_credit = left.unwrap_or(self.repair_credit);
            let packet =
                left.and_then(|_| repair_symbol::decode(now, &recipe, &mut self.receive_pool));
            self.receiver.handle_rebuilt(now, recipe, packet);
        }
    }

    fn handle_report(&mut self, now: Time, stamp: Stamp, report: frame::Report<'_>) {
        for entry in report.entries {
            let Some(link) = &self.links[entry.link.index()] else {
                continue;
            };
            if let Some(report) = reports::incoming(now, stamp, &entry, link.number_base) {
                self.sender.handle_report(now, &report);
            }
        }
        self.receiver
            .set_retransmit_delay(self.sender.retransmit_delay());
    }

    /// If a later fragment of a packet is missing, the whole packet is sent again.
    fn handle_nack(&mut self, now: Time, nack: frame::Nack<'_>) {
        let Some(link) = &mut self.links[nack.link.index()] else {
            return;
        };
        let before = link.number_base;
        let own = |number: u64| number.checked_sub(before).map(PacketNumber);
        for range in nack.ranges {
            let Some(last) = own(range.last) else {
                continue;
            };
            let first = own(range.first).unwrap_or_default();
            let range = NumberRange { first, last };
            let firsts = link
                .take_fragments(range)
                .map(|first| NumberRange { first, last: first });
            for range in std::iter::once(range).chain(firsts) {
                let link = nack.link;
                self.sender.handle_nack(now, Nack { link, range });
            }
        }
    }

    fn handle_link_params(&mut self, id: LinkId, params: LinkParams) {
        let link = self.links[id.index()].as_ref();
        let Some(config) = link.map(|link| link.config) else {
            return;
        };
        let treated = config.with_params(params);
        if treated != config {
            self.set_link(id, treated);
        }
    }

    fn handle_pong(&mut self, now: Time, id: LinkId, pong: frame::Pong) {
        let Some(link) = &mut self.links[id.index()] else {
            return;
        };
        if link.gre_probe.handle_pong(now, pong.token) {
            return;
        }
        if link.mtu.handle_pong(now, pong.token) {
            let payload = link.mtu.payload();
            self.update_parity_limit();
            push(
                &mut self.events,
                Event::PayloadIncreased { link: id, payload },
            );
        }
    }

    fn handle_path_response(&mut self, now: Time, origin: Origin, token: [u8; frame::TOKEN]) {
        let Some(link) = &mut self.links[origin.link.index()] else {
            return;
        };
        if link.path.handle_response(origin.from, token) {
            link.mtu.handle_new_path(now);
            let event = Event::PathMigrated {
                link: origin.link,
                to: origin.from,
            };
            push(&mut self.events, event);
            self.activate_link(now, origin.link);
            self.update_parity_limit();
        }
    }
}
