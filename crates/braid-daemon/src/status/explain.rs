//! Collects the engine's state for [`explain`].

use std::net::{IpAddr, SocketAddr};

use braid_balance::{Flow, KernelTime};
use braid_bond::io::FlowLinks;
use braid_core::{Bytes, Prefix, UplinkId};
use braid_host::user_error::UserError;
use braid_multipath::LinkId;
use braid_multipath::bond::{FarFlowView, FarState};

use super::{endpoint, protocol};
use crate::config::BondScheduler;
use crate::engine::Engine;
use crate::explain::{OtherFlow, Snapshot, client, explain};
use crate::plumbing::own_route::OwnRoute;
use crate::report::{ExplainQuestion, ExplainReport, FlowLinkShare, FlowLinksReport};
use crate::uplinks::registry::UplinkRecord;

/// Most flows whose links are reported.
const MAX_FLOWS_WITH_LINKS: usize = 8;

impl Engine {
    /// Returns the links of the first few of these flows that the bond carries.
    fn flow_links(&self, flows: &[&Flow]) -> Vec<FlowLinksReport> {
        let of_bond = |flow: &&Flow| {
            let record = self.registry.record(flow.uplink);
            let remote = flow
                .remote
                .filter(|_| record.is_some_and(UplinkRecord::is_bond));
            Some((flow.protocol.0, flow.inner, flow.outer, remote?))
        };
        let carried: Vec<_> = flows
            .iter()
            .filter_map(of_bond)
            .take(MAX_FLOWS_WITH_LINKS)
            .collect();
        if carried.is_empty() {
            return Vec::new();
        }
        let ends = carried
            .iter()
            .map(|(protocol, _, outer, remote)| (*protocol, *outer, *remote));
        let found = self.bond.flow_links(ends).unwrap_or_default();
        let name_of = |link| self.bond.name_of(link).map(str::to_owned);
        let report =
            |((_, inner, _, remote), links): (&(_, SocketAddr, _, SocketAddr), FlowLinks)| {
                FlowLinksReport {
                    inner: endpoint(inner),
                    remote: endpoint(remote),
                    tx: shares(&links.sent, name_of),
                    rx: shares(&links.received, name_of),
                    why: why(self.settings.config.bond.scheduler, links.far),
                }
            };
        carried.iter().zip(found).map(report).collect()
    }

    /// Returns the reason why a client may open no flow, if there is one; the datapath decides the same.
    fn refused(&self, question: &ExplainQuestion, back: Option<&OwnRoute>) -> Option<String> {
        if let Some(limited) = self.limits.limit_of(client(question)) {
            return Some(format!(
                "{limited} holds more than its share of a crowded flow table: reason client_over_limit"
            ));
        }
        let source = question.source?;
        let outside = |device: &str| {
            let mut records = self.registry.records().iter();
            records.any(|record| record.uplink.device == device)
        };
        let there = back.is_some_and(|back| {
            back.local
                || back
                    .device
                    .as_deref()
                    .is_some_and(|device| !outside(device))
        });
        (!there).then(|| format!("no network behind this machine has {source}: reason lan_spoofed"))
    }

    /// Returns the uplink on whose own link the destination of a LAN client is.
    fn neighbour(&self, question: &ExplainQuestion) -> Option<UplinkId> {
        if question.source.is_none() || self.settings.config.lan.is_none() {
            return None;
        }
        let holds = |segment: &Prefix| segment.contains(question.destination);
        let there = |record: &&UplinkRecord| record.uplink.segments().iter().any(holds);
        self.registry.usable().find(there).map(|record| record.id)
    }

    /// Explains the uplink of a flow. `route` is the machine's own route to the destination, if it has one
    /// that is more specific than a default route; `back` is the route to the source that the question
    /// names.
    ///
    /// # Errors
    /// The datapath's tables cannot be read.
    pub fn explain(
        &self,
        question: &ExplainQuestion,
        route: Option<&str>,
        back: Option<&OwnRoute>,
    ) -> Result<ExplainReport, UserError> {
        let all = self.cached_flows()?;
        let matching: Vec<&Flow> = all
            .iter()
            .filter(|flow| describes(question, flow))
            .collect();
        let other_flows: Vec<OtherFlow> = flows_to(question, &all).collect();
        let path = self.datapath.path_cache_entry(question.destination)?;
        let flow_activity = self.datapath.flow_activity()?;
        let now = KernelTime::now();
        let snapshot = Snapshot {
            now,
            settings: &self.settings,
            rules: &self.rules,
            classes: &self.classes,
            sticky: &self.datapath.sticky()?,
            path: path.as_ref(),
            load: &|id| self.forecasts.load(id, &flow_activity),
            reservation: &|id| self.forecasts.reservation(id),
            names: &self.names,
            statuses: &self.statuses(),
            evidence: &|id| self.evidence(id),
            route,
            neighbour: self.neighbour(question),
            refused: self.refused(question, back),
            other_flows: &other_flows,
        };
        let explanation = explain(question, &snapshot);
        Ok(ExplainReport {
            question: in_full(question),
            flows: matching.iter().map(|flow| self.flow(flow, now)).collect(),
            links: self.flow_links(&matching),
            outcome: explanation.outcome,
            uplink: explanation.uplink,
            candidates: explanation.candidates,
            path_cache: path
                .filter(|path| !path.paths.is_empty())
                .map(|path| self.path(&path, &flow_activity)),
            reservations: explanation.reservations,
            steps: explanation.steps,
        })
    }
}

/// Returns the clients that have flows of the question's protocol to its destination.
fn flows_to(question: &ExplainQuestion, flows: &[Flow]) -> impl Iterator<Item = OtherFlow> {
    let there = |flow: &&Flow| {
        flow.protocol.0 == question.protocol
            && flow.remote.map(|remote| remote.ip()) == Some(question.destination)
    };
    flows.iter().filter(there).map(|flow| OtherFlow {
        client: flow.inner.ip(),
        uplink: flow.uplink,
    })
}

/// Returns true if a flow matches all fields that the question gives.
fn describes(question: &ExplainQuestion, flow: &Flow) -> bool {
    let remote = flow.remote;
    flow.protocol.0 == question.protocol
        && remote.is_none_or(|remote| remote.ip() == question.destination)
        && remote.is_none_or(|remote| question.port.is_none_or(|port| port == remote.port()))
        && flow.inner.is_ipv4() == question.destination.is_ipv4()
        && question
            .source
            .is_none_or(|source| source == flow.inner.ip())
        && question
            .source_port
            .is_none_or(|port| port == flow.inner.port())
}

/// Formats the question in words.
fn in_full(question: &ExplainQuestion) -> String {
    let with_port = |address: IpAddr, port: Option<u16>| match port {
        Some(port) => SocketAddr::new(address, port).to_string(),
        None => address.to_string(),
    };
    let source = match (question.source, question.source_port) {
        (None, _) => "this machine".to_owned(),
        (Some(source), port) => with_port(source, port),
    };
    let destination = with_port(question.destination, question.port);
    let name = question
        .domain
        .as_ref()
        .map_or_else(String::new, |name| format!(" ({name})"));
    format!(
        "{} from {source} to {destination}{name}",
        protocol(question.protocol)
    )
}

/// Returns the shares of links that still have a name, the largest first.
fn shares(
    bytes: &[(LinkId, Bytes)],
    name_of: impl Fn(LinkId) -> Option<String>,
) -> Vec<FlowLinkShare> {
    let all: u64 = bytes.iter().map(|(_, bytes)| bytes.get()).sum();
    let share = |(link, bytes): &(LinkId, Bytes)| {
        Some(FlowLinkShare {
            uplink: name_of(*link)?,
            share: bytes.get() as f64 / all.max(1) as f64,
        })
    };
    let mut shares: Vec<FlowLinkShare> = bytes.iter().filter_map(share).collect();
    shares.sort_by(|a, b| b.share.total_cmp(&a.share));
    shares
}

/// Returns the reason for the links of what a flow sends.
fn why(scheduler: BondScheduler, far: Option<FarFlowView>) -> String {
    let ms = |span: std::time::Duration| span.as_millis();
    let Some(far) = far else {
        return match scheduler {
            BondScheduler::Adaptive => "each packet takes the link by which it arrives first",
            BondScheduler::Overflow => {
                "packets take the first link, and the next one what it cannot carry"
            }
            BondScheduler::Weighted => "links take turns by their weights",
        }
        .to_owned();
    };
    let queue = ms(far.queue);
    let extra = far.extra.map_or_else(
        || "a slower link".to_owned(),
        |extra| format!("a link slower by {} ms", ms(extra)),
    );
    match far.state {
        FarState::Using => format!("bulk: its queue of {queue} ms waits for {extra} as well"),
        FarState::Filling => {
            format!("bulk, but its queue of {queue} ms is too short to wait for {extra}")
        }
        FarState::Bounded => {
            format!("bulk, but its queue stopped growing too short to wait for {extra}")
        }
        FarState::NoLink => "bulk: the slow links that it would wait for do not work".to_owned(),
    }
}
