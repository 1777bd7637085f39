//! The machine's own routes, whose traffic never reaches Braid.

use std::io;
use std::net::IpAddr;

use braid_host::user_error::UserError;
use futures_util::TryStreamExt;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteType,
};
use rtnetlink::RouteMessageBuilder;

/// A route that is more specific than a default route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnRoute {
    /// The route in the words of `ip route`.
    pub text: String,
    /// Its outgoing device, if it has one.
    pub device: Option<String>,
    /// True if it leads to the machine itself.
    pub local: bool,
}

/// Returns the route to a destination if it is more specific than a default route.
///
/// # Errors
/// The kernel cannot be queried.
pub async fn own_route(destination: IpAddr) -> Result<Option<OwnRoute>, UserError> {
    let broken = |error: &io::Error| UserError::io("ask the kernel for a route", error);
    let (connection, handle, _) = rtnetlink::new_connection().map_err(|error| broken(&error))?;
    let driver = tokio::spawn(connection).abort_handle();
    let length = if destination.is_ipv4() { 32 } else { 128 };
    let mut question = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(destination, length)
        .map_err(|error| UserError::new("usage", error.to_string()))?
        .build();
    // Without this flag the answer is about this one address and does not name its route.
    question.header.flags |= RouteFlags::FibMatch;
    let answer = handle.route().get(question).execute().try_next().await;
    driver.abort();
    match answer {
        Ok(Some(route)) => Ok(in_words(&route)),
        Ok(None) => Ok(None),
        // If there is no route at all, not even a default one, there is no specific one.
        Err(rtnetlink::Error::NetlinkError(error)) if is_unreachable(&error.to_io()) => Ok(None),
        Err(error) => Err(UserError::new(
            "route",
            format!("ask the kernel for a route: {error}"),
        )),
    }
}

fn is_unreachable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable
    )
}

/// Returns `None` for a default route.
fn in_words(route: &RouteMessage) -> Option<OwnRoute> {
    if route.header.destination_prefix_length == 0 {
        return None;
    }
    let mut text = String::new();
    let mut device = None;
    let local = route.header.kind == RouteType::Local;
    if local {
        text.push_str("local ");
    }
    let attributes = || route.attributes.iter();
    let destination = attributes().find_map(|attribute| match attribute {
        RouteAttribute::Destination(address) => address_text(address),
        _ => None,
    });
    let length = route.header.destination_prefix_length;
    text.push_str(&format!("{}/{length}", destination.unwrap_or_default()));
    for attribute in attributes() {
        match attribute {
            RouteAttribute::Gateway(gateway) => {
                text.push_str(&format!(" via {}", address_text(gateway)?));
            }
            RouteAttribute::Oif(index) => {
                let name = nix::net::if_::if_indextoname(*index).ok()?;
                let name = name.to_string_lossy().into_owned();
                text.push_str(&format!(" dev {name}"));
                device = Some(name);
            }
            _ => {}
        }
    }
    Some(OwnRoute {
        text,
        device,
        local,
    })
}

fn address_text(address: &RouteAddress) -> Option<String> {
    match address {
        RouteAddress::Inet(address) => Some(address.to_string()),
        RouteAddress::Inet6(address) => Some(address.to_string()),
        _ => None,
    }
}
