//! Reads the kernel's state and applies steps, over netlink and `/proc/sys`. Makes no decisions.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use braid_host::sysctl;
use futures_util::{StreamExt, TryStreamExt};
use netlink_packet_route::RouteNetlinkMessage as Request;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoKind, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage,
};
use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage,
    NetlinkPayload,
};
use rtnetlink::{Handle, IpVersion};
use tokio::task::AbortHandle;

use super::plan::{Device, Found};
use super::state::{Family, ForeignRule, Step};
use super::{Error, GROUP, MARK, PEER_DEVICE, STEER_DEVICE, Saved, netlink_messages};

const PROC_SYS: &str = "/proc/sys";

pub(super) struct Kernel {
    handle: Handle,
    driver: AbortHandle,
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Kernel {
    pub fn open() -> io::Result<Kernel> {
        // Strict checking makes the kernel honour the filter on the protocol in a dump of routes.
        let (connection, handle, _) = rtnetlink::new_connection_with_strict_check()?;
        let driver = tokio::spawn(connection).abort_handle();
        Ok(Kernel { handle, driver })
    }

    pub async fn read(&self, keys: Vec<String>, saved: &Saved) -> Result<Found, Error> {
        let links: Vec<LinkMessage> = all("links", self.handle.link().get().execute()).await?;
        let named = |name: &str| links.iter().find(|l| name_of(l) == Some(name));
        let device_name = |index: u32| {
            links
                .iter()
                .find(|l| l.header.index == index)
                .and_then(name_of)
                .map(str::to_owned)
        };
        let ipv6 = has_ipv6();
        let steer = named(STEER_DEVICE).map(|l| device(l, ipv6));
        let mut found = Found {
            steer,
            peer: named(PEER_DEVICE).map(|l| device(l, ipv6)),
            ipv6,
            sysctls: sysctl::read(
                keys.into_iter()
                    .chain(saved.sysctls.iter().map(|s| s.key.clone())),
            )?,
            ..Found::default()
        };
        if let Some(steer) = steer {
            let addresses = all("addresses", self.handle.address().get().execute()).await?;
            let own = addresses.iter().filter(|a| a.header.index == steer.index);
            found.addresses = own.filter_map(|a| local(&a.attributes)).collect();
        }
        for (family, version) in families(ipv6) {
            let ours = netlink_messages::our_routes(family);
            let routes = all("routes", self.handle.route().get(ours).execute()).await?;
            let routes = routes
                .iter()
                .filter_map(|r| netlink_messages::parse_route(r, device_name));
            found.routes.extend(routes);
            let rules = all("rules", self.handle.rule().get(version).execute()).await?;
            found
                .rules
                .extend(rules.iter().filter_map(netlink_messages::parse_rule));
        }
        Ok(found)
    }

    pub async fn foreign_rules(&self) -> Result<Vec<ForeignRule>, Error> {
        let mut foreign = Vec::new();
        for (_, version) in families(has_ipv6()) {
            let rules = all("rules", self.handle.rule().get(version).execute()).await?;
            foreign.extend(
                rules
                    .iter()
                    .filter_map(netlink_messages::parse_foreign_rule),
            );
        }
        Ok(foreign)
    }

    pub async fn take(&self, step: &Step) -> io::Result<()> {
        match step {
            Step::Sysctl(write) => write.apply(),
            Step::AddVeth { mtu } => {
                let request = Request::NewLink(netlink_messages::veth(*mtu));
                self.send(request, NLM_F_CREATE | NLM_F_EXCL).await
            }
            Step::SetLink { device, mtu, ipv6 } => {
                let index = self.index(device).await?;
                self.send(
                    Request::SetLink(netlink_messages::link_setup(index, *mtu, *ipv6)),
                    0,
                )
                .await
            }
            Step::LinkUp { device } => {
                let index = self.index(device).await?;
                self.send(Request::SetLink(netlink_messages::link_up(index)), 0)
                    .await
            }
            Step::DelLink { device } => {
                let mut link = LinkMessage::default();
                link.attributes
                    .push(LinkAttribute::IfName((*device).to_owned()));
                gone_is_fine(self.send(Request::DelLink(link), 0).await)
            }
            Step::AddAddress(address) => {
                let index = self.index(STEER_DEVICE).await?;
                let request = Request::NewAddress(netlink_messages::address(index, *address));
                self.send(request, NLM_F_CREATE | NLM_F_REPLACE).await
            }
            Step::DelAddress(address) => {
                let index = self.index(STEER_DEVICE).await?;
                let request = Request::DelAddress(netlink_messages::address(index, *address));
                gone_is_fine(self.send(request, 0).await)
            }
            Step::PutRoute(route) => {
                let index = self.index(&route.device).await?;
                let request = Request::NewRoute(netlink_messages::route(route, index));
                self.send(request, NLM_F_CREATE | NLM_F_REPLACE).await
            }
            Step::DelRoute(route) => {
                // Without its device the route is gone as well.
                let Ok(index) = self.index(&route.device).await else {
                    return Ok(());
                };
                gone_is_fine(
                    self.send(Request::DelRoute(netlink_messages::route(route, index)), 0)
                        .await,
                )
            }
            Step::AddRule(rule) => {
                let request = Request::NewRule(netlink_messages::rule(rule));
                self.send(request, NLM_F_CREATE | NLM_F_EXCL).await
            }
            Step::DelRule(rule) => gone_is_fine(
                self.send(Request::DelRule(netlink_messages::rule(rule)), 0)
                    .await,
            ),
        }
    }

    pub async fn give_addresses(&self, device: &str, wanted: &[IpAddr]) -> Result<(), Error> {
        let refused = |what: &str, address: &IpAddr, source| Error::Refused {
            step: format!("ip address {what} {address} dev {device}"),
            source,
        };
        let index = self.index(device).await.map_err(|source| Error::Read {
            what: device.to_owned(),
            source,
        })?;
        let all: Vec<AddressMessage> =
            all("addresses", self.handle.address().get().execute()).await?;
        let own = all.iter().filter(|a| a.header.index == index);
        let found: Vec<IpAddr> = own.filter_map(|a| local(&a.attributes)).collect();
        let key = format!("net/ipv6/conf/{device}/disable_ipv6");
        let v6 = sysctl::read([key.clone()])?;
        // Without IPv6 in the kernel there is nothing to set; a new device may have it disabled.
        let possible = |address: &&IpAddr| address.is_ipv4() || !v6.is_empty();
        let missing = wanted.iter().filter(|address| !found.contains(address));
        let missing: Vec<&IpAddr> = missing.filter(possible).collect();
        if missing.iter().any(|address| address.is_ipv6()) && v6.get(&key) != Some(&"0".to_owned())
        {
            let write = sysctl::Write::new(&key, "0");
            write.apply().map_err(|source| Error::Refused {
                step: write.to_string(),
                source,
            })?;
        }
        for address in missing {
            let request = Request::NewAddress(netlink_messages::address(index, *address));
            let added = self.send(request, NLM_F_CREATE | NLM_F_REPLACE).await;
            added.map_err(|source| refused("add", address, source))?;
        }
        let stale = found.iter().filter(|address| !wanted.contains(address));
        for address in stale.filter(|address| super::plan::is_global(**address)) {
            let request = Request::DelAddress(netlink_messages::address(index, *address));
            let removed = gone_is_fine(self.send(request, 0).await);
            removed.map_err(|source| refused("del", address, source))?;
        }
        Ok(())
    }

    /// Sends one request and waits for the kernel's answer.
    async fn send(&self, request: Request, flags: u16) -> io::Result<()> {
        let mut request = NetlinkMessage::from(request);
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut answers = self.handle.clone().request(request).map_err(into_io)?;
        while let Some(answer) = answers.next().await {
            if let NetlinkPayload::Error(e) = answer.payload
                && e.code.is_some()
            {
                return Err(e.to_io());
            }
        }
        Ok(())
    }

    async fn index(&self, device: &str) -> io::Result<u32> {
        let mut links = self
            .handle
            .link()
            .get()
            .match_name(device.to_owned())
            .execute();
        let link = links.try_next().await.map_err(into_io)?;
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("no device {device}"));
        Ok(link.ok_or_else(missing)?.header.index)
    }
}

fn has_ipv6() -> bool {
    Path::new(PROC_SYS).join("net/ipv6").exists()
}

/// Returns the families to query.
fn families(ipv6: bool) -> impl Iterator<Item = (Family, IpVersion)> {
    let v6 = ipv6.then_some((Family::V6, IpVersion::V6));
    std::iter::once((Family::V4, IpVersion::V4)).chain(v6)
}

async fn all<T>(
    what: &str,
    stream: impl futures_util::Stream<Item = Result<T, rtnetlink::Error>>,
) -> Result<Vec<T>, Error> {
    let read: Result<Vec<T>, _> = stream.boxed_local().try_collect().await;
    read.map_err(|e| Error::Read {
        what: what.to_owned(),
        source: into_io(e),
    })
}

fn into_io(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(e) => e.to_io(),
        other => io::Error::other(other),
    }
}

/// Removing a missing object is no error.
fn gone_is_fine(outcome: io::Result<()>) -> io::Result<()> {
    const GONE: [i32; 4] = [libc::ENOENT, libc::ESRCH, libc::ENODEV, libc::EADDRNOTAVAIL];
    match outcome {
        Err(e) if e.raw_os_error().is_some_and(|code| GONE.contains(&code)) => Ok(()),
        outcome => outcome,
    }
}

fn name_of(link: &LinkMessage) -> Option<&str> {
    link.attributes.iter().find_map(|a| match a {
        LinkAttribute::IfName(name) => Some(name.as_str()),
        _ => None,
    })
}

fn device(link: &LinkMessage, ipv6: bool) -> Device {
    let (mut veth, mut group, mut alias, mut quiet) = (false, 0, "", !ipv6);
    let mut mtu = 0;
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::Mtu(bytes) => mtu = *bytes,
            LinkAttribute::Group(id) => group = *id,
            LinkAttribute::IfAlias(text) => alias = text,
            LinkAttribute::LinkInfo(info) => veth = info.contains(&LinkInfo::Kind(InfoKind::Veth)),
            LinkAttribute::AfSpecUnspec(families) => quiet |= no_link_local(families),
            _ => {}
        }
    }
    let flags = link.header.flags;
    Device {
        index: link.header.index,
        ours: veth && (group == GROUP || alias == MARK),
        mtu,
        up: flags.contains(LinkFlags::Up),
        set_up: alias == MARK && quiet && flags.contains(LinkFlags::Noarp),
    }
}

fn no_link_local(families: &[AfSpecUnspec]) -> bool {
    families.iter().any(|family| match family {
        AfSpecUnspec::Inet6(facts) => {
            facts.contains(&AfSpecInet6::AddrGenMode(In6AddrGenMode::None))
        }
        _ => false,
    })
}

fn local(attributes: &[AddressAttribute]) -> Option<IpAddr> {
    let find = |f: fn(&AddressAttribute) -> Option<IpAddr>| attributes.iter().find_map(f);
    let local = find(|a| match a {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    local.or(find(|a| match a {
        AddressAttribute::Address(ip) => Some(*ip),
        _ => None,
    }))
}
