//! Clients over their limit of flows, which may open none for now.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::Error;
use crate::maps::layout::from_ip;
use crate::maps::tables::{Tables, replace};

/// Most clients that can be limited at once.
pub const MAX_LIMITED_CLIENTS: usize = crate::generated::MAX_LIMITED_CLIENTS as usize;

pub(crate) fn limit_clients(tables: &mut Tables, clients: &[IpAddr]) -> Result<(), Error> {
    let wanted: BTreeMap<_, u32> = clients.iter().map(|&client| (from_ip(client), 1)).collect();
    if wanted.len() > MAX_LIMITED_CLIENTS {
        return Err(Error::Invalid {
            what: "limited clients",
            problem: format!("{} of them, at most {MAX_LIMITED_CLIENTS}", wanted.len()),
        });
    }
    replace("map connlimit", &mut tables.connlimit, &wanted)
}
