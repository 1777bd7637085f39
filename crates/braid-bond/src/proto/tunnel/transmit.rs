//! Outgoing datagrams.

use std::net::SocketAddr;

use braid_core::{Bytes, Time};
use braid_multipath::bond::{Control, ControlKind, LanePacket, Transmit, TransmitRepair};
use braid_multipath::{LaneId, LinkId, MAX_LINKS, PacketNumber, Stamp};

use super::cleartext::SEALED_EVERY;
use super::link::{CHALLENGE_PACKET_SIZE, Link};
use super::{DATA_HEADER, Datagram, IP_UDP_HEADERS, Packet, REPORT_IDLE, Tunnel};
use crate::proto::frame::{
    Challenge, Close, Data, Fragment, Frame, Nack, Padding, Parity, PathResponse, Ping, Range,
};
use crate::proto::gre::{self, UDP_HEADER};
use crate::proto::packet::{HEADER, Header, OVERHEAD, STAMP, TAG, stamp_bits};
use crate::proto::repair_symbol;

/// Additional header bytes of a fragment: its offset.
const FRAGMENT_OFFSET_SIZE: usize = 2;

/// A PING with token 0.
const PING_SIZE: usize = 2;

/// A packet whose first fragment has been sent.
#[derive(Debug)]
pub(super) struct Fragmenter {
    link: LinkId,
    /// Packet number of its first fragment.
    first: PacketNumber,
    packet: LanePacket<Packet>,
    copy: bool,
    sent: usize,
}

impl Fragmenter {
    fn new(link: LinkId, first: PacketNumber, packet: LanePacket<Packet>, copy: bool) -> Self {
        Fragmenter {
            link,
            first,
            packet,
            copy,
            sent: 0,
        }
    }

    /// Writes the next `size` bytes.
    fn append(&self, size: usize, whole: bool, has_length: bool, out: &mut Vec<u8>) {
        let content = &self.packet.item[self.sent..self.sent + size];
        let fragment = Fragment {
            offset: self.sent as u16,
            last: self.sent + size == self.packet.item.len(),
        };
        let data = Data {
            class: self.packet.class.into(),
            copy: self.copy,
            has_length,
            lane: self.packet.lane.0,
            number: self.packet.seq.0 as u32 & 0x00ff_ffff,
            fragment: (!whole).then_some(fragment),
            content,
        };
        data.append(out);
    }
}

impl Tunnel {
    /// Writes the next datagram into `out`, which is cleared first; none if there is nothing to
    /// send for now.
    pub fn poll_transmit(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Datagram> {
        out.clear();
        if let Some(datagram) = self.poll_handshake(out) {
            return Some(datagram);
        }
        self.replay_guard.keys.current(now)?;
        self.poll_close(now, out)
            .or_else(|| self.poll_fragment(now, out))
            .or_else(|| self.poll_link(now, out))
            .or_else(|| self.poll_gre_probe(now, out))
            .or_else(|| self.poll_policy(now, out))
            .or_else(|| self.poll_compression(now, out))
            .or_else(|| self.poll_control(now, out))
            .or_else(|| self.poll_parity(now, out))
            .or_else(|| self.poll_data(now, out))
    }

    fn poll_handshake(&mut self, out: &mut Vec<u8>) -> Option<Datagram> {
        let client = self.client.as_mut()?;
        let mut usable = 0;
        for (index, link) in self.links.iter().enumerate() {
            let known = link
                .as_ref()
                .is_some_and(|link| link.path.proven().is_some());
            usable |= u32::from(known) << index;
        }
        let link = client.poll(usable, out)?;
        let to = self.links[link.index()].as_ref()?.path.proven()?;
        Some(Datagram { link, to })
    }

    /// CLOSE, once on every link that has an address.
    fn poll_close(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Datagram> {
        let closing = self.closing.as_mut()?;
        let reason = closing.reason;
        while closing.links != 0 {
            let index = closing.links.trailing_zeros() as usize;
            closing.links &= closing.links - 1;
            let link = self.links[index].as_ref();
            if let Some(to) = link.and_then(|link| link.path.address(CHALLENGE_PACKET_SIZE)) {
                let frame = Frame::Close(Close { reason });
                return self.send(now, LinkId(index as u8), to, &[frame], out);
            }
        }
        self.replay_guard.keys.clear();
        None
    }

    /// The next packet that a link itself needs: challenge, response, probe or control frames.
    fn poll_link(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Datagram> {
        for index in 0..MAX_LINKS {
            let id = LinkId(index as u8);
            let Some(link) = self.links[index].as_mut() else {
                continue;
            };
            if let Some((to, token)) = link.path.poll_challenge(now, CHALLENGE_PACKET_SIZE) {
                let frame = Frame::PathChallenge(Challenge { token });
                return self.send(now, id, to, &[frame], out);
            }
            if let Some((to, token)) = link.response.take() {
                let frame = Frame::PathResponse(PathResponse { token });
                return self.send(now, id, to, &[frame], out);
            }
            let address = link.path.address(CHALLENGE_PACKET_SIZE);
            if let Some(to) = address.filter(|_| link.poll_probe(now)) {
                return self.send(now, id, to, &[Frame::Ping(Ping { token: 0 })], out);
            }
            if let Some(to) = link.path.proven().filter(|_| link.in_use)
                && let Some(probe) = link.mtu.poll_probe(now)
            {
                let ping = Ping { token: probe.token };
                let used = OVERHEAD + 1 + crate::proto::varint::size_of(probe.token.into());
                let bytes = usize::from(probe.size) - used;
                let frames = [Frame::Ping(ping), Frame::Padding(Padding { bytes })];
                return self.send(now, id, to, &frames, out);
            }
            if link.has_pending_control() {
                let to = link.path.address(u64::from(link.mtu.payload()));
                if let Some(to) = to {
                    return self.send_control(now, id, to, out);
                }
            }
        }
        None
    }

    /// Sends the replies, requests and reports of one link together.
    fn send_control(
        &mut self,
        now: Time,
        id: LinkId,
        to: SocketAddr,
        out: &mut Vec<u8>,
    ) -> Option<Datagram> {
        let link = self.links[id.index()].as_mut()?;
        self.scratch.clear();
        while let Some(pong) = link.pongs.pop_front() {
            pong.append(&mut self.scratch);
        }
        while let Some(nack) = link.nacks.pop_front() {
            let range = Range {
                first: nack.range.first.0,
                last: nack.range.last.0,
            };
            Nack::write(nack.link, &[range], &mut self.scratch);
        }
        if let Some(ack) = link.policy_ack.take() {
            ack.append(&mut self.scratch);
        }
        if (link.report || link.params_due)
            && let Some(params) = link.take_params()
        {
            params.append(&mut self.scratch);
        }
        if std::mem::take(&mut link.report) {
            link.reported = now;
            self.reports.append(now, &self.clock, &mut self.scratch);
        }
        self.send_scratch(now, id, to, false, out)
    }

    fn poll_control(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Datagram> {
        let Control { link: id, kind } = self.sender.poll_control(now)?;
        let to = self.links[id.index()].as_ref()?.path.proven()?;
        match kind {
            ControlKind::Probe => {
                let frame = Frame::Ping(Ping { token: 0 });
                self.send(now, id, to, &[frame], out)
            }
            ControlKind::Train => {
                let payload = self.links[id.index()].as_ref()?.mtu.payload();
                let bytes = usize::from(payload) - OVERHEAD - PING_SIZE;
                let ping = Frame::Ping(Ping { token: 0 });
                let padding = Frame::Padding(Padding { bytes });
                self.send(now, id, to, &[ping, padding], out)
            }
            ControlKind::Close => {
                let sender = &self.sender;
                let link = self.links[id.index()].as_mut()?;
                let flushes = link.take_flushes(|lane| sender.next_seq(lane).0);
                self.scratch.clear();
                // Without a lane to flush, the packet's number and stamp still show the progress.
                Padding { bytes: 1 }.append(&mut self.scratch);
                for flush in flushes {
                    flush.append(&mut self.scratch);
                }
                self.send_scratch(now, id, to, false, out)
            }
        }
    }

    /// Makes a repair packet: a PARITY frame with the next repair symbol, if one is due.
    fn poll_parity(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Datagram> {
        // The overhead of every packet was counted for a DATA frame.
        let size = |packets: &[Packet]| {
            let longest = packets.iter().map(|packet| packet.len()).max().unwrap_or(0);
            Bytes::new((longest + Parity::header_size(longest) - DATA_HEADER) as u64)
        };
        let parity = self.sender.poll_repair(now, &mut self.sources, size)?;
        let TransmitRepair {
            link: id, group, ..
        } = parity;
        let lengths = repair_symbol::encode(&group, &self.sources, &mut self.scratch);
        self.sources.clear();
        let link = self.links[id.index()].as_ref()?;
        let to = link.path.proven()?;
        let number = PacketNumber(link.number_base + parity.number.0);
        self.begin(now, id, number, parity.stamp, false, out)?;
        let frame = Parity {
            lane: group.lane.0,
            first: group.first.0 as u32 & 0x00ff_ffff,
            count: group.count,
            power: group.power,
            lengths,
            content: &self.scratch,
        };
        frame.append(out);
        self.seal(now, id, number, out);
        Some(Datagram { link: id, to })
    }

    fn poll_data(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Datagram> {
        let Transmit {
            link,
            number,
            stamp,
            packet,
            copy,
        } = self.sender.poll_transmit(now)?;
        self.count_sent(now, link, &packet);
        let fragmenter = Fragmenter::new(link, number, packet, copy);
        self.send_fragment(now, fragmenter, (number, stamp), out)
    }

    /// The next fragment of a packet too large for its link.
    fn poll_fragment(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Datagram> {
        let fragmenter = self.fragmenter.take()?;
        // The packet's bytes were counted with its first fragment.
        let wire = Bytes::new((OVERHEAD + DATA_HEADER) as u64 + IP_UDP_HEADERS);
        let (number, stamp) = self
            .sender
            .number_control(now, fragmenter.link, wire, true)?;
        let first = fragmenter.first;
        if let Some(link) = &mut self.links[fragmenter.link.index()] {
            link.push_fragment(number, first);
        }
        self.send_fragment(now, fragmenter, (number, stamp), out)
    }

    /// A packet with the next fragment of `fragmenter`; or with all of it, and further packets that
    /// fit and are due on the same link.
    fn send_fragment(
        &mut self,
        now: Time,
        mut fragmenter: Fragmenter,
        (number, stamp): (PacketNumber, Stamp),
        out: &mut Vec<u8>,
    ) -> Option<Datagram> {
        let id = fragmenter.link;
        let is_cleartext = self.is_cleartext(id);
        let link = self.links[id.index()].as_mut()?;
        link.carried = Some(now);
        let to = link.path.proven()?;
        let wire = PacketNumber(link.number_base + number.0);
        let is_cleartext = is_cleartext && !wire.0.is_multiple_of(SEALED_EVERY);
        let payload = usize::from(link.mtu.payload());
        let full = if is_cleartext {
            payload + UDP_HEADER
        } else {
            payload - TAG
        };
        self.begin(now, id, wire, stamp, is_cleartext, out)?;
        loop {
            self.touch_lane(id, fragmenter.packet.lane);
            let room = full - out.len();
            let left = fragmenter.packet.item.len() - fragmenter.sent;
            let whole = fragmenter.sent == 0 && DATA_HEADER + left <= room;
            let size = match whole {
                true => left,
                // Fragments are of equal size, so that sockets can batch them.
                false => left.div_ceil(left.div_ceil(room - DATA_HEADER - FRAGMENT_OFFSET_SIZE)),
            };
            let last = size == left;
            let used = Data::header_size(true, !whole, size) + size;
            let more = match last {
                true => self.poll_more(now, id, number, room.saturating_sub(used)),
                false => None,
            };
            fragmenter.append(size, whole, more.is_some(), out);
            match more {
                Some(packet) => {
                    self.count_sent(now, id, &packet);
                    fragmenter = Fragmenter::new(id, number, packet, false);
                }
                None => {
                    fragmenter.sent += size;
                    self.fragmenter = (!last).then_some(fragmenter);
                    break;
                }
            }
        }
        if !is_cleartext {
            self.seal(now, id, wire, out);
        }
        Some(Datagram { link: id, to })
    }

    /// A whole inner packet that fits into `room` with its header.
    fn poll_more(
        &mut self,
        now: Time,
        link: LinkId,
        number: PacketNumber,
        room: usize,
    ) -> Option<LanePacket<Packet>> {
        let header = Bytes::new(Data::header_size(true, false, room) as u64);
        let room = Bytes::new(room as u64);
        self.sender.poll_more(now, link, number, room, header)
    }

    fn count_sent(&mut self, now: Time, link: LinkId, packet: &LanePacket<Packet>) {
        if let Some([sent, _]) = self.shares.as_deref_mut() {
            sent.add(now, packet.lane, link, packet.item.len());
        }
    }

    fn touch_lane(&mut self, link: LinkId, lane: LaneId) {
        if let Some(link) = &mut self.links[link.index()] {
            link.touch_lane(lane);
        }
    }

    /// Sends a packet of these frames alone.
    pub(super) fn send(
        &mut self,
        now: Time,
        id: LinkId,
        to: SocketAddr,
        frames: &[Frame<'_>],
        out: &mut Vec<u8>,
    ) -> Option<Datagram> {
        self.scratch.clear();
        for frame in frames {
            frame.append(&mut self.scratch);
        }
        let elicits = frames.iter().any(Frame::elicits);
        self.send_scratch(now, id, to, elicits, out)
    }

    pub(super) fn send_scratch(
        &mut self,
        now: Time,
        id: LinkId,
        to: SocketAddr,
        elicits: bool,
        out: &mut Vec<u8>,
    ) -> Option<Datagram> {
        let bytes = (self.scratch.len() + OVERHEAD) as u64;
        let link = self.links[id.index()].as_mut()?;
        link.path.handle_sent(to, bytes);
        let wire = Bytes::new(bytes + IP_UDP_HEADERS);
        let (number, stamp) = if link.in_use {
            let (number, stamp) = self.sender.number_control(now, id, wire, elicits)?;
            (PacketNumber(link.number_base + number.0), stamp)
        } else {
            link.number_base += 1;
            (PacketNumber(link.number_base - 1), Stamp::of(now))
        };
        self.begin(now, id, number, stamp, false, out)?;
        out.extend_from_slice(&self.scratch);
        self.seal(now, id, number, out);
        Some(Datagram { link: id, to })
    }

    pub(super) fn begin(
        &mut self,
        now: Time,
        link: LinkId,
        number: PacketNumber,
        stamp: Stamp,
        is_cleartext: bool,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let session = self.replay_guard.keys.current(now)?;
        let header = Header {
            link,
            receiver: session.peer(),
            number: number.0 as u32,
        };
        match is_cleartext {
            true => gre::begin(header, out),
            false => out.extend_from_slice(&header.to_bytes()),
        }
        out.extend_from_slice(&stamp_bits(stamp).to_be_bytes()[1..]);
        Some(())
    }

    fn seal(&mut self, now: Time, link: LinkId, number: PacketNumber, out: &mut Vec<u8>) {
        if let Some(session) = self.replay_guard.keys.current(now) {
            session.seal(link, number, out);
        }
    }

    /// Collects due reports and NACKs, and queues them on the links that send them.
    pub(super) fn queue_reports(&mut self, now: Time) {
        while let Some(nack) = self.receiver.poll_nack() {
            self.links_in_use().for_each(|link| link.push_nack(nack));
        }
        if !self.receiver.is_report_due(now) {
            return;
        }
        let receiver = &mut self.receiver;
        self.reports.make(now, |links| {
            receiver.poll_reports(now, |report| links.push(report));
        });
        for link in self.links_in_use() {
            let busy = link.carried.is_some_and(|at| now.since(at) < REPORT_IDLE);
            let report_owed = std::mem::take(&mut link.report_owed);
            link.report |= busy || report_owed || now.since(link.reported) >= REPORT_IDLE;
        }
    }

    fn links_in_use(&mut self) -> impl Iterator<Item = &mut Link> {
        self.links.iter_mut().flatten().filter(|link| link.in_use)
    }
}

const _: () = assert!(HEADER + STAMP + TAG == OVERHEAD);
