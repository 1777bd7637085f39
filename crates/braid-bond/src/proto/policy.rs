//! How packets are to be treated: who chooses links, and which class a flow is of.
//!
//! Only the client knows what its lines and its flows are worth, and most of what it gets comes from
//! the hub. So a policy is plain data: the client goes by it, and tells it to the hub, which goes by it
//! for what it sends to this client and to nobody else. On the wire ([`Policy::append`]):
//!
//! ```text
//! scheduler 8 · [time-out varint (ms), only with bit 7 of the scheduler]
//!   0 adaptive
//!   1 overflow   k varint (1/1000) · t_dwd varint (ms) · t_report varint (ms) · w_fixed varint ·
//!                w_max varint · links 8 · links × link 8
//!   2 weighted   burst varint · links 8 · links × (link 8 · weight varint)
//! rules varint · rules × rule
//! rule           what 8 · [family 8 · length 8 · address] · [protocol 8] · [first 16 · last 16] · [dscp 8]
//! ```
//! Bit 7 of the scheduler's byte: packets are put in order by a time-out, as in \[l3b\] §4.3. `what` has the class in its lowest two bits, then from bit 2 on: network, protocol, ports, code point,
//! IPv4 alone, IPv6 alone. An address has as many bytes as its length in bits needs. Rules are about the
//! *far* end of a flow, as seen from the client: where packets from here go, and those to here come from.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use braid_core::resequence::Ordering;
use braid_core::schedule::{Adaptive, Class, Overflow, Parameters, Scheduler, Weighted};
use braid_core::{LinkId, MAX_LINKS, Prefix};
use braid_packet::{Fragment, Ip, protocol};

use super::flow;
use super::frame::{self, FrameError};
use super::reader::Reader;
use super::varint;

/// Most rules of a policy: each is held against every packet until one matches.
pub const RULES_MAX: usize = 255;

/// Largest parameter that is written, so that what is read can be computed with.
const NUMBER_MAX: u32 = 1_000_000;

/// Most bytes of a rule: `what`, an IPv6 address with family and length, protocol, ports, code point.
const RULE_MAX: usize = 1 + 18 + 1 + 4 + 1;

/// Most bytes of a policy as it is written: the scheduler with five numbers, a time-out, every link with its weight,
/// and all rules. A varint of at most 10⁶ takes four bytes,
/// that of a time-out two.
pub const POLICY_MAX: usize = 1 + 2 + 5 * 4 + 1 + MAX_LINKS * (1 + 4) + 2 + RULES_MAX * RULE_MAX;

/// Longest time-out of [`Ordering::TimeOut`] that is written.
pub const TIME_OUT_MAX: Duration = Duration::from_secs(10);

/// Bit of the scheduler's byte: a time-out follows.
const HAS_TIME_OUT: u8 = 0x80;

/// Which end of a packet is the far one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Far {
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
    pub ordering: Ordering,
    /// The first that matches counts; else [`flow::class`] does. Those beyond [`RULES_MAX`] count at
    /// neither end.
    pub rules: Vec<Rule>,
}

impl Policy {
    /// The class of a packet. It is asked for each: it does not allocate.
    #[must_use]
    pub fn class(&self, packet: &[u8], far: Far) -> Class {
        if self.rules.is_empty() {
            return flow::class(packet);
        }
        let Some(seen) = Seen::of(packet, far) else {
            return flow::class(packet);
        };
        // No more than the other end hears of: both treat a flow alike.
        let mut rules = self.rules.iter().take(RULES_MAX);
        let found = rules.find(|rule| rule.matches(&seen));
        found.map_or_else(|| flow::class(packet), |rule| rule.class)
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

    /// Writes it. Rules beyond [`RULES_MAX`] are left out.
    pub fn append(&self, out: &mut Vec<u8>) {
        let scheduler = match &self.scheduling {
            Scheduling::Adaptive => 0,
            Scheduling::Overflow(..) => 1,
            Scheduling::Weighted(..) => 2,
        };
        match self.ordering {
            Ordering::Measured => out.push(scheduler),
            Ordering::TimeOut(time_out) => {
                out.push(scheduler | HAS_TIME_OUT);
                let longest = time_out.min(TIME_OUT_MAX);
                varint::append(longest.as_millis().max(1) as u64, out);
            }
        }
        match &self.scheduling {
            Scheduling::Adaptive => {}
            Scheduling::Overflow(parameters, links) => {
                append_parameters(parameters, out);
                out.push(links.len().min(MAX_LINKS) as u8);
                out.extend(links.iter().take(MAX_LINKS).map(|link| link.0));
            }
            Scheduling::Weighted(burst, links) => {
                varint::append((*burst).min(NUMBER_MAX).into(), out);
                out.push(links.len().min(MAX_LINKS) as u8);
                for (link, weight) in &proportions(&links[..links.len().min(MAX_LINKS)]) {
                    out.push(link.0);
                    varint::append((*weight).into(), out);
                }
            }
        }
        let rules = &self.rules[..self.rules.len().min(RULES_MAX)];
        varint::append(rules.len() as u64, out);
        rules.iter().for_each(|rule| rule.append(out));
    }

    /// Reads all of `bytes`.
    ///
    /// # Errors
    /// It is of a later version, or makes no sense.
    pub fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        let reader = &mut Reader::new(bytes);
        let first = reader.u8()?;
        let ordering = match first & HAS_TIME_OUT {
            0 => Ordering::Measured,
            _ => Ordering::TimeOut(time_out(reader)?),
        };
        let scheduling = match first & !HAS_TIME_OUT {
            0 => Scheduling::Adaptive,
            1 => {
                let parameters = parameters(reader)?;
                let links = parse_links(reader, |_| Ok(()))?;
                let links: Vec<LinkId> = links.into_iter().map(|(link, ())| link).collect();
                // What no scheduler can be made of is no policy.
                Overflow::new(&links, parameters).map_err(|_| FrameError::Range)?;
                Scheduling::Overflow(parameters, links)
            }
            2 => {
                let burst = number(reader)?;
                let links = parse_links(reader, number)?;
                Scheduling::Weighted(burst, links)
            }
            _ => return Err(FrameError::Range),
        };
        let count = varint::parse_u32(reader)? as usize;
        if count > RULES_MAX {
            return Err(FrameError::Range);
        }
        let rules = (0..count).map(|_| Rule::parse(reader));
        let rules = rules.collect::<Result<Vec<_>, _>>()?;
        match reader.is_empty() {
            true => Ok(Policy {
                scheduling,
                ordering,
                rules,
            }),
            false => Err(FrameError::Range),
        }
    }
}

/// Weights in the same proportion to each other, none above [`NUMBER_MAX`]; what was above zero stays so.
fn proportions(links: &[(LinkId, u32)]) -> Vec<(LinkId, u32)> {
    let largest = links.iter().map(|(_, weight)| *weight).max().unwrap_or(0);
    let scaled = |weight: u32| match largest <= NUMBER_MAX {
        true => weight,
        false => {
            let part = u64::from(weight) * u64::from(NUMBER_MAX) / u64::from(largest);
            (part as u32).max(weight.min(1))
        }
    };
    let links = links.iter();
    links
        .map(|(link, weight)| (*link, scaled(*weight)))
        .collect()
}

fn number(reader: &mut Reader<'_>) -> Result<u32, FrameError> {
    let number = varint::parse_u32(reader)?;
    match number <= NUMBER_MAX {
        true => Ok(number),
        false => Err(FrameError::Range),
    }
}

fn time_out(reader: &mut Reader<'_>) -> Result<Duration, FrameError> {
    let time_out = Duration::from_millis(number(reader)?.into());
    match time_out.is_zero() || time_out > TIME_OUT_MAX {
        true => Err(FrameError::Range),
        false => Ok(time_out),
    }
}

fn append_parameters(parameters: &Parameters, out: &mut Vec<u8>) {
    let Parameters {
        k,
        t_dwd,
        t_report,
        w_fixed,
        w_max,
    } = *parameters;
    let millis = |span: Duration| u32::try_from(span.as_millis()).unwrap_or(u32::MAX);
    let numbers = [
        (k * 1000.0).round() as u32,
        millis(t_dwd),
        millis(t_report),
        w_fixed.round() as u32,
        w_max.round() as u32,
    ];
    numbers
        .into_iter()
        .for_each(|number| varint::append(number.min(NUMBER_MAX).into(), out));
}

fn parameters(reader: &mut Reader<'_>) -> Result<Parameters, FrameError> {
    let millis = |number: u32| Duration::from_millis(number.into());
    Ok(Parameters {
        k: f64::from(number(reader)?) / 1000.0,
        t_dwd: millis(number(reader)?),
        t_report: millis(number(reader)?),
        w_fixed: number(reader)?.into(),
        w_max: number(reader)?.into(),
    })
}

/// Links, none twice, each with what `more` reads.
fn parse_links<T>(
    reader: &mut Reader<'_>,
    mut more: impl FnMut(&mut Reader<'_>) -> Result<T, FrameError>,
) -> Result<Vec<(LinkId, T)>, FrameError> {
    let count = reader.u8()?;
    let mut links: Vec<(LinkId, T)> = Vec::new();
    for _ in 0..count {
        let link = LinkId(reader.u8()?);
        if link.index() >= MAX_LINKS || links.iter().any(|(known, _)| *known == link) {
            return Err(FrameError::Range);
        }
        links.push((link, more(reader)?));
    }
    Ok(links)
}

/// Bits of a rule's first byte.
mod what {
    pub const CLASS: u8 = 0x03;
    pub const NETWORK: u8 = 0x04;
    pub const PROTOCOL: u8 = 0x08;
    pub const PORTS: u8 = 0x10;
    pub const DSCP: u8 = 0x20;
    pub const V4: u8 = 0x40;
    pub const V6: u8 = 0x80;
}

impl Rule {
    fn matches(&self, seen: &Seen) -> bool {
        let asked = |wanted: Option<bool>| wanted.unwrap_or(true);
        asked(self.is_v4.map(|is_v4| is_v4 == seen.address.is_ipv4()))
            && asked(self.protocol.map(|number| number == seen.protocol))
            && asked(self.dscp.map(|dscp| dscp == seen.dscp))
            && asked(
                self.ports
                    .as_ref()
                    .map(|ports| seen.port.is_some_and(|port| ports.contains(&port))),
            )
            && asked(self.network.map(|network| network.contains(seen.address)))
    }

    fn append(&self, out: &mut Vec<u8>) {
        let bit = |is_said: bool, bit: u8| if is_said { bit } else { 0 };
        out.push(
            frame::Class::from(self.class) as u8
                | bit(self.network.is_some(), what::NETWORK)
                | bit(self.protocol.is_some(), what::PROTOCOL)
                | bit(self.ports.is_some(), what::PORTS)
                | bit(self.dscp.is_some(), what::DSCP)
                | bit(self.is_v4 == Some(true), what::V4)
                | bit(self.is_v4 == Some(false), what::V6),
        );
        if let Some(network) = self.network {
            let length = network.length();
            let bytes = usize::from(length.div_ceil(8));
            match network.address() {
                IpAddr::V4(address) => {
                    out.extend_from_slice(&[4, length]);
                    out.extend_from_slice(&address.octets()[..bytes]);
                }
                IpAddr::V6(address) => {
                    out.extend_from_slice(&[6, length]);
                    out.extend_from_slice(&address.octets()[..bytes]);
                }
            }
        }
        out.extend(self.protocol);
        if let Some(ports) = &self.ports {
            out.extend_from_slice(&ports.start().to_be_bytes());
            out.extend_from_slice(&ports.end().to_be_bytes());
        }
        out.extend(self.dscp);
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let said = reader.u8()?;
        let has = |bit: u8| said & bit != 0;
        let mut rule = Rule {
            class: frame::Class::ALL[usize::from(said & what::CLASS)].into(),
            is_v4: match (has(what::V4), has(what::V6)) {
                (true, true) => return Err(FrameError::Range),
                (false, false) => None,
                (is_v4, _) => Some(is_v4),
            },
            ..Rule::default()
        };
        if has(what::NETWORK) {
            rule.network = Some(network(reader)?);
        }
        if has(what::PROTOCOL) {
            rule.protocol = Some(reader.u8()?);
        }
        if has(what::PORTS) {
            let (first, last) = (reader.u16()?, reader.u16()?);
            if first > last {
                return Err(FrameError::Range);
            }
            rule.ports = Some(first..=last);
        }
        if has(what::DSCP) {
            rule.dscp = Some(reader.u8()?).filter(|dscp| *dscp < 64);
            rule.dscp.ok_or(FrameError::Range)?;
        }
        Ok(rule)
    }
}

fn network(reader: &mut Reader<'_>) -> Result<Prefix, FrameError> {
    let (family, length) = (reader.u8()?, reader.u8()?);
    let most = match family {
        4 => 32,
        6 => 128,
        _ => return Err(FrameError::Range),
    };
    if length > most {
        return Err(FrameError::Range);
    }
    let given = reader.take(usize::from(length.div_ceil(8)))?;
    let mut octets = [0; 16];
    octets[..given.len()].copy_from_slice(given);
    let address = match (family, octets.first_chunk::<4>()) {
        (4, Some(v4)) => IpAddr::from(*v4),
        _ => IpAddr::from(octets),
    };
    let network = Prefix::new(address, length).ok_or(FrameError::Range)?;
    // Bits behind the prefix would be a second way to write the same.
    match network.address() == address {
        true => Ok(network),
        false => Err(FrameError::Range),
    }
}

/// What rules go by, of one packet. Fragments have no ports that could be seen.
struct Seen {
    address: IpAddr,
    protocol: u8,
    port: Option<u16>,
    dscp: u8,
}

impl Seen {
    fn of(packet: &[u8], far: Far) -> Option<Seen> {
        let ip = Ip::parse(packet).ok()?;
        let traffic_class = match ip.source.is_ipv4() {
            true => packet[1],
            false => packet[0] << 4 | packet[1] >> 4,
        };
        let has_ports =
            matches!(ip.protocol, protocol::TCP | protocol::UDP) && ip.fragment == Fragment::Whole;
        let (address, at) = match far {
            Far::Destination => (ip.dest, ip.header + 2),
            Far::Source => (ip.source, ip.header),
        };
        let port = packet.get(at..at + 2).filter(|_| has_ports);
        Some(Seen {
            address,
            protocol: ip.protocol,
            port: port.map(|port| u16::from_be_bytes([port[0], port[1]])),
            dscp: traffic_class >> 2,
        })
    }
}

#[cfg(test)]
mod tests {
    use braid_packet::build;
    use proptest::prelude::*;

    use super::*;

    fn end(address: &str, port: u16) -> build::End {
        (address.parse().expect("an address"), port)
    }

    fn network(address: &str, length: u8) -> Option<Prefix> {
        Prefix::new(address.parse().expect("an address"), length)
    }

    fn written(policy: &Policy) -> Vec<u8> {
        let mut out = Vec::new();
        policy.append(&mut out);
        out
    }

    fn rules() -> Vec<Rule> {
        vec![
            Rule {
                protocol: Some(17),
                ports: Some(5000..=5010),
                class: Class::Redundant,
                ..Rule::default()
            },
            Rule {
                network: network("198.51.100.0", 24),
                class: Class::Pinned,
                ..Rule::default()
            },
            Rule {
                is_v4: Some(false),
                dscp: Some(10),
                class: Class::Unordered,
                ..Rule::default()
            },
        ]
    }

    #[test]
    fn the_first_rule_that_matches_decides_at_both_ends() {
        let policy = Policy {
            rules: rules(),
            ..Policy::default()
        };
        let (here, there) = (end("10.73.0.2", 1000), |port| end("198.51.100.1", port));
        let both = |port, class| {
            let up = build::udp(here, there(port), &[0; 1000]);
            let down = build::udp(there(port), here, &[0; 1000]);
            assert_eq!(policy.class(&up, Far::Destination), class);
            assert_eq!(policy.class(&down, Far::Source), class);
        };
        both(5005, Class::Redundant);
        both(6000, Class::Pinned);
        let tcp = |dest| policy.class(&build::tcp(here, dest, 0x10, b""), Far::Destination);
        assert_eq!(tcp(there(5005)), Class::Pinned);
        assert_eq!(tcp(end("192.0.2.1", 5005)), Class::Ordered);
        // From the far end's port 1000 to port 5005 here: the rule is about the other port.
        let other = build::udp(end("192.0.2.1", 1000), end("10.73.0.2", 5005), &[0; 1000]);
        assert_eq!(policy.class(&other, Far::Source), Class::Ordered);
        let mut marked = build::tcp(end("fd00::2", 1), end("2001:db8::1", 443), 0x10, b"");
        assert_eq!(policy.class(&marked, Far::Destination), Class::Ordered);
        marked[0] = 0x60 | (10 << 2) >> 4;
        marked[1] = ((10 << 2) & 0x0f) << 4;
        assert_eq!(policy.class(&marked, Far::Destination), Class::Unordered);
        assert_eq!(policy.class(&[0x45], Far::Source), Class::Ordered);
    }

    #[test]
    fn a_small_policy_takes_few_bytes() {
        let policy = Policy {
            scheduling: Scheduling::Overflow(Parameters::default(), vec![LinkId(0), LinkId(1)]),
            rules: rules(),
            ..Policy::default()
        };
        let bytes = written(&policy);
        let rules = [1 + 1 + 4, 1 + 2 + 3, 1 + 1].iter().sum::<usize>();
        assert_eq!(bytes.len(), 1 + 2 + 2 + 1 + 1 + 1 + 3 + 1 + rules);
        assert_eq!(Policy::parse(&bytes), Ok(policy));
    }

    #[test]
    fn weights_too_large_to_be_said_keep_their_proportion() {
        let weights = |weights: [u32; 3]| {
            let links = (0..).map(LinkId).zip(weights);
            let policy = Policy {
                scheduling: Scheduling::Weighted(8, links.collect()),
                ..Policy::default()
            };
            let heard = Policy::parse(&written(&policy)).map(|policy| policy.scheduling);
            let Ok(Scheduling::Weighted(8, links)) = heard else {
                panic!("{heard:?}")
            };
            links
                .into_iter()
                .map(|(_, weight)| weight)
                .collect::<Vec<_>>()
        };
        assert_eq!(weights([NUMBER_MAX, 7, 0]), [NUMBER_MAX, 7, 0]);
        let large = weights([4_000_000_000, 1_000_000_000, 1]);
        assert_eq!(large, [NUMBER_MAX, NUMBER_MAX / 4, 1]);
        assert_eq!(weights([u32::MAX; 3]), [NUMBER_MAX; 3]);
    }

    #[test]
    fn the_longest_policy_is_as_long_as_it_says() {
        let rule = Rule {
            network: network("2001:db8::1", 128),
            protocol: Some(6),
            ports: Some(1..=2),
            dscp: Some(63),
            is_v4: Some(false),
            class: Class::Pinned,
        };
        let links = (0..MAX_LINKS as u8).map(|link| (LinkId(link), NUMBER_MAX));
        let policy = Policy {
            scheduling: Scheduling::Weighted(NUMBER_MAX, links.collect()),
            ordering: Ordering::TimeOut(TIME_OUT_MAX),
            rules: vec![rule; RULES_MAX],
        };
        // Of the five numbers only a burst goes with weights.
        assert_eq!(written(&policy).len(), POLICY_MAX - 4 * 4);
    }

    #[test]
    fn rules_that_are_too_many_count_at_neither_end() {
        let mut rules = vec![
            Rule {
                protocol: Some(1),
                ..Rule::default()
            };
            RULES_MAX
        ];
        rules.push(Rule {
            class: Class::Redundant,
            ..Rule::default()
        });
        let here = Policy {
            rules,
            ..Policy::default()
        };
        let there = Policy::parse(&written(&here)).expect("what is left makes sense");
        let ends = (end("10.73.0.2", 1000), end("198.51.100.1", 443));
        let packet = build::tcp(ends.0, ends.1, 0x10, b"");
        for policy in [here, there] {
            assert_eq!(policy.class(&packet, Far::Destination), Class::Ordered);
        }
    }

    #[test]
    fn what_no_scheduler_can_be_made_of_is_refused() {
        let refused = |scheduling| {
            let policy = Policy {
                scheduling,
                ..Policy::default()
            };
            assert_eq!(Policy::parse(&written(&policy)), Err(FrameError::Range));
        };
        let parameters = Parameters::default();
        refused(Scheduling::Overflow(parameters, vec![]));
        refused(Scheduling::Overflow(parameters, vec![LinkId(1); 2]));
        let t_dwd = Duration::from_millis(70);
        let odd = Parameters {
            t_dwd,
            ..parameters
        };
        refused(Scheduling::Overflow(odd, vec![LinkId(0)]));
        refused(Scheduling::Weighted(8, vec![(LinkId(40), 1)]));
        assert_eq!(Policy::parse(&[3, 0]), Err(FrameError::Range));
        assert_eq!(
            Policy::parse(&[0x80, 0, 0]),
            Err(FrameError::Range),
            "no time"
        );
        let long = varint::parse_u32(&mut Reader::new(&[0x67, 0x11])).expect("a number");
        assert_eq!(u128::from(long), TIME_OUT_MAX.as_millis() + 1);
        let too_long = [0x80, 0x67, 0x11, 0];
        assert_eq!(Policy::parse(&too_long), Err(FrameError::Range));
        assert_eq!(
            Policy::parse(&[0, 0, 0]),
            Err(FrameError::Range),
            "more behind"
        );
    }

    prop_compose! {
        fn rule()(
            network in prop::option::of((any::<bool>(), any::<[u8; 16]>(), 0u8..=128)),
            protocol: Option<u8>,
            ports in prop::option::of(any::<(u16, u16)>()),
            dscp in prop::option::of(0u8..64),
            is_v4: Option<bool>,
            class in 0usize..4,
        ) -> Rule {
            let network = network.and_then(|(is_v4, octets, length)| match is_v4 {
                true => Prefix::new(IpAddr::from([octets[0], octets[1], octets[2], octets[3]]), length % 33),
                false => Prefix::new(IpAddr::from(octets), length),
            });
            let ports = ports.map(|(a, b)| a.min(b)..=a.max(b));
            Rule { network, protocol, ports, dscp, is_v4, class: frame::Class::ALL[class].into() }
        }
    }

    fn scheduling() -> impl Strategy<Value = Scheduling> {
        let links = prop::collection::btree_map(0..MAX_LINKS as u8, 1..=NUMBER_MAX, 1..5);
        let numbers = (1u32..5000, 1u32..20, 1u32..1000, any::<[u16; 2]>());
        (0..3, links, numbers).prop_map(|(kind, links, (k, times, report, weights))| {
            let links = links
                .into_iter()
                .map(|(link, weight)| (LinkId(link), weight));
            match kind {
                0 => Scheduling::Adaptive,
                1 => {
                    let parameters = Parameters {
                        k: f64::from(k) / 1000.0,
                        t_dwd: Duration::from_millis((times * report).into()),
                        t_report: Duration::from_millis(report.into()),
                        w_fixed: f64::from(weights[0]) + 1.0,
                        w_max: f64::from(weights[1]) + 1.0,
                    };
                    Scheduling::Overflow(parameters, links.map(|(link, _)| link).collect())
                }
                _ => Scheduling::Weighted(k, links.collect()),
            }
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            scheduling in scheduling(),
            time_out in prop::option::of(1u64..=10_000),
            rules in prop::collection::vec(rule(), 0..20),
        ) {
            let time_out = time_out.map(Duration::from_millis);
            let ordering = time_out.map_or(Ordering::Measured, Ordering::TimeOut);
            let policy = Policy { scheduling, ordering, rules };
            let bytes = written(&policy);
            prop_assert_eq!(Policy::parse(&bytes), Ok(policy));
            for cut in 0..bytes.len() {
                prop_assert!(Policy::parse(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn what_is_read_is_written(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(policy) = Policy::parse(&bytes) {
                prop_assert_eq!(written(&policy), bytes);
                let _ = policy.scheduler();
            }
        }
    }
}
