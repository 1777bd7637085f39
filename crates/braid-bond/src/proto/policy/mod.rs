//! How packets are to be treated: who chooses links, and which class a flow is of.
//!
//! Only the client knows what its lines and its flows are worth, and most of what it gets comes from
//! the hub. So a policy is plain data: the client goes by it, and tells it to the hub, which goes by it
//! for what it sends to this client and to nobody else.

#[cfg(test)]
mod tests;
mod wire;

use std::ops::RangeInclusive;

use braid_core::resequence::Reordering;
use braid_core::schedule::{Adaptive, Class, Overflow, Parameters, Scheduler, Weighted};
use braid_core::{LinkId, Prefix};

use super::flow::FlowInfo;

pub use wire::{POLICY_MAX, TIME_OUT_MAX};

/// Most rules of a policy: each is held against every packet until one matches.
pub const RULES_MAX: usize = 255;

/// Which end of a packet is the far one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteSide {
    /// Its destination: at the client.
    Destination,
    /// Its source: at the hub.
    Source,
}

/// Who chooses links.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Scheduling {
    /// Earliest arrival over measured links.
    #[default]
    Adaptive,
    /// \[l3b\] §3, over these links, the cheapest first.
    Overflow(Parameters, Vec<LinkId>),
    /// Static weights, in bursts of so many full packets.
    Weighted(u32, Vec<(LinkId, u32)>),
}

/// Flows that are treated otherwise than they would be. What is not said matches anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Where the far end is.
    pub network: Option<Prefix>,
    /// IANA number of the transport protocol.
    pub protocol: Option<u8>,
    /// Ports of the far end, TCP and UDP.
    pub ports: Option<RangeInclusive<u16>>,
    /// Differentiated services code point, 0 to 63.
    pub dscp: Option<u8>,
    /// IPv4 alone, or IPv6 alone.
    pub is_v4: Option<bool>,
    /// What they are treated as.
    pub class: Class,
}

/// How packets are to be treated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// Who chooses links.
    pub scheduling: Scheduling,
    /// How what arrives is put in order: at both ends, so that one word decides for both directions.
    pub ordering: Reordering,
    /// The first that matches counts; else [`FlowInfo::class`] does. Those beyond [`RULES_MAX`] count at
    /// neither end.
    pub rules: Vec<Rule>,
}

impl Policy {
    /// The class of a packet, none if it cannot be read. It is asked for each: it does not allocate.
    #[must_use]
    pub fn class(&self, info: Option<&FlowInfo>, remote: RemoteSide) -> Class {
        let Some(info) = info else {
            return Class::Ordered;
        };
        // No more than the other end hears of: both treat a flow alike.
        let mut rules = self.rules.iter().take(RULES_MAX);
        let found = rules.find(|rule| rule.matches(info, remote));
        found.map_or_else(|| info.class(), |rule| rule.class)
    }

    /// Who chooses links by it. Where it names none, or parameters that make no sense, earliest arrival
    /// does.
    #[must_use]
    pub fn scheduler(&self) -> Box<dyn Scheduler> {
        match &self.scheduling {
            Scheduling::Adaptive => Box::<Adaptive>::default(),
            Scheduling::Overflow(parameters, links) => match Overflow::new(links, *parameters) {
                Ok(overflow) => Box::new(overflow),
                Err(_) => Box::<Adaptive>::default(),
            },
            Scheduling::Weighted(_, links) if links.is_empty() => Box::<Adaptive>::default(),
            Scheduling::Weighted(burst, links) => Box::new(Weighted::new(links, *burst)),
        }
    }
}

impl Rule {
    fn matches(&self, info: &FlowInfo, remote: RemoteSide) -> bool {
        let (address, port) = match remote {
            RemoteSide::Destination => (info.dest, info.ports.map(|[_, dest]| dest)),
            RemoteSide::Source => (info.source, info.ports.map(|[source, _]| source)),
        };
        let asked = |wanted: Option<bool>| wanted.unwrap_or(true);
        let ports = self.ports.as_ref();
        asked(self.is_v4.map(|is_v4| is_v4 == address.is_ipv4()))
            && asked(self.protocol.map(|number| number == info.protocol))
            && asked(self.dscp.map(|dscp| dscp == info.dscp))
            && asked(ports.map(|ports| port.is_some_and(|port| ports.contains(&port))))
            && asked(self.network.map(|network| network.contains(address)))
    }
}
