//! The sending end: queue, links, scheduling, FEC and retransmission.

use std::ops::Range;
use std::time::Duration;

use braid_core::aqm::{Drops, FlowQueue};
use braid_core::{Bytes, Rate, Time};

use super::sender_link::SenderLink;
use super::traffic::{InnerPacket, LanePacket, Transmit};
use crate::estimate::{Capacity, Demand, LinkReport, REPORT_INTERVAL};
use crate::fec::{Encoder, FecController, MIN_FEC_LOSS};
use crate::liveness::Verdict;
use crate::schedule::{Choice, Class, Head, LinkView, Scheduler};
use crate::{LANES, LaneId, LaneSeq, LinkId, MAX_LINKS, PacketNumber, Stamp};

mod far;
mod fec;
mod links;
mod recent_bytes;
mod retransmission;
mod sparse;
mod view;

use far::FarFlows;
pub use far::{FarFlowView, FarState};
use retransmission::{Kind, Retransmission, Retransmissions};
use sparse::SparseFlows;

/// A queue above this means that the bond, not the application, is the bottleneck.
const MIN_BACKLOG: Bytes = Bytes::new(3_000);

/// The queue holds what all links send in this time, and at least [`MIN_QUEUE_PACKETS`] packets.
/// CoDel keeps it far shorter once the links are full.
const QUEUE_SPAN: Duration = Duration::from_millis(300);
const MIN_QUEUE_PACKETS: usize = 100;

/// Queue limit factor and extra CoDel delay over links that stall and whose rates double within a
/// second. A flow needs a queue that outlasts both, as it has in front of such a link without a
/// bond. The delay is that flow's own.
const UNSTEADY_QUEUE_FACTOR: usize = 5;
const UNSTEADY_GRACE: Duration = Duration::from_millis(500);

/// The queue of flows whose windows are limited holds what links send in this time, and in half of CoDel's extra delay.
const LIMITED_QUEUE_SPAN: Duration = Duration::from_millis(60);

/// Extra CoDel delay over links that have not been under load for long enough to know if they
/// stall. A flow that CoDel stops in its first second, on a link that turns out to stall, needs ten
/// seconds to grow.
const UNKNOWN_GRACE: Duration = Duration::from_millis(250);

/// The same applies while the links together are estimated below this share of their recent
/// maximum. A flow that backs off for the queue left by such a fall has hardly grown when the rate
/// is back.
const FALLEN_RATE_SHARE: f64 = 0.6;

/// The recent maximum of the queue limit decays to 1/e in this time: a low estimate while links are
/// silent is no reason to drop queued packets.
const QUEUE_LIMIT_FADE: Duration = Duration::from_secs(10);

/// A longer queue on a link shows that what this end sends burdens it.
const MIN_BURDEN: Duration = Duration::from_millis(5);

/// Longest extra CoDel delay granted for retransmissions that are waited for.
const MAX_RETRANSMIT_GRACE: Duration = Duration::from_millis(150);

/// Packets are kept for at least this much longer than their link takes to report them.
const MIN_RETRANSMIT_SPARE: Duration = Duration::from_millis(150);

/// Time for which packets are kept while their link is silent: the far end may ask for them once it goes on.
const SILENT_RETRANSMIT_AGE: Duration = Duration::from_secs(5);

/// Longest extra delay by default: enough for a geostationary satellite beside a terrestrial line.
pub const MAX_EXTRA_DELAY: Duration = Duration::from_millis(400);

/// Settings of a sender.
#[derive(Debug)]
pub struct SenderSettings<T> {
    /// Marks an inner packet as having met congestion and returns true if it could (RFC 6040, RFC
    /// 3168 §5). A packet that cannot be marked is dropped.
    pub mark: fn(&mut T) -> bool,
    /// Bytes kept for retransmission per link; zero for none.
    pub retransmit_buffer: Bytes,
    /// Longest time for which they are kept.
    pub retransmit_age: Duration,
    /// Longest extra delay of a link over the fastest one that a stream waits for; zero to leave
    /// such links out.
    pub max_extra_delay: Duration,
}

impl<T> Default for SenderSettings<T> {
    /// No marking; up to 4 MB and 300 ms of packets per link.
    fn default() -> SenderSettings<T> {
        SenderSettings {
            mark: |_| false,
            retransmit_buffer: Bytes::new(4_000_000),
            retransmit_age: Duration::from_millis(300),
            max_extra_delay: MAX_EXTRA_DELAY,
        }
    }
}

/// Recent maximum of the queue limit.
#[derive(Debug, Clone, Copy, Default)]
struct QueueLimit {
    packets: f64,
    at: Time,
}

impl QueueLimit {
    fn handle_span(&mut self, now: Time, packets: usize) -> usize {
        let passed = now.since(self.at).as_secs_f64() / QUEUE_LIMIT_FADE.as_secs_f64();
        self.packets = (self.packets * (-passed).exp()).max(packets as f64);
        self.at = now;
        self.packets as usize
    }
}

#[derive(Debug)]
struct QueuedPacket<T> {
    class: Class,
    flow: u32,
    lane: LaneId,
    /// Number in the lane, if it was given in the queue.
    seq: Option<LaneSeq>,
    item: T,
}

/// The sending end of one direction. The [module](super) says which method is called when.
///
/// `T` is an inner packet or a handle to one. The sender keeps clones for retransmission, so it
/// should be cheap to clone.
#[derive(Debug)]
pub struct Sender<T> {
    settings: SenderSettings<T>,
    links: Vec<SenderLink<LanePacket<T>>>,
    scheduler: Box<dyn Scheduler>,
    queue: FlowQueue<QueuedPacket<T>>,
    /// Taken from the queue, not yet assigned to a link.
    head: Option<(Bytes, QueuedPacket<T>)>,
    retransmissions: Retransmissions<T>,
    lanes: Vec<u64>,
    pins: Vec<Option<LinkId>>,
    run: Option<(LinkId, u64)>,
    next_interval: Option<Time>,
    wait: Option<Time>,
    /// When a packet last arrived with no more than [`MIN_BACKLOG`] queued.
    backlog_below_at: Time,
    retransmitted: u64,
    /// Largest packet protected by FEC; none if FEC is off.
    max_fec_packet: Option<Bytes>,
    fec: Encoder<T>,
    fec_controller: FecController,
    repair_symbols: u64,
    queue_limit: QueueLimit,
    /// Rate of the links, and time for which packets of flows with limited windows are to wait.
    limited_queue: Option<(Rate, Duration)>,
    /// When a link last had a queue.
    queued_at: Option<Time>,
    /// When the first link was added.
    begun_at: Option<Time>,
    sparse: SparseFlows<T>,
    far: FarFlows,
}

impl<T: Clone> Sender<T> {
    /// Returns a sender without links.
    #[must_use]
    pub fn new(scheduler: Box<dyn Scheduler>, settings: SenderSettings<T>) -> Sender<T> {
        Sender {
            settings,
            links: Vec::new(),
            scheduler,
            queue: FlowQueue::new(MIN_QUEUE_PACKETS),
            head: None,
            retransmissions: Retransmissions::default(),
            lanes: vec![0; LANES],
            pins: vec![None; LANES],
            run: None,
            next_interval: None,
            wait: None,
            backlog_below_at: Time::ZERO,
            retransmitted: 0,
            max_fec_packet: None,
            fec: Encoder::default(),
            fec_controller: FecController::default(),
            repair_symbols: 0,
            queue_limit: QueueLimit::default(),
            limited_queue: None,
            queued_at: None,
            begun_at: None,
            sparse: SparseFlows::default(),
            far: FarFlows::default(),
        }
    }

    /// Replaces the scheduler.
    pub fn set_scheduler(&mut self, scheduler: Box<dyn Scheduler>) {
        self.scheduler = scheduler;
        self.next_interval = None;
        self.run = None;
    }

    /// Sets the longest extra delay of a link over the fastest one that a stream waits for; zero to
    /// leave such links out.
    pub fn set_max_extra_delay(&mut self, max_extra_delay: Duration) {
        self.settings.max_extra_delay = max_extra_delay;
    }

    /// Takes an inner packet. Returns the places in its flow's queue up to its own, as [`places`](Self::places); none if it does not
    /// wait there.
    pub fn handle_packet(&mut self, now: Time, inner: InnerPacket, item: T) -> Option<Range<u64>> {
        let waiting = QueuedPacket {
            class: inner.class,
            flow: inner.flow,
            lane: self.lane(inner.flow),
            seq: None,
            item,
        };
        if self.queue.bytes() <= MIN_BACKLOG {
            self.backlog_below_at = now;
        }
        let is_sparse = self.is_sparse(now, inner);
        match is_sparse {
            true => self.sparse.push(inner.len, waiting),
            false => {
                let hash = self.queue_hash(inner.flow);
                let drops = match (inner.is_limited, inner.is_stream) {
                    (true, _) => Drops::None,
                    (false, true) => Drops::Spaced,
                    (false, false) => Drops::Standard,
                };
                self.queue.set_drops(hash, drops);
                self.queue.push(now, hash, inner.len, waiting);
            }
        }
        self.handle_bulk(now, inner);
        self.places(inner.flow).filter(|_| !is_sparse)
    }

    /// Takes the far end's report about a link.
    pub fn handle_report(&mut self, now: Time, report: &LinkReport) {
        let demand = self.demand(now, report.link);
        let age = self.settings.retransmit_age;
        let Some(link) = self.link_mut(report.link) else {
            return;
        };
        let silent = link.liveness.verdict() == Verdict::Suspect;
        if link.handle_report(now, report, demand) {
            let least = link.estimator.rtt().rto() + MIN_RETRANSMIT_SPARE;
            link.retransmit_buffer.set_max_age(age.max(least));
            let has_queue = link.estimator.queue() >= MIN_BURDEN;
            if silent && link.liveness.verdict() == Verdict::Active {
                self.cancel_retransmissions(report.link);
            }
            if has_queue {
                self.queued_at = Some(now);
            }
            self.wait = None;
            self.run = None;
            let span: usize = self
                .links
                .iter()
                .map(|link| packets_in_queue(link.rate()))
                .sum();
            let most = self.queue_limit.handle_span(now, span);
            let fallen = (span as f64) < FALLEN_RATE_SHARE * most as f64;
            let unsteady = self.is_unsteady() || fallen;
            let steady = self.are_known_steady(now);
            let most = match unsteady || !steady {
                true => most * UNSTEADY_QUEUE_FACTOR,
                false => most,
            };
            self.queue.set_limit(most.max(MIN_QUEUE_PACKETS));
            let rate = self.links.iter().map(|link| link.rate().bits_per_sec());
            let rate = Rate::from_bits_per_sec(rate.sum());
            let (loss, known) = self.loss();
            self.fec_controller.handle_report(loss, known, rate);
            // While a lane waits for retransmissions, packets that arrive meanwhile are no standing
            // queue.
            let held = self.retransmit_delay().filter(|_| loss >= MIN_FEC_LOSS);
            let held = held.map_or(Duration::ZERO, |held| held.min(MAX_RETRANSMIT_GRACE));
            let grace = match (unsteady, steady) {
                (true, _) => held.max(UNSTEADY_GRACE),
                (false, false) => held.max(UNKNOWN_GRACE),
                (false, true) => held,
            };
            self.queue.set_grace(grace);
            self.limited_queue = Some((rate, LIMITED_QUEUE_SPAN + grace / 2));
            self.retransmit_overtaken(now, report.link);
        }
    }

    /// Returns the next packet to seal and send; none if nothing may be sent now.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit<T>> {
        if let Some(retransmission) = self.poll_retransmission(now) {
            return Some(retransmission);
        }
        if let Some(sparse) = self.poll_sparse(now) {
            return Some(sparse);
        }
        if let Some(far) = self.poll_far(now) {
            return Some(far);
        }
        let (len, class, lane) = self.peek_head(now)?;
        let link = match self.run {
            Some((link, left)) if left >= len.get() && may_run(class) => link,
            _ => self.choose(now, len, class, lane)?,
        };
        let packet = self.take_head(now, link)?;
        Some(self.transmit(now, link, packet, false))
    }

    /// Returns one more inner packet for the packet last transmitted, which went out on `link`
    /// under `number`: the next one in the queue, if it is due on the same link and takes at most
    /// `room` bytes. `header` is its framing overhead, which is counted with it.
    pub fn poll_more(
        &mut self,
        now: Time,
        link: LinkId,
        number: PacketNumber,
        room: Bytes,
        header: Bytes,
    ) -> Option<LanePacket<T>> {
        let (len, class, _) = self.peek_head(now)?;
        let (running, left) = self.run?;
        let fits = len + header <= room && left >= len.get() && may_run(class);
        if running != link || !fits || !self.retransmissions.is_empty() {
            return None;
        }
        let packet = self.take_head(now, link)?;
        let keeps = self.settings.retransmit_buffer.get() > 0;
        let link = self.link_mut(link)?;
        link.handle_more(now, len + header);
        if keeps {
            let (retransmit_buffer, copy) = (&mut link.retransmit_buffer, packet.clone());
            retransmit_buffer.handle_sent(now, number, len + header, copy);
        }
        Some(packet)
    }

    /// Returns the packet at the head of the queue.
    fn peek_head(&mut self, now: Time) -> Option<(Bytes, Class, LaneId)> {
        if self.head.is_none() {
            let control = self.are_near_links_full(now);
            let mark = self.settings.mark;
            let queued = self
                .queue
                .pop(now, control, |waiting| mark(&mut waiting.item))?;
            self.head = Some((queued.len, queued.item));
            self.number_far_head();
        }
        self.head.as_ref().map(|(len, w)| (*len, w.class, w.lane))
    }

    /// Assigns the head of the queue to a link and numbers it in its lane.
    fn take_head(&mut self, now: Time, link: LinkId) -> Option<LanePacket<T>> {
        let (len, waiting) = self.head.take()?;
        self.far.handle_near(now, waiting.flow, len, waiting.seq);
        if let Some((_, left)) = &mut self.run {
            *left = left.saturating_sub(len.get());
        }
        Some(self.number_in_lane(now, len, waiting, link))
    }

    /// Numbers a packet in its lane, to be sent on `link`.
    fn number_in_lane(
        &mut self,
        now: Time,
        len: Bytes,
        waiting: QueuedPacket<T>,
        link: LinkId,
    ) -> LanePacket<T> {
        let (lane, class) = (waiting.lane, waiting.class);
        let covered =
            class == Class::Ordered && self.max_fec_packet.is_some_and(|most| len <= most);
        // A sum must not cover packets that are still to be sent.
        let covered = covered && waiting.seq.is_none();
        let packet = LanePacket {
            lane,
            seq: waiting
                .seq
                .unwrap_or_else(|| next_seq(&mut self.lanes, lane)),
            class,
            len,
            item: waiting.item,
        };
        self.pins[lane.index()] = Some(link);
        if let Some(rate) = self
            .fec_controller
            .handle_sent(now, lane, len)
            .filter(|_| covered)
        {
            let item = packet.item.clone();
            self.fec.handle_sent(now, (lane, packet.seq), item, rate);
        }
        if class == Class::Redundant {
            self.retransmissions.push(Retransmission {
                packet: packet.clone(),
                except: link,
                since: now,
                kind: Kind::Second,
                sent: None,
            });
        }
        packet
    }

    fn choose(&mut self, now: Time, len: Bytes, class: Class, lane: LaneId) -> Option<LinkId> {
        self.run = None;
        if self.wait.is_some_and(|until| now < until) {
            return None;
        }
        let head = Head {
            len,
            backlog: self.queue.bytes() + len,
            class,
            pin: self.pins[lane.index()],
            except: None,
        };
        let links = &self.links;
        match with_views(links, now, len, self.scheduler.as_mut(), &head) {
            Choice::Send { link, run } => {
                self.wait = None;
                self.run = may_run(class).then_some((link, run.get()));
                Some(link)
            }
            Choice::Wait(until) => {
                self.wait = until;
                None
            }
        }
    }

    fn transmit(
        &mut self,
        now: Time,
        id: LinkId,
        packet: LanePacket<T>,
        copy: bool,
    ) -> Transmit<T> {
        let mut number = PacketNumber(0);
        if let Some(link) = self.links.iter_mut().find(|link| link.id == id) {
            let len = packet.len + link.settings.overhead;
            number = link.handle_sent(now, len, true);
            link.handle_data(now);
            if !copy && self.settings.retransmit_buffer.get() > 0 {
                link.retransmit_buffer
                    .handle_sent(now, number, len, packet.clone());
            }
        }
        Transmit {
            link: id,
            number,
            stamp: Stamp::of(now),
            packet,
            copy,
        }
    }

    /// Returns the demand. A burst that drains before the next report is no reason to probe for
    /// more rate, although part of it is always queued when a report arrives.
    fn demand(&self, now: Time, link: LinkId) -> Demand {
        if self.is_far_link(link) {
            return self.far_demand(now);
        }
        let stood = now.since(self.backlog_below_at) >= REPORT_INTERVAL;
        if stood && self.queue.bytes() > MIN_BACKLOG {
            Demand::Backlog
        } else {
            Demand::Met
        }
    }

    /// Returns true if a link in use stalls.
    fn is_unsteady(&self) -> bool {
        let usable = self.links.iter().filter(|link| link.is_usable());
        usable
            .map(|link| link.estimator.capacity())
            .any(Capacity::is_unsteady)
    }

    /// Returns true if all near links in use are known not to stall.
    fn are_known_steady(&self, now: Time) -> bool {
        let in_use = |link: &&SenderLink<LanePacket<T>>| {
            link.is_usable() && link.is_used(now) && !self.is_far_link(link.id)
        };
        let mut links = self.links.iter().filter(in_use);
        links.all(|link| link.estimator.is_known_steady())
    }

    fn link_mut(&mut self, id: LinkId) -> Option<&mut SenderLink<LanePacket<T>>> {
        self.links.iter_mut().find(|link| link.id == id)
    }
}

fn next_seq(lanes: &mut [u64], lane: LaneId) -> LaneSeq {
    let seq = &mut lanes[lane.index()];
    *seq += 1;
    LaneSeq(*seq - 1)
}

/// Returns true if packets of a class may follow others on a link. A run may serve several flows; redundant and pinned packets are
/// scheduled one by one.
fn may_run(class: Class) -> bool {
    matches!(class, Class::Ordered | Class::Unordered)
}

fn packets_in_queue(rate: Rate) -> usize {
    (rate.bytes_in(QUEUE_SPAN).get() / 1500) as usize
}

fn with_views<T>(
    links: &[SenderLink<LanePacket<T>>],
    now: Time,
    len: Bytes,
    scheduler: &mut dyn Scheduler,
    head: &Head,
) -> Choice {
    let empty = LinkView {
        id: LinkId(0),
        tier: 0,
        usable: false,
        ready: None,
        rate: Rate::from_bits_per_sec(0),
        delay: crate::RelativeDelay(0),
        base: crate::RelativeDelay(0),
    };
    let mut views = [empty; MAX_LINKS];
    let paced = scheduler.is_paced();
    let works = links.iter().any(SenderLink::is_usable);
    let resorts = links.iter().map(SenderLink::resort);
    let first_resort = if works { None } else { resorts.min() };
    // Copies hold up nothing, and other schedulers do not compare delays.
    let compares = works && scheduler.reorder_budget().is_some() && head.except.is_none();
    let first_unmeasured = compares.then(|| first_unmeasured_link(links)).flatten();
    let beside_steady = links
        .iter()
        .any(|link| link.is_usable() && link.estimator.stall(now).is_zero());
    for (view, link) in views.iter_mut().zip(links) {
        let len = len + link.settings.overhead;
        *view = match first_resort {
            None => link.view(now, len, paced, beside_steady),
            Some(first) => link.last_resort(now, len, paced, first),
        };
        view.usable &= !compares || link.has_delay() || first_unmeasured == Some(link.id);
    }
    scheduler.choose(now, head, &views[..links.len().min(MAX_LINKS)])
}

/// Returns the one link without a known delay that may carry data, if any. A delay that no report has told yet compares with no other, and
/// packets in order over a link that turns out to be slow hold up a flow's first window. So such a link waits for its first report beside
/// one of its tier or a cheaper one that has had it. Where there is none, the first link of the cheapest tier begins.
fn first_unmeasured_link<T>(links: &[SenderLink<LanePacket<T>>]) -> Option<LinkId> {
    let usable = links.iter().filter(|link| link.is_usable());
    let first = usable.min_by_key(|link| (link.settings.tier, !link.has_delay()))?;
    (!first.has_delay()).then_some(first.id)
}
