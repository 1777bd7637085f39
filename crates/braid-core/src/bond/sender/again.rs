//! What goes out once more: copies that were asked for, second copies, and what was in flight on a link
//! that fell silent.

use std::time::Duration;

use crate::estimate::NumberRange;
use crate::repair::Nack;
use crate::schedule::{Choice, Head};
use crate::{Bytes, LinkId, PacketNumber, Time};

use super::{Outgoing, Piece, Sender, Transmit, with_views};

/// A second copy that finds no link in so long is not worth sending.
const SECOND_COPY: Duration = Duration::from_millis(50);

/// What was in flight on a link that fell silent waits so long for room elsewhere.
const RESCUE_MOST: Duration = Duration::from_millis(300);

/// A packet is overtaken when another link has delivered one that was sent so much later, beyond the difference of
/// the links' delays.
const OVERTAKEN: Duration = Duration::from_millis(100);

/// Loss of a link above which its copies are doubled.
const INSURE_ABOVE: f64 = 0.005;

/// A piece that is to be sent once more, and the link that it must not take.
#[derive(Debug)]
pub(super) struct Again<T> {
    pub piece: Piece<T>,
    pub except: LinkId,
    pub since: Time,
    pub repair: bool,
    /// It was in flight on a link that fell silent, and may come yet: it waits for room.
    pub rescue: bool,
}

impl<T: Clone> Sender<T> {
    /// Takes a request to send again.
    pub fn handle_nack(&mut self, now: Time, nack: Nack) {
        self.send_again(now, nack, false);
    }

    fn send_again(&mut self, now: Time, nack: Nack, rescue: bool) {
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
                rescue,
            });
        });
        self.wait = None;
    }

    /// What goes out once more: repairs at once, on the link that is most likely to deliver them
    /// soon; second copies when another link is free.
    pub(super) fn poll_again(&mut self, now: Time) -> Option<Transmit<T>> {
        for _ in 0..self.again.len() {
            let again = self.again.pop_front()?;
            let found = if again.rescue {
                self.roomy(again.except, again.piece.len)
            } else if again.repair {
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
                None if now.since(again.since) < SECOND_COPY
                    || (again.rescue && now.since(again.since) < RESCUE_MOST) =>
                {
                    self.again.push_back(again)
                }
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
                rescue: false,
            });
        }
    }

    /// By delay, where a lost copy counts as a round trip more; the link that lost the packet is
    /// taken only if there is no other.
    pub(super) fn best(&self, except: Option<LinkId>) -> Option<LinkId> {
        let cost = |link: &&Outgoing<Piece<T>>| {
            let delay = link.estimator.delay().map_or(0, |delay| delay.0);
            let again = link.estimator.rtt().smoothed().as_micros() as f64;
            let lost = link.estimator.loss().slow() * 4.0 * again;
            (Some(link.id) == except, delay + lost as i64)
        };
        let usable = self.links.iter().filter(|link| link.is_usable());
        usable.min_by_key(cost).map(|link| link.id)
    }

    /// The best link, if it has room; the one that fell silent only if it is back and there is no other.
    fn roomy(&self, except: LinkId, len: Bytes) -> Option<LinkId> {
        let id = self.best(Some(except))?;
        let link = self.links.iter().find(|link| link.id == id)?;
        link.estimator.has_room(len).then_some(id)
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

    /// What is in flight on a link that fell silent is sent again elsewhere.
    pub(super) fn rescue(&mut self, now: Time, id: LinkId) {
        let Some(link) = self.links.iter_mut().find(|link| link.id == id) else {
            return;
        };
        let first = link.estimator.highest().map_or(0, |highest| highest.0 + 1);
        let range = NumberRange {
            first: PacketNumber(first),
            last: PacketNumber(u64::MAX),
        };
        self.send_again(now, Nack { link: id, range }, true);
        self.run = None;
    }

    /// Sends packets again that are under way on other links and that this link has overtaken: order waits for them.
    pub(super) fn rescue_overtaken(&mut self, now: Time, by: LinkId) {
        let usable = |link: &&Outgoing<Piece<T>>| link.id == by && link.is_usable();
        let Some(fast) = self.links.iter().find(usable) else {
            return;
        };
        let estimator = &fast.estimator;
        let (Some(arrived), Some(quick)) = (estimator.confirmed(), estimator.delay()) else {
            return;
        };
        for index in 0..self.links.len() {
            let link = &self.links[index];
            let Some(usual) = link.estimator.delay().filter(|_| link.id != by) else {
                continue;
            };
            let until = arrived.before(OVERTAKEN + usual.over(quick));
            if let Some(range) = link.estimator.unreported(until) {
                let link = link.id;
                self.send_again(now, Nack { link, range }, true);
            }
        }
    }

    /// A link has brought what was to be sent again elsewhere.
    pub(super) fn call_off(&mut self, id: LinkId) {
        self.again
            .retain(|again| !again.rescue || again.except != id);
    }
}
