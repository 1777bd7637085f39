//! Measured loads of uplinks, and the weights derived from them. (The layout of the slots is the core's.)
//!
//! Rules, and why:
//! - Loads are averaged over [`LOAD_AVERAGING_TIME`], because a page load of a second is no reason to move
//!   shares.
//! - `least-loaded` weighs an uplink by its spare capacity plus [`RESERVE_FRACTION`] of its capacity. Giving
//!   everything to the one with most spare capacity would send every new flow to the same uplink until the next
//!   measurement, and then all to another. Without the reserve, shares of nearly full uplinks would follow
//!   every fluctuation of their loads.
//! - Overflow is decided by the load of all tiers together. The load of one tier falls as soon as the next one
//!   helps; by that load alone, the next tier would be added and removed in turns.
//! - `wrr` weighs by measured capacities unless the user has given weights: rates typed in are wrong by evening.
//!   The configured capacity is a ceiling.
//! - An uplink that stalls has next to no capacity until it carries something again, and that changes its shares at once.
//! - An uplink of which no capacity is known is assumed to be as fast as the fastest one seen lately.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use braid_core::forecast::FULL_DIVISOR;
use braid_core::{Rate, UplinkId};

use super::{DEGRADED_DIVISOR, UplinkStatus};
use crate::config::{Policy, Settings};

/// Time over which loads are averaged.
const LOAD_AVERAGING_TIME: Duration = Duration::from_secs(2);
/// Decay time of the fastest rate seen.
const PEAK_DECAY_TIME: Duration = Duration::from_secs(600);
/// Fraction of its capacity that an uplink counts as spare even when full.
const RESERVE_FRACTION: f64 = 0.25;
/// Smallest capacity that is assumed, in bits per second.
const MIN_PEAK_BIT_S: f64 = 1e6;
/// Smallest rate that says something about capacity, in bits per second. A slower rate was most likely all that
/// programs wanted; taken for a capacity, it would make every uplink with an audio stream look full.
const MIN_CAPACITY_PEAK_BIT_S: f64 = 5e6;
/// Fraction of all flows below which a later tier is not used: half a step of the tables, so that adding and
/// removing it are never the same fluctuation.
const MIN_TIER_FRACTION: f64 = 0.025;
/// Scale of integer weights derived from fractions.
const WEIGHT_SCALE: f64 = 1e6;

/// Load of an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Rate sent, over the last short while.
    pub tx: Rate,
    /// Rate received.
    pub rx: Rate,
    /// Measured capacity; `None` if its own traffic has not shown it yet.
    pub measured: Option<Rate>,
    /// Lower bound of its capacity: a rate that it carried lately.
    pub at_least: Rate,
    /// Rate of an uplink that stalls; `None` for one that does not.
    pub stall: Option<Rate>,
}

impl Load {
    /// Returns the capacity as far as known. A configured one is a ceiling: the user may want to leave room for
    /// others. An uplink that stalls has what it carries meanwhile.
    fn capacity(&self, configured: Option<Rate>) -> Option<Rate> {
        let known = [configured, self.measured, self.stall];
        known.into_iter().flatten().min()
    }
}

/// Capacity of an uplink, and the part that is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// Its capacity.
    pub capacity: Rate,
    /// Its spare capacity.
    pub spare: Rate,
}

impl Headroom {
    /// Returns true if flows that want more may not get it.
    pub fn is_full(&self) -> bool {
        self.spare.bits_per_sec() < self.capacity.bits_per_sec() / u64::from(FULL_DIVISOR)
    }
}

/// The averaged loads of all uplinks.
#[derive(Debug, Default)]
pub(super) struct Loads {
    noted: Option<Instant>,
    averages: BTreeMap<UplinkId, AveragedLoad>,
    /// The fastest rate seen lately, in bits per second.
    peak: f64,
}

/// Averaged load of one uplink, in bits per second.
#[derive(Clone, Copy, Debug)]
struct AveragedLoad {
    used: f64,
    capacity: Option<f64>,
    /// True if measurements have a say in the capacity.
    measured: bool,
}

impl Loads {
    /// Adds the current loads.
    pub fn note(&mut self, now: Instant, statuses: &[UplinkStatus]) {
        let passed = self.noted.map(|noted| now.saturating_duration_since(noted));
        self.noted = Some(now);
        let kept = |memory: Duration| {
            passed.map_or(0.0, |passed| {
                (-passed.as_secs_f64() / memory.as_secs_f64()).exp()
            })
        };
        let (old, peak_kept) = (kept(LOAD_AVERAGING_TIME), kept(PEAK_DECAY_TIME));
        self.peak *= peak_kept;
        self.averages
            .retain(|id, _| statuses.iter().any(|status| status.id == *id));
        // The bond's traffic is counted on its uplinks.
        for status in statuses.iter().filter(|status| !status.bond) {
            let Some(load) = status.load else { continue };
            let busier = load.tx.max(load.rx).bits_per_sec() as f64;
            let average = self.averages.entry(status.id).or_insert(AveragedLoad {
                used: busier,
                capacity: None,
                measured: false,
            });
            average.used = average.used * old + busier * (1.0 - old);
            let capacity = load.capacity(status.capacity);
            average.capacity = capacity.map(|rate| rate.bits_per_sec() as f64);
            average.measured = load.measured.or(load.stall).is_some();
            let seen = load.at_least.max(load.measured.unwrap_or_default());
            self.peak = self.peak.max(average.used).max(seen.bits_per_sec() as f64);
        }
    }

    /// Returns true if the shares of these uplinks follow their load.
    pub fn are_followed(policy: Policy, settings: &Settings, able: &[&UplinkStatus]) -> bool {
        let first = able.iter().map(|s| s.tier).min();
        let overflows =
            |s: &&&UplinkStatus| Some(s.tier) == first && settings.overflow(&s.name).is_some();
        policy == Policy::LeastLoaded
            || settings.weighs_by_capacity(policy)
            || able.iter().any(|s| overflows(&s))
    }

    /// Returns the uplinks that get flows, with their weights; empty without uplinks.
    pub fn weights(
        &self,
        policy: Policy,
        settings: &Settings,
        able: &[&UplinkStatus],
    ) -> Vec<(UplinkId, u64)> {
        let mut tiers: BTreeMap<u8, Vec<&UplinkStatus>> = BTreeMap::new();
        for status in able {
            tiers.entry(status.tier).or_default().push(status);
        }
        let tiers: Vec<Vec<&UplinkStatus>> = tiers.into_values().collect();
        let parts = self.fill(settings, &tiers);
        let in_use: Vec<(&Vec<&UplinkStatus>, f64)> = tiers
            .iter()
            .zip(parts)
            .filter(|(_, part)| *part > 0.0)
            .collect();
        if let [(tier, _)] = in_use.as_slice() {
            return self.within(policy, settings, tier);
        }
        let mut weights = Vec::new();
        for (tier, part) in in_use {
            let within = self.within(policy, settings, tier);
            let sum: f64 = within.iter().map(|(_, weight)| *weight as f64).sum();
            weights.extend(within.into_iter().map(|(id, weight)| {
                let share = part * weight as f64 / sum;
                (id, ((share * WEIGHT_SCALE).round() as u64).max(1))
            }));
        }
        weights
    }

    /// Returns the weights of uplinks of one tier.
    fn within(
        &self,
        policy: Policy,
        settings: &Settings,
        tier: &[&UplinkStatus],
    ) -> Vec<(UplinkId, u64)> {
        let is_measured = |status: &&UplinkStatus| {
            let average = self.averages.get(&status.id);
            average.is_some_and(|average| average.measured)
        };
        let by_capacity = settings.weighs_by_capacity(policy) && tier.iter().any(is_measured);
        let left = |status: &&UplinkStatus| match by_capacity {
            true => self.capacity(status),
            false => self.left(status),
        };
        let left: Vec<f64> = tier.iter().map(left).collect();
        let most = left.iter().copied().fold(0.0, f64::max);
        let some_degraded = tier.iter().any(|status| status.degraded);
        let weigh = |status: &UplinkStatus, left: f64| {
            let weight = match policy {
                Policy::Rr => 1,
                _ if (policy == Policy::LeastLoaded || by_capacity) && most > 0.0 => {
                    (left / most * 1000.0).round().max(1.0) as u64
                }
                _ => u64::from(status.weight.get()),
            };
            match (some_degraded, status.degraded) {
                (true, false) => weight * DEGRADED_DIVISOR,
                _ => weight,
            }
        };
        tier.iter()
            .zip(left)
            .map(|(status, left)| (status.id, weigh(status, left)))
            .collect()
    }

    /// Returns the spare capacity of an uplink plus its reserve, in bits per second.
    fn left(&self, status: &UplinkStatus) -> f64 {
        let average = self.averages.get(&status.id);
        let capacity = self.capacity(status);
        let used = average.map_or(0.0, |average| average.used);
        (capacity - used).max(0.0) + capacity * RESERVE_FRACTION
    }

    /// Returns the capacity of an uplink as known or assumed, in bits per second.
    fn capacity(&self, status: &UplinkStatus) -> f64 {
        let average = self.averages.get(&status.id);
        average
            .and_then(|average| average.capacity)
            .unwrap_or(self.peak.max(MIN_PEAK_BIT_S))
    }

    /// See [`Classes::capacity`](super::Classes::capacity).
    pub fn known_capacity(&self, id: UplinkId) -> Option<Rate> {
        let capacity = self.averages.get(&id)?.capacity?;
        Some(Rate::from_bits_per_sec(capacity as u64))
    }

    /// See [`Classes::headroom`](super::Classes::headroom).
    pub fn headroom(&self, id: UplinkId) -> Option<Headroom> {
        let average = self.averages.get(&id);
        let told = average.and_then(|average| average.capacity);
        let seen = (self.peak >= MIN_CAPACITY_PEAK_BIT_S).then_some(self.peak);
        let capacity = told.or(seen)?;
        let used = average.map_or(0.0, |average| average.used);
        let rate = |bits: f64| Rate::from_bits_per_sec(bits as u64);
        Some(Headroom {
            capacity: rate(capacity),
            spare: rate((capacity - used).max(0.0)),
        })
    }

    /// Returns the fraction of all flows for each tier: each is filled up to its overflow before the next one
    /// gets any. When all are full, the rest is divided in proportion to their overflows.
    fn fill(&self, settings: &Settings, tiers: &[Vec<&UplinkStatus>]) -> Vec<f64> {
        let used = |s: &&UplinkStatus| self.averages.get(&s.id).map_or(0.0, |average| average.used);
        let total: f64 = tiers.iter().flatten().map(used).sum();
        let mut parts = vec![0.0; tiers.len()];
        let mut rest = total;
        let mut room = 0.0;
        for (part, tier) in parts.iter_mut().zip(tiers) {
            let takes = takes(settings, tier);
            *part = takes.map_or(rest, |takes| takes.min(rest));
            rest -= *part;
            room += takes.unwrap_or(0.0);
            if takes.is_none() || rest <= 0.0 {
                break;
            }
        }
        if rest > 0.0 && room > 0.0 {
            let over = rest / room;
            for (part, tier) in parts.iter_mut().zip(tiers) {
                *part += takes(settings, tier).unwrap_or(0.0) * over;
            }
        }
        match (total > 0.0, parts.first_mut()) {
            (true, _) => {
                parts.iter_mut().for_each(|part| *part /= total);
                leave_out_slivers(&mut parts);
            }
            (false, Some(first)) => *first = 1.0,
            (false, None) => {}
        }
        parts
    }
}

/// Gives fractions that are too small for a tier to the first one.
fn leave_out_slivers(parts: &mut [f64]) {
    if let Some((first, later)) = parts.split_first_mut() {
        for part in later.iter_mut().filter(|part| **part < MIN_TIER_FRACTION) {
            *first += *part;
            *part = 0.0;
        }
    }
}

/// Returns the load that a tier takes before the next one helps, in bits per second; `None` if unlimited.
fn takes(settings: &Settings, tier: &[&UplinkStatus]) -> Option<f64> {
    tier.iter()
        .map(|status| settings.overflow(&status.name))
        .sum()
}
