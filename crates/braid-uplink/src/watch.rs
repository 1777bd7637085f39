//! Tells when to look again.

use std::io;
use std::time::Duration;

use rtnetlink::MulticastGroup;
use rtnetlink::sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket, protocols};
use tokio::time::{Instant, timeout_at};

use crate::{Error, Snapshot, netlink};

/// Changes come in bursts (a link comes up, then its addresses, then its routes): look again only
/// when nothing happened for this long …
const QUIET: Duration = Duration::from_millis(20);
/// … but no later than this after the first change, even on a machine that never rests.
const PATIENCE: Duration = Duration::from_millis(200);

const GROUPS: [MulticastGroup; 7] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv6Rule,
];

/// A subscription to changes of links, addresses, routes and rules. Dropping it ends it.
pub struct Watch {
    socket: TokioSocket,
    /// A change was seen and its snapshot not yet handed out.
    pending: bool,
}

/// Subscribes, in the network namespace of the calling thread. A change after this call is never
/// missed, so: watch first, then read. Needs a tokio runtime with I/O and time.
///
/// # Errors
/// [`Error::Socket`].
pub fn watch() -> Result<Watch, Error> {
    let mut socket = TokioSocket::new(protocols::NETLINK_ROUTE)?;
    let groups = GROUPS
        .iter()
        .fold(0, |mask, group| mask | 1 << (*group as u32 - 1));
    socket.socket_mut().bind(&SocketAddr::new(0, groups))?;
    Ok(Watch {
        socket,
        pending: false,
    })
}

impl Watch {
    /// Waits for the next change (or burst of changes) and reads everything anew. May yield a
    /// snapshot equal to the last one: routing rules are watched too, so that whoever owns some can
    /// put them back. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Netlink`] when the kernel cannot be read; calling again retries.
    pub async fn next(&mut self) -> Result<Snapshot, Error> {
        if !self.pending {
            self.event().await?;
            self.pending = true;
        }
        let latest = Instant::now() + PATIENCE;
        while let Ok(event) = timeout_at(latest.min(Instant::now() + QUIET), self.event()).await {
            event?;
        }
        let snapshot = netlink::read().await?;
        self.pending = false;
        Ok(snapshot)
    }

    /// What the event says is not looked at: it only means that something changed. So an overrun of
    /// the socket's buffer, which loses events, loses nothing.
    async fn event(&mut self) -> io::Result<()> {
        let mut ignored = Vec::with_capacity(4096);
        match self.socket.recv(&mut ignored).await {
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                tracing::debug!("kernel dropped network events, reading everything anew");
                Ok(())
            }
            outcome => outcome,
        }
    }
}
