//! What the bond is told of how packets are to be treated, by both ends.

use braid_bond::io::{LinkSpec, Policy, Scheduling};
use braid_core::LinkId;
use braid_core::schedule::BURST_PACKETS;

use super::{Bond, classify};
use crate::config::BondScheduler;
use crate::settings::Settings;

impl Bond {
    /// The policy that follows from settings and links.
    pub(super) fn policy(&self, settings: &Settings) -> Policy {
        let bond = &settings.config.bond;
        // What the scheduler asks for, the cheapest first.
        let mut links: Vec<&LinkSpec> = self.links.wanted().iter().collect();
        links.sort_by_key(|link| (link.tier, link.id));
        let weight = |link: &&LinkSpec| {
            let name = self.links.name_of(link.id)?;
            Some((link.id, settings.weight(name).get()))
        };
        let scheduling = match bond.scheduler {
            // Before there is a link there is nothing to share out.
            _ if links.is_empty() => Scheduling::Adaptive,
            BondScheduler::Adaptive => Scheduling::Adaptive,
            BondScheduler::Overflow => {
                let order: Vec<LinkId> = links.iter().map(|link| link.id).collect();
                Scheduling::Overflow(bond.overflow.parameters(), order)
            }
            BondScheduler::Weighted => {
                Scheduling::Weighted(BURST_PACKETS, links.iter().filter_map(weight).collect())
            }
        };
        Policy {
            scheduling,
            ordering: bond.ordering(),
            rules: classify::rules(settings),
        }
    }
}
