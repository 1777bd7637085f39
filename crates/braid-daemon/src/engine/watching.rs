//! Watching over the uplinks: what the datapath counts and what probes find goes to the lookout,
//! and what it concludes is acted upon.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use braid_balance::UplinkCounters;
use braid_core::{Rate, UplinkId};
use braid_uplink::liveness::{
    Look, Lookout, Outcome, ProbeAnswer, ProbeOrder, Sample, Verdict, VerdictChange, Watched,
};
use braid_uplink::probe::Prober;
use tokio::sync::mpsc::UnboundedSender;

use super::Engine;
use crate::bond::dropped;
use crate::classes::{Classes, Load};
use crate::events::EventKind;
use crate::roster::Member;
use crate::settings::Settings;
use crate::user_error::UserError;
use crate::watch_rules::watch_rules;

/// From one look at the counters to the next while anything moves: short against the time in which
/// silence is noticed.
const BUSY: Duration = Duration::from_millis(50);
/// The same on a machine at rest, which should sleep.
const IDLE: Duration = Duration::from_millis(250);
/// How long after the last packet a machine counts as at rest: people and programs pause.
const RESTLESS: Duration = Duration::from_secs(2);
/// What rates are measured over.
const METERED: Duration = Duration::from_secs(1);
/// Least time between two looks, whatever the lookout asks for.
const LEAST: Duration = Duration::from_millis(5);

/// What the engine needs to watch.
pub(super) struct Watching {
    pub lookout: Lookout,
    prober: Prober,
    looked: Instant,
    /// Packets of all uplinks at the last look, and when they last became more.
    packets: u64,
    moved: Instant,
    meters: BTreeMap<UplinkId, Meter>,
    metered: Instant,
}

/// What one uplink carried between two measurements.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    sent: u64,
    received: u64,
    tx: Rate,
    rx: Rate,
}

impl Watching {
    /// Answers to probes go to this channel, for [`Engine::hear`]. There is one for each probe that
    /// is under way, whose number the lookout bounds.
    pub fn new(answers: UnboundedSender<ProbeAnswer>) -> Watching {
        let now = Instant::now();
        Watching {
            lookout: Lookout::new(now),
            prober: Prober::new(answers),
            looked: now,
            packets: 0,
            moved: now,
            meters: BTreeMap::new(),
            metered: now,
        }
    }

    /// What an uplink carries, of the last second; `None` before there was one.
    pub fn load(&self, id: UplinkId, settings: &Settings, name: &str) -> Option<Load> {
        let meter = self.meters.get(&id)?;
        Some(Load {
            tx: meter.tx,
            rx: meter.rx,
            capacity: settings.capacity(name),
        })
    }

    /// Measures rates, once in [`METERED`]; `true`: they are new.
    fn measure(&mut self, now: Instant, counters: &[(UplinkId, UplinkCounters)]) -> bool {
        let passed = now.saturating_duration_since(self.metered);
        if passed < METERED {
            return false;
        }
        self.metered = now;
        let rate = |bytes: u64| {
            let bits = bytes as f64 * 8.0 / passed.as_secs_f64();
            Rate::from_bits_per_sec(bits as u64)
        };
        let before = std::mem::take(&mut self.meters);
        for (id, counters) in counters {
            let (sent, received) = (counters.tx.bytes, counters.rx.bytes);
            // The first measurement has nothing to compare with.
            let (tx, rx) = before.get(id).map_or_else(Default::default, |before| {
                (
                    rate(sent.saturating_sub(before.sent)),
                    rate(received.saturating_sub(before.received)),
                )
            });
            let meter = Meter {
                sent,
                received,
                tx,
                rx,
            };
            self.meters.insert(*id, meter);
        }
        true
    }

    fn pace(&self, now: Instant) -> Duration {
        match now.saturating_duration_since(self.moved) < RESTLESS {
            true => BUSY,
            false => IDLE,
        }
    }

    /// `overrun`: of one uplink, [`Sample::overrun`].
    fn note(
        &mut self,
        now: Instant,
        counters: &[(UplinkId, UplinkCounters)],
        overrun: Option<(UplinkId, u64)>,
    ) {
        let of = |counters: &UplinkCounters| counters.tx.packets + counters.rx.packets;
        let packets = counters.iter().map(|(_, counters)| of(counters)).sum();
        if self.packets != packets {
            self.packets = packets;
            self.moved = now;
        }
        let of = |(id, counters): &(UplinkId, UplinkCounters)| {
            let overrun = overrun.filter(|(of, _)| of == id);
            (
                *id,
                sample(counters, overrun.map_or(0, |(_, packets)| packets)),
            )
        };
        let samples: Vec<_> = counters.iter().map(of).collect();
        self.lookout.handle_traffic(now, &samples);
        self.lookout.handle_timeout(now);
    }
}

impl Engine {
    /// When [`Engine::tick`] is due.
    #[must_use]
    pub fn next_tick(&self) -> Instant {
        let watching = &self.watching;
        let regular = watching.looked + watching.pace(watching.looked);
        let asked = watching.lookout.poll_timeout().unwrap_or(regular);
        let next = regular.min(asked.max(watching.looked + LEAST));
        let grace = self.leaving.next(watching.looked);
        grace.map_or(next, |grace| grace.min(next))
    }

    /// Looks at the traffic and at the time, and acts on what follows from it.
    ///
    /// # Errors
    /// The counters cannot be read, or the kernel refused to follow a verdict.
    pub fn tick(&mut self) -> Result<(), UserError> {
        let now = Instant::now();
        let graced = self.leaving.next(self.watching.looked);
        self.watching.looked = now;
        let counters = self.datapath.uplink_counters()?;
        let overrun = self.bond_overrun();
        self.watching.note(now, &counters, overrun);
        self.attend()?;
        if graced.is_some_and(|until| until <= now) {
            self.follow_verdicts()?;
        }
        if !self.watching.measure(now, &counters) {
            return Ok(());
        }
        if self.note_quotas(&counters) || Classes::follows_load(&self.settings) {
            self.follow_verdicts()?;
        }
        self.tell_outlooks(now, &counters)
    }

    /// What the bond's device dropped since this machine did not take it in time. Where that cannot be read
    /// nothing is excused by it.
    fn bond_overrun(&self) -> Option<(UplinkId, u64)> {
        let bond = self.roster.members().iter().find(|m| m.is_bond())?;
        Some((bond.id, dropped(&bond.uplink.device).ok()?))
    }

    /// Takes note of how a probe fared, and acts on what follows from it.
    ///
    /// # Errors
    /// The kernel refused to follow a verdict.
    pub fn hear(&mut self, answer: ProbeAnswer) -> Result<(), UserError> {
        self.watching.lookout.handle_probe(Instant::now(), answer);
        self.attend()
    }

    /// How an uplink fares at this moment. What a member has is of its last verdict.
    pub(crate) fn look(&self, id: UplinkId) -> Option<Look> {
        self.watching.lookout.look(id)
    }

    /// Has the lookout watch the uplinks that there are now.
    pub(super) fn watch_members(&mut self) {
        let watched = |member: &Member| Watched {
            v4: member.uplink.v4.is_some(),
            v6: member.uplink.v6.is_some(),
            usable: member.down.is_none(),
            vouched: member.is_bond(),
            rules: watch_rules(&self.settings, &member.uplink.name),
        };
        let members = match self.settings.config.liveness.enabled {
            true => self.roster.members(),
            false => &[],
        };
        let uplinks: Vec<_> = members.iter().map(|m| (m.id, watched(m))).collect();
        let lookout = &mut self.watching.lookout;
        lookout.set_uplinks(Instant::now(), &uplinks);
        self.roster.judge(|id| lookout.look(id));
    }

    /// Sends what the lookout wants sent and follows its verdicts.
    pub(super) fn attend(&mut self) -> Result<(), UserError> {
        let now = Instant::now();
        while let Some(order) = self.watching.lookout.poll_transmit(now) {
            self.probe(order, now);
        }
        let mut changes = Vec::new();
        while let Some(change) = self.watching.lookout.poll_event() {
            changes.push(change);
        }
        if changes.is_empty() {
            return Ok(());
        }
        let lookout = &self.watching.lookout;
        self.roster.judge(|id| lookout.look(id));
        // First the deed, then the word: the log may be slow.
        let outcome = self.follow_verdicts();
        changes.iter().for_each(|change| self.tell_verdict(change));
        self.remember(&[]);
        outcome
    }

    fn probe(&mut self, order: ProbeOrder, now: Instant) {
        let watching = &mut self.watching;
        match self.roster.member(order.uplink) {
            Some(member) => watching.prober.send(order, &member.uplink),
            None => {
                let outcome = Outcome::NotSent {
                    why: "no such uplink".into(),
                };
                let (uplink, id) = (order.uplink, order.id);
                watching.lookout.handle_probe(
                    now,
                    ProbeAnswer {
                        uplink,
                        id,
                        outcome,
                    },
                );
            }
        }
    }

    fn tell_verdict(&mut self, change: &VerdictChange) {
        let Some(member) = self.roster.member(change.uplink) else {
            return;
        };
        let uplink = member.uplink.name.clone();
        let means = match change.to {
            Verdict::Dead | Verdict::Portal if self.roster.relieves(member) => {
                ": new flows take the other uplinks"
            }
            Verdict::Dead | Verdict::Portal => ": no other uplink works, new flows still take it",
            Verdict::Degraded => ": fewer new flows take it",
            Verdict::Up if change.from == change.to => match (change.ways.v4, change.ways.v6) {
                (true, false) if member.uplink.v6.is_some() => " for ipv4, not for ipv6",
                (false, true) if member.uplink.v4.is_some() => " for ipv6, not for ipv4",
                _ => " for both families",
            },
            Verdict::Up => ": new flows take it again",
        };
        let text = format!("{}{means}", change.to);
        let evidence = change.evidence.to_string();
        match change.to {
            Verdict::Dead | Verdict::Portal => tracing::warn!(uplink, text, evidence, "verdict"),
            _ => tracing::info!(uplink, text, evidence, "verdict"),
        }
        self.events
            .note(EventKind::Verdict, Some(&uplink), text, Some(evidence));
    }
}

fn sample(counters: &UplinkCounters, overrun: u64) -> Sample {
    Sample {
        sent: counters.tx.packets,
        received: counters.rx.packets,
        syns: counters.syns,
        syn_answers: counters.syn_answers,
        syn_repeats: counters.syn_repeats,
        repeats: counters.repeats,
        rtt_us_sum: counters.rtt_us_sum,
        rtt_samples: counters.rtt_samples,
        overrun,
    }
}
