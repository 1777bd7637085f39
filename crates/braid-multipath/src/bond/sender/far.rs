//! Far links: links slower than the fastest by more than the scheduler's reorder budget. They are
//! left out, except by single streams that have a queue as long as the difference.
//!
//! A packet sent over a far link holds up everything of its flow that is sent behind it. So it must
//! not be the next packet of the flow but one that the near links would deliver no sooner: one that
//! would wait for them for the difference of the delays. A stream in use of far links therefore has
//! a *staged* queue, packets that are numbered and committed to the near links, as long as these
//! need for it in that difference; only packets behind it may take a far link. Hence:
//!
//! - The near links are never idle for want of a packet that took a far link: what they carry is
//!   what they carry without it, and the far link carries what a longer queue than the staged one
//!   would hold.
//! - Packets arrive almost in order, and the receiver holds little.
//! - The delay is the stream's own, in its own queue. Every other flow takes its turns and the near
//!   links as before.
//! - A stream whose window does not fill the staged queue uses no far link, and one whose queue has
//!   stopped growing below that is released from it.

use std::ops::Range;
use std::time::Duration;

use braid_core::aqm::FLOW_QUEUES;
use braid_core::{Bytes, Rate, Time};

use super::recent_bytes::RecentBytes;
use super::{MIN_BACKLOG, Sender, next_seq};
use crate::bond::traffic::{InnerPacket, Transmit};
use crate::estimate::{Demand, REPORT_INTERVAL};
use crate::schedule::Class;
use crate::{LaneId, LaneSeq, LinkId, RelativeDelay};

/// Most flows that use far links at once.
const MAX_FLOWS: usize = 8;

/// A stream is bulk once it has sent this much in full packets without a pause of [`MAX_PAUSE`].
const BULK_BYTES: u64 = 300_000;
const MIN_BULK_PACKET: u64 = 500;
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Averaging time of the rate at which the near links take a flow's packets.
const RATE_SPAN: Duration = Duration::from_millis(300);

/// Bytes staged in all; a staged queue that would be longer uses no far link.
const MAX_STAGED_BYTES: u64 = 16_000_000;

/// Packets over a far link are to arrive this much before their turn: if late, they hold up the
/// flow.
const MARGIN: Duration = Duration::from_millis(5);

/// The same for the first of them. The receiver learns by them that the flow waits for the link.
const FIRST_MARGIN: Duration = Duration::from_millis(25);
const FIRST_SPAN: Duration = Duration::from_millis(500);

/// A flow is judged after each of these spans: it must have had a longer queue than in the one
/// before, or have sent a tenth of its bytes over far links.
const JUDGE_SPAN: Duration = Duration::from_secs(10);
const MIN_GROWTH: f64 = 1.05;
const MIN_FAR_SHARE: f64 = 0.1;

/// A flow that was released for that may try again after this time, which doubles each time.
const BAR_SPAN: Duration = Duration::from_secs(30);
const MAX_BAR_DOUBLINGS: u32 = 5;

/// Part of the extra delay that CoDel allows a flow beyond its staged queue: a window reduced by
/// 0.7 must still fill all links.
const GRACE_SHARE: f64 = 0.5;

/// A queue that is no longer of use shrinks over this time. CoDel would reduce its flow's window
/// several times at once.
const RELEASE_SPAN: Duration = Duration::from_secs(5);

/// Use of far links by a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FarState {
    /// Its queue is shorter than the far link's extra delay; only near links carry it.
    Filling,
    /// Near and far links carry it.
    Using,
    /// It uses near links alone again: its queue has stopped growing before it was long enough.
    Bounded,
    /// It uses near links alone again: there is no far link that works.
    NoLink,
}

/// A bulk flow beside which there are far links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FarFlowView {
    /// Hash of the flow.
    pub flow: u32,
    /// Its use of far links.
    pub state: FarState,
    /// Delay of its queue.
    pub queue: Duration,
    /// Extra delay of the far link of the least delay.
    pub extra: Option<Duration>,
    /// Bytes sent over near and over far links.
    pub sent: [Bytes; 2],
}

#[derive(Debug, Clone, Copy, Default)]
struct FlowRecord {
    flow: u32,
    bytes: u64,
    at: Time,
    barred_until: Time,
    bars: u32,
}

#[derive(Debug, Clone, Copy)]
struct FarFlow {
    flow: u32,
    lane: LaneId,
    /// Lowest number that a packet in the queue may have.
    unsent: LaneSeq,
    state: FarState,
    last_packet_at: Time,
    first_far_at: Option<Time>,
    last_far_at: Time,
    near_rate: RecentBytes,
    sent: [u64; 2],
    /// Start of the span in which it is judged, what was sent then, the longest queue in it in
    /// bytes, and the longest queue in the span before.
    judged: (Time, [u64; 2]),
    longest: u64,
    longest_before: u64,
    /// When it was released, and the delay of its queue then.
    released: Option<(Time, Duration)>,
}

impl FarFlow {
    fn takes_part(&self) -> bool {
        matches!(self.state, FarState::Filling | FarState::Using)
    }

    /// Begins to fill the queue again.
    fn restart(&mut self, now: Time) {
        self.state = FarState::Filling;
        self.first_far_at = None;
        self.judged = (now, self.sent);
        (self.longest, self.longest_before) = (0, 0);
    }

    fn release(&mut self, now: Time, state: FarState, queue: Duration) {
        self.state = state;
        self.released = Some((now, queue));
    }
}

/// The bulk flows, and which links are far.
#[derive(Debug)]
pub(super) struct FarFlows {
    records: Vec<FlowRecord>,
    flows: Vec<FarFlow>,
    /// Far links, one bit each.
    links: u32,
    /// Flow that is asked first for the next far packet.
    turn: usize,
    /// When a far link is ready for a packet that waits for it.
    wait: Option<Time>,
    /// Since when packets have waited for far links.
    waiting_since: Option<Time>,
}

impl Default for FarFlows {
    fn default() -> FarFlows {
        FarFlows {
            records: vec![FlowRecord::default(); FLOW_QUEUES],
            flows: Vec::new(),
            links: 0,
            turn: 0,
            wait: None,
            waiting_since: None,
        }
    }
}

impl FarFlows {
    /// Returns when a far link is ready for a packet that waits for it.
    pub fn wait(&self) -> Option<Time> {
        self.wait
    }

    /// Counts a packet of any flow that leaves by near links, with its number if it had one.
    pub fn handle_near(&mut self, now: Time, flow: u32, len: Bytes, seq: Option<LaneSeq>) {
        if let Some(far) = self.flows.iter_mut().find(|far| far.flow == flow) {
            far.unsent = seq.map_or(far.unsent, |seq| LaneSeq(seq.0 + 1));
            far.near_rate.add(now, len);
            far.sent[0] += len.get();
        }
    }

    fn has_link(&self, id: LinkId) -> bool {
        self.links >> id.index() & 1 == 1
    }

    /// Returns the flow that has the lane to itself, if another one would have it, too.
    fn owner(&self, flow: u32, lane: LaneId) -> Option<u32> {
        let owners = self.flows.iter().filter(|far| far.lane == lane);
        owners.map(|far| far.flow).find(|owner| *owner != flow)
    }
}

impl<T: Clone> Sender<T> {
    /// Returns the lane of a flow's next packet. No flow shares the lane of one that uses far links.
    #[must_use]
    pub fn lane(&self, flow: u32) -> LaneId {
        let lane = LaneId::of(flow);
        let others = [0, 128, 64, 192, 32, 160, 96, 224, 16].map(|bits| LaneId(lane.0 ^ bits));
        let free = |lane: &LaneId| self.far.owner(flow, *lane).is_none();
        others.into_iter().find(free).unwrap_or(lane)
    }

    /// Returns the number above all packets of a lane that have been sent; those that were given in
    /// the queue do not count.
    #[must_use]
    pub fn next_seq(&self, lane: LaneId) -> LaneSeq {
        let next = LaneSeq(self.lanes[lane.index()]);
        let far = self.far.flows.iter().find(|far| far.lane == lane);
        let queued = far.filter(|far| self.has_numbered(far));
        queued.map_or(next, |far| far.unsent)
    }

    /// Returns true if packets of the flow in the queue have numbers.
    fn has_numbered(&self, far: &FarFlow) -> bool {
        let head = self.head.as_ref().filter(|(_, head)| head.flow == far.flow);
        head.is_some_and(|(_, head)| head.seq.is_some())
            || self.queue.bytes_of(far.flow).0.get() > 0
    }

    /// Returns the hash by which a flow is queued. No flow shares the queue of one that uses far
    /// links.
    pub(super) fn queue_hash(&self, flow: u32) -> u32 {
        let shares = |far: &FarFlow| {
            far.flow != flow && (far.flow ^ flow).is_multiple_of(FLOW_QUEUES as u32)
        };
        match self.far.flows.iter().any(shares) {
            true => flow ^ 1,
            false => flow,
        }
    }

    /// Returns the places of the packets that wait for a link in a flow's queue, which flows with another hash may share: packets are
    /// numbered as they come into a queue. None while the flow has another queue than before, beside one that uses far links.
    #[must_use]
    pub fn places(&self, flow: u32) -> Option<Range<u64>> {
        (self.queue_hash(flow) == flow).then(|| self.queue.places(flow))
    }

    /// Returns the bulk flows beside which there are far links, and how they use them.
    pub fn far_flows(&self, now: Time) -> impl Iterator<Item = FarFlowView> {
        let nearest = self.far_links(now).map(|(_, extra)| extra).min();
        self.far.flows.iter().map(move |far| {
            let (staged, loose) = self.queue.bytes_of(far.flow);
            FarFlowView {
                flow: far.flow,
                state: far.state,
                queue: self
                    .near_rate_of(now, far)
                    .time_of(staged + loose)
                    .unwrap_or_default(),
                extra: nearest,
                sent: far.sent.map(Bytes::new),
            }
        })
    }

    /// Returns the number of flows that use far links, if this is one.
    #[must_use]
    pub fn bulk_flows(&self, id: LinkId) -> Option<usize> {
        let using = |far: &&FarFlow| far.state == FarState::Using;
        let count = self.far.flows.iter().filter(using).count();
        self.far.has_link(id).then_some(count)
    }

    /// Returns true if there is a link that only flows that wait for it use.
    pub(super) fn has_far_links(&self) -> bool {
        self.far.links != 0
    }

    /// Returns true if only flows that wait for it use this link.
    pub(super) fn is_far_link(&self, id: LinkId) -> bool {
        self.far.has_link(id)
    }

    /// Returns true if all near links are full, or are unusable or without recent data.
    pub(super) fn are_near_links_full(&self, now: Time) -> bool {
        let mut near = self.links.iter().filter(|link| !self.far.has_link(link.id));
        near.all(|link| link.is_full_or_unused(now))
    }

    /// Returns the demand for far links.
    pub(super) fn far_demand(&self, now: Time) -> Demand {
        let since = self.far.waiting_since;
        match since.is_some_and(|since| now.since(since) >= REPORT_INTERVAL) {
            true => Demand::Backlog,
            false => Demand::Met,
        }
    }

    /// Decides again which links are far, and which flows go on to use them.
    pub(super) fn update_far(&mut self, now: Time) {
        self.far.links = self.find_far_links(now);
        for index in (0..self.far.flows.len()).rev() {
            self.judge(now, index);
            let far = &self.far.flows[index];
            let waits = self.has_numbered(far) || now.since(far.last_far_at) < MAX_PAUSE;
            let shrinks = far
                .released
                .is_some_and(|(at, _)| now.since(at) < RELEASE_SPAN);
            let paused = now.since(far.last_packet_at) > MAX_PAUSE;
            let ended = paused || (!far.takes_part() && !shrinks);
            if ended && !waits {
                self.queue.set_flow_grace(far.flow, Duration::ZERO);
                self.far.flows.remove(index);
            }
        }
    }

    fn find_far_links(&self, now: Time) -> u32 {
        let longest = self.settings.max_extra_delay;
        let Some(budget) = self
            .scheduler
            .reorder_budget()
            .filter(|_| !longest.is_zero())
        else {
            return 0;
        };
        let usable = || self.links.iter().filter(|link| link.is_usable());
        let tier = usable().map(|link| link.settings.tier).min();
        let cheap = || usable().filter(|link| Some(link.settings.tier) == tier);
        let fastest = cheap().filter_map(|link| link.estimator.base(now)).min();
        let shortest = cheap()
            .filter_map(|link| link.estimator.route_delay(now))
            .min();
        let (Some(fastest), Some(shortest)) = (fastest, shortest) else {
            return 0;
        };
        let over = |delay: Option<RelativeDelay>, least| {
            delay.map_or(Duration::ZERO, |delay| delay.over(least))
        };
        let far = self.links.iter().filter(|link| {
            let estimator = &link.estimator;
            let extra = over(estimator.base(now), fastest);
            // A link that stalls has a queue, which is gone as soon as it goes on.
            let stalls = estimator.capacity().is_unsteady();
            let is_route = !stalls || over(estimator.route_delay(now), shortest) > budget;
            extra > budget && extra <= longest && is_route
        });
        far.fold(0, |links, link| links | 1 << link.id.index())
    }

    /// Returns the usable far links and by how much each is slower than the fastest near one,
    /// queues included.
    pub(super) fn far_links(&self, now: Time) -> impl Iterator<Item = (LinkId, Duration)> {
        let usable = || self.links.iter().filter(|link| link.is_usable());
        let near = usable().filter(|link| !self.far.has_link(link.id));
        let quick = near.filter_map(|link| link.estimator.delay()).min();
        let quick = quick.unwrap_or(RelativeDelay(i64::MAX));
        let steady = usable().any(|link| link.estimator.stall(now).is_zero());
        usable()
            .filter(|link| self.far.has_link(link.id))
            .map(move |link| (link.id, link.expected_delay(now, steady).over(quick)))
    }

    /// Counts a packet that has just been queued. A stream that has sent much and has a queue
    /// begins to wait for far links.
    pub(super) fn handle_bulk(&mut self, now: Time, inner: InnerPacket) {
        let is_bulk =
            inner.is_stream && inner.class == Class::Ordered && inner.len.get() >= MIN_BULK_PACKET;
        if self.far.links == 0 || !is_bulk {
            return;
        }
        let record = &mut self.far.records[inner.flow as usize % FLOW_QUEUES];
        if record.flow != inner.flow || now.since(record.at) > MAX_PAUSE {
            let before = (record.flow == inner.flow).then_some(*record);
            *record = FlowRecord {
                flow: inner.flow,
                bytes: 0,
                ..before.unwrap_or_default()
            };
        }
        record.bytes += inner.len.get();
        record.at = now;
        if let Some(far) = self.far.flows.iter_mut().find(|far| far.flow == inner.flow) {
            far.last_packet_at = now;
            if far.state == FarState::NoLink {
                far.restart(now);
            }
            let (staged, loose) = self.queue.bytes_of(inner.flow);
            far.longest = far.longest.max((staged + loose).get());
            return;
        }
        let due = record.bytes >= BULK_BYTES && now >= record.barred_until;
        let (lane, waiting) = (LaneId::of(inner.flow), self.queue.bytes_of(inner.flow).1);
        let alone = self.lane(inner.flow) == lane && self.queue_hash(inner.flow) == inner.flow;
        if due && alone && waiting > MIN_BACKLOG && self.far.flows.len() < MAX_FLOWS {
            self.far.flows.push(FarFlow {
                flow: inner.flow,
                lane,
                unsent: LaneSeq(self.lanes[lane.index()]),
                state: FarState::Filling,
                last_packet_at: now,
                first_far_at: None,
                last_far_at: Time::ZERO,
                near_rate: RecentBytes::over(RATE_SPAN),
                sent: [0; 2],
                judged: (now, [0; 2]),
                longest: 0,
                longest_before: 0,
                released: None,
            });
            self.number_far_head();
        }
    }

    /// Numbers the packet that was taken from the queue if later ones of its flow may be numbered
    /// before it is sent.
    pub(super) fn number_far_head(&mut self) {
        let queue = &self.queue;
        let numbers = |far: &FarFlow| far.takes_part() || queue.bytes_of(far.flow).0.get() > 0;
        let mut flows = self.far.flows.iter().filter(|far| numbers(far));
        if let Some((_, head)) = &mut self.head
            && head.seq.is_none()
            && flows.any(|far| far.flow == head.flow)
        {
            head.seq = Some(next_seq(&mut self.lanes, head.lane));
        }
    }

    /// Returns the next packet to send over a far link, and fills the staged queues.
    pub(super) fn poll_far(&mut self, now: Time) -> Option<Transmit<T>> {
        self.far.wait = None;
        if self.far.flows.is_empty() {
            return None;
        }
        let mut links = [(LinkId(0), Duration::ZERO, None); crate::MAX_LINKS];
        let mut count = 0;
        for (slot, (id, extra)) in links.iter_mut().zip(self.far_links(now)) {
            let link = self.links.iter().find(|link| link.id == id);
            let ready = link.and_then(|link| link.view(now, MAX_PACKET, true, false).ready);
            *slot = (id, extra, ready);
            count += 1;
        }
        let links = &links[..count];
        let full = self.links.iter().all(|link| link.is_full_or_unused(now));
        let mut waits = false;
        for step in 0..self.far.flows.len() {
            let index = (self.far.turn + step) % self.far.flows.len();
            match self.fill(now, index, links, full) {
                Fill::Send(link) => {
                    let flow = self.far.flows[index].flow;
                    let mark = self.settings.mark;
                    let taken =
                        (self.queue).take_loose(now, flow, full, |waiting| mark(&mut waiting.item));
                    let Some(taken) = taken else { continue };
                    self.far.turn = index + 1;
                    let far = &mut self.far.flows[index];
                    far.state = FarState::Using;
                    far.first_far_at.get_or_insert(now);
                    far.last_far_at = now;
                    far.sent[1] += taken.len.get();
                    let mut packet = taken.item;
                    packet.seq = Some(next_seq(&mut self.lanes, packet.lane));
                    let packet = self.number_in_lane(now, taken.len, packet, link);
                    return Some(self.transmit(now, link, packet, false));
                }
                Fill::Waits => waits = true,
                Fill::Enough => {}
            }
        }
        let since = self.far.waiting_since.unwrap_or(now);
        self.far.waiting_since = waits.then_some(since);
        self.far.wait = (links.iter().filter(|_| waits))
            .filter_map(|(_, _, ready)| *ready)
            .filter(|ready| *ready > now)
            .min();
        None
    }

    /// Stages packets of a flow until one may take a far link, or none is left.
    fn fill(
        &mut self,
        now: Time,
        index: usize,
        links: &[(LinkId, Duration, Option<Time>)],
        full: bool,
    ) -> Fill {
        let far = self.far.flows[index];
        let young = (far.first_far_at).is_none_or(|first| now.since(first) < FIRST_SPAN);
        let margin = if young { FIRST_MARGIN } else { MARGIN };
        let rate = self.near_rate_of(now, &far);
        let head = self.head.as_ref().filter(|(_, head)| head.flow == far.flow);
        let head = head.map_or(Bytes::new(0), |(len, _)| *len);
        let mark = self.settings.mark;
        if !far.takes_part() || links.is_empty() {
            return Fill::Enough;
        }
        loop {
            let (staged, loose) = self.queue.bytes_of(far.flow);
            if loose.get() == 0 {
                return Fill::Enough;
            }
            let drain = rate.time_of(staged + head).unwrap_or_default();
            let due = |(_, extra, _): &&(LinkId, Duration, Option<Time>)| *extra + margin <= drain;
            let ready = links.iter().filter(due);
            let ready = ready.filter(|(_, _, ready)| ready.is_some_and(|ready| ready <= now));
            if let Some((link, ..)) = ready.min_by_key(|(_, extra, _)| *extra) {
                return Fill::Send(*link);
            }
            let (bytes, loose_bytes) = (self.queue.bytes(), self.queue.loose_bytes());
            let all_due = links.iter().all(|link| due(&link));
            if all_due || (bytes.get() - loose_bytes.get()) >= MAX_STAGED_BYTES {
                return Fill::Waits;
            }
            let lanes = &mut self.lanes;
            let mark = |waiting: &mut super::QueuedPacket<T>| mark(&mut waiting.item);
            let number = |waiting: &mut super::QueuedPacket<T>| {
                waiting.seq = Some(next_seq(lanes, waiting.lane));
            };
            if (self.queue.stage(now, far.flow, full, mark, number)).is_none() {
                return Fill::Enough;
            }
        }
    }

    /// Returns the rate at which the near links take a flow's packets: what they took of late, and
    /// no less than the flow's turns.
    fn near_rate_of(&self, now: Time, far: &FarFlow) -> Rate {
        let near = self.links.iter().filter(|link| !self.far.has_link(link.id));
        let all: u64 = near.map(|link| link.rate().bits_per_sec()).sum();
        let turn = all / self.queue.flows().max(1) as u64;
        let rate = far.near_rate.rate(now).bits_per_sec().max(turn).max(1);
        Rate::from_bits_per_sec(rate)
    }

    /// Judges if a flow goes on to use far links.
    fn judge(&mut self, now: Time, index: usize) {
        let extra = self.far_links(now).map(|(_, extra)| extra).max();
        let no_link = extra.is_none();
        let far = &self.far.flows[index];
        let (staged, loose) = self.queue.bytes_of(far.flow);
        let rate = self.near_rate_of(now, far);
        let queue = rate.time_of(staged + loose).unwrap_or_default();
        let grace = match (far.takes_part(), far.released, extra) {
            (true, _, Some(extra)) => extra.mul_f64(GRACE_SHARE),
            (_, Some((since, queue)), _) => {
                let passed = now.since(since).as_secs_f64() / RELEASE_SPAN.as_secs_f64();
                queue.mul_f64((1.0 - passed).max(0.0))
            }
            _ => Duration::ZERO,
        };
        self.queue.set_flow_grace(far.flow, grace);
        let far = &mut self.far.flows[index];
        if !far.takes_part() {
            return;
        }
        if no_link {
            far.release(now, FarState::NoLink, queue);
            return;
        }
        let (since, before) = far.judged;
        if now.since(since) < JUDGE_SPAN {
            return;
        }
        let [near, by_far] = [0, 1].map(|kind| (far.sent[kind] - before[kind]) as f64);
        let grows = far.longest as f64 > MIN_GROWTH * far.longest_before as f64;
        let useful = by_far > MIN_FAR_SHARE * (near + by_far);
        far.judged = (now, far.sent);
        (far.longest_before, far.longest) = (far.longest, 0);
        if !grows && !useful {
            far.release(now, FarState::Bounded, queue);
            let record = &mut self.far.records[far.flow as usize % FLOW_QUEUES];
            if record.flow == far.flow {
                record.barred_until = now + BAR_SPAN * (1 << record.bars);
                record.bars = (record.bars + 1).min(MAX_BAR_DOUBLINGS);
            }
        }
    }
}

/// Size for which a far link must have room: a full packet.
const MAX_PACKET: Bytes = Bytes::new(1_600);

/// Next step for a flow.
enum Fill {
    /// Its next loose packet takes this link.
    Send(LinkId),
    /// Its next loose packet waits for a far link.
    Waits,
    /// Nothing waits.
    Enough,
}
