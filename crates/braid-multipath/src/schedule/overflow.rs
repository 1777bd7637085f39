//! The scheduler of \[l3b\] §3: fills the cheap link; its losses decide how much goes to the next
//! one.
//!
//! Weighted round robin. The cheapest link's weight is fixed, the others begin at zero. With every
//! report interval:
//!
//! - **AWI** (§3.1, eq. 1): if a link lost packets, the next dearer one's weight grows by `k ·
//!   lost/sent · w`, where `w` is the weight of the link that lost.
//! - **IWI** (§3.2): if that weight was zero, it grows by the number of lost packets instead, since
//!   "it is important to react quickly".
//! - **DWD** (§3.3): "after no loss has been reported for T_dwd", it falls "by one for each
//!   interval T_report in which no loss has been reported".
//! - Weights are whole numbers: "a very small loss fraction would not change w_mobile" (§3.2). The
//!   paper does not say how eq. 1 is rounded; rounding to the nearest comes closest to its Fig. 3
//!   (`tests/suite/overflow_grid.rs`), fractions or rounding down are far off.
//! - Weights are clamped to `w_max`, which "keeps IWI from overshooting".
//!
//! The paper has two links. With more, in ascending order of cost, each link's loss feeds the next
//! one's weight, and only the dearest link with a weight gives back, so that dear links are left
//! first.

use std::time::Duration;

use braid_core::Time;
use thiserror::Error;

use super::round_robin::RoundRobin;
use super::{Choice, Head, Interval, LinkView, Scheduler};
use crate::{LinkId, MAX_LINKS};

/// The parameters of \[l3b\].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters {
    /// Steepness of AWI; 0.1 to 1 in the paper, 0.5 recommended (§5.2).
    pub k: f64,
    /// Time without loss after which weight is given back; a multiple of `t_report`. 250 or 500 ms
    /// recommended (§5.2).
    pub t_dwd: Duration,
    /// The report interval; 50 ms (§5.1).
    pub t_report: Duration,
    /// The cheapest link's weight; 50 (§5.1).
    pub w_fixed: f64,
    /// The others' largest weight; 45 (§5.2).
    pub w_max: f64,
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters {
            k: 0.5,
            t_dwd: Duration::from_millis(250),
            t_report: Duration::from_millis(50),
            w_fixed: 50.0,
            w_max: 45.0,
        }
    }
}

/// Error in the parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ParametersError {
    /// \[l3b\] §3.3.
    #[error("t_dwd must be a multiple of t_report, since loss is only known with each report")]
    NotAMultiple,
    /// A weight or `k` is not a positive number.
    #[error("k, w_fixed and w_max must be positive numbers")]
    NotPositive,
    /// No links, or more than a bond can have.
    #[error("a bond has 1 to {MAX_LINKS} links")]
    Links,
}

/// The scheduler of \[l3b\] §3.
#[derive(Debug, Clone)]
pub struct Overflow {
    parameters: Parameters,
    /// In ascending order of cost.
    weights: Vec<(LinkId, f64)>,
    /// When each link last lost packets, in the same order.
    lost: Vec<Option<Time>>,
    robin: RoundRobin,
}

impl Overflow {
    /// Returns a scheduler for `links` in ascending order of cost; the first has the fixed weight.
    ///
    /// # Errors
    /// If there are no links or too many, `t_dwd` is not a multiple of `t_report`, or a number is
    /// not positive.
    pub fn new(links: &[LinkId], parameters: Parameters) -> Result<Overflow, ParametersError> {
        let Parameters {
            k, w_fixed, w_max, ..
        } = parameters;
        if ![k, w_fixed, w_max]
            .iter()
            .all(|v| v.is_finite() && *v > 0.0)
        {
            return Err(ParametersError::NotPositive);
        }
        let (dwd, report) = (parameters.t_dwd.as_nanos(), parameters.t_report.as_nanos());
        if report == 0 || dwd % report != 0 {
            return Err(ParametersError::NotAMultiple);
        }
        if links.is_empty() || links.len() > MAX_LINKS {
            return Err(ParametersError::Links);
        }
        let mut weights: Vec<_> = links.iter().map(|&link| (link, 0.0)).collect();
        weights[0].1 = w_fixed;
        Ok(Overflow {
            parameters,
            lost: vec![None; weights.len()],
            weights,
            robin: RoundRobin::default(),
        })
    }

    /// Returns a link's weight; zero for an unused one.
    #[must_use]
    pub fn weight(&self, link: LinkId) -> f64 {
        let found = self.weights.iter().find(|(id, _)| *id == link);
        found.map_or(0.0, |&(_, weight)| weight)
    }

    /// AWI and IWI: losses of the `index`-th link raise the next one's weight.
    fn increase(&mut self, now: Time, index: usize, interval: &Interval) {
        if interval.lost == 0 {
            return;
        }
        self.lost[index] = Some(now);
        let w_lossy = self.weights[index].1;
        let Some((_, weight)) = self.weights.get_mut(index + 1) else {
            return;
        };
        *weight += match (*weight > 0.0, interval.sent) {
            (false, _) => interval.lost as f64,
            (true, 0) => 0.0,
            (true, sent) => {
                (self.parameters.k * interval.lost as f64 / sent as f64 * w_lossy).round()
            }
        };
        *weight = weight.min(self.parameters.w_max);
    }

    /// DWD for the dearest link with a weight.
    fn decrease(&mut self, now: Time, intervals: &[Interval]) {
        let Some(index) = (1..self.weights.len())
            .rev()
            .find(|&i| self.weights[i].1 > 0.0)
        else {
            return;
        };
        let cheaper = &self.weights[..index];
        let losing = |interval: &Interval| {
            interval.lost > 0 && cheaper.iter().any(|(id, _)| *id == interval.link)
        };
        let last = self.lost[..index].iter().flatten().max();
        let calm = last.is_none_or(|&last| now.since(last) >= self.parameters.t_dwd);
        if calm && !intervals.iter().any(losing) {
            let weight = &mut self.weights[index].1;
            *weight = (*weight - 1.0).max(0.0);
        }
    }
}

impl Scheduler for Overflow {
    fn choose(&mut self, _now: Time, head: &Head, links: &[LinkView]) -> Choice {
        let usable = |link: LinkId| {
            let view = links.iter().find(|view| view.id == link);
            view.is_some_and(|view| view.usable) && head.except != Some(link)
        };
        let mut live = [(LinkId(0), 0.0); MAX_LINKS];
        let count = self.weights.len();
        for (slot, &(link, weight)) in live.iter_mut().zip(&self.weights) {
            *slot = (link, if usable(link) { weight } else { 0.0 });
        }
        let live = &live[..count];
        // Without its cheap link the bond uses the next one, with a weight or not.
        let spare = || live.iter().map(|&(id, _)| id).find(|&id| usable(id));
        let Some(link) = self.robin.pick(live).or_else(spare) else {
            return Choice::Wait(None);
        };
        if live.iter().any(|&(_, weight)| weight > 0.0) {
            self.robin.charge(live, link, head.len);
        }
        Choice::Send {
            link,
            run: head.len,
        }
    }

    fn handle_interval(&mut self, now: Time, intervals: &[Interval]) {
        // The dearest first: a weight raised by this report does not raise another by itself.
        for index in (0..self.weights.len()).rev() {
            let link = self.weights[index].0;
            if let Some(interval) = intervals.iter().find(|interval| interval.link == link) {
                self.increase(now, index, interval);
            }
        }
        self.decrease(now, intervals);
    }

    fn interval(&self) -> Option<Duration> {
        Some(self.parameters.t_report)
    }

    fn is_paced(&self) -> bool {
        false
    }
}
