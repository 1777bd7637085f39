//! Netlink messages of Braid's kernel objects, and their parsing. Pure.

use std::fmt::Display;
use std::net::IpAddr;

use braid_core::MAX_UPLINKS;
use braid_uplink::ROUTE_PROTOCOL;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute,
    LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope,
    RouteType,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};

use super::selector::Selector;
use super::state::{Family, ForeignRule, Route, Rule, RuleOutcome};
use super::{
    BALANCE_TABLE, BYPASS_PREFERENCES, DIVERT_PREFERENCE, GROUP, MARK, PEER_DEVICE,
    SEGMENT_PREFERENCE, STEER_DEVICE,
};

/// `FRA_SUPPRESS_PREFIXLEN` of a rule that suppresses nothing.
const NOTHING_SUPPRESSED: u32 = u32::MAX;

pub(super) fn veth(mtu: u32) -> LinkMessage {
    let end = |device: &str| {
        let mut message = LinkMessage::default();
        message
            .attributes
            .push(LinkAttribute::IfName(device.to_owned()));
        message.attributes.push(LinkAttribute::Mtu(mtu));
        message.attributes.push(LinkAttribute::Group(GROUP));
        message
    };
    let mut message = end(STEER_DEVICE);
    message.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(end(PEER_DEVICE)))),
    ]));
    message
}

pub(super) fn link_setup(index: u32, mtu: u32, ipv6: bool) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = LinkFlags::Noarp;
    message.header.change_mask = LinkFlags::Noarp;
    message
        .attributes
        .push(LinkAttribute::IfAlias(MARK.to_owned()));
    message.attributes.push(LinkAttribute::Mtu(mtu));
    if ipv6 {
        let quiet = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
        let families = vec![AfSpecUnspec::Inet6(vec![quiet])];
        message
            .attributes
            .push(LinkAttribute::AfSpecUnspec(families));
    }
    message
}

pub(super) fn link_up(index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    message
}

pub(super) fn address(index: u32, address: IpAddr) -> AddressMessage {
    let family = Family::of(address);
    let mut message = AddressMessage::default();
    message.header.family = netlink_family(family);
    message.header.prefix_len = family.host_prefix();
    message.header.index = index;
    message.attributes.push(AddressAttribute::Local(address));
    message.attributes.push(AddressAttribute::Address(address));
    if family == Family::V6 {
        // No neighbour could object (duplicate address detection), and routes may name the address at once.
        message
            .attributes
            .push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    message
}

/// Returns a filter for the routes of Braid's protocol.
pub(super) fn our_routes(family: Family) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = netlink_family(family);
    message.header.protocol = RouteProtocol::from(ROUTE_PROTOCOL);
    message
}

pub(super) fn route(route: &Route, device: u32) -> RouteMessage {
    let mut message = our_routes(route.family);
    message.header.table = RouteHeader::RT_TABLE_UNSPEC;
    message.header.kind = RouteType::Unicast;
    let on_link = route.gateway.is_none() && route.family == Family::V4;
    message.header.scope = if on_link {
        RouteScope::Link
    } else {
        RouteScope::Universe
    };
    let attributes = &mut message.attributes;
    attributes.push(RouteAttribute::Table(route.table));
    attributes.push(RouteAttribute::Oif(device));
    attributes.extend(route.gateway.map(|ip| RouteAttribute::Gateway(ip.into())));
    attributes.extend(route.source.map(|ip| RouteAttribute::PrefSource(ip.into())));
    if route.metric != 0 {
        attributes.push(RouteAttribute::Priority(route.metric));
    }
    if route.gateway.is_some() {
        message.header.flags = RouteFlags::Onlink;
    }
    message
}

/// Returns `None` for another protocol or table.
pub(super) fn parse_route(
    message: &RouteMessage,
    device_name: impl Fn(u32) -> Option<String>,
) -> Option<Route> {
    let header = &message.header;
    let mut route = Route {
        family: family(header.address_family)?,
        table: header.table.into(),
        device: String::new(),
        gateway: None,
        source: None,
        metric: 0,
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(table) => route.table = *table,
            RouteAttribute::Oif(index) => route.device = device_name(*index)?,
            RouteAttribute::Gateway(gateway) => route.gateway = ip(gateway),
            RouteAttribute::PrefSource(source) => route.source = ip(source),
            RouteAttribute::Priority(metric) => route.metric = *metric,
            _ => {}
        }
    }
    let ours = header.destination_prefix_length == 0
        && u8::from(header.protocol) == ROUTE_PROTOCOL
        && is_our_table(route.table);
    ours.then_some(route)
}

pub(super) fn rule(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = netlink_family(rule.family);
    let attributes = &mut message.attributes;
    attributes.push(RuleAttribute::Priority(rule.preference));
    attributes.push(RuleAttribute::Protocol(RouteProtocol::from(ROUTE_PROTOCOL)));
    match rule.leads {
        RuleOutcome::Past(preference) => {
            message.header.action = RuleAction::Goto;
            attributes.push(RuleAttribute::Goto(preference));
        }
        RuleOutcome::Table { table, suppress } => {
            message.header.action = RuleAction::ToTable;
            attributes.push(RuleAttribute::Table(table));
            attributes.extend(suppress.map(RuleAttribute::SuppressPrefixLen));
        }
    }
    rule.select.put(&mut message);
    message
}

/// Returns `None` for another protocol or preference.
pub(super) fn parse_rule(message: &RuleMessage) -> Option<Rule> {
    let (mut preference, mut protocol) = (0, 0);
    let (mut table, mut suppress, mut past) = (message.header.table.into(), None, None);
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Priority(number) => preference = *number,
            RuleAttribute::Table(number) => table = *number,
            RuleAttribute::Goto(number) => past = Some(*number),
            RuleAttribute::Protocol(id) => protocol = u8::from(*id),
            RuleAttribute::SuppressPrefixLen(length) if *length != NOTHING_SUPPRESSED => {
                suppress = Some(*length);
            }
            _ => {}
        }
    }
    let fixed = (SEGMENT_PREFERENCE..=DIVERT_PREFERENCE).contains(&preference);
    let ours = protocol == ROUTE_PROTOCOL && (fixed || BYPASS_PREFERENCES.contains(&preference));
    ours.then_some(Rule {
        family: family(message.header.family)?,
        preference,
        select: Selector::of(message),
        leads: match past {
            Some(preference) => RuleOutcome::Past(preference),
            None => RuleOutcome::Table { table, suppress },
        },
    })
}

/// Returns `None` for Braid's rules, for later ones, and for those that only find specific routes.
pub(super) fn parse_foreign_rule(message: &RuleMessage) -> Option<ForeignRule> {
    let mut preference = 0;
    let mut table = u32::from(message.header.table);
    let inverted = message.header.flags.contains(RuleFlags::Invert);
    let not = if inverted { " not" } else { "" };
    let (mut selector, mut mark, mut mask) = (not.to_owned(), None, u32::MAX);
    let mut say = |word: &str, value: &dyn Display| selector += &format!(" {word} {value}");
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Priority(id) => preference = *id,
            RuleAttribute::Table(id) => table = *id,
            RuleAttribute::Source(ip) => say("from", &format!("{ip}/{}", message.header.src_len)),
            RuleAttribute::Destination(ip) => {
                say("to", &format!("{ip}/{}", message.header.dst_len))
            }
            RuleAttribute::Iifname(device) => say("iif", device),
            RuleAttribute::Oifname(device) => say("oif", device),
            RuleAttribute::FwMark(value) => mark = Some(*value),
            RuleAttribute::FwMask(value) => mask = *value,
            RuleAttribute::SuppressPrefixLen(length) if *length != NOTHING_SUPPRESSED => {
                return None;
            }
            _ => {}
        }
    }
    if let Some(mark) = mark {
        say("fwmark", &format!("{mark:#x}/{mask:#x}"));
    }
    let earlier = (1..=DIVERT_PREFERENCE).contains(&preference);
    // Without a table it is a VRF rule (l3mdev) or one that only skips.
    let leads_away = message.header.action == RuleAction::ToTable && table != 0;
    (earlier && leads_away && parse_rule(message).is_none()).then_some(ForeignRule {
        family: family(message.header.family)?,
        preference,
        selector,
        table,
    })
}

fn is_our_table(table: u32) -> bool {
    table
        .checked_sub(BALANCE_TABLE)
        .is_some_and(|i| i as usize <= MAX_UPLINKS)
}

fn netlink_family(family: Family) -> AddressFamily {
    match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    }
}

fn family(family: AddressFamily) -> Option<Family> {
    match family {
        AddressFamily::Inet => Some(Family::V4),
        AddressFamily::Inet6 => Some(Family::V6),
        _ => None,
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some((*ip).into()),
        RouteAddress::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}
