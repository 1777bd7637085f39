//! Addresses of names, by the machine's own resolver.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::timeout;

/// Timeout of a lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns every address of a name, never none, or the reason that there is none.
pub(crate) async fn resolve(name: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    match timeout(LOOKUP_TIMEOUT, lookup_host((name, port))).await {
        Ok(Ok(found)) => {
            let found: Vec<SocketAddr> = found.collect();
            match found.is_empty() {
                true => Err("no address".to_owned()),
                false => Ok(found),
            }
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", LOOKUP_TIMEOUT.as_secs())),
    }
}
