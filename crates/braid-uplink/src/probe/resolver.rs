//! Cache of the addresses of probe targets that are given by name.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::Instant;

/// Time for which an address is used. A portal's false answers outlast the portal by no more than this.
const ADDRESS_TTL: Duration = Duration::from_secs(300);
/// Most cached names; a configuration has a handful.
const MAX_NAMES: usize = 256;

/// Cached addresses of one name.
#[derive(Debug, Default)]
struct Name {
    known: Mutex<Option<(Instant, Vec<IpAddr>)>>,
    /// Held during a lookup, so that a resolver that hangs is queried once.
    lookup: Arc<AsyncMutex<()>>,
}

/// Looks names up with the system's resolver, over whichever uplink the system uses: the probe judges the
/// uplink, not the resolver.
#[derive(Clone, Debug, Default)]
pub(super) struct Resolver(Arc<Mutex<HashMap<String, Arc<Name>>>>);

impl Resolver {
    /// Returns the addresses of a name, or the address itself if the text is one. An expired entry is used
    /// while it is refreshed, because a probe of a dead uplink must not wait for a resolver behind that uplink.
    pub(super) async fn addresses(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        if let Ok(address) = host.parse() {
            return Ok(vec![address]);
        }
        let name = self.name(host);
        if let Some((at, addresses)) = name.known() {
            if at.elapsed() >= ADDRESS_TTL
                && let Ok(turn) = name.lookup.clone().try_lock_owned()
            {
                tokio::spawn(look_up(name, host.to_owned(), turn));
            }
            return Ok(addresses);
        }
        let turn = name.lookup.clone().lock_owned().await;
        if let Some((_, addresses)) = name.known() {
            return Ok(addresses);
        }
        // A task, because the lookup continues when the probe that waits for it gives up.
        let lookup = tokio::spawn(look_up(name, host.to_owned(), turn));
        lookup.await.map_err(io::Error::other)?
    }

    fn name(&self, host: &str) -> Arc<Name> {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= MAX_NAMES && !names.contains_key(host) {
            names.clear();
        }
        names.entry(host.to_owned()).or_default().clone()
    }
}

impl Name {
    fn known(&self) -> Option<(Instant, Vec<IpAddr>)> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.clone()
    }
}

async fn look_up(
    name: Arc<Name>,
    host: String,
    turn: OwnedMutexGuard<()>,
) -> io::Result<Vec<IpAddr>> {
    let found = lookup_host((host.as_str(), 0)).await?;
    let addresses: Vec<IpAddr> = found.map(|at| at.ip()).collect();
    let mut known = name.known.lock().unwrap_or_else(PoisonError::into_inner);
    *known = Some((Instant::now(), addresses.clone()));
    drop(turn);
    Ok(addresses)
}
