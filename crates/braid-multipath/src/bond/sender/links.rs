//! Adding, removing, probing and judging links; timeouts.

use braid_core::{Bytes, Time};

use super::{SILENT_RETRANSMIT_AGE, Sender};
use crate::bond::sender_link::{LinkSettings, SenderLink};
use crate::bond::traffic::{Control, ControlKind, LinkChange};
use crate::liveness::Verdict;
use crate::retransmit::RetransmitBuffer;
use crate::schedule::Interval;
use crate::{LinkId, MAX_LINKS, PacketNumber, Stamp};

impl<T: Clone> Sender<T> {
    /// Adds a link whose handshake is complete. A link with this id is replaced.
    pub fn add_link(&mut self, now: Time, id: LinkId, settings: LinkSettings) {
        self.remove_link(now, id);
        self.begun_at.get_or_insert(now);
        let retransmit_buffer = RetransmitBuffer::new(
            self.settings.retransmit_buffer,
            self.settings.retransmit_age,
        );
        let link = SenderLink::new(now, id, settings, retransmit_buffer);
        let index = self.links.partition_point(|link| link.id < id);
        self.links.insert(index, link);
        self.links.truncate(MAX_LINKS);
        self.wait = None;
    }

    /// Removes a link. Packets in flight on it are retransmitted on others.
    pub fn remove_link(&mut self, now: Time, id: LinkId) {
        self.retransmit_in_flight(now, id);
        self.retransmissions.forget_numbers(id);
        self.links.retain(|link| link.id != id);
        self.wait = None;
    }

    /// Changes the settings of a link.
    pub fn set_link(&mut self, id: LinkId, settings: LinkSettings) {
        if let Some(link) = self.link_mut(id) {
            link.settings = settings;
        }
    }

    /// Sets the bytes that may still be sent on a link; none for no limit.
    pub fn set_quota(&mut self, id: LinkId, left: Option<Bytes>) {
        if let Some(link) = self.link_mut(id) {
            link.quota = left;
        }
    }

    /// Numbers and stamps a packet other than a [`Transmit`](crate::bond::Transmit): a report, a
    /// probe, the rest of a packet that needed two. `len` is its size on the wire; `elicits` is
    /// true if it makes the far end report, and must match the argument of
    /// [`Receiver::handle_datagram`](crate::bond::Receiver::handle_datagram) there. Returns none if
    /// there is no such link.
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

    /// Notes that a packet of any kind arrived over a link. An end that sends nothing over a link
    /// detects its death by the packets that no longer arrive.
    pub fn handle_received(&mut self, now: Time, id: LinkId) {
        if let Some(link) = self.link_mut(id) {
            link.liveness.handle_received(now);
        }
    }

    /// Returns the next small packet to send now.
    pub fn poll_control(&mut self, now: Time) -> Option<Control> {
        let several = self.links.len() > 1 || self.settings.retransmit_buffer.get() > 0;
        let works = self.links.iter().any(SenderLink::is_usable);
        let received = self
            .links
            .iter()
            .filter_map(|link| link.liveness.received());
        let newest = received.max().unwrap_or(now);
        for link in &mut self.links {
            if link.train > 0 {
                link.train -= 1;
                let kind = ControlKind::Train;
                return Some(Control {
                    link: link.id,
                    kind,
                });
            }
            let urgent = !works && link.liveness.poll_urgent_probe(now);
            let asked = link.liveness.poll_rx_probe(now, newest) || link.liveness.poll_probe(now);
            // A link carries no data before its first report, so something else has to ask for it.
            let unmeasured = link.is_usable() && !link.has_delay() && link.is_empty();
            if urgent || asked || unmeasured || link.estimator.needs_probe() {
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

    /// Checks links for silence and ends report intervals. Early and repeated calls do no harm.
    pub fn handle_timeout(&mut self, now: Time) {
        self.update_far(now);
        let mut silent = [false; MAX_LINKS];
        for link in &mut self.links {
            let before = link.liveness.verdict();
            link.liveness.handle_timeout(now, &link.estimator);
            let after = link.liveness.verdict();
            silent[link.id.index() % MAX_LINKS] = after == Verdict::Suspect && before != after;
            if after == Verdict::Suspect {
                link.retransmit_buffer.set_max_age(SILENT_RETRANSMIT_AGE);
            }
            link.retransmit_buffer.handle_timeout(now);
        }
        if silent.contains(&true) {
            let others = self.links.iter_mut().filter(|link| link.is_usable());
            others.for_each(|link| link.estimator.handle_silence());
        }
        for index in (0..MAX_LINKS).filter(|index| silent[*index]) {
            self.retransmit_in_flight(now, LinkId(index as u8));
        }
        if let Some(span) = self.scheduler.interval() {
            let due = *self.next_interval.get_or_insert(now + span);
            if now >= due {
                let intervals: Vec<Interval> = self
                    .links
                    .iter_mut()
                    .map(SenderLink::take_interval)
                    .collect();
                self.scheduler.handle_interval(now, &intervals);
                self.next_interval = Some(due + span);
            }
        }
    }

    /// Returns when to call [`handle_timeout`](Self::handle_timeout),
    /// [`poll_control`](Self::poll_control) and [`poll_transmit`](Self::poll_transmit) next; none
    /// without links.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let several = self.links.len() > 1 || self.settings.retransmit_buffer.get() > 0;
        let works = self.links.iter().any(SenderLink::is_usable);
        let links = self.links.iter().map(|link| {
            let judge = link.liveness.poll_timeout(&link.estimator);
            let silent = !works && link.liveness.verdict() == Verdict::Suspect;
            let urgent = silent.then(|| link.liveness.urgent_probe_at());
            let judge = urgent.map_or(judge, |urgent| urgent.min(judge));
            let close = link.close_at().filter(|_| several);
            close.map_or(judge, |close| close.min(judge))
        });
        let send = self.wait.filter(|_| self.head.is_some());
        let far = self.far.wait();
        let fec = self.fec.poll_timeout();
        links
            .chain(send)
            .chain(far)
            .chain(self.next_interval)
            .chain(fec)
            .min()
    }

    /// Returns the next change of a link's verdict.
    pub fn poll_change(&mut self) -> Option<LinkChange> {
        self.links.iter_mut().find_map(|link| {
            let verdict = link.liveness.poll_change()?;
            if matches!(verdict, Verdict::Returning(_) | Verdict::Quarantined) {
                link.estimator.restart();
            }
            Some(LinkChange {
                link: link.id,
                verdict,
            })
        })
    }
}
