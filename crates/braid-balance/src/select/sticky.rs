//! Sticky clients: each keeps to one uplink for a site.

use std::net::IpAddr;
use std::time::Duration;

use braid_core::UplinkId;

use crate::generated::{
    FTP_DATA_PORT as DATA_PORT, FTP_PORT as CONTROL_PORT, FTP_SECONDS,
    FTPS_PORT as CONTROL_PORT_TLS, SITE_BITS_V4, SITE_BITS_V6,
};
use crate::maps::layout::select::{StickyKey, StickyValue};
use crate::maps::layout::to_ip;
use crate::maps::tables::{Tables, ignore_missing};
use crate::{ClassId, Error, KernelTime};

/// Time for which an FTP control connection binds its client to its uplink, also in a class without `sticky`: for
/// connections to the site's ports from [`FTP_DATA_FROM`] on, and for later control connections there.
pub const FTP_KEPT: Duration = Duration::from_secs(FTP_SECONDS as u64);

/// The lowest port on which a server offers data in passive mode.
pub const FTP_DATA_FROM: u16 = DATA_PORT as u16;

/// The ports of FTP's control connection, without and with TLS from its first byte.
pub const FTP_CONTROL: [u16; 2] = [CONTROL_PORT as u16, CONTROL_PORT_TLS as u16];

/// Remote addresses that count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Site {
    /// The addresses with this number, see [`Name::site`](crate::Name::site).
    Named(u32),
    /// A network of remotes without a known name: a /24 of IPv4, a /56 of IPv6.
    Network(IpAddr),
}

/// A client that keeps to its uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sticky {
    /// Inner address.
    pub client: IpAddr,
    /// The site that the client talks to.
    pub site: Site,
    /// The class of that traffic.
    pub class: ClassId,
    /// The uplink.
    pub uplink: UplinkId,
    /// Time of its last new flow there.
    pub used: KernelTime,
}

impl Site {
    /// The site of a remote address of which no name is known.
    #[must_use]
    pub fn of(remote: IpAddr) -> Self {
        match remote {
            IpAddr::V4(address) => {
                let mask = u32::MAX << (32 - SITE_BITS_V4);
                Self::Network(IpAddr::V4((address.to_bits() & mask).into()))
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX << (128 - SITE_BITS_V6);
                Self::Network(IpAddr::V6((address.to_bits() & mask).into()))
            }
        }
    }
}

/// Returns all entries, including expired ones. Entries of clients that have had an answer come first: they win where
/// both tables have one.
pub(crate) fn sticky(tables: &Tables) -> Result<Vec<Sticky>, Error> {
    let mut all = Vec::new();
    for table in &tables.sticky {
        let entries = table.entries()?;
        all.extend(entries.iter().map(|(key, value)| read(key, value)));
    }
    Ok(all)
}

/// Removes the entries that `which` selects. Returns how many.
pub(crate) fn forget_sticky(
    tables: &mut Tables,
    which: impl Fn(&Sticky) -> bool,
) -> Result<usize, Error> {
    let mut forgotten = 0;
    for table in &mut tables.sticky {
        for (key, value) in table.entries()? {
            if which(&read(&key, &value)) {
                ignore_missing("map sticky", table.map.remove(&key))?;
                forgotten += 1;
            }
        }
    }
    Ok(forgotten)
}

fn read(key: &StickyKey, value: &StickyValue) -> Sticky {
    let site = match key.site {
        [0xff, 0xff, 0xff, 0xff, .., a, b, c, d] => Site::Named(u32::from_ne_bytes([a, b, c, d])),
        network => Site::Network(to_ip(network)),
    };
    Sticky {
        client: to_ip(key.client),
        site,
        class: ClassId(key.class),
        uplink: UplinkId(value.uplink),
        used: KernelTime::from_nanos(value.used),
    }
}
