//! One uplink of the registry, and its status.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::Duration;

use braid_balance::Family;
use braid_core::UplinkId;
use braid_uplink::liveness::{HealthSnapshot, Verdict};
use braid_uplink::{BOND_DEVICE, Uplink};

use crate::report::Pause;

/// One uplink, present or gone.
#[derive(Clone, Debug, PartialEq)]
pub struct UplinkRecord {
    /// Its number.
    pub id: UplinkId,
    /// Its relative share.
    pub weight: NonZeroU32,
    /// Source ports for flows whose own port is taken.
    pub ports: RangeInclusive<u16>,
    /// Its state as of the last time that it was usable.
    pub uplink: Uplink,
    /// The reason that it cannot be used now, as far as its device shows; `None` if it can.
    pub down: Option<String>,
    /// Set while no packet gets through for want of a device, carrier or address: the grace period before flows
    /// leave.
    pub cut: Option<Duration>,
    /// True if its device exists.
    pub present: bool,
    /// Its health, while it is monitored.
    pub health: Option<HealthSnapshot>,
    /// The families (IPv4, IPv6) that worked at the last check.
    pub worked: [bool; 2],
    /// Its pause, while somebody has set it aside.
    pub pause: Option<Pause>,
}

impl UplinkRecord {
    /// Returns true if it is the bond, whose packets this daemon carries.
    #[must_use]
    pub fn is_bond(&self) -> bool {
        self.uplink.device == BOND_DEVICE
    }

    /// Returns the verdict; up while there is no evidence.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.health
            .as_ref()
            .map_or(Verdict::Up, |look| look.verdict)
    }

    /// Returns true if no packet gets through, by its device or by verdict. For the bond only the bond's own
    /// state counts, after a while: its flows use the hub's address and cannot move, and after an outage of
    /// some seconds the hub still has their connections.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        let judged = self.down.is_none() && self.verdict() == Verdict::Dead;
        self.cut.is_some() || (judged && !self.is_bond())
    }

    /// Returns true if it is the bond and its flows wait for the hub, whose address they have.
    #[must_use]
    pub fn waits_for_hub(&self) -> bool {
        self.is_bond() && self.down.is_some() && self.cut.is_none()
    }

    /// Returns true if its device has this address, be it the one for new flows or another.
    #[must_use]
    pub fn has_address(&self, address: IpAddr) -> bool {
        fn all<A: Copy + Into<IpAddr>>(next_hop: &braid_uplink::NextHop<A>) -> Vec<IpAddr> {
            let all = next_hop.others.iter().chain([&next_hop.address]);
            all.map(|address| (*address).into()).collect()
        }
        let v4 = self.uplink.v4.as_ref().map(all);
        let v6 = self.uplink.v6.as_ref().map(all);
        v4.into_iter().chain(v6).flatten().any(|own| own == address)
    }

    /// Returns true if it has a next hop for a family.
    #[must_use]
    pub fn has(&self, family: Family) -> bool {
        match family {
            Family::V4 => self.uplink.v4.is_some(),
            Family::V6 => self.uplink.v6.is_some(),
        }
    }

    /// Returns true if new flows of a family work on it, as far as known, and nobody has set it aside.
    #[must_use]
    pub fn works(&self, family: Family) -> bool {
        self.pause.is_none() && self.answers(family)
    }

    /// Returns true if new flows of a family would work on it, as far as known.
    #[must_use]
    pub fn answers(&self, family: Family) -> bool {
        let way = self.health.as_ref().is_none_or(|look| match family {
            Family::V4 => look.families.v4,
            Family::V6 => look.families.v6,
        });
        self.down.is_none() && self.has(family) && way && self.verdict().takes_new_flows()
    }
}

/// Both address families.
pub const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
