//! The lookout over all uplinks.

use std::collections::BTreeMap;
use std::time::Instant;

use braid_core::UplinkId;

use super::{
    Evidence, Look, ProbeAnswer, ProbeOrder, Sample, Verdict, VerdictChange, Watched, Ways,
};

/// Judges every uplink.
#[derive(Debug)]
pub struct Lookout {
    uplinks: BTreeMap<UplinkId, (Watched, Instant)>,
}

impl Lookout {
    /// Over no uplinks yet.
    #[must_use]
    pub fn new(_now: Instant) -> Lookout {
        Lookout {
            uplinks: BTreeMap::new(),
        }
    }

    /// Watches exactly these from now on. What is known about one that stays is kept.
    pub fn set_uplinks(&mut self, now: Instant, uplinks: &[(UplinkId, Watched)]) {
        self.uplinks = uplinks
            .iter()
            .map(|(id, watched)| (*id, (watched.clone(), now)))
            .collect();
    }

    /// Takes what the datapath has counted: every 50 ms while anything moves, every 250 ms else.
    pub fn handle_traffic(&mut self, _now: Instant, _samples: &[(UplinkId, Sample)]) {}

    /// Takes what came of a probe; unknown ones are ignored.
    pub fn handle_probe(&mut self, _now: Instant, _answer: ProbeAnswer) {}

    /// To be called when the time of [`Lookout::poll_timeout`] has come.
    pub fn handle_timeout(&mut self, _now: Instant) {}

    /// The next probe to send now. To be asked until it has none, after every `handle_*`.
    pub fn poll_transmit(&mut self, _now: Instant) -> Option<ProbeOrder> {
        None
    }

    /// The next change to act on. To be asked until it has none, after every `handle_*`.
    pub fn poll_event(&mut self) -> Option<VerdictChange> {
        None
    }

    /// When to call [`Lookout::handle_timeout`]; may be past. `None`: nothing is watched.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// How an uplink stands; `None` for one that is not watched.
    #[must_use]
    pub fn look(&self, id: UplinkId) -> Option<Look> {
        let (watched, since) = self.uplinks.get(&id)?;
        Some(Look {
            verdict: Verdict::Up,
            since: *since,
            evidence: Evidence::none(),
            ways: Ways {
                v4: watched.v4,
                v6: watched.v6,
            },
            rtt: None,
            loss: None,
            trouble: None,
        })
    }
}
