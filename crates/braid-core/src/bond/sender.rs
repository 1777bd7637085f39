//! The sending end: queue, links, choice, copies.

use std::collections::VecDeque;
use std::time::Duration;

use crate::aqm::FlowQueue;
use crate::estimate::{Demand, LinkEstimator, LinkReport, NumberRange};
use crate::liveness::{Liveness, Verdict};
use crate::parity::{Caution, Encoder, Group, WORTH_IT};
use crate::repair::{Copies, Nack};
use crate::schedule::{Choice, Class, Head, Interval, LinkView, Scheduler};
use crate::{Bytes, LANES, LaneId, LaneSeq, LinkId, MAX_LINKS, PacketNumber, Rate, Stamp, Time};

use super::outgoing::{LinkSettings, Outgoing};

/// More than this waiting means that the bond, not the application, is the limit.
const BACKLOG: Bytes = Bytes::new(3_000);

/// The queue holds what all links send in this time, and at least [`QUEUE_LEAST`] packets. CoDel
/// keeps it far shorter once the links are full.
const QUEUE_SPAN: Duration = Duration::from_millis(300);
const QUEUE_LEAST: usize = 100;

/// A second copy that finds no link in so long is not worth sending.
const SECOND_COPY: Duration = Duration::from_millis(50);

/// Loss of a link above which its copies are doubled.
const INSURE_ABOVE: f64 = 0.005;

/// So many packets must have passed on a link before it is known not to lose any.
const KNOWN_AFTER: u64 = 80;

/// A queue is let stand no longer than this because of copies that are waited for.
const HELD_MOST: Duration = Duration::from_millis(150);

/// What is configured of a sender.
#[derive(Debug)]
pub struct SenderSettings<T> {
    /// Marks an inner packet as having met congestion and says whether it could (RFC 6040, RFC
    /// 3168 §5); one that cannot be marked is dropped.
    pub mark: fn(&mut T) -> bool,
    /// How much is kept of each link for repair; zero for none.
    pub copies: Bytes,
    /// And for how long.
    pub copies_age: Duration,
}

impl<T> Default for SenderSettings<T> {
    /// No marking; up to 4 MB and 300 ms of copies a link.
    fn default() -> SenderSettings<T> {
        SenderSettings {
            mark: |_| false,
            copies: Bytes::new(4_000_000),
            copies_age: Duration::from_millis(300),
        }
    }
}

/// What the sender must know of an inner packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inner {
    /// A hash of its flow: its lane, and its turn in the queue.
    pub flow: u32,
    /// What it asks for.
    pub class: Class,
    /// Its size.
    pub len: Bytes,
}

/// An inner packet with its place in its lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece<T> {
    /// Its lane.
    pub lane: LaneId,
    /// Its number there.
    pub seq: LaneSeq,
    /// What it asked for.
    pub class: Class,
    /// Its size.
    pub len: Bytes,
    /// The packet.
    pub item: T,
}

/// A packet to be sealed and sent now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit<T> {
    /// On this link,
    pub link: LinkId,
    /// under this number,
    pub number: PacketNumber,
    /// with this stamp.
    pub stamp: Stamp,
    /// What it carries.
    pub piece: Piece<T>,
    /// Whether it was sent before.
    pub copy: bool,
}

/// A sum of inner packets to be made, sealed and sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransmitParity {
    /// On this link,
    pub link: LinkId,
    /// under this number,
    pub number: PacketNumber,
    /// with this stamp.
    pub stamp: Stamp,
    /// What it covers.
    pub group: Group,
}

/// Why a packet without data should be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlKind {
    /// To see whether the link works, or to be told what has arrived. It elicits a report.
    Probe,
    /// One of a few that show the link's rate: padded to the size of a full packet and sent at once.
    /// It elicits a report.
    Train,
    /// To say that nothing follows for now: the far end sees losses at the end of a burst, and how
    /// far the link has come. It elicits nothing.
    Close,
}

/// A small packet that should be sent on a link; number it by [`Sender::number_control`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control {
    /// The link.
    pub link: LinkId,
    /// What for.
    pub kind: ControlKind,
}

/// A link has become more or less usable.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// The link.
    pub link: LinkId,
    /// What it is now.
    pub verdict: Verdict,
}

#[derive(Debug)]
struct Waiting<T> {
    class: Class,
    lane: LaneId,
    item: T,
}

/// A piece that is to be sent once more, and the link that it must not take.
#[derive(Debug)]
struct Again<T> {
    piece: Piece<T>,
    except: LinkId,
    since: Time,
    repair: bool,
}

/// The sending end of one direction. See the [module](super) for who calls what when.
///
/// `T` is an inner packet, or a handle to one; copies of it are kept for repair, so it should be
/// cheap to clone.
#[derive(Debug)]
pub struct Sender<T> {
    settings: SenderSettings<T>,
    links: Vec<Outgoing<Piece<T>>>,
    scheduler: Box<dyn Scheduler>,
    queue: FlowQueue<Waiting<T>>,
    /// Taken from the queue and not yet given a link.
    head: Option<(Bytes, Waiting<T>)>,
    again: VecDeque<Again<T>>,
    lanes: Vec<u64>,
    pins: Vec<Option<LinkId>>,
    run: Option<(LinkId, u64)>,
    next_interval: Option<Time>,
    wait: Option<Time>,
    repaired: u64,
    /// Largest packet that sums cover; none for no sums.
    parity_most: Option<Bytes>,
    parity: Encoder<T>,
    care: Caution,
    sums: u64,
}

impl<T: Clone> Sender<T> {
    /// A sender without links.
    #[must_use]
    pub fn new(scheduler: Box<dyn Scheduler>, settings: SenderSettings<T>) -> Sender<T> {
        Sender {
            settings,
            links: Vec::new(),
            scheduler,
            queue: FlowQueue::new(QUEUE_LEAST),
            head: None,
            again: VecDeque::new(),
            lanes: vec![0; LANES],
            pins: vec![None; LANES],
            run: None,
            next_interval: None,
            wait: None,
            repaired: 0,
            parity_most: None,
            parity: Encoder::default(),
            care: Caution::default(),
            sums: 0,
        }
    }

    /// Chooses links otherwise from now on.
    pub fn set_scheduler(&mut self, scheduler: Box<dyn Scheduler>) {
        self.scheduler = scheduler;
        self.next_interval = None;
        self.run = None;
    }

    /// Adds a link over which the handshake has passed. One that is there already begins anew.
    pub fn add_link(&mut self, now: Time, id: LinkId, settings: LinkSettings) {
        self.remove_link(now, id);
        let copies = Copies::new(self.settings.copies, self.settings.copies_age);
        let link = Outgoing::new(now, id, settings, copies);
        let index = self.links.partition_point(|link| link.id < id);
        self.links.insert(index, link);
        self.links.truncate(MAX_LINKS);
        self.wait = None;
    }

    /// Takes a link away; what is in flight on it is sent again elsewhere.
    pub fn remove_link(&mut self, now: Time, id: LinkId) {
        self.rescue(now, id);
        self.links.retain(|link| link.id != id);
        self.wait = None;
    }

    /// Changes what is configured of a link.
    pub fn set_link(&mut self, id: LinkId, settings: LinkSettings) {
        if let Some(link) = self.link_mut(id) {
            link.settings = settings;
        }
    }

    /// Bytes that may still be sent on a link; no limit if none.
    pub fn set_quota(&mut self, id: LinkId, left: Option<Bytes>) {
        if let Some(link) = self.link_mut(id) {
            link.quota = left;
        }
    }

    /// Turns parity on where links lose, for inner packets up to this size, or off; it is off to begin with.
    /// If it is on, [`poll_parity`](Self::poll_parity) must be asked.
    pub fn set_parity(&mut self, most: Option<Bytes>) {
        self.parity_most = most;
    }

    /// Takes an inner packet.
    pub fn handle_packet(&mut self, now: Time, inner: Inner, item: T) {
        let waiting = Waiting {
            class: inner.class,
            lane: LaneId((inner.flow % LANES as u32) as u8),
            item,
        };
        self.queue.push(now, inner.flow, inner.len, waiting);
    }

    /// Takes what the far end saw of a link.
    pub fn handle_report(&mut self, now: Time, report: &LinkReport) {
        let demand = self.demand();
        let Some(link) = self.link_mut(report.link) else {
            return;
        };
        if link.handle_report(now, report, demand) {
            self.wait = None;
            self.run = None;
            let span: usize = self
                .links
                .iter()
                .map(|link| packets_in_queue(link.rate()))
                .sum();
            self.queue.set_limit(span.max(QUEUE_LEAST));
            let rate = self.links.iter().map(|link| link.rate().bits_per_sec());
            let rate = Rate::from_bits_per_sec(rate.sum());
            let (loss, known) = self.loss();
            self.care.handle_report(loss, known, rate);
            // Where a lane waits for copies, what comes in meanwhile is no standing queue.
            let held = self.answer().filter(|_| loss >= WORTH_IT);
            self.queue
                .set_grace(held.map_or(Duration::ZERO, |held| held.min(HELD_MOST)));
        }
    }

    /// Takes a request to send again.
    pub fn handle_nack(&mut self, now: Time, nack: Nack) {
        let again = &mut self.again;
        let Some(link) = self.links.iter_mut().find(|link| link.id == nack.link) else {
            return;
        };
        link.copies.take(now, nack.range, |_, piece| {
            again.push_back(Again {
                piece,
                except: nack.link,
                since: now,
                repair: true,
            });
        });
        self.wait = None;
    }

    /// The next packet to seal and send; none if nothing may be sent for now.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit<T>> {
        if let Some(again) = self.poll_again(now) {
            return Some(again);
        }
        let (len, class, lane) = self.look(now)?;
        let link = match self.run {
            Some((link, left)) if left >= len.get() => link,
            _ => self.choose(now, len, class, lane)?,
        };
        let piece = self.take_head(now, link)?;
        Some(self.transmit(now, link, piece, false))
    }

    /// One more inner packet for the packet last transmitted, which went out on `link` under
    /// `number`: the next in the queue, if its turn is on the same link and it takes at most `room`
    /// bytes. What it takes beside itself, `header`, is counted with it.
    pub fn poll_more(
        &mut self,
        now: Time,
        link: LinkId,
        number: PacketNumber,
        room: Bytes,
        header: Bytes,
    ) -> Option<Piece<T>> {
        let (len, _, _) = self.look(now)?;
        let (running, left) = self.run?;
        let fits = len + header <= room && left >= len.get();
        if running != link || !fits || !self.again.is_empty() {
            return None;
        }
        let piece = self.take_head(now, link)?;
        let keeps = self.settings.copies.get() > 0;
        let link = self.link_mut(link)?;
        link.handle_more(now, len + header);
        if keeps {
            let (copies, copy) = (&mut link.copies, piece.clone());
            copies.handle_sent(now, number, len + header, copy);
        }
        Some(piece)
    }

    /// What stands at the head of the queue.
    fn look(&mut self, now: Time) -> Option<(Bytes, Class, LaneId)> {
        if self.head.is_none() {
            let control = self.links.iter().all(|link| link.is_full_or_unused(now));
            let mark = self.settings.mark;
            let queued = self
                .queue
                .pop(now, control, |waiting| mark(&mut waiting.item))?;
            self.head = Some((queued.len, queued.item));
        }
        self.head.as_ref().map(|(len, w)| (*len, w.class, w.lane))
    }

    /// Gives the head of the queue to a link, with a number in its lane.
    fn take_head(&mut self, now: Time, link: LinkId) -> Option<Piece<T>> {
        let (len, waiting) = self.head.take()?;
        let (lane, class) = (waiting.lane, waiting.class);
        if let Some((_, left)) = &mut self.run {
            *left = left.saturating_sub(len.get());
        }
        let covered = class == Class::Ordered && self.parity_most.is_some_and(|most| len <= most);
        let seq = &mut self.lanes[lane.index()];
        let piece = Piece {
            lane,
            seq: LaneSeq(*seq),
            class,
            len,
            item: waiting.item,
        };
        *seq += 1;
        self.pins[lane.index()] = Some(link);
        if let Some(care) = self.care.handle_sent(now, lane, len).filter(|_| covered) {
            let item = piece.item.clone();
            self.parity.handle_sent(now, (lane, piece.seq), item, care);
        }
        if class == Class::Redundant {
            self.again.push_back(Again {
                piece: piece.clone(),
                except: link,
                since: now,
                repair: false,
            });
        }
        Some(piece)
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
                // A run is of one flow's turn or many; classes are looked at one by one.
                let runs = matches!(class, Class::Ordered | Class::Unordered);
                self.run = runs.then_some((link, run.get()));
                Some(link)
            }
            Choice::Wait(until) => {
                self.wait = until;
                None
            }
        }
    }

    fn transmit(&mut self, now: Time, id: LinkId, piece: Piece<T>, copy: bool) -> Transmit<T> {
        let mut number = PacketNumber(0);
        if let Some(link) = self.links.iter_mut().find(|link| link.id == id) {
            let len = piece.len + link.settings.overhead;
            number = link.handle_sent(now, len, true);
            link.handle_data(now);
            if !copy && self.settings.copies.get() > 0 {
                link.copies.handle_sent(now, number, len, piece.clone());
            }
        }
        Transmit {
            link: id,
            number,
            stamp: Stamp::of(now),
            piece,
            copy,
        }
    }

    /// What goes out once more: repairs at once, on the link that is most likely to deliver them
    /// soon; second copies when another link is free.
    fn poll_again(&mut self, now: Time) -> Option<Transmit<T>> {
        for _ in 0..self.again.len() {
            let again = self.again.pop_front()?;
            let found = if again.repair {
                self.best(Some(again.except))
            } else {
                self.second(now, &again)
            };
            match found {
                Some(link) => {
                    self.repaired += u64::from(again.repair);
                    self.insure(&again, link);
                    return Some(self.transmit(now, link, again.piece, true));
                }
                None if now.since(again.since) < SECOND_COPY => self.again.push_back(again),
                None => {}
            }
        }
        None
    }

    /// Where even the best link loses packets, a copy of the copy goes over another one: the inner
    /// flow slows down for what is lost twice as for what is lost once.
    fn insure(&mut self, again: &Again<T>, taken: LinkId) {
        let loses = |link: &Outgoing<Piece<T>>| link.estimator.loss().slow() > INSURE_ABOVE;
        let lossy = self
            .links
            .iter()
            .any(|link| link.id == taken && loses(link));
        if again.repair && lossy && self.links.len() > 1 {
            self.again.push_back(Again {
                piece: again.piece.clone(),
                except: taken,
                since: again.since,
                repair: false,
            });
        }
    }

    /// By delay, where a lost copy counts as a round trip more; the link that lost the packet is
    /// taken only if there is no other.
    fn best(&self, except: Option<LinkId>) -> Option<LinkId> {
        let cost = |link: &&Outgoing<Piece<T>>| {
            let delay = link.estimator.delay().map_or(0, |delay| delay.0);
            let again = link.estimator.rtt().smoothed().as_micros() as f64;
            let lost = link.estimator.loss().slow() * 4.0 * again;
            (Some(link.id) == except, delay + lost as i64)
        };
        let usable = self.links.iter().filter(|link| link.is_usable());
        usable.min_by_key(cost).map(|link| link.id)
    }

    fn second(&mut self, now: Time, again: &Again<T>) -> Option<LinkId> {
        let len = again.piece.len;
        let head = Head {
            len,
            backlog: len,
            class: again.piece.class,
            pin: None,
            except: Some(again.except),
        };
        match with_views(&self.links, now, len, self.scheduler.as_mut(), &head) {
            Choice::Send { link, .. } => Some(link),
            Choice::Wait(_) => None,
        }
    }

    /// The next sum to send, on the link that is most likely to deliver it soon; the packets that
    /// it is of are put into `items`, which is emptied first. `len` says what such a sum takes. Ask it before
    /// [`poll_transmit`](Self::poll_transmit), each time, if parity is configured.
    pub fn poll_parity(
        &mut self,
        now: Time,
        items: &mut Vec<T>,
        len: impl Fn(&[T]) -> Bytes,
    ) -> Option<TransmitParity> {
        let group = self.parity.poll(now, items)?;
        let id = self.best(None)?;
        let link = self.link_mut(id)?;
        let number = link.handle_sent(now, len(items) + link.settings.overhead, true);
        self.sums += 1;
        Some(TransmitParity {
            link: id,
            number,
            stamp: Stamp::of(now),
            group,
        })
    }

    /// What the bond loses, links weighed by what they may carry, and whether enough packets have
    /// passed on each to say so. What is lost to a queue is not made up for: that would fill it.
    fn loss(&self) -> (f64, bool) {
        let links = || self.links.iter().filter(|link| link.is_usable());
        let (mut lost, mut all) = (0.0, 0.0);
        for link in links() {
            let rate = link.rate().bits_per_sec() as f64;
            lost += rate * link.estimator.loss().slow_random();
            all += rate;
        }
        let known = links().all(|link| link.estimator.loss().packets() >= KNOWN_AFTER);
        (if all > 0.0 { lost / all } else { 0.0 }, known)
    }

    /// Numbers and stamps a packet that is not [`Transmit`]'s: a report, a probe, the rest of a
    /// packet that needed two. `len` is what it takes on the wire; `elicits` says whether it makes
    /// the far end report, as [`Receiver::handle_datagram`](super::Receiver::handle_datagram) must
    /// be told there. None without such a link.
    pub fn number_control(
        &mut self,
        now: Time,
        id: LinkId,
        len: Bytes,
        elicits: bool,
    ) -> Option<(PacketNumber, Stamp)> {
        let number = self.link_mut(id)?.handle_sent(now, len, elicits);
        Some((number, Stamp::of(now)))
    }

    /// A small packet that should be sent now.
    pub fn poll_control(&mut self, now: Time) -> Option<Control> {
        let several = self.links.len() > 1 || self.settings.copies.get() > 0;
        for link in &mut self.links {
            if link.train > 0 {
                link.train -= 1;
                let kind = ControlKind::Train;
                return Some(Control {
                    link: link.id,
                    kind,
                });
            }
            if link.liveness.poll_probe(now) || link.estimator.is_unheard() {
                let kind = ControlKind::Probe;
                return Some(Control {
                    link: link.id,
                    kind,
                });
            }
            if several && link.close_at().is_some_and(|at| at <= now) {
                let kind = ControlKind::Close;
                return Some(Control {
                    link: link.id,
                    kind,
                });
            }
        }
        None
    }

    /// Judges silence and ends report intervals. Early and repeated calls do no harm.
    pub fn handle_timeout(&mut self, now: Time) {
        let mut silent = [false; MAX_LINKS];
        for link in &mut self.links {
            let before = link.liveness.verdict();
            link.liveness.handle_timeout(now, &link.estimator);
            let after = link.liveness.verdict();
            silent[link.id.index() % MAX_LINKS] = after == Verdict::Suspect && before != after;
            link.copies.handle_timeout(now);
        }
        for index in (0..MAX_LINKS).filter(|index| silent[*index]) {
            self.rescue(now, LinkId(index as u8));
        }
        if let Some(span) = self.scheduler.interval() {
            let due = *self.next_interval.get_or_insert(now + span);
            if now >= due {
                let intervals: Vec<Interval> =
                    self.links.iter_mut().map(Outgoing::take_interval).collect();
                self.scheduler.handle_interval(now, &intervals);
                self.next_interval = Some(due + span);
            }
        }
    }

    /// What is in flight on a link that fell silent is sent again elsewhere.
    fn rescue(&mut self, now: Time, id: LinkId) {
        let Some(link) = self.links.iter_mut().find(|link| link.id == id) else {
            return;
        };
        let first = link.estimator.highest().map_or(0, |highest| highest.0 + 1);
        let range = NumberRange {
            first: PacketNumber(first),
            last: PacketNumber(u64::MAX),
        };
        self.handle_nack(now, Nack { link: id, range });
        self.run = None;
    }

    /// When to call [`handle_timeout`](Self::handle_timeout), [`poll_control`](Self::poll_control)
    /// and [`poll_transmit`](Self::poll_transmit) next; none without links.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let several = self.links.len() > 1 || self.settings.copies.get() > 0;
        let links = self.links.iter().map(|link| {
            let judge = link.liveness.poll_timeout(&link.estimator);
            let close = link.close_at().filter(|_| several);
            close.map_or(judge, |close| close.min(judge))
        });
        let send = self.wait.filter(|_| self.head.is_some());
        let sum = self.parity.poll_timeout();
        links.chain(send).chain(self.next_interval).chain(sum).min()
    }

    /// What was judged of links, once for each change.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.links.iter_mut().find_map(|link| {
            let verdict = link.liveness.poll_change()?;
            if matches!(verdict, Verdict::Returning(_) | Verdict::Quarantined) {
                link.estimator.forgive();
            }
            Some(Change {
                link: link.id,
                verdict,
            })
        })
    }

    /// The number that a lane's next packet will have.
    #[must_use]
    pub fn next_seq(&self, lane: LaneId) -> LaneSeq {
        LaneSeq(self.lanes[lane.index()])
    }

    fn demand(&self) -> Demand {
        if self.queue.bytes() > BACKLOG {
            Demand::Backlog
        } else {
            Demand::Met
        }
    }

    /// What is known of a link.
    #[must_use]
    pub fn link(&self, id: LinkId) -> Option<(&LinkEstimator, &Liveness)> {
        let link = self.links.iter().find(|link| link.id == id)?;
        Some((&link.estimator, &link.liveness))
    }

    fn link_mut(&mut self, id: LinkId) -> Option<&mut Outgoing<Piece<T>>> {
        self.links.iter_mut().find(|link| link.id == id)
    }

    /// The time in which something asked for again would come, on the best link: what the far
    /// end's [`Receiver::set_answer`](super::Receiver::set_answer) is to be told.
    #[must_use]
    pub fn answer(&self) -> Option<Duration> {
        let known = self.links.iter().filter(|link| link.is_usable());
        known
            .filter(|link| link.estimator.rtt().is_known())
            .map(|link| link.estimator.rtt().overdue())
            .min()
    }

    /// Packets and bytes that wait for links.
    #[must_use]
    pub fn backlog(&self) -> (usize, Bytes) {
        (self.queue.packets(), self.queue.bytes())
    }

    /// Packets dropped or marked on purpose, and dropped for want of room.
    #[must_use]
    pub fn drops(&self) -> (u64, u64, u64) {
        let queue = &self.queue;
        (queue.dropped(), queue.marked(), queue.overflowed())
    }

    /// Sums sent.
    #[must_use]
    pub fn sums(&self) -> u64 {
        self.sums
    }

    /// Packets sent again because they were asked for or in flight on a link that fell silent.
    #[must_use]
    pub fn repaired(&self) -> u64 {
        self.repaired
    }
}

fn packets_in_queue(rate: Rate) -> usize {
    (rate.bytes_in(QUEUE_SPAN).get() / 1500) as usize
}

fn with_views<T>(
    links: &[Outgoing<Piece<T>>],
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
    for (view, link) in views.iter_mut().zip(links) {
        *view = link.view(now, len + link.settings.overhead, paced);
    }
    scheduler.choose(now, head, &views[..links.len().min(MAX_LINKS)])
}
