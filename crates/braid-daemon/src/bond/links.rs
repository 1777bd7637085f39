//! The links of the bond: from each uplink to each address of the hub.
//!
//! Pure. Rules, and why:
//! - An uplink is one link, however many addresses the hub has: two links over one line would each measure what
//!   the other leaves. All addresses are tried from an uplink, and once one carries data the others are
//!   dropped.
//! - A link that falls silent is kept, and the other addresses are tried again beside it: the cause may be the
//!   line, or only that family or address.
//! - A link keeps its number for as long as it is wanted, because the session identifies it by that.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use braid_bond::io::LinkSpec;
use braid_core::{Bytes, Rate};
use braid_multipath::{LinkId, MAX_LINKS};

/// An uplink, as far as links need it.
#[derive(Clone, Debug, PartialEq)]
pub struct BondUplink {
    /// Its name.
    pub name: String,
    /// Its device.
    pub device: String,
    /// Its addresses, at most one of a family.
    pub sources: Vec<IpAddr>,
    /// Its tier: expensive uplinks carry what cheap ones cannot.
    pub tier: u8,
    /// Upper bound of its rate.
    pub cap: Option<Rate>,
    /// Rest of its quota; `None` if unlimited.
    pub left: Option<Bytes>,
}

/// A device and an address of the hub, which identify a link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LinkKey {
    device: String,
    hub: SocketAddr,
}

/// The wanted links and their state.
#[derive(Debug, Default)]
pub struct Links {
    numbers: BTreeMap<LinkKey, LinkId>,
    names: BTreeMap<LinkId, String>,
    working: BTreeSet<LinkId>,
    wanted: Vec<LinkSpec>,
}

impl Links {
    /// Returns the links for these uplinks. If there are not enough numbers, the first uplinks get them.
    pub fn update(&mut self, uplinks: &[BondUplink], hub: &[SocketAddr]) -> &[LinkSpec] {
        let mut keys: Vec<(usize, _)> = Vec::new();
        for uplink in uplinks {
            keys.extend(self.keys(uplink, hub).into_iter().enumerate());
        }
        // The first address of each uplink comes before the second one of any.
        keys.sort_by_key(|(rank, _)| *rank);
        let keys: Vec<_> = keys.into_iter().map(|(_, key)| key).collect();
        self.numbers
            .retain(|key, _| keys.iter().any(|(wanted, _, _)| wanted == key));
        let mut links = Vec::new();
        self.names.clear();
        for (key, source, uplink) in keys {
            let Some(id) = self.number(&key) else { break };
            self.names.insert(id, uplink.name.clone());
            links.push(LinkSpec {
                id,
                device: key.device,
                source,
                hub: key.hub,
                tier: uplink.tier,
                cap: uplink.cap,
                quota: uplink.left,
            });
        }
        let names = &self.names;
        self.working.retain(|id| names.contains_key(id));
        links.sort_by_key(|link| link.id);
        self.wanted = links;
        &self.wanted
    }

    /// Records if a link carries data; returns true if that changes the wanted links.
    pub fn note(&mut self, link: LinkId, works: bool) -> bool {
        match works && self.names.contains_key(&link) {
            true => self.working.insert(link),
            false => self.working.remove(&link),
        }
    }

    /// Records that no link carries data any more.
    pub fn fall_silent(&mut self) {
        self.working.clear();
    }

    /// Returns the wanted links, by number.
    #[must_use]
    pub fn wanted(&self) -> &[LinkSpec] {
        &self.wanted
    }

    /// Returns true if any link carries data.
    #[must_use]
    pub fn any_works(&self) -> bool {
        !self.working.is_empty()
    }

    /// Returns the name of a link's uplink.
    #[must_use]
    pub fn name_of(&self, link: LinkId) -> Option<&str> {
        self.names.get(&link).map(String::as_str)
    }

    /// Returns the keys of all links of an uplink, or that of the one that works.
    fn keys<'l>(
        &self,
        uplink: &'l BondUplink,
        hub: &[SocketAddr],
    ) -> Vec<(LinkKey, IpAddr, &'l BondUplink)> {
        let keys = hub.iter().filter_map(|hub| {
            let mut sources = uplink.sources.iter();
            let source = sources.find(|source| source.is_ipv4() == hub.is_ipv4())?;
            let key = LinkKey {
                device: uplink.device.clone(),
                hub: *hub,
            };
            Some((key, *source, uplink))
        });
        let mut keys: Vec<_> = keys.collect();
        let works = |(key, _, _): &(LinkKey, IpAddr, &BondUplink)| {
            let id = self.numbers.get(key);
            id.is_some_and(|id| self.working.contains(id))
        };
        if let Some(at) = keys.iter().position(works) {
            return vec![keys.swap_remove(at)];
        }
        keys
    }

    fn number(&mut self, key: &LinkKey) -> Option<LinkId> {
        if let Some(id) = self.numbers.get(key) {
            return Some(*id);
        }
        let last = u8::try_from(MAX_LINKS).unwrap_or(u8::MAX);
        let mut ids = (0..last).map(LinkId);
        let free = ids.find(|id| self.numbers.values().all(|taken| taken != id))?;
        self.numbers.insert(key.clone(), free);
        Some(free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uplink(name: &str, sources: &[&str]) -> BondUplink {
        BondUplink {
            name: name.to_owned(),
            device: format!("{name}0"),
            sources: sources
                .iter()
                .map(|source| source.parse().unwrap())
                .collect(),
            tier: 1,
            cap: None,
            left: None,
        }
    }

    fn hub(addresses: &[&str]) -> Vec<SocketAddr> {
        let parsed = addresses.iter().map(|address| address.parse().unwrap());
        parsed.collect()
    }

    fn told(links: &[LinkSpec]) -> Vec<String> {
        let tell = |link: &LinkSpec| format!("{} {} {}", link.id.0, link.device, link.hub);
        links.iter().map(tell).collect()
    }

    #[test]
    fn every_way_is_tried_until_one_works() {
        let uplinks = [
            uplink("dsl", &["192.0.2.1", "2001:db8::1"]),
            uplink("lte", &["198.51.100.1"]),
        ];
        let hub = hub(&["203.0.113.9:1", "[2001:db8:9::9]:1"]);
        let mut links = Links::default();
        let all = [
            "0 dsl0 203.0.113.9:1",
            "1 lte0 203.0.113.9:1",
            "2 dsl0 [2001:db8:9::9]:1",
        ];
        assert_eq!(told(links.update(&uplinks, &hub)), all);
        assert!(links.note(LinkId(2), true));
        assert!(!links.note(LinkId(2), true), "known already");
        assert_eq!(told(links.update(&uplinks, &hub)), all[1..]);
        assert_eq!(links.name_of(LinkId(2)), Some("dsl"));
        // Silent again: it keeps its number, and the other address is tried beside it.
        assert!(links.note(LinkId(2), false));
        assert_eq!(told(links.update(&uplinks, &hub)), all);
        assert!(!links.any_works());
    }

    #[test]
    fn who_stays_keeps_its_number_and_who_goes_is_forgotten() {
        let (dsl, lte) = (
            uplink("dsl", &["192.0.2.1"]),
            uplink("lte", &["198.51.100.1"]),
        );
        let hub = hub(&["203.0.113.9:1"]);
        let mut links = Links::default();
        links.update(&[dsl.clone(), lte.clone()], &hub);
        assert!(links.note(LinkId(0), true) && links.note(LinkId(1), true));
        assert_eq!(
            told(links.update(std::slice::from_ref(&lte), &hub)),
            ["1 lte0 203.0.113.9:1"]
        );
        assert!(!links.note(LinkId(0), true), "nobody wants it");
        let renumbered = uplink("dsl", &["192.0.2.7"]);
        let back = links.update(&[renumbered, lte], &hub);
        assert_eq!(told(back), ["0 dsl0 203.0.113.9:1", "1 lte0 203.0.113.9:1"]);
        assert_eq!(back[0].source, "192.0.2.7".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn there_are_no_more_links_than_numbers() {
        let uplinks: Vec<BondUplink> = (0..31)
            .map(|n| uplink(&format!("u{n}"), &["192.0.2.1"]))
            .collect();
        let hub = hub(&["203.0.113.9:1", "203.0.113.10:1"]);
        let mut links = Links::default();
        assert_eq!(links.update(&uplinks, &hub).len(), MAX_LINKS);
        assert!(
            uplinks
                .iter()
                .all(|uplink| links.names.values().any(|name| *name == uplink.name))
        );
        assert!(Links::default().update(&uplinks, &[]).is_empty());
    }
}
