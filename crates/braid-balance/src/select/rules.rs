//! Rules: which class of traffic a new flow belongs to.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::{ClassId, Family};

pub(crate) mod table;
#[cfg(test)]
mod tests;

/// Most rules at once: a flow stores the number of its rule, plus one, in a byte.
pub const MAX_RULES: usize = crate::generated::MAX_RULES as usize;

/// Most ancestors of a socket's cgroup that rules are compared with, without the root.
pub const CGROUP_LEVELS: usize = crate::generated::CGROUP_LEVELS as usize;

/// One of the 64 marks that [`Datapath::learn_names`](crate::Datapath::learn_names) can put on an
/// address, one for each domain rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameBit(u8);

impl NameBit {
    /// Number of marks.
    pub const COUNT: u8 = 64;

    /// The mark of a number; `None` from [`NameBit::COUNT`] on.
    #[must_use]
    pub fn new(number: u8) -> Option<Self> {
        (number < Self::COUNT).then_some(Self(number))
    }

    /// The mark in a bitmap.
    #[must_use]
    pub fn mask(self) -> u64 {
        1 << self.0
    }
}

/// Conditions of a class. A flow is in the class of the first rule all of whose conditions it
/// satisfies, and in the default class if there is none.
///
/// A flow is judged by its first packet. For UDP other than QUIC, whose mapping serves every remote,
/// that is the first remote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleEntry {
    /// Inner address: a prefix, as address and length in bits. A prefix names its family too.
    pub source: Option<(IpAddr, u8)>,
    /// Remote address: a prefix.
    pub dest: Option<(IpAddr, u8)>,
    /// IANA number of the transport protocol.
    pub protocol: Option<u8>,
    /// Inner port of TCP or UDP.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// Remote port of TCP or UDP.
    pub dest_ports: Option<RangeInclusive<u16>>,
    /// Differentiated services code point, `0..64`.
    pub dscp: Option<u8>,
    /// Link-layer address of a LAN's client. A client behind another router has that one's.
    pub mac: Option<[u8; 6]>,
    /// Owner of the host's own socket.
    pub uid: Option<RangeInclusive<u32>>,
    /// Kernel id of a cgroup (version 2): that of the host's own socket, or one above it.
    pub cgroup: Option<u64>,
    /// A mark that the remote address has.
    pub name: Option<NameBit>,
    /// IP version.
    pub family: Option<Family>,
    /// The class of flows that match.
    pub class: ClassId,
}

/// Facts of one flow that rules match. An unknown fact satisfies no rule that asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowFacts {
    /// Inner address.
    pub source: IpAddr,
    /// Remote address, of the same family.
    pub dest: IpAddr,
    /// IANA number of the transport protocol.
    pub protocol: u8,
    /// Inner and remote port; looked at for TCP and UDP only.
    pub ports: (u16, u16),
    /// Differentiated services code point.
    pub dscp: u8,
    /// The client's link-layer address; `None` for the host itself.
    pub mac: Option<[u8; 6]>,
    /// The socket's owner; `None` for a LAN's flow.
    pub uid: Option<u32>,
    /// Ids of the socket's cgroup and those above; empty for a LAN's flow.
    pub cgroups: Vec<u64>,
    /// Marks of the remote address, see [`NameBit::mask`].
    pub names: u64,
}

impl RuleEntry {
    /// Returns true if the flow satisfies everything that the rule names, as the programs decide it.
    #[must_use]
    pub fn matches(&self, flow: &FlowFacts) -> bool {
        let ported = matches!(flow.protocol, TCP | UDP);
        let port = |wanted: &RangeInclusive<u16>, port: u16| ported && wanted.contains(&port);
        asked(&self.source, |prefix| contains(*prefix, flow.source))
            && asked(&self.dest, |prefix| contains(*prefix, flow.dest))
            && asked(&self.protocol, |wanted| *wanted == flow.protocol)
            && asked(&self.source_ports, |wanted| port(wanted, flow.ports.0))
            && asked(&self.dest_ports, |wanted| port(wanted, flow.ports.1))
            && asked(&self.dscp, |wanted| *wanted == flow.dscp)
            && asked(&self.mac, |wanted| flow.mac == Some(*wanted))
            && asked(&self.uid, |wanted| {
                flow.uid.is_some_and(|uid| wanted.contains(&uid))
            })
            && asked(&self.cgroup, |wanted| flow.cgroups.contains(wanted))
            && asked(&self.name, |wanted| flow.names & wanted.mask() != 0)
            && asked(&self.family, |wanted| *wanted == family_of(flow.source))
    }
}

const TCP: u8 = 6;
const UDP: u8 = 17;

fn asked<T>(wanted: &Option<T>, satisfied: impl Fn(&T) -> bool) -> bool {
    wanted.as_ref().is_none_or(satisfied)
}

fn family_of(address: IpAddr) -> Family {
    match address {
        IpAddr::V4(_) => Family::V4,
        IpAddr::V6(_) => Family::V6,
    }
}

fn contains((prefix, length): (IpAddr, u8), address: IpAddr) -> bool {
    let length = u32::from(length);
    match (prefix, address) {
        (IpAddr::V4(prefix), IpAddr::V4(address)) => {
            let left = 32_u32.saturating_sub(length);
            (prefix.to_bits() ^ address.to_bits())
                .checked_shr(left)
                .unwrap_or(0)
                == 0
        }
        (IpAddr::V6(prefix), IpAddr::V6(address)) => {
            let left = 128_u32.saturating_sub(length);
            (prefix.to_bits() ^ address.to_bits())
                .checked_shr(left)
                .unwrap_or(0)
                == 0
        }
        _ => false,
    }
}
