//! Inner headers that are said once: who is told of them, and what packets become.

use std::collections::VecDeque;

use super::{Datagram, Tunnel};
use crate::proto::frame::{HeaderContext, HeaderHeard};
use crate::proto::headers::{self, Compressor, Expander, Saved, Taken};
use crate::proto::pool::{Buffer, Packet};
use crate::proto::reject::Reject;
use braid_core::{LaneId, LinkId, MAX_LINKS, Time};

/// Answers that wait; more are dropped, and asked for again.
const MOST_WAITING: usize = 64;

/// Bytes of a packet of answers and headers, after which another one is begun.
const ENOUGH: usize = 600;

/// Both directions of a tunnel.
#[derive(Debug, Default)]
pub(super) struct Headers {
    compressor: Compressor,
    expander: Expander,
    answers: VecDeque<HeaderHeard>,
    header: Vec<u8>,
    /// Packets that said something of it: each goes over the next link, since one may be dead.
    spoken: usize,
}

impl Headers {
    fn answer(&mut self, heard: HeaderHeard) {
        if self.answers.len() < MOST_WAITING && !self.answers.contains(&heard) {
            self.answers.push_back(heard);
        }
    }
}

impl Tunnel {
    /// What inner headers took less, in the direction from here.
    #[must_use]
    pub fn saved(&self) -> Saved {
        self.headers.compressor.saved()
    }

    /// The `n`-th of the links that may carry data, going round; none if there is none.
    pub(super) fn nth_link(&self, n: usize) -> Option<LinkId> {
        let in_use = |id: &LinkId| self.is_in_use(*id);
        let links = || (0..MAX_LINKS as u8).map(LinkId).filter(in_use);
        links().nth(n % links().count().max(1))
    }

    /// An inner packet as it goes through the tunnel.
    pub(super) fn compress(&mut self, now: Time, lane: LaneId, packet: &[u8]) -> Buffer {
        let mut buffer = self.outward.take(now);
        let can = self.settings.compress && self.peer.headers;
        let compressor = &mut self.headers.compressor;
        if !can || !compressor.compress(now, lane, packet, &mut buffer) {
            buffer.extend_from_slice(packet);
        }
        buffer
    }

    /// A packet that came through the tunnel as it was; none if that cannot be told.
    pub(super) fn expand(&mut self, lane: LaneId, packet: Packet) -> Option<Packet> {
        if !headers::is_compressed(&packet) {
            return Some(packet);
        }
        let mut buffer = self.inward.take_again();
        let expanded = self.headers.expander.expand(lane, &packet, &mut buffer);
        let Err(number) = expanded else {
            return Some(self.inward.lend(buffer));
        };
        self.inward.give_back(buffer);
        self.refuse(Reject::Header);
        if let Some(number) = number {
            self.headers.answer(HeaderHeard {
                lane: lane.0,
                number,
                known: false,
            });
        }
        None
    }

    pub(super) fn handle_header(&mut self, context: &HeaderContext<'_>) {
        match self.headers.expander.handle_context(context) {
            Taken::Known => self.headers.answer(HeaderHeard {
                lane: context.lane,
                number: context.number,
                known: true,
            }),
            Taken::Refused => self.refuse(Reject::Header),
        }
    }

    pub(super) fn handle_header_heard(&mut self, heard: HeaderHeard) {
        let (lane, number) = (LaneId(heard.lane), heard.number);
        let compressor = &mut self.headers.compressor;
        compressor.handle_heard(lane, number, heard.known);
    }

    pub(super) fn poll_headers(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Datagram> {
        let headers = &mut self.headers;
        if headers.answers.is_empty() && !headers.compressor.has_context() {
            return None;
        }
        let id = self.nth_link(self.headers.spoken)?;
        let to = self.remote(id)?;
        let (headers, scratch) = (&mut self.headers, &mut self.scratch);
        headers.spoken = headers.spoken.wrapping_add(1);
        scratch.clear();
        while let Some(heard) = headers.answers.pop_front() {
            heard.append(scratch);
        }
        while scratch.len() < ENOUGH
            && let Some(context) = headers.compressor.poll_context(&mut headers.header)
        {
            context.append(scratch);
        }
        self.send_scratch(now, id, to, false, out)
    }
}
