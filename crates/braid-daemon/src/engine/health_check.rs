//! Health checks: feed the datapath's counters and the results of probes to the health monitor, and apply
//! its verdicts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use braid_balance::{ShapeCounters, UplinkCounters};
use braid_core::{Rate, UplinkId};
use braid_host::user_error::UserError;
use braid_uplink::liveness::{
    HealthMonitor, HealthSnapshot, MonitoredUplink, ProbeOutcome, ProbeRequest, ProbeResult,
    Sample, Verdict, VerdictChange,
};
use braid_uplink::probe::Prober;
use tokio::sync::mpsc::UnboundedSender;

use super::Engine;
use crate::bond::{LinkMeter, LinkTraffic, tun_drops};
use crate::classes::{Classes, Load};
use crate::events::EventKind;
use crate::uplinks::capacities::Capacities;
use crate::uplinks::link_quality::{LinkQualities, LinkQuality};
use crate::uplinks::liveness_rules::liveness_rules;
use crate::uplinks::registry::UplinkRecord;

/// Interval between samples of the counters while packets flow: short against the time in which silence is
/// noticed.
const BUSY_TICK: Duration = Duration::from_millis(50);
/// The same on an idle machine, which should sleep.
const IDLE_TICK: Duration = Duration::from_millis(250);
/// Time since the last packet after which a machine counts as idle: people and programs pause.
const IDLE_AFTER: Duration = Duration::from_secs(2);
/// Interval over which rates are measured, about.
const RATE_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest interval between two samples, whatever the monitor asks for.
const MIN_TICK: Duration = Duration::from_millis(5);

/// State of the health checks.
pub(super) struct HealthChecks {
    pub monitor: HealthMonitor,
    prober: Prober,
    looked: Instant,
    /// Packets of all uplinks at the last sample, and the time at which they last increased.
    packets: u64,
    moved: Instant,
    meters: BTreeMap<UplinkId, Meter>,
    metered: Instant,
    /// When rates are to be measured again.
    meter_due: Instant,
    pub capacities: Capacities,
    qualities: LinkQualities,
    link_meter: LinkMeter,
    /// Rates of a bond's links over their uplinks.
    link_traffic: Vec<(UplinkId, LinkTraffic)>,
}

/// Traffic of one uplink between two measurements.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    sent: u64,
    received: u64,
    tx: Rate,
    rx: Rate,
}

impl HealthChecks {
    /// Results of probes go to this channel, for [`Engine::handle_probe_result`]. There is one for each probe
    /// in flight; the monitor limits their number.
    pub fn new(answers: UnboundedSender<ProbeResult>) -> HealthChecks {
        let now = Instant::now();
        HealthChecks {
            monitor: HealthMonitor::new(now),
            prober: Prober::new(answers),
            looked: now,
            packets: 0,
            moved: now,
            meters: BTreeMap::new(),
            metered: now,
            meter_due: now + until_next_second(SystemTime::now()),
            capacities: Capacities::new(now),
            qualities: LinkQualities::default(),
            link_meter: LinkMeter::default(),
            link_traffic: Vec::new(),
        }
    }

    /// Returns the load of an uplink by its flows over the last second; `None` before the first measurement.
    pub fn load(&self, id: UplinkId) -> Option<Load> {
        let meter = self.meters.get(&id)?;
        let now = Instant::now();
        Some(Load {
            tx: meter.tx,
            rx: meter.rx,
            measured: self.capacities.measured(now, id),
            at_least: self.capacities.at_least(now, id),
            stall: self.capacities.stall(id),
        })
    }

    /// Returns the load of an uplink as its line has it: with what a bond carries over it now, which
    /// [`HealthChecks::load`] has as the bond's.
    pub fn line_load(&self, id: UplinkId) -> Option<Load> {
        let flows = self.load(id)?;
        let links = self.link_traffic.iter().filter(|(other, _)| *other == id);
        let plus = |rate: Rate, bits| Rate::from_bits_per_sec(rate.bits_per_sec() + bits);
        let with_link = |load: Load, (_, link): &(UplinkId, LinkTraffic)| Load {
            tx: plus(load.tx, link.tx.bits_per_sec()),
            rx: plus(load.rx, link.rx.bits_per_sec()),
            ..load
        };
        Some(links.fold(flows, with_link))
    }

    /// Returns true if an uplink had a queue in the last second.
    pub fn had_queue(&self, id: UplinkId) -> bool {
        let now = Instant::now();
        self.capacities.had_queue(now, id, Duration::from_secs(1))
    }

    /// Measures rates, once in each second of the system's clock, which says `clock` now. Returns true if they are new.
    fn measure(
        &mut self,
        now: Instant,
        clock: SystemTime,
        counters: &[(UplinkId, UplinkCounters)],
    ) -> bool {
        if now < self.meter_due {
            return false;
        }
        let passed = now.saturating_duration_since(self.metered);
        self.metered = now;
        self.meter_due = now + until_next_second(clock);
        let rate = |bytes: u64| {
            let bits = bytes as f64 * 8.0 / passed.as_secs_f64();
            Rate::from_bits_per_sec(bits as u64)
        };
        let before = std::mem::take(&mut self.meters);
        for (id, counters) in counters {
            let (sent, received) = (counters.tx.bytes, counters.rx.bytes);
            // The first measurement has no reference.
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
        match now.saturating_duration_since(self.moved) < IDLE_AFTER {
            true => BUSY_TICK,
            false => IDLE_TICK,
        }
    }

    /// `prompt` has packets sent and received where the counters are late, and `local_drops` is
    /// [`Sample::local_drops`] of one uplink. Capacities are measured by `line`. Returns the interval of the capacities that has ended.
    fn note(
        &mut self,
        now: Instant,
        counters: &[(UplinkId, UplinkCounters)],
        prompt: &BTreeMap<UplinkId, [u64; 2]>,
        local_drops: Option<(UplinkId, u64)>,
        line: &[(UplinkId, UplinkCounters)],
        shaped: &[(UplinkId, [ShapeCounters; 2])],
    ) -> Option<Duration> {
        let of = |(id, counters): &(UplinkId, UplinkCounters)| {
            let local_drops = local_drops.filter(|(of, _)| of == id);
            let known = sample(counters, local_drops.map_or(0, |(_, packets)| packets));
            let [sent, received] = *prompt.get(id).unwrap_or(&[known.sent, known.received]);
            let sample = Sample {
                sent,
                received,
                ..known
            };
            (*id, sample)
        };
        let samples: Vec<_> = counters.iter().map(of).collect();
        let packets = samples.iter().map(|(_, of)| of.sent + of.received).sum();
        if self.packets != packets {
            self.packets = packets;
            self.moved = now;
        }
        let ended = self.capacities.note(now, line, shaped, &self.link_traffic);
        if ended.is_some() {
            self.qualities.note(now, counters, line);
        }
        self.monitor.handle_traffic(now, &samples);
        self.monitor.handle_timeout(now);
        ended
    }
}

impl Engine {
    /// Returns the time of the next [`Engine::tick`].
    #[must_use]
    pub fn next_tick(&self) -> Instant {
        let health_checks = &self.health_checks;
        let regular = health_checks.looked + health_checks.pace(health_checks.looked);
        let asked = health_checks.monitor.poll_timeout().unwrap_or(regular);
        let next = regular.min(asked.max(health_checks.looked + MIN_TICK));
        let grace = self.failover.next(health_checks.looked);
        grace.map_or(next, |grace| grace.min(next))
    }

    /// Samples the counters, advances the timers, and acts on the results.
    ///
    /// # Errors
    /// The counters cannot be read, or the kernel refused to follow a verdict.
    pub fn tick(&mut self) -> Result<(), UserError> {
        let now = Instant::now();
        let graced = self.failover.next(self.health_checks.looked);
        self.health_checks.looked = now;
        let counters = self.datapath.uplink_counters()?;
        let prompt = self.datapath.prompt_packets();
        let local_drops = self.bond_drops();
        let (mut line, mut shaped) = (counters.clone(), Vec::new());
        if self.health_checks.capacities.is_due(now) {
            let better = self.datapath.line_counters();
            line.iter_mut()
                .for_each(|(id, known)| *known = *better.get(id).unwrap_or(known));
            shaped = self.shape_counters()?;
            self.health_checks.link_traffic = self.link_traffic();
        }
        let health_checks = &mut self.health_checks;
        let ended = health_checks.note(now, &counters, &prompt, local_drops, &line, &shaped);
        if let Some(span) = ended {
            self.adjust_shaping(now, span, &shaped)?;
        }
        self.poll_monitor()?;
        if graced.is_some_and(|until| until <= now) {
            self.follow_verdicts()?;
        }
        let stalls_changed = self.health_checks.capacities.take_stall_change();
        if !self
            .health_checks
            .measure(now, SystemTime::now(), &counters)
        {
            return match stalls_changed {
                true => self.follow_stalls(now, &counters),
                false => Ok(()),
            };
        }
        self.indicate_disruptions(now)?;
        self.note_history();
        if self.note_quotas(&counters) || Classes::follows_load(&self.settings) {
            self.follow_verdicts()?;
        }
        self.update_forecasts(now, &counters)?;
        self.follow_losses()
    }

    /// Has new flows avoid an uplink that begins to stall, and return to one that has ceased to, without waiting for
    /// the next measurement.
    fn follow_stalls(
        &mut self,
        now: Instant,
        counters: &[(UplinkId, UplinkCounters)],
    ) -> Result<(), UserError> {
        if !Classes::follows_load(&self.settings) {
            return Ok(());
        }
        self.follow_verdicts()?;
        self.update_forecasts(now, counters)
    }

    /// Tells the servers of connections that a stall has cut off, once a second: they wait for up to the length of the
    /// stall after its end.
    fn indicate_disruptions(&mut self, now: Instant) -> Result<(), UserError> {
        for record in self.registry.records() {
            let Some(span) = self.health_checks.capacities.disruption(now, record.id) else {
                continue;
            };
            let told = self.datapath.indicate_disruption(record.id, span)?;
            tracing::debug!(
                uplink = record.uplink.name,
                told,
                "servers are told of a stall"
            );
        }
        Ok(())
    }

    /// Returns what the bond's links carry over their uplinks.
    fn link_traffic(&mut self) -> Vec<(UplinkId, LinkTraffic)> {
        let traffic = self.bond.link_traffic(&mut self.health_checks.link_meter);
        let records = self.registry.records();
        let of_uplink = |(name, traffic): (&str, LinkTraffic)| {
            let record = records.iter().find(|record| record.uplink.name == name)?;
            Some((record.id, traffic))
        };
        traffic.into_iter().filter_map(of_uplink).collect()
    }

    /// Returns the bond and the count of packets that its device dropped because this machine did not read them in
    /// time. The monitor takes no burst during which this count grows as proof of a death. None if the count
    /// cannot be read: bursts count then.
    fn bond_drops(&self) -> Option<(UplinkId, u64)> {
        let bond = self.registry.records().iter().find(|m| m.is_bond())?;
        Some((bond.id, tun_drops(&bond.uplink.device).ok()?))
    }

    /// Takes the result of a probe and acts on it.
    ///
    /// # Errors
    /// The kernel refused to follow a verdict.
    pub fn handle_probe_result(&mut self, answer: ProbeResult) -> Result<(), UserError> {
        self.health_checks
            .monitor
            .handle_probe(Instant::now(), answer);
        self.poll_monitor()
    }

    /// Returns the current health of an uplink; its registry record has that of the last verdict.
    pub(crate) fn health_snapshot(&self, id: UplinkId) -> Option<HealthSnapshot> {
        self.health_checks.monitor.snapshot(id)
    }

    /// Returns the quality of an uplink by its traffic and these probes of it.
    pub(crate) fn link_quality(&self, id: UplinkId, probes: &HealthSnapshot) -> LinkQuality {
        self.health_checks.qualities.of(Instant::now(), id, probes)
    }

    /// Returns the measured capacities.
    pub(crate) fn capacities(&self) -> &Capacities {
        &self.health_checks.capacities
    }

    /// Returns the load of an uplink over the last second; `None` before the first measurement.
    pub(crate) fn load_of(&self, id: UplinkId) -> Option<Load> {
        self.health_checks.load(id)
    }

    /// Updates the monitor's list of uplinks.
    pub(super) fn watch_records(&mut self) {
        let watched = |record: &UplinkRecord| MonitoredUplink {
            v4: record.uplink.v4.is_some(),
            v6: record.uplink.v6.is_some(),
            usable: record.down.is_none(),
            self_reported: record.is_bond(),
            rules: liveness_rules(&self.settings, &record.uplink.name),
        };
        let records = match self.settings.config.liveness.enabled {
            true => self.registry.records(),
            false => &[],
        };
        let uplinks: Vec<_> = records.iter().map(|m| (m.id, watched(m))).collect();
        let monitor = &mut self.health_checks.monitor;
        monitor.set_uplinks(Instant::now(), &uplinks);
        self.registry.judge(|id| monitor.snapshot(id));
    }

    /// Sends the probes that the monitor wants sent and applies its verdicts.
    pub(super) fn poll_monitor(&mut self) -> Result<(), UserError> {
        let now = Instant::now();
        while let Some(request) = self.health_checks.monitor.poll_transmit(now) {
            self.probe(request, now);
        }
        let mut changes = Vec::new();
        while let Some(change) = self.health_checks.monitor.poll_event() {
            changes.push(change);
        }
        if changes.is_empty() {
            return Ok(());
        }
        let monitor = &self.health_checks.monitor;
        self.registry.judge(|id| monitor.snapshot(id));
        // Apply first, log afterwards: the log may be slow.
        let outcome = self.follow_verdicts();
        changes.iter().for_each(|change| self.log_verdict(change));
        self.remember(&[]);
        outcome
    }

    fn probe(&mut self, request: ProbeRequest, now: Instant) {
        let health_checks = &mut self.health_checks;
        match self.registry.record(request.uplink) {
            Some(record) => health_checks.prober.send(request, &record.uplink),
            None => {
                let outcome = ProbeOutcome::NotSent {
                    why: "no such uplink".into(),
                };
                let (uplink, id) = (request.uplink, request.id);
                health_checks.monitor.handle_probe(
                    now,
                    ProbeResult {
                        uplink,
                        id,
                        outcome,
                    },
                );
            }
        }
    }

    fn log_verdict(&mut self, change: &VerdictChange) {
        let Some(record) = self.registry.record(change.uplink) else {
            return;
        };
        let uplink = record.uplink.name.clone();
        let means = match change.to {
            _ if record.pause.is_some() => ": it is paused",
            Verdict::Dead | Verdict::Portal if self.registry.has_alternative(record) => {
                ": new flows take the other uplinks"
            }
            Verdict::Dead | Verdict::Portal => ": no other uplink works, new flows still take it",
            Verdict::Degraded => ": fewer new flows take it",
            Verdict::Up if change.from == change.to => {
                match (change.families.v4, change.families.v6) {
                    (true, false) if record.uplink.v6.is_some() => " for ipv4, not for ipv6",
                    (false, true) if record.uplink.v4.is_some() => " for ipv6, not for ipv4",
                    _ => " for both families",
                }
            }
            Verdict::Up => ": new flows take it again",
        };
        let text = format!("{}{means}", change.to);
        let evidence = change.evidence.to_string();
        match change.to {
            Verdict::Dead | Verdict::Portal if record.pause.is_none() => {
                tracing::warn!(uplink, text, evidence, "verdict");
            }
            _ => tracing::info!(uplink, text, evidence, "verdict"),
        }
        self.events
            .note(EventKind::Verdict, Some(&uplink), text, Some(evidence));
    }
}

fn sample(counters: &UplinkCounters, local_drops: u64) -> Sample {
    Sample {
        sent: counters.tx.packets,
        received: counters.rx.packets,
        syns: counters.syns,
        syn_answers: counters.syn_answers,
        syn_repeats: counters.syn_repeats,
        repeats: counters.repeats,
        rtt_us_sum: counters.rtt_us_sum,
        rtt_samples: counters.rtt_samples,
        local_drops,
    }
}

/// Returns the time until the middle of the next second. A tick may be late by a part of a second, and history has a record
/// of each.
fn until_next_second(clock: SystemTime) -> Duration {
    let since = clock.duration_since(UNIX_EPOCH).unwrap_or_default();
    RATE_INTERVAL * 3 / 2 - Duration::from_nanos(since.subsec_nanos().into())
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    /// With a measurement one second after the last, or as much later as the tick then is, one second of 24 had none.
    #[test]
    fn each_second_of_the_clock_has_a_measurement() {
        for begins in [0, 250, 499, 500, 501, 990] {
            let mut checks = HealthChecks::new(unbounded_channel().0);
            let clock = UNIX_EPOCH + Duration::from_secs(1_000_000) + Duration::from_millis(begins);
            let start = Instant::now();
            checks.meter_due = start + until_next_second(clock);
            let mut seconds = Vec::new();
            for tick in 0..2_000 {
                let passed = Duration::from_micros(52_300) * tick;
                if checks.measure(start + passed, clock + passed, &[]) {
                    let since = (clock + passed).duration_since(UNIX_EPOCH);
                    seconds.push(since.expect("a time after it").as_secs());
                }
            }
            assert!(seconds.len() > 100, "{} seconds", seconds.len());
            assert!(
                seconds.windows(2).all(|pair| pair[1] == pair[0] + 1),
                "from {begins} ms on: {seconds:?}"
            );
        }
    }
}
