//! Names of remote addresses: the domain rules that they satisfy, and the site that they belong to.

use std::net::IpAddr;
use std::os::fd::AsFd;

use aya::maps::MapError;

use crate::maps::batch;
use crate::maps::layout::select::DnsNameValue;
use crate::maps::layout::{from_ip, to_ip};
use crate::maps::tables::{Tables, ignore_missing, refused};
use crate::{Error, KernelTime};

/// Facts that follow from a remote address's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The domain rules that one of its names satisfies: the sum of their
    /// [`NameBit::mask`](crate::NameBit::mask)s.
    pub rules: u64,
    /// Number of the site, the same for all addresses that a client should reach by one uplink;
    /// 0: unknown, so the address' network counts as the site.
    pub site: u32,
    /// Time from which the facts are no longer valid.
    pub expires: KernelTime,
}

pub(crate) fn learn_names(tables: &mut Tables, names: &[(IpAddr, Name)]) -> Result<(), Error> {
    for (address, name) in names {
        let value = DnsNameValue {
            rules: name.rules,
            expires: name.expires.as_nanos(),
            site: name.site,
            unused: 0,
        };
        let inserted = tables.dns_names.insert(from_ip(*address), value, 0);
        inserted.map_err(|error| refused("map dns_names", &error))?;
    }
    Ok(())
}

/// Returns the names' facts about an address, as far as they are valid at `now`.
pub(crate) fn name(
    tables: &Tables,
    address: IpAddr,
    now: KernelTime,
) -> Result<Option<Name>, Error> {
    let value = match tables.dns_names.get(&from_ip(address), 0) {
        Err(MapError::KeyNotFound) => return Ok(None),
        value => value.map_err(|error| refused("map dns_names", &error))?,
    };
    let name = read(&value);
    Ok((now < name.expires).then_some(name))
}

/// Returns all names, including expired ones.
pub(crate) fn names(tables: &Tables) -> Result<Vec<(IpAddr, Name)>, Error> {
    let map = tables.dns_names_data.fd().as_fd();
    let entries = batch::entries(map);
    let entries = entries.map_err(|source| Error::system("reading map dns_names", source))?;
    let named = entries
        .iter()
        .map(|(address, value)| (to_ip(*address), read(value)));
    Ok(named.collect())
}

pub(crate) fn forget_names(tables: &mut Tables, addresses: &[IpAddr]) -> Result<(), Error> {
    for address in addresses {
        ignore_missing("map dns_names", tables.dns_names.remove(&from_ip(*address)))?;
    }
    Ok(())
}

/// Forgets all names unless their marks had the same meaning before.
pub(crate) fn keep_names(tables: &mut Tables, meaning: u32) -> Result<bool, Error> {
    let failed = |error| refused("map meta", &error);
    let mut meta = tables.meta.get(&0, 0).map_err(failed)?;
    if meta.marks == meaning {
        return Ok(false);
    }
    let known = names(tables)?;
    let known: Vec<_> = known.into_iter().map(|(address, _)| address).collect();
    forget_names(tables, &known)?;
    meta.marks = meaning;
    tables.meta.set(0, meta, 0).map_err(failed)?;
    Ok(true)
}

fn read(value: &DnsNameValue) -> Name {
    Name {
        rules: value.rules,
        site: value.site,
        expires: KernelTime::from_nanos(value.expires),
    }
}
