//! From the driver's status to the API's report. Pure.

use std::time::Duration;

use braid_bond::io::{ClientStatus, LinkSpec, LinkStatus};
use braid_multipath::LinkId;
use braid_multipath::liveness::Verdict;

use super::events::unheard;
use super::{Bond, State};
use crate::config::{BondConfig, BondScheduler};
use crate::report::{BondLinkReport, BondLinkState, BondPacketsReport, BondReport, BondState};

/// Delay over the fastest link that alone explains a share of zero.
const SLOW_LINK_DELAY: Duration = Duration::from_millis(20);
/// Share below which it counts as zero.
const MIN_SHARE: f64 = 0.005;

impl Bond {
    /// Returns the report of the bond.
    #[must_use]
    pub fn report(&self, config: BondConfig) -> BondReport {
        let latest = self.latest();
        let joined = self.joined.as_ref();
        let state = match (joined, self.state()) {
            (None, _) => BondState::None,
            (_, State::Calling { .. }) => BondState::Connecting,
            (_, State::Up) => BondState::Up,
            (_, State::Lost { .. }) => BondState::Lost,
            (_, State::Refused(_)) => BondState::Refused,
            (_, State::Stopped(_)) => BondState::Stopped,
        };
        let why = match joined {
            None => "this machine has joined no hub".to_owned(),
            Some(_) => self.state().to_string(),
        };
        let unheard = latest.as_ref().and_then(|status| unheard(status.policy));
        let unheard = unheard.map(str::to_owned);
        let wanted = self.links.wanted();
        let link = |link: &LinkSpec| {
            let found = latest.iter().flat_map(|status| &status.links);
            let status = found.into_iter().find(|status| status.id == link.id);
            self.link(link, status, wanted, latest.as_ref())
        };
        BondReport {
            state,
            why,
            hub: joined.map_or_else(Vec::new, |joined| {
                joined
                    .token
                    .addresses
                    .iter()
                    .map(ToString::to_string)
                    .collect()
            }),
            name: joined.and_then(|joined| joined.terms.name.clone()),
            addresses: self.addresses().iter().map(ToString::to_string).collect(),
            config,
            links: wanted.iter().map(link).collect(),
            packets: latest
                .as_ref()
                .map(|status| packets(status, config.scheduler)),
            problems: self.problems().chain(unheard).collect(),
        }
    }

    fn link(
        &self,
        link: &LinkSpec,
        status: Option<&LinkStatus>,
        wanted: &[LinkSpec],
        all: Option<&ClientStatus>,
    ) -> BondLinkReport {
        let error = self.errors.get(&link.id);
        let state = state_of(status, error.is_some());
        let why = match (error, status) {
            (Some(error), _) => error.clone(),
            (None, None) => "not taken up yet".to_owned(),
            (None, Some(status)) => why(link, status, state, wanted, all),
        };
        let rtt = status.and_then(|status| status.rtt);
        let of = |value: fn(&LinkStatus) -> u64| status.map_or(0, value);
        let span = |value: fn(&LinkStatus) -> Duration| status.map_or(0.0, |s| ms(value(s)));
        BondLinkReport {
            uplink: self.links.name_of(link.id).unwrap_or_default().to_owned(),
            id: link.id.0,
            hub: link.hub.to_string(),
            state,
            share: status.map_or(0.0, |status| status.share),
            why,
            cleartext: status.is_some_and(|status| status.cleartext),
            rate_bit_s: of(|status| status.rate.bits_per_sec()),
            delivered_bit_s: status.and_then(|s| Some(s.delivered?.bits_per_sec())),
            rtt_ms: rtt.map(|rtt| ms(rtt.smoothed)),
            rtt_min_ms: rtt.map(|rtt| ms(rtt.min)),
            owd_skew_ms: status.and_then(|status| Some(ms(status.owd_skew?))),
            queue_ms: span(|status| status.queue),
            jitter_ms: span(|status| status.jitter),
            loss: status.map_or(0.0, |status| status.loss_fast),
            lost_random: of(|status| status.lost_random),
            lost_congestive: of(|status| status.lost_congestive),
            max_payload_bytes: status.map_or(0, |status| status.max_payload_bytes),
            tx_bytes: of(|status| status.sent.bytes.get()),
            rx_bytes: of(|status| status.received.bytes.get()),
            late: of(|status| status.late),
            duplicates: of(|status| status.duplicates),
            gaps_expired: of(|status| status.gaps_expired),
            send_errors: of(|status| status.send_errors),
        }
    }
}

fn state_of(status: Option<&LinkStatus>, failed: bool) -> BondLinkState {
    let Some(status) = status.filter(|_| !failed) else {
        return match failed {
            true => BondLinkState::Failed,
            false => BondLinkState::Trying,
        };
    };
    match status.verdict.filter(|_| status.in_use) {
        None => BondLinkState::Trying,
        Some(Verdict::Active) => BondLinkState::Active,
        Some(Verdict::Returning(_)) => BondLinkState::Returning,
        Some(Verdict::Suspect) => BondLinkState::Suspect,
        Some(Verdict::Quarantined) => BondLinkState::Quarantined,
    }
}

/// Returns the use of a far link in the direction from here.
fn far(spread: Duration, status: &LinkStatus) -> String {
    let flows = match status.bulk_flows {
        None | Some(0) => "none now".to_owned(),
        Some(1) => "one now".to_owned(),
        Some(count) => format!("{count} now"),
    };
    let spread = ms(spread);
    format!("{spread:.0} ms slower: only for bulk flows with a queue as long, {flows}")
}

/// Returns the reason for a link's share.
fn why(
    link: &LinkSpec,
    status: &LinkStatus,
    state: BondLinkState,
    wanted: &[LinkSpec],
    all: Option<&ClientStatus>,
) -> String {
    if let Some(error) = &status.error {
        return error.clone();
    }
    match (state, status.verdict) {
        (BondLinkState::Trying, _) => return "nobody has answered on it yet".to_owned(),
        (BondLinkState::Suspect, _) => return "silent: what it carried goes by others".to_owned(),
        (BondLinkState::Quarantined, _) => {
            return format!("loses {:.0} %: too much", status.loss_slow * 100.0);
        }
        (_, Some(Verdict::Returning(part))) => {
            return format!("back: {:.0} % of its rate for now", part * 100.0);
        }
        _ => {}
    }
    if link.quota.is_some_and(|left| left.get() == 0) {
        return "its quota is used up".to_owned();
    }
    let works = |id: LinkId| {
        let mut links = all.iter().flat_map(|status| &status.links);
        links.any(|link| link.id == id && link.in_use)
    };
    let cheapest = wanted
        .iter()
        .filter(|link| works(link.id))
        .map(|link| link.tier)
        .min();
    if cheapest.is_some_and(|tier| tier < link.tier) {
        return format!("tier {}: carries what cheaper ones cannot", link.tier);
    }
    let rate = status.rate.bits_per_sec() as f64 / 1e6;
    let idle = all.is_some_and(|all| all.links.iter().all(|link| link.share < MIN_SHARE));
    let why = match status.owd_skew {
        _ if idle => "idle".to_owned(),
        Some(spread) if status.bulk_flows.is_some() => far(spread, status),
        Some(spread) if spread >= SLOW_LINK_DELAY && status.share < MIN_SHARE => {
            format!("packets would come {:.0} ms later by it", ms(spread))
        }
        _ => {
            let rates = all.iter().flat_map(|status| &status.links);
            let sum: u64 = rates.map(|link| link.rate.bits_per_sec()).sum();
            format!("carries {rate:.1} of {:.1} Mbit/s", sum as f64 / 1e6)
        }
    };
    match status.cleartext {
        true => format!("{why}, in the clear"),
        false => why,
    }
}

fn packets(status: &ClientStatus, scheduler: BondScheduler) -> BondPacketsReport {
    let flow = &status.flow;
    BondPacketsReport {
        scheduler,
        reorder_delay_p50_ms: ms(flow.reorder_delay_p50),
        reorder_delay_p99_ms: ms(flow.reorder_delay_p99),
        in_order: flow.in_order,
        held: flow.held,
        unordered: flow.unordered,
        gaps_lost: flow.known_lost,
        gaps_expired: flow.expired,
        gaps_forced: flow.forced,
        backlog_packets: flow.backlog_packets,
        backlog_bytes: flow.backlog_bytes.get(),
        dropped: flow.dropped,
        marked: flow.marked,
        overflowed: flow.overflowed,
        lowered_windows: flow.lowered_windows,
        spurious_retransmissions: flow.spurious_retransmissions,
        retransmitted: flow.repaired,
        header_bytes_saved: flow.saved.bytes,
        rejected: flow.rejects.total(),
    }
}

fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}
