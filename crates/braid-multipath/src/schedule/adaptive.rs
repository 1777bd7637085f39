//! Earliest arrival over measured links.
//!
//! - A packet goes to the link on which it would *arrive* first: `max(now, ready) + len/rate +
//!   delay`. Round robin by rate sent 79 where this sent 91 of 92 Mbit/s (80 + 20 Mbit/s): it puts
//!   packets on a slow link that a fast one would have delivered earlier.
//! - If that link is not ready yet, a slower one that is may take the packet, but only if the
//!   backlog is so long that its tail would arrive no earlier over the faster links. So a slow link
//!   is never used before it helps, and always when it does.
//! - While more is sent than the faster links carry alone, the slower one *stays* in use with
//!   hardly a backlog: a TCP flow sees its delay already, and leaving it idle until the next
//!   backlog only costs rate. It must not come into use that easily: a flow whose window is too
//!   small for its delay would be slower with it than without.
//! - A *light load*, less than half of what one link carries, stays on that link: the one that would
//!   deliver 64 kB first. Packets of one link arrive in order. A flow in slow start over two links
//!   waits for each packet that the slower or stalling one holds up, takes the wait for a queue, and
//!   ends slow start at a tenth of the window that it needs.
//! - Packets are not queued per link. They wait in the one queue in front, where every flow has its
//!   turn and CoDel sees them.
//! - A link slower than the fastest by more than the *reorder budget* is left out. It is used by
//!   single flows that wait for it ([`Sender::far_flows`](crate::bond::Sender::far_flows)). Links are compared without their
//!   queues, or a queue on the fast one would admit the slow one for a moment.
//! - *Hysteresis*: of links with nearly the same arrival time the last one stays. *Runs*: with a
//!   backlog a link takes about a millisecond's worth at once, which the kernel sends as one.
//! - *Tiers*: a dearer link counts only once the cheaper ones have more waiting than they send in
//!   [`Tuning::overflow_after`]; a cheaper one that is ready never waits for it.

use std::time::Duration;

use braid_core::{Bytes, Time};

use super::{Choice, Class, Head, LinkView, Scheduler};
use crate::{LinkId, MAX_LINKS, REORDER_BUDGET};

/// Longest run in bytes: 16 full packets, which fit into one GSO send with room to spare.
const MAX_RUN_BYTES: u64 = 16 * 1500;

/// Time that a run takes on its link.
const RUN_SPAN: Duration = Duration::from_millis(1);

/// A link whose window is full is assumed to be ready after the next report.
const REPORT_WAIT: Duration = Duration::from_millis(25);

/// A pinned flow leaves a link on which it would wait longer than this.
const MAX_PIN_WAIT: Duration = Duration::from_millis(20);

/// Averaging time of the sent rate: some round trips, so that the bursts of a TCP flow's slow
/// start, which a fast link carries before the next one, are no lasting demand.
const SENT_SPAN: Duration = Duration::from_millis(100);

/// A slower link stays in use while this multiple of the faster ones' rate is sent.
const STAY_LOAD_RATIO: f64 = 1.05;

/// Parameters of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuning {
    /// Largest difference in base delay to the fastest link of the cheapest tier.
    pub reorder_budget: Duration,
    /// Links this close together count as equal.
    pub hysteresis: Duration,
    /// Part of the break-even backlog above which a slower link is used. At break-even the
    /// backlog's tail would arrive no earlier over the faster links. At 1 the slower link is used
    /// once it helps, at 0 whenever it is ready.
    pub backlog_fraction: f64,
    /// The same while more is sent than the faster links carry alone.
    pub backlog_fraction_to_stay: f64,
    /// Backlog on cheaper links above which dearer ones are used.
    pub overflow_after: Duration,
    /// A load is light below this part of the rate of the link that takes it.
    pub light_load: f64,
    /// A light load takes the link that would deliver this much first.
    pub light_transfer: Bytes,
    /// Longest wait of a light load for that link.
    pub light_wait: Duration,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            reorder_budget: REORDER_BUDGET,
            hysteresis: Duration::from_millis(1),
            backlog_fraction: 0.5,
            backlog_fraction_to_stay: 0.1,
            overflow_after: Duration::from_millis(10),
            light_load: 0.5,
            light_transfer: Bytes::new(64_000),
            light_wait: Duration::from_millis(2),
        }
    }
}

/// The default scheduler.
#[derive(Debug, Clone, Default)]
pub struct Adaptive {
    tuning: Tuning,
    last: Option<LinkId>,
    sent: SentRate,
}

/// Recent sent rate, older packets counting less.
#[derive(Debug, Clone, Default)]
struct SentRate {
    bits: f64,
    until: Time,
}

impl SentRate {
    fn add(&mut self, now: Time, bytes: u64) {
        self.bits = self.bits_at(now) + bytes as f64 * 8.0;
        self.until = now;
    }

    /// Returns the rate in bit/s.
    fn rate(&self, now: Time) -> f64 {
        self.bits_at(now) / SENT_SPAN.as_secs_f64()
    }

    fn bits_at(&self, now: Time) -> f64 {
        let age = now.since(self.until).as_secs_f64() / SENT_SPAN.as_secs_f64();
        self.bits * (1.0 - age).max(0.0)
    }
}

/// A link that may be chosen. Times are in seconds from now; delays from the lowest one.
#[derive(Debug, Clone, Copy)]
struct Candidate<'a> {
    view: &'a LinkView,
    ready: f64,
    /// When the packet would arrive if it waited for the link.
    arrival: f64,
    rate: f64,
}

impl Adaptive {
    /// Returns a scheduler with these parameters.
    #[must_use]
    pub fn new(tuning: Tuning) -> Adaptive {
        Adaptive {
            tuning,
            ..Adaptive::default()
        }
    }

    fn send(&mut self, now: Time, head: &Head, view: &LinkView) -> Choice {
        let span = view.rate.bytes_in(RUN_SPAN).get().min(MAX_RUN_BYTES);
        let run = span.min(head.backlog.get()).max(head.len.get());
        if head.except.is_none() {
            self.last = Some(view.id);
            self.sent.add(now, run);
        }
        Choice::Send {
            link: view.id,
            run: Bytes::new(run),
        }
    }

    /// Chooses the link ready now that delivers first; otherwise waits until one is ready.
    fn soonest(&mut self, now: Time, head: &Head, candidates: &[Option<Candidate<'_>>]) -> Choice {
        let ready = candidates.iter().flatten().filter(|c| c.ready <= 0.0);
        match ready.min_by(|a, b| a.arrival.total_cmp(&b.arrival)) {
            Some(best) => self.send(now, head, best.view),
            None => wait(now, candidates),
        }
    }

    fn earliest(&mut self, now: Time, head: &Head, candidates: &[Option<Candidate<'_>>]) -> Choice {
        let Some(best) = candidates
            .iter()
            .flatten()
            .min_by(|a, b| a.arrival.total_cmp(&b.arrival))
        else {
            return Choice::Wait(None);
        };
        if let Some(choice) = self.one_link(now, head, candidates) {
            return choice;
        }
        let near = best.arrival + self.tuning.hysteresis.as_secs_f64();
        let stays = |c: &&Candidate<'_>| {
            c.ready <= 0.0 && c.arrival <= near && Some(c.view.id) == self.last
        };
        if let Some(last) = candidates.iter().flatten().find(stays) {
            return self.send(now, head, last.view);
        }
        if best.ready <= 0.0 {
            return self.send(now, head, best.view);
        }
        let backlog = head.backlog.get() as f64 * 8.0;
        let sent = self.sent.rate(now);
        let helps = |c: &&Candidate<'_>| {
            let faster = candidates
                .iter()
                .flatten()
                .filter(|f| f.arrival < c.arrival);
            let rate = faster.map(|f| f.rate).sum::<f64>().max(1.0);
            let backlog_fraction = match sent > STAY_LOAD_RATIO * rate {
                true => self.tuning.backlog_fraction_to_stay,
                false => self.tuning.backlog_fraction,
            };
            let drain = backlog / rate;
            let gain = c.arrival - best.arrival;
            let cheaper = c.view.tier < best.view.tier;
            c.ready <= 0.0 && (cheaper || gain * backlog_fraction <= drain)
        };
        let helping = candidates.iter().flatten().filter(helps);
        match helping.min_by(|a, b| a.arrival.total_cmp(&b.arrival)) {
            Some(other) => self.send(now, head, other.view),
            None => wait(now, candidates),
        }
    }

    /// Sends a light load over one link, or waits a moment for it; none if the load is not light.
    fn one_link(
        &mut self,
        now: Time,
        head: &Head,
        candidates: &[Option<Candidate<'_>>],
    ) -> Option<Choice> {
        let cheapest = candidates.iter().flatten().map(|c| c.view.tier).min()?;
        let of_tier = || {
            let all = candidates.iter().flatten();
            all.filter(|c| c.view.tier == cheapest)
        };
        let size = self.tuning.light_transfer.get() as f64 * 8.0;
        let transfer = |c: &Candidate<'_>| c.arrival - c.ready + size / c.rate;
        let first = of_tier().min_by(|a, b| transfer(a).total_cmp(&transfer(b)))?;
        let near = transfer(first) + self.tuning.hysteresis.as_secs_f64();
        let link = of_tier()
            .find(|c| Some(c.view.id) == self.last && transfer(c) <= near)
            .unwrap_or(first);
        let wait_s = self.tuning.light_wait.as_secs_f64();
        let waits = head.backlog.get() as f64 * 8.0 / link.rate;
        let light = self.sent.rate(now) < self.tuning.light_load * link.rate && waits < wait_s;
        match light && link.ready < wait_s {
            true if link.ready <= 0.0 => Some(self.send(now, head, link.view)),
            true => Some(wait(now, &[Some(*link)])),
            false => None,
        }
    }

    /// Returns the dearest tier in use: the cheapest one, and further ones while those before have
    /// too much waiting.
    fn tier(&self, head: &Head, links: &[LinkView]) -> u8 {
        let usable = || links.iter().filter(|view| is_candidate(head, view));
        let mut tier = usable().map(|view| view.tier).min().unwrap_or(0);
        loop {
            let within = usable().filter(|view| view.tier <= tier);
            let rate: u64 = within.map(|view| view.rate.bits_per_sec()).sum();
            let behind = head.backlog.get() - head.len.get().min(head.backlog.get());
            let waits = behind as f64 * 8.0 / rate.max(1) as f64;
            let next = usable().map(|view| view.tier).filter(|t| *t > tier).min();
            match next {
                Some(next) if waits > self.tuning.overflow_after.as_secs_f64() => tier = next,
                _ => return tier,
            }
        }
    }
}

impl Scheduler for Adaptive {
    fn reorder_budget(&self) -> Option<Duration> {
        Some(self.tuning.reorder_budget)
    }

    fn choose(&mut self, now: Time, head: &Head, links: &[LinkView]) -> Choice {
        let tier = self.tier(head, links);
        let within = || {
            links
                .iter()
                .filter(|view| is_candidate(head, view) && view.tier <= tier)
        };
        let cheapest = within().map(|view| view.tier).min();
        let cheap = within().filter(|view| Some(view.tier) == cheapest);
        let fastest = cheap.map(|view| view.base).min().unwrap_or_default();
        let budget = self.tuning.reorder_budget;
        let fits = |view: &&LinkView| {
            view.base.over(fastest) <= budget && fastest.over(view.base) <= budget
        };
        let taking = || within().filter(fits);
        let Some(lowest) = taking().map(|view| view.delay).min() else {
            return Choice::Wait(None);
        };
        let mut all = [const { None }; MAX_LINKS];
        let count = taking().count().min(MAX_LINKS);
        for (slot, view) in all.iter_mut().zip(taking()) {
            let ready = view.ready.unwrap_or(now + REPORT_WAIT);
            let ready = ready.since(now).as_secs_f64();
            let rate = (view.rate.bits_per_sec() as f64).max(1.0);
            let wire = head.len.get() as f64 * 8.0 / rate;
            *slot = Some(Candidate {
                view,
                ready,
                arrival: ready + wire + view.delay.over(lowest).as_secs_f64(),
                rate,
            });
        }
        let candidates = &all[..count];
        let pinned = candidates
            .iter()
            .flatten()
            .find(|c| Some(c.view.id) == head.pin && head.class == Class::Pinned)
            .filter(|c| c.ready <= MAX_PIN_WAIT.as_secs_f64());
        match (head.class, pinned) {
            (_, Some(pin)) if pin.ready <= 0.0 => self.send(now, head, pin.view),
            (_, Some(pin)) => wait(now, &[Some(*pin)]),
            (Class::Unordered, _) => self.soonest(now, head, candidates),
            _ if head.except.is_some() => self.soonest(now, head, candidates),
            _ => self.earliest(now, head, candidates),
        }
    }
}

fn is_candidate(head: &Head, view: &LinkView) -> bool {
    view.usable && head.except != Some(view.id)
}

fn wait(now: Time, candidates: &[Option<Candidate<'_>>]) -> Choice {
    let ready = candidates.iter().flatten().filter_map(|c| c.view.ready);
    Choice::Wait(ready.filter(|ready| *ready > now).min())
}
