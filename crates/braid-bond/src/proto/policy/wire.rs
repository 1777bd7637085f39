//! Wire format of a policy ([`Policy::append`]):
//!
//! ```text
//! scheduler 8 · [time-out varint (ms), only with bit 7 of the scheduler]
//!   0 adaptive
//!   1 overflow   k varint (1/1000) · t_dwd varint (ms) · t_report varint (ms) · w_fixed varint ·
//!                w_max varint · links 8 · links × link 8
//!   2 weighted   burst varint · links 8 · links × (link 8 · weight varint)
//! rules varint · rules × rule
//! rule           bits 8 · [family 8 · length 8 · address] · [protocol 8] · [first 16 · last 16] · [dscp 8]
//! ```
//! Bit 7 of the scheduler's byte: packets are reordered with a fixed time-out, as in \[l3b\] §4.3.
//! `bits` has the class in its lowest two bits, then from bit 2 on the presence of network,
//! protocol, ports and code point, then IPv4 only and IPv6 only. An address has as many bytes as
//! its prefix length needs. Rules match the *remote* end of a flow, as seen from the client: the
//! destination of packets from the client, the source of packets to it.

use std::net::IpAddr;
use std::time::Duration;

use braid_core::Prefix;
use braid_multipath::resequence::Reordering;
use braid_multipath::schedule::{Overflow, Parameters};
use braid_multipath::{LinkId, MAX_LINKS};

use super::{MAX_RULES, Policy, Rule, Scheduling};
use crate::proto::frame::{self, FrameError};
use crate::proto::reader::Reader;
use crate::proto::varint;

/// Largest parameter on the wire, so that computing with it cannot overflow.
pub(super) const MAX_NUMBER: u32 = 1_000_000;

/// Longest rule, bytes: `bits`, an IPv6 address with family and length, protocol, ports, code
/// point.
const MAX_RULE_BYTES: usize = 1 + 18 + 1 + 4 + 1;

/// Longest policy on the wire, bytes: the scheduler with five numbers, a time-out, every link with
/// its weight, and all rules. A varint of at most 10⁶ takes four bytes, that of a time-out two.
pub const MAX_POLICY_BYTES: usize =
    1 + 2 + 2 + 5 * 4 + 1 + MAX_LINKS * (1 + 4) + 2 + MAX_RULES * MAX_RULE_BYTES;

/// Longest time-out of [`Reordering::FixedTimeout`], and longest extra delay, on the wire.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(10);

/// Bits of the scheduler's byte: a time-out follows; the longest extra delay follows.
const HAS_TIME_OUT: u8 = 0x80;
const HAS_EXTRA_DELAY: u8 = 0x40;

impl Policy {
    /// Writes the policy. Rules beyond [`MAX_RULES`] are left out.
    pub fn append(&self, out: &mut Vec<u8>) {
        let scheduler = match &self.scheduling {
            Scheduling::Adaptive => 0,
            Scheduling::Overflow(..) => 1,
            Scheduling::Weighted(..) => 2,
        };
        let time_out = match self.ordering {
            Reordering::Adaptive => None,
            Reordering::FixedTimeout(time_out) => Some(time_out),
        };
        let bit = |present: bool, bit: u8| if present { bit } else { 0 };
        let time_out_bit = bit(time_out.is_some(), HAS_TIME_OUT);
        let extra_bit = bit(self.max_extra_delay.is_some(), HAS_EXTRA_DELAY);
        out.push(scheduler | time_out_bit | extra_bit);
        if let Some(time_out) = time_out {
            let longest = time_out.min(MAX_TIMEOUT);
            varint::append(longest.as_millis().max(1) as u64, out);
        }
        if let Some(extra) = self.max_extra_delay {
            varint::append(extra.min(MAX_TIMEOUT).as_millis() as u64, out);
        }
        match &self.scheduling {
            Scheduling::Adaptive => {}
            Scheduling::Overflow(parameters, links) => {
                append_parameters(parameters, out);
                out.push(links.len().min(MAX_LINKS) as u8);
                out.extend(links.iter().take(MAX_LINKS).map(|link| link.0));
            }
            Scheduling::Weighted(burst, links) => {
                varint::append((*burst).min(MAX_NUMBER).into(), out);
                out.push(links.len().min(MAX_LINKS) as u8);
                for (link, weight) in &proportions(&links[..links.len().min(MAX_LINKS)]) {
                    out.push(link.0);
                    varint::append((*weight).into(), out);
                }
            }
        }
        let rules = &self.rules[..self.rules.len().min(MAX_RULES)];
        varint::append(rules.len() as u64, out);
        rules.iter().for_each(|rule| rule.append(out));
    }

    /// Parses all of `bytes`.
    ///
    /// # Errors
    /// It is of a later version, or invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        let reader = &mut Reader::new(bytes);
        let first = reader.u8()?;
        let ordering = match first & HAS_TIME_OUT {
            0 => Reordering::Adaptive,
            _ => Reordering::FixedTimeout(time_out(reader)?),
        };
        let max_extra_delay = match first & HAS_EXTRA_DELAY {
            0 => None,
            _ => Some(extra_delay(reader)?),
        };
        let scheduling = match first & !(HAS_TIME_OUT | HAS_EXTRA_DELAY) {
            0 => Scheduling::Adaptive,
            1 => {
                let parameters = parameters(reader)?;
                let links = parse_links(reader, |_| Ok(()))?;
                let links: Vec<LinkId> = links.into_iter().map(|(link, ())| link).collect();
                // A policy that no scheduler can be made of is invalid.
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
        if count > MAX_RULES {
            return Err(FrameError::Range);
        }
        let rules = (0..count).map(|_| Rule::parse(reader));
        let rules = rules.collect::<Result<Vec<_>, _>>()?;
        match reader.is_empty() {
            true => Ok(Policy {
                scheduling,
                ordering,
                max_extra_delay,
                rules,
            }),
            false => Err(FrameError::Range),
        }
    }
}

/// Scales weights in proportion so that none is above [`MAX_NUMBER`]; a weight above zero stays
/// above zero.
fn proportions(links: &[(LinkId, u32)]) -> Vec<(LinkId, u32)> {
    let largest = links.iter().map(|(_, weight)| *weight).max().unwrap_or(0);
    let scaled = |weight: u32| match largest <= MAX_NUMBER {
        true => weight,
        false => {
            let part = u64::from(weight) * u64::from(MAX_NUMBER) / u64::from(largest);
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
    match number <= MAX_NUMBER {
        true => Ok(number),
        false => Err(FrameError::Range),
    }
}

fn time_out(reader: &mut Reader<'_>) -> Result<Duration, FrameError> {
    let time_out = Duration::from_millis(number(reader)?.into());
    match time_out.is_zero() || time_out > MAX_TIMEOUT {
        true => Err(FrameError::Range),
        false => Ok(time_out),
    }
}

fn extra_delay(reader: &mut Reader<'_>) -> Result<Duration, FrameError> {
    let extra = Duration::from_millis(number(reader)?.into());
    match extra > MAX_TIMEOUT {
        true => Err(FrameError::Range),
        false => Ok(extra),
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
        .for_each(|number| varint::append(number.min(MAX_NUMBER).into(), out));
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

/// Parses links, none twice, each with a value that `more` parses.
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
mod rule_bits {
    pub const CLASS: u8 = 0x03;
    pub const NETWORK: u8 = 0x04;
    pub const PROTOCOL: u8 = 0x08;
    pub const PORTS: u8 = 0x10;
    pub const DSCP: u8 = 0x20;
    pub const V4: u8 = 0x40;
    pub const V6: u8 = 0x80;
}

impl Rule {
    fn append(&self, out: &mut Vec<u8>) {
        let bit = |is_said: bool, bit: u8| if is_said { bit } else { 0 };
        out.push(
            frame::Class::from(self.class) as u8
                | bit(self.network.is_some(), rule_bits::NETWORK)
                | bit(self.protocol.is_some(), rule_bits::PROTOCOL)
                | bit(self.ports.is_some(), rule_bits::PORTS)
                | bit(self.dscp.is_some(), rule_bits::DSCP)
                | bit(self.is_v4 == Some(true), rule_bits::V4)
                | bit(self.is_v4 == Some(false), rule_bits::V6),
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
            class: frame::Class::ALL[usize::from(said & rule_bits::CLASS)].into(),
            is_v4: match (has(rule_bits::V4), has(rule_bits::V6)) {
                (true, true) => return Err(FrameError::Range),
                (false, false) => None,
                (is_v4, _) => Some(is_v4),
            },
            ..Rule::default()
        };
        if has(rule_bits::NETWORK) {
            rule.network = Some(network(reader)?);
        }
        if has(rule_bits::PROTOCOL) {
            rule.protocol = Some(reader.u8()?);
        }
        if has(rule_bits::PORTS) {
            let (first, last) = (reader.u16()?, reader.u16()?);
            if first > last {
                return Err(FrameError::Range);
            }
            rule.ports = Some(first..=last);
        }
        if has(rule_bits::DSCP) {
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
    // Bits behind the prefix would be a second encoding of the same network.
    match network.address() == address {
        true => Ok(network),
        false => Err(FrameError::Range),
    }
}
