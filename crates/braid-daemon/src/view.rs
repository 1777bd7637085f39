//! From the engine's own terms to what the API answers.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use braid_balance::{Choice, Flow, FlowState, KernelTime, UplinkCounters};
use braid_core::UplinkId;

use crate::engine::Engine;
use crate::failure::Failure;
use crate::health::health;
use crate::report::{
    ExitReport, FlowCounts, FlowReport, FlowsReport, LayerName, StatusReport, UplinkReport,
    UplinkState, UplinksReport,
};
use crate::roster::Member;

impl Engine {
    /// Every uplink with its counters.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn uplinks(&self) -> Result<UplinksReport, Failure> {
        let counters: BTreeMap<UplinkId, UplinkCounters> =
            self.datapath.counters()?.uplinks.into_iter().collect();
        let members = self.roster.members().iter();
        let uplinks = members.map(|member| {
            let counters = counters.get(&member.id).copied().unwrap_or_default();
            uplink(member, &counters, self.classes.share_of(member.id))
        });
        Ok(UplinksReport {
            uplinks: uplinks.collect(),
        })
    }

    /// Everything at a glance.
    ///
    /// # Errors
    /// The datapath's tables cannot be read.
    pub fn status(&self) -> Result<StatusReport, Failure> {
        let counters = self.datapath.counters()?;
        let reasons = counters
            .reasons
            .iter()
            .map(|(name, n)| ((*name).to_owned(), *n));
        let mut flows = FlowCounts::default();
        for flow in self.datapath.flows()? {
            match flow.kept {
                true => flows.established += 1,
                false => flows.embryonic += 1,
            }
        }
        Ok(StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            policy: self.settings.config.policy,
            uplinks: self.uplinks()?.uplinks,
            flows,
            reasons: reasons.collect(),
            memory_bytes: self.datapath.memory()?.iter().map(|map| map.bytes).sum(),
            health: health(self),
        })
    }

    /// Every flow.
    ///
    /// # Errors
    /// The datapath's tables cannot be read.
    pub fn flows(&self) -> Result<FlowsReport, Failure> {
        let now = KernelTime::now();
        let name = |id: UplinkId| {
            let member = self.roster.members().iter().find(|member| member.id == id);
            member.map_or_else(
                || format!("uplink {id}"),
                |member| member.uplink.name.clone(),
            )
        };
        let flows = self.datapath.flows()?;
        Ok(FlowsReport {
            flows: flows.iter().map(|f| flow(f, name(f.uplink), now)).collect(),
        })
    }
}

fn uplink(member: &Member, counters: &UplinkCounters, share: f64) -> UplinkReport {
    let uplink = &member.uplink;
    UplinkReport {
        name: uplink.name.clone(),
        device: uplink.device.clone(),
        index: member.id.0,
        layer: match uplink.layer {
            braid_uplink::Layer::L2 => LayerName::L2,
            braid_uplink::Layer::L3 => LayerName::L3,
        },
        state: if member.down.is_none() {
            UplinkState::Up
        } else {
            UplinkState::Down
        },
        tier: 1,
        rtt_ms: None,
        loss: None,
        mtu: uplink.mtu,
        ipv4: uplink.v4.as_ref().map(exit),
        ipv6: uplink.v6.as_ref().map(exit),
        weight: member.weight.get(),
        share,
        tx_bytes: counters.tx.bytes,
        rx_bytes: counters.rx.bytes,
        tx_packets: counters.tx.packets,
        rx_packets: counters.rx.packets,
        flows_opened: counters.flows_opened,
        why: member.down.clone().unwrap_or_else(|| uplink.why.clone()),
    }
}

fn exit<A: Copy + Into<IpAddr>>(exit: &braid_uplink::Exit<A>) -> ExitReport<A> {
    ExitReport {
        address: exit.address,
        gateway: exit.gateway,
    }
}

fn flow(flow: &Flow, uplink: String, now: KernelTime) -> FlowReport {
    FlowReport {
        protocol: protocol(flow.protocol.0),
        inner: endpoint(&flow.inner),
        remote: flow.remote.as_ref().map(endpoint),
        outer: endpoint(&flow.outer),
        uplink,
        state: state(flow.state).to_owned(),
        age_ms: millis(now.since(flow.created)),
        idle_ms: millis(now.since(flow.last_seen)),
        tx_bytes: flow.tx.bytes,
        rx_bytes: flow.rx.bytes,
        tx_packets: flow.tx.packets,
        rx_packets: flow.rx.packets,
        came_from: None,
        why: why(flow.choice).to_owned(),
    }
}

/// Address and port; the address alone where there is no port.
fn endpoint(address: &SocketAddr) -> String {
    match address.port() {
        0 => address.ip().to_string(),
        _ => address.to_string(),
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Names of the protocols that the datapath carries (IANA protocol numbers).
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
        Choice::Sticky => "its client is there for the same site",
        Choice::Only => "its rule names this uplink",
        Choice::Moved => "moved, its uplink had died",
        Choice::Failback => "moved back to a better uplink",
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
