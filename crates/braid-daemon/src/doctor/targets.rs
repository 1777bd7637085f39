//! Probes every target over every uplink once, as the daemon will.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use braid_core::UplinkId;
use braid_uplink::Uplink;
use braid_uplink::liveness::{ProbeId, ProbeOutcome, ProbeRequest, Target};
use braid_uplink::probe::Prober;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{Instant, timeout_at};

/// Longest wait for an answer. A satellite's takes 600 ms.
const PROBE_TIMEOUT: Duration = Duration::from_millis(1500);

/// Results of the probes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TargetResults {
    /// True if the target answered, by target and uplink. A pair that could not be probed (no
    /// address of that family) is not in it.
    answered: BTreeMap<(String, String), bool>,
}

impl TargetResults {
    /// Returns every target that was probed.
    pub fn targets(&self) -> BTreeSet<&str> {
        self.answered
            .keys()
            .map(|(target, _)| target.as_str())
            .collect()
    }

    /// Returns the targets that answered on no uplink.
    pub fn silent_everywhere(&self) -> Vec<&str> {
        let answers = |target: &&str| {
            let mut tries = self.answered.iter();
            tries.any(|((name, _), answered)| name == target && *answered)
        };
        self.targets()
            .into_iter()
            .filter(|target| !answers(target))
            .collect()
    }

    /// Returns the uplinks on which no target answered.
    pub fn silent_uplinks(&self) -> Vec<&str> {
        let uplinks: BTreeSet<&str> = self
            .answered
            .keys()
            .map(|(_, uplink)| uplink.as_str())
            .collect();
        let answers = |uplink: &&str| {
            let mut tries = self.answered.iter();
            tries.any(|((_, name), answered)| name == uplink && *answered)
        };
        uplinks
            .into_iter()
            .filter(|uplink| !answers(uplink))
            .collect()
    }

    #[cfg(test)]
    pub fn of(tries: &[(&str, &str, bool)]) -> TargetResults {
        let tries = tries.iter().map(|(target, uplink, answered)| {
            (((*target).to_owned(), (*uplink).to_owned()), *answered)
        });
        TargetResults {
            answered: tries.collect(),
        }
    }
}

/// Probes all pairs. Each uplink comes with its own targets.
pub(super) async fn probe_all(uplinks: &[(Uplink, Vec<Arc<Target>>)]) -> TargetResults {
    let (tell, mut told) = unbounded_channel();
    let mut prober = Prober::new(tell);
    let mut asked: BTreeMap<ProbeId, (String, String)> = BTreeMap::new();
    let mut tried = TargetResults::default();
    for (index, (uplink, targets)) in uplinks.iter().enumerate() {
        for target in targets {
            let id = ProbeId(asked.len() as u64);
            asked.insert(id, (target.to_string(), uplink.name.clone()));
            let order = ProbeRequest {
                uplink: UplinkId(u8::try_from(index).unwrap_or(u8::MAX)),
                id,
                target: Arc::clone(target),
                timeout: PROBE_TIMEOUT,
            };
            prober.send(order, uplink);
        }
    }
    let until = Instant::now() + PROBE_TIMEOUT + Duration::from_millis(200);
    let mut open = asked.len();
    while open > 0 {
        let Ok(Some(answer)) = timeout_at(until, told.recv()).await else {
            break;
        };
        open -= 1;
        let Some(pair) = asked.remove(&answer.id) else {
            continue;
        };
        match answer.outcome {
            ProbeOutcome::NotSent { .. } => {}
            outcome => {
                let answered = matches!(outcome, ProbeOutcome::Answered { .. });
                tried.answered.insert(pair, answered);
            }
        }
    }
    // Targets without a result by now have not answered.
    tried
        .answered
        .extend(asked.into_values().map(|pair| (pair, false)));
    tried
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_of_a_target_or_of_an_uplink() {
        let tried = TargetResults::of(&[
            ("icmp:1.1.1.1", "dsl", true),
            ("icmp:1.1.1.1", "lte", false),
            ("icmp:192.0.2.1", "dsl", false),
            ("icmp:192.0.2.1", "lte", false),
        ]);
        assert_eq!(tried.silent_everywhere(), ["icmp:192.0.2.1"]);
        assert_eq!(tried.silent_uplinks(), ["lte"]);
        assert_eq!(tried.targets().len(), 2);
    }
}
