//! Errors and growing counters that `braid status` reports until they are over.

use std::time::{Duration, Instant};

use braid_balance::Counters;
use braid_host::report::HealthProblem;
use braid_host::user_error::UserError;

/// Time for which a problem is reported after its counter last grew: long enough for a person to notice,
/// short enough that a repaired machine soon looks healthy.
pub const COUNTED_PROBLEM_TIME: Duration = Duration::from_secs(60);

/// Exit reasons whose growth is a problem: reason, text, fix.
const COUNTED_PROBLEMS: [(&str, &str, &str); 3] = [
    (
        "flow_table_full",
        "the flow table is full: new flows may be evicted before they end",
        "raise max_flows in [datapath]",
    ),
    (
        "nat_ports_exhausted",
        "an uplink ran out of source ports: some new flows were dropped",
        "widen that uplink's ports, or find the client that opens so many flows",
    ),
    (
        "no_uplink",
        "packets were dropped because no uplink could take them",
        "see braid uplinks for what is down and why",
    ),
];

/// Recent problems and errors.
#[derive(Debug, Default)]
pub struct Incidents {
    /// Per counted problem: the last count, and when it last grew.
    seen: [(Option<u64>, Option<Instant>); COUNTED_PROBLEMS.len()],
    /// Error of the last attempt to follow a change of the network.
    pub(crate) reconcile_error: Option<UserError>,
    /// Error of the last reload.
    pub(crate) reload_error: Option<UserError>,
    /// Error of opening the configured metrics address.
    pub(crate) metrics_error: Option<String>,
    /// Error of serving the page for browsers.
    pub(crate) web_error: Option<String>,
    /// Error of writing the state file: changes to undo, and the ids of uplinks.
    pub(crate) persist_error: Option<UserError>,
    /// Error of reading an earlier daemon's state.
    pub(crate) state_error: Option<String>,
}

impl Incidents {
    /// Notes the counters that have grown.
    pub fn note(&mut self, counters: &Counters) {
        for ((reason, _, _), (count, grew)) in COUNTED_PROBLEMS.iter().zip(&mut self.seen) {
            let now = counters
                .reasons
                .iter()
                .find(|(name, _)| name == reason)
                .map(|(_, n)| *n);
            if let (Some(before), Some(now)) = (*count, now)
                && now > before
            {
                *grew = Some(Instant::now());
            }
            *count = now.or(*count);
        }
    }

    /// Returns the problems whose counters have grown of late.
    pub fn counted_problems(&self) -> impl Iterator<Item = HealthProblem> {
        let recent =
            |grew: &Option<Instant>| grew.is_some_and(|at| at.elapsed() < COUNTED_PROBLEM_TIME);
        COUNTED_PROBLEMS
            .iter()
            .zip(&self.seen)
            .filter(move |(_, (_, grew))| recent(grew))
            .map(|((reason, text, fix), _)| HealthProblem {
                code: reason.replace('_', "-"),
                text: (*text).to_owned(),
                fix: (*fix).to_owned(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_growth_is_a_problem() {
        let counters = |n| Counters {
            reasons: vec![("no_uplink", n)],
            uplinks: vec![],
        };
        let mut trouble = Incidents::default();
        trouble.note(&counters(7));
        trouble.note(&counters(7));
        assert_eq!(
            trouble.counted_problems().count(),
            0,
            "what an earlier daemon saw is old news"
        );
        trouble.note(&counters(8));
        let codes: Vec<String> = trouble
            .counted_problems()
            .map(|health| health.code)
            .collect();
        assert_eq!(codes, ["no-uplink"]);
    }
}
