//! Subscription to changes of links, addresses and routes.

use std::io;
use std::time::Duration;

use rtnetlink::MulticastGroup;
use rtnetlink::sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket, protocols};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::carrier::CarrierMonitor;
use crate::{Error, Snapshot, netlink};

/// Quiet time after which a burst of changes (a link comes up, then its addresses, then its routes) is read.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Longest delay after the first change of a burst, for machines that are never quiet.
const MAX_DEBOUNCE: Duration = Duration::from_millis(200);

const GROUPS: [MulticastGroup; 7] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv6Rule,
];

/// A subscription to changes of links, addresses, routes and rules, which also polls the carriers itself.
/// Dropping it ends it.
///
/// Work under way is kept here and not in the future that [`NetworkMonitor::next`] returns, so a caller with a
/// short timer may drop that future at any time.
pub struct NetworkMonitor {
    socket: TokioSocket,
    carriers: CarrierMonitor,
    /// A change was seen whose snapshot has not been returned yet.
    debounce: Option<Debounce>,
    reading: Option<JoinHandle<Result<Snapshot, Error>>>,
    /// The first reading is done; the carriers are compared with it.
    begun: bool,
}

/// End of the wait for more changes of the same burst.
#[derive(Clone, Copy)]
struct Debounce {
    began: Instant,
    quiet: Instant,
    latest: Instant,
}

impl Debounce {
    fn grow(debounce: Option<Debounce>) -> Debounce {
        let now = Instant::now();
        let began = debounce.map_or(now, |debounce| debounce.began);
        Debounce {
            began,
            quiet: now + DEBOUNCE,
            latest: debounce.map_or(now + MAX_DEBOUNCE, |debounce| debounce.latest),
        }
    }

    /// Returns one that is due at once.
    fn over() -> Debounce {
        let now = Instant::now();
        Debounce {
            began: now,
            quiet: now,
            latest: now,
        }
    }
}

/// Subscribes, in the network namespace of the calling thread. No change after this call is missed, so
/// subscribe first and read afterwards. Needs a tokio runtime with I/O and time.
///
/// # Errors
/// [`Error::Socket`].
pub fn subscribe() -> Result<NetworkMonitor, Error> {
    let mut socket = TokioSocket::new(protocols::NETLINK_ROUTE)?;
    let groups = GROUPS
        .iter()
        .fold(0, |mask, group| mask | 1 << (*group as u32 - 1));
    socket.socket_mut().bind(&SocketAddr::new(0, groups))?;
    Ok(NetworkMonitor {
        socket,
        carriers: CarrierMonitor::open()?,
        debounce: None,
        reading: None,
        begun: false,
    })
}

impl NetworkMonitor {
    /// Waits for the next change or burst of changes and reads everything anew. A lost carrier is noticed
    /// within 25 ms, even before the kernel reports it. May return a snapshot equal to the last one: routing
    /// rules are watched too, so that their owner can restore them. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Netlink`] when the kernel cannot be read; calling again retries.
    pub async fn next(&mut self) -> Result<Snapshot, Error> {
        loop {
            if !self.begun || self.debounce.is_some_and(is_over) {
                let snapshot = self.read().await?;
                self.carriers.expect(&snapshot);
                self.begun = true;
                if self
                    .debounce
                    .take_if(|debounce| is_over(*debounce))
                    .is_some()
                {
                    return Ok(snapshot);
                }
            }
            self.wait().await?;
        }
    }

    /// Returns the time of the oldest change that no snapshot has shown yet, if there is one.
    #[must_use]
    pub fn unread_since(&self) -> Option<Instant> {
        self.debounce.map(|debounce| debounce.began)
    }

    /// Waits for an event, a changed carrier, or the end of a burst.
    async fn wait(&mut self) -> io::Result<()> {
        let NetworkMonitor {
            socket, carriers, ..
        } = self;
        let rest = async {
            match self.debounce {
                Some(debounce) => sleep_until(debounce.quiet.min(debounce.latest)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            outcome = event(socket) => {
                outcome?;
                if self.debounce.is_none() {
                    carriers.poll_now();
                }
                self.debounce = Some(Debounce::grow(self.debounce));
            }
            () = carriers.changed() => self.debounce = Some(Debounce::over()),
            () = rest => {}
        }
        Ok(())
    }

    /// The reading continues when this future is dropped; the next call awaits the same one.
    async fn read(&mut self) -> Result<Snapshot, Error> {
        let reading = self
            .reading
            .get_or_insert_with(|| tokio::task::spawn_blocking(read_apart));
        let outcome = reading.await;
        self.reading = None;
        outcome.map_err(|stopped| Error::Socket(io::Error::other(stopped)))?
    }
}

fn is_over(debounce: Debounce) -> bool {
    debounce.quiet.min(debounce.latest) <= Instant::now()
}

/// Reads on a thread that may block: the kernel answers during the send call, and waits for a lock that it
/// holds for long while namespaces are taken down.
fn read_apart() -> Result<Snapshot, Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(netlink::read())
}

/// Events are not parsed: each only means that something changed. An overflow of the socket's buffer, which
/// loses events, therefore loses nothing.
async fn event(socket: &mut TokioSocket) -> io::Result<()> {
    let mut ignored = Vec::with_capacity(4096);
    match socket.recv(&mut ignored).await {
        Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
            tracing::debug!("kernel dropped network events, reading everything anew");
            Ok(())
        }
        outcome => outcome,
    }
}
