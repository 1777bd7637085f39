//! The receiving end: arrivals, delivery order, reports and NACKs.

use std::collections::VecDeque;
use std::time::Duration;

use braid_core::Time;

use crate::estimate::{Arrival, Arrivals, LinkReport, RecentMin};
use crate::fec::{Decoder, Group, Rebuild};
use crate::resequence::{
    Counters, Delivery, DeliveryOrder, Limits, PacketMeta, Reordering, Resequencer,
};
use crate::retransmit::{Nack, NackLimiter};
use crate::schedule::Class;
use crate::{
    Incoming, LANES, LaneId, LaneSeq, LinkId, MAX_LINKS, REORDER_BUDGET, RelativeDelay, Stamp,
};

/// Added to every wait for timers, bursts and thread scheduling.
const WAIT_MARGIN: Duration = Duration::from_millis(8);

/// Added to half the expected reordering delay before a repair symbol is used. Rebuilding a packet
/// that would still have arrived costs less than waiting.
const SYMBOL_MARGIN: Duration = Duration::from_micros(300);

/// A link that has been silent for this long is not waited for.
const LINK_TIMEOUT: Duration = Duration::from_secs(1);

/// Time after a silence within which lost packets are requested even if the copy takes as long.
const RESUMED_SPAN: Duration = Duration::from_secs(1);

/// A lane waits for a far link if the link brought one of its packets within this time.
const FAR_SPAN: Duration = Duration::from_secs(2);

/// Longest extra time for far links: the longest that a policy may name. Forged stamps show any delay.
const MAX_SPREAD: Duration = Duration::from_secs(10);

/// Far links are found anew at this interval.
const FAR_INTERVAL: Duration = Duration::from_millis(50);

/// Settings of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverSettings {
    /// Limits of the resequencer.
    pub limits: Limits,
    /// Longest time that a gap holds up its lane while a link that may still bring the missing
    /// packet has not passed it.
    /// Links keep order, so a packet that is not known to be lost is on its way: on a radio link
    /// for as long as the scheduler stalls. If the link is dead, its sender notices sooner and
    /// retransmits the packets in flight on another link.
    pub max_stall: Duration,
    /// A repair symbol that would take longer than this is not waited for.
    pub max_fec_wait: Duration,
    /// A retransmission that would take longer than this is not waited for. An inner TCP sender
    /// retransmits by time-out 200 ms and more after its round trip, so that it does not notice a
    /// wait of 200 ms, while a packet given up costs it a third of its window.
    pub max_retransmit_wait: Duration,
    /// True if the receiver requests retransmission of lost packets.
    pub nacks_enabled: bool,
}

impl Default for ReceiverSettings {
    fn default() -> ReceiverSettings {
        ReceiverSettings {
            limits: Limits::default(),
            max_stall: Duration::from_millis(400),
            max_fec_wait: Duration::from_millis(100),
            max_retransmit_wait: Duration::from_millis(200),
            nacks_enabled: true,
        }
    }
}

#[derive(Debug)]
struct ReceiverLink {
    arrivals: Arrivals,
    nack_limiter: NackLimiter,
    live: bool,
    base: RecentMin<RelativeDelay>,
    /// When it last brought a packet after a silence for which lanes had given up waiting.
    resumed: Option<Time>,
    /// True if the link is slower than the fastest by more than [`REORDER_BUDGET`].
    is_far: bool,
    /// When it last brought a packet of each lane.
    lanes: Vec<Time>,
}

impl ReceiverLink {
    /// Returns true if a lane waits for packets of this link.
    fn is_awaited(&self, now: Time, lane: LaneId) -> bool {
        let last = self.lanes[lane.index()];
        !self.is_far || (last > Time::ZERO && now.since(last) < FAR_SPAN)
    }
}

/// The receiving end of one direction. The [module](super) says which method is called when.
///
/// `T` is an inner packet, `S` a repair symbol; both should be cheap to clone.
#[derive(Debug)]
pub struct Receiver<T, S = T> {
    settings: ReceiverSettings,
    links: Vec<ReceiverLink>,
    ids: Vec<LinkId>,
    reseq: Resequencer<T>,
    fec: Decoder<T, S>,
    nacks: VecDeque<Nack>,
    retransmit_delay: Option<Duration>,
    /// The last packets that the near links had passed, and that all had.
    passed: Option<(Stamp, Stamp)>,
    /// When far links were last found.
    far_at: Time,
}

impl<T: Clone, S: Clone> Receiver<T, S> {
    /// Returns a receiver without links. A link is added by its first packet.
    #[must_use]
    pub fn new(settings: ReceiverSettings) -> Receiver<T, S> {
        Receiver {
            reseq: Resequencer::new(settings.limits),
            settings,
            links: Vec::new(),
            ids: Vec::new(),
            fec: Decoder::default(),
            nacks: VecDeque::new(),
            retransmit_delay: None,
            passed: None,
            far_at: Time::ZERO,
        }
    }

    /// Sets the reordering rules, from the next packet on.
    pub fn set_reordering(&mut self, ordering: Reordering) {
        self.reseq.set_reordering(ordering);
    }

    /// Sets the time that a retransmission takes: the
    /// [`Sender::retransmit_delay`](super::Sender::retransmit_delay) of this end.
    pub fn set_retransmit_delay(&mut self, retransmit_delay: Option<Duration>) {
        self.retransmit_delay = retransmit_delay;
        self.reseq.set_recovery_delay(self.recovery_delay());
    }

    /// Sets whether a link may still bring missing packets. The link's sender knows, and so does an
    /// observer of the network device. A link is live by default.
    pub fn set_live(&mut self, now: Time, link: LinkId, live: bool) {
        if let Some(index) = self.index(link) {
            self.links[index].live = live;
            self.progress(now);
        }
    }

    /// Removes a link. If it returns, its numbers begin at 0.
    pub fn remove_link(&mut self, now: Time, link: LinkId) {
        if let Some(index) = self.index(link) {
            self.links.remove(index);
            self.ids.remove(index);
            self.progress(now);
        }
    }

    /// Takes an authenticated packet of a link; [`Incoming::elicits`] is the value given to
    /// [`Sender::number_control`](super::Sender::number_control), true for data.
    /// Drop a packet if this returns [`Arrival::Duplicate`]. Otherwise hand its inner packets to
    /// [`handle_data`](Self::handle_data), then call [`handle_end`](Self::handle_end).
    pub fn handle_datagram(&mut self, now: Time, link: LinkId, packet: &Incoming) -> Arrival {
        self.find_far_links(now);
        let index = self.index_or_insert(link);
        let from = &mut self.links[index];
        let last = from.arrivals.last_at();
        if last.is_some_and(|last| now.since(last) >= self.settings.max_stall) {
            from.resumed = Some(now);
        }
        let arrival = from.arrivals.handle_packet(now, packet);
        if arrival != Arrival::Duplicate {
            from.nack_limiter.handle_packet();
            from.live = true;
            let delay = RelativeDelay::of(packet.stamp, packet.arrived);
            from.base.handle_value(now, delay);
        }
        self.request_lost(now, index);
        arrival
    }

    /// Returns the delay of the quickest packets that a link brought lately, as of a time.
    #[must_use]
    pub fn least_delay(&self, at: Time, link: LinkId) -> Option<RelativeDelay> {
        self.links[self.index(link)?].base.min(at)
    }

    /// Takes an inner packet of the packet last handled.
    pub fn handle_data(
        &mut self,
        now: Time,
        link: LinkId,
        stamp: Stamp,
        place: (LaneId, LaneSeq, Class),
        item: T,
    ) {
        let (lane, seq, class) = place;
        let mut is_ahead = false;
        if let Some(index) = self.index(link) {
            let from = &mut self.links[index];
            from.lanes[lane.index()] = now;
            is_ahead = from.is_far;
        }
        let hold = match is_ahead {
            true => self.settings.max_stall + self.spread(now),
            false => self.hold(now, link, lane, stamp),
        };
        let tag = PacketMeta {
            lane,
            seq,
            stamp,
            link,
            order: match class {
                Class::Unordered => DeliveryOrder::Immediate,
                _ => DeliveryOrder::InOrder,
            },
            is_ahead,
        };
        self.fec.handle_packet(lane, seq, &item);
        self.reseq.handle_packet(now, tag, hold, item);
    }

    /// Takes a repair symbol of the packet last handled. Afterwards call
    /// [`poll_rebuild`](Self::poll_rebuild) until none.
    pub fn handle_repair(
        &mut self,
        now: Time,
        link: LinkId,
        stamp: Stamp,
        group: Group,
        symbol: S,
    ) {
        let usable_at = now + self.lag(now, link, group.lane) / 2 + SYMBOL_MARGIN;
        self.fec
            .handle_symbol(now, group, (link, stamp), usable_at, symbol);
        self.reseq.set_recovery_delay(self.recovery_delay());
    }

    /// Returns an inner packet that the received repair symbols determine. Make it, and hand it
    /// with the recipe to [`handle_rebuilt`](Self::handle_rebuilt). Poll after every packet and
    /// timeout.
    pub fn poll_rebuild(&mut self) -> Option<Rebuild<T, S>> {
        self.fec.poll_rebuild()
    }

    /// Takes a rebuilt inner packet; none if the repair symbols contradict each other, or the packet
    /// is not worth its cost. Then those of its lane are dropped.
    pub fn handle_rebuilt(&mut self, now: Time, rebuild: Rebuild<T, S>, item: Option<T>) {
        let place = (rebuild.lane, rebuild.seq, Class::Ordered);
        let (link, stamp) = (rebuild.link, rebuild.stamp);
        self.fec.give_back(rebuild);
        match item {
            Some(item) => self.handle_data(now, link, stamp, place, item),
            None => self.fec.forget_symbols(place.0),
        }
    }

    /// Returns the number of rebuilt inner packets.
    #[must_use]
    pub fn rebuilt(&self) -> u64 {
        self.fec.rebuilt()
    }

    /// Takes a flush from the packet last handled: the sender has sent nothing above `highest` in
    /// this lane.
    pub fn handle_flush(
        &mut self,
        now: Time,
        link: LinkId,
        lane: LaneId,
        highest: LaneSeq,
        stamp: Stamp,
    ) {
        let hold = self.hold(now, link, lane, stamp);
        self.reseq.handle_flush(now, lane, highest, stamp, hold);
    }

    /// Ends the handling of a packet: gaps that its links have now passed are given up.
    pub fn handle_end(&mut self, now: Time) {
        self.progress(now);
    }

    /// Gives up packets that are overdue. Early and repeated calls do no harm.
    pub fn handle_timeout(&mut self, now: Time) {
        for index in 0..self.links.len() {
            self.links[index].arrivals.handle_timeout(now);
            self.request_lost(now, index);
        }
        self.progress(now);
        self.fec.handle_timeout(now);
        self.reseq.set_recovery_delay(self.recovery_delay());
        self.reseq.handle_timeout(now);
    }

    /// Forgets all packets and symbols kept to rebuild others, because memory is short.
    pub fn forget_repairs(&mut self) {
        self.fec.forget();
    }

    /// Delivers all that is held, without what is missing before it, because memory is short.
    pub fn release(&mut self, now: Time) {
        self.reseq.release_all(now);
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout) next.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let links = self.links.iter().filter_map(|l| l.arrivals.poll_timeout());
        links
            .chain(self.reseq.poll_timeout())
            .chain(self.fec.poll_timeout())
            .min()
    }

    /// Returns the next inner packet to deliver.
    pub fn poll_delivery(&mut self) -> Option<Delivery<T>> {
        self.reseq.poll_delivery()
    }

    /// Returns the next request for retransmission, to be sent over every usable link at once.
    pub fn poll_nack(&mut self) -> Option<Nack> {
        self.nacks.pop_front()
    }

    /// Returns true if reports are due. Call it after packets, and at least every 5 ms while they
    /// arrive.
    #[must_use]
    pub fn is_report_due(&self, now: Time) -> bool {
        self.links
            .iter()
            .any(|link| link.arrivals.is_report_due(now))
    }

    /// Returns when a report will be due if no packet arrives first; none if there is nothing to
    /// report.
    #[must_use]
    pub fn next_report(&self) -> Option<Time> {
        self.links
            .iter()
            .filter_map(|link| link.arrivals.next_report())
            .min()
    }

    /// Calls `each` with one report per link, to be sent together over every usable link.
    pub fn poll_reports(&mut self, now: Time, mut each: impl FnMut(LinkReport)) {
        for link in &mut self.links {
            if let Some(report) = link.arrivals.report(now) {
                each(report);
            }
        }
    }

    /// Returns the arrivals of a link.
    #[must_use]
    pub fn arrivals(&self, link: LinkId) -> Option<&Arrivals> {
        self.index(link).map(|index| &self.links[index].arrivals)
    }

    /// Returns the resequencer's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        self.reseq.counters()
    }

    /// Returns the number of packets held or missing.
    #[must_use]
    pub fn occupied(&self) -> usize {
        self.reseq.occupied()
    }

    /// Returns how long a gap shown by a packet on `link` stamped `stamp` may hold up its lane.
    /// Another link that has not passed the stamp may bring the missing packet, however long it
    /// stalls. Otherwise the wait is for a recovery, or for the reordering on `link`. A far link
    /// brings the packets of few lanes, and only they wait for it.
    fn hold(&self, now: Time, link: LinkId, lane: LaneId, stamp: Stamp) -> Duration {
        let awaited = |(other, id): &(&ReceiverLink, &LinkId)| {
            **id != link && is_live(other, now) && other.is_awaited(now, lane)
        };
        let behind = |(other, _): &(&ReceiverLink, &LinkId)| {
            let settled = other.arrivals.settled();
            settled.is_some_and(|settled| settled < stamp)
        };
        let others = || self.links.iter().zip(&self.ids).filter(awaited);
        if others().any(|other| behind(&other)) {
            let far = others().any(|(other, _)| other.is_far);
            let extra = far.then(|| self.spread(now));
            return self.settings.max_stall + extra.unwrap_or_default();
        }
        let wait = (self.lag(now, link, lane) + WAIT_MARGIN).min(self.settings.max_fec_wait);
        (wait + self.recovery_delay()).min(self.settings.max_stall)
    }

    /// Returns the difference of the live links' delays, at most [`MAX_SPREAD`].
    fn spread(&self, now: Time) -> Duration {
        let delays = || {
            let live = self.links.iter().filter(|link| is_live(link, now));
            live.filter_map(|link| link.arrivals.delay())
        };
        let ends = delays().max().zip(delays().min());
        let spread = ends.map_or(Duration::ZERO, |(slowest, fastest)| slowest.over(fastest));
        spread.min(MAX_SPREAD)
    }

    /// Returns how much later than on `link` a packet of a lane may arrive on the slowest link.
    fn lag(&self, now: Time, link: LinkId, lane: LaneId) -> Duration {
        let awaited = |link: &&ReceiverLink| is_live(link, now) && link.is_awaited(now, lane);
        let live = || self.links.iter().filter(awaited);
        let slowest = live().filter_map(|link| link.arrivals.delay()).max();
        let jitter = live().map(|link| link.arrivals.jitter()).max();
        let extent = live().map(|link| link.arrivals.extent(now)).max();
        let own = self.arrivals(link).and_then(Arrivals::delay);
        let skew = match (slowest, own) {
            (Some(slowest), Some(own)) => slowest.over(own),
            _ => Duration::ZERO,
        };
        skew + (4 * jitter.unwrap_or_default()).max(extent.unwrap_or_default())
    }

    /// Returns the time in which a repair symbol or a retransmission arrives; zero if neither would
    /// be in time.
    fn recovery_delay(&self) -> Duration {
        // A packet missing from the next symbol's equation is covered by the one after it.
        let symbol_wait = self
            .fec
            .symbol_interval()
            .map(|distance| distance * 2 + WAIT_MARGIN);
        let symbol_wait =
            symbol_wait.filter(|symbol_wait| *symbol_wait <= self.settings.max_fec_wait);
        self.retransmit_wait().max(symbol_wait.unwrap_or_default())
    }

    /// Returns the time in which a retransmission arrives; zero if none would be in time.
    fn retransmit_wait(&self) -> Duration {
        let retransmit_delay = self
            .retransmit_delay
            .filter(|_| self.settings.nacks_enabled);
        // Half as much again: if packets are given up too early, the inner flow retransmits all of
        // them.
        let most = self.settings.max_retransmit_wait;
        retransmit_delay
            .filter(|delay| *delay + WAIT_MARGIN <= most)
            .map_or(Duration::ZERO, |delay| {
                (delay * 3 / 2 + WAIT_MARGIN).min(most)
            })
    }

    /// Asks the sender again for lost packets of a link, by NACKs, as far as a retransmission would
    /// still be in time. Just after a long silence it need not be: the flow has taken late packets for lost. After such a
    /// spurious recovery Linux does not look for real losses until its time-out.
    fn request_lost(&mut self, now: Time, index: usize) {
        let (retransmit_wait, most) = (self.retransmit_wait(), self.settings.max_retransmit_wait);
        let late = self
            .retransmit_delay
            .filter(|_| self.settings.nacks_enabled);
        let incoming = &mut self.links[index];
        let has_resumed = |at: Time| now.since(at) < RESUMED_SPAN;
        let (wait, max_wait) = match late.filter(|_| incoming.resumed.is_some_and(has_resumed)) {
            Some(late) => (late, RESUMED_SPAN),
            None => (retransmit_wait, most),
        };
        while let Some(lost) = incoming.arrivals.poll_lost() {
            if wait.is_zero() {
                continue;
            }
            if let Some(range) = incoming.nack_limiter.request(lost, wait, max_wait) {
                let link = self.ids[index];
                self.nacks.push_back(Nack { link, range });
            }
        }
    }

    /// Tells the resequencer how far the live links have come.
    fn progress(&mut self, now: Time) {
        let links = &self.links;
        let far = || {
            links
                .iter()
                .filter(|link| link.is_far && is_live(link, now))
        };
        let all = || links.iter().zip(&self.ids);
        let near = all().filter(|(link, _)| !link.is_far && is_live(link, now));
        let settled = near.filter_map(|(link, id)| Some((link.arrivals.settled()?, *id)));
        let Some((passed, laggard)) = settled.min() else {
            return;
        };
        let slowest = far().filter_map(|link| link.arrivals.settled()).min();
        let slowest = slowest.map_or(passed, |slowest| slowest.min(passed));
        if self.passed != Some((passed, slowest)) {
            self.passed = Some((passed, slowest));
            self.fec.handle_progress(slowest);
            let passed = |lane| {
                let awaited = far().filter(|link| link.is_awaited(now, lane));
                let settled = awaited.filter_map(|link| link.arrivals.settled()).min();
                settled.map_or(passed, |settled| settled.min(passed))
            };
            self.reseq.handle_progress(now, passed, Some(laggard));
        }
    }

    /// Finds the links that are slower than the fastest by more than [`REORDER_BUDGET`].
    fn find_far_links(&mut self, now: Time) {
        if now.since(self.far_at) < FAR_INTERVAL {
            return;
        }
        self.far_at = now;
        let live = self.links.iter().filter(|link| is_live(link, now));
        let fastest = live.filter_map(|link| link.base.min(now)).min();
        for link in &mut self.links {
            let extra = link.base.min(now).zip(fastest);
            link.is_far = extra.is_some_and(|(base, fastest)| base.over(fastest) > REORDER_BUDGET);
        }
    }

    fn index(&self, link: LinkId) -> Option<usize> {
        self.ids.iter().position(|id| *id == link)
    }

    fn index_or_insert(&mut self, link: LinkId) -> usize {
        if let Some(index) = self.index(link) {
            return index;
        }
        debug_assert!(link.index() < MAX_LINKS);
        self.ids.push(link);
        self.links.push(ReceiverLink {
            arrivals: Arrivals::new(link),
            nack_limiter: NackLimiter::default(),
            live: true,
            base: RecentMin::default(),
            resumed: None,
            is_far: false,
            lanes: vec![Time::ZERO; LANES],
        });
        self.links.len() - 1
    }
}

fn is_live(link: &ReceiverLink, now: Time) -> bool {
    let last = link.arrivals.last_at();
    link.live && last.is_some_and(|last| now.since(last) < LINK_TIMEOUT)
}
