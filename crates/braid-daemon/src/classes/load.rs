//! What uplinks carry, and which weights follow from it.
//!
//! Rules, and why:
//! - Loads are averaged over [`LOAD_AVERAGING_TIME`], because a page load of a second is no reason to move shares.
//! - `least-loaded` weighs an uplink by what it has left of its capacity, and [`RESERVE_FRACTION`] of it. To
//!   give everything to the one with most left would send every new flow to the same uplink until
//!   the next measurement, and then all to another; without the reserve, shares of nearly full
//!   uplinks would follow every flutter of their loads.
//! - Overflow is decided by the load of all tiers together. What one tier carries falls as soon as
//!   the next one helps: going by that alone, help would be called and sent home in turns.
//! - Without configured capacities each uplink is taken for as fast as the fastest that has been
//!   seen lately.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use braid_core::{Rate, UplinkId};

use super::{DEGRADED_DIVISOR, UplinkStatus};
use crate::config::Policy;
use crate::settings::Settings;

/// How long loads are averaged over.
const LOAD_AVERAGING_TIME: Duration = Duration::from_secs(2);
/// How long the fastest rate that was seen counts.
const PEAK_DECAY_TIME: Duration = Duration::from_secs(600);
/// What an uplink counts as having left even when it is full, of its capacity.
const RESERVE_FRACTION: f64 = 0.25;
/// A capacity below which nothing is guessed, in bits per second.
const MIN_PEAK_BIT_S: f64 = 1e6;
/// The least rate that tells what uplinks can carry, in bits per second. What is slower was most
/// likely all that programs wanted: to take it for a capacity would have every uplink that somebody
/// listens to the radio on look full.
const MIN_CAPACITY_PEAK_BIT_S: f64 = 5e6;
/// The part of all flows below which a later tier is not used: half a step of the tables, so that
/// one that goes and one that comes are never the same flutter.
const MIN_TIER_FRACTION: f64 = 0.025;
/// Weights that follow from fractions are whole numbers up to this one.
const WEIGHT_SCALE: f64 = 1e6;

/// What an uplink carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Sent, over the last short while.
    pub tx: Rate,
    /// Received.
    pub rx: Rate,
    /// What it can carry in its busier direction; `None`: not known.
    pub capacity: Option<Rate>,
}

/// What an uplink can carry, and what of that is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// What it can carry.
    pub capacity: Rate,
    /// What it has left.
    pub spare: Rate,
}

/// The averaged loads of all uplinks.
#[derive(Debug, Default)]
pub(super) struct Loads {
    noted: Option<Instant>,
    averages: BTreeMap<UplinkId, AveragedLoad>,
    /// The fastest rate seen lately, in bits per second.
    peak: f64,
}

/// One uplink's, in bits per second.
#[derive(Clone, Copy, Debug)]
struct AveragedLoad {
    used: f64,
    capacity: Option<f64>,
}

impl Loads {
    /// Takes note of the loads of now.
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
        // What the bond carries is on its uplinks.
        for status in statuses.iter().filter(|status| !status.bond) {
            let Some(load) = status.load else { continue };
            let busier = load.tx.max(load.rx).bits_per_sec() as f64;
            let average = self.averages.entry(status.id).or_insert(AveragedLoad {
                used: busier,
                capacity: None,
            });
            average.used = average.used * old + busier * (1.0 - old);
            average.capacity = load.capacity.map(|rate| rate.bits_per_sec() as f64);
            self.peak = self.peak.max(average.used);
        }
    }

    /// Whether these uplinks' shares follow their load.
    pub fn are_followed(policy: Policy, settings: &Settings, able: &[&UplinkStatus]) -> bool {
        let first = able.iter().map(|s| s.tier).min();
        let overflows =
            |s: &&&UplinkStatus| Some(s.tier) == first && settings.overflow(&s.name).is_some();
        policy == Policy::LeastLoaded || able.iter().any(|s| overflows(&s))
    }

    /// The uplinks that get flows, with their weights: none if there is no uplink.
    pub fn weights(
        &self,
        policy: Policy,
        settings: &Settings,
        able: &[&UplinkStatus],
    ) -> Vec<(UplinkId, u32)> {
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
            return self.within(policy, tier);
        }
        let mut weights = Vec::new();
        for (tier, part) in in_use {
            let within = self.within(policy, tier);
            let sum: f64 = within.iter().map(|(_, weight)| f64::from(*weight)).sum();
            weights.extend(within.into_iter().map(|(id, weight)| {
                let share = part * f64::from(weight) / sum;
                // At most a million: the fraction is at most one.
                (id, ((share * WEIGHT_SCALE).round() as u32).max(1))
            }));
        }
        weights
    }

    /// Weights of uplinks of one tier.
    fn within(&self, policy: Policy, tier: &[&UplinkStatus]) -> Vec<(UplinkId, u32)> {
        let left: Vec<f64> = tier.iter().map(|status| self.left(status)).collect();
        let most = left.iter().copied().fold(0.0, f64::max);
        let some_degraded = tier.iter().any(|status| status.degraded);
        let weigh = |(status, left): (&&UplinkStatus, f64)| {
            let weight = match policy {
                Policy::Rr => 1,
                Policy::LeastLoaded if most > 0.0 => (left / most * 1000.0).round().max(1.0) as u64,
                _ => u64::from(status.weight.get()),
            };
            match (some_degraded, status.degraded) {
                (true, false) => weight * DEGRADED_DIVISOR,
                _ => weight,
            }
        };
        let weights: Vec<u64> = tier.iter().zip(left).map(weigh).collect();
        let largest = weights.iter().copied().max().unwrap_or(0);
        // Whatever does not fit into a weight is more than a slot table can tell apart.
        let shift = largest
            .checked_ilog2()
            .map_or(0, |bits| bits.saturating_sub(31));
        let fit = |weight: u64| u32::try_from(weight >> shift).unwrap_or(u32::MAX).max(1);
        tier.iter()
            .zip(weights)
            .map(|(status, weight)| (status.id, fit(weight)))
            .collect()
    }

    /// What an uplink has left of its capacity, in bits per second.
    fn left(&self, status: &UplinkStatus) -> f64 {
        let average = self.averages.get(&status.id);
        let capacity = average
            .and_then(|average| average.capacity)
            .unwrap_or(self.peak.max(MIN_PEAK_BIT_S));
        let used = average.map_or(0.0, |average| average.used);
        (capacity - used).max(0.0) + capacity * RESERVE_FRACTION
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

    /// The part of all flows that each tier gets: each is filled up to its overflow before the next
    /// one gets any. When all are full, the rest goes to all by what they take.
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

/// What is too little for a tier to be used goes to the first one.
fn leave_out_slivers(parts: &mut [f64]) {
    if let Some((first, later)) = parts.split_first_mut() {
        for part in later.iter_mut().filter(|part| **part < MIN_TIER_FRACTION) {
            *first += *part;
            *part = 0.0;
        }
    }
}

/// What a tier takes before the next one helps, in bits per second; `None`: everything.
fn takes(settings: &Settings, tier: &[&UplinkStatus]) -> Option<f64> {
    tier.iter()
        .map(|status| settings.overflow(&status.name))
        .sum()
}
