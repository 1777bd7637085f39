//! What is known of remote addresses by name: which domain rules they satisfy, which site they
//! belong to.
#![allow(unsafe_code)]

use std::mem::{offset_of, size_of};
use std::net::IpAddr;

use aya::maps::MapError;

use crate::layout::from_ip;
use crate::tables::{Tables, refused};
use crate::{Error, KernelTime};

/// What a remote address' names say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The domain rules that one of its names satisfies: the sum of their
    /// [`NameBit::mask`](crate::NameBit::mask)s.
    pub rules: u64,
    /// Number of the site, the same for all addresses that a client should reach by one uplink;
    /// 0: not known, the address' network stands for it.
    pub site: u32,
    /// From this moment on nothing is known.
    pub expires: KernelTime,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct NameValue {
    pub rules: u64,
    pub expires: u64,
    pub site: u32,
    pub unused: u32,
}

const _: () = {
    assert!(size_of::<NameValue>() == 24);
    assert!(offset_of!(NameValue, site) == 16);
};

// SAFETY: repr(C), integers only, every byte is a named field, every bit pattern is a value.
unsafe impl aya::Pod for NameValue {}

pub(crate) fn learn_names(tables: &mut Tables, names: &[(IpAddr, Name)]) -> Result<(), Error> {
    for (address, name) in names {
        let value = NameValue {
            rules: name.rules,
            expires: name.expires.as_nanos(),
            site: name.site,
            unused: 0,
        };
        let inserted = tables.names.insert(from_ip(*address), value, 0);
        inserted.map_err(|error| refused("map names", &error))?;
    }
    Ok(())
}

/// What is known of an address at `now`.
pub(crate) fn name(
    tables: &Tables,
    address: IpAddr,
    now: KernelTime,
) -> Result<Option<Name>, Error> {
    let value = match tables.names.get(&from_ip(address), 0) {
        Err(MapError::KeyNotFound) => return Ok(None),
        value => value.map_err(|error| refused("map names", &error))?,
    };
    let name = Name {
        rules: value.rules,
        site: value.site,
        expires: KernelTime::from_nanos(value.expires),
    };
    Ok((now < name.expires).then_some(name))
}

pub(crate) fn forget_names(tables: &mut Tables) -> Result<(), Error> {
    let failed = |error| refused("map names", &error);
    let known: Vec<_> = tables
        .names
        .keys()
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    for address in known {
        crate::tables::gone("map names", tables.names.remove(&address))?;
    }
    Ok(())
}
