//! Reads the kernel's state over netlink. Makes no decisions.

use std::net::IpAddr;

use futures_util::{Stream, StreamExt, TryStreamExt};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage, State};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteType,
    RouteVia,
};
use rtnetlink::Handle;

use crate::snapshot::{Address, Link, LinkState, Network, Route, RouteHop};
use crate::{Error, Layer, ROUTE_PROTOCOL, Snapshot};

/// `IFA_F_TEMPORARY`: for IPv6 the same bit as IPv4's "secondary".
const TEMPORARY: AddressFlags = AddressFlags::Secondary;

/// Reads links, addresses and default routes of the calling thread's network namespace. Needs a
/// tokio runtime with I/O.
///
/// # Errors
/// [`Error::Socket`] or [`Error::Netlink`].
pub async fn read() -> Result<Snapshot, Error> {
    // Strict checking makes the kernel honour the filter on the table in a dump of routes.
    let (connection, handle, _) = rtnetlink::new_connection_with_strict_check()?;
    let driver = tokio::spawn(connection);
    let snapshot = read_with(&handle).await;
    driver.abort();
    snapshot
}

async fn read_with(handle: &Handle) -> Result<Snapshot, Error> {
    let links = collect("links", handle.link().get().execute()).await?;
    let addresses = collect("addresses", handle.address().get().execute()).await?;
    let mut routes = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        routes.extend(main_routes(handle, family).await?);
    }
    Ok(Snapshot {
        links: links.iter().map(link).collect(),
        addresses: addresses.iter().filter_map(address).collect(),
        routes: routes.iter().filter_map(default_route).collect(),
        networks: routes.iter().filter_map(network).collect(),
    })
}

async fn collect<T>(
    what: &'static str,
    stream: impl Stream<Item = Result<T, rtnetlink::Error>>,
) -> Result<Vec<T>, Error> {
    let all = stream.boxed_local().try_collect().await;
    all.map_err(|error| Error::Netlink {
        what,
        source: match error {
            rtnetlink::Error::NetlinkError(answer) => answer.to_io(),
            other => std::io::Error::other(other),
        },
    })
}

async fn main_routes(handle: &Handle, family: AddressFamily) -> Result<Vec<RouteMessage>, Error> {
    let mut message = RouteMessage::default();
    message.header.address_family = family;
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    match collect("routes", handle.route().get(message).execute()).await {
        // A namespace that never had a route of a family has no such table.
        Err(Error::Netlink { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Ok(Vec::new())
        }
        // A kernel without IPv6 answers with the routes that it has.
        Ok(mut routes) => {
            routes.retain(|route| route.header.address_family == family);
            Ok(routes)
        }
        Err(error) => Err(error),
    }
}

pub(crate) fn link(message: &LinkMessage) -> Link {
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        layer: layer(message.header.link_layer_type),
        state: LinkState::Up,
        mtu: 0,
    };
    let mut operational = State::Unknown;
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::OperState(state) => operational = *state,
            _ => {}
        }
    }
    link.state = link_state(message.header.flags, operational);
    link
}

fn layer(kind: LinkLayerType) -> Option<Layer> {
    match kind {
        LinkLayerType::Ether => Some(Layer::L2),
        LinkLayerType::None
        | LinkLayerType::Ppp
        | LinkLayerType::Rawip
        | LinkLayerType::Tunnel
        | LinkLayerType::Tunnel6
        | LinkLayerType::Sit
        | LinkLayerType::Ipgre => Some(Layer::L3),
        _ => None,
    }
}

fn link_state(flags: LinkFlags, operational: State) -> LinkState {
    if !flags.contains(LinkFlags::Up) {
        return LinkState::AdminDown;
    }
    // The operational state follows the carrier when the kernel's link watch gets round to it.
    if !flags.contains(LinkFlags::LowerUp) {
        return LinkState::NoCarrier;
    }
    match operational {
        // Drivers that report no operational state (tun, many virtual ones) have only a carrier.
        State::Up | State::Unknown => LinkState::Up,
        State::Dormant => LinkState::Dormant,
        _ => LinkState::NoCarrier,
    }
}

fn address(message: &AddressMessage) -> Option<Address> {
    let mut flags = AddressFlags::from_bits_retain(message.header.flags.bits().into());
    let (mut local, mut other) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => local = Some(*ip),
            // On a point-to-point link this is the remote end; on other links IPv6 has only this one.
            AddressAttribute::Address(ip) => other = Some(*ip),
            AddressAttribute::Flags(all) => flags = *all,
            _ => {}
        }
    }
    let address = local.or(other)?;
    let unusable = AddressFlags::Tentative | AddressFlags::Dadfailed | AddressFlags::Deprecated;
    let optimistic = flags.contains(AddressFlags::Optimistic);
    Some(Address {
        link: message.header.index,
        address,
        prefix: message.header.prefix_len,
        global: message.header.scope == AddressScope::Universe,
        usable: optimistic || !flags.intersects(unusable),
        temporary: address.is_ipv6() && flags.contains(TEMPORARY),
    })
}

/// Returns `None` unless it is a unicast default route of the main table that Braid did not make.
fn default_route(message: &RouteMessage) -> Option<Route> {
    let header = &message.header;
    if header.destination_prefix_length != 0
        || header.source_prefix_length != 0
        || header.kind != RouteType::Unicast
        || u8::from(header.protocol) == ROUTE_PROTOCOL
    {
        return None;
    }
    let mut table = u32::from(header.table);
    let mut route = Route {
        v6: header.address_family == AddressFamily::Inet6,
        metric: 0,
        advertised: header.protocol == RouteProtocol::Ra,
        source: None,
        mtu: None,
        hops: Vec::new(),
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(id) => table = *id,
            RouteAttribute::Priority(metric) => route.metric = *metric,
            RouteAttribute::PrefSource(source) => route.source = ip(source),
            RouteAttribute::Metrics(all) => {
                route.mtu = all.iter().find_map(|m| match m {
                    RouteMetric::Mtu(mtu) => Some(*mtu),
                    _ => None,
                });
            }
            RouteAttribute::MultiPath(hops) => {
                let hops = hops
                    .iter()
                    .map(|h| next_hop(h.interface_index, &h.attributes));
                route.hops.extend(hops);
            }
            RouteAttribute::Oif(index) => route.hops.push(next_hop(*index, &message.attributes)),
            _ => {}
        }
    }
    (table == u32::from(RouteHeader::RT_TABLE_MAIN)).then_some(route)
}

/// Returns `None` unless it is a network that a device reaches without a gateway.
fn network(message: &RouteMessage) -> Option<Network> {
    let header = &message.header;
    if header.destination_prefix_length == 0 || header.kind != RouteType::Unicast {
        return None;
    }
    let (mut link, mut address) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => link = Some(*index),
            RouteAttribute::Destination(network) => address = ip(network),
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) | RouteAttribute::MultiPath(_) => {
                return None;
            }
            _ => {}
        }
    }
    Some(Network {
        link: link?,
        address: address?,
        prefix: header.destination_prefix_length,
    })
}

fn next_hop(link: u32, attributes: &[RouteAttribute]) -> RouteHop {
    let gateway = attributes.iter().find_map(|a| match a {
        RouteAttribute::Gateway(gateway) => ip(gateway),
        RouteAttribute::Via(RouteVia::Inet(gateway)) => Some((*gateway).into()),
        RouteAttribute::Via(RouteVia::Inet6(gateway)) => Some((*gateway).into()),
        _ => None,
    });
    RouteHop { link, gateway }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some((*ip).into()),
        RouteAddress::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_lost_its_carrier_is_not_up_whatever_its_operational_state_still_says() {
        let (on, carrier) = (LinkFlags::Up, LinkFlags::Up | LinkFlags::LowerUp);
        for (flags, operational, state) in [
            (carrier, State::Up, LinkState::Up),
            (carrier, State::Unknown, LinkState::Up),
            (carrier, State::Dormant, LinkState::Dormant),
            (carrier, State::LowerLayerDown, LinkState::NoCarrier),
            (carrier, State::Down, LinkState::NoCarrier),
            (on, State::Up, LinkState::NoCarrier),
            (on, State::Dormant, LinkState::NoCarrier),
            (on, State::Unknown, LinkState::NoCarrier),
            (LinkFlags::LowerUp, State::Up, LinkState::AdminDown),
        ] {
            let found = link_state(flags, operational);
            assert_eq!(found, state, "{flags:?}, {operational:?}");
        }
    }
}
