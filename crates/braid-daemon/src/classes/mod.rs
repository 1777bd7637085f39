//! From policies to slot tables: which uplinks share each class of traffic, and how.
//!
//! Pure: settings, and how the uplinks stand, go in; the datapath's classes come out.
//!
//! Rules, and why:
//! - Class 0 is for flows that no rule names. Each kind of treatment that rules ask for is a class
//!   of its own and keeps its number while some rule asks for it, because flows, clients that
//!   stick and tables in the kernel refer to it.
//! - Of the uplinks that are up, those of the lowest tier share the flows. What they cannot carry
//!   below their `overflow` goes to the next tier, and no more than that: a dear uplink is for what
//!   cheap ones cannot take.
//! - A degraded uplink counts a quarter: it still works, and it would be worse to learn that all at
//!   once.
//! - A table changes by the fewest slots, so that clients that stick stay put. Where shares follow
//!   the measured load, they change only by whole steps of [`STEP`] and at most once in [`PACE`]:
//!   new flows need time to show in the load that is measured.

mod load;
mod purpose;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use braid_balance::{ClassEntry, ClassId, Family, MAX_CLASSES, Walk};
use braid_core::UplinkId;
use braid_core::slots::{SlotTable, Weights};

pub use load::Load;
pub use purpose::Purpose;

use crate::config::{Action, Failback, Policy, RuleConfig, WhenDown};
use crate::settings::Settings;
use load::Loads;

/// How far a share, of all new flows, must be off before the table follows the load.
const STEP: f64 = 0.05;
/// Least time between two changes of a table that follow the load.
const PACE: Duration = Duration::from_secs(1);
/// What a degraded uplink's weight is divided by.
const DEGRADED: u64 = 4;

/// How one uplink stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// Its number.
    pub id: UplinkId,
    /// Its name, which rules use.
    pub name: String,
    /// It takes new flows.
    pub up: bool,
    /// It works badly.
    pub degraded: bool,
    /// It has an IPv4 address.
    pub v4: bool,
    /// It has an IPv6 address.
    pub v6: bool,
    /// Lower tiers go first.
    pub tier: u8,
    /// Its relative share.
    pub weight: NonZeroU32,
    /// What it carries now; `None`: not measured yet.
    pub load: Option<Load>,
}

impl Standing {
    fn has(&self, family: Family) -> bool {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

/// One family's table of one class, and what it was made for.
#[derive(Clone, Debug)]
struct Shared {
    table: SlotTable,
    /// What must be the same for the load alone to be what differs.
    facts: Vec<Fact>,
    shares: Vec<(UplinkId, f64)>,
    /// When the load last changed it.
    followed: Option<Instant>,
}

/// Of one uplink: its weight, whether it is degraded, its tier.
type Fact = (UplinkId, u32, bool, u8);

/// The classes of traffic of an instance.
#[derive(Debug, Default)]
pub struct Classes {
    /// Every class but the default, by what it is for.
    numbers: BTreeMap<Purpose, ClassId>,
    /// What the default class is for.
    common: Option<Purpose>,
    shared: BTreeMap<(ClassId, Family), Shared>,
    /// Uplinks that fell out of use and have not been let back.
    fallen: BTreeSet<UplinkId>,
    loads: Loads,
    entries: Vec<ClassEntry>,
}

impl Classes {
    /// Starts with the tables that the datapath walks, so that a restart moves no client that
    /// sticks.
    #[must_use]
    pub fn new(adopted: Vec<(ClassId, Family, SlotTable)>) -> Classes {
        let shared = adopted.into_iter().map(|(class, family, table)| {
            let found = Shared {
                table,
                facts: Vec::new(),
                shares: Vec::new(),
                followed: None,
            };
            ((class, family), found)
        });
        Classes {
            shared: shared.collect(),
            ..Classes::default()
        }
    }

    /// Whether the load must be measured and [`Classes::update`] called as time passes, not only
    /// when something happens.
    #[must_use]
    pub fn follows_load(settings: &Settings) -> bool {
        let config = &settings.config;
        let least_loaded = |rule: &RuleConfig| rule.action == Action::Policy(Policy::LeastLoaded);
        config.policy == Policy::LeastLoaded
            || settings.rules().any(least_loaded)
            || config
                .uplinks
                .iter()
                .any(|uplink| uplink.overflow.is_some())
    }

    /// What the datapath's classes are to be from now on. Cheap, and the same as before when
    /// nothing has changed.
    pub fn update(
        &mut self,
        now: Instant,
        settings: &Settings,
        standings: &[Standing],
    ) -> Vec<ClassEntry> {
        self.number(settings);
        self.loads.note(now, standings);
        self.note_fallen(settings, standings);
        let common = self.share(now, ClassId(0), settings, standings);
        let numbers: Vec<(Purpose, ClassId)> = self
            .numbers
            .iter()
            .map(|(purpose, id)| (purpose.clone(), *id))
            .collect();
        let mut entries = vec![common.clone()];
        for (purpose, id) in numbers {
            entries.push(match &purpose {
                Purpose::Share { .. } => self.share(now, id, settings, standings),
                Purpose::Only { uplink, when_down } => {
                    only(id, uplink, *when_down, &common, standings)
                }
                Purpose::Block => blocked(id),
            });
        }
        entries.sort_by_key(|entry| entry.id);
        self.entries.clone_from(&entries);
        entries
    }

    /// The classes as they were last put together, by number.
    #[must_use]
    pub fn entries(&self) -> &[ClassEntry] {
        &self.entries
    }

    /// One class, as it was last put together.
    #[must_use]
    pub fn entry(&self, class: ClassId) -> Option<&ClassEntry> {
        self.entries.iter().find(|entry| entry.id == class)
    }

    /// The class that a rule puts flows into; `None` for a rule that the datapath never sees
    /// (`use = "none"`), and before the first [`Classes::update`] with it.
    #[must_use]
    pub fn class_of(&self, settings: &Settings, rule: &RuleConfig) -> Option<ClassId> {
        let purpose = Purpose::of(settings, rule)?;
        match self.common.as_ref() == Some(&purpose) {
            true => Some(ClassId(0)),
            false => self.numbers.get(&purpose).copied(),
        }
    }

    /// What a class is for.
    #[must_use]
    pub fn purpose(&self, class: ClassId) -> Option<&Purpose> {
        match class {
            ClassId(0) => self.common.as_ref(),
            _ => self
                .numbers
                .iter()
                .find(|(_, id)| **id == class)
                .map(|(purpose, _)| purpose),
        }
    }

    /// The fraction of new flows of the default class that an uplink gets: of IPv4 where that has
    /// a table, else of IPv6.
    #[must_use]
    pub fn share_of(&self, id: UplinkId) -> f64 {
        let common = self.entry(ClassId(0));
        let slots = common.map_or(&[][..], |class| match class.v4.is_empty() {
            true => &class.v6,
            false => &class.v4,
        });
        if slots.is_empty() {
            return 0.0;
        }
        slots.iter().filter(|slot| **slot == id).count() as f64 / slots.len() as f64
    }

    /// Uplinks that would work and are kept waiting by `failback = "never"`.
    pub fn waiting<'a>(&self, standings: &'a [Standing]) -> impl Iterator<Item = &'a Standing> {
        let fallen = self.fallen.clone();
        standings
            .iter()
            .filter(move |standing| standing.up && fallen.contains(&standing.id))
    }

    /// Lets every uplink back that `failback = "never"` keeps waiting: `braid failback`, and a
    /// reload. The next [`Classes::update`] does it.
    pub fn let_back(&mut self) {
        self.fallen.clear();
    }

    /// Gives every kind of treatment a number, and takes those back that nobody asks for.
    fn number(&mut self, settings: &Settings) {
        self.common = Some(Purpose::common(settings));
        let mut wanted: Vec<Purpose> = Vec::new();
        for rule in settings.rules() {
            let purpose = Purpose::of(settings, rule);
            wanted.extend(purpose.filter(|p| self.common.as_ref() != Some(p)));
        }
        self.numbers.retain(|purpose, _| wanted.contains(purpose));
        for purpose in wanted {
            if self.numbers.contains_key(&purpose) {
                continue;
            }
            let taken: BTreeSet<ClassId> = self.numbers.values().copied().collect();
            let last = u8::try_from(MAX_CLASSES - 1).unwrap_or(u8::MAX);
            // The configuration has no more kinds than there are numbers.
            if let Some(free) = (1..=last).map(ClassId).find(|id| !taken.contains(id)) {
                self.numbers.insert(purpose, free);
            }
        }
        let kept: BTreeSet<ClassId> = self.numbers.values().copied().collect();
        self.shared
            .retain(|(id, _), _| *id == ClassId(0) || kept.contains(id));
    }

    /// Under `failback = "never"`, an uplink that fell out of use stays out until no other is left.
    fn note_fallen(&mut self, settings: &Settings, standings: &[Standing]) {
        if settings.config.failback != Failback::Never {
            self.fallen.clear();
            return;
        }
        let up: BTreeSet<UplinkId> = standings.iter().filter(|s| s.up).map(|s| s.id).collect();
        let in_use = self
            .shared
            .iter()
            .filter(|((class, _), _)| *class == ClassId(0));
        let used = in_use.flat_map(|(_, shared)| shared.table.as_slice());
        self.fallen.extend(used.filter(|id| !up.contains(id)));
        if up.iter().all(|id| self.fallen.contains(id)) {
            self.fallen.retain(|id| !up.contains(id));
        }
    }

    /// A class that is shared out by a policy.
    fn share(
        &mut self,
        now: Instant,
        id: ClassId,
        settings: &Settings,
        standings: &[Standing],
    ) -> ClassEntry {
        let (policy, sticky) = match self.purpose(id) {
            Some(Purpose::Share { policy, sticky }) => (*policy, *sticky),
            _ => (settings.config.policy, settings.config.sticky),
        };
        let mut slots = |family| {
            let mut able = standings.iter();
            let able: Vec<&Standing> = able
                .by_ref()
                .filter(|s| s.up && s.has(family) && !self.fallen.contains(&s.id))
                .collect();
            self.family(now, (id, family), policy, settings, &able)
        };
        let (v4, v6) = (slots(Family::V4), slots(Family::V6));
        ClassEntry {
            id,
            walk: walk(policy),
            sticky: sticky.time(),
            v4,
            v6,
        }
    }

    fn family(
        &mut self,
        now: Instant,
        key: (ClassId, Family),
        policy: Policy,
        settings: &Settings,
        able: &[&Standing],
    ) -> Vec<UplinkId> {
        let weights = self.loads.weights(policy, settings, able);
        let Ok(table_weights) = Weights::new(weights.iter().copied()) else {
            self.shared.remove(&key);
            return Vec::new();
        };
        let facts: Vec<Fact> = able
            .iter()
            .map(|s| (s.id, s.weight.get(), s.degraded, s.tier))
            .collect();
        let shares = shares(&weights);
        let follows = Loads::matter(policy, settings, able);
        if let Some(shared) = self.shared.get(&key)
            && shared.facts == facts
            && follows
        {
            let early = shared.followed.is_some_and(|at| now < at + PACE);
            if early || furthest(&shared.shares, &shares) < STEP {
                return shared.table.as_slice().to_vec();
            }
        }
        let before = self.shared.get(&key).map(|shared| &shared.table);
        let table = match before {
            Some(table) => table.rebalance(&table_weights),
            None => SlotTable::spread(&table_weights),
        };
        let slots = table.as_slice().to_vec();
        let shared = Shared {
            table,
            facts,
            shares,
            followed: follows.then_some(now),
        };
        self.shared.insert(key, shared);
        slots
    }
}

/// How a policy has the datapath walk the slots.
#[must_use]
pub fn walk(policy: Policy) -> Walk {
    match policy {
        Policy::Rr | Policy::Wrr | Policy::LeastLoaded => Walk::RoundRobin,
        Policy::HashSource => Walk::HashSource,
        Policy::HashPair => Walk::HashPair,
    }
}

/// A class whose flows take one uplink.
fn only(
    id: ClassId,
    uplink: &str,
    when_down: WhenDown,
    common: &ClassEntry,
    standings: &[Standing],
) -> ClassEntry {
    let target = standings.iter().find(|s| s.name == uplink && s.up);
    let slots = |family, others: &Vec<UplinkId>| match (target, when_down) {
        (Some(target), _) if target.has(family) => vec![target.id],
        (_, WhenDown::Others) => others.clone(),
        (_, WhenDown::Block) => Vec::new(),
    };
    ClassEntry {
        id,
        // Where the uplink takes the flow there is nothing to walk.
        walk: common.walk,
        sticky: None,
        v4: slots(Family::V4, &common.v4),
        v6: slots(Family::V6, &common.v6),
    }
}

/// A class whose flows go nowhere.
fn blocked(id: ClassId) -> ClassEntry {
    ClassEntry {
        id,
        walk: Walk::RoundRobin,
        sticky: None,
        v4: Vec::new(),
        v6: Vec::new(),
    }
}

fn shares(weights: &[(UplinkId, u32)]) -> Vec<(UplinkId, f64)> {
    let sum: f64 = weights.iter().map(|(_, weight)| f64::from(*weight)).sum();
    weights
        .iter()
        .map(|(id, weight)| (*id, f64::from(*weight) / sum))
        .collect()
}

/// The largest difference between an uplink's two shares.
fn furthest(a: &[(UplinkId, f64)], b: &[(UplinkId, f64)]) -> f64 {
    let share = |shares: &[(UplinkId, f64)], id| {
        shares
            .iter()
            .find(|(other, _)| *other == id)
            .map_or(0.0, |(_, share)| *share)
    };
    let all = a.iter().chain(b).map(|(id, _)| *id);
    all.map(|id| (share(a, id) - share(b, id)).abs())
        .fold(0.0, f64::max)
}
