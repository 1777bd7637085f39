//! Lookup of the hub's addresses.
//!
//! Names are looked up by the machine's own resolver, again and again, because the address of a hub at home
//! changes. The last result stays valid until another one is found.

use std::net::SocketAddr;
use std::time::Duration;

use braid_bond::token::{Host, HubAddress};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::BondEvent;
use crate::name_lookup::resolve;

/// Interval between lookups.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(60);
/// The same until the first result.
const LOOKUP_RETRY_DELAY: Duration = Duration::from_secs(3);
/// Most addresses that are used.
const MAX_HUB_ADDRESSES: usize = 8;

/// Looks the hub up until it is dropped.
#[derive(Debug)]
pub struct Lookup(AbortHandle);

impl Drop for Lookup {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Lookup {
    /// Starts looking up and reports the results. Needs a tokio runtime.
    #[must_use]
    pub fn begin(addresses: Vec<HubAddress>, events: UnboundedSender<BondEvent>) -> Lookup {
        let task = async move {
            loop {
                let found = look_up(&addresses).await;
                let pause = if found.is_ok() {
                    LOOKUP_INTERVAL
                } else {
                    LOOKUP_RETRY_DELAY
                };
                if events.send(BondEvent::Hub(found)).is_err() || !has_names(&addresses) {
                    return;
                }
                sleep(pause).await;
            }
        };
        Lookup(tokio::spawn(task).abort_handle())
    }
}

/// Returns the addresses that need no lookup.
#[must_use]
pub fn plain(addresses: &[HubAddress]) -> Vec<SocketAddr> {
    let plain = addresses.iter().filter_map(|address| match address.host {
        Host::Address(ip) => Some(SocketAddr::new(ip, address.port)),
        Host::Name(_) => None,
    });
    plain.collect()
}

fn has_names(addresses: &[HubAddress]) -> bool {
    plain(addresses).len() < addresses.len()
}

/// Returns every address of the hub, in the token's order, or the reason that there is none.
async fn look_up(addresses: &[HubAddress]) -> Result<Vec<SocketAddr>, String> {
    let mut found: Vec<SocketAddr> = Vec::new();
    let mut why = String::new();
    for address in addresses {
        let of_one = match &address.host {
            Host::Address(ip) => vec![SocketAddr::new(*ip, address.port)],
            Host::Name(name) => match resolve(name, address.port).await {
                Ok(of_one) => of_one,
                Err(error) => {
                    why = format!("{name} resolves to nothing: {error}");
                    continue;
                }
            },
        };
        for one in of_one {
            if found.len() < MAX_HUB_ADDRESSES && !found.contains(&one) {
                found.push(one);
            }
        }
    }
    match found.is_empty() {
        true => Err(why),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    fn addresses(texts: &[&str]) -> Vec<HubAddress> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn addresses_need_no_look_up() {
        let given = addresses(&["192.0.2.1", "[2001:db8::1]:9", "192.0.2.1"]);
        let (events, mut heard) = mpsc::unbounded_channel();
        let _lookup = Lookup::begin(given.clone(), events);
        let Some(BondEvent::Hub(Ok(found))) = heard.recv().await else {
            panic!("nothing found");
        };
        assert_eq!(found, plain(&given)[..2]);
        assert!(heard.recv().await.is_none(), "it is not looked up again");
    }

    #[tokio::test]
    async fn a_name_without_an_address_is_named() {
        // RFC 6761 §6.4: `invalid` never resolves.
        let found = look_up(&addresses(&["hub.invalid"])).await;
        let why = found.unwrap_err();
        assert!(
            why.starts_with("hub.invalid resolves to nothing: "),
            "{why}"
        );
        let both = look_up(&addresses(&["hub.invalid", "192.0.2.1"])).await;
        assert_eq!(both.unwrap().len(), 1);
    }
}
