//! Builds the API's reports from the engine's state.

mod explain;
mod path_cache;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use braid_balance::{Choice, Flow, FlowState, KernelTime, ShapeCounters, UplinkCounters};
use braid_core::capacity::{CapacityBasis, CapacityEstimate};
use braid_core::{Rate, Share, UplinkId};
use braid_host::user_error::UserError;
use braid_uplink::liveness::{Cause, Verdict};

use crate::classes::gives_flows;
use crate::engine::Engine;
use crate::events::unix_ms;
use crate::health_problems::health_problems;
use crate::report::{
    BondReport, CapacityBasisName, CapacityReport, FlowCounts, FlowReport, FlowsQuestion,
    FlowsReport, KnownReport, LayerName, NextHopReport, Pause, QualityBasisName, ShapingReport,
    SnapshotReport, StatusReport, UplinkReport, UplinkState, UplinksReport,
};
use crate::uplinks::link_quality::{Known, QualityBasis};
use crate::uplinks::registry::{FAMILIES, UplinkRecord};

impl Engine {
    /// Returns every uplink with its counters.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn uplinks(&self) -> Result<UplinksReport, UserError> {
        let counters: BTreeMap<UplinkId, UplinkCounters> =
            self.datapath.counters()?.uplinks.into_iter().collect();
        let records = self.registry.records().iter();
        let uplinks = records.map(|record| {
            let counters = counters.get(&record.id).copied().unwrap_or_default();
            self.uplink(record, &counters)
        });
        Ok(UplinksReport {
            uplinks: uplinks.collect(),
        })
    }

    /// Returns the shaping of what is sent and of what is received; `None` if the uplink is not shaped.
    fn shaping(&self, id: UplinkId) -> Option<[ShapingReport; 2]> {
        let (entry, counters) = self.shapers.of(id)?;
        let report = |rate: Option<Rate>, counters: &ShapeCounters| ShapingReport {
            rate_bit_s: rate.map(Rate::bits_per_sec),
            dropped_packets: counters.dropped.packets,
            marked_packets: counters.marked_packets,
        };
        let [tx, rx] = &counters;
        Some([report(entry.tx, tx), report(entry.rx, rx)])
    }

    fn uplink(&self, record: &UplinkRecord, counters: &UplinkCounters) -> UplinkReport {
        let uplink = &record.uplink;
        let look = self
            .health_snapshot(record.id)
            .filter(|_| record.down.is_none());
        let (state, why) = self.uplink_state(record);
        let pause = record.pause.clone();
        let quota = self.quota_of(&uplink.name);
        let (now, capacities, load) = (Instant::now(), self.capacities(), self.load_of(record.id));
        let shaping = self.shaping(record.id);
        let quality = look
            .as_ref()
            .map(|look| self.link_quality(record.id, look))
            .unwrap_or_default();
        UplinkReport {
            name: uplink.name.clone(),
            device: uplink.device.clone(),
            id: record.id.0,
            layer: match uplink.layer {
                braid_uplink::Layer::L2 => LayerName::L2,
                braid_uplink::Layer::L3 => LayerName::L3,
            },
            state,
            tier: self.settings.tier(&uplink.name),
            rtt_ms: quality.rtt.map(|known| milliseconds(known.value)),
            rtt_known: quality.rtt.map(|known| evidence(now, &known)),
            jitter_ms: quality.jitter.map(|known| milliseconds(known.value)),
            jitter_known: quality.jitter.map(|known| evidence(now, &known)),
            loss: quality.loss.map(|known| known.value.fraction()),
            loss_known: quality.loss.map(|known| evidence(now, &known)),
            sends_twice: self
                .applied_tables()
                .is_some_and(|tables| tables.sends_twice(record.id)),
            probe_rtt_ms: look.as_ref().and_then(|look| look.rtt).map(milliseconds),
            probe_loss: look.and_then(|look| look.loss).map(Share::fraction),
            mtu: uplink.mtu,
            ipv4: uplink.v4.as_ref().map(next_hop),
            ipv6: uplink.v6.as_ref().map(next_hop),
            weight: record.weight.get(),
            tx_bit_s: load.map(|load| load.tx.bits_per_sec()),
            rx_bit_s: load.map(|load| load.rx.bits_per_sec()),
            tx_capacity: capacity(
                capacities.tx(now, record.id),
                capacities.other_tx(now, record.id),
            ),
            rx_capacity: capacity(
                capacities.rx(now, record.id),
                capacities.other_rx(now, record.id),
            ),
            tx_shaping: shaping.as_ref().map(|[tx, _]| tx.clone()),
            rx_shaping: shaping.map(|[_, rx]| rx),
            share: self
                .applied_tables()
                .map_or(0.0, |tables| tables.share_of(record.id)),
            tx_bytes: counters.tx.bytes,
            rx_bytes: counters.rx.bytes,
            tx_packets: counters.tx.packets,
            rx_packets: counters.rx.packets,
            flows_opened: counters.flows_opened,
            quota_used_bytes: quota.map(|(used, _)| used),
            quota_bytes: quota.map(|(_, quota)| quota),
            data_packets: counters.data_packets,
            lost_packets: counters.lost,
            since_unix_ms: match &pause {
                Some(pause) => Some(pause.since_unix_ms),
                None => self.events.last_change(&uplink.name),
            },
            pause,
            why,
        }
    }

    /// Returns an uplink's state and the evidence for it.
    pub(crate) fn uplink_state(&self, record: &UplinkRecord) -> (UplinkState, String) {
        if let Some(pause) = &record.pause {
            return (UplinkState::Paused, self.why_paused(record, pause));
        }
        if let Some(why) = &record.down {
            return (UplinkState::Down, why.clone());
        }
        let evidence = record.health.as_ref().map(|look| &look.evidence);
        let said = evidence.filter(|evidence| evidence.cause != Cause::New);
        let known = said.map_or_else(|| record.uplink.why.clone(), ToString::to_string);
        let state = match record.verdict() {
            Verdict::Dead => UplinkState::Dead,
            Verdict::Portal => UplinkState::Portal,
            verdict if !self.takes_new_flows(record) => {
                return (UplinkState::Standby, self.why_standby(record, verdict));
            }
            Verdict::Degraded => UplinkState::Degraded,
            Verdict::Up => {
                let why = match said {
                    None => known,
                    Some(evidence) => format!("{}; {evidence}", record.uplink.why),
                };
                return (UplinkState::Up, why);
            }
        };
        let last_resort = !state.takes_new_flows() && self.takes_new_flows(record);
        let why = match last_resort {
            true => format!("{known}; used all the same, there is no better one"),
            false => known,
        };
        (state, why)
    }

    fn why_paused(&self, record: &UplinkRecord, pause: &Pause) -> String {
        let pause = pause.in_words(unix_ms(SystemTime::now()));
        let evidence = record.health.as_ref().map(|look| &look.evidence);
        let known = match (&record.down, evidence) {
            (Some(why), _) => format!("; its device: {why}"),
            (None, Some(evidence)) if evidence.cause != Cause::New => format!("; {evidence}"),
            (None, _) => String::new(),
        };
        let used = match self.takes_new_flows(record) {
            true => "; used all the same, no other uplink works",
            false => "",
        };
        format!("{pause}{known}{used}")
    }

    /// Returns true if the datapath puts new flows on it. An uplink that is new or back waits until it is set up.
    fn takes_new_flows(&self, record: &UplinkRecord) -> bool {
        self.applied_tables()
            .is_some_and(|tables| tables.takes_new_flows(record.id))
    }

    fn why_standby(&self, record: &UplinkRecord, verdict: Verdict) -> String {
        let mut classes = self.classes.entries().iter();
        if classes.any(|class| gives_flows(class, record.id)) {
            return match &self.incidents.reconcile_error {
                Some(failure) => format!("works, and is not set up yet: {failure}"),
                None => "works, and is being set up".to_owned(),
            };
        }
        let statuses = self.statuses();
        let mut waiting = self.classes.waiting(&statuses);
        if waiting.any(|status| status.id == record.id) {
            return "works again and waits, since failback is never: braid failback".to_owned();
        }
        if record.is_bond() {
            return "no flows are sent there: flows = \"ruled\", and no rule that says so"
                .to_owned();
        }
        if self.is_spent(&record.uplink.name) {
            return "its quota is used up".to_owned();
        }
        let tier = self.settings.tier(&record.uplink.name);
        match verdict {
            Verdict::Degraded => format!("tier {tier}, and works badly"),
            _ if FAMILIES.into_iter().any(|family| record.works(family)) => {
                format!("tier {tier}: uplinks of a lower one are preferred")
            }
            _ => "no family of addresses works on it".to_owned(),
        }
    }

    /// Returns an uplink's state with its evidence, in words.
    fn evidence(&self, id: UplinkId) -> String {
        let Some(record) = self.registry.record(id) else {
            return "not known any more".to_owned();
        };
        let (state, mut why) = self.uplink_state(record);
        if record.is_bond() {
            let links = self.bond.report(self.settings.config.bond).links;
            let links = links.iter().map(|link| {
                let (name, state) = (&link.uplink, link.state.as_str());
                format!("; {name} {state}: {}", link.why)
            });
            why.extend(links);
        }
        let rtt = self.health_snapshot(id).and_then(|look| look.rtt);
        match rtt {
            Some(rtt) if state.takes_new_flows() => {
                format!(
                    "{}, rtt {:.1} ms; {why}",
                    state.as_str(),
                    rtt.as_secs_f64() * 1e3
                )
            }
            _ => format!("{}: {why}", state.as_str()),
        }
    }

    /// Returns an overview.
    ///
    /// # Errors
    /// The datapath's tables cannot be read.
    pub fn status(&self) -> Result<StatusReport, UserError> {
        let counters = self.datapath.counters()?;
        let reasons = counters
            .reasons
            .iter()
            .map(|(name, n)| ((*name).to_owned(), *n));
        Ok(StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            policy: self.settings.config.policy,
            uplinks: self.uplinks()?.uplinks,
            bond: self.joined_bond(),
            flows: self.flow_counts()?,
            reasons: reasons.collect(),
            memory_bytes: self.datapath.memory()?.iter().map(|map| map.bytes).sum(),
            paused_rules: self
                .rules_report()
                .rules
                .into_iter()
                .filter(|rule| rule.paused.is_some())
                .collect(),
            health: health_problems(self),
        })
    }

    /// Returns the state of the bond.
    ///
    /// # Errors
    /// None; the type is that of the other queries.
    pub fn bond_report(&self) -> Result<BondReport, UserError> {
        Ok(self.bond.report(self.settings.config.bond))
    }

    /// Returns the flow table, read at most once a second if reading is slow.
    fn cached_flows(&self) -> Result<Rc<Vec<Flow>>, UserError> {
        let read = || self.datapath.flows();
        self.cached_flows.get_or_read(Instant::now, read)
    }

    /// Returns the state of now for the stream; `up` is the time since the start.
    ///
    /// # Errors
    /// The datapath's tables cannot be read.
    pub fn snapshot(&self, up: Duration) -> Result<SnapshotReport, UserError> {
        Ok(SnapshotReport {
            up_ms: millis(up),
            unix_ms: unix_ms(SystemTime::now()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            policy: self.settings.config.policy,
            uplinks: self.uplinks()?.uplinks,
            bond: self.joined_bond(),
            // Counting them means to read the whole table.
            flows: match self.swept_flows {
                Some(counts) => counts,
                None => self.flow_counts()?,
            },
            health: health_problems(self),
        })
    }

    fn joined_bond(&self) -> Option<BondReport> {
        let joined = self.bond.is_joined();
        joined.then(|| self.bond.report(self.settings.config.bond))
    }

    fn flow_counts(&self) -> Result<FlowCounts, UserError> {
        let mut counts = FlowCounts::default();
        for flow in self.cached_flows()?.iter() {
            match flow.assured {
                true => counts.established += 1,
                false => counts.embryonic += 1,
            }
        }
        Ok(counts)
    }

    /// Returns the flows that are asked for.
    ///
    /// # Errors
    /// The datapath's tables cannot be read.
    pub fn flows(&self, question: &FlowsQuestion) -> Result<FlowsReport, UserError> {
        let now = KernelTime::now();
        let flows = self.cached_flows()?;
        let wanted = |flow: &&Flow| {
            let uplink = question.uplink.as_ref();
            uplink.is_none_or(|uplink| self.name_of(flow.uplink) == *uplink)
        };
        let mut found: Vec<&Flow> = flows.iter().filter(wanted).collect();
        if let Some(text) = question.find.as_ref().filter(|text| !text.is_empty()) {
            let text = text.to_lowercase();
            found.retain(|flow| self.flow(flow, now).mentions(&text));
        }
        let matching = found.len();
        if let Some(limit) = question.limit {
            found.sort_by_key(|flow| Reverse(flow.tx.bytes + flow.rx.bytes));
            found.truncate(limit);
        }
        Ok(FlowsReport {
            flows: found.iter().map(|flow| self.flow(flow, now)).collect(),
            matching,
        })
    }

    fn flow(&self, flow: &Flow, now: KernelTime) -> FlowReport {
        let rule = flow.rule.and_then(|entry| self.rules.name_of(entry));
        let record = self.registry.record(flow.uplink);
        let stays = match record.is_some_and(|record| record.pause.is_some()) {
            true => "; its uplink is paused, and it stays until it ends",
            false => "",
        };
        FlowReport {
            protocol: protocol(flow.protocol.0),
            inner: endpoint(&flow.inner),
            remote: flow.remote.as_ref().map(endpoint),
            outer: endpoint(&flow.outer),
            uplink: self.name_of(flow.uplink),
            state: state(flow.state).to_owned(),
            age_ms: millis(now.since(flow.created)),
            idle_ms: millis(now.since(flow.last_seen)),
            tx_bytes: flow.tx.bytes,
            rx_bytes: flow.rx.bytes,
            tx_packets: flow.tx.packets,
            rx_packets: flow.rx.packets,
            previous_uplink: flow.came_from.map(|id| self.name_of(id)),
            why: match rule {
                None => format!("{}{stays}", why(flow.choice)),
                Some(rule) => format!("rule {rule}: {}{stays}", why(flow.choice)),
            },
        }
    }

    fn name_of(&self, id: UplinkId) -> String {
        let record = self.registry.record(id);
        record.map_or_else(
            || format!("uplink {id}"),
            |record| record.uplink.name.clone(),
        )
    }
}

/// Returns the report of a capacity and of what the other method knows of it.
fn capacity(
    found: Option<CapacityEstimate>,
    other: Option<CapacityEstimate>,
) -> Option<CapacityReport> {
    let found = found?;
    Some(CapacityReport {
        rate_bit_s: found.rate.bits_per_sec(),
        basis: basis_name(found.basis),
        error: found.error,
        age_ms: millis(found.age),
        other: capacity(other, None).map(Box::new),
    })
}

fn milliseconds(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// Returns the report of the evidence for a value.
fn evidence<T>(now: Instant, known: &Known<T>) -> KnownReport {
    KnownReport {
        basis: quality_basis_name(known.basis),
        age_ms: millis(now.saturating_duration_since(known.at)),
    }
}

/// Returns the name of a basis in JSON.
pub(crate) fn quality_basis_name(basis: QualityBasis) -> QualityBasisName {
    match basis {
        QualityBasis::Traffic => QualityBasisName::Traffic,
        QualityBasis::Probes => QualityBasisName::Probes,
    }
}

/// Returns the name of a basis in JSON.
pub(crate) fn basis_name(basis: CapacityBasis) -> CapacityBasisName {
    match basis {
        CapacityBasis::Saturated => CapacityBasisName::Saturated,
        CapacityBasis::AtLeast => CapacityBasisName::AtLeast,
        CapacityBasis::Transfer => CapacityBasisName::Transfer,
        CapacityBasis::Dispersion => CapacityBasisName::Dispersion,
    }
}

fn next_hop<A: Copy + Into<IpAddr>>(next_hop: &braid_uplink::NextHop<A>) -> NextHopReport<A> {
    NextHopReport {
        address: next_hop.address,
        gateway: next_hop.gateway,
    }
}

/// Formats address and port; only the address if there is no port.
fn endpoint(address: &SocketAddr) -> String {
    match address.port() {
        0 => address.ip().to_string(),
        _ => address.to_string(),
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the name of a protocol that the datapath carries (IANA protocol numbers).
fn protocol(number: u8) -> String {
    match number {
        1 => "icmp",
        4 => "ipip",
        6 => "tcp",
        17 => "udp",
        41 => "ipv6",
        47 => "gre",
        50 => "esp",
        58 => "icmpv6",
        132 => "sctp",
        other => return other.to_string(),
    }
    .to_owned()
}

fn state(state: FlowState) -> &'static str {
    match state {
        FlowState::New => "new",
        FlowState::Answered => "answered",
        FlowState::Established => "established",
        FlowState::FinWait => "fin_wait",
        FlowState::Closing => "closing",
        FlowState::Reset => "reset",
    }
}

fn why(choice: Choice) -> &'static str {
    match choice {
        Choice::NextSlot => "next slot",
        Choice::HashSource => "hash of source",
        Choice::HashPair => "hash of source and destination",
        Choice::NextUsable => "its slot's uplink could not take it",
        Choice::Midstream => "seen in mid-stream, hash of source and destination",
        Choice::Group => "hash of both ends in the switch",
        Choice::Sticky => "its client is there for the same site",
        Choice::Only => "its rule names this uplink",
        Choice::Moved => "moved, its uplink took no flows any more",
        Choice::Failback => "moved back to a better uplink",
        Choice::Raced => "won the race",
        Choice::Remembered => "shortest remembered round trip",
        Choice::Predicted => "shortest predicted transfer",
        Choice::Preferred => "the bond",
        Choice::OnLink => "its destination is on the uplink's own link",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_without_port_is_its_address() {
        let text = |address: &str| endpoint(&address.parse().unwrap());
        assert_eq!(text("198.51.100.1:443"), "198.51.100.1:443");
        assert_eq!(text("198.51.100.1:0"), "198.51.100.1");
        assert_eq!(text("[2001:db8::1]:53"), "[2001:db8::1]:53");
        assert_eq!(text("[2001:db8::1]:0"), "2001:db8::1");
    }
}
