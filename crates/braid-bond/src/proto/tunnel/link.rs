//! One link of a tunnel: its address, its packet numbers, and its pending control frames.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use braid_core::{Bytes, Time};
use braid_multipath::bond::{LinkSettings, TRAIN_PACKETS};
use braid_multipath::estimate::NumberRange;
use braid_multipath::retransmit::Nack;
use braid_multipath::{LaneId, PacketNumber};

use super::cleartext::GreProbe;
use crate::proto::frame::{Flush, LinkParams, PolicyAck, Pong, TOKEN};
use crate::proto::mtu::Mtu;
use crate::proto::packet::OVERHEAD;
use crate::proto::path::Path;

/// Pending replies and requests of a link. More are dropped; the other end asks again if it needs
/// them.
const MAX_QUEUED_FRAMES: usize = 32;

/// Lanes that are flushed at the end of a burst. A burst of more lanes had many flows, each of
/// which lost little.
const MAX_FLUSHED_LANES: usize = 8;

/// Later fragments whose packet numbers are remembered: those of packets whose copies are kept.
const MAX_TRACKED_FRAGMENTS: usize = 4096;

/// First and largest interval of probes on a link that is not in use yet.
const MIN_PROBE_DELAY: Duration = Duration::from_millis(100);
const MAX_PROBE_DELAY: Duration = Duration::from_secs(20);

/// UDP payload of the largest datagram on an Ethernet.
pub const MAX_PAYLOAD_BYTES: u16 = 1472;

/// Configuration of a link. Every field is optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Address of its other end; none at a hub, which learns it.
    pub remote: Option<SocketAddr>,
    /// Its cost: dearer links carry what cheaper ones cannot.
    pub tier: u8,
    /// Largest send rate; no limit if none.
    pub cap: Option<braid_core::Rate>,
    /// Bytes left of its quota; no limit if none.
    pub quota: Option<Bytes>,
    /// Largest UDP payload that its device sends, bytes.
    pub max_payload: u16,
}

impl Default for LinkConfig {
    fn default() -> Self {
        LinkConfig {
            remote: None,
            tier: 0,
            cap: None,
            quota: None,
            max_payload: MAX_PAYLOAD_BYTES,
        }
    }
}

impl LinkConfig {
    /// Parameters of the link for the other end.
    pub(super) fn params(&self) -> LinkParams {
        LinkParams {
            tier: self.tier,
            spent: self.quota.is_some_and(|left| left.get() == 0),
            cap: LinkParams::cap_of(self.cap),
        }
    }

    /// The same link with parameters from the other end.
    pub(super) fn with_params(self, params: LinkParams) -> Self {
        LinkConfig {
            tier: params.tier,
            cap: params.rate(),
            quota: params.spent.then(|| Bytes::new(0)),
            ..self
        }
    }

    pub(super) fn settings(&self, overhead: Bytes) -> LinkSettings {
        LinkSettings {
            tier: self.tier,
            cap: self.cap,
            initial: None,
            overhead,
            train: TRAIN_PACKETS,
        }
    }
}

/// Upper bound for a packet with a path challenge or response, bytes.
pub(super) const CHALLENGE_PACKET_SIZE: u64 = (OVERHEAD + 1 + TOKEN) as u64;

#[derive(Debug)]
pub(super) struct Link {
    pub config: LinkConfig,
    pub path: Path,
    pub mtu: Mtu,
    /// True if the sender uses it: an authentic packet came, and the address is validated.
    pub in_use: bool,
    /// Packets numbered before the sender's count began. The sender's count restarts at zero with
    /// the link, and a number must never be used twice under one key.
    pub number_base: u64,
    pub pongs: VecDeque<Pong>,
    pub response: Option<(SocketAddr, [u8; TOKEN])>,
    pub nacks: VecDeque<Nack>,
    /// Pending acknowledgement of the client's policy.
    pub policy_ack: Option<PolicyAck>,
    pub report: bool,
    pub reported: Time,
    /// A packet came that elicits a report, on this link at least.
    pub report_owed: bool,
    /// A packet is due, whatever its contents: it confirms new keys.
    pub confirm_keys: bool,
    /// The other end has been sent parameters other than the default: they are repeated with every
    /// report, since any packet may be lost.
    pub params_announced: bool,
    /// The parameters are due now.
    pub params_due: bool,
    /// Time of the last inner packet in either direction.
    pub carried: Option<Time>,
    /// Lanes that used it since it last fell idle.
    pub lanes: Vec<LaneId>,
    /// Packet numbers of later fragments, each with that of its packet's first fragment.
    pub fragments: VecDeque<(PacketNumber, PacketNumber)>,
    /// Probing for GRE.
    pub gre_probe: GreProbe,
    probe_delay: Duration,
    pub probe_at: Option<Time>,
}

impl Link {
    pub fn new(now: Time, config: LinkConfig) -> Self {
        Link {
            config,
            path: Path::new(config.remote),
            mtu: Mtu::new(now, config.max_payload),
            in_use: false,
            number_base: 0,
            pongs: VecDeque::new(),
            response: None,
            nacks: VecDeque::new(),
            policy_ack: None,
            report: false,
            reported: now,
            report_owed: false,
            confirm_keys: false,
            params_announced: false,
            params_due: true,
            carried: None,
            lanes: Vec::with_capacity(MAX_FLUSHED_LANES),
            fragments: VecDeque::new(),
            gre_probe: GreProbe::new(now),
            probe_delay: MIN_PROBE_DELAY,
            probe_at: None,
        }
    }

    /// The session restarted: numbers and pending frames are void, the address stays.
    pub fn restart(&mut self, now: Time) {
        let path = self.path.clone();
        *self = Link::new(now, self.config);
        self.path = path;
    }

    /// Probes the link at growing intervals until it is in use.
    pub fn start_probing(&mut self, now: Time) {
        self.probe_delay = MIN_PROBE_DELAY;
        self.probe_at = Some(now);
    }

    /// The time of the next probe, if the link can be probed.
    pub fn probe_timeout(&self) -> Option<Time> {
        let can = !self.in_use && self.path.address(CHALLENGE_PACKET_SIZE).is_some();
        self.probe_at.filter(|_| can)
    }

    /// Returns true if a probe is due.
    pub fn poll_probe(&mut self, now: Time) -> bool {
        if std::mem::take(&mut self.confirm_keys) {
            return true;
        }
        if self.in_use || self.probe_at.is_none_or(|at| now < at) {
            return false;
        }
        self.probe_at = Some(now + self.probe_delay);
        self.probe_delay = (self.probe_delay * 2).min(MAX_PROBE_DELAY);
        true
    }

    pub fn push_pong(&mut self, pong: Pong) {
        if self.pongs.len() < MAX_QUEUED_FRAMES {
            self.pongs.push_back(pong);
        }
    }

    pub fn push_nack(&mut self, nack: Nack) {
        if self.nacks.len() < MAX_QUEUED_FRAMES {
            self.nacks.push_back(nack);
        }
    }

    pub fn touch_lane(&mut self, lane: LaneId) {
        if self.lanes.len() < MAX_FLUSHED_LANES && !self.lanes.contains(&lane) {
            self.lanes.push(lane);
        }
    }

    pub fn push_fragment(&mut self, fragment: PacketNumber, first: PacketNumber) {
        if self.fragments.len() == MAX_TRACKED_FRAGMENTS {
            self.fragments.pop_front();
        }
        self.fragments.push_back((fragment, first));
    }

    /// Forgets the later fragments with these numbers and returns the numbers of their packets' first
    /// fragments.
    pub fn take_fragments(
        &mut self,
        range: NumberRange,
    ) -> impl Iterator<Item = PacketNumber> + '_ {
        let places = range.places(&self.fragments, |(number, _)| *number);
        let taken = self.fragments.drain(places);
        taken.map(|(_, first)| first)
    }

    /// Returns true if control frames are pending.
    pub fn has_pending_control(&self) -> bool {
        !self.pongs.is_empty()
            || !self.nacks.is_empty()
            || self.policy_ack.is_some()
            || self.report
            || self.wants_params()
    }

    fn wants_params(&self) -> bool {
        let is_ordinary = self.config.params() == LinkParams::default() && !self.params_announced;
        self.params_due && self.in_use && self.config.remote.is_some() && !is_ordinary
    }

    /// The parameters to send now: only the initiator sends them.
    pub fn take_params(&mut self) -> Option<LinkParams> {
        let params = self.config.params();
        self.params_due = false;
        self.config.remote?;
        self.params_announced |= params != LinkParams::default();
        self.params_announced.then_some(params)
    }

    /// The flushes at the end of a burst; `next` gives a lane's next number.
    pub fn take_flushes(&mut self, next: impl Fn(LaneId) -> u64) -> impl Iterator<Item = Flush> {
        self.lanes.drain(..).filter_map(move |lane| {
            let highest = next(lane).checked_sub(1)?;
            Some(Flush {
                lane: lane.0,
                highest: highest as u32 & 0x00ff_ffff,
            })
        })
    }
}
