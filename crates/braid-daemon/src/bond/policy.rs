//! What the driver is told of how packets are to be treated.

use braid_bond::drive::{Link, Policy, Scheduling};
use braid_core::LinkId;
use braid_core::schedule::{BURST, Overflow, Parameters, Weighted};

use super::{Bond, classify};
use crate::config::{BondScheduler, RuleConfig};
use crate::settings::Settings;

/// What a policy follows from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PolicyFacts {
    scheduler: BondScheduler,
    rules: Vec<RuleConfig>,
    /// Links with their weights, the cheapest first, where the scheduler asks for that.
    order: Vec<(LinkId, u32)>,
}

impl Bond {
    pub(super) fn policy_facts(&self, settings: &Settings) -> PolicyFacts {
        let scheduler = settings.config.bond.scheduler;
        let mut links: Vec<&Link> = match scheduler {
            BondScheduler::Adaptive => Vec::new(),
            BondScheduler::Overflow | BondScheduler::Weighted => {
                self.links.wanted().iter().collect()
            }
        };
        links.sort_by_key(|link| (link.tier, link.id));
        let weight = |link: &Link| {
            let name = self.links.name_of(link.id)?;
            Some((link.id, settings.weight(name).get()))
        };
        let ruled = settings.rules().filter(|rule| rule.class.is_some());
        PolicyFacts {
            scheduler,
            rules: ruled.cloned().collect(),
            order: links.into_iter().filter_map(weight).collect(),
        }
    }
}

impl PolicyFacts {
    pub(super) fn policy(&self, settings: &Settings) -> Policy {
        let overflow = || {
            let links: Vec<LinkId> = self.order.iter().map(|(link, _)| *link).collect();
            Overflow::new(&links, Parameters::default()).ok()
        };
        let scheduling = match self.scheduler {
            // Before there is a link there is nothing to share out.
            BondScheduler::Overflow => overflow().map(Scheduling::Overflow),
            BondScheduler::Weighted => {
                Some(Scheduling::Weighted(Weighted::new(&self.order, BURST)))
            }
            BondScheduler::Adaptive => None,
        };
        Policy {
            scheduling: scheduling.unwrap_or_default(),
            class: classify::classify(settings),
            ..Policy::default()
        }
    }
}
