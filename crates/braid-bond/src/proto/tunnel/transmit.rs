//! What goes out.

use std::net::SocketAddr;

use super::clear::ANCHOR;
use super::link::{CHALLENGE, Link};
use super::{DATA_HEADER, Datagram, Packet, REPORT_IDLE, Tunnel, WIRE};
use crate::proto::frame::{
    Challenge, Close, Data, Frame, Nack, Padding, Parity, Part, PathResponse, Ping, Range,
};
use crate::proto::gre::{self, UDP_HEADER};
use crate::proto::packet::{HEADER, Header, OVERHEAD, STAMP, TAG, stamp_bits};
use crate::proto::sum;
use braid_core::bond::{Control, ControlKind, LanePacket, Transmit, TransmitRepair};
use braid_core::{Bytes, LaneId, LinkId, MAX_LINKS, PacketNumber, Stamp, Time};

/// What a part's header has more than a whole packet's: where it begins.
const OFFSET: usize = 2;

/// A PING with token 0.
const PING_SIZE: usize = 2;

/// What is left of a packet whose first part has gone out.
#[derive(Debug)]
pub(super) struct Rest {
    link: LinkId,
    /// The number that its first part has.
    first: PacketNumber,
    packet: LanePacket<Packet>,
    copy: bool,
    sent: usize,
}

impl Rest {
    fn new(link: LinkId, first: PacketNumber, packet: LanePacket<Packet>, copy: bool) -> Self {
        Rest {
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
        let part = Part {
            offset: self.sent as u16,
            last: self.sent + size == self.packet.item.len(),
        };
        let data = Data {
            class: self.packet.class.into(),
            copy: self.copy,
            has_length,
            lane: self.packet.lane.0,
            number: self.packet.seq.0 as u32 & 0x00ff_ffff,
            part: (!whole).then_some(part),
            content,
        };
        data.append(out);
    }
}

impl Tunnel {
    /// Writes the next datagram into `out`, which is emptied first; none if there is nothing to
    /// send for now.
    pub fn poll_transmit(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Datagram> {
        out.clear();
        if let Some(datagram) = self.poll_handshake(out) {
            return Some(datagram);
        }
        self.gate.keys.current(now)?;
        self.poll_close(now, out)
            .or_else(|| self.poll_rest(now, out))
            .or_else(|| self.poll_link(now, out))
            .or_else(|| self.poll_clear(now, out))
            .or_else(|| self.poll_policy(now, out))
            .or_else(|| self.poll_headers(now, out))
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

    /// The last word, once on every link that has an address.
    fn poll_close(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Datagram> {
        let closing = self.closing.as_mut()?;
        let reason = closing.reason;
        while closing.links != 0 {
            let index = closing.links.trailing_zeros() as usize;
            closing.links &= closing.links - 1;
            let link = self.links[index].as_ref();
            if let Some(to) = link.and_then(|link| link.path.address(CHALLENGE)) {
                let frame = Frame::Close(Close { reason });
                return self.send(now, LinkId(index as u8), to, &[frame], out);
            }
        }
        self.gate.keys.clear();
        None
    }

    /// What links have to say for themselves.
    fn poll_link(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Datagram> {
        for index in 0..MAX_LINKS {
            let id = LinkId(index as u8);
            let Some(link) = self.links[index].as_mut() else {
                continue;
            };
            if let Some((to, token)) = link.path.poll_challenge(now, CHALLENGE) {
                let frame = Frame::PathChallenge(Challenge { token });
                return self.send(now, id, to, &[frame], out);
            }
            if let Some((to, token)) = link.response.take() {
                let frame = Frame::PathResponse(PathResponse { token });
                return self.send(now, id, to, &[frame], out);
            }
            let address = link.path.address(CHALLENGE);
            if let Some(to) = address.filter(|_| link.poll_try(now)) {
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
            if link.has_something_to_say() {
                let to = link.path.address(u64::from(link.mtu.payload()));
                if let Some(to) = to {
                    return self.say(now, id, to, out);
                }
            }
        }
        None
    }

    /// Answers, requests and reports of one link, together.
    fn say(
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
        if let Some(heard) = link.heard.take() {
            heard.append(&mut self.scratch);
        }
        if (link.report || link.treat)
            && let Some(treat) = link.take_treat()
        {
            treat.append(&mut self.scratch);
        }
        if std::mem::take(&mut link.report) {
            link.reported = now;
            self.reports.append(now, &mut self.scratch);
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
                // With no lane to speak of, the packet's number and stamp still say how far we are.
                Padding { bytes: 1 }.append(&mut self.scratch);
                for flush in flushes {
                    flush.append(&mut self.scratch);
                }
                self.send_scratch(now, id, to, false, out)
            }
        }
    }

    fn poll_parity(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Datagram> {
        // What every packet takes beside its content was counted for a DATA frame.
        let size = |packets: &[Packet]| {
            let longest = packets.iter().map(|packet| packet.len()).max().unwrap_or(0);
            Bytes::new((longest + Parity::header_size(longest) - DATA_HEADER) as u64)
        };
        let parity = self.sender.poll_repair(now, &mut self.covered, size)?;
        let TransmitRepair {
            link: id, group, ..
        } = parity;
        let lengths = sum::make(&group, &self.covered, &mut self.scratch);
        self.covered.clear();
        let link = self.links[id.index()].as_ref()?;
        let to = link.path.proven()?;
        let number = PacketNumber(link.before + parity.number.0);
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
        let rest = Rest::new(link, number, packet, copy);
        self.send_part(now, rest, (number, stamp), out)
    }

    /// The next part of a packet too large for its link.
    fn poll_rest(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Datagram> {
        let rest = self.rest.take()?;
        // The packet's bytes were counted with its first part.
        let wire = Bytes::new((OVERHEAD + DATA_HEADER) as u64 + WIRE);
        let (number, stamp) = self.sender.number_control(now, rest.link, wire, true)?;
        let first = rest.first;
        if let Some(link) = &mut self.links[rest.link.index()] {
            link.push_part(number, first);
        }
        self.send_part(now, rest, (number, stamp), out)
    }

    /// A packet with a part of `rest`, or with all of it and what else fits and has its turn on the
    /// same link.
    fn send_part(
        &mut self,
        now: Time,
        mut rest: Rest,
        (number, stamp): (PacketNumber, Stamp),
        out: &mut Vec<u8>,
    ) -> Option<Datagram> {
        let id = rest.link;
        let is_clear = self.is_clear(id);
        let link = self.links[id.index()].as_mut()?;
        link.carried = Some(now);
        let to = link.path.proven()?;
        let wire = PacketNumber(link.before + number.0);
        let is_clear = is_clear && !wire.0.is_multiple_of(ANCHOR);
        let payload = usize::from(link.mtu.payload());
        let full = if is_clear {
            payload + UDP_HEADER
        } else {
            payload - TAG
        };
        self.begin(now, id, wire, stamp, is_clear, out)?;
        loop {
            self.touch_lane(id, rest.packet.lane);
            let room = full - out.len();
            let left = rest.packet.item.len() - rest.sent;
            let whole = rest.sent == 0 && DATA_HEADER + left <= room;
            let size = match whole {
                true => left,
                // Parts of one size: what is sent and received as one must be.
                false => left.div_ceil(left.div_ceil(room - DATA_HEADER - OFFSET)),
            };
            let last = size == left;
            let used = Data::header_size(true, !whole, size) + size;
            let more = match last {
                true => self.poll_more(now, id, number, room.saturating_sub(used)),
                false => None,
            };
            rest.append(size, whole, more.is_some(), out);
            match more {
                Some(packet) => rest = Rest::new(id, number, packet, false),
                None => {
                    rest.sent += size;
                    self.rest = (!last).then_some(rest);
                    break;
                }
            }
        }
        if !is_clear {
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

    fn touch_lane(&mut self, link: LinkId, lane: LaneId) {
        if let Some(link) = &mut self.links[link.index()] {
            link.touch_lane(lane);
        }
    }

    /// A packet of these frames alone.
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
        let wire = Bytes::new(bytes + WIRE);
        let (number, stamp) = if link.in_use {
            let (number, stamp) = self.sender.number_control(now, id, wire, elicits)?;
            (PacketNumber(link.before + number.0), stamp)
        } else {
            link.before += 1;
            (PacketNumber(link.before - 1), Stamp::of(now))
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
        is_clear: bool,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let session = self.gate.keys.current(now)?;
        let header = Header {
            link,
            receiver: session.peer(),
            number: number.0 as u32,
        };
        match is_clear {
            true => gre::begin(header, out),
            false => out.extend_from_slice(&header.to_bytes()),
        }
        out.extend_from_slice(&stamp_bits(stamp).to_be_bytes()[1..]);
        Some(())
    }

    fn seal(&mut self, now: Time, link: LinkId, number: PacketNumber, out: &mut Vec<u8>) {
        if let Some(session) = self.gate.keys.current(now) {
            session.seal(link, number, out);
        }
    }

    /// Gathers what is to be reported and asked for, and gives it to the links that are to say it.
    pub(super) fn speak(&mut self, now: Time) {
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
            let owes = std::mem::take(&mut link.owes);
            link.report |= busy || owes || now.since(link.reported) >= REPORT_IDLE;
        }
    }

    fn links_in_use(&mut self) -> impl Iterator<Item = &mut Link> {
        self.links.iter_mut().flatten().filter(|link| link.in_use)
    }
}

const _: () = assert!(HEADER + STAMP + TAG == OVERHEAD);
