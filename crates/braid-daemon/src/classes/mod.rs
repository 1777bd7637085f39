//! Traffic classes: from policies to slot tables, the uplinks that share each class of traffic and their
//! shares.
//!
//! Pure: takes the settings and the status of the uplinks, returns the datapath's classes.
//!
//! Rules, and why:
//! - Class 0 is for flows without a rule. Each kind of treatment that rules ask for is a class of its own. It
//!   keeps its number while some rule asks for it, because flows, sticky clients and tables in the kernel refer
//!   to it.
//! - Of the uplinks that are up, those of the lowest tier share the flows. Only the load above their `overflow`
//!   goes to the next tier: an expensive uplink is for what cheap ones cannot take.
//! - A degraded uplink counts a quarter: it still works, and finding out that it does not should not affect all
//!   flows at once.
//! - Under `race` and `fastest` the slots are for flows that cannot be raced and of which nothing is known; the candidates of races are
//!   listed beside them, see `race_candidates.rs`.
//! - The bond is preferred where it is asked for, and has no share in the slots. The slots of its class are for
//!   when it carries nothing: the datapath then uses them at once, without the daemon.
//! - A table changes by the fewest slots, so that sticky clients stay where they are. Shares that follow the
//!   measured load change only in significant steps, and not too often; see `slot_allocation.rs`.

mod fixed;
mod kind;
mod load;
mod race_candidates;
mod slot_allocation;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Instant;

use braid_balance::{ClassEntry, ClassId, Family, LbMethod, MAX_CLASSES};
use braid_core::slots::SlotTable;
use braid_core::{Rate, UplinkId};

pub use kind::ClassKind;
pub use load::{Headroom, Load};

use crate::config::{Action, Failback, Fallback, Policy, RuleConfig, Settings};
use fixed::{blocked, only};
use load::Loads;
use slot_allocation::{ClassTable, DesiredShares, UplinkFacts};

/// Divisor of a degraded uplink's weight.
const DEGRADED_DIVISOR: u64 = 4;

/// Status of one uplink, as far as the classes need it.
#[derive(Clone, Debug, PartialEq)]
pub struct UplinkStatus {
    /// Its number.
    pub id: UplinkId,
    /// Its name, which rules use.
    pub name: String,
    /// True if it takes new flows.
    pub up: bool,
    /// True if it is degraded.
    pub degraded: bool,
    /// True if it takes IPv4 flows.
    pub v4: bool,
    /// True if it takes IPv6 flows.
    pub v6: bool,
    /// Tier: lower ones go first.
    pub tier: u8,
    /// Relative share.
    pub weight: NonZeroU32,
    /// Configured capacity of its busier direction.
    pub capacity: Option<Rate>,
    /// True if its traffic costs money.
    pub metered: bool,
    /// True for the bond, which uses the other uplinks: flows are sent to it or shared out, never both.
    pub bond: bool,
    /// Its current load; `None` before the first measurement.
    pub load: Option<Load>,
}

impl UplinkStatus {
    /// Returns true if it takes new flows of a family.
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

/// Returns the fraction of new flows of the default class that an uplink gets from these classes: of IPv4 if that has a
/// table, else of IPv6.
#[must_use]
pub fn share_of(classes: &[ClassEntry], id: UplinkId) -> f64 {
    let common = classes.iter().find(|class| class.id == ClassId(0));
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

/// Returns true if a class puts new flows on an uplink.
#[must_use]
pub fn gives_flows(class: &ClassEntry, id: UplinkId) -> bool {
    let slots = [&class.v4, &class.v6];
    class.prefers == Some(id) || slots.iter().any(|slots| slots.contains(&id))
}

/// The classes of traffic of an instance.
#[derive(Debug, Default)]
pub struct Classes {
    /// Every class but the default one, by its kind.
    numbers: BTreeMap<ClassKind, ClassId>,
    /// Kind of the default class.
    common: Option<ClassKind>,
    tables: BTreeMap<(ClassId, Family), ClassTable>,
    /// Uplinks that went down and are held back since.
    fallen: BTreeSet<UplinkId>,
    loads: Loads,
    entries: Vec<ClassEntry>,
}

impl Classes {
    /// Starts with the tables that the datapath uses, so that a restart moves no sticky client.
    #[must_use]
    pub fn new(adopted: Vec<(ClassId, Family, SlotTable)>) -> Classes {
        let tables = adopted
            .into_iter()
            .map(|(class, family, table)| ((class, family), ClassTable::from_datapath(table)));
        Classes {
            tables: tables.collect(),
            ..Classes::default()
        }
    }

    /// Returns true if the load must be measured and [`Classes::update`] called periodically, not only when
    /// something happens.
    #[must_use]
    pub fn follows_load(settings: &Settings) -> bool {
        let config = &settings.config;
        let follows = |policy| {
            matches!(policy, Policy::LeastLoaded | Policy::Fastest)
                || settings.weighs_by_capacity(policy)
        };
        let asks = |rule: &RuleConfig| matches!(rule.action, Action::Policy(p) if follows(p));
        follows(config.policy)
            || settings.rules().any(asks)
            || config
                .uplinks
                .iter()
                .any(|uplink| uplink.overflow.is_some())
    }

    /// Returns an uplink's capacity and spare capacity as far as known: the measured or configured capacity, or the
    /// fastest rate that any uplink carried lately; `None` while that rate is too low to say anything.
    #[must_use]
    pub fn headroom(&self, id: UplinkId) -> Option<Headroom> {
        self.loads.headroom(id)
    }

    /// Returns an uplink's own capacity, measured or configured; `None` if neither.
    #[must_use]
    pub fn capacity(&self, id: UplinkId) -> Option<Rate> {
        self.loads.known_capacity(id)
    }

    /// Returns the datapath's classes from now on. Cheap, and the same as before if nothing has changed.
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

    /// Returns the classes of the last update, by number.
    #[must_use]
    pub fn entries(&self) -> &[ClassEntry] {
        &self.entries
    }

    /// Returns one class of the last update.
    #[must_use]
    pub fn entry(&self, class: ClassId) -> Option<&ClassEntry> {
        self.entries.iter().find(|entry| entry.id == class)
    }

    /// Returns the class of a rule's flows; `None` for a rule that the datapath never sees (`use = "none"`),
    /// and before the first [`Classes::update`] with it.
    #[must_use]
    pub fn class_of(&self, settings: &Settings, rule: &RuleConfig) -> Option<ClassId> {
        let kind = ClassKind::of(settings, rule)?;
        match self.common.as_ref() == Some(&kind) {
            true => Some(ClassId(0)),
            false => self.numbers.get(&kind).copied(),
        }
    }

    /// Returns the kind of a class.
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

    /// Returns the uplinks that would work and are held back by `failback = "never"`.
    pub fn waiting<'a>(
        &self,
        statuses: &'a [UplinkStatus],
    ) -> impl Iterator<Item = &'a UplinkStatus> {
        let fallen = self.fallen.clone();
        statuses
            .iter()
            .filter(move |status| status.up && fallen.contains(&status.id))
    }

    /// Lets every uplink take flows again that `failback = "never"` holds back, for `braid failback` and a
    /// reload. Takes effect with the next [`Classes::update`].
    pub fn allow_failback(&mut self) {
        self.fallen.clear();
    }

    /// The same for one uplink that somebody wants used.
    pub fn allow_failback_to(&mut self, id: UplinkId) {
        self.fallen.remove(&id);
    }

    /// Assigns a number to every kind of treatment, and frees unused ones.
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
            // There is a number for each kind: the check of the configuration has made sure of that.
            if let Some(free) = (1..=last).map(ClassId).find(|id| !taken.contains(id)) {
                self.numbers.insert(kind, free);
            }
        }
        let kept: BTreeSet<ClassId> = self.numbers.values().copied().collect();
        self.tables
            .retain(|(id, _), _| *id == ClassId(0) || kept.contains(id));
    }

    /// Under `failback = "never"`, an uplink that went down stays out until no other is left.
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

    /// Returns a class that a policy shares out.
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
                race_candidates::of_family(policy, metered, &able, &slots),
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
            candidates: race_candidates::of_class(&raced, statuses),
        }
    }

    /// Returns the uplinks that may take flows of a family.
    fn able<'a>(&self, family: Family, statuses: &'a [UplinkStatus]) -> Vec<&'a UplinkStatus> {
        let shares = |s: &&UplinkStatus| s.up && !s.bond && s.has(family);
        let up = || statuses.iter().filter(shares);
        let able: Vec<&UplinkStatus> = up().filter(|s| !self.fallen.contains(&s.id)).collect();
        match able.is_empty() {
            // An uplink that is held back is better than none.
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
                .map(|s| UplinkFacts {
                    id: s.id,
                    weight: s.weight.get(),
                    is_degraded: s.degraded,
                    is_stalled: s.load.is_some_and(|load| load.stall.is_some()),
                    tier: s.tier,
                })
                .collect(),
            follows_load: Loads::are_followed(policy, settings, able),
        };
        match ClassTable::reallocate(self.tables.remove(&key), now, wanted) {
            Some(shared) => {
                let slots = shared.slots();
                self.tables.insert(key, shared);
                slots
            }
            None => Vec::new(),
        }
    }
}

/// Returns the bond while it takes flows.
fn bond(statuses: &[UplinkStatus]) -> Option<UplinkId> {
    let bond = statuses.iter().find(|status| status.bond);
    bond.filter(|bond| bond.up).map(|bond| bond.id)
}

/// Returns the datapath's method for a policy.
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
