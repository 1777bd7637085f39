//! Policy for inner packets: the scheduler, and the class of each flow.
//!
//! Only the client knows the value of its uplinks and flows, and most of its traffic comes from the
//! hub. So a policy is plain data: the client applies it and sends it to the hub, which applies it
//! to packets for this client alone.

#[cfg(test)]
mod tests;
mod wire;

use std::ops::RangeInclusive;
use std::time::Duration;

use braid_core::Prefix;
use braid_multipath::LinkId;
use braid_multipath::bond::MAX_EXTRA_DELAY;
use braid_multipath::resequence::Reordering;
use braid_multipath::schedule::{Adaptive, Class, Overflow, Parameters, Scheduler, Weighted};

use super::flow::FlowInfo;

pub use wire::{MAX_POLICY_BYTES, MAX_TIMEOUT};

/// Most rules of a policy: they are matched in order against every packet.
pub const MAX_RULES: usize = 255;

/// The end of a packet that is the remote one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteSide {
    /// Its destination: at the client.
    Destination,
    /// Its source: at the hub.
    Source,
}

/// The scheduler that chooses links.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Scheduling {
    /// Earliest arrival over measured links.
    #[default]
    Adaptive,
    /// \[l3b\] §3, over these links, the cheapest first.
    Overflow(Parameters, Vec<LinkId>),
    /// Static weights, with the size of a burst in full packets.
    Weighted(u32, Vec<(LinkId, u32)>),
}

/// A rule for some flows. A field that is none matches anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Network of the remote end.
    pub network: Option<Prefix>,
    /// IANA number of the transport protocol.
    pub protocol: Option<u8>,
    /// Ports of the remote end, TCP and UDP.
    pub ports: Option<RangeInclusive<u16>>,
    /// Differentiated services code point, 0 to 63.
    pub dscp: Option<u8>,
    /// IPv4 alone, or IPv6 alone.
    pub is_v4: Option<bool>,
    /// Class of the flows that match.
    pub class: Class,
}

/// Policy for inner packets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// The scheduler that chooses links.
    pub scheduling: Scheduling,
    /// Order of received packets, at both ends, so that one setting covers both directions.
    pub ordering: Reordering,
    /// Longest extra delay of a link for which bulk flows use it, in whole milliseconds; the
    /// sender's default if none.
    pub max_extra_delay: Option<Duration>,
    /// The first rule that matches counts, otherwise [`FlowInfo::class`]. Rules beyond
    /// [`MAX_RULES`] count at neither end.
    pub rules: Vec<Rule>,
}

impl Policy {
    /// Returns the class of a packet; `info` is none if the packet cannot be parsed. It runs for
    /// every packet and does not allocate.
    #[must_use]
    pub fn class(&self, info: Option<&FlowInfo>, remote: RemoteSide) -> Class {
        let Some(info) = info else {
            return Class::Ordered;
        };
        // Rules that the other end does not receive are ignored here too, so that both treat a flow
        // alike.
        let mut rules = self.rules.iter().take(MAX_RULES);
        let found = rules.find(|rule| rule.matches(info, remote));
        found.map_or_else(|| info.class(), |rule| rule.class)
    }

    /// Returns the sender's setting. A far link's packets would be given up by a fixed time-out.
    #[must_use]
    pub fn extra_delay(&self) -> Duration {
        match self.ordering {
            Reordering::Adaptive => self.max_extra_delay.unwrap_or(MAX_EXTRA_DELAY),
            Reordering::FixedTimeout(_) => Duration::ZERO,
        }
    }

    /// Makes the scheduler. If it names no links, or its parameters are invalid, the adaptive one
    /// is used.
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
