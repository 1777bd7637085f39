//! The policy of the bond: the treatment of packets at both ends.

use braid_bond::io::{LinkSpec, Policy, Scheduling};
use braid_multipath::LinkId;
use braid_multipath::schedule::BURST_PACKETS;

use super::{Bond, classify};
use crate::config::{BondScheduler, Settings};

impl Bond {
    /// Returns the policy for these settings and links.
    pub(super) fn policy(&self, settings: &Settings) -> Policy {
        let bond = &settings.config.bond;
        // Links by tier, the cheapest first.
        let mut links: Vec<&LinkSpec> = self.links.wanted().iter().collect();
        links.sort_by_key(|link| (link.tier, link.id));
        let weight = |link: &&LinkSpec| {
            let name = self.links.name_of(link.id)?;
            Some((link.id, settings.weight(name).get()))
        };
        let scheduling = match bond.scheduler {
            // Without a link there is nothing to schedule.
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
            max_extra_delay: bond.told_extra_delay(),
            rules: classify::rules(settings),
        }
    }
}
