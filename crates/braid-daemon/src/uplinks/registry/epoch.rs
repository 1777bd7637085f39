//! Epochs: the validity of cached round trips and losses.
//!
//! Round trips and losses belong to a path into the internet. With another device, address or gateway it is
//! another path, and after a failure it may be. The datapath compares its path cache with a number that changes
//! then, [`UplinkRegistry::epoch`]. The number stays the same across a restart of the daemon, so that the cache
//! pinned in the kernel stays valid.

use std::net::IpAddr;

use braid_core::ShortHash;
use braid_uplink::Layer;

use super::{UplinkRecord, UplinkRegistry};
use crate::uplinks::registry::FAMILIES;

impl UplinkRegistry {
    /// Counts the uplinks that have ceased to work, for a family or altogether.
    pub(super) fn count_failures(&mut self) {
        for record in &mut self.records {
            let works = FAMILIES.map(|family| record.answers(family));
            let before = std::mem::replace(&mut record.worked, works);
            let failed = before
                .iter()
                .zip(works)
                .any(|(before, now)| *before && !now);
            let known = self.numbers.iter_mut();
            for known in known.filter(|known| failed && known.index == record.id.0) {
                known.failures = known.failures.wrapping_add(1);
            }
        }
    }

    /// Returns a number that changes when an uplink leads elsewhere or has failed.
    #[must_use]
    pub fn epoch(&self, record: &UplinkRecord) -> u32 {
        let mut numbers = self.numbers.iter();
        let known = numbers.find(|known| known.index == record.id.0);
        let failures = known.map_or(0, |known| known.failures);
        let mut hash = ShortHash::default();
        hash.write(&record.route_hash().to_ne_bytes());
        hash.write(&failures.to_ne_bytes());
        hash.finish()
    }
}

impl UplinkRecord {
    /// Returns a hash of the uplink's device, addresses and gateways.
    #[must_use]
    pub fn route_hash(&self) -> u32 {
        let uplink = &self.uplink;
        let mut hash = ShortHash::default();
        hash.write(&uplink.ifindex.to_ne_bytes());
        hash.write(&[u8::from(uplink.layer == Layer::L2)]);
        let v4 = uplink
            .v4
            .as_ref()
            .map(|next_hop| (next_hop.address.into(), next_hop.gateway.map(IpAddr::from)));
        let v6 = uplink
            .v6
            .as_ref()
            .map(|next_hop| (next_hop.address.into(), next_hop.gateway.map(IpAddr::from)));
        for next_hop in [v4, v6] {
            let (address, gateway) = next_hop.unzip();
            for address in [address, gateway.flatten()] {
                match address {
                    None => hash.write(&[0]),
                    Some(IpAddr::V4(address)) => {
                        hash.write(&[4]);
                        hash.write(&address.octets());
                    }
                    Some(IpAddr::V6(address)) => {
                        hash.write(&[6]);
                        hash.write(&address.octets());
                    }
                }
            }
        }
        hash.finish()
    }
}
