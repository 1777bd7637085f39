//! The targets of one uplink: who answered, who is silent, whom to ask next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::constants::{DEAF_AFTER, DEAF_TURN, HTTP_PACE, MAX_FLIGHTS, UNSENDABLE};
use super::{ProbeId, Target, Watched};

/// Targets that have answered on any uplink.
pub(super) type Heard = BTreeSet<Arc<Target>>;

/// A target of one uplink, by its place in the panel.
pub(super) type Seat = usize;

/// One target, as seen through one uplink.
#[derive(Clone, Debug)]
struct Member {
    target: Arc<Target>,
    answered: Option<Instant>,
    /// Unanswered probes in a row, and when the first of them was sent.
    misses: u32,
    missing_since: Option<Instant>,
}

/// A probe under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) seat: Seat,
    pub(super) sent: Instant,
    /// From then on it is not late but lost.
    pub(super) lost_at: Instant,
    /// Sent in its turn and not in a burst: it counts for loss, and its absence is noticed.
    pub(super) paced: bool,
    /// Its absence has been noticed.
    pub(super) noticed: bool,
}

/// The targets of one uplink and the probes under way to them.
#[derive(Clone, Debug)]
pub(super) struct Panel {
    members: Vec<Member>,
    flights: BTreeMap<ProbeId, Flight>,
    turn: usize,
    pub(super) http_at: Instant,
    unsendable: u32,
    pub(super) trouble: Option<String>,
}

impl Panel {
    /// Those of the targets that the uplink has a family for.
    pub(super) fn new(now: Instant, watched: &Watched) -> Panel {
        let has_way = |target: &&Arc<Target>| match target.address() {
            Some(address) if address.is_ipv4() => watched.v4,
            Some(_) => watched.v6,
            None => true,
        };
        let member = |target: &Arc<Target>| Member {
            target: Arc::clone(target),
            answered: None,
            misses: 0,
            missing_since: None,
        };
        let targets = watched.rules.targets.iter().filter(has_way);
        Panel {
            members: targets.map(member).collect(),
            flights: BTreeMap::new(),
            turn: 0,
            http_at: now,
            unsendable: 0,
            trouble: None,
        }
    }

    /// Takes over what an earlier panel knew about the targets that stay.
    pub(super) fn inherit(&mut self, old: &Panel) {
        for member in &mut self.members {
            let known = old.members.iter().find(|o| o.target == member.target);
            if let Some(known) = known {
                *member = known.clone();
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn target(&self, seat: Seat) -> &Arc<Target> {
        &self.members[seat].target
    }

    /// `Some(true)` for IPv6, `None` for a name.
    pub(super) fn family(&self, seat: Seat) -> Option<bool> {
        self.members[seat].target.address().map(|a| a.is_ipv6())
    }

    /// Silence of this target would say something: it has answered, here or, where nothing is known
    /// in this uplink's favour, on another.
    pub(super) fn is_useful(&self, seat: Seat, heard: &Heard, passes: bool) -> bool {
        let member = &self.members[seat];
        member.answered.is_some() || (!passes && heard.contains(&member.target))
    }

    /// Silent for some probes while another target answered: the fault is the target's.
    pub(super) fn is_deaf(&self, seat: Seat) -> bool {
        self.members[seat].misses >= DEAF_AFTER && self.is_silent_alone(seat)
    }

    /// It misses answers while another target gets some: one miss may be the line's, the next are
    /// more likely the target's.
    pub(super) fn is_silent_alone(&self, seat: Seat) -> bool {
        let missing_since = self.members[seat].missing_since;
        let answered_since = |since| {
            let mut others = self.members.iter();
            others.any(|other| other.answered.is_some_and(|at| at > since))
        };
        missing_since.is_some_and(answered_since)
    }

    /// Targets whose silence would say something about the uplink. Those for HTTP only where there
    /// is no other kind: they are servers' applications, and are to be asked seldom.
    pub(super) fn witnesses(&self, heard: &Heard, passes: bool) -> Vec<Seat> {
        if self.cannot_send() {
            return Vec::new();
        }
        let seats = 0..self.members.len();
        let fit = |seat: &Seat| self.is_useful(*seat, heard, passes) && !self.is_deaf(*seat);
        seats
            .filter(|s| self.is_asked_often(*s))
            .filter(fit)
            .collect()
    }

    /// The last probes could not be sent, so that silence says nothing.
    pub(super) fn cannot_send(&self) -> bool {
        self.unsendable >= UNSENDABLE
    }

    /// How many targets have answered on this uplink.
    pub(super) fn ever_answered(&self) -> usize {
        let members = self.members.iter();
        members.filter(|member| member.answered.is_some()).count()
    }

    pub(super) fn has_http(&self) -> bool {
        self.members.iter().any(|member| member.target.is_http())
    }

    pub(super) fn is_asked_often(&self, seat: Seat) -> bool {
        let is_http = |member: &Member| member.target.is_http();
        !is_http(&self.members[seat]) || self.members.iter().all(is_http)
    }

    /// Whose turn it is in quiet times: a target for HTTP when its time has come, every few turns
    /// one of the silent, else one of those that answer, of one family if that is in doubt.
    pub(super) fn next(
        &mut self,
        now: Instant,
        witnesses: &[Seat],
        doubted: Option<bool>,
    ) -> Option<Seat> {
        self.turn = self.turn.wrapping_add(1);
        let mut https = (0..self.members.len()).filter(|seat| !self.is_asked_often(*seat));
        if self.http_at <= now
            && let Some(seat) = https.next()
        {
            self.http_at = now + HTTP_PACE;
            return Some(seat);
        }
        let often: Vec<Seat> = (0..self.members.len())
            .filter(|seat| self.is_asked_often(*seat))
            .collect();
        let others = often.iter().filter(|seat| !witnesses.contains(seat));
        let others: Vec<Seat> = others.copied().collect();
        let doubtful: Vec<Seat> = match doubted {
            Some(_) => {
                let mut all = often.clone();
                all.retain(|seat| self.family(*seat) == doubted);
                all
            }
            None => Vec::new(),
        };
        let (lists, turn) = if !doubtful.is_empty() {
            (&doubtful[..], self.turn)
        } else if witnesses.is_empty() {
            (&often[..], self.turn)
        } else if !others.is_empty() && self.turn.is_multiple_of(DEAF_TURN as usize) {
            (&others[..], self.turn / DEAF_TURN as usize)
        } else {
            (witnesses, self.turn)
        };
        lists.get(turn % lists.len().max(1)).copied()
    }

    pub(super) fn has_room(&self) -> bool {
        self.flights.len() < MAX_FLIGHTS
    }

    pub(super) fn launch(&mut self, id: ProbeId, flight: Flight) {
        self.flights.insert(id, flight);
    }

    pub(super) fn land(&mut self, id: ProbeId) -> Option<Flight> {
        self.flights.remove(&id)
    }

    pub(super) fn flights(&self) -> impl Iterator<Item = &Flight> {
        self.flights.values()
    }

    pub(super) fn flights_mut(&mut self) -> impl Iterator<Item = &mut Flight> {
        self.flights.values_mut()
    }

    /// Removes and returns one probe that is lost by now.
    pub(super) fn take_lost(&mut self, now: Instant) -> Option<Flight> {
        let lost = self.flights.iter().find(|(_, f)| f.lost_at <= now);
        let id = *lost?.0;
        self.flights.remove(&id)
    }

    /// Probes under way say nothing any more.
    pub(super) fn forget_flights(&mut self) {
        self.flights.clear();
    }

    pub(super) fn answered(&mut self, now: Instant, seat: Seat) {
        let member = &mut self.members[seat];
        member.answered = Some(now);
        (member.misses, member.missing_since) = (0, None);
        self.sendable();
    }

    pub(super) fn missed(&mut self, flight: &Flight) {
        self.sendable();
        let member = &mut self.members[flight.seat];
        if member.answered.is_some_and(|at| at >= flight.sent) {
            return;
        }
        member.misses = member.misses.saturating_add(1);
        member.missing_since.get_or_insert(flight.sent);
    }

    pub(super) fn not_sent(&mut self, why: String) {
        self.unsendable = self.unsendable.saturating_add(1);
        self.trouble = Some(why);
    }

    fn sendable(&mut self) {
        (self.unsendable, self.trouble) = (0, None);
    }
}
