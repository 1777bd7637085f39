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
//! - Under `race` and `fastest` the slots are for flows that cannot be raced; who is raced is said
//!   beside them, see `candidates.rs`.
//! - The bond is preferred where it is asked for, and has no part in what is shared out. The slots of
//!   its class are for when it carries nothing: the datapath then goes by them at once, without being
//!   told.
//! - A table changes by the fewest slots, so that clients that stick stay put. Where shares follow
//!   the measured load, they change only in steps that matter, and not too often; see
//!   `slot_allocation.rs`.

mod candidates;
mod fixed;
mod kind;
mod load;
mod slot_allocation;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Instant;

use braid_balance::{ClassEntry, ClassId, Family, LbMethod, MAX_CLASSES};
use braid_core::UplinkId;
use braid_core::slots::SlotTable;

pub use kind::ClassKind;
pub use load::{Headroom, Load};

use crate::config::{Action, Failback, Fallback, Policy, RuleConfig};
use crate::settings::Settings;
use fixed::{blocked, only};
use load::Loads;
use slot_allocation::{ClassTable, DesiredShares};

/// What a degraded uplink's weight is divided by.
const DEGRADED_DIVISOR: u64 = 4;

/// How one uplink stands.
#[derive(Clone, Debug, PartialEq)]
pub struct UplinkStatus {
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
    /// Traffic on it costs money.
    pub metered: bool,
    /// It is the bond, which goes over the others: flows are put there or shared out, never both.
    pub bond: bool,
    /// What it carries now; `None`: not measured yet.
    pub load: Option<Load>,
}

impl UplinkStatus {
    /// Whether it takes new flows of a family.
    #[must_use]
    pub fn takes(&self, family: Family) -> bool {
        self.up && self.has(family)
    }

    fn has(&self, family: Family) -> bool {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

/// The classes of traffic of an instance.
#[derive(Debug, Default)]
pub struct Classes {
    /// Every class but the default, by what it is for.
    numbers: BTreeMap<ClassKind, ClassId>,
    /// What the default class is for.
    common: Option<ClassKind>,
    tables: BTreeMap<(ClassId, Family), ClassTable>,
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
        let tables = adopted
            .into_iter()
            .map(|(class, family, table)| ((class, family), ClassTable::found(table)));
        Classes {
            tables: tables.collect(),
            ..Classes::default()
        }
    }

    /// Whether the load must be measured and [`Classes::update`] called as time passes, not only
    /// when something happens.
    #[must_use]
    pub fn follows_load(settings: &Settings) -> bool {
        let config = &settings.config;
        let follows = |policy| matches!(policy, Policy::LeastLoaded | Policy::Fastest);
        let asks = |rule: &RuleConfig| matches!(rule.action, Action::Policy(p) if follows(p));
        follows(config.policy)
            || settings.rules().any(asks)
            || config
                .uplinks
                .iter()
                .any(|uplink| uplink.overflow.is_some())
    }

    /// What an uplink can carry, and what it has left of that, as far as known: what is configured,
    /// or the fastest rate that any uplink was seen to carry lately; `None` while that is so little
    /// that it says nothing.
    #[must_use]
    pub fn headroom(&self, id: UplinkId) -> Option<Headroom> {
        self.loads.headroom(id)
    }

    /// What the datapath's classes are to be from now on. Cheap, and the same as before when
    /// nothing has changed.
    pub fn update(
        &mut self,
        now: Instant,
        settings: &Settings,
        statuses: &[UplinkStatus],
    ) -> Vec<ClassEntry> {
        self.number(settings);
        self.loads.note(now, statuses);
        self.note_fallen(settings, statuses);
        let common = self.share(now, ClassId(0), settings, statuses);
        let numbers: Vec<(ClassKind, ClassId)> = self
            .numbers
            .iter()
            .map(|(kind, id)| (kind.clone(), *id))
            .collect();
        let mut entries = vec![common.clone()];
        for (kind, id) in numbers {
            entries.push(match &kind {
                ClassKind::Share { .. } | ClassKind::Bond { .. } => {
                    self.share(now, id, settings, statuses)
                }
                ClassKind::Only { uplink, on_down } => {
                    only(id, uplink, *on_down, &common, statuses)
                }
                ClassKind::Block => blocked(id),
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
        let kind = ClassKind::of(settings, rule)?;
        match self.common.as_ref() == Some(&kind) {
            true => Some(ClassId(0)),
            false => self.numbers.get(&kind).copied(),
        }
    }

    /// What a class is for.
    #[must_use]
    pub fn kind(&self, class: ClassId) -> Option<&ClassKind> {
        match class {
            ClassId(0) => self.common.as_ref(),
            _ => self
                .numbers
                .iter()
                .find(|(_, id)| **id == class)
                .map(|(kind, _)| kind),
        }
    }

    /// The fraction of new flows of the default class that an uplink gets: of IPv4 where that has
    /// a table, else of IPv6.
    #[must_use]
    pub fn share_of(&self, id: UplinkId) -> f64 {
        let common = self.entry(ClassId(0));
        if let Some(preferred) = common.and_then(|class| class.prefers) {
            return f64::from(u8::from(preferred == id));
        }
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
    pub fn waiting<'a>(
        &self,
        statuses: &'a [UplinkStatus],
    ) -> impl Iterator<Item = &'a UplinkStatus> {
        let fallen = self.fallen.clone();
        statuses
            .iter()
            .filter(move |status| status.up && fallen.contains(&status.id))
    }

    /// Lets every uplink back that `failback = "never"` keeps waiting: `braid failback`, and a
    /// reload. The next [`Classes::update`] does it.
    pub fn allow_failback(&mut self) {
        self.fallen.clear();
    }

    /// Gives every kind of treatment a number, and takes those back that nobody asks for.
    fn number(&mut self, settings: &Settings) {
        self.common = Some(ClassKind::common(settings));
        let mut wanted: Vec<ClassKind> = Vec::new();
        for rule in settings.rules() {
            let kind = ClassKind::of(settings, rule);
            wanted.extend(kind.filter(|p| self.common.as_ref() != Some(p)));
        }
        self.numbers.retain(|kind, _| wanted.contains(kind));
        for kind in wanted {
            if self.numbers.contains_key(&kind) {
                continue;
            }
            let taken: BTreeSet<ClassId> = self.numbers.values().copied().collect();
            let last = u8::try_from(MAX_CLASSES - 1).unwrap_or(u8::MAX);
            // There is a number for each kind: `check_table_capacity` has seen to that.
            if let Some(free) = (1..=last).map(ClassId).find(|id| !taken.contains(id)) {
                self.numbers.insert(kind, free);
            }
        }
        let kept: BTreeSet<ClassId> = self.numbers.values().copied().collect();
        self.tables
            .retain(|(id, _), _| *id == ClassId(0) || kept.contains(id));
    }

    /// Under `failback = "never"`, an uplink that fell out of use stays out until no other is left.
    fn note_fallen(&mut self, settings: &Settings, statuses: &[UplinkStatus]) {
        if settings.config.failback != Failback::Never {
            self.fallen.clear();
            return;
        }
        let up: BTreeSet<UplinkId> = statuses.iter().filter(|s| s.up).map(|s| s.id).collect();
        let in_use = self
            .tables
            .iter()
            .filter(|((class, _), _)| *class == ClassId(0));
        let used = in_use.flat_map(|(_, shared)| shared.used());
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
        statuses: &[UplinkStatus],
    ) -> ClassEntry {
        let (policy, sticky, prefers) = match self.kind(id) {
            Some(ClassKind::Share { policy, sticky }) => (*policy, *sticky, None),
            Some(ClassKind::Bond { fallback }) => {
                let prefers = bond(statuses);
                if *fallback == Fallback::Block {
                    return ClassEntry {
                        prefers,
                        ..blocked(id)
                    };
                }
                (settings.config.policy, settings.config.sticky, prefers)
            }
            _ => (settings.config.policy, settings.config.sticky, None),
        };
        let mut raced = Vec::new();
        let mut slots = |family| {
            let able = self.able(family, statuses);
            let slots = self.family(now, (id, family), policy, settings, &able);
            let metered = settings.config.race.metered;
            raced.push((
                family,
                candidates::of_family(policy, metered, &able, &slots),
            ));
            slots
        };
        let (v4, v6) = (slots(Family::V4), slots(Family::V6));
        ClassEntry {
            id,
            lb_method: walk(policy),
            sticky: sticky.time(),
            v4,
            v6,
            prefers,
            candidates: candidates::of_class(&raced, statuses),
        }
    }

    /// Who may take flows of a family.
    fn able<'a>(&self, family: Family, statuses: &'a [UplinkStatus]) -> Vec<&'a UplinkStatus> {
        let shares = |s: &&UplinkStatus| s.up && !s.bond && s.has(family);
        let up = || statuses.iter().filter(shares);
        let able: Vec<&UplinkStatus> = up().filter(|s| !self.fallen.contains(&s.id)).collect();
        match able.is_empty() {
            // Who waits is better than nobody.
            true => up().collect(),
            false => able,
        }
    }

    fn family(
        &mut self,
        now: Instant,
        key: (ClassId, Family),
        policy: Policy,
        settings: &Settings,
        able: &[&UplinkStatus],
    ) -> Vec<UplinkId> {
        let wanted = DesiredShares {
            weights: self.loads.weights(policy, settings, able),
            facts: able
                .iter()
                .map(|s| (s.id, s.weight.get(), s.degraded, s.tier))
                .collect(),
            follows: Loads::are_followed(policy, settings, able),
        };
        match ClassTable::next(self.tables.remove(&key), now, wanted) {
            Some(shared) => {
                let slots = shared.slots();
                self.tables.insert(key, shared);
                slots
            }
            None => Vec::new(),
        }
    }
}

/// The bond, while it takes flows.
fn bond(statuses: &[UplinkStatus]) -> Option<UplinkId> {
    let bond = statuses.iter().find(|status| status.bond);
    bond.filter(|bond| bond.up).map(|bond| bond.id)
}

/// How a policy has the datapath walk the slots.
#[must_use]
pub fn walk(policy: Policy) -> LbMethod {
    match policy {
        Policy::Rr | Policy::Wrr | Policy::LeastLoaded => LbMethod::RoundRobin,
        Policy::Race => LbMethod::Race,
        Policy::Fastest => LbMethod::Fastest,
        Policy::HashSource => LbMethod::HashSource,
        Policy::HashPair => LbMethod::HashPair,
    }
}
