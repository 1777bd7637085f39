//! Tells when to look again.

use std::io;
use std::time::Duration;

use rtnetlink::MulticastGroup;
use rtnetlink::sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket, protocols};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::carrier::CarrierMonitor;
use crate::{Error, Snapshot, netlink};

/// Changes come in bursts (a link comes up, then its addresses, then its routes): look again only
/// when nothing happened for this long …
const DEBOUNCE: Duration = Duration::from_millis(20);
/// … but no later than this after the first change, even on a machine that never rests.
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

/// A subscription to changes of links, addresses, routes and rules, and a look of its own at the
/// carriers. Dropping it ends it.
///
/// Whatever is under way is kept here and not in the future that [`NetworkMonitor::next`] returns: a caller
/// with a short timer of its own may drop that future as often as it likes.
pub struct NetworkMonitor {
    socket: TokioSocket,
    carriers: CarrierMonitor,
    /// A change was seen and its snapshot not yet handed out.
    debounce: Option<Debounce>,
    reading: Option<JoinHandle<Result<Snapshot, Error>>>,
    /// There has been a first reading, which the carriers are compared with.
    begun: bool,
}

/// Until when to wait for more changes of the same burst.
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

    /// Nothing to wait for.
    fn over() -> Debounce {
        let now = Instant::now();
        Debounce {
            began: now,
            quiet: now,
            latest: now,
        }
    }
}

/// Subscribes, in the network namespace of the calling thread. A change after this call is never
/// missed, so: watch first, then read. Needs a tokio runtime with I/O and time.
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
    /// Waits for the next change (or burst of changes) and reads everything anew. A lost carrier is
    /// noticed within 25 ms even while the kernel has not told of it. May yield a snapshot equal to
    /// the last one: routing rules are watched too, so that whoever owns some can put them back.
    /// Cancel-safe.
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

    /// Returns when the oldest change was seen that no snapshot has shown yet; `None`: there is none.
    #[must_use]
    pub fn unread_since(&self) -> Option<Instant> {
        self.debounce.map(|debounce| debounce.began)
    }

    /// Waits for an event, for a carrier that is not as it was, or for the end of a burst.
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

    /// The reading goes on when this future is dropped; the next call awaits the same one.
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

/// Reads on a thread that may block: the kernel answers while the question is being sent, and waits
/// for a lock that it holds for long while namespaces are taken down.
fn read_apart() -> Result<Snapshot, Error> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(netlink::read())
}

/// What the event says is not looked at: it only means that something changed. So an overrun of
/// the socket's buffer, which loses events, loses nothing.
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
